"""Non-private baselines with one round of communication, as in the comparison of FedPower (Appendix F).

* :func:`unweighted_average` (UDA, Fan et al. 2019): average of the devices' projectors.
* :func:`weighted_average` (WDA, Bhaskara and Wijewardena 2019): the same, weighted by the devices' eigenvalues.
* :func:`randomized_svd` (DR-SVD): a random sketch of all rows, with two products with the rows.

Each returns an orthonormal d×k basis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tacitly.arrays import Array


def unweighted_average(devices: Sequence[Any], rank: int) -> Array:
    """Return UDA: the top eigenvectors of the mean of V Vᵀ.

    >>> rows = np.random.default_rng(0).normal(size=(300, 3)) * [3.0, 1.0, 0.1]
    >>> abs(unweighted_average(np.split(rows, 3), 1)[0, 0]).round(2)
    np.float64(1.0)
    """
    return _average(devices, rank, weighted=False)


def weighted_average(devices: Sequence[Any], rank: int) -> Array:
    """Return WDA: the top eigenvectors of the mean of V Σ Vᵀ."""
    return _average(devices, rank, weighted=True)


def randomized_svd(devices: Sequence[Any], rank: int, random_state: int | None = None) -> Array:
    """Return DR-SVD: a sketch of k + ⌊(d − k)/4⌋ columns and one power iteration."""
    d = devices[0].shape[1]
    width = rank + (d - rank) // 4
    sketch = np.random.default_rng(random_state).normal(size=(d, width))
    inner = sum((np.asarray(rows.T @ (rows @ sketch)) for rows in devices), np.zeros((d, width)))
    tall = np.concatenate([np.asarray(rows @ inner) for rows in devices])
    q = np.linalg.qr(tall)[0]
    starts = np.cumsum([0, *(rows.shape[0] for rows in devices)])
    b = sum(
        (np.asarray(rows.T @ q[a : a + rows.shape[0]]).T for rows, a in zip(devices, starts, strict=False)),
        np.zeros((width, d)),
    )
    return np.ascontiguousarray(np.linalg.svd(b, full_matrices=False)[2][:rank].T)


def _average(devices: Sequence[Any], rank: int, *, weighted: bool) -> Array:
    d = devices[0].shape[1]
    total = np.zeros((d, d))
    for rows in devices:
        gram = rows.T @ rows
        gram = np.asarray(gram.toarray() if hasattr(gram, "toarray") else gram, dtype=np.float64) / rows.shape[0]
        values, vectors = np.linalg.eigh(gram)
        top = vectors[:, -rank:]
        total += (top * values[-rank:]) @ top.T if weighted else top @ top.T
    return np.linalg.eigh(total / len(devices))[1][:, ::-1][:, :rank]
