"""Local steps on a plain multilayer perceptron with a hand-written backward pass.

For one user with a few rows, most of the time of a step on a CPU is dispatch, not arithmetic, and workers that dispatch
wait for each other. Linear layers, each with an optional activation, followed by a linear head are common, and their
backward pass is short: through the activation, the weight gradient gᵀa directly into the weights, and g W to the layer
before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu_, lambda g, out: torch.ops.aten.threshold_backward(g, out, 0)),
    nn.Tanh: (torch.tanh_, lambda g, out: torch.ops.aten.tanh_backward(g, out)),
    nn.Sigmoid: (torch.sigmoid_, lambda g, out: torch.ops.aten.sigmoid_backward(g, out)),
}
"""Activations whose derivative is a function of their output: forward in place, and backward."""


class MLPSteps:
    """Steps on linear layers, each with an optional activation. ``layers``: name and activation of each layer."""

    def __init__(self, layers: Sequence[tuple[str, type[nn.Module] | None]]) -> None:
        activations = [(name, _ACTIVATIONS.get(kind) if kind else None) for name, kind in layers]
        self._layers = [(f"{name}.weight", f"{name}.bias", activation) for name, activation in activations]

    @classmethod
    def of(cls, body: nn.Module, head: nn.Module) -> MLPSteps | None:
        """Return the steps for a body, or None unless it is a plain, fully trainable perceptron and the head is linear.

        >>> MLPSteps.of(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), nn.Linear(2, 2)) is not None
        True
        >>> MLPSteps.of(nn.Sequential(nn.Linear(3, 2), nn.GELU()), nn.Linear(2, 2)) is None
        True
        """
        learned = all(value.requires_grad for module in (body, head) for value in module.parameters())
        if type(body) is not nn.Sequential or type(head) is not nn.Linear or not learned:
            return None
        layers: list[tuple[str, type[nn.Module] | None]] = []
        for name, layer in body._modules.items():  # named_children would skip an activation module that is used twice
            if type(layer) is nn.Linear:
                layers.append((name, None))
            elif type(layer) in _ACTIVATIONS and layers and layers[-1][1] is None:
                layers[-1] = layers[-1][0], type(layer)
            else:
                return None
        return cls(layers) if layers else None

    def step(
        self,
        parameters: Mapping[str, Tensor],
        head: Sequence[Tensor],
        x: Tensor,
        output_gradient: Callable[[Tensor], Tensor],
        rate: float,
    ) -> None:
        """Take one gradient step in place; ``output_gradient`` gives the gradient of the loss in the outputs."""
        inputs, calls = x, []
        for weight, bias, activation in self._layers:
            output = nn.functional.linear(inputs, parameters[weight], parameters.get(bias))
            if activation is not None:
                output = activation[0](output)
            calls.append((inputs, output))
            inputs = output
        g = output_gradient(nn.functional.linear(inputs, *head)) @ head[0]
        for i in range(len(calls) - 1, -1, -1):
            weight, bias, activation = self._layers[i]
            layer_input, output = calls[i]
            if activation is not None:
                g = activation[1](g, output)
            previous: Any = g @ parameters[weight] if i else None
            parameters[weight].addmm_(g.mT, layer_input, alpha=-rate)
            if bias in parameters:
                parameters[bias].add_(g.sum(0), alpha=-rate)
            g = previous
