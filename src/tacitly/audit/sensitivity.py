"""Attack one query: no user may move its sum by more than it claims.

A query is sound if what one unit adds, after the clip, is finite and no longer than the clip; if two units' additions
lie no further apart than it claims for replace-one; and if nobody's addition depends on anybody else's rows. All three
are tried here with units built to break them, and with units found by searching from the worst of those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Rows, read_only
from tacitly.audit.users import User, adversarial_units
from tacitly.federation.base import Query
from tacitly.federation.scores import Scores
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Adjacency, Sensitivity

_SEARCH_STEPS = 60
_PIECE = 512  # vectors that are compared with all others at once
_EVERY = 5  # of the units, which go by scales in small steps, so many try whether they meddle with others


@dataclass(frozen=True, kw_only=True)
class SensitivityReport:
    """What was found. ``zero_out`` and ``replace_one`` are the longest moves seen, in clips."""

    violations: tuple[str, ...]
    zero_out: float
    replace_one: float
    claimed: Sensitivity
    tried: int

    @property
    def ok(self) -> bool:
        """Whether nothing contradicts the claim."""
        return not self.violations

    def __str__(self) -> str:
        furthest = self.claimed.replace_one / self.claimed.zero_out
        lines = [
            f"{self.tried} units: longest move {self.zero_out:.4f} clips zero-out (claimed 1), "
            f"{self.replace_one:.4f} replace-one (claimed {furthest:.4f})"
        ]
        return "\n".join([*lines, *(f"BROKEN: {text}" for text in self.violations)])


def check_sensitivity(
    query: Query, n_features: int, clip: float = 1.0, *, pairs: Sequence[tuple[User, User]] = (), random_state: int = 0
) -> SensitivityReport:
    """Attack ``query`` with worst-case units under each adjacency.

    Parameters
    ----------
    query
        Any :class:`~tacitly.federation.base.Query`, ours or yours.
    n_features
        Columns of the rows it works on.
    clip
        The clip to attack it at.
    pairs
        Units of your own that should lie far apart, as (rows, targets) each.

    Examples
    --------
    >>> from tacitly.methods.shared.whitening import FeatureMoment
    >>> report = check_sensitivity(FeatureMoment(3), 3)
    >>> report.ok, round(report.zero_out, 3)
    (True, 1.0)
    """
    if isinstance(query, Scores):
        raise ValueError("losses are bounded one by one and not clipped: audit the estimator that chooses by them.")
    claimed = Sensitivity.of_clip(clip, acute=query.acute, unit=query.unit)
    found: list[str] = []
    added: dict[str, Array] = {}
    units = dict(adversarial_units(query, n_features, random_state))
    units |= {f"pair {i}, {side}": user for i, pair in enumerate(pairs) for side, user in enumerate(pair)}
    for name, user in units.items():
        for dtype in (np.float64, np.float32):
            vector = added_by(query, user, clip, dtype)
            label = f"{name} ({dtype.__name__})"
            if vector is None:
                continue  # the door leaves such a unit out
            if not np.isfinite(vector).all():
                found.append(f"{label}: what it adds is not finite")
            elif (length := float(np.linalg.norm(vector))) > clip:
                found.append(f"{label}: moves the sum by {length / clip:.6g} clips")
            else:
                added[label] = vector
    longest, furthest = _extent(list(added.values()), clip)
    if not found:
        furthest = max(furthest, _search(query, units, clip, random_state))
        limit = claimed.under(Adjacency.REPLACE_ONE) / clip
        if furthest > limit * (1 + 1e-9):
            found.append(f"two units lie {furthest:.4f} clips apart; claimed {limit:.4f}")
    found += _meddling(query, units, clip)
    return SensitivityReport(
        violations=tuple(found), zero_out=longest, replace_one=furthest, claimed=claimed, tried=len(units)
    )


def added_by(query: Query, user: User, clip: float, dtype: type = np.float64) -> Array | None:
    """Return what this unit alone adds to the sum, by the fused form that releases use; None if it fails on it."""
    with np.errstate(all="ignore"):
        X: Rows = read_only(np.ascontiguousarray(user[0], dtype=dtype))
        y: Rows = read_only(np.ascontiguousarray(user[1], dtype=dtype))
        try:
            return query.block_sum(X, y, np.array([0, len(X)]), clip)
        except Exception:
            return None


def _extent(vectors: Sequence[Array], clip: float) -> tuple[float, float]:
    """Longest vector, and longest difference of two, in clips."""
    if not vectors:
        return 0.0, 0.0
    # Many units add the same (nothing, or all of the clip); and all pairs at once would take gigabytes.
    stacked = np.array(list({vector.tobytes(): vector for vector in vectors}.values())) / clip
    lengths = np.einsum("ij,ij->i", stacked, stacked)
    furthest = 0.0
    for start in range(0, len(stacked), _PIECE):
        part = slice(start, start + _PIECE)
        furthest = max(furthest, float((lengths[part, None] + lengths - 2 * stacked[part] @ stacked.T).max()))
    return math.sqrt(lengths.max()), math.sqrt(furthest)


def _search(query: Query, units: dict[str, User], clip: float, seed: int) -> float:
    """Climb from ordinary pairs to pairs further apart, by random changes that are kept where they help."""
    rng = np.random.default_rng(seed)
    plain = ("ordinary", "two rows", "one row", "pair 0, 0")
    names = [name for name in units if name.split(", row")[0] in plain]
    best = 0.0
    for name in names:
        X, y = units[name]
        pair = [(X, y), (-X, y)] if name.startswith("pair") else [(X, y), (X, -y)]
        apart = _apart(query, pair, clip)
        for _ in range(_SEARCH_STEPS):
            size = 10.0 ** rng.uniform(-2, 1)
            moved = [(u + size * rng.normal(size=u.shape), v + size * rng.normal(size=v.shape)) for u, v in pair]
            if (further := _apart(query, moved, clip)) > apart:
                pair, apart = moved, further
        best = max(best, apart)
    return best


def _apart(query: Query, pair: Sequence[User], clip: float) -> float:
    first, second = (added_by(query, user, clip) for user in pair)
    if first is None or second is None or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return 0.0
    return float(np.linalg.norm(first - second)) / clip


def _meddling(query: Query, units: dict[str, User], clip: float) -> list[str]:
    """Say where a unit changes what its neighbours in the block add: contributions must be separable."""
    others = next(user for name, user in units.items() if name.startswith("ordinary"))
    alone = added_by(query, others, clip)
    found = []
    for name, user in list(units.items())[::_EVERY]:
        mine = added_by(query, user, clip)
        if alone is None or mine is None or not np.isfinite(mine).all() or len(user[0]) > 1000:
            continue
        X, y = (read_only(np.concatenate([a, b])) for a, b in zip(others, user, strict=True))
        offsets = np.array([0, len(others[0]), len(X)])
        with np.errstate(all="ignore"):
            try:
                together = query.block_sum(X, y, offsets, clip)
            except Exception:
                continue
        if not np.isfinite(together).all():
            continue  # the door asks everybody again, alone
        if np.linalg.norm(together - alone - mine) > clip * GUARD:
            found.append(
                f"{name}: changes what others add by {np.linalg.norm(together - alone - mine) / clip:.3g} clips"
            )
    return found
