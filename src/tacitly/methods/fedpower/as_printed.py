"""FedPower as printed (Guo et al. 2021, Algorithms 1 to 3), for comparison. Not certified, with noise or without.

The implementation is complete: local steps between synchronisations, Procrustes alignment, sign fixing or none,
decaying p, an iteration rank above the target, full and partial participation (both schemes), local and central noise.
The ledger records devices' matrices as a release without noise (:class:`DeviceGram`, σ = 0, ε = ∞), because that is
what they are for privacy. The printed noise is added to the simulated messages afterwards; :data:`REASONS` lists why it
does not give the stated privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tacitly.arrays import Array, Rows
from tacitly.federation.base import Federation, Query
from tacitly.linalg import pack_symmetric, unpack_symmetric
from tacitly.methods.fedpower.power import fewer_steps
from tacitly.methods.fedpower.sparse_rows import dense, is_sparse
from tacitly.privacy.guarantee import GaussianEvent, Sensitivity, Unit

REASONS = (
    "P1: with p > 1 a device's basis is a function of its rows that the sensitivity holds fixed",
    "P2: the noise is scaled by the largest entry of that private basis, so its size tells of the rows",
    "P3: alignment compares un-noised bases of different devices",
    "P4: orthonormalisation of private numbers jumps",
    "P5: where p does not divide T the last steps are released without noise",
    "P6: stacking r columns moves by a row's norm, not by its largest entry",
    "P7: a device takes part with probability K/m (or K draws), not 1/m, and the server knows who did",
    "P8: central noise leaves out the factor m of the second scheme and repeated draws of the first",
)


@dataclass(frozen=True)
class DeviceGram(Query):
    """A device's M = AᵀA/s as M/‖M‖, log ‖M‖ and log s. It is not clipped, so only for releases without noise."""

    n_features: int
    unit: Unit = Unit.USER
    acute: ClassVar[bool] = True
    clipped: ClassVar[bool] = False

    @property
    def coordinates(self) -> int:
        """Entries of a symmetric d×d matrix, its norm and the number of rows."""
        return self.n_features * (self.n_features + 1) // 2 + 2

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the packed matrix of norm one, the logarithm of its norm, and that of the number of rows."""
        rows: Any = X if is_sparse(X) else dense(X)
        gram = rows.T @ rows
        gram = gram.toarray() if is_sparse(X) else gram
        packed = pack_symmetric(np.asarray(gram, dtype=np.float64) / X.shape[0])
        norm = float(np.linalg.norm(packed)) or 1.0
        return np.concatenate([packed / norm, [math.log(norm), math.log(X.shape[0])]])

    def block_sum(self, X: Rows, y: Rows, offsets: object, bound: float) -> Array:
        """Return one device's contribution: matrices of different devices are not summed."""
        return self.contribution(X, y)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters of the printed algorithm. ``participants`` is None for all devices; else ``scheme`` is 1 or 2."""

    iterations: int = 40
    local_steps: int = 4
    decay: bool | str = False
    alignment: str = "procrustes"
    iteration_rank: int = 0
    participants: int | None = None
    scheme: int = 2
    epsilon_local: float = math.inf
    epsilon_central: float = math.inf
    delta: float = 1e-5
    per_round: bool = False

    def synchronisations(self) -> list[int]:
        """Return the set I_T: multiples of p, or with decay the partial sums of max(p − i, 1) (equation 3.15).

        >>> Settings(iterations=8, local_steps=3, decay=True).synchronisations()
        [3, 5, 6, 7, 8]
        >>> Settings(iterations=8, local_steps=4, decay="halve").synchronisations()
        [4, 6, 7, 8]
        """
        times, t, step = [], 0, self.local_steps
        while (t := t + step) <= self.iterations:
            times.append(t)
            step = fewer_steps(step, self.decay)
        return times

    def scale(self, epsilon: float, smallest: int) -> float:
        """Return σ of Algorithm 2 (before the factor ‖Z‖_max): the printed constant, split over ⌊T/p⌋ rounds."""
        if math.isinf(epsilon):
            return 0.0
        rounds = 1 if self.per_round else max(1, self.iterations // self.local_steps)
        return rounds / (epsilon * smallest) * math.sqrt(2 * math.log(1.25 * rounds / self.delta))


def device_matrices(federation: Federation) -> tuple[Array, Array]:
    """Return every device's matrix (m×d×d) and number of rows, released without noise."""
    d = federation.n_features
    event = GaussianEvent(sigma=0.0, sensitivity=Sensitivity.of_clip(1.0, acute=True))
    released = federation.release_each([DeviceGram(d)] * federation.n_users, event, "device matrices")
    matrices = [math.exp(row[-2]) * unpack_symmetric(row[:-2], d) for row in released]
    return np.array(matrices), np.rint(np.exp(released[:, -1]))


def fed_power(
    matrices: Array, sizes: Array, rank: int, settings: Settings, random_state: int | np.random.Generator | None = None
) -> Array:
    """Run Algorithm 2 (or 3); return the orthonormal d×r result."""
    return list(iterates(matrices, sizes, rank, settings, random_state))[-1]


def iterates(
    matrices: Array, sizes: Array, rank: int, settings: Settings, random_state: int | np.random.Generator | None = None
) -> Iterator[Array]:
    """Yield the basis after every communication, and the output (free of noise: P5) if p does not divide T."""
    rng = np.random.default_rng(random_state)
    m, d, _ = matrices.shape
    r = min(d, max(rank, settings.iteration_rank))
    weights = sizes / sizes.sum()
    local = settings.scale(settings.epsilon_local, int(sizes.min()))
    central = settings.scale(settings.epsilon_central, int(sizes.min())) * float(weights.max())
    bases = np.repeat(np.linalg.qr(rng.normal(size=(d, r)))[0][None], m, axis=0)
    times = settings.synchronisations()
    for t in range(1, settings.iterations + 1):
        products = matrices @ bases
        if t in times:
            largest = np.abs(bases).max(axis=(1, 2))
            messages = products @ _alignments(bases, settings.alignment)
            messages = messages + local * largest[:, None, None] * rng.normal(size=messages.shape)
            average = _aggregate(messages, weights, settings, rng)
            average = average + central * largest.max() * rng.normal(size=average.shape)
            basis = np.linalg.qr(average)[0]
            bases = np.repeat(basis[None], m, axis=0)
            yield _leading(basis, average, rank)
        else:
            bases = np.linalg.qr(products)[0]
    if settings.iterations not in times:
        average = np.einsum("i,ijk->jk", weights, bases @ _alignments(bases, settings.alignment))
        yield _leading(np.linalg.qr(average)[0], average, rank)


def _leading(basis: Array, average: Array, rank: int) -> Array:
    """Return the first ``rank`` left singular vectors, if more columns are iterated."""
    return basis if basis.shape[1] == rank else np.linalg.svd(average, full_matrices=False)[0][:, :rank]


def _aggregate(messages: Array, weights: Array, settings: Settings, rng: np.random.Generator) -> Array:
    m, k = len(messages), settings.participants
    if k is None:
        return np.asarray(np.einsum("i,ijk->jk", weights, messages))
    if settings.scheme == 1:
        return np.asarray(messages[rng.choice(m, size=k, p=weights)].mean(axis=0))
    chosen = rng.choice(m, size=k, replace=False)
    return np.asarray(m / k * np.einsum("i,ijk->jk", weights[chosen], messages[chosen]))


def _alignments(bases: Array, alignment: str) -> Array:
    """Return every device's D, which aligns it with the first device's basis (P3)."""
    if alignment == "none":
        return np.broadcast_to(np.eye(bases.shape[2]), (len(bases), bases.shape[2], bases.shape[2]))
    cross = np.swapaxes(bases, 1, 2) @ bases[0]
    if alignment == "procrustes":
        left, _, right = np.linalg.svd(cross)
        return np.asarray(left @ right)
    signs = np.where(np.einsum("ijj->ij", cross) < 0, -1.0, 1.0)
    return signs[:, :, None] * np.eye(bases.shape[2])
