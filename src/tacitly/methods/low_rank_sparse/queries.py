"""A user's contribution to AMHT-LRS: the basis correction from the residual, with the sparse part subtracted.

In a round every user fits weights w and a few personal coordinates b to the current basis U
(:mod:`tacitly.methods.low_rank_sparse.kernels`); the residual is e = y − X(Uw + b). The user's part of the
least-squares problem in U is A = wwᵀ ⊗ XᵀX/m and V = Xᵀe wᵀ/m (AMHT-LRS, Pal et al. 2024, equation 7, for the change of
U). There are two forms:

* :class:`SparseStep`, the O(mdr) update of Remark 1. In whitened coordinates XᵀX/m is close to a multiple of the
  identity, so wwᵀ replaces A: the contribution is (g wᵀ/c, wwᵀ)/ν with g = Xᵀe/(m − r − k), a vector of norm one.
* :class:`SparseEquations`, the exact equations: (A/c_A, V/c_V), clipped together to norm one. One weight per user on
  both sides of the equations reweights users and does not bias the solution; clipping x, y and w separately does.

Releases of both. Unit: the user. A contribution is a function of one user's rows and of public fields, and its norm is
at most one for any rows: sensitivity 1 (zero-out), 2 (replace-one: V can point either way). One Gaussian event per
round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size, per_user, read_only
from tacitly.federation.base import Query
from tacitly.linalg import pack_symmetric, unpack_symmetric
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.low_rank_sparse.array_choices import DOUBT
from tacitly.methods.low_rank_sparse.array_fits import MOST_COLUMNS, fit_in_arrays
from tacitly.methods.low_rank_sparse.heads import NONE, Sparsity, inverse_sizes, wanted_by
from tacitly.methods.shared.array_forms import centred, unit_rows
from tacitly.methods.shared.batch import norms_of
from tacitly.methods.shared.whitening import Whitening, user_chunks
from tacitly.privacy.clipping import LEAST, clip_factor

_MOST_SWAPS = 1 << 10  # limits the work that a message from the network can cause
_LANES = 8  # number of users that are fitted together
_STAGES = 2  # a round's fit need not be optimal: nearly correct supports suffice, and the next round refits them


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
        if self._has_array_form:
            return np.asarray(self.contributions(X, y, np.array([0, len(X)]))[0])
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

    @property
    def _has_array_form(self) -> bool:
        return not self.shared_weight and self.basis.shape[1] + self.sparsity.most <= MOST_COLUMNS

    def form_for(self, n_users: int, n_features: int) -> Query:
        """Return the form to use for this number of users; it depends on public sizes only."""
        return super().form_for(n_users, n_features) if self._has_array_form else self

    def contributions(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return (gwᵀ/c, wwᵀ)/ν, one row per user."""
        (d, k), rows = self.basis.shape, np.asarray(X, dtype=np.float64)
        with np.errstate(all="ignore"):
            own = rows, np.asarray(y, dtype=np.float64), offsets, self.whitening.to_raw(self.basis)
            scale = inverse_sizes(rows, offsets, self.centered)
            fits = fit_in_arrays(
                *(*own, scale, self.sparsity.most),
                intercept=self.centered,
                stages=_STAGES,
                swaps=self.swaps,
                wanted=wanted_by(self.sparsity, *own, scale, intercept=self.centered, doubt=DOUBT),
            )
            counts = np.diff(offsets)
            free = np.where(counts > k + int(self.centered), counts - k - int(self.centered) - fits.sizes, 0)
            some = (np.arange(len(rows)) - np.repeat(offsets[:-1], counts)) % 4 == 0
            quarters = np.append(0, np.cumsum((counts + 3) // 4))
            spread = (centred(rows, offsets) if self.centered else rows)[some] * self.whitening.scale
            energy = per_user(np.square(spread), quarters).sum(axis=1) / (np.maximum(np.diff(quarters), 1) * d)
            measured = np.stack(fits.coefficients[:k], axis=1) @ self.head_metric
            sizes = norms_of(measured)
            usable = (free > 0) & np.isfinite(sizes) & (np.square(sizes) > LEAST) & (energy > 0)
            scaled = self.whitening.scale * np.where(usable[:, None], fits.pull, 0.0)
            scaled /= np.where(usable, free * energy * self.scale * sizes, 1.0)[:, None]
            pulls, units = scaled + scaled @ self.whitening.turn, unit_rows(measured, np.where(usable, sizes, np.nan))
            outer = pulls[:, :, None] * units[:, None, :]
            joint = np.hstack([outer.reshape(len(outer), d * k), pack_symmetric(units[:, :, None] * units[:, None, :])])
            return unit_rows(joint, norms_of(joint))

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the ratios of corrections to heads, from which the scale c is chosen."""
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
        from tacitly.methods.low_rank_sparse.step_kernels import add_sparse_steps

        model = (self.centered, self.shared_weight, self.sparsity.choices, (_STAGES, self.swaps))
        add_sparse_steps(
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
        from tacitly.methods.low_rank_sparse.step_kernels import write_equations
        from tacitly.simd.registers import padded

        d, r = self.basis.shape
        basis = padded(self.whitening.to_raw(self.basis).T, X.dtype)
        for chunk, targets, starts in user_chunks(np.ascontiguousarray(X), np.ascontiguousarray(y), offsets, 32):
            n = len(starts) - 1
            heads, moments, sides = np.zeros((n, r)), np.zeros((n, d * (d + 1) // 2)), np.zeros((n, d))
            gram, right = np.zeros(n), np.zeros(n)
            write_equations(
                *(chunk, self.whitening.transform(chunk), targets, starts, basis),
                *((self.gram_scale, self.right_scale), self.centered, self.shared_weight, self.sparsity.choices),
                *((_STAGES, self.swaps), _workspace(self, starts, chunk), heads, moments, gram, sides, right),
            )
            yield heads, moments, gram, sides, right


class SparseModel(Protocol):
    """The public fields that define the model that users fit in a round."""

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
    from tacitly.methods.low_rank_sparse.kernels import layout_of
    from tacitly.methods.low_rank_sparse.step_kernels import fit_group
    from tacitly.simd.registers import padded

    rows, targets = read_only(np.ascontiguousarray(X)), read_only(np.ascontiguousarray(y))
    offsets = np.array([0, len(X)])
    check_shape("X", rows, None, len(basis))
    work = _workspace(query, offsets, rows)
    public = (padded(basis.T, rows.dtype), query.shared_weight, query.centered, np.zeros(work.score.shape))
    group = np.zeros((4, _LANES), dtype=np.int64)
    effort = (_STAGES, query.swaps)
    fit_group(rows, targets, offsets, 0, 1, *public, query.sparsity.choices, effort, work, group)
    at, step = layout_of(len(rows), 0)
    head = np.ones(1) if query.shared_weight else work.coefficients[1 : 1 + basis.shape[1], 0]
    free = int(group[3, 0])
    return (head, work.left[at::step][: len(rows)], free) if free > 0 else None


def _workspace(query: SparseModel, offsets: Offsets, X: Rows) -> Any:
    from tacitly.methods.low_rank_sparse.kernels import workspace_for

    fixed = 0 if query.shared_weight else query.basis.shape[1]
    return workspace_for(offsets, X, fixed, query.sparsity.most)
