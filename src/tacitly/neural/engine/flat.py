"""A module as a function of one flat vector of its trainable parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacitly.neural.engine.layers import fresh

Parts = tuple[Tensor, ...]


class Flat:
    """A module as a function of one flat vector of its trainable parameters; everything else in it is public.

    The module is copied and in evaluation mode, so that nothing a user's rows do to it can reach what is published:
    no dropout, no statistics of rows.

    >>> flat = Flat(nn.Linear(3, 2))
    >>> flat.size, flat(flat.start, torch.ones(1, 3)).shape
    (8, torch.Size([1, 2]))
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = fresh(module)
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
        """Bring everything public to a device; the module itself is left where it is."""
        self.start = self.start.to(device)
        self.fixed = {name: value.to(device) for name, value in self.fixed.items()}
        return self

    def alone(self) -> Flat:
        """Return the same function on a copy of the module, for one user at a time."""
        return _Alone(self)

    def refresh(self) -> None:
        """Forget whatever the user before has left behind: nothing, where there are only functions."""

    def parts(self, vector: Tensor) -> Parts:
        """Return the parameters that a flat vector stands for, in order."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        pieces = torch.split(vector, sizes) if sizes else ()
        return tuple(piece.view(shape) for shape, piece in zip(self.shapes.values(), pieces, strict=True))

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parameters that a flat vector stands for, by name."""
        return dict(zip(self.shapes, self.parts(vector), strict=True))

    def __call__(self, vector: Tensor, rows: Tensor) -> Tensor:
        """Apply the module with these parameters."""
        return self.at(self.parts(vector), rows)

    def at(self, parts: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Apply the module with these parameters, given one by one."""
        named = dict(zip(self.shapes, parts, strict=True))
        result: Tensor = functional_call(self.module, {**self.fixed, **named}, (rows,))
        return result


class _Alone(Flat):
    """Parameters are put into a module of one's own: a third of the cost of a functional call for small layers."""

    def __init__(self, flat: Flat) -> None:
        self.module = copy.deepcopy(flat.module).to(flat.start.device)
        self.shapes, self.start, self.fixed = flat.shapes, flat.start, flat.fixed
        homes = {id(value): (owner._parameters, key) for owner, key, value in _owned(self.module, "_parameters")}
        named = dict(self.module.named_parameters())
        self._homes = [homes[id(named[name])] for name in self.shapes]
        self._buffers = [(owner._buffers, key, value) for owner, key, value in _owned(self.module, "_buffers")]

    def refresh(self) -> None:
        """Forget whatever the user before has left behind in buffers."""
        for home, key, value in self._buffers:
            home[key] = value.clone()

    def at(self, parts: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Apply the module with these parameters."""
        for (home, key), part in zip(self._homes, parts, strict=True):
            home[key] = part  # type: ignore[assignment]
        result: Tensor = self.module(rows)
        return result


def _owned(module: nn.Module, kind: str) -> list[tuple[nn.Module, str, Tensor]]:
    """Parameters or buffers with the modules that hold them; one that several hold is in the list once for each."""
    return [
        (owner, key, value)
        for owner in module.modules()
        for key, value in getattr(owner, kind).items()
        if value is not None
    ]


def flatten(values: Iterable[Tensor]) -> Tensor:
    """One vector of all values."""
    parts = [value.reshape(-1) for value in values]
    return torch.cat(parts) if parts else torch.zeros(0)


def load(module: nn.Module, flat: Flat, vector: Tensor) -> None:
    """Put a flat vector into a module's trainable parameters."""
    values = flat.named(vector)
    with torch.no_grad():
        for name, value in module.named_parameters():
            if name in values:
                value.copy_(values[name])
