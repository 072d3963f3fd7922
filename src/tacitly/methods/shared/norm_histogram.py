"""A clipping bound chosen privately: a noisy histogram of the logarithms of contribution norms, and a quantile of it.

For queries of many units whose scale is not known in advance. Used by FedPower and trace regression (bounds, and the
scale of rows). With a few hundred units, the noise of hundreds of bins hides the scale, and some window of bins may
look like a scale by chance. Then two numbers give more information (:mod:`~tacitly.methods.shared.typical_norm`).

Release :class:`NormHistogram`. Unit: that of the query (a user or a row). A unit contributes the indicator of the bin
that contains its norm, a vector of norm one; zero if the norm is zero or not finite. Sensitivity 1 (zero-out); √2
(replace-one: entries are not negative, so ⟨p, q⟩ ≥ 0). One Gaussian event; computing a quantile from it is
post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_size
from tacitly.federation.base import Query
from tacitly.privacy.clipping import clip_factor

_LOWEST, _HIGHEST, _PER_OCTAVE = -120, 120, 2  # norms from 2^-120 to 2^120 in steps of √2


@dataclass(frozen=True)
class NormHistogram(Query):
    """The bin of the norm of a unit's contribution to ``query``, with ``per_octave`` bins per factor of two."""

    query: Query
    per_octave: int = _PER_OCTAVE
    acute: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_size("per_octave", self.per_octave, 64)
        object.__setattr__(self, "unit", self.query.unit)

    @property
    def coordinates(self) -> int:
        """Number of bins."""
        return (_HIGHEST - _LOWEST) * self.per_octave

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the indicator of the bin."""
        return self._count(self.query.plain_norms(X, y, np.array([0, X.shape[0]])), 1.0)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Count a block of units."""
        return self._count(self.query.norms(X, y, offsets), clip_factor(1.0, bound))

    def form_for(self, n_users: int, n_features: int) -> NormHistogram:
        """Return the form to use for this number of units; it depends on public sizes only."""
        form = self.query.form_for(n_users, n_features)
        return self if form is self.query else replace(self, query=form)

    def _count(self, norms: Array, weight: float) -> Array:
        with np.errstate(all="ignore"):
            known = norms[np.isfinite(norms) & (norms > 0)]
            bins = np.floor((np.log2(known) - _LOWEST) * self.per_octave).astype(np.int64)
        bins = np.clip(bins, 0, self.coordinates - 1)
        return weight * np.bincount(bins, minlength=self.coordinates).astype(np.float64)


def bin_edges(per_octave: int = _PER_OCTAVE) -> Array:
    """Return the lower edges of the bins, and the upper edge of the last."""
    return np.asarray(2.0 ** (_LOWEST + np.arange((_HIGHEST - _LOWEST) * per_octave + 1) / per_octave))


def quantile_of(histogram: npt.ArrayLike, sigma: float, quantile: float) -> float:
    """Compute a quantile from a noisy histogram of log-norms.

    Bins that noise alone could fill are dropped, then the densest window of eight octaves is kept, so that noise in
    hundreds of empty bins does not move the result.

    >>> counts = np.zeros(480); counts[240:244] = 100
    >>> round(quantile_of(counts, 1.0, 0.5), 3)  # the middle of two octaves from 2^0
    2.0
    """
    counts = np.asarray(histogram, dtype=np.float64)
    kept = np.where(counts > 2.0 * sigma, counts, 0.0)
    width = 8 * _PER_OCTAVE
    sums = np.convolve(kept, np.ones(width), mode="valid")
    first = int(np.argmax(sums))
    window = kept[first : first + width]
    if not window.sum() > 0:
        return 1.0
    shares = np.cumsum(window) / window.sum()
    position = int(np.searchsorted(shares, quantile))
    before = float(shares[position - 1]) if position else 0.0
    inside = (quantile - before) / max(float(shares[position]) - before, 1e-12)
    return float(2.0 ** (_LOWEST + (first + position + inside) / _PER_OCTAVE))
