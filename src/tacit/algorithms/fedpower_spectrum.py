"""From a noisy matrix to components, with the known noise level taken into account. All of it is post-processing.

An eigenvalue x of a matrix with noise of half-radius s comes from a true ℓ with x = ℓ + s²/ℓ, and its eigenvector has
squared cosine 1 − s²/ℓ² with the true one: the first is subtracted, the second is reported as confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tacit.federation.base import Array
from tacit.linalg import spike_size


@dataclass(frozen=True)
class Spectrum:
    """What was learned: public. ``values`` have the known noise subtracted; ``floor`` is its largest eigenvalue."""

    components: Array  # k×d
    values: Array
    confidence: Array
    mean: Array
    floor: float
    n_rows: float
    predicted_error: float | None  # None where nothing public tells of it


def from_product(
    product: Array, noise: float, rank: int | None, mean: Array, n_rows: float, steps: int | None
) -> Spectrum:
    """Read components and eigenvalues off the last noisy product of the matrix with an orthonormal basis.

    ``steps`` is how many products of the whole matrix there were; None if they were of parts of it, whose differences
    nobody knows, so that no error is predicted. A step leaves what the one before it left out times λ'/λ, λ the k-th
    and λ' the next eigenvalue, so noise adds up to (noise·√d)/(λ − λ'), and λ'/λ to the power of all steps, λ' the least
    eigenvalue iterated, is left of the random start.
    """
    d, width = product.shape
    left, values, _ = np.linalg.svd(product, full_matrices=False)
    level = noise * math.sqrt(d)
    if rank is None:
        rank = max(1, int(np.count_nonzero(values > 1.1 * noise * (math.sqrt(d) + math.sqrt(width)))))
    found = spectrum(left[:, :rank].T, values, level / 2, noise, mean, n_rows)
    if steps is None:
        return replace(found, predicted_error=None)
    if width == d or not values[rank - 1] > values[min(rank, width - 1)]:
        return replace(found, predicted_error=None if width < d else found.predicted_error)
    gap, start = values[rank - 1] - values[rank], (values[-1] / values[rank - 1]) ** steps * math.sqrt(d / rank)
    return replace(found, predicted_error=min(1.0, float(level / gap + start)))


def spectrum(components: Array, values: Array, level: float, entry: float, mean: Array, n_rows: float) -> Spectrum:
    """Subtract the known noise; say how sure each direction is and how far the space may be off."""
    k = len(components)
    # scikit-learn's signs: the largest entry of a component is positive.
    signs = np.sign(components[np.arange(k), np.argmax(np.abs(components), axis=1)])
    sizes = spike_size(values[:k], level) if level > 0 else np.maximum(values[:k], 0.0)
    with np.errstate(all="ignore"):
        confidence = np.where(sizes > 0, 1.0 - (level / sizes) ** 2, 0.0) if level > 0 else np.ones(k)
        gaps = values[k - 1] - values[k:]
        rest = entry * math.sqrt(float(np.sum(1.0 / gaps**2))) if len(gaps) else 0.0
    return Spectrum(
        components * np.where(signs == 0, 1.0, signs)[:, None],
        sizes,
        np.maximum(confidence, 0.0),
        mean,
        2 * level,
        n_rows,
        min(1.0, rest) if np.isfinite(rest) else 1.0,
    )
