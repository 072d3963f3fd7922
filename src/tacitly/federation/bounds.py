"""Checks of every bound that do not rely on what a query states about itself.

The compiled form of a query clips inside a kernel, where clipping cannot be observed. Two checks limit the effect of a
query that does not clip. Both need sums only, so they cost one norm per block's sum.

* Before a release is debited, the fused form runs on synthetic users, one at a time: ordinary ones, very large ones and
  the negative of each. The query is refused if a contribution is longer than the clip, or if two contributions have a
  negative inner product although the query claims to be acute (:func:`check_form`). No private row is read.
* A block's sum of B units is refused if it is longer than B clips (:func:`check_sums`), or outside [0, B·steps] if it
  is a sum of losses. No part of a refused sum is released.

For a correct query, the second refusal is not a side channel, because it cannot happen. Each contribution is at most (1
− 2⁻²⁰) clips long (:mod:`tacitly.privacy.clipping`), and rounding adds at most R·B·2⁻⁵³ clips to a block of R rows
(:mod:`tacitly.federation.base`), which is below B·2⁻³² for up to two million rows; the norm itself has a relative error
below D·2⁻⁵², far less than 2⁻²¹ for any D that fits the grid. So a correct sum is at most (1 − 2⁻²¹)·B clips long as
computed, whatever the rows are. Sums of losses are exact integers. Only a programming error leads to the refusal, and
its message contains no number.

Extreme public fields. Nodes run queries with numbers that somebody else chose, and a kernel's formulas for the norm and
the contribution may differ if a factor overflows or underflows (of 600 messages with mutated numbers, one changed a sum
by 10⁸ clips). So the fused form of a query that can be sent to nodes runs only if it agrees with the definition on
synthetic users. Otherwise the definition runs, which clips every contribution (:func:`fused_agrees`). The definition
also runs for bounds so small or large that fourth powers of contributions leave float64's range. This decision reads no
private row.

Limits: these checks do not detect a fused form whose error is smaller than a block's total. The tests of every query
(:func:`tacitly.audit.check_sensitivity`) detect such errors.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Rows, read_only
from tacitly.federation.allowed import KNOWN
from tacitly.federation.projected import Projected
from tacitly.federation.query import BLOCK, Query, synthetic_rows
from tacitly.federation.scores import Scores
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Unit

_APART = 0.01  # clips: forms agree to 1e-9 for ordinary users, to 1e-4 where a penalty is nearly a tie
_LARGE = 2.0**20  # how much larger the large synthetic users are
_LEAST_BOUND, _MOST_BOUND = 2.0**-200, 2.0**200
_MANY_ROWS = 16  # copies of each row of the synthetic user with many rows


class BoundExceeded(RuntimeError):
    """A sum exceeds the number of users times the clip: a programming error in the query, never bad data."""


def check_sums(query: Query, sums: Array, units: npt.NDArray[Any], bound: float) -> None:
    """Raise unless each block's sum is within its number of units times the bound."""
    if not _within(query, sums, units, bound):
        raise exceeded(query)


def exceeded(query: Query) -> BoundExceeded:
    """Return the refusal of a block's sum."""
    return BoundExceeded(
        f"a block's sum of {type(query).__name__} is larger than its users times the clip, so the query does not "
        "clip every contribution. Nothing of it was released. Mend the query: tacitly.audit.check_sensitivity "
        "finds contributions that are too long."
    )


def check_form(query: Query, X: Rows, y: Array, bound: float) -> None:
    """Raise unless the fused form, on single synthetic users, keeps the bound (and is acute) as the query claims."""
    if isinstance(query, Projected):  # the shard projects the rows and runs the fused form of the inner query
        check_form(query.query, query.inside(X), y, bound)
        return
    with np.errstate(all="ignore"):
        alone = own_sums(query, X, y, bound)
        too_long = not _within(query, alone, np.ones(len(alone)), bound)
        apart = query.acute and float((alone @ alone.T).min(initial=0.0)) < -GUARD * bound**2
    if too_long or apart:
        found = "is longer than the clip" if too_long else "has an obtuse angle to another, though the query is acute"
        raise BoundExceeded(
            f"a contribution of {type(query).__name__} to synthetic rows {found}: its fused form breaks its bound. "
            "Nothing was debited and no private row was read. tacitly.audit.check_sensitivity shows where."
        )


def _within(query: Query, sums: Array, units: npt.NDArray[Any], bound: float) -> bool:
    """Whether each sum is at most its number of units times the bound, or whole steps in range for a choice."""
    if isinstance(query, Scores) and math.isinf(bound):
        whole = np.rint(sums) == sums
        return bool((whole & (sums >= 0) & (sums <= units[:, None] * query.steps)).all())
    if math.isinf(bound):
        return True  # only a release that is declared as not private has no bound
    with np.errstate(all="ignore"):  # in clips, so that neither tiny nor huge bounds underflow or overflow
        return bool((np.linalg.norm(sums / bound, axis=1) <= units).all())


_Key = tuple[int, type[Query], int, float]
_AGREED: dict[_Key, tuple[weakref.ref[Query], bool]] = {}


def fused_agrees(query: Query, n_features: int, bound: float, form: Query | None = None) -> bool:
    """Whether a fused form of a query (by default its own) agrees with the definition, on single synthetic users.

    Decided once per query: the answer depends on public fields only, which do not change.
    """
    fused_form = query if form is None else form
    if not _ordinary(bound):
        return False
    if type(query).__name__ not in KNOWN or isinstance(query, Scores):
        return True  # such queries cannot come from others, and losses are clamped in both forms
    if fused_form is query and query.one_form:
        return True
    if hasattr(fused_form, "each_sum"):  # a device form: the device's shard caches the answer
        return _compare_forms(query, fused_form, n_features, bound)
    key = id(query), type(fused_form), n_features, bound
    known = _AGREED.get(key)
    if known is not None and known[0]() is query:
        return known[1]
    found = _compare_forms(query, fused_form, n_features, bound)
    _AGREED[key] = weakref.ref(query, lambda _: _AGREED.pop(key, None)), found
    return found


def one_form(query: Query, bound: float) -> bool:
    """Whether many users at once are computed by the definition itself, at a bound that arrays of them can clip to."""
    return query.one_form and query.unit is Unit.USER and _ordinary(bound)


def _ordinary(bound: float) -> bool:
    return not math.isfinite(bound) or _LEAST_BOUND <= bound <= _MOST_BOUND


def _compare_forms(query: Query, fused_form: Query, n_features: int, bound: float) -> bool:
    rows, targets = synthetic_rows(n_features)
    design = getattr(getattr(query, "query", query), "design", None)
    if design is not None:
        rows = design.placed(rows)
    y = read_only((targets > 0).astype(np.float64))
    parts = (slice(0, 8), slice(0, 3), slice(3, 4)) if query.unit is Unit.USER else (slice(0, 1), slice(3, 4))
    alike = [(_turned(rows[part], sign), y[part]) for part, sign in itertools.product(parts, (1.0, -1.0))]
    one = rows[:1] if query.unit is not Unit.USER else rows
    scaled = [(_scaled(one, factor), y[: len(one)]) for factor in (_LARGE, 1.0 / _LARGE, _LARGE**3)]
    with np.errstate(all="ignore"):
        fused = _each_sum(fused_form, [*alike, *scaled], bound)
        for (X, targets), found in zip(alike, fused, strict=False):
            try:
                plain = Query.block_sum(query, X, targets, np.array([0, len(X)]), bound)
            except MemoryError:
                raise
            except Exception:
                return False
            if found is None or not np.linalg.norm((found - plain) / bound) < _APART:
                return False
        # A large unit stays within the clip, as far as it is finite; one that fails is left out, as a private one is.
        lengths = [np.linalg.norm(found / bound) for found in fused[len(alike) :] if found is not None]
    return all(length <= 1.0 or not np.isfinite(length) for length in lengths)


def _turned(X: Rows, sign: float) -> Rows:
    """Return rows or their opposite; positions stay what they are."""
    return read_only(X if sign > 0 else np.where(np.rint(X) == X, X, -X))


def _scaled(X: Rows, factor: float) -> Rows:
    return read_only(np.where(np.rint(X) == X, X, X * factor))


def _each_sum(form: Query, units: Sequence[tuple[Rows, Array]], bound: float) -> list[Array | None]:
    """Return what each synthetic unit adds by a form, None where it fails; a form may take all of them at once."""
    at_once = getattr(form, "each_sum", None)
    if at_once is not None:
        found: list[Array | None] = at_once(units, bound)
        return found
    together = _sums_of_batch(form, units, bound) if form.one_form and form.unit is Unit.USER else None
    return [_tried(form, X, y, bound) for X, y in units] if together is None else together


def _sums_of_batch(form: Query, units: Sequence[tuple[Rows, Array]], bound: float) -> list[Array | None] | None:
    """Return what each synthetic user adds by a form that is a batch; None if some user makes the batch fail.

    No bit of one user depends on the others of a batch. A fit asks this before every release, and of few users the
    question takes longer than the answer.
    """
    X, y = (read_only(np.concatenate([unit[part] for unit in units])) for part in (0, 1))
    offsets = np.concatenate([[0], np.cumsum([len(own) for own, _ in units])])
    try:
        sums = np.asarray(form.block_sums(X, y, offsets, bound, 1), dtype=np.float64)
    except MemoryError:
        raise
    except Exception:
        return None
    return list(sums) if sums.shape == (len(units), form.coordinates) else None


def _tried(form: Query, X: Rows, y: Array, bound: float) -> Array | None:
    try:
        return _own_sum(form, X, y, bound)
    except MemoryError:
        raise
    except Exception:
        return None


def own_sums(query: Query, X: Rows, y: Array, bound: float) -> Array:
    """Return what synthetic units add to the sum by the fused form, one row per unit; units that fail are left out.

    Large rows, large targets, the opposite of each, a single row and many. The first unit, with the rows as they are,
    must not fail, or the form has a bug.
    """
    by_user = query.unit is Unit.USER
    rows = X if by_user else X[:1]
    found = [_own_sum(query, rows, y, bound)]
    units: list[tuple[Any, Array]] = [(rows * rows.dtype.type(factor), y) for factor in (-1.0, _LARGE, -_LARGE)]
    units += [(rows, (y * factor).astype(y.dtype)) for factor in (_LARGE, -_LARGE)]
    if by_user:
        many = np.tile(np.arange(X.shape[0]), _MANY_ROWS)
        units += [(X[:1], y[:1]), (X[many], y[many])]
    for own, targets in units:
        try:
            found.append(_own_sum(query, read_only(own) if isinstance(own, np.ndarray) else own, targets, bound))
        except Exception:
            continue  # as with private rows: a unit whose numbers fail is left out
    return np.array([each for each in found if np.isfinite(each).all()]).reshape(-1, query.coordinates)


def _own_sum(query: Query, X: Rows, y: Array, bound: float) -> Array:
    """Return what one synthetic user adds, by the form that a release runs."""
    sums = np.asarray(query.block_sums(X, y[: X.shape[0]], np.array([0, X.shape[0]]), bound, BLOCK), dtype=np.float64)
    if sums.shape != (1, query.coordinates):
        raise ValueError(
            f"{type(query).__name__} must return one sum of {query.coordinates} coordinates per block. "
            f"Found shape {sums.shape}."
        )
    return np.asarray(sums[0])
