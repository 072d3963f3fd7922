"""The start of trace regression: the scale of the design, and a first rank-r matrix.

The start of DP-RGrad (Zha 2024), L̂ = n⁻¹ Σ mat(Λ⁻¹ vec X) y, is unbiased if Λ is the design's covariance. Here the
design is first brought to the scale of the identity by public diagonals (:func:`scales_of`): from a known Λ, from a
public design, or from a private release that takes a few hundredths of the budget. Then the start is either

* ``one-shot``: the whole noisy label-weighted sum, and its r leading singular directions; or
* ``power``: a two-sided power method, U ← orth(Σ y X̃V + noise), V, S ← Σ y X̃ᵀU + noise, with r' > r columns.

Clipping the sums clips labels. For Gaussian designs E[ψ(y) X] = E[ψ'(y)]·E[⟨X, M⟩X] (Stein), so the sum shrinks by the
share of units below the bound. This share is computed from the histogram from which the bound was chosen.

Releases: :class:`~tacitly.methods.shared.norm_histogram.NormHistogram`, and those of
:mod:`tacitly.methods.trace_regression.queries`; the rest is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation, Query
from tacitly.linalg import orthonormal
from tacitly.methods.fedpower.scale import readable_bins
from tacitly.methods.shared.norm_histogram import NormHistogram, bin_edges, quantile_of
from tacitly.methods.trace_regression.designs import Centre, Design
from tacitly.methods.trace_regression.low_rank import LowRank, leading
from tacitly.methods.trace_regression.queries import DesignEnergy, LabelledSum, Scales, TangentSum
from tacitly.privacy.calibration import Plan
from tacitly.privacy.guarantee import Unit

_STANDS_OUT = 4.5  # noise standard deviations above which a window of the histogram is not noise
_BEYOND = 1.1  # times the edge of the noise's singular values, above which a direction counts as found
MOST_DIRECTIONS = 10
"""The largest number of directions that ``rank="auto"`` returns."""

_FLOOR = 0.25  # floor relative to the mean energy: a rare row would otherwise get a huge scale and contain only noise


@dataclass(frozen=True)
class Clip:
    """A clipping bound, the factor (``gain``) by which it shrinks a sum, and a coordinate's sampling deviation."""

    bound: float
    gain: float
    sampling: float = 0.0


def scales_of(
    federation: Federation,
    plan: Plan,
    design: Design,
    unit: Unit,
    public: tuple[Array, Array] | None,
    centre: Centre | None = None,
) -> Scales:
    """Return diagonals that scale Σ X² to about one by row and column; from a release unless energies are public."""
    if public is None:
        query = DesignEnergy(design, unit, centre)
        event = plan.event("design scale", clip=1.0, acute=True)
        histogram = federation.release(NormHistogram(query), event, "norms of the design")
        clip = quantile_of(histogram, federation.sum_sigma(event), 0.9)
        event = plan.event("design", clip=clip, acute=True)
        released = federation.release(query, event, "energy of the design")
        noise = federation.sum_sigma(event)
        public = released[: design.d1], released[design.d1 :]
    else:
        noise = 0.0
    rows, columns = (np.maximum(energy, 0.0) for energy in public)
    # Both add up to the total energy, so the mean of both sums estimates it better.
    total = max((float(rows.sum()) + float(columns.sum())) / 2, noise, np.finfo(float).tiny)
    rows, columns = (np.maximum(energy, _FLOOR * total / energy.size) for energy in (rows, columns))
    quarter = total**0.25
    return Scales(quarter / np.sqrt(rows), quarter / np.sqrt(columns))


def start_of(
    federation: Federation,
    plan: Plan,
    design: Design,
    unit: Unit,
    scales: Scales,
    rank: int | None,
    settings: StartSettings,
    centre: Centre | None = None,
) -> LowRank:
    """Return a first rank-r matrix for the scaled design; without a rank, with all directions above the noise."""
    most = min(MOST_DIRECTIONS if rank is None else rank, design.d1, design.d2)
    if settings.route == "one-shot":
        query = LabelledSum(design, scales, unit, centre)
        clip = chosen_clip(federation, plan, query, "start", "norms of the start", query.coordinates)
        event = plan.event("start", clip=clip.bound)
        matrix = federation.release(query, event, "start").reshape(design.d1, design.d2) / clip.gain
        matrix = _unbiased(matrix, scales, settings.covariance)
        noise = federation.sum_sigma(event) / clip.gain
        return leading(matrix, standing(matrix, noise, clip, most) if rank is None else rank, noise)
    return _power(federation, plan, design, unit, scales, most, settings, centre, chooses=rank is None)


def standing(matrix: Array, noise: float, clip: Clip, most: int) -> int:
    """Return how many singular values exceed the noise of privacy and of sampling; at least one.

    Independent noise of standard deviation s in every entry has singular values of up to about s(√d₁ + √d₂).

    >>> standing(np.diag([50.0, 20.0, 3.0]), 1.0, Clip(1.0, 1.0, sampling=1.0), 3)
    2
    """
    edge = math.hypot(noise, clip.sampling / clip.gain) * sum(map(math.sqrt, matrix.shape))
    values = np.linalg.svd(matrix, compute_uv=False)
    return max(1, min(most, int(np.count_nonzero(values > _BEYOND * edge))))


@dataclass(frozen=True)
class StartSettings:
    """Public settings of the start."""

    route: str = "one-shot"
    sweeps: int = 2
    oversampling: int = 2
    seed: int | None = None
    covariance: Array | None = None

    @property
    def releases(self) -> int:
        """Number of noisy sums."""
        return 1 if self.route == "one-shot" else 2 * self.sweeps


def _power(
    federation: Federation, plan: Plan, design: Design, unit: Unit, scales: Scales, rank: int, settings: StartSettings,
    centre: Centre | None, *, chooses: bool,
) -> LowRank:  # fmt: skip
    width = min(rank + settings.oversampling, design.d1, design.d2)
    zero = np.zeros(width)
    left = np.zeros((design.d1, width))
    right = orthonormal(np.random.default_rng(settings.seed).normal(size=(design.d2, width)))[0]
    product, noise, clip = np.zeros((design.d2, width)), 0.0, Clip(1.0, 1.0)
    for number in range(2 * settings.sweeps):
        product_of = "left" if number % 2 == 0 else "right"
        query = TangentSum(design, scales, left, right, zero, product_of, unit=unit, centre=centre)
        clip = chosen_clip(federation, plan, query, "start", f"norms of sweep {number + 1}", query.coordinates)
        event = plan.event("start", clip=clip.bound)
        noise = federation.sum_sigma(event) / clip.gain
        products = query.split(federation.release(query, event, f"sweep {number + 1}") / clip.gain)
        if product_of == "left":
            left = orthonormal(products[0])[0]
        else:
            product = products[1]
            right = orthonormal(product)[0]
    found = leading(product.T, standing(product, noise, clip, rank) if chooses else rank, noise)
    return LowRank(left @ found.left, found.values, found.right)


def unbiased(matrix: Array, covariance: Array | None) -> Array:
    """Return mat(Λ⁻¹ vec(matrix)); Λ the identity (None), diagonal (d₁×d₂ variances) or full (d₁d₂×d₁d₂).

    >>> unbiased(np.ones((1, 2)), np.array([[2.0, 4.0]]))
    array([[0.5 , 0.25]])
    """
    if covariance is None:
        return matrix
    if covariance.shape == matrix.shape:
        return np.asarray(matrix / covariance)
    solved: Array = np.asarray(np.linalg.solve(covariance, matrix.ravel()), dtype=np.float64)
    return solved.reshape(matrix.shape)


def variances(covariance: Array, shape: tuple[int, int]) -> Array:
    """Return the variance of every entry of X.

    >>> variances(np.diag([1.0, 2.0]), (1, 2))
    array([[1., 2.]])
    """
    return np.asarray(covariance if covariance.shape == shape else np.diag(covariance).reshape(shape))


def _unbiased(matrix: Array, scales: Scales, covariance: Array | None) -> Array:
    """Apply Λ⁻¹ to the released sum; the number of observations follows from the scales, n·Λ·D₁²·D₂² ≈ 1."""
    if covariance is None:
        return matrix
    factors = scales.matrix
    n = 1.0 / float(np.mean(factors**2 * variances(covariance, matrix.shape)))
    return np.asarray(unbiased(matrix / factors, covariance) / (factors * n))


def chosen_clip(federation: Federation, plan: Plan, query: Query, phase: str, name: str, dimensions: int) -> Clip:
    """Release a histogram of the query's norms; return the bound with the least expected error."""
    event = plan.event("clip", clip=1.0, acute=True)
    histogram = federation.release(NormHistogram(query, 8), event, name)
    multiplier = federation.sum_sigma(plan.event(phase, clip=1.0))
    bulk = bulk_of(histogram, federation.sum_sigma(event))
    if bulk is None:
        return Clip(1.0, 1.0)
    kept, edges, per_octave = readable_bins(bulk.histogram, federation.sum_sigma(event))
    width = max(1, round(8 * per_octave))
    first = int(np.argmax(np.convolve(kept, np.ones(width), mode="valid")))
    window, norms = kept[first : first + width], edges[first : first + width + 1]
    if not window.sum() > 0:
        return Clip(bulk.middle, 1.0)
    # Norms near zero are spread over many bins, and were dropped with the noise there: add them back.
    units = federation.n_users if query.unit is Unit.USER else federation.n_rows
    window = window.copy()
    low = int(np.searchsorted(np.cumsum(window), 0.1 * float(window.sum())))
    window[low] += max(0.0, units - float(window.sum()))
    return least_error(window, norms, multiplier, dimensions, query.unit)


@dataclass(frozen=True)
class Bulk:
    """The region of most norms: a histogram of eight bins per octave, zero elsewhere, and the region's middle."""

    histogram: Array
    middle: float


def bulk_of(histogram: Array, sigma: float) -> Bulk | None:
    """Return the region with more units than noise explains; None if there is none.

    With a test of single bins, one of 1,920 would exceed the noise by chance in every other run, anywhere from 2⁻¹²⁰ to
    2¹²⁰, and a bound of 2¹¹⁰ makes the result pure noise. Windows of several octaves do so by chance in one run of 100.

    >>> counts = np.zeros(1920); counts[960:964] = 1000.0
    >>> bulk_of(counts, 100.0).middle < 20.0, bulk_of(np.zeros(1920), 100.0)
    (True, None)
    """
    if sigma == 0:
        return Bulk(histogram, 1.0) if histogram.any() else None
    significance, first, width = max(
        (float(sums.max()) / (sigma * math.sqrt(width)), int(np.argmax(sums)), width)
        for width in (16, 32, 64)
        for sums in [np.convolve(histogram, np.ones(width), mode="valid")]
    )
    if not significance > _STANDS_OUT:
        return None
    near, middle = np.zeros_like(histogram), first + width // 2
    # A multiple of the largest number of bins that are joined later, so that no joined bin is cut.
    low = max(0, middle - 40) // 16 * 16
    near[low : low + 80] = histogram[low : low + 80]
    return Bulk(near, float(bin_edges(8)[middle]))


def least_error(counts: Array, edges: Array, multiplier: float, dimensions: int, unit: Unit) -> Clip:
    """Return the clipping bound C with the least expected error of a sum divided by its gain.

    The variance per coordinate is ΣN²/p from the units and (zC)² from the noise. (Clipping reduces the first, but by
    cutting the most informative units, so this does not count.) At least half of the units stay below the bound, so
    that the gain is estimated from many. Norms beyond four medians count as four: outliers do not move the bound.

    >>> edges = np.linspace(0.0, 4.0, 65)
    >>> counts = 1000 * np.exp(-(edges[1:] ** 2) / 2)  # residuals of unit variance
    >>> [round(least_error(counts, edges, z, 10, Unit.ROW).bound, 2) for z in (0.0, 10.0, 100.0)]
    [4.0, 2.06, 0.81]
    """
    middle, total = np.sqrt(np.maximum(edges[:-1] * edges[1:], 0.0)), float(counts.sum())
    share = np.cumsum(counts) / total
    best, least, half = Clip(float(edges[-1]), 1.0), math.inf, int(np.searchsorted(share, 0.5))
    spread = float(counts @ np.minimum(middle, 4.0 * edges[half + 1]) ** 2) / dimensions
    for candidate in range(half, len(counts)):
        bound = float(edges[candidate + 1])
        gain = gain_of(counts, middle, bound, unit)
        error = (spread + (multiplier * bound) ** 2) / gain**2
        if error < least * (1.0 - 1e-9):  # ignore rounding errors
            best, least = Clip(bound, gain, math.sqrt(spread)), error
    return best


def gain_of(counts: Array, norms: Array, bound: float, unit: Unit) -> float:
    """Return the factor by which clipping shrinks a sum: the share of units below (Stein), or users' mean factor.

    A single observation above the bound does not react to a change of M. The sum of a user's observations still does,
    in all directions except its own.
    """
    if unit is Unit.USER:
        return float(counts @ np.minimum(1.0, bound / np.maximum(norms, np.finfo(float).tiny))) / float(counts.sum())
    return max(float(counts[norms < bound].sum()) / float(counts.sum()), 0.05)
