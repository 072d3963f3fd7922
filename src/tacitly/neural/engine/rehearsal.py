"""Dry run of a network on synthetic users before any private row is read: no update may depend on other users.

A contribution must be a function of its own user's rows (:mod:`tacitly.federation.base`).
:mod:`tacitly.neural.engine.layers` guarantees this; the dry run finds mistakes, above all in custom layers that the
caller vouched for. The update is run for user A, and for A after other users (one with other rows, one with non-finite
rows), in the same way as in the rounds and with the largest shape that they will have. A's updates must be finite and
the same to the last bit, nothing in the modules may have changed, and no random generator may have been used. A is run
unguarded, so that a network that cannot run at all is reported instead of becoming a model that learned nothing. Shapes
and modules are public, so error messages give every detail, with the layer's name.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tacitly.arrays import Array
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.layers import evaluation_copy, label
from tacitly.neural.engine.module_properties import dtype_of
from tacitly.neural.engine.update import UserUpdate
from tacitly.neural.engine.windows import ForwardPass

_LEAK = "one user's update would depend on another's. Remove it, or make it a function of its input."
_TOKENS = (
    "Rows are numbers of any size, also in the trial on synthetic users: use neural.Tokens(vocabulary, length, width), "
    "or, in a layer of your own, embedding(rows.long().clamp(0, vocabulary - 1))."
)
_MIXES = (
    "the body mixes rows: the output for one row depends on the rows that are computed with it, so that a user's "
    "predictions depend on the other rows of the call. Make it a function of one row."
)
_MODULE_INTERNALS = frozenset(vars(nn.Module()))

User = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


def check_modules(body: nn.Module, head: nn.Module, width: int, *, learned: bool = True) -> None:
    """Raise if body and head do not fit the rows or each other."""
    if learned and not any(value.requires_grad for value in body.parameters()):
        raise ValueError("the body has no trainable parameters: there is nothing to learn together. Use LocalHeads.")
    values: Any = torch.zeros(2, width, dtype=dtype_of(body))
    for part, module in (("body", body), ("head", head)):
        try:
            with torch.no_grad():
                values = evaluation_copy(module)(values)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            given = f"rows of {width} features" if part == "body" else "the body's output"
            advice = _advice(body, width) if part == "body" else ""
            raise ValueError(f"the {part} does not accept {given}: {error}{advice}") from None
        if not isinstance(values, torch.Tensor) or values.ndim != 2 or len(values) != 2:
            found = f"shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
            raise ValueError(f"the {part} must return one vector per row. Found {found} for 2 rows.")


def _advice(body: nn.Module, width: int) -> str:
    """Return advice for a body that expects images or whole numbers, because rows are flat numbers."""
    kinds = {type(layer) for layer in body.modules()}
    if kinds & {nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d}:
        return (
            f". Rows are flat: for a body of images use nn.Sequential(neural.FlatToImage((channels, height, width)), "
            f"body), with {width} pixels in all."
        )
    return f". {_TOKENS}" if nn.Embedding in kinds else ""


def rehearse(executor: Executor, public: Array, width: int, users: int) -> None:
    """Raise, naming the layer, unless a synthetic user's update is the same before and after a hostile user's."""
    ordinary, others = _ordinary_user(executor.update, width), [_other_user(width), _hostile_user(width)]
    modules, given = [executor.update.body.module, executor.update.head.module], public.copy()
    before = [_module_state(module) for module in modules], _generator_states()
    if executor.batched or executor.one_step:
        chunk = executor.chunk_of(max(users, 2))
        crowd = [ordinary] * chunk
        first = executor.first_update_in_chunk(public, crowd, chunk, 0)
        crowds = [[ordinary, other, *crowd[2:]] for other in others]
        again = [executor.first_update_in_chunk(public, crowd, chunk, 0, guarded=True) for crowd in crowds]
    else:
        first = _alone_or_advice(executor, public, ordinary)
        again = [executor.updates_alone(public, [*others, ordinary], 0, guarded=True)[-1]]
    after = [_module_state(module) for module in modules], _generator_states()
    changed = after != before or not np.array_equal(public, given)
    offender = _offender(executor.update, [ordinary, *others])
    if offender or changed or not all(np.array_equal(first, value, equal_nan=True) for value in again):
        raise ValueError(f"{offender or 'the update does not give the same result twice'}: {_LEAK}")
    if not np.isfinite(first).all():
        raise ValueError(
            "the update of a synthetic user with ordinary rows is not finite, so all updates would be dropped. "
            "Use a smaller local_rate or head_rate, or another start."
        )
    check_rows_apart(executor.update.body.module, width)


def _alone_or_advice(executor: Executor, public: Array, user: User) -> Array:
    try:
        return executor.updates_alone(public, [user], 0)[0]
    except IndexError as error:
        if any(isinstance(layer, nn.Embedding) for layer in executor.update.body.module.modules()):
            raise ValueError(f"the body failed on a synthetic user: {error}. {_TOKENS}") from None
        raise


def check_rows_apart(module: nn.Module, width: int) -> None:
    """Warn if a row's output changes when another row is computed with it: to the last bit, at the same shapes.

    >>> check_rows_apart(nn.Linear(3, 2), 3)
    """
    tried = evaluation_copy(module).cpu()
    rows = torch.cos(torch.arange(4.0 * width, dtype=dtype_of(module))).reshape(4, width)
    with torch.no_grad(), contextlib.suppress(IndexError, RuntimeError):
        first, second = (tried(torch.cat([rows[:1], others]))[0] for others in (rows[1:], 2.0 - 3.0 * rows[1:]))
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            warnings.warn(_MIXES, stacklevel=6)


def rehearse_rows(module: nn.Module, width: int, device: torch.device) -> None:
    """Do the same for rows that only pass (part of) the body, which must store nothing about a user."""
    forward = ForwardPass(module, device)
    ordinary = np.cos(np.arange(8 * width, dtype=np.float64)).reshape(8, width).astype(np.float32)
    others = [_other_user(width)[0], _hostile_user(width)[0]]
    before = _module_state(module), _generator_states()
    first = forward(ordinary)
    for other in others:
        with contextlib.suppress(Exception):
            forward(other)
    again = forward(ordinary)
    same = np.array_equal(first, again, equal_nan=True) and (_module_state(module), _generator_states()) == before
    copied = evaluation_copy(module)
    with _watched_layers([("body", copied)]) as found, torch.no_grad():
        for rows in (ordinary, *others):
            with contextlib.suppress(Exception):
                copied(torch.from_numpy(rows).to(dtype_of(module)))
    if found or not same:
        raise ValueError(f"{found[0] if found else 'the body does not give the same result twice'}: {_LEAK}")
    check_rows_apart(module, width)


def _ordinary_user(update: UserUpdate, width: int) -> User:
    """Return a user with the largest number of rows, of all classes if there are enough rows."""
    rows = update.training.rows
    X = np.cos(np.arange(rows * width, dtype=np.float64)).reshape(rows, width).astype(np.float32)
    # In pairs: a head is fitted to every second row, and if each half had one class, there would be nothing to learn.
    y = np.arange(rows) // 2 % update.classes if update.training.loss == "classes" else X.sum(axis=1)
    return X, np.asarray(y, dtype=np.float32)


def _other_user(width: int) -> User:
    """Return another ordinary user: larger values, fewer rows."""
    X = (2.0 + 5.0 * np.sin(np.arange(5.0 * width))).reshape(5, width).astype(np.float32)
    return X, np.zeros(5, dtype=np.float32)


def _hostile_user(width: int) -> User:
    """Return a user with a third number of rows, huge values and a NaN row."""
    X = np.full((3, width), 1e30, dtype=np.float32)
    X[1] = np.nan
    return X, np.zeros(3, dtype=np.float32)


def _offender(update: UserUpdate, users: list[User]) -> str | None:
    """Return the innermost module that changes itself or draws random numbers while it runs, and which of the two."""
    every = [torch.from_numpy(X[:4].copy()).to(update.body.start) for X, _ in users]
    if (augment := update.training.augment) is not None:
        before = _generator_states()
        augment(every[0])
        if _generator_states() != before:
            return "augment draws random numbers"
    update = update.alone()
    parts = [("body", update.body.module), ("head", update.head.module)]
    with _watched_layers(parts) as found, torch.no_grad():
        for rows in every:
            with contextlib.suppress(Exception):
                update.head(update.head.start, update.body(update.body.start, rows))
    return found[0] if found else None


@contextlib.contextmanager
def _watched_layers(parts: list[tuple[str, nn.Module]]) -> Iterator[list[str]]:
    """Collect, innermost first, the side effects of layers."""
    found: list[str] = []
    stack: list[tuple[Any, Any]] = []
    handles = []

    def remember(layer: nn.Module, _: object) -> None:
        stack.append((_layer_state(layer), _generator_states()))

    for part, module in parts:
        for name, layer in module.named_modules():
            handles.append(layer.register_forward_pre_hook(remember))
            report = _reporter(label(part, name, layer), stack, found)
            handles.append(layer.register_forward_hook(report, always_call=True))
    yield found
    for handle in handles:
        handle.remove()


def _reporter(name: str, stack: list[tuple[Any, Any]], found: list[str]) -> Callable[..., None]:
    def report(layer: nn.Module, *_: object) -> None:
        state, generators = stack.pop()
        if _layer_state(layer) != state:
            found.append(f"{name} stores something about the rows it has seen")
        if _generator_states() != generators:
            found.append(f"{name} draws random numbers")

    return report


def _generator_states() -> tuple[object, ...]:
    """Return the states of all global random generators."""
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    devices = [state.cpu().numpy().tobytes() for state in states]
    _, key, *position = np.random.get_state()  # noqa: NPY002
    others = np.asarray(key).tobytes(), tuple(position), random.getstate()
    return torch.get_rng_state().numpy().tobytes(), *devices, *others


def _module_state(module: nn.Module) -> object:
    return [_layer_state(layer) for layer in module.modules()]


def _layer_state(layer: nn.Module) -> object:
    """Return everything that a module itself stores: attributes of any name, buffers, parameters (frozen ones too)."""
    attributes = {key: value for key, value in vars(layer).items() if key not in _MODULE_INTERNALS}
    return _snapshot({**attributes, **layer._buffers, **layer._parameters})


def _snapshot(value: object, depth: int = 0) -> object:
    """Return a comparable copy that is not affected by later in-place changes of the original."""
    if depth > 6:
        return type(value).__name__
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, Mapping):
        return [(str(key), _snapshot(item, depth + 1)) for key, item in value.items()]
    if isinstance(value, list | tuple | set | deque):
        return [_snapshot(item, depth + 1) for item in value]
    if isinstance(value, int | float | str | bytes | None):
        return value
    held = {} if isinstance(value, nn.Module | type) else getattr(value, "__dict__", {})
    return type(value).__name__, _snapshot(held, depth + 1)
