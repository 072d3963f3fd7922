"""What every user computes in a round of a network: steps, rates, batches, and local state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """What every user computes in a round. All settings are public.

    ``augment`` maps a user's rows to one or more other views of each (a mirror image, shifts), one set after another.
    Heads are fitted on all views; the body's steps use only the rows. ``cross_fit``: the body's steps on one half of
    the rows use a head that was fitted to the other half, for both halves. ``warm``: users keep their heads (or, with a
    pull or two heads, their local parameters) locally and start the next round from them. ``rows`` is the number of
    rows a user contributes to a round; users with more rows contribute other rows in the next round.

    >>> LocalTraining(local_steps=5, loss="squares").head_steps
    15
    """

    local_steps: int = 1
    local_rate: float = 0.1
    local_momentum: float = 0.0
    local_decay: float = 0.0
    batch_rows: int | None = None
    head_steps: int = 15
    head_rate: float = 0.1
    head_momentum: float = 0.9
    head_decay: float = 0.0
    cross_fit: bool = True
    warm: bool = False
    rows: int = 128
    loss: str = "classes"
    augment: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.local_steps < 1:
            raise ValueError(f"local_steps must be at least 1. Found {self.local_steps!r}.")
        if self.head_steps < 0:
            raise ValueError(f"head_steps must not be negative. Found {self.head_steps!r}.")
        for name in ("local_momentum", "head_momentum"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must lie in [0, 1). Found {getattr(self, name)!r}.")
        for name in ("local_decay", "head_decay"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0.0):
                raise ValueError(f"{name} must be finite and not negative. Found {getattr(self, name)!r}.")
        if self.local_momentum and self.local_steps == 1:
            raise ValueError("local_momentum has no effect on a single step. Use local_steps of 2 or more, or 0.0.")
        if self.rows < 1:
            raise ValueError(f"rows must be at least 1. Found {self.rows!r}.")
        if self.loss not in ("classes", "squares"):
            raise ValueError(f"loss must be 'classes' or 'squares'. Found {self.loss!r}.")
        if self.augment is not None and not callable(self.augment):
            raise ValueError(
                "augment must be a function from rows to other views of them, such as the mirror images of "
                f"tacitly.neural.Views((3, 32, 32)). Found {self.augment!r}."
            )
