"""Try a network on made-up users before anybody's rows are touched: nobody's update may depend on another's.

A contribution must be a function of its own user's rows (:mod:`tacit.federation.base`). A module can break that in ways
no clip mends: statistics of rows that stay behind (batch normalisation, running means), numbers from a common
generator (dropout, random views), attributes set on the way. So the update is run for user A, for a hostile B, and for
A again, as it will be run later and at the largest shape it will have: A's answers must be the same to the last bit,
nothing in the modules may have moved, and no generator may have been asked. Shapes and modules are public, so whatever
is wrong is said in full, with the layer's name.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tacit.neural.executor import Array, Executor
from tacit.neural.parts import type_of
from tacit.neural.update import UserUpdate

User = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


def check_modules(body: nn.Module, head: nn.Module, width: int, *, cuda: bool = False, learned: bool = True) -> None:
    """Raise where a module cannot be trained by users who must not know of each other, or does not take the rows."""
    for part, module in (("body", body), ("head", head)):
        for name, layer in module.named_modules():
            where = f"{type(layer).__name__} ({part}{'.' if name else ''}{name})"
            if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
                raise ValueError(
                    f"{where} mixes users: use GroupNorm, or call eval() on it, so that its statistics are constants."
                )
            if cuda and isinstance(layer, nn.Embedding | nn.EmbeddingBag):
                raise ValueError(f"{where}: a category that is not there stops a whole GPU. Use device='cpu'.")
    if learned and not any(value.requires_grad for value in body.parameters()):
        raise ValueError("the body has no trainable parameters: there is nothing to learn together. Use LocalHeads.")
    seen = torch.zeros(2, width, dtype=type_of(body))
    for part, module in (("body", body), ("head", head)):
        try:
            with torch.no_grad():
                seen = copy.deepcopy(module).eval()(seen)
        except RuntimeError as error:
            what = f"rows of {width} features" if part == "body" else "what the body gives"
            raise ValueError(f"the {part} does not take {what}: {error}") from None
        if seen.ndim != 2 or len(seen) != 2:
            raise ValueError(f"the {part} must give a vector a row. Found shape {tuple(seen.shape)} for 2 rows.")


def rehearse(executor: Executor, public: Array, width: int, users: int) -> None:
    """Raise, naming the layer, unless a made-up user's update is the same before and after a hostile one's."""
    ordinary, hostile = _made_up(executor.update, width), _hostile(width)
    modules = [executor.update.body.module, executor.update.head.module]
    before = _mark([_marks(module) for module in modules]), _generators()
    if executor.batched:
        places = executor.chunk_of(max(users, 2))
        crowd = [ordinary] * places
        first = executor.in_places(public, [ordinary, hostile, *crowd[2:]], places, 0)[0]
        again = executor.in_places(public, crowd, places, 0)[0]
    else:
        first, _, again = executor.one_after_the_other(public, [ordinary, hostile, ordinary], 0)
    moved = (_mark([_marks(module) for module in modules]), _generators()) != before
    culprit = _culprit(executor.update, ordinary)
    if culprit or moved or not np.array_equal(first, again, equal_nan=True):
        culprit = culprit or "the update does not give the same answer twice"
        raise ValueError(
            f"{culprit}: one user's update would depend on another's. Leave it out, or make it a function of its input."
        )


def _made_up(update: UserUpdate, width: int) -> User:
    """Return a user as large as users can be, with every class."""
    rows = update.training.rows
    X = np.cos(np.arange(rows * width, dtype=np.float64)).reshape(rows, width).astype(np.float32)
    y = np.arange(rows) % update.classes if update.training.loss == "classes" else X.sum(axis=1)
    return X, np.asarray(y, dtype=np.float32)


def _hostile(width: int) -> User:
    """Return a user of another size with rows that are huge, and one that is no number."""
    X = np.full((3, width), 1e30, dtype=np.float32)
    X[1] = np.nan
    return X, np.zeros(3, dtype=np.float32)


def _culprit(update: UserUpdate, user: User) -> str | None:
    """Name what changes itself or draws random numbers while it runs: the innermost module that does."""
    rows = torch.from_numpy(user[0][:4].copy()).to(update.body.start)
    if (augment := update.training.augment) is not None:
        before = _generators()
        augment(rows)
        if _generators() != before:
            return "augment draws random numbers"
    found: list[str] = []
    update = update.alone()
    stack: list[tuple[Any, Any]] = []
    handles = []
    for part, module in (("body", update.body.module), ("head", update.head.module)):
        for name, layer in module.named_modules():
            label = f"{type(layer).__name__} ({part}{'.' if name else ''}{name})"
            handles.append(layer.register_forward_pre_hook(lambda m, _: stack.append((_marks_of(m), _generators()))))
            handles.append(layer.register_forward_hook(_reporter(label, stack, found)))
    with torch.no_grad():
        update.head(update.head.start, update.body(update.body.start, rows))
    for handle in handles:
        handle.remove()
    return found[0] if found else None


def _reporter(label: str, stack: list[tuple[Any, Any]], found: list[str]) -> Callable[..., None]:
    def report(layer: nn.Module, *_: object) -> None:
        marks, generators = stack.pop()
        if _marks_of(layer) != marks:
            found.append(f"{label} keeps something of the rows it has seen")
        if _generators() != generators:
            found.append(f"{label} draws random numbers")

    return report


def _generators() -> tuple[object, ...]:
    """Return where every common source of random numbers stands."""
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    devices = [state.cpu().numpy().tobytes() for state in states]
    _, key, *place = np.random.get_state()  # noqa: NPY002
    own = np.asarray(key).tobytes(), tuple(place), random.getstate()
    return torch.get_rng_state().numpy().tobytes(), *devices, *own


def _marks(module: nn.Module) -> object:
    return [_marks_of(layer) for layer in module.modules()]


def _marks_of(layer: nn.Module) -> object:
    """Return everything a module itself holds, but its parameters, which are put in from outside."""
    own = {key: value for key, value in vars(layer).items() if not key.startswith("_")}
    return _mark({**own, **layer._buffers})


def _mark(value: object) -> object:
    """Return a value that can be compared later, whatever is done to the original in place."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, Mapping):
        return [(str(key), _mark(item)) for key, item in value.items()]
    if isinstance(value, list | tuple | set | deque):
        return [_mark(item) for item in value]
    return value if isinstance(value, int | float | str | bytes | None) else type(value).__name__
