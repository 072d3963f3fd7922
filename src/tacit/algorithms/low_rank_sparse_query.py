"""What users send for low rank plus sparse: the correction their residual asks of the basis, their quirks taken out.

In a round every user fits weights w and a few coordinates b of its own to the current basis U
(:mod:`tacit.algorithms.sparse_kernels`) and sees what is left, e = y − X(Uw + b). The user's part of the least-squares
problem in U is A = wwᵀ ⊗ XᵀX/m and V = Xᵀe wᵀ/m (paper 004, equation 7, for the change of U). Two ways to send it:

* :class:`SparseStep`, the O(mdr) update of Remark 1. In whitened coordinates XᵀX/m is close to a multiple of the
  identity, so wwᵀ stands for A: the user sends (g wᵀ/c, wwᵀ)/ν with g = Xᵀe/(m − r − k), a vector of norm one.
* :class:`SparseEquations`, the exact equations: (A/c_A, V/c_V), clipped together to norm one. One weight a user on both
  sides of the equations reweights users and does not bias the solution, which clipping x, y and w separately does.

Sensitivity 1 (zero-out) and 2 (replace-one: V may turn around) for both: a user's vector is a function of its own rows
and of public fields, and its norm is at most one whatever the rows. One Gaussian event a round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tacit.algorithms.fedrep import BasisStep
from tacit.algorithms.kernels import mean_row, mean_square
from tacit.algorithms.sparse_heads import NONE, Sparsity, choose_size
from tacit.algorithms.sparse_kernels import Desk, fit_user, kernel, make_desk
from tacit.algorithms.whitening import Whitening, user_chunks
from tacit.compiled import padded
from tacit.federation.base import Array, Query, Rows
from tacit.linalg import pack_symmetric, unpack_symmetric
from tacit.privacy.clipping import LEAST, clip_factor

# A round's fit need not be the best one: supports that are nearly right do, and the next round sees them again.
_STAGES, _SWAPS = 2, 2


@dataclass(frozen=True)
class SparseStep(BasisStep):
    """What one user asks the basis to change, for how much of the user it speaks, with the user's quirks taken out.

    ``shared_weight`` fixes everybody's weight on the only direction at one; the basis is then the central model itself.
    """

    sparsity: Sparsity = NONE
    shared_weight: bool = False

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the unit vector (gwᵀ/c, wwᵀ)/ν, or zero from a user with no more rows than unknowns."""
        fit = fit_one(X, y, self.whitening.to_raw(self.basis), self.whitening.scale, self)
        if fit is None:
            return np.zeros(self.coordinates)
        head, residual, free = fit
        rows = X.astype(np.float64)
        mean = rows.mean(axis=0) if self.centered else 0.0
        energy = np.square((rows - mean)[::4] * self.whitening.scale).mean()
        correction = self.whitening.transform((rows.T @ residual)[None])[0] / (free * energy)
        measured = head @ self.head_metric
        size = float(np.linalg.norm(measured))
        if not (math.isfinite(size) and size**2 > LEAST and energy > 0):
            return np.zeros(self.coordinates)
        unit, pull = measured / size, correction / (self.scale * size)
        norm = math.sqrt(1.0 + float(pull @ pull))
        joint = np.concatenate([np.outer(pull, unit).ravel(), pack_symmetric(np.outer(unit, unit))])
        return joint / norm if math.isfinite(norm) else np.zeros(self.coordinates)

    def norms(self, X: Rows, y: Rows, offsets: npt.NDArray[np.int64]) -> Array:
        """How large corrections are next to the heads: what the scale c has to follow."""
        sizes = np.zeros(len(offsets) - 1)
        self._sums(X, y, offsets, 1.0, max(1, len(sizes)), sizes)
        return sizes

    def block_sums(self, X: Rows, y: Rows, offsets: npt.NDArray[np.int64], bound: float, size: int) -> Array:
        """Return the sums of several blocks of ``size`` users, a row a block: rows are read once from memory."""
        return self._sums(X, y, offsets, bound, size, np.zeros(len(offsets) - 1))

    def _sums(self, X: Rows, y: Rows, offsets: npt.NDArray[np.int64], bound: float, size: int, sizes: Array) -> Array:
        d, k = self.basis.shape
        X, y = np.ascontiguousarray(X), np.ascontiguousarray(y)
        blocks = max(1, -(-(len(offsets) - 1) // size))
        total = np.zeros((blocks, k, d + k))
        basis, scale, directions, gains, metric = self._kernel_arguments(X.dtype)
        _steps(
            *(X, y, offsets, size, basis, scale, directions, gains, metric, self.scale, clip_factor(1.0, bound)),
            *(self.centered, self.shared_weight, self.sparsity.sizes, _desk(self, offsets, X), sizes, total),
        )
        step = self.whitening.transform(total[:, :, :d].reshape(blocks * k, d)).reshape(blocks, k, d)
        moments = [pack_symmetric(block[:, d:]) for block in total]
        return np.hstack([step.transpose(0, 2, 1).reshape(blocks, -1), moments])


@dataclass(frozen=True)
class SparseEquations(Query):
    """One user's normal equations of the basis; ``parts`` chooses which of the two to contribute."""

    basis: Array  # whitened coordinates
    whitening: Whitening
    sparsity: Sparsity
    gram_scale: float = 1.0
    right_scale: float = 1.0
    parts: str = "both"
    centered: bool = False
    shared_weight: bool = False

    @property
    def coordinates(self) -> int:
        """Entries of Sym(r) ⊗ Sym(d), the space that A lies in, and of a d×r matrix; or of one of them."""
        d, r = self.basis.shape
        gram = r * (r + 1) // 2 * (d * (d + 1) // 2)
        return int({"gram": gram, "right": d * r, "both": gram + d * r}[self.parts])

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return (A/c_A, V/c_V), packed so that its norm is theirs and noise has their symmetries."""
        fit = fit_one(X, y, self.whitening.to_raw(self.basis), self.whitening.scale, self)
        if fit is None:
            return np.zeros(self.coordinates)
        head, residual, _ = fit
        rows = self.whitening.transform(X - X.mean(axis=0) if self.centered else X)
        moment = rows.T @ rows / len(rows)
        gram = np.kron(pack_symmetric(np.outer(head, head)), pack_symmetric(moment)) / self.gram_scale
        right = np.outer(head, rows.T @ residual).ravel() / (len(rows) * self.right_scale)
        return {"gram": gram, "right": right, "both": np.concatenate([gram, right])}[self.parts]

    def norms(self, X: Rows, y: Rows, offsets: npt.NDArray[np.int64]) -> Array:
        """‖wwᵀ ⊗ S‖ = ‖w‖²‖S‖ and ‖w ⊗ v‖ = ‖w‖‖v‖: no Kronecker product."""
        parts = [self._sizes_of(gram, right) for _, _, gram, _, right in self._users(X, y, offsets)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def block_sum(self, X: Rows, y: Rows, offsets: npt.NDArray[np.int64], bound: float) -> Array:
        """Σ (wwᵀ) ⊗ XᵀX as one matrix product over chunks of users: no Kronecker product a user."""
        d, r = self.basis.shape
        upper = np.triu_indices(r)
        root = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
        grams, rights = np.zeros((len(root), d * (d + 1) // 2)), np.zeros((r, d))
        for heads, moments, gram, sides, right in self._users(X, y, offsets):
            sizes = self._sizes_of(gram, right)
            weights = np.array([clip_factor(float(size), bound) for size in sizes])
            weighted = np.where(weights > 0, weights * gram, 0.0)[:, None] * root
            grams += (weighted * heads[:, upper[0]] * heads[:, upper[1]]).T @ moments
            rights += (np.where(weights > 0, weights * right, 0.0)[:, None] * heads).T @ sides
        if self.parts == "gram":
            return grams.ravel()
        return rights.ravel() if self.parts == "right" else np.concatenate([grams.ravel(), rights.ravel()])

    def split(self, released: Array) -> tuple[Array, Array]:
        """Return what was released as the dr×dr matrix and the right-hand side of the equations, in their scales."""
        d, r = self.basis.shape
        size = self.coordinates - d * r
        blocks = released[:size].reshape(r * (r + 1) // 2, -1) * self.gram_scale
        full = np.zeros((r, r, d, d))
        for place, (a, b) in enumerate(zip(*np.triu_indices(r), strict=True)):
            block = unpack_symmetric(blocks[place], d) * (1.0 if a == b else math.sqrt(0.5))
            full[a, b] = full[b, a] = block
        return full.transpose(0, 2, 1, 3).reshape(d * r, d * r), released[size:] * self.right_scale

    def _sizes_of(self, gram: Array, right: Array) -> Array:
        return {"gram": gram, "right": right, "both": np.hypot(gram, right)}[self.parts]

    def _users(
        self, X: Rows, y: Rows, offsets: npt.NDArray[np.int64]
    ) -> Iterator[tuple[Array, Array, Array, Array, Array]]:
        """Factors of norm one of a few users at a time, and how large their products are: zero without a fit."""
        d, r = self.basis.shape
        basis = padded(self.whitening.to_raw(self.basis).T, X.dtype)
        for mine, targets, starts in user_chunks(np.ascontiguousarray(X), np.ascontiguousarray(y), offsets, 32):
            n = len(starts) - 1
            heads, moments, sides = np.zeros((n, r)), np.zeros((n, d * (d + 1) // 2)), np.zeros((n, d))
            gram, right = np.zeros(n), np.zeros(n)
            _equations(
                *(mine, self.whitening.transform(mine), targets, starts, basis, self.whitening.scale, self.gram_scale),
                *(self.right_scale, self.centered, self.shared_weight, self.sparsity.sizes),
                *(_desk(self, starts, mine), heads, moments, gram, sides, right),
            )
            yield heads, moments, gram, sides, right


class Asks(Protocol):
    """What a query must say about the model its users fit."""

    @property
    def basis(self) -> Array: ...  # noqa: D102
    @property
    def sparsity(self) -> Sparsity: ...  # noqa: D102
    @property
    def shared_weight(self) -> bool: ...  # noqa: D102
    @property
    def centered(self) -> bool: ...  # noqa: D102


def fit_one(X: Rows, y: Rows, basis: Array, scale: Array, query: Asks) -> tuple[Array, Array, int] | None:
    """One user's weights, residual and rows to spare, by the compiled fit; None where there are none to spare."""
    rows = np.ascontiguousarray(X)
    desk = _desk(query, np.array([0, len(rows)]), rows)
    public = (padded(basis.T, rows.dtype), query.shared_weight, query.centered, scale, query.sparsity.sizes)
    free = len(rows) - (desk.coefficients.size - desk.support.size) - query.centered
    if free > 0:
        free -= _fit_within(rows, 0, len(rows), np.ascontiguousarray(y), *public, desk)
    head = np.ones(1) if query.shared_weight else desk.coefficients[: basis.shape[1]]
    return (head, desk.left[: len(rows)], free) if free > 0 else None


def _desk(query: Asks, offsets: npt.NDArray[np.int64], X: Rows) -> Desk:
    fixed = 0 if query.shared_weight else query.basis.shape[1]
    return make_desk(int(np.diff(offsets).max()), X.shape[1], fixed, query.sparsity.most, X.dtype)


@kernel
def _fit_within(X, first, last, y, basis, shared, centered, scale, sizes, desk):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fit one user the way a round does; return the number of coordinates chosen."""
    wanted = choose_size(X, first, last, y, basis, shared, centered, scale, sizes, desk)
    return fit_user(X, first, last, y, basis, shared, centered, scale, wanted, _STAGES, _SWAPS, desk)


@kernel
def _steps(  # type: ignore[no-untyped-def]  # pragma: no cover
    X, y, offsets, size, basis, scale, directions, gains, metric, c, weight, centered, shared, sizes, desk, ratios, out
):
    """Add every user's contribution, of norm ``weight``, to its block; note how large its correction is."""
    k, d = metric.shape[0], X.shape[1]
    r = 0 if shared else k
    coefficients, ones = desk.coefficients, np.zeros_like(desk.small)
    mean, squared = np.zeros((1, basis.shape[1]), dtype=X.dtype), (scale * scale).astype(X.dtype)
    head, correction = np.ones(k), np.empty(d)
    for i in range(offsets.size - 1):
        first, last = offsets[i], offsets[i + 1]
        if last - first <= r + centered:
            continue
        count = _fit_within(X, first, last, y, basis, shared, centered, scale, sizes, desk)
        free = last - first - r - centered - count
        if centered:
            mean_row(X, first, last, ones, mean)
        length = 1.0 / (c * free * mean_square(X, first, last, mean, squared))
        if not (free > 0 and math.isfinite(length) and length > 0.0):
            continue
        for b in range(k):
            head[b] = 0.0
            for p in range(k):
                head[b] += (1.0 if shared else coefficients[p]) * metric[p, b]
        total = 0.0
        for b in range(k):
            total += head[b] * head[b]
        if not (math.isfinite(total) and total > LEAST):
            continue
        norm = math.sqrt(total)
        ratio = 0.0
        for a in range(d):
            correction[a] = desk.pull[0, a] * length / norm
            ratio += (correction[a] * scale[a]) * (correction[a] * scale[a])
        for q in range(gains.size):
            along = 0.0
            for a in range(d):
                along += directions[q, a] * correction[a]
            ratio += gains[q] * along * along
        if not math.isfinite(ratio):
            continue
        ratios[i] = math.sqrt(max(ratio, 0.0))
        factor = weight / math.sqrt(1.0 + max(ratio, 0.0))
        block = i // size
        for b in range(k):
            part = factor * head[b] / norm
            for a in range(d):
                out[block, b, a] += part * correction[a]
            for p in range(k):
                out[block, b, d + p] += part * head[p] / norm


@kernel
def _equations(  # type: ignore[no-untyped-def]  # pragma: no cover
    X,
    whitened,
    y,
    offsets,
    basis,
    scale,
    gram_scale,
    right_scale,
    centered,
    shared,
    sizes,
    desk,
    heads,
    moments,
    grams,
    sides,
    rights,
):
    """Write each user's head, second moment and pull as directions of norm one, and the sizes of their products."""
    d, k = X.shape[1], heads.shape[1]
    r = 0 if shared else k
    coefficients, left = desk.coefficients, desk.left
    moment, mean = np.empty((d, d)), np.zeros(d)
    for i in range(offsets.size - 1):
        first, last = offsets[i], offsets[i + 1]
        m = last - first
        if m <= r + centered:
            continue
        count = _fit_within(X, first, last, y, basis, shared, centered, scale, sizes, desk)
        if m - r - centered - count <= 0:
            continue
        for b in range(k):
            heads[i, b] = 1.0 if shared else coefficients[b]
        if centered:
            mean[:] = 0.0
            for j in range(first, last):
                for a in range(d):
                    mean[a] += whitened[j, a] / m
        moment[:] = 0.0
        for j in range(first, last):
            for a in range(d):
                whitened[j, a] -= mean[a]
            for a in range(d):
                value = whitened[j, a]
                for b in range(a + 1):
                    moment[a, b] += value * whitened[j, b]
                sides[i, a] += value * left[j - first]
        place = 0
        for a in range(d):
            moments[i, place] = moment[a, a]
            place += 1
            for b in range(a + 1, d):
                moments[i, place] = math.sqrt(2.0) * moment[b, a]
                place += 1
        size, spread, pull = _to_unit(heads[i]), _to_unit(moments[i]), _to_unit(sides[i])
        gram, right = size * size * (spread / (m * gram_scale)), size * (pull / (m * right_scale))
        if math.isfinite(gram) and math.isfinite(right):
            grams[i], rights[i] = gram, right


@kernel
def _to_unit(vector):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Scale to norm one in place and return the norm; zeros (and NaN) where there is no usable norm."""
    total = 0.0
    for a in range(vector.size):
        total += vector[a] * vector[a]
    if not (math.isfinite(total) and total > LEAST):
        bad = not math.isfinite(total)
        vector[:] = 0.0
        return math.nan if bad else 0.0
    norm = math.sqrt(total)
    for a in range(vector.size):
        vector[a] /= norm
    return norm
