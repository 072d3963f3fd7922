"""What one user contributes to AMHT-LRS: the basis correction from its residual, its sparse part subtracted.

In a round every user fits weights w and a few personal coordinates b to the current basis U
(:mod:`tacitly.methods.low_rank_sparse.kernels`); the residual is e = y − X(Uw + b). The user's part of the
least-squares problem in U is A = wwᵀ ⊗ XᵀX/m and V = Xᵀe wᵀ/m (AMHT-LRS, Pal et al. 2024, equation 7, for the change of
U). There are two forms:

* :class:`SparseStep`, the O(mdr) update of Remark 1. In whitened coordinates XᵀX/m is close to a multiple of the
  identity, so wwᵀ replaces A: the contribution is (g wᵀ/c, wwᵀ)/ν with g = Xᵀe/(m − r − k), a vector of norm one.
* :class:`SparseEquations`, the exact equations: (A/c_A, V/c_V), clipped together to norm one. One weight per user on
  both sides of the equations reweights users and does not bias the solution; clipping x, y and w separately does.

Releases of both. Unit: the user. A contribution is a function of one user's rows and of public fields, and its norm is
at most one whatever the rows: sensitivity 1 (zero-out), 2 (replace-one: V can point either way). One Gaussian event per
round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size, read_only
from tacitly.federation.base import Query
from tacitly.linalg import pack_symmetric, unpack_symmetric
from tacitly.methods.fedrep.kernels import add_gains, add_steps, mean_row, mean_square, scale_row, weigh
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.low_rank_sparse.heads import NONE, Sparsity, choose_size, write_inverse_sizes
from tacitly.methods.low_rank_sparse.kernels import fit_users, group_end, layout_of, workspace_for
from tacitly.methods.low_rank_sparse.lane_kernels import Workspace, kernel
from tacitly.methods.shared.whitening import Whitening, user_chunks
from tacitly.privacy.clipping import LEAST, clip_factor
from tacitly.simd.lanes import aligned
from tacitly.simd.registers import load, padded, store
from tacitly.simd.top_k import LANES

_MOST_SWAPS = 1 << 10  # limits the work that a message from the network can cause
# Standard errors by which personal coordinates must predict better than none before a user subtracts them in a round. A
# head can be weighed against the population's later; a basis that was learned beside coordinates that fit noise cannot.
_DOUBT = 4.0
_STAGES = 2  # a round's fit need not be the best: nearly right supports suffice, and the next round refits them


@dataclass(frozen=True)
class SparseStep(BasisStep):
    """One user's correction of the basis and its weights, with the user's sparse part subtracted.

    ``shared_weight`` fixes every user's weight on the only direction at one; the basis is then the central model.
    ``swaps`` is how often a support may be revised (:mod:`tacitly.methods.low_rank_sparse.kernels`).
    """

    sparsity: Sparsity = NONE
    shared_weight: bool = False
    swaps: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_model(self)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the unit vector (gwᵀ/c, wwᵀ)/ν; zero for a user with no more rows than unknowns."""
        fit = fit_one(X, y, self.whitening.to_raw(self.basis), self)
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

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the ratios of corrections to heads, which the scale c has to follow."""
        sizes, rows = np.zeros(len(offsets) - 1), np.ascontiguousarray(X)
        total = self._empty_sums(1, rows.dtype)
        self._add(rows, np.ascontiguousarray(y), offsets, max(1, len(sizes)), 1.0, total, sizes)
        return sizes

    def plain_norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return :meth:`norms`, because a contribution's own norm is always one."""
        return self.norms(X, y, offsets)

    def _add_blocks(self, X: Rows, y: Rows, offsets: Offsets, size: int, weight: float, total: Rows) -> None:
        self._add(X, y, offsets, size, weight, total, np.zeros(len(offsets) - 1))

    def _add(self, X: Rows, y: Rows, offsets: Offsets, size: int, weight: float, total: Rows, ratios: Array) -> None:
        model = (self.centered, self.shared_weight, self.sparsity.choices, (_STAGES, self.swaps))
        _steps(
            *(read_only(X), read_only(y), offsets, size, *self._kernel_arguments(X.dtype), self.scale, weight, *model),
            *(_workspace(self, offsets, X), ratios, total),
        )


@dataclass(frozen=True)
class SparseEquations(Query):
    """One user's normal equations of the basis; ``parts`` selects the matrix, the right-hand side or both."""

    basis: Array  # whitened coordinates
    whitening: Whitening
    sparsity: Sparsity
    gram_scale: float = 1.0
    right_scale: float = 1.0
    parts: str = "both"
    centered: bool = False
    shared_weight: bool = False
    swaps: int = 2

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, self.whitening.scale.size, None)
        check_model(self)
        if self.parts not in ("gram", "right", "both"):
            raise ValueError(f"parts must be 'gram', 'right' or 'both'. Found {self.parts!r}.")

    @property
    def coordinates(self) -> int:
        """Entries of Sym(r) ⊗ Sym(d), the space that A lies in, of a d×r matrix, or of both."""
        d, r = self.basis.shape
        gram = r * (r + 1) // 2 * (d * (d + 1) // 2)
        return int({"gram": gram, "right": d * r, "both": gram + d * r}[self.parts])

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return (A/c_A, V/c_V), packed so that norms are preserved and noise has the same symmetries."""
        fit = fit_one(X, y, self.whitening.to_raw(self.basis), self)
        if fit is None:
            return np.zeros(self.coordinates)
        head, residual, _ = fit
        rows = self.whitening.transform(X - X.mean(axis=0) if self.centered else X)
        moment = rows.T @ rows / len(rows)
        gram = np.kron(pack_symmetric(np.outer(head, head)), pack_symmetric(moment)) / self.gram_scale
        right = np.outer(head, rows.T @ residual).ravel() / (len(rows) * self.right_scale)
        return {"gram": gram, "right": right, "both": np.concatenate([gram, right])}[self.parts]

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return norms without a Kronecker product: ‖wwᵀ ⊗ S‖ = ‖w‖²‖S‖ and ‖w ⊗ v‖ = ‖w‖‖v‖."""
        parts = [self._sizes_of(gram, right) for _, _, gram, _, right in self._users(X, y, offsets)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Return Σ (wwᵀ) ⊗ XᵀX as one matrix product over chunks of users, without a Kronecker product per user."""
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
        """Split the release into the dr×dr matrix and the right-hand side of the equations, in their own scales."""
        d, r = self.basis.shape
        size = self.coordinates - d * r
        blocks = released[:size].reshape(r * (r + 1) // 2, -1) * self.gram_scale
        full = np.zeros((r, r, d, d))
        for i, (a, b) in enumerate(zip(*np.triu_indices(r), strict=True)):
            block = unpack_symmetric(blocks[i], d) * (1.0 if a == b else math.sqrt(0.5))
            full[a, b] = full[b, a] = block
        return full.transpose(0, 2, 1, 3).reshape(d * r, d * r), released[size:] * self.right_scale

    def _sizes_of(self, gram: Array, right: Array) -> Array:
        return {"gram": gram, "right": right, "both": np.hypot(gram, right)}[self.parts]

    def _users(self, X: Rows, y: Rows, offsets: Offsets) -> Iterator[tuple[Array, Array, Array, Array, Array]]:
        """Yield factors of norm one of a few users at a time, and the norms of their products (zero without a fit)."""
        d, r = self.basis.shape
        basis = padded(self.whitening.to_raw(self.basis).T, X.dtype)
        for chunk, targets, starts in user_chunks(np.ascontiguousarray(X), np.ascontiguousarray(y), offsets, 32):
            n = len(starts) - 1
            heads, moments, sides = np.zeros((n, r)), np.zeros((n, d * (d + 1) // 2)), np.zeros((n, d))
            gram, right = np.zeros(n), np.zeros(n)
            _equations(
                *(chunk, self.whitening.transform(chunk), targets, starts, basis),
                *((self.gram_scale, self.right_scale), self.centered, self.shared_weight, self.sparsity.choices),
                *((_STAGES, self.swaps), _workspace(self, starts, chunk), heads, moments, gram, sides, right),
            )
            yield heads, moments, gram, sides, right


class SparseModel(Protocol):
    """The public fields that define the model users fit in a round."""

    @property
    def basis(self) -> Array: ...  # noqa: D102
    @property
    def sparsity(self) -> Sparsity: ...  # noqa: D102
    @property
    def shared_weight(self) -> bool: ...  # noqa: D102
    @property
    def centered(self) -> bool: ...  # noqa: D102
    @property
    def swaps(self) -> int: ...  # noqa: D102


def check_model(query: SparseModel) -> None:
    """Raise unless the fields of the model are consistent: compiled loops do not check bounds."""
    check_shape("basis", query.basis, None, 1 if query.shared_weight else None)
    check_size("sparsity", query.sparsity.most + 1, len(query.basis) + 1)
    check_size("swaps", query.swaps + 1, _MOST_SWAPS)


def fit_one(X: Rows, y: Rows, basis: Array, query: SparseModel) -> tuple[Array, Array, int] | None:
    """Fit one user; return weights, residual and residual degrees of freedom, or None if there are none left."""
    rows, targets = read_only(np.ascontiguousarray(X)), read_only(np.ascontiguousarray(y))
    offsets = np.array([0, len(X)])
    check_shape("X", rows, None, len(basis))
    work = _workspace(query, offsets, rows)
    public = (padded(basis.T, rows.dtype), query.shared_weight, query.centered, np.zeros((len(basis), LANES)))
    group = np.zeros((4, LANES), dtype=np.int64)
    effort = (_STAGES, query.swaps)
    _fit_group(rows, targets, offsets, 0, 1, *public, query.sparsity.choices, effort, work, group)
    at, step = layout_of(len(rows), 0)
    head = np.ones(1) if query.shared_weight else work.coefficients[1 : 1 + basis.shape[1], 0]
    free = int(group[3, 0])
    return (head, work.left[at::step][: len(rows)], free) if free > 0 else None


def _workspace(query: SparseModel, offsets: Offsets, X: Rows) -> Workspace:
    fixed = 0 if query.shared_weight else query.basis.shape[1]
    return workspace_for(offsets, X, fixed, query.sparsity.most)


@kernel
def _fit_group(X, y, offsets, start, stop, basis, shared, centered, scale, sizes, effort, work, group):  # type: ignore[no-untyped-def]
    """Fit a group of users as a round does; write each user's residual degrees of freedom (zero: no fit).

    Coordinates are compared in units of the user's own columns, written to ``scale``: the released sizes of columns
    carry noise, by which users would take one column for another.
    """
    fixed, n = work.fixed.size + centered, stop - start
    first, last, wanted, free, size = group[0], group[1], group[2], group[3], work.size
    for u in range(LANES):
        first[u] = last[u] = wanted[u] = free[u] = 0
    for u in range(n):
        if offsets[start + u + 1] - offsets[start + u] > fixed:
            first[u], last[u] = offsets[start + u], offsets[start + u + 1]
            write_inverse_sizes(X, first[u], last[u], centered, scale, u)
            wanted[u] = choose_size(X, first[u], last[u], y, basis, shared, centered, scale, u, sizes, _DOUBT, work)
    fit_users(X, y, first, last, n, basis, shared, centered, scale, wanted, effort[0], effort[1], work)
    for u in range(n):
        free[u] = max(0, last[u] - first[u] - fixed - size[u])


@kernel
def _steps(  # type: ignore[no-untyped-def]
    X, y, offsets, size, basis, scale, directions, gains, metric, c, weight, centered, shared, sizes, effort, work,
    ratios, out,
):  # fmt: skip
    """Add every user's contribution, of norm ``weight``, to its block; write its ratio of correction to head."""
    k, n, lanes, rows = metric.shape[0], offsets.size - 1, np.zeros((X.shape[1], LANES)), work.pull
    errors, mean = np.zeros_like(work.small), np.zeros((1, basis.shape[1]), dtype=X.dtype)
    squared, group = (scale * scale).astype(X.dtype), np.zeros((4, LANES), dtype=np.int64)
    free, coefficients = group[3], work.coefficients
    heads, measured, weights = np.ones((k, LANES)), aligned(basis.shape[0], LANES), aligned(basis.shape[0], LANES)
    lengths, norms, along = np.zeros(LANES), np.zeros(LANES), aligned(directions.shape[0], LANES)
    start = np.int64(0)  # a literal would compile what is called twice
    while start < n:
        stop = group_end(offsets, start, min(n, start - start % size + size))
        _fit_group(X, y, offsets, start, stop, basis, shared, centered, lanes, sizes, effort, work, group)
        for u in range(LANES):
            lengths[u] = norms[u] = 0.0
            if free[u] > 0:
                first, last = offsets[start + u], offsets[start + u + 1]
                if centered:
                    mean_row(X, first, last, errors, mean)
                lengths[u] = 1.0 / (c * free[u] * mean_square(X, first, last, mean, squared))
                norms[u] = scale_row(rows, u, lengths[u], scale)
        for b in range(0 if shared else k):
            store(heads, b * LANES, load(coefficients, (1 + b) * LANES))
        add_gains(rows, directions, gains, along, norms)
        weigh(heads, metric, lengths, norms, weight, measured, weights)
        for u in range(stop - start):
            square = 0.0
            for b in range(k):
                square += measured[b, u] * measured[b, u]
            ratios[start + u] = math.sqrt(max(norms[u], 0.0) / square) if square > 0.0 else 0.0
        add_steps(measured, weights, k, rows, scale.size, out, start // size)
        start = stop


@kernel
def _equations(  # type: ignore[no-untyped-def]
    X, whitened, y, offsets, basis, scales, centered, shared, sizes, effort, work, heads, moments, grams, sides,
    rights,
):  # fmt: skip
    """Write each user's head, second moment and right-hand side, scaled to norm one, and norms of their products."""
    d, k, n, lanes = X.shape[1], heads.shape[1], offsets.size - 1, np.zeros((X.shape[1], LANES))
    moment, mean, group = np.empty((d, d)), np.zeros(d), np.zeros((4, LANES), dtype=np.int64)
    free, coefficients, residual = group[3], work.coefficients, work.left
    start = np.int64(0)  # a literal would compile what is called twice
    while start < n:
        stop = group_end(offsets, start, n)
        _fit_group(X, y, offsets, start, stop, basis, shared, centered, lanes, sizes, effort, work, group)
        for i in range(start, stop):
            first, last, u = offsets[i], offsets[i + 1], i - start
            m = last - first
            if free[u] == 0:
                continue
            at, step = layout_of(m, u)
            for b in range(k):
                heads[i, b] = 1.0 if shared else coefficients[1 + b, u]
            if centered:
                mean[:] = 0.0
                for j in range(first, last):
                    for a in range(d):
                        mean[a] += whitened[j, a] / m
            moment[:] = 0.0
            for j in range(first, last):
                left = residual[at + (j - first) * step]
                for a in range(d):
                    whitened[j, a] -= mean[a]
                for a in range(d):
                    value = whitened[j, a]
                    for b in range(a + 1):
                        moment[a, b] += value * whitened[j, b]
                    sides[i, a] += value * left
            entry = 0
            for a in range(d):
                moments[i, entry] = moment[a, a]
                entry += 1
                for b in range(a + 1, d):
                    moments[i, entry] = math.sqrt(2.0) * moment[b, a]
                    entry += 1
            size, spread, pull = _to_unit(heads[i]), _to_unit(moments[i]), _to_unit(sides[i])
            gram, right = size * size * (spread / (m * scales[0])), size * (pull / (m * scales[1]))
            if math.isfinite(gram) and math.isfinite(right):
                grams[i], rights[i] = gram, right
        start = stop


@kernel
def _to_unit(vector):  # type: ignore[no-untyped-def]
    """Scale to norm one in place and return the norm; write zeros if the norm is zero or (returning NaN) not finite."""
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
