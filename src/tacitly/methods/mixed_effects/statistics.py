"""Statistics of each user for the queries, computed once by compiled kernels and kept where the rows are.

* :class:`Moments`: ZᵀZ, Zᵀt, tᵀt. They do not depend on the prior, so all releases after the units share them. If the
  prior's root L = B·diag(l) is not diagonal, moments of the rows ZB are kept: rotating them costs more than everything
  that follows, and the directions B stay the same while variances l change from release to release.
* :class:`Likelihoods`: while the prior's covariance and noise stay the same, a user's log likelihood of the
  population's weights w̄ is −½w̄ᵀHw̄ + gᵀw̄, where H is the user's information and g the score at zero. So the score at
  any w̄ is g − Hw̄, without solving a linear system. Private, like the rows; :mod:`tacitly.federation.statistics` says
  where they live. The NumPy forms, which are the definitions and serve small numbers of users, are in
  :mod:`~tacitly.methods.mixed_effects.posterior` and :mod:`~tacitly.methods.mixed_effects.queries`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only
from tacitly.federation.statistics import Statistics
from tacitly.methods.mixed_effects.own_noise import FREEDOM, reaches
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior, Slopes
from tacitly.methods.shared.batch import norms_of
from tacitly.privacy.clipping import GUARD

CAREFUL = 1e-4
"""Prior variances over the noise variance below which I − R would lose digits of J; public."""

_FAR = 1e3  # prior standard deviations from zero to the mean: beyond them, R(b + v) − v would lose digits of u
_RELATED = 1e4  # condition of a prior's correlations: beyond it, inverting them would lose more digits than allowed
_CONDITION = 1e5  # of directions: beyond it, moments along them would lose more digits than they save time


@dataclass(frozen=True)
class Moments(Statistics):
    """The upper triangle of ZᵀZ, then Zᵀt, tᵀt and the number of rows; zeros for numbers that cannot be used.

    Of rows ZB with the directions B, a matrix with finite entries, if there are some (else 0×0).
    """

    units: Coordinates
    directions: Array = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def source(self) -> Moments | None:
        """Computed from moments without directions, if there are some."""
        return Moments(self.units) if len(self.directions) else None

    @property
    def width(self) -> int:
        """p(p + 1)/2 + p + 2."""
        return triangle(self.units.size) + self.units.size + 2

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one row per user; X holds moments without directions, if there are some."""
        from tacitly.methods.mixed_effects.posterior_kernels import write_turned
        from tacitly.methods.mixed_effects.row_kernels import write_moments

        if len(self.directions):
            moments, out = read_only(np.ascontiguousarray(X, dtype=np.float64)), np.empty((len(X), self.width))
            write_turned(moments, np.ascontiguousarray(self.directions), out)
            return out
        if isinstance(self.units, Slopes):
            return _without_level(Moments(self.units.levelled)(X, y, offsets), self.units.size + 1)
        out = np.empty((len(offsets) - 1, self.width))
        write_moments(*_rows_and_units(X, y, offsets, self.units), out)
        return out


@dataclass(frozen=True)
class Likelihoods(Statistics):
    """metric·H·metric, packed; metric·(score at zero); 1/√trace, by which both are weighted; the norm of the first.

    H = ZᵀΩ⁻¹Z and the score ZᵀΩ⁻¹t under a prior with this ``root`` and ``noise``.
    """

    units: Coordinates
    root: Array
    noise: float
    metric: Array

    @property
    def source(self) -> Moments:
        """Computed from moments."""
        return Moments(self.units, directions_of(self.root))

    @property
    def width(self) -> int:
        """p(p + 1)/2 + p + 2."""
        return triangle(self.units.size) + self.units.size + 2

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one row per user; X holds moments."""
        from tacitly.methods.mixed_effects.sum_kernels import weigh_likelihoods

        size = self.units.size
        prior = along(Prior(np.zeros(size), self.root, self.noise))
        out = np.empty((len(X), self.width))
        moments = np.asarray(X, dtype=np.float64)
        _write_rows(
            moments, prior, np.asarray(np.linalg.solve(self.root, self.metric), np.float64), out, covariance=False
        )
        weigh_likelihoods(size, read_only(moments), out)
        return out


def triangle(size: int) -> int:
    """Return the number of entries of a symmetric matrix."""
    return size * (size + 1) // 2


def directions_of(root: Array) -> Array:
    """Return the columns of a root over their largest entries; 0×0 for a diagonal root, or a nearly singular one.

    Columns of 26 binary digits times factors of 26 digits (:func:`few_digits`) have the same directions to the last
    bit, whatever the factors: the products are exact, and a quotient is that of the exact numbers, rounded.

    >>> axes, factors = few_digits(np.array([[1.0, 0.3], [0.2, 1.0]])), few_digits(np.array([0.7, 1.1]))
    >>> np.array_equal(directions_of(axes), directions_of(axes * factors))
    True
    """
    none = np.zeros((0, 0))
    if _is_diagonal(root):
        return none
    with np.errstate(all="ignore"):
        found = np.asarray(root / _largest(root))
    try:
        size = float(np.linalg.norm(found) * np.linalg.norm(np.linalg.inv(found)))
    except np.linalg.LinAlgError:
        return none
    return found if size < _CONDITION else none  # false for NaN


def few_digits(values: Array) -> Array:
    """Round to 26 binary digits, so that products of two such numbers are exact."""
    fractions, exponents = np.frexp(values)
    return np.asarray(np.ldexp(np.round(np.ldexp(fractions, 26)), exponents - 26))


def along(prior: Prior) -> Prior:
    """Return the prior in the coordinates of its directions, where its root is diagonal; as it is without any."""
    directions = directions_of(prior.root)
    if not len(directions):
        return prior
    mean = np.asarray(np.linalg.solve(directions, prior.mean))
    return replace(prior, mean=mean, root=np.diag(_largest(prior.root)))


def _largest(root: Array) -> Array:
    return np.asarray(np.take_along_axis(root, np.argmax(np.abs(root), axis=0)[None], axis=0)[0])


def information_and_score(moments: Array, prior: Prior, back: Array) -> Array:
    """Return the upper triangle of BᵀJB, then Bᵀu, one row per user; B is ``back``."""
    return _rows(moments, prior, back, covariance=False)


def covariance_and_mean(moments: Array, prior: Prior, back: Array) -> Array:
    """Return the upper triangle of BᵀRB, then Bᵀu, one row per user."""
    return _rows(moments, prior, back, covariance=True)


def sizes(moments: Array, prior: Prior, groups: Array, count: int) -> Array:
    """Return ‖u‖², tr J and ‖J‖² of each group of coordinates, then the residual, tr J and the number of rows."""
    from tacitly.methods.mixed_effects.sum_kernels import write_sizes

    out = np.zeros((len(moments), 3 * count + 3))
    write_sizes(_checked(moments, prior), *_public(prior), *_grouped(groups, count), out)
    return out


def variance_sums(
    moments: Array,
    prior: Prior,
    groups: Array,
    count: int,
    bound: float,
    size: int,
    knots: Array,
    capped: Array,
    *,
    weight: float,
    cap: float,
) -> Array:
    """Return the sums over blocks of excesses and weights, each user's clipped.

    Between ``knots``, logarithms (base 2) of degrees of freedom, expected sizes are straight lines: a sum of bends.
    """
    slopes = np.append(np.diff(capped) / np.diff(knots), 0.0)
    bends = np.stack([knots, np.diff(slopes, prepend=0.0)], axis=1)
    table = np.concatenate([[[capped[0], 0.0]], bends])
    return _variance_sums(moments, prior, groups, count, bound, size, weight, True, cap, table)


def log_variance_sums(
    moments: Array, prior: Prior, groups: Array, bound: float, size: int, reaches: Array, *, weight: float
) -> Array:
    """Return the sums over blocks of points on circles, each user's clipped."""
    count, table = len(reaches) - 1, np.ascontiguousarray(reaches[:, None])
    return _variance_sums(moments, prior, groups, count, bound, size, weight, False, 0.0, table)


def _variance_sums(
    moments: Array, prior: Prior, groups: Array, count: int, bound: float, size: int, *public: Any
) -> Array:
    from tacitly.methods.mixed_effects.sum_kernels import add_variances

    out = np.zeros((-(-len(moments) // size), 2 * (count + 1)))
    where = _grouped(groups, count)
    add_variances(_checked(moments, prior), *_public(prior), *where, *public, bound * (1.0 - GUARD), size, out)
    return out


def _grouped(groups: Array, count: int) -> tuple[Any, ...]:
    """Return places of pairs of coordinates of the same group, and coordinates, by groups, and where groups start."""
    size = len(groups)
    first, second = np.triu_indices(size, 1)
    own = [np.flatnonzero(groups == group) for group in range(count)]
    pairs = [np.flatnonzero((groups[first] == group) & (groups[second] == group)) for group in range(count)]
    starts = np.cumsum([[0, 0], *([len(part), len(pair)] for part, pair in zip(own, pairs, strict=True))], axis=0)
    return (first * size + second)[np.concatenate(pairs)], np.concatenate(own), starts


def spread_norms(moments: Array, prior: Prior) -> Array:
    """Return the norms of u uᵀ − J, packed."""
    from tacitly.methods.mixed_effects.sum_kernels import write_spread_norms

    norms = np.zeros(len(moments))
    write_spread_norms(_checked(moments, prior), *_public(prior), norms)
    return norms


def spread_sums(moments: Array, prior: Prior, clip: float, bound: float, size: int) -> Array:
    """Return the sums over blocks of (u uᵀ − J, J's squared diagonal), that clipped to ``clip``, all to a bound."""
    from tacitly.methods.mixed_effects.sum_kernels import add_spreads

    weights = len(prior.mean)
    out = np.zeros((-(-len(moments) // size), triangle(weights) + weights))
    add_spreads(_checked(moments, prior), *_public(prior), float(clip), bound * (1.0 - GUARD), size, out)
    return out


def scores(likelihoods: Array, point: Array, turn: Array, clip: float) -> Array:
    """Return (score − H·point)·turn, weighted as information clipped to ``clip`` is; one row per user."""
    from tacitly.methods.mixed_effects.sum_kernels import write_scores

    size = len(point)
    check_shape("likelihoods", likelihoods, None, triangle(size) + size + 2)
    check_shape("turn", turn, size, size)
    out = np.empty((len(likelihoods), size))
    write_scores(read_only(np.ascontiguousarray(likelihoods)), point, np.ascontiguousarray(turn), float(clip), out)
    return out


def score_norms(found: Array) -> Array:
    """Return the norms of scores."""
    squares = np.einsum("ij,ij->i", found, found)
    usual = (squares > 1e-200) & (squares < 1e200)
    return np.sqrt(squares) if usual.all() else np.where(usual, np.sqrt(squares), norms_of(found))


def clipped_scores(
    found: Array, freedoms: Array, constant: Array, shared: float, *, clip: float, extra: float, bound: float, size: int
) -> tuple[Array, Array]:
    """Return the norms of scores, and the sums over blocks of scores clipped to ``clip``, with what the clip did.

    A user's score and what the clip did to it are clipped to the bound together.
    """
    from tacitly.methods.mixed_effects.sum_kernels import add_scores

    norms, out = np.zeros(len(found)), np.zeros((-(-len(found) // size), found.shape[1] + 4))
    public = np.ascontiguousarray(constant, dtype=np.float64), shared, float(clip), extra
    add_scores(found, np.ascontiguousarray(freedoms), *public, bound * (1.0 - GUARD), size, norms, out)
    return norms, out


def left_out_errors(X: Rows, y: Rows, offsets: Offsets, units: Coordinates, prior: Prior, reached: Array) -> Array:
    """Return the sums of :func:`left_out_sums`, without the posteriors and, where possible, without writing them."""
    from tacitly.methods.mixed_effects.left_out_kernels import write_left_out_alone

    precision = _precision(prior)
    if isinstance(units, Slopes) or not len(precision):
        return left_out_sums(X, y, offsets, units, prior, reached)[0]
    out = np.empty((len(offsets) - 1, len(reached) + 3))
    right = precision @ prior.mean
    public = right, precision, float(prior.mean @ right), float(prior.noise), FREEDOM, np.square(reached)
    write_left_out_alone(*_rows_and_units(X, y, offsets, units), *public, out)
    return out


def left_out_sums(
    X: Rows,
    y: Rows,
    offsets: Offsets,
    units: Coordinates,
    prior: Prior,
    reached: Array,
    moments: Array | None = None,
) -> tuple[Array, Array]:
    """Return sums over each user's rows, each predicted from the others, and posteriors; one row per user.

    How many residuals lie beyond each number of standard deviations, by the noise of the user's other rows; squared
    errors of the user's mean; squared errors of the posterior; the number of rows. Posteriors as the upper triangle of
    the weights' covariance, and their mean.
    """
    from tacitly.methods.mixed_effects.left_out_kernels import write_left_out

    moments = Moments(units)(X, y, offsets) if moments is None else moments
    posterior = _weights(moments, prior)
    out = np.empty((len(moments), len(reached) + 3))
    out[:, -1] = moments[:, -1]
    limits = reaches(misfits_of(moments, posterior, prior), moments[:, -1], reached)
    if isinstance(units, Slopes):
        whole = _with_level(posterior, units.size + 1)
        public = _rows_and_units(X, y, offsets, units.levelled)
        write_left_out(*public, whole, float(prior.noise), limits, out)
        return out, posterior
    write_left_out(*_rows_and_units(X, y, offsets, units), posterior, float(prior.noise), limits, out)
    return out, posterior


def misfits_of(moments: Array, posterior: Array, prior: Prior) -> Array:
    """Return Q of :mod:`~tacitly.methods.mixed_effects.own_noise` from moments and posteriors of the weights."""
    size = len(prior.mean)
    upper, weights = triangle(size), posterior[:, -size:]
    rights, squares = moments[:, upper : upper + size], moments[:, -2]
    # What is left of the right sides at the posterior mean w is s²P(w − w̄), P the inverse of the prior's covariance.
    first, second = np.triu_indices(size)
    left = rights.copy()
    for place, (i, k) in enumerate(zip(first, second, strict=True)):
        left[:, i] -= moments[:, place] * weights[:, k]
        if i != k:
            left[:, k] -= moments[:, place] * weights[:, i]
    fitted = np.einsum("ni,ni->n", weights, rights) + left @ prior.mean
    return np.asarray(np.maximum(squares - fitted, 0.0) / prior.noise)


def _weights(moments: Array, prior: Prior) -> Array:
    """Return the upper triangle of the covariance of each user's weights, and their mean."""
    from tacitly.methods.mixed_effects.posterior_kernels import write_weights

    precision = _precision(prior)
    if len(precision):
        out = np.empty((len(moments), triangle(len(prior.mean)) + len(prior.mean)))
        write_weights(_checked(moments, prior), precision @ prior.mean, precision, float(prior.noise), out)
        return out
    posterior = covariance_and_mean(moments, prior, prior.root.T)
    posterior[:, -len(prior.mean) :] += prior.mean
    return posterior


def _precision(prior: Prior) -> Array:
    """Return the inverse of the prior's covariance; 0×0 where that is singular, or inverting would lose digits.

    With it, nothing is turned into whitened coordinates and back, which would cost more than all else.
    """
    none = np.zeros((0, 0))
    with np.errstate(all="ignore"):
        deviations = np.sqrt(np.diag(prior.covariance))
        scales = deviations[:, None] * deviations
        related = prior.covariance / scales
    if not (np.isfinite(related).all() and np.isfinite(1.0 / scales).all()):
        return none
    try:
        inverse = np.asarray(np.linalg.inv(related))
    except np.linalg.LinAlgError:
        return none
    well = float(np.linalg.norm(related) * np.linalg.norm(inverse)) < _RELATED
    return np.ascontiguousarray(inverse / scales) if well else none


def _without_level(moments: Array, size: int) -> Array:
    """Return moments of ``size`` weights without the first, the intercept's."""
    upper = triangle(size)
    kept = np.concatenate([np.arange(size, upper), np.arange(upper + 1, moments.shape[1])])
    return np.ascontiguousarray(moments[:, kept])


def _with_level(posterior: Array, size: int) -> Array:
    """Return posteriors of ``size`` weights of which the first, the intercept, is known to be zero."""
    upper = triangle(size)
    whole = np.zeros((len(posterior), upper + size))
    whole[:, size:upper], whole[:, upper + 1 :] = posterior[:, : upper - size], posterior[:, upper - size :]
    return whole


def _rows(moments: Array, prior: Prior, back: Array, *, covariance: bool) -> Array:
    size = len(prior.mean)
    out = np.empty((len(moments), triangle(size) + size))
    _write_rows(moments, prior, back, out, covariance=covariance)
    return out


def _write_rows(moments: Array, prior: Prior, back: Array, out: Array, *, covariance: bool) -> None:
    from tacitly.methods.mixed_effects.posterior_kernels import write_rows

    check_shape("back", back, len(prior.mean), len(prior.mean))
    public = covariance, np.ascontiguousarray(back), _is_diagonal(back)
    write_rows(_checked(moments, prior), *_public(prior), *public, out)


def _rows_and_units(X: Rows, y: Rows, offsets: Offsets, units: Coordinates) -> tuple[Any, ...]:
    """Return rows and units as kernels take them."""
    check_shape("X", X, None, len(units.center))
    check_shape("y", y, len(X))
    used = units.used
    rows, targets = read_only(np.ascontiguousarray(X)), read_only(np.ascontiguousarray(y))
    public = used, units.center[used], units.gain[used], units.level, units.spread or 1.0, units.knee, 2.0 * units.knee
    return rows, targets, offsets, *public


def _checked(moments: Array, prior: Prior) -> Array:
    size = len(prior.mean)
    check_shape("moments", moments, None, triangle(size) + size + 2)
    return read_only(np.ascontiguousarray(moments))


def _public(prior: Prior) -> tuple[Array, Array, bool, float, bool]:
    """Return the prior as kernels take it: mean, L/s, whether that is diagonal, s², whether u or J needs care."""
    with np.errstate(all="ignore"):
        far = _is_diagonal(prior.root) and not np.abs(prior.mean / np.diag(prior.root)).max() < _FAR
    careful = far or bool((np.square(prior.root).sum(axis=0) < CAREFUL * prior.noise).any())
    root = np.ascontiguousarray(prior.root / np.sqrt(prior.noise))
    return np.ascontiguousarray(prior.mean), root, _is_diagonal(root), float(prior.noise), careful


def _is_diagonal(matrix: Array) -> bool:
    return not np.count_nonzero(matrix - np.diag(np.diag(matrix)))
