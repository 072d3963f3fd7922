"""Attack one query: no unit may move its sum by more than its claimed sensitivity.

A query is sound if the clipped contribution of one unit is finite and its norm is at most the clipping bound; if the
distance between the contributions of two units is at most as claimed for replace-one; and if no contribution depends on
other units' rows. All three are tested with units built to break them, and with pairs found by a random search.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Rows, read_only
from tacitly.audit.users import EXPONENTS, User, adversarial_units
from tacitly.federation.base import Query
from tacitly.federation.scores import Scores
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Adjacency, Sensitivity

_SEARCH_STEPS = 60
_PIECE = 512  # vectors compared with all others at once
_STRIDE = 5  # every fifth unit is tested for influence on others: neighbouring units differ by a small scale factor


@dataclass(frozen=True, kw_only=True)
class SensitivityReport:
    """Result of the attack; ``zero_out`` and ``replace_one`` are the largest changes found, relative to the bound."""

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
            f"{self.tried} units: largest change {self.zero_out:.4f} clips zero-out (claimed 1), "
            f"{self.replace_one:.4f} replace-one (claimed {furthest:.4f})"
        ]
        return "\n".join([*lines, *(f"BROKEN: {text}" for text in self.violations)])


def check_sensitivity(
    query: Query,
    n_features: int,
    clip: float = 1.0,
    *,
    pairs: Sequence[tuple[User, User]] = (),
    random_state: int = 0,
    exponents: Iterable[float] = EXPONENTS,
) -> SensitivityReport:
    """Attack ``query`` with worst-case units under each adjacency.

    Parameters
    ----------
    query
        Any :class:`~tacitly.federation.base.Query`, from tacitly or your own.
    n_features
        Number of features of the rows it reads.
    clip
        The clipping bound of the attack.
    pairs
        Additional pairs of units whose contributions should be far apart, each unit as (rows, targets).
    random_state
        Seed of the units and of the search.
    exponents
        Powers of ten that units are scaled by; fewer are faster.

    Examples
    --------
    >>> from tacitly.methods.shared.whitening import FeatureMoment
    >>> report = check_sensitivity(FeatureMoment(3), 3)
    >>> report.ok, round(report.zero_out, 3)
    (True, 1.0)
    """
    if isinstance(query, Scores):
        raise ValueError(
            "check_sensitivity tests clipped sums. Found Scores, whose losses are bounded one by one and not clipped: "
            "audit the estimator that selects with them."
        )
    claimed = Sensitivity.of_clip(clip, acute=query.acute, unit=query.unit)
    found: list[str] = []
    alone: dict[str, Array | None] = {}  # in float64, as computed
    added: dict[str, Array] = {}
    units = dict(adversarial_units(query, n_features, random_state, exponents))
    units |= {f"pair {i}, {side}": user for i, pair in enumerate(pairs) for side, user in enumerate(pair)}
    for name, user in units.items():
        for dtype in (np.float64, np.float32):
            vector = added_by(query, user, clip, dtype)
            alone.setdefault(name, vector)
            label = f"{name} ({dtype.__name__})"
            if vector is None:
                continue  # federations leave such a unit out
            if not np.isfinite(vector).all():
                found.append(f"{label}: its contribution is not finite")
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
    found += _interference(query, units, alone, clip)
    return SensitivityReport(
        violations=tuple(found), zero_out=longest, replace_one=furthest, claimed=claimed, tried=len(units)
    )


def added_by(query: Query, user: User, clip: float, dtype: type = np.float64) -> Array | None:
    """Return the contribution of one unit, computed by the fused code that releases use; None if that raises."""
    with np.errstate(all="ignore"):
        X: Rows = read_only(np.ascontiguousarray(user[0], dtype=dtype))
        y: Rows = read_only(np.ascontiguousarray(user[1], dtype=dtype))
        try:
            return query.block_sum(X, y, np.array([0, len(X)]), clip)
        except Exception:
            return None


def _extent(vectors: Sequence[Array], clip: float) -> tuple[float, float]:
    """Return the largest norm, and the largest distance between two vectors, in units of the clipping bound."""
    if not vectors:
        return 0.0, 0.0
    different: dict[bytes, Array] = {}  # many are identical: contributions to histograms, or clipped vectors
    for vector in vectors:
        different.pop(told := vector.tobytes(), None)
        different[told] = vector
    stacked = np.array(list(different.values())) / clip
    longest = math.sqrt(np.einsum("ij,ij->i", stacked, stacked).max())
    # Most of the others are equal up to rounding, so one of each is kept; all pairs at once would need gigabytes.
    near = np.round(stacked, 11)
    stacked = stacked[list({row.tobytes(): i for i, row in enumerate(near)}.values())]
    lengths, furthest = np.einsum("ij,ij->i", stacked, stacked), 0.0
    for start in range(0, len(stacked), _PIECE):
        part, rest = slice(start, start + _PIECE), slice(start, None)  # pairs with earlier ones are done
        apart = stacked[part] @ (-2.0 * stacked[rest]).T
        apart += lengths[rest]
        furthest = max(furthest, float((apart.max(axis=1) + lengths[part]).max()))
    return longest, math.sqrt(furthest)


def _search(query: Query, units: dict[str, User], clip: float, seed: int) -> float:
    """Search for pairs further apart by hill climbing: random changes are kept if they increase the distance."""
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


def _interference(query: Query, units: dict[str, User], alone: Mapping[str, Array | None], clip: float) -> list[str]:
    """Report units that change the contributions of others in the same block: contributions must be separable."""
    ordinary = next(name for name in units if name.startswith("ordinary"))
    others, theirs = units[ordinary], alone[ordinary]
    found = []
    for name, user in list(units.items())[::_STRIDE]:
        added = alone[name]
        if theirs is None or added is None or not np.isfinite(added).all() or len(user[0]) > 1000:
            continue
        X, y = (read_only(np.concatenate([a, b])) for a, b in zip(others, user, strict=True))
        offsets = np.array([0, len(others[0]), len(X)])
        with np.errstate(all="ignore"):
            try:
                together = query.block_sum(X, y, offsets, clip)
            except Exception:
                continue
        if not np.isfinite(together).all():
            continue  # federations then compute each user of the block separately
        if (change := float(np.linalg.norm(together - theirs - added))) > clip * GUARD:
            found.append(f"{name}: changes the contributions of others by {change / clip:.3g} clips")
    return found
