"""Small things a network estimator needs: how many outputs, which start, rows in windows of a public size."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.neural.engine.device import deterministic, machine_failures
from tacitly.neural.engine.layers import fresh, own_kinds
from tacitly.neural.engine.update import Flat, UserUpdate


@dataclass(frozen=True)
class PersonalNetwork:
    """A public body with one user's own head. Private to that user."""

    features: Callable[[npt.NDArray[np.float32]], Array]
    answers: Callable[[Array, tuple[Array, Array]], npt.NDArray[Any]]
    head: Array
    held: Array

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return predictions for this user's rows."""
        return self.answers(self.features(np.asarray(X, dtype=np.float32)), (self.head, self.held))


def cohort_of(X: Any, y: Any, users: Any) -> Cohort:
    """Return users with their rows and targets, in float32."""
    if isinstance(X, Cohort):
        cohort = X
    elif y is None or users is None:
        raise ValueError("fit needs y and users next to X: the target and the user id of every row.")
    else:
        cohort = Cohort.from_arrays(X, y, users, dtype=np.float32)
    if cohort.y is None:
        raise ValueError("the cohort has no target. Build it with a target column.")
    return cohort


def split_body(body: nn.Module, width: int, *, whole: bool = False) -> tuple[nn.Module, nn.Module]:
    """Leading modules without trainable parameters, and the rest: the first are run once, not every round."""
    if not isinstance(body, nn.Sequential) or whole:
        return nn.Identity(), body
    parts = list(body)
    first = next((i for i, part in enumerate(parts) if any(p.requires_grad for p in part.parameters())), len(parts))
    first = min(first, max(0, len(parts) - 1))
    prefix = nn.Sequential(*parts[:first])
    with torch.no_grad():
        sample = torch.zeros(1, width, dtype=type_of(body))
        flat = fresh(prefix)(sample).ndim == 2 if first else False
    return (prefix, nn.Sequential(*parts[first:])) if flat else (nn.Identity(), body)


def through(prefix: nn.Module, cohort: Cohort, window: int, device: torch.device) -> Cohort:
    """Everybody's rows after the public part of the body, a user at a time: at home, nothing is released."""
    if not list(prefix.children()):
        return cohort
    width = width_after(prefix, cohort.n_features)
    rows = np.full((cohort.n_rows, width), np.nan, dtype=np.float32)
    seen = Seen(prefix, device, window)
    for first, last in itertools.pairwise(cohort.offsets.tolist()):
        # What overflows or fails on the way makes its user's updates zero, like any other hole: no word of it here.
        if (found := seen.safely(cohort.X[first:last])) is not None:
            with np.errstate(all="ignore"):
                rows[first:last] = found
    return replace(cohort, X=rows, feature_names=tuple(f"feature {j}" for j in range(width)))


class Seen:
    """One user's rows after a public module, in a copy of it that is never published.

    Rows go in windows of a public size (None: all at once, up to 2048), so that a row's arithmetic depends on its own
    user only.
    Where it holds layers that nobody has read, every user gets a copy.
    """

    def __init__(self, module: nn.Module, device: torch.device, window: int | None = None) -> None:
        self._device, self._window = device, window
        self._own_layers = bool(own_kinds(module))
        self._module = fresh(module).to(device)

    def __call__(self, X: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return one user's rows after the module, or raise."""
        module = copy.deepcopy(self._module) if self._own_layers else self._module
        with torch.no_grad(), deterministic(), machine_failures():
            return in_windows(module, X, self._window or min(2048, max(1, len(X))), self._device)

    def safely(self, X: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Return the same, or nothing where the user's numbers make it fail: who that is stays private."""
        try:
            return self(X)
        except MemoryError:
            raise
        except Exception:
            return None


def outputs(head: nn.Module) -> int:
    """How many numbers a head gives: those of its last layer.

    >>> outputs(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    2
    """
    layers = [layer for layer in head.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise ValueError("the head must end in a linear layer. Found none.")
    return layers[-1].out_features


def describe(module: nn.Module) -> str:
    """Return a module's structure and public numbers as a hash: a resumed run must begin from the same ones."""
    digest = hashlib.sha256(repr(module).encode())
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    trained: Sequence[str] = [name for name, value in module.named_parameters() if value.requires_grad]
    digest.update(repr(trained).encode())
    return digest.hexdigest()


def public_start(update: UserUpdate) -> Array:
    """Return the public vector that rounds begin from: the body's, and the head's where that is shared too."""
    parts = [update.body.start, update.head.start] if update.move_head else [update.body.start]
    return np.asarray(torch.cat(parts).cpu().numpy(), dtype=np.float64)


def load(module: nn.Module, flat: Flat, vector: Tensor) -> None:
    """Put a flat vector into a module's trainable parameters."""
    values = flat.named(vector)
    with torch.no_grad():
        for name, value in module.named_parameters():
            if name in values:
                value.copy_(values[name])


def in_windows(module: nn.Module, X: npt.NDArray[Any], size: int, device: torch.device) -> npt.NDArray[Any]:
    """Return one user's rows after a module, in windows of so many rows."""
    outputs = []
    for start in range(0, max(1, len(X)), size):
        mine = X[start : start + size]
        window = torch.zeros((size, X.shape[1]), dtype=type_of(module))
        with np.errstate(all="ignore"):
            window.numpy()[: len(mine)] = mine
        outputs.append(module(window.to(device))[: len(mine)].cpu().numpy())
    return np.concatenate(outputs)


def width_after(module: nn.Module, width: int) -> int:
    """How many numbers a module makes of a row of so many."""
    with torch.no_grad():
        return int(fresh(module)(torch.zeros(1, width, dtype=type_of(module))).shape[1])


def type_of(module: nn.Module) -> torch.dtype:
    """Return the type of a module's numbers; float32 where it has none."""
    values = itertools.chain(module.parameters(), module.buffers())
    return next((value.dtype for value in values if value.is_floating_point()), torch.float32)
