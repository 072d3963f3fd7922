"""Forward hooks that record the inputs and outputs of a body's linear layers.

The gradient of a linear layer's weights is (gradient of its output)ᵀ · (its input). With both factors recorded, weight
gradients can be bounded, summed and applied without being materialised: for many users at once in
:mod:`tacitly.neural.engine.ghost_clipping`, and for one user's local steps in :mod:`tacitly.neural.engine.update`.
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
"""Layers that map rows × features to rows × features, each row separately, in evaluation mode.

Layers that could interpret rows differently are excluded: ``Flatten(0)`` joins rows, ``Unflatten`` splits them, and
convolutions and pools treat an input with one dimension less as a single image whose channels are the rows.
"""


def row_by_row(module: nn.Module) -> bool:
    """Return whether rows of several users can pass a module in one call, each row separately.

    >>> row_by_row(nn.Sequential(nn.Linear(3, 2), nn.ReLU())), row_by_row(nn.Sequential(nn.Flatten(0)))
    (True, False)
    """
    layers = list(module.modules())
    flat = [len(layer.normalized_shape) == 1 for layer in layers if isinstance(layer, nn.LayerNorm)]
    return all(type(layer) in ROW_BY_ROW for layer in layers) and all(flat)


def trains_only_linear_layers(module: nn.Module) -> bool:
    """Return whether all trainable parameters are weights and biases of linear layers."""
    linear = {id(p) for layer in module.modules() if type(layer) is nn.Linear for p in layer.parameters(recurse=False)}
    return all(id(p) in linear for p in module.parameters() if p.requires_grad)


class LayerHooks:
    """Inputs and outputs of a module's trainable linear layers since the last :meth:`take`, by layer.

    Outputs are the tensors whose gradients are computed. Hooks are registered on ``module`` itself: pass a copy.
    """

    def __init__(self, module: nn.Module, learned: Sequence[str]) -> None:
        names = [name for name in learned if type(module.get_submodule(_owner(name))) is nn.Linear]
        self.layers = list(dict.fromkeys(_owner(name) for name in names))
        self.names = names
        self._calls: dict[str, list[tuple[Tensor, Tensor]]] = {owner: [] for owner in self.layers}
        for owner in self.layers:
            module.get_submodule(owner).register_forward_hook(partial(_record, self._calls[owner]))

    def take(self) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """Return and clear the recorded calls."""
        calls = {owner: list(pairs) for owner, pairs in self._calls.items()}
        self.clear()
        return calls

    def clear(self) -> None:
        """Discard the recorded calls, so that those of a user whose call failed do not reach the next user."""
        for pairs in self._calls.values():
            pairs.clear()


def _record(calls: list[tuple[Tensor, Tensor]], layer: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
    if torch.is_grad_enabled():
        if not output.requires_grad:
            output.requires_grad_(True)
        calls.append((given[0].detach(), output))


def parameter_name(layer: str, kind: str) -> str:
    """Return the name of a layer's weight or bias; if the body itself is a layer, the layer's name is empty.

    >>> parameter_name("0", "weight"), parameter_name("", "weight")
    ('0.weight', 'weight')
    """
    return f"{layer}.{kind}" if layer else kind


def _owner(name: str) -> str:
    return name.rpartition(".")[0]
