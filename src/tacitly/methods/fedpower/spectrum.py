"""Components from a noisy matrix, corrected for the known noise level. All of it is post-processing.

If the noise has half-radius s, a true eigenvalue ℓ is observed as x = ℓ + s²/ℓ, and its eigenvector has squared cosine
1 − s²/ℓ² with the true one. The first formula is inverted; the second is reported as confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tacitly.arrays import Array
from tacitly.linalg import spike_size


@dataclass(frozen=True)
class Spectrum:
    """The public result. ``values`` are corrected for the noise; ``floor`` is the noise's largest eigenvalue.

    ``all_values`` are the uncorrected eigenvalues of the released matrix, ``total`` is its trace; empty and NaN if no
    matrix was released.
    """

    components: Array  # k×d
    values: Array
    confidence: Array
    mean: Array
    floor: float
    n_rows: float
    predicted_error: float | None  # None if it cannot be predicted from public numbers
    total: float = math.nan
    all_values: Array = field(default_factory=lambda: np.zeros(0))


def from_product(
    product: Array, noise: float, rank: int | None, mean: Array, n_rows: float, steps: int | None
) -> Spectrum:
    """Compute components and eigenvalues from the last noisy product of the matrix with an orthonormal basis.

    ``steps`` is the number of products with the whole matrix. None: the products were with parts of it, whose
    differences are unknown, so no error is predicted.
    """
    d, width = product.shape
    left, values, _ = np.linalg.svd(product, full_matrices=False)
    level = noise * math.sqrt(d)
    if rank is None:
        rank = max(1, int(np.count_nonzero(values > 1.1 * noise * (math.sqrt(d) + math.sqrt(width)))))
    found = spectrum(left[:, :rank].T, values, level / 2, noise, mean, n_rows)
    error = None if steps is None else min(1.0, error_of_steps(values, rank, d, noise, steps))
    return replace(found, predicted_error=error)


def clear_confidence(d: int) -> float:
    """Return the confidence that the first direction of pure noise in d dimensions exceeds once in a hundred times.

    The largest eigenvalue of noise lies around its edge 2s and exceeds it by d^(−2/3) of it less than once in a hundred
    times (Tracy and Widom 1996; 0.4 % for d = 2, 0.8 % for d = 200).

    >>> round(clear_confidence(12), 2)
    0.7
    """
    edge = 1.0 + math.pow(d, -2 / 3)
    return 1.0 - (edge + math.sqrt(edge**2 - 1.0)) ** -2


def error_of_matrix(values: Array, rank: int, entry: float) -> float:
    """Return the sine of the angle between the top eigenspaces of a matrix and of its noisy copy, to first order.

    ``values`` are the eigenvalues, ``entry`` is the noise of an off-diagonal entry: it rotates the k-th direction
    towards the j-th by its ratio to the distance between both eigenvalues.

    >>> round(error_of_matrix(np.array([10.0, 6.0, 2.0]), 1, 0.4), 3)
    0.112
    """
    with np.errstate(all="ignore"):
        error = entry * math.sqrt(float(np.sum(1.0 / (values[rank - 1] - values[rank:]) ** 2)))
    return error if math.isfinite(error) else 1.0


def error_of_steps(values: Array, rank: int, d: int, noise: float, steps: int) -> float:
    """Return the sine of the angle after ``steps`` power steps with ``len(values)`` columns and noise in every entry.

    Towards a direction in the basis, the error is that of a singular vector of the last product. Towards all other
    directions it is the noise of every step, multiplied by λ'/λ for each later step (λ is the k-th eigenvalue, λ' the
    least in the basis). Added to it is (λ'/λ)^steps, which remains of the random start.

    >>> round(error_of_steps(np.array([10.0, 5.0]), 1, 50, 0.1, 8), 3)
    0.109
    """
    least, inside = float(values[-1]), values[rank:]
    last = float(values[rank - 1])
    if not last > (float(inside[0]) if len(inside) else 0.0):
        return 1.0
    turned = float(np.sum((last**2 + inside**2) / (last**2 - inside**2) ** 2))
    if len(values) == d:
        return noise * math.sqrt(turned)
    ratio = least / last if len(inside) else 1.0
    if ratio >= 1.0:
        return 1.0
    outside = (d - len(values)) / (last**2 - least**2)
    return noise * math.sqrt(turned + outside) + ratio**steps * math.sqrt(d / rank)


def spectrum(components: Array, values: Array, level: float, entry: float, mean: Array, n_rows: float) -> Spectrum:
    """Correct eigenvalues for the noise; compute each direction's confidence and the predicted error of the space."""
    k = len(components)
    # Signs as in scikit-learn: the largest entry of a component is positive.
    signs = np.sign(components[np.arange(k), np.argmax(np.abs(components), axis=1)])
    sizes = spike_size(values[:k], level) if level > 0 else np.maximum(values[:k], 0.0)
    with np.errstate(all="ignore"):
        confidence = np.where(sizes > 0, 1.0 - (level / sizes) ** 2, 0.0) if level > 0 else np.ones(k)
    return Spectrum(
        components * np.where(signs == 0, 1.0, signs)[:, None],
        sizes,
        np.maximum(confidence, 0.0),
        mean,
        2 * level,
        n_rows,
        min(1.0, error_of_matrix(values, k, entry)),
    )
