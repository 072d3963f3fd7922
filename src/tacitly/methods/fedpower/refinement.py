"""A second measurement along the components that a first noisy Gram matrix found.

With many features, most of a row's norm lies outside the leading components, and noise proportional to the whole
squared norm is more than they need. So a third of the budget pays for a coarse Gram matrix H of the rows
a' = (a − m, c), and the rest for H·W along its top directions, W = diag(Z, 1): the norm to clip, of a'(a'ᵀW), is
‖a'‖·‖Wᵀa'‖. Both are noisy measurements of one matrix and are averaged by their precision, entry by entry in a basis
that starts with W. If W already holds most of the norm, or is still poorly known, a second Gram matrix is the better
measurement and is released instead; the first release decides, so the choice is public.

Releases: :class:`~tacitly.methods.fedpower.power.PowerStep` or :class:`~tacitly.methods.fedpower.gram.GramAgain`, one
Gaussian event of sensitivity C (zero-out), 2C (replace-one) for either, after one histogram of norms. Everything else
is post-processing.
"""

from __future__ import annotations

import math

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.linalg import orthonormal, unpack_symmetric
from tacitly.methods.fedpower.gram import GramAgain, ShiftedGram
from tacitly.methods.fedpower.power import PowerStep
from tacitly.methods.fedpower.scale import chosen_clip
from tacitly.methods.fedpower.spectrum import error_of_matrix
from tacitly.privacy.calibration import Plan

FIRST_SHARE = 1 / 3
"""Share of the sums' budget for the coarse matrix: from a quarter to a half the result hardly changes."""

FEATURES_PER_COMPONENT = 20
"""Fewest features per component for which a second measurement is planned."""

_NARROW = 0.8  # noise along W relative to a Gram matrix, above which measuring along W alone does not help
_KNOWN = 0.5  # predicted error of the directions, above which measuring along them would keep their errors
_MOST_RESCALING = 4.0


def measured_again(
    federation: Federation, plan: Plan, query: ShiftedGram, matrix: Array, sigma: float, clip: float,
    directions: Array, *, known: bool, few: bool,
) -> tuple[Array, float]:  # fmt: skip
    """Return a better estimate of the noisy ``matrix`` and the noise of its entries along ``directions`` (d×k).

    ``known``: whether they are separated from the others; ``sigma`` and ``clip`` are those of the first release.
    """
    d = len(directions)
    along = np.zeros((d + 1, directions.shape[1] + 1))
    along[:-1, :-1], along[-1, -1] = directions, 1.0
    if narrowness(matrix, along) > _NARROW or not known:
        gram = GramAgain(query.centre, query.constant, query.unit)
        again = chosen_clip(federation, plan, gram, "second gram matrix", clip, few=few, phase="step")
        event = plan.event("step", clip=again)
        second = unpack_symmetric(federation.release(gram, event, "second gram matrix"), d + 1)
        noise = federation.sum_sigma(event)
        weight = _share(sigma**2, noise**2)
        return (1 - weight) * matrix + weight * second, _joint(sigma, noise) / math.sqrt(2)
    step = PowerStep(directions, query.centre, query.constant, query.unit)
    narrow = chosen_clip(federation, plan, step, "components", clip, few=few, phase="step", symmetric=False)
    event = plan.event("step", clip=narrow)
    product = federation.release(step, event, "components").reshape(along.shape)
    return combined(matrix, sigma, product, federation.sum_sigma(event), along)


def stands_apart(values: Array, rank: int, entry: float) -> bool:
    """Return whether the gap after the leading eigenvalues is larger than the effect of noise on an eigenvalue.

    Otherwise the noise of the part that is not measured again, which is √3 times that of a single Gram matrix, could
    move a direction above the components.

    >>> stands_apart(np.array([9.0, 4.0, 1.0]), 1, 1.0), stands_apart(np.array([9.0, 8.0, 1.0]), 1, 1.0)
    (True, False)
    """
    if rank >= len(values):
        return False
    apart = float(values[rank - 1] - values[rank]) > entry * math.sqrt(len(values))
    return apart and error_of_matrix(values, rank, entry) <= _KNOWN


def narrowness(matrix: Array, along: Array) -> float:
    """Return √2·‖Wᵀa‖/‖a‖ for typical rows: the noise along W, relative to a Gram matrix for the same budget.

    >>> round(narrowness(np.diag([8.0, 1.0, 1.0]), np.eye(3)[:, 1:2]), 3)
    0.447
    """
    inside, total = float(np.trace(along.T @ matrix @ along)), float(np.trace(matrix))
    return math.sqrt(2 * max(inside, 0.0) / total) if total > 0 else math.inf


def combined(matrix: Array, sigma: float, product: Array, noise: float, along: Array) -> tuple[Array, float]:
    """Return the precision-weighted mean of a symmetric matrix and of its product with orthonormal columns ``along``.

    ``sigma`` is the noise of the symmetric release (σ/√2 off the diagonal), ``noise`` that of every entry of the
    product. A smaller bound makes the product smaller by a common factor, computed from the block that both measured.
    The rest of the matrix is shrunk towards a multiple of the identity according to its known noise.

    >>> truth, along = np.diag([4.0, 2.0, 1.0]), np.eye(3)[:, :1]
    >>> combined(truth, 0.1, truth @ along, 1e-9, along)[0].round(6).diagonal().tolist()
    [4.0, 1.97, 1.03]
    """
    size, width = along.shape
    basis = _completed(along)
    first, second = basis.T @ matrix @ basis, basis.T @ product
    block = (second[:width] + second[:width].T) / 2
    factor = float(np.sum(first[:width, :width] * block)) / max(float(np.sum(block**2)), 1e-300)
    factor = min(max(factor, 1.0), _MOST_RESCALING)
    entry, noise = sigma / math.sqrt(2), noise * factor
    inside, outside = _share(entry**2, noise**2 / 2), _share(entry**2, noise**2)
    mean = first.copy()
    mean[:width, :width] += inside * (factor * block - first[:width, :width])
    mean[width:, :width] += outside * (factor * second[width:] - first[width:, :width])
    mean[:width, width:] = mean[width:, :width].T
    mean[width:, width:] = _shrunk(first[width:, width:], entry)
    assert mean.shape == (size, size)
    return basis @ mean @ basis.T, _joint(entry, noise)


def _completed(along: Array) -> Array:
    """Return an orthonormal basis of the whole space whose first columns are ``along``."""
    basis = orthonormal(np.column_stack([along, np.eye(len(along))]))[0][:, : len(along)]
    basis[:, : along.shape[1]] = along
    return basis


def _shrunk(block: Array, entry: float) -> Array:
    """Shrink a noisy symmetric block towards the multiple of the identity with its trace (James and Stein)."""
    size = len(block)
    flat = np.eye(size) * (np.trace(block) / size) if size else block
    apart = block - flat
    energy = float(np.sum(apart**2))
    return flat + apart * max(0.0, 1.0 - entry**2 * size * (size + 1) / energy) if energy > 0 else block


def _share(variance: float, other: float) -> float:
    """Return the weight of the second of two measurements."""
    return variance / (variance + other) if variance + other > 0 else 0.5


def _joint(deviation: float, other: float) -> float:
    """Return the standard deviation of the weighted mean of two measurements."""
    return deviation * other / math.hypot(deviation, other) if deviation > 0 and other > 0 else 0.0
