"""A module as a function of one flat vector of its trainable parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacitly.neural.engine.layers import evaluation_copy

Parts = tuple[Tensor, ...]


class Flat:
    """A module as a function of one flat vector of its trainable parameters; everything else in it is public.

    The module is copied and set to evaluation mode (no dropout, no batch statistics), so that a user's rows cannot
    change anything that is published.

    >>> flat = Flat(nn.Linear(3, 2))
    >>> flat.size, flat(flat.start, torch.ones(1, 3)).shape
    (8, torch.Size([1, 2]))
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = evaluation_copy(module)
        trained = [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]
        self.shapes = {name: value.shape for name, value in trained}
        self.start = flatten(value.detach() for _, value in trained)
        self.fixed: dict[str, Tensor] = {
            name: value.detach().clone()
            for name, value in [*self.module.named_parameters(), *self.module.named_buffers()]
            if name not in self.shapes
        }

    @property
    def size(self) -> int:
        """Number of trainable parameters."""
        return int(self.start.numel())

    def to(self, device: torch.device) -> Flat:
        """Move the public values to a device; the module itself is not moved."""
        self.start = self.start.to(device)
        self.fixed = {name: value.to(device) for name, value in self.fixed.items()}
        return self

    def alone(self) -> Flat:
        """Return the same function on a copy of the module, for one user at a time."""
        return _FlatAlone(self)

    def reset_buffers(self) -> None:
        """Restore the module's buffers before the next user; a functional call needs nothing."""

    def parts(self, vector: Tensor) -> Parts:
        """Return the parameters in a flat vector, in order."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        pieces = torch.split(vector, sizes) if sizes else ()
        return tuple(piece.view(shape) for shape, piece in zip(self.shapes.values(), pieces, strict=True))

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parameters in a flat vector, by name."""
        return dict(zip(self.shapes, self.parts(vector), strict=True))

    def __call__(self, vector: Tensor, rows: Tensor) -> Tensor:
        """Apply the module with the parameters in a flat vector."""
        return self.apply(self.parts(vector), rows)

    def apply(self, parts: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Apply the module with these parameters."""
        named = dict(zip(self.shapes, parts, strict=True))
        result: Tensor = functional_call(self.module, {**self.fixed, **named}, (rows,))
        return result


class _FlatAlone(Flat):
    """Sets parameters in its own copy of the module: a third of the cost of a functional call for small layers."""

    def __init__(self, flat: Flat) -> None:
        self.module = copy.deepcopy(flat.module).to(flat.start.device)
        self.shapes, self.start, self.fixed = flat.shapes, flat.start, flat.fixed
        owners = {id(value): (owner._parameters, key) for owner, key, value in _owned(self.module, "_parameters")}
        named = dict(self.module.named_parameters())
        self._parameters = [owners[id(named[name])] for name in self.shapes]
        self._buffers = [(owner._buffers, key, value) for owner, key, value in _owned(self.module, "_buffers")]

    def reset_buffers(self) -> None:
        """Restore the buffers, so that no user's values reach the next user."""
        for owner, key, value in self._buffers:
            owner[key] = value.clone()

    def apply(self, parts: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Apply the module with these parameters."""
        for (owner, key), part in zip(self._parameters, parts, strict=True):
            owner[key] = part  # type: ignore[assignment]
        result: Tensor = self.module(rows)
        return result


def _owned(module: nn.Module, kind: str) -> list[tuple[nn.Module, str, Tensor]]:
    """Return parameters or buffers with the modules that own them; one with several owners is listed for each."""
    return [
        (owner, key, value)
        for owner in module.modules()
        for key, value in getattr(owner, kind).items()
        if value is not None
    ]


def flatten(values: Iterable[Tensor]) -> Tensor:
    """Concatenate all values into one vector."""
    parts = [value.reshape(-1) for value in values]
    return torch.cat(parts) if parts else torch.zeros(0)


def load(module: nn.Module, flat: Flat, vector: Tensor) -> None:
    """Copy a flat vector into a module's trainable parameters."""
    values = flat.named(vector)
    with torch.no_grad():
        for name, value in module.named_parameters():
            if name in values:
                value.copy_(values[name])
