"""Local steps on a plain perceptron, multiplied out by hand.

For one user of a few rows most of a step's time on a CPU is not arithmetic but asking for it, and workers that ask wait
for each other. Linear layers with an activation behind each, then a linear head, are common and their slopes are short:
backward through an activation, the weights' slope gᵀa straight into the weights, and g W on to the layer before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_BACK: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu_, lambda g, out: torch.ops.aten.threshold_backward(g, out, 0)),
    nn.Tanh: (torch.tanh_, lambda g, out: torch.ops.aten.tanh_backward(g, out)),
    nn.Sigmoid: (torch.sigmoid_, lambda g, out: torch.ops.aten.sigmoid_backward(g, out)),
}
"""Activations whose slope is a function of what came out, in place and backward."""


class Chain:
    """Linear layers, each with an activation or none behind it. ``layers``: name, activation."""

    def __init__(self, layers: Sequence[tuple[str, type[nn.Module] | None]]) -> None:
        self._layers = [(f"{name}.weight", f"{name}.bias", _BACK.get(kind) if kind else None) for name, kind in layers]

    @classmethod
    def of(cls, body: nn.Module, head: nn.Module) -> Chain | None:
        """Return the chain that a body is, if it is one, all of it is learned, and the head is linear.

        >>> Chain.of(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), nn.Linear(2, 2)) is not None
        True
        >>> Chain.of(nn.Sequential(nn.Linear(3, 2), nn.GELU()), nn.Linear(2, 2)) is None
        True
        """
        learned = all(value.requires_grad for module in (body, head) for value in module.parameters())
        if type(body) is not nn.Sequential or type(head) is not nn.Linear or not learned:
            return None
        layers: list[tuple[str, type[nn.Module] | None]] = []
        for name, layer in body._modules.items():  # named_children would leave out an activation that is used twice
            if type(layer) is nn.Linear:
                layers.append((name, None))
            elif type(layer) in _BACK and layers and layers[-1][1] is None:
                layers[-1] = layers[-1][0], type(layer)
            else:
                return None
        return cls(layers) if layers else None

    def step(
        self,
        moved: Mapping[str, Tensor],
        head: Sequence[Tensor],
        x: Tensor,
        slope: Callable[[Tensor], Tensor],
        rate: float,
    ) -> None:
        """Take one step against the slope of a loss, in place; ``slope`` gives that of its outputs."""
        inputs, found = x, []
        for weight, level, kind in self._layers:
            output = nn.functional.linear(inputs, moved[weight], moved.get(level))
            if kind is not None:
                output = kind[0](output)
            found.append((inputs, output))
            inputs = output
        g = slope(nn.functional.linear(inputs, *head)) @ head[0]
        for i in range(len(found) - 1, -1, -1):
            weight, level, kind = self._layers[i]
            given, output = found[i]
            if kind is not None:
                g = kind[1](g, output)
            below: Any = g @ moved[weight] if i else None
            moved[weight].addmm_(g.mT, given, alpha=-rate)
            if level in moved:
                moved[level].add_(g.sum(0), alpha=-rate)
            g = below
