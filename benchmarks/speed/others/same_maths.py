"""One round of Private FedRep in plain NumPy: the computation that all engines run. Needs NumPy only.

A user fits a head by least squares and computes the gradient of the residuals in the basis; both are normalised as one
vector. The server sums these vectors, solves for the change of the basis, and orthonormalises its columns.
"""

from pathlib import Path

import numpy as np

K, SCALE = 5, 0.5
UPPER = np.triu_indices(K)
ROOT = np.where(UPPER[0] == UPPER[1], 1.0, np.sqrt(2.0))


def read(folder: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features (users × rows × features), targets and the initial basis as memory maps."""
    X, y, basis = (np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in ("X", "y", "basis"))
    return X, y, basis


def contribution(X: np.ndarray, y: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Return one user's vector, normalised."""
    projected = X @ basis
    head = np.linalg.solve(projected.T @ projected, projected.T @ y)
    residual = y - projected @ head
    gradient = X.T @ residual / ((len(X) - basis.shape[1]) * np.square(X[::4]).mean())
    joint = np.concatenate([np.outer(gradient / SCALE, head).ravel(), np.outer(head, head)[UPPER] * ROOT])
    return joint / np.linalg.norm(joint)


def advance(basis: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return the next basis."""
    d, k = basis.shape
    second = np.zeros((k, k))
    second[UPPER] = total[d * k :] / ROOT
    second = second + np.triu(second, 1).T
    change = SCALE * total[: d * k].reshape(d, k).astype(np.float64) @ np.linalg.inv(second)
    q, r = np.linalg.qr(basis.astype(np.float64) + change)
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)
