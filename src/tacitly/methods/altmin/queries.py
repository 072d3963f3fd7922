"""What one user contributes to private alternating minimisation: the normal equations of the basis.

Release :class:`NormalEquations`. Unit: the user. With ``parts="both"`` a contribution is one vector (A/c_A, b/c_b),
clipped as a whole to norm 1. It is a function of one user's rows and of public fields, so zero-out moves the sum by at
most 1, replace-one by at most 2 (b can point either way). One Gaussian event per round. One weight per user on both
sides of the equations reweights users and does not bias the solution. A query with one part alone is not released; its
norm is measured by :class:`~tacitly.methods.shared.typical_norm.TypicalNorm`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.federation.base import Query
from tacitly.heads.ridge import fit_few_heads, fit_head, fit_heads
from tacitly.linalg import denoise_spectrum, orthonormal, pack_symmetric, unpack_symmetric
from tacitly.methods.shared.batch import clip_factors, norms_of
from tacitly.methods.shared.whitening import Whitening
from tacitly.simd.lazy_njit import few

REACH, SURE = 60.0, 20.0
"""REACH: octaves around one in which scales of equations are searched; they are proportional to squares of targets.
SURE: noise standard deviations that a scale must exceed; it is then known to an octave, REACH/(π·SURE)."""

_TOGETHER, _CELLS = 64, 1 << 18  # users whose second moments are held at once, and cells of their rows
# Second moments with a smaller norm have lost digits to underflow; with a larger norm, the bound divided by it has.
_LEAST_SPREAD, _MOST_SPREAD = 1e-280, 1e240


class _Factors(NamedTuple):
    """Users' A = gram · (head headᵀ ⊗ moment/spread) and b = right · head sideᵀ, one row per user.

    Heads and sides have norm one, moments the norm ``spread``. The norms ``gram``, ``right`` and ``both`` are zero for
    a user with too few rows, or with numbers that are not finite.
    """

    head: Array
    moment: Array
    spread: Array
    side: Array
    gram: Array
    right: Array
    both: Array


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
        head = fit_head(whitened, targets, self.basis)[:-1]
        user = self._factors_of(whitened[None], targets[None], head[None])
        if not user.both[0] > 0.0:
            return np.zeros(self.coordinates)
        gram = user.gram[0] * np.kron(np.outer(user.head, user.head), user.moment[0] / user.spread[0])
        packed = {"gram": [pack_symmetric(gram)], "right": [user.right[0] * np.outer(user.head, user.side).ravel()]}
        packed["both"] = packed["gram"] + packed["right"]
        return np.concatenate(packed[self.parts])

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return norms without a Kronecker product: ‖vvᵀ ⊗ S‖ = ‖v‖²‖S‖ and ‖v ⊗ b‖ = ‖v‖‖b‖."""
        norms = np.zeros(len(offsets) - 1)
        for users, some in self._factors(X, y, offsets):
            norms[users] = getattr(some, self.parts)
        return norms

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Return Σ (vvᵀ) ⊗ XᵀX as one matrix product over chunks of users, without a Kronecker product per user."""
        if self.parts != "both":
            return super().block_sum(X, y, offsets, bound)
        d, k = self.basis.shape
        first, second = np.triu_indices(k)  # vvᵀ is symmetric
        gram_sum, right_sum = np.zeros((len(first), d * d)), np.zeros((k, d))
        for _, some in self._factors(X, y, offsets):
            weights = clip_factors(some.both, bound)
            outers = some.head[:, first] * some.head[:, second]
            gram_sum += (outers * (weights * some.gram / some.spread)[:, None]).T @ some.moment.reshape(-1, d * d)
            right_sum += (some.head * (weights * some.right)[:, None]).T @ some.side
        whole = np.empty((k, d, k, d))
        whole[first, :, second] = whole[second, :, first] = gram_sum.reshape(-1, d, d)
        return np.concatenate([pack_symmetric(whole.reshape(k * d, k * d)), right_sum.ravel()])

    def _factors(self, X: Rows, y: Rows, offsets: Offsets) -> Iterator[tuple[Offsets, _Factors]]:
        """Yield positions and factors of users who have the same number of rows, a few at a time.

        Each user's products are separate matrix products, so no number depends on the other users.
        """
        whitened, targets = self.whitening.transform(X), y.astype(np.float64)
        heads = self._heads(whitened, targets, offsets)
        counts = np.diff(offsets)
        for count in np.unique(counts):
            alike = np.flatnonzero(counts == count)
            together = max(1, min(_TOGETHER, _CELLS // max(1, count * X.shape[1])))
            for start in range(0, len(alike), together):
                users = alike[start : start + together]
                rows = offsets[users][:, None] + np.arange(count)
                yield users, self._factors_of(whitened[rows], targets[rows], heads[users])

    def form_for(self, n_users: int, n_features: int) -> NormalEquations:
        """Return the form to use for this number of users; it depends on public sizes only."""
        if type(self) is not NormalEquations or not few(n_users, n_features):
            return self
        return _EquationsOfFew(**{field.name: getattr(self, field.name) for field in fields(self)})

    def _heads(self, whitened: Array, targets: Array, offsets: Offsets) -> Array:
        return fit_heads(whitened, targets, offsets, self.basis)[:, :-1]

    def _factors_of(self, rows: Array, targets: Array, heads: Array) -> _Factors:
        """Return factors of norm one and the norms of their products, from rows as users × rows × features."""
        count = rows.shape[1]
        turned = rows.transpose(0, 2, 1)
        head, size = _units(heads)
        moment = turned @ rows.copy()  # NumPy uses a slower product if both arguments are the same memory
        spread = _norms(moment.reshape(len(moment), -1))
        side, pull = _units((turned @ targets[:, :, None])[:, :, 0])
        with np.errstate(over="ignore", invalid="ignore"):
            gram = size * size * (spread / (max(count, 1) * self.gram_scale))
            right = size * (pull / (max(count, 1) * self.right_scale))
            both = np.hypot(gram, right)
        usable = np.isfinite(both) & (spread > _LEAST_SPREAD) & (spread < _MOST_SPREAD) & (count > self.basis.shape[1])
        moment[~usable], spread[~usable] = 0.0, 1.0
        return _Factors(head, moment, spread, side, *(np.where(usable, norms, 0.0) for norms in (gram, right, both)))

    def solve(self, released: Array, sigma: float) -> Array:
        """Return the basis that solves the noisy equations."""
        d, k = self.basis.shape
        size = d * k
        gram = unpack_symmetric(released[: size * (size + 1) // 2], size) * self.gram_scale
        right = released[size * (size + 1) // 2 :] * self.right_scale
        solution = solve_equations(gram, right, sigma * self.gram_scale, k)
        return orthonormal(solution.reshape(k, d).T)[0]


@dataclass(frozen=True)
class _EquationsOfFew(NormalEquations):
    """The same with heads fitted by array operations, for few users, for whom compiling would take longer."""

    def _heads(self, whitened: Array, targets: Array, offsets: Offsets) -> Array:
        return fit_few_heads(whitened, targets, offsets, self.basis)[:, :-1]


def solve_equations(gram: Array, right: Array, noise: float, rank: int) -> Array:
    """Solve noisy normal equations of a basis in whitened coordinates; ``noise`` is the matrix's entrywise noise.

    With whitened features the matrix is close to H ⊗ I, where H is the heads' second moment; it contains H d times. The
    deviation from H ⊗ I is denoised by its spectrum. Eigenvalues are floored at the noise level.
    """
    size = len(gram)
    d = size // rank
    kronecker = np.kron(np.einsum("adbd->ab", gram.reshape(rank, d, rank, d)) / d, np.eye(d))
    values, vectors = np.linalg.eigh(gram - kronecker)
    denoised = kronecker + (vectors * denoise_spectrum(values, noise * math.sqrt(size / 2.0))) @ vectors.T
    values, vectors = np.linalg.eigh(denoised)
    values = np.maximum(values, max(noise, 1e-3 * float(values[-1]), np.finfo(float).tiny))
    return np.asarray(vectors @ ((vectors.T @ right) / values))


def _units(arrays: Array) -> tuple[Array, Array]:
    """Scale each row to norm one; return rows and norms. Zeros stay zeros; NaN if an entry is not finite."""
    norms = norms_of(arrays)
    usable = np.isfinite(norms) & (norms > 0)
    largest = np.where(usable, np.max(np.abs(arrays), axis=1, initial=0.0), 1.0)
    scaled = np.where(usable[:, None], arrays, 0.0) / largest[:, None]
    return scaled / np.where(usable, norms / largest, 1.0)[:, None], norms


def _norms(rows: Array) -> Array:
    """Return the same as :func:`norms_of`, in one pass over rows whose squares neither overflow nor underflow."""
    squares = np.einsum("ij,ij->i", rows, rows)
    norms: Array = np.sqrt(squares)
    extreme = ~((squares > 1e-200) & (squares < 1e200))
    norms[extreme] = norms_of(rows[extreme])
    return norms
