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

from tacit.cohort import Cohort
from tacit.federation.base import Array
from tacit.neural.executor import deterministic
from tacit.neural.update import Flat, UserUpdate


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
        flat = copy.deepcopy(prefix).eval()(sample).ndim == 2 if first else False
    return (prefix, nn.Sequential(*parts[first:])) if flat else (nn.Identity(), body)


def through(prefix: nn.Module, cohort: Cohort, window: int, device: torch.device) -> Cohort:
    """Everybody's rows after the public part of the body, a user at a time: at home, nothing is released."""
    if not list(prefix.children()):
        return cohort
    mine = copy.deepcopy(prefix).eval().to(device)
    with torch.no_grad(), deterministic():
        pairs = itertools.pairwise(cohort.offsets.tolist())
        parts = [in_windows(mine, cohort.X[first:last], window, device) for first, last in pairs]
    rows = np.concatenate(parts)
    # What overflows on the way makes its user's updates zero, like any other hole: no word of it here.
    return replace(cohort, X=rows, feature_names=tuple(f"feature {j}" for j in range(rows.shape[1])))


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


def in_windows(module: nn.Module, X: npt.NDArray[Any], size: int, device: torch.device) -> npt.NDArray[np.float32]:
    """Rows after a module, in windows of a public size, so that a row's arithmetic depends on its own user only."""
    outputs = []
    for start in range(0, len(X), size):
        window = np.zeros((size, X.shape[1]), dtype=np.float32)
        mine = X[start : start + size]
        with np.errstate(all="ignore"):
            window[: len(mine)] = mine
        seen = module(torch.from_numpy(window).to(device, type_of(module)))
        outputs.append(seen[: len(mine)].cpu().numpy())
    return np.ascontiguousarray(np.concatenate(outputs), dtype=np.float32)


def width_after(module: nn.Module, width: int) -> int:
    """How many numbers a module makes of a row of so many."""
    with torch.no_grad():
        return int(copy.deepcopy(module).eval()(torch.zeros(1, width, dtype=type_of(module))).shape[1])


def type_of(module: nn.Module) -> torch.dtype:
    """Return the type of a module's numbers; float32 where it has none."""
    return next((value.dtype for value in module.parameters()), torch.float32)
