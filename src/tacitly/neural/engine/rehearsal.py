"""Try a network on made-up users before anybody's rows are touched: nobody's update may depend on another's.

A contribution must be a function of its own user's rows (:mod:`tacitly.federation.base`). What guarantees it is
:mod:`tacitly.neural.engine.layers`; this finds mistakes, in layers on the user's word above all. The update is run for
user A, and for A after B's (one with other rows, one with rows that are no numbers), as it will be run later and at the
largest shape it will have: A's answers must be finite and the same to the last bit, nothing in the modules may have
moved, and no generator may have been asked. A is run unguarded, so that what cannot run at all is heard of and does not
become a model that learned nothing. Shapes and modules are public, so whatever is wrong is said in full, with the
layer's name.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tacitly.arrays import Array
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.layers import fresh
from tacitly.neural.engine.module_properties import type_of
from tacitly.neural.engine.update import UserUpdate
from tacitly.neural.engine.windows import Seen

_JOINED = "one user's update would depend on another's. Leave it out, or make it a function of its input."
_PLUMBING = frozenset(vars(nn.Module()))

User = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


def check_modules(body: nn.Module, head: nn.Module, width: int, *, learned: bool = True) -> None:
    """Raise where body and head do not fit the rows or each other."""
    if learned and not any(value.requires_grad for value in body.parameters()):
        raise ValueError("the body has no trainable parameters: there is nothing to learn together. Use LocalHeads.")
    seen: Any = torch.zeros(2, width, dtype=type_of(body))
    for part, module in (("body", body), ("head", head)):
        try:
            with torch.no_grad():
                seen = fresh(module)(seen)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            what = f"rows of {width} features" if part == "body" else "what the body gives"
            raise ValueError(f"the {part} does not take {what}: {error}") from None
        if not isinstance(seen, torch.Tensor) or seen.ndim != 2 or len(seen) != 2:
            what = f"shape {tuple(seen.shape)}" if isinstance(seen, torch.Tensor) else type(seen).__name__
            raise ValueError(f"the {part} must give a vector a row. Found {what} for 2 rows.")


def rehearse(executor: Executor, public: Array, width: int, users: int) -> None:
    """Raise, naming the layer, unless a made-up user's update is the same before and after a hostile one's."""
    ordinary, others = _made_up(executor.update, width), [_other(width), _hostile(width)]
    modules, given = [executor.update.body.module, executor.update.head.module], public.copy()
    before = [_marks(module) for module in modules], _generators()
    if executor.batched or executor.one_step:
        places = executor.chunk_of(max(users, 2))
        crowd = [ordinary] * places
        first = executor.in_first_place(public, crowd, places, 0)
        again = [
            executor.in_first_place(public, [ordinary, other, *crowd[2:]], places, 0, guarded=True) for other in others
        ]
    else:
        first = executor.one_after_the_other(public, [ordinary], 0)[0]
        again = [executor.one_after_the_other(public, [*others, ordinary], 0, guarded=True)[-1]]
    moved = ([_marks(module) for module in modules], _generators()) != before or not np.array_equal(public, given)
    culprit = _culprit(executor.update, [ordinary, *others])
    if culprit or moved or not all(np.array_equal(first, value, equal_nan=True) for value in again):
        raise ValueError(f"{culprit or 'the update does not give the same answer twice'}: {_JOINED}")
    if not np.isfinite(first).all():
        raise ValueError(
            "the update of a made-up user with ordinary rows is not finite, so nobody's would count. "
            "Take a smaller local_rate or head_rate, or another start."
        )


def rehearse_rows(module: nn.Module, width: int, device: torch.device) -> None:
    """Do the same for rows that only pass (part of) the body on their way: nothing of a user may stay in it."""
    seen = Seen(module, device)
    ordinary = np.cos(np.arange(8 * width, dtype=np.float64)).reshape(8, width).astype(np.float32)
    before = _marks(module), _generators()
    first = seen(ordinary)
    for other in (_other(width), _hostile(width)):
        with contextlib.suppress(Exception):
            seen(other[0])
    same = np.array_equal(first, seen(ordinary), equal_nan=True) and (_marks(module), _generators()) == before
    mine = fresh(module)
    rows = [torch.from_numpy(X).to(type_of(module)) for X in (ordinary, _other(width)[0], _hostile(width)[0])]
    with _watched([("body", mine)]) as found, torch.no_grad():
        for X in rows:
            with contextlib.suppress(Exception):
                mine(X)
    if found or not same:
        raise ValueError(f"{found[0] if found else 'the body does not give the same answer twice'}: {_JOINED}")


def _made_up(update: UserUpdate, width: int) -> User:
    """Return a user as large as users can be, with every class."""
    rows = update.training.rows
    X = np.cos(np.arange(rows * width, dtype=np.float64)).reshape(rows, width).astype(np.float32)
    y = np.arange(rows) % update.classes if update.training.loss == "classes" else X.sum(axis=1)
    return X, np.asarray(y, dtype=np.float32)


def _other(width: int) -> User:
    """Return another ordinary user: larger numbers, fewer rows."""
    X = (2.0 + 5.0 * np.sin(np.arange(5.0 * width))).reshape(5, width).astype(np.float32)
    return X, np.zeros(5, dtype=np.float32)


def _hostile(width: int) -> User:
    """Return a user of another size with rows that are huge, and one that is no number."""
    X = np.full((3, width), 1e30, dtype=np.float32)
    X[1] = np.nan
    return X, np.zeros(3, dtype=np.float32)


def _culprit(update: UserUpdate, users: list[User]) -> str | None:
    """Name what changes itself or draws random numbers while it runs: the innermost module that does."""
    every = [torch.from_numpy(X[:4].copy()).to(update.body.start) for X, _ in users]
    rows = every[0]
    if (augment := update.training.augment) is not None:
        before = _generators()
        augment(rows)
        if _generators() != before:
            return "augment draws random numbers"
    update = update.alone()
    parts = [("body", update.body.module), ("head", update.head.module)]
    with _watched(parts) as found, torch.no_grad():
        for rows in every:
            with contextlib.suppress(Exception):
                update.head(update.head.start, update.body(update.body.start, rows))
    return found[0] if found else None


@contextlib.contextmanager
def _watched(parts: list[tuple[str, nn.Module]]) -> Iterator[list[str]]:
    """Collect, innermost first, what layers do besides giving an answer."""
    found: list[str] = []
    stack: list[tuple[Any, Any]] = []
    handles = []
    for part, module in parts:
        for name, layer in module.named_modules():
            label = f"{type(layer).__name__} ({part}{'.' if name else ''}{name})"
            handles.append(layer.register_forward_pre_hook(lambda m, _: stack.append((_marks_of(m), _generators()))))
            handles.append(layer.register_forward_hook(_reporter(label, stack, found), always_call=True))
    yield found
    for handle in handles:
        handle.remove()


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
    """Return everything a module itself holds: attributes of any name, buffers, parameters that are frozen too."""
    own = {key: value for key, value in vars(layer).items() if key not in _PLUMBING}
    return _mark({**own, **layer._buffers, **layer._parameters})


def _mark(value: object, depth: int = 0) -> object:
    """Return a value that can be compared later, whatever is done to the original in place."""
    if depth > 6:
        return type(value).__name__
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, Mapping):
        return [(str(key), _mark(item, depth + 1)) for key, item in value.items()]
    if isinstance(value, list | tuple | set | deque):
        return [_mark(item, depth + 1) for item in value]
    if isinstance(value, int | float | str | bytes | None):
        return value
    held = {} if isinstance(value, nn.Module | type) else getattr(value, "__dict__", {})
    return type(value).__name__, _mark(held, depth + 1)
