"""A body that tells what went into its linear layers and what came out, so that slopes of weights need no tape.

The slope of a linear layer's weights is (slope of its output)ᵀ · (its input). With both at hand one can bound, add and
use such slopes without writing them down: :mod:`tacitly.neural.engine.ghost_clipping` for many users at once, and one
user's local steps in :mod:`tacitly.neural.engine.update`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from tacitly.neural.networks.architectures import LinearWithSkip

ROW_BY_ROW: frozenset[type[nn.Module]] = frozenset(
    {
        *(nn.Sequential, nn.Identity, nn.Linear, LinearWithSkip),
        *(nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.ELU),
        *(nn.GroupNorm, nn.LayerNorm, nn.BatchNorm1d, nn.Dropout),
    }
)
"""Layers that make rows × numbers of rows × numbers, each row by itself, in evaluation mode.

Not in it: what could take rows for something else. ``Flatten(0)`` joins them, ``Unflatten`` splits them, and
convolutions and pools take an input of one dimension less for a single picture, whose channels rows then are.
"""


def row_by_row(module: nn.Module) -> bool:
    """Whether rows of several users can go through a module together, each by itself.

    >>> row_by_row(nn.Sequential(nn.Linear(3, 2), nn.ReLU())), row_by_row(nn.Sequential(nn.Flatten(0)))
    (True, False)
    """
    layers = list(module.modules())
    flat = [len(layer.normalized_shape) == 1 for layer in layers if isinstance(layer, nn.LayerNorm)]
    return all(type(layer) in ROW_BY_ROW for layer in layers) and all(flat)


def learned_by_linear_layers(module: nn.Module) -> bool:
    """Whether all trainable parameters are weights and levels of linear layers."""
    held = {id(p) for layer in module.modules() if type(layer) is nn.Linear for p in layer.parameters(recurse=False)}
    return all(id(p) in held for p in module.parameters() if p.requires_grad)


class Taps:
    """Inputs and outputs of a module's linear layers in the last calls, by layer.

    Only layers with something to learn; outputs are what slopes are asked for. ``module`` is changed: hand in a copy.
    """

    def __init__(self, module: nn.Module, learned: Sequence[str]) -> None:
        names = [name for name in learned if type(module.get_submodule(_owner(name))) is nn.Linear]
        self.layers = list(dict.fromkeys(_owner(name) for name in names))
        self.names = names
        self._found: dict[str, list[tuple[Tensor, Tensor]]] = {owner: [] for owner in self.layers}
        for owner in self.layers:
            module.get_submodule(owner).register_forward_hook(partial(_listen, self._found[owner]))

    def take(self) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """Return what the calls since the last time had, and forget it."""
        found = {owner: list(calls) for owner, calls in self._found.items()}
        self.forget()
        return found

    def forget(self) -> None:
        """Let go of what calls had: a user's that failed half-way is nobody else's business."""
        for calls in self._found.values():
            calls.clear()


def _listen(calls: list[tuple[Tensor, Tensor]], layer: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
    if torch.is_grad_enabled():
        if not output.requires_grad:
            output.requires_grad_(True)
        calls.append((given[0].detach(), output))


def parameter_of(layer: str, kind: str) -> str:
    """Return the name of a layer's weights or levels; a body may be a layer itself, without a name.

    >>> parameter_of("0", "weight"), parameter_of("", "weight")
    ('0.weight', 'weight')
    """
    return f"{layer}.{kind}" if layer else kind


def _owner(name: str) -> str:
    return name.rpartition(".")[0]
