"""Synthetic users drawn from a public sample: its rows of features, with new targets.

Features are those of the sample: skewed, correlated, constant within users. A synthetic user has the features of one
user of the sample, drawn at random; a fifth of the rows is held out for prediction. Targets are new, because methods
could otherwise memorise the few people of the sample. They follow the model of :mod:`~tacitly.planning.shape`,

    y = m + x·w̄ + lᵢ + x·dᵢ + e,    w̄ ~ N(0, c² I),  lᵢ ~ N(0, l²),  dᵢ ~ N(0, t² I),  e ~ N(0, s²)

in units of the features' standard deviations. The four variances are estimated by maximum likelihood, with w̄
integrated out: a hundred users are enough to estimate four numbers. w̄ is drawn from its distribution given the sample.
The noise of a row is the residual of a row of the sample, scaled to variance s², with a random sign (a wild bootstrap).
So some people vary more than others, and some rows are outliers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.validation import DataError
from tacitly.planning.made_up import Counts, MadeUp, WithTarget, made_up
from tacitly.planning.shape import Shape

_MOST_USERS, _MOST_ROWS = 300, 40  # maximum numbers for estimating the variances
_FLAT = 1e-6  # prior precision of the common level


@dataclass(frozen=True)
class Variances:
    """Variances of common weights, users' levels, users' slopes and noise; the target has variance one."""

    common: float
    levels: float
    slopes: float
    noise: float


@dataclass(frozen=True)
class Sampled(WithTarget):
    """Users drawn from the features of a public sample."""

    shape: Shape
    cohort: Cohort
    variances: Variances
    mean: Array  # mean of the common weights given the sample, the level first
    root: Array  # root of their covariance
    residuals: Array  # of the cohort's rows, scaled to the variance of the noise

    @classmethod
    def of(cls, cohort: Cohort, users: int, random_state: int = 0) -> Sampled:
        """Make a population from a public sample: ``cohort`` has targets, and users with two or more rows."""
        kept = with_several_rows(cohort, random_state)
        X, y, present = _padded(kept, *_units(kept))
        found = estimated(X, y, present)
        precision, right, _ = _normal(X, y, present, found)
        covariance = np.linalg.inv(precision)
        spread = float(np.var(X[present > 0][:, 1:] @ (covariance @ right)[1:]))
        parts = np.array([spread, found.levels, found.slopes * (X.shape[2] - 1), found.noise])
        parts /= parts.sum()
        shape = Shape(
            users=users,
            rows=usual_rows(cohort),
            features=cohort.n_features,
            noise=round(float(parts[3]), 3),
            levels=round(float(parts[1]), 3),
            slopes=round(float(parts[2]), 3),
            between=between(kept),
        )
        mean = covariance @ right
        return cls(shape, kept, found, mean, np.linalg.cholesky(covariance), _residuals(kept, found, mean))

    @property
    def noise(self) -> float:
        """Variance of the noise of a target."""
        return self.variances.noise

    def draw(self, n_users: int, rng: np.random.Generator) -> MadeUp:
        """Draw that many synthetic users."""
        chosen, owner, counts = resampled(self.cohort, n_users, rng)
        X = self.cohort.X[chosen]
        signal = self._signal(X, owner, n_users, rng)
        y = signal + self.residuals[chosen] * rng.choice((-1.0, 1.0), len(chosen))
        fresh, kept = held_out(owner, counts, rng)
        number = np.bincount(owner[fresh], minlength=n_users).astype(np.int64)
        rows, later = (X[kept], y[kept], counts - number), (X[fresh], signal[fresh], number)
        return made_up(rows, later, signal[fresh], self.cohort.schema)

    def _signal(self, X: Array, owner: Counts, n_users: int, rng: np.random.Generator) -> Array:
        center, scale, _, _ = _units(self.cohort)
        rows = (np.where(np.isfinite(X), X, center) - center) / scale
        common = self.mean + self.root @ rng.standard_normal(len(self.mean))
        slopes = common[1:] + np.sqrt(self.variances.slopes) * rng.standard_normal((n_users, rows.shape[1]))
        levels = common[0] + np.sqrt(self.variances.levels) * rng.standard_normal(n_users)
        return np.asarray(levels[owner] + np.einsum("nd,nd->n", rows, slopes[owner]))


def resampled(cohort: Cohort, n_users: int, rng: np.random.Generator) -> tuple[Counts, Counts, Counts]:
    """Draw users with replacement; return positions of their rows, the user of each row, and numbers of rows."""
    chosen = rng.integers(cohort.n_users, size=n_users)
    counts = np.diff(cohort.offsets)[chosen]
    owner = np.repeat(np.arange(n_users, dtype=np.int64), counts)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return np.arange(len(owner)) + (cohort.offsets[chosen] - first)[owner], owner, counts


def between(cohort: Cohort) -> float:
    """Return the share of the features' variance that lies between users."""
    X, _, present = _padded(cohort, *_units(cohort))
    counts = present.sum(axis=1)
    means = (X * present[..., None]).sum(axis=1) / counts[:, None]
    within = (np.square(X - means[:, None]) * present[..., None]).sum(axis=(0, 1)) / max(counts.sum() - len(X), 1.0)
    return round(float(np.clip(1.0 - within[1:].mean(), 0.0, 1.0)), 3)


def usual_rows(cohort: Cohort) -> int:
    """Return the number of rows per user, rounded."""
    return max(1, round(cohort.n_rows / cohort.n_users))


def held_out(owner: Counts, counts: Counts, rng: np.random.Generator) -> tuple[Counts, Counts]:
    """Return the positions of a fifth of each user's rows, at least one, and of the other rows, both by user."""
    order = np.lexsort((rng.random(len(owner)), owner))
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    held = np.arange(len(owner)) - first[owner] < np.maximum(counts // 5, 1)[owner]
    return order[held], order[~held]


def with_several_rows(cohort: Cohort, random_state: int) -> Cohort:
    """Return at most 300 users of a sample with two or more rows; raise if there are fewer than ten."""
    several = np.flatnonzero(np.diff(cohort.offsets) >= 2)
    if cohort.y is None or len(several) < 10:
        raise DataError(
            "a sample must have a target and at least ten users with two rows each. "
            f"Found {len(several)} such users{'' if cohort.y is not None else ' and no target'}."
        )
    rng = np.random.default_rng(random_state)
    return cohort.take(np.sort(rng.permutation(several)[:_MOST_USERS]))


def estimated(X: Array, y: Array, present: Array) -> Variances:
    """Return the variances that maximise the likelihood of the targets, with common weights integrated out."""
    from scipy.optimize import minimize

    size = X.shape[2] - 1

    def variances(logs: Array) -> Variances:
        common, levels, slopes, noise = np.exp(np.clip(logs, -12.0, 4.0))
        return Variances(common / size, levels, slopes / size, noise)

    def loss(logs: Array) -> float:
        precision, right, rest = _normal(X, y, present, variances(logs))
        prior = size * float(np.log(variances(logs).common))
        fit = float(right @ np.linalg.solve(precision, right))
        return float(rest - fit + np.linalg.slogdet(precision)[1] + prior)

    start = np.log([0.3, 0.2, 0.05, 0.4])
    found = minimize(loss, start, method="Nelder-Mead", options={"maxfev": 300, "xatol": 0.02, "fatol": 0.05})
    return variances(found.x)


def _normal(X: Array, y: Array, present: Array, variances: Variances) -> tuple[Array, Array, float]:
    """Return precision and right-hand side of the common weights, and the other terms of −2·log likelihood."""
    columns = X.shape[2]
    personal = np.append(variances.levels, np.full(columns - 1, variances.slopes))
    covariance = np.einsum("nrd,d,nsd->nrs", X, personal, X, optimize=True)
    steps = np.arange(X.shape[1])
    # A missing row is represented by variance one and target zero, so it changes nothing.
    covariance[:, steps, steps] += np.where(present > 0, variances.noise, 1.0)
    inverse = np.linalg.inv(covariance)
    weighted = inverse @ X
    precision = np.einsum("nrd,nre->de", X, weighted, optimize=True)
    precision[np.diag_indices(columns)] += np.append(_FLAT, np.full(columns - 1, 1.0 / variances.common))
    right = np.einsum("nrd,nr->d", weighted, y, optimize=True)
    rest = float(np.linalg.slogdet(covariance)[1].sum() + np.einsum("nr,nrs,ns->", y, inverse, y, optimize=True))
    return precision, right, rest


def _residuals(cohort: Cohort, variances: Variances, mean: Array) -> Array:
    """Return the residual of every row, scaled to the variance of the noise."""
    center, scale, level, spread = _units(cohort)
    personal = np.append(variances.levels, np.full(cohort.n_features, variances.slopes))
    found = []
    for i in range(cohort.n_users):
        rows, targets = cohort.rows(i)
        plain = (np.where(np.isfinite(rows), rows, center) - center) / scale
        design = np.column_stack([np.ones(len(rows)), plain])
        covariance = (design * personal) @ design.T + variances.noise * np.eye(len(rows))
        found.append(np.linalg.solve(covariance, (np.asarray(targets) - level) / spread - design @ mean))
    whole = np.concatenate(found)
    return np.asarray(whole * np.sqrt(variances.noise / np.mean(np.square(whole))))


def _units(cohort: Cohort) -> tuple[Array, Array, float, float]:
    """Return center and scale of the features, and of the target."""
    known = np.isfinite(cohort.X)
    count = np.maximum(known.sum(axis=0), 1)
    center = np.where(known, cohort.X, 0.0).sum(axis=0) / count
    scale = np.sqrt((np.where(known, cohort.X - center, 0.0) ** 2).sum(axis=0) / count)
    scale[~(scale > 0)] = 1.0
    y = np.asarray(cohort.y, dtype=np.float64)
    return center, scale, float(y.mean()), float(y.std()) or 1.0


def _padded(cohort: Cohort, center: Array, scale: Array, level: float, spread: float) -> tuple[Array, Array, Array]:
    """Return rows with a leading one, targets, and which rows exist, as users × rows, in standard units."""
    counts = np.minimum(np.diff(cohort.offsets), _MOST_ROWS)
    size = int(counts.max())
    X = np.zeros((cohort.n_users, size, cohort.n_features + 1))
    y, present = np.zeros(X.shape[:2]), np.zeros(X.shape[:2])
    for i, number in enumerate(counts):
        rows, targets = cohort.rows(i)
        filled = np.where(np.isfinite(rows[:number]), rows[:number], center)
        X[i, :number] = np.column_stack([np.ones(number), (filled - center) / scale])
        y[i, :number], present[i, :number] = (np.asarray(targets)[:number] - level) / spread, 1.0
    return X, y, present
