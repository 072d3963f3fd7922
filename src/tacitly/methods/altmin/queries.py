"""What one user contributes to private alternating minimisation: the normal equations of the basis.

Release :class:`NormalEquations`. Unit: the user. With ``parts="both"`` a contribution is one vector (A/c_A, b/c_b),
clipped as a whole to norm 1. It is a function of one user's rows and of public fields, so zero-out moves the sum by at
most 1, replace-one by at most 2 (b can point either way). One Gaussian event per round. One weight per user on both
sides of the equations reweights users and does not bias the solution. With one part alone it is only measured, by
:class:`~tacitly.methods.shared.norm_histogram.NormHistogram`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.federation.base import Query
from tacitly.heads.ridge import fit_head, fit_heads
from tacitly.linalg import denoise_spectrum, orthonormal, pack_symmetric, unpack_symmetric
from tacitly.methods.shared.whitening import Whitening, user_chunks
from tacitly.privacy.clipping import clip_factor, safe_norm


@dataclass(frozen=True)
class _Factors:
    """One user's A = gram · (head headᵀ ⊗ moment) and b = right · head sideᵀ; head, moment and side have norm one."""

    head: Array
    moment: Array
    side: Array
    gram: float
    right: float
    both: float


@dataclass(frozen=True)
class NormalEquations(Query):
    """One user's normal equations of the basis; ``parts`` selects the matrix, the right-hand side or both."""

    basis: Array  # whitened coordinates
    whitening: Whitening
    gram_scale: float = 1.0
    right_scale: float = 1.0
    parts: str = "both"

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, self.whitening.scale.size, None)
        if self.parts not in ("gram", "right", "both"):
            raise ValueError(f"parts must be 'gram', 'right' or 'both'. Found {self.parts!r}.")

    @property
    def coordinates(self) -> int:
        """Entries of a symmetric dk×dk matrix, of a d×k matrix, or of both."""
        size = self.basis.size
        return {"gram": size * (size + 1) // 2, "right": size, "both": size * (size + 3) // 2}[self.parts]

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return (A/c_A, b/c_b)."""
        whitened, targets = self.whitening.transform_one_user(X), y.astype(np.float64)
        user = self._factors_of(whitened, targets, fit_head(whitened, targets, self.basis)[:-1])
        if user is None:
            return np.zeros(self.coordinates)
        gram = user.gram * np.kron(np.outer(user.head, user.head), user.moment)
        packed = {"gram": [pack_symmetric(gram)], "right": [user.right * np.outer(user.head, user.side).ravel()]}
        packed["both"] = packed["gram"] + packed["right"]
        return np.concatenate(packed[self.parts])

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return norms without a Kronecker product: ‖vvᵀ ⊗ S‖ = ‖v‖²‖S‖ and ‖v ⊗ b‖ = ‖v‖‖b‖."""
        return np.array([0.0 if user is None else getattr(user, self.parts) for user in self._factors(X, y, offsets)])

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Return Σ (vvᵀ) ⊗ XᵀX as one matrix product over chunks of users, without a Kronecker product per user."""
        if self.parts != "both":
            return super().block_sum(X, y, offsets, bound)
        d, k = self.basis.shape
        gram_sum, right_sum = np.zeros((k * k, d * d)), np.zeros((k, d))
        for rows, targets, starts in user_chunks(X, y, offsets):
            outers, moments = np.zeros((len(starts) - 1, k * k)), np.zeros((len(starts) - 1, d * d))
            for i, user in enumerate(self._factors(rows, targets, starts)):
                weight = 0.0 if user is None else clip_factor(user.both, bound)
                if user is not None and weight > 0.0:
                    outers[i] = weight * user.gram * np.outer(user.head, user.head).ravel()
                    moments[i] = user.moment.ravel()
                    right_sum += weight * user.right * np.outer(user.head, user.side)
            gram_sum += outers.T @ moments
        whole = gram_sum.reshape(k, k, d, d).transpose(0, 2, 1, 3).reshape(k * d, k * d)
        return np.concatenate([pack_symmetric(whole), right_sum.ravel()])

    def _factors(self, X: Rows, y: Rows, offsets: Offsets) -> Iterator[_Factors | None]:
        """Yield each user's factors; the heads of all users are fitted in one compiled pass."""
        whitened, targets = self.whitening.transform(X), y.astype(np.float64)
        heads = fit_heads(whitened, targets, offsets, self.basis)[:, :-1]
        for i, (first, last) in enumerate(itertools.pairwise(offsets)):
            yield self._factors_of(whitened[first:last], targets[first:last], heads[i])

    def _factors_of(self, rows: Array, targets: Array, head: Array) -> _Factors | None:
        """Return one user's factors of norm one and the norms of their products; None for a user with too few rows."""
        count = len(rows)
        if count <= self.basis.shape[1]:
            return None
        head, size = _unit(head)
        moment, spread = _unit(rows.T @ rows)
        side, pull = _unit(rows.T @ targets)
        gram = size * size * (spread / (count * self.gram_scale))
        right = size * (pull / (count * self.right_scale))
        both = math.hypot(gram, right)
        return _Factors(head, moment, side, gram, right, both) if math.isfinite(both) else None

    def solve(self, released: Array, sigma: float) -> Array:
        """Return the basis that solves the noisy equations."""
        d, k = self.basis.shape
        size = d * k
        gram = unpack_symmetric(released[: size * (size + 1) // 2], size) * self.gram_scale
        right = released[size * (size + 1) // 2 :] * self.right_scale
        solution = solve_equations(gram, right, sigma * self.gram_scale, k)
        return orthonormal(solution.reshape(k, d).T)[0]


def solve_equations(gram: Array, right: Array, noise: float, rank: int) -> Array:
    """Solve noisy normal equations of a basis in whitened coordinates; ``noise`` is the matrix's entrywise noise.

    With whitened features the matrix is close to H ⊗ I, H the heads' second moment, which it contains d times over. The
    deviation from that is denoised by its spectrum. Eigenvalues are floored at the noise level.
    """
    size = len(gram)
    d = size // rank
    kronecker = np.kron(np.einsum("adbd->ab", gram.reshape(rank, d, rank, d)) / d, np.eye(d))
    values, vectors = np.linalg.eigh(gram - kronecker)
    denoised = kronecker + (vectors * denoise_spectrum(values, noise * math.sqrt(size / 2.0))) @ vectors.T
    values, vectors = np.linalg.eigh(denoised)
    values = np.maximum(values, max(noise, 1e-3 * float(values[-1]), np.finfo(float).tiny))
    return np.asarray(vectors @ ((vectors.T @ right) / values))


def _unit(array: Array) -> tuple[Array, float]:
    """Scale an array to norm one; return it and its norm. Zeros stay zeros."""
    norm, largest = safe_norm(array)
    if not (math.isfinite(norm) and norm > 0.0):
        return np.zeros_like(array), 0.0 if norm == 0.0 else math.nan
    scaled = array / largest
    return scaled / np.linalg.norm(scaled), norm
