"""FedPower's private scale, centre and clipping bound of rows, each for a few hundredths of the budget.

The bound minimises the predicted error: with a larger bound, noise increases and the part that is cut off decreases.
Both are computed from one released histogram of norms. With a few hundred units, the noise of its bins hides the scale,
and a bin of noise could be taken for it. So if there are few units, which is public, two numbers are released instead:
the typical norm is the bound.

Releases: :class:`~tacitly.methods.shared.norm_histogram.NormHistogram` (sensitivity 1 under zero-out, √2 under
replace-one) or :class:`~tacitly.methods.shared.typical_norm.TypicalNorm` (1 and 2), and
:class:`~tacitly.methods.fedpower.gram.CentreVote` (1 and 2), one Gaussian event each; the rest is post-processing.
"""

from __future__ import annotations

import math

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation, Query
from tacitly.methods.fedpower.gram import CentreVote, ShiftedGram
from tacitly.methods.shared.norm_histogram import NormHistogram, bin_edges, quantile_of
from tacitly.methods.shared.typical_norm import typical_norm
from tacitly.privacy.calibration import Plan
from tacitly.privacy.clipping import safe_norm
from tacitly.privacy.guarantee import Unit

Bounds = tuple[Array, Array]

_PER_OCTAVE = 8  # bins per factor of two of the histogram for the bound: 9 % apart
_MANY = 40.0  # units per standard deviation of a bin's noise, from which on bins exceed it: about 1,000 at ε = 1
FAR, NEAR = 60.0, 12.0  # octaves of squared norms around one, and around a scale that is roughly known
_HARM = 0.03  # share of the norm cut off that rotates components: most of it shrinks all components equally


def are_few(plan: Plan, units: int) -> bool:
    """Return whether there are so few units that a histogram of their norms would be noise; from public numbers."""
    return units < _MANY * plan.event("clip", clip=1.0, acute=True).sigma


def centre_of(
    federation: Federation, plan: Plan, unit: Unit, bounds: Bounds | None, *, shifted: bool, few: bool
) -> tuple[Array, float]:
    """Return a public centre of all rows and the scale of a row."""
    d = federation.n_features
    if bounds is not None:
        low, high = bounds
        origin, scale = (low + high) / 2, safe_norm(high - low)[0] / 2
    else:
        event, query = plan.event("scale", clip=1.0, acute=not few), ShiftedGram(np.zeros(d), 0.0, unit)
        if few:
            typical = typical_norm(federation, query, event, "scale", reach=FAR)
            squared = typical.size if typical.found else 1.0
        else:
            histogram = federation.release(NormHistogram(query), event, "scale")
            squared = quantile_of(histogram, federation.sum_sigma(event), 0.5)
        # The matrix of a row has the row's squared norm (the matrix of a user, that of all their rows together).
        origin, scale = np.zeros(d), math.sqrt(squared)
    if not shifted:
        return np.zeros(d), scale
    event = plan.event("centre", clip=1.0)
    released = federation.release(CentreVote(origin, scale, unit), event, "centre")
    sigma = federation.sum_sigma(event)
    if not released[-1] > 4 * sigma:
        return origin, scale
    moved = released[:-1] / released[-1]
    # Shrink by the expected squared norm of the noise, so that a noisy centre is not worse than none.
    excess = float(np.sum(released[:-1] ** 2)) - d * sigma**2
    share = max(0.0, excess / float(np.sum(released[:-1] ** 2))) if np.any(released[:-1]) else 0.0
    return origin + share * scale * moved, scale


def chosen_clip(
    federation: Federation, plan: Plan, query: Query, name: str, fallback: float, *, few: bool, turns: int = 1,
    phase: str = "sum", symmetric: bool = True, reach: float = NEAR,
) -> float:  # fmt: skip
    """Release a histogram of the query's norms; return the bound with the least predicted error of ``phase``'s sum.

    With ``few`` units, release the typical norm within ``reach`` octaves of the fallback.

    The sum of a turn, or of a sample, is smaller than that of all users by a public factor, but its noise is not. Noise
    of a ``symmetric`` matrix moves a direction by √(d/2) standard deviations, that of any other matrix by √d.
    """
    event = plan.event("clip", clip=1.0, acute=not few)
    if few:
        typical = typical_norm(federation, query, event, f"norms of {name}", reach=reach, around=fallback)
        return typical.size if typical.found else fallback
    histogram = federation.release(NormHistogram(query, _PER_OCTAVE), event, f"norms of {name}")
    unit = plan.event(phase, clip=1.0, acute=query.acute)
    share = plan.sampling_rate / turns
    messages = int(np.count_nonzero(federation.group_of(turns, turns - 1)))
    moved = math.sqrt(federation.n_features / 2 if symmetric else federation.n_features)
    noise = federation.sum_sigma(unit, messages) * moved / share
    return best_clip(histogram / plan.sampling_rate, federation.sum_sigma(event) / plan.sampling_rate, noise, fallback)


def best_clip(histogram: Array, sigma: float, noise: float, fallback: float) -> float:
    """Return the clipping bound C that minimises noise·C plus the error of cutting norms off at C.

    >>> counts = np.zeros(1920); counts[960:964] = 1000  # norms from 1 to √2
    >>> round(best_clip(counts, 0.0, 0.0, 1.0), 2), round(best_clip(counts, 0.0, 100.0, 1.0), 2)
    (1.41, 1.09)
    """
    kept, edges, per_octave = readable_bins(histogram, sigma)
    if not kept.any():
        return fallback
    if sigma > 0:
        width = max(1, round(8 * per_octave))
        first = int(np.argmax(np.convolve(kept, np.ones(width), mode="valid")))
        kept[:first], kept[first + width :] = 0.0, 0.0
    used = np.flatnonzero(kept)
    low = int(np.searchsorted(np.cumsum(kept), 0.25 * kept.sum()))
    candidates = edges[max(low, used[0]) + 1 : used[-1] + 2]
    lost = [float(np.sum(kept[used] * np.maximum(edges[used + 1] - c, 0.0))) for c in candidates]
    return float(candidates[int(np.argmin(noise * candidates + _HARM * np.array(lost)))])


def readable_bins(histogram: Array, sigma: float) -> tuple[Array, Array, float]:
    """Return the counts, edges and bins per octave of a noisy histogram of norms, with bins of noise removed.

    With few units neighbouring bins are joined as far as necessary; then bins that noise alone could fill are dropped.
    """
    best: tuple[Array, Array, float] | None = None
    for joined in (16, 8, 4, 2, 1):
        counts = histogram.reshape(-1, joined).sum(axis=1)
        kept = np.where(counts > 3.5 * sigma * math.sqrt(joined), counts, 0.0)
        if best is None or kept.sum() > 0.8 * best[0].sum():
            best = kept, bin_edges(_PER_OCTAVE)[::joined], _PER_OCTAVE / joined
    assert best is not None
    return best
