"""One step of a shared basis for losses beyond least squares: logistic, hinge, Poisson, several classes.

The conclusion of paper 003 leaves losses beyond the quadratic open. Private FedRep's step carries over. In a round a
user fits a head V (k×c; c = 1 but for more than two classes) to the projected rows P = XU by a ridge Newton fit; with
R the negative slopes of the loss at the fit and w their mean curvature, the correction that the user's weights ask for
is G = (I − UUᵀ)XᵀR/(m·w) (one Newton step from UV in whitened coordinates, where XᵀWX ≈ m·w·I off the basis). The
best change A of the basis makes AV ≈ G for everybody. Released, as one vector of norm one a user,

    (G Vᵀ / c,  V Vᵀ) / ν,    ν its true norm,

so clip, preconditioning and scale need no more choosing than for the squared loss, and
:class:`~tacitly.methods.fedrep.algorithm.Descent` does the rest.

Release :class:`LossStep`: a user's vector has norm 1 or is zero, whatever the rows and labels. Sensitivity 1
(zero-out), 2 (replace-one: corrections can point against each other). One Gaussian event a round.
"""

# What Numba compiles has no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape, read_only
from tacitly.federation.base import Query
from tacitly.heads.glm import INTERCEPT_PENALTY
from tacitly.heads.losses import Loss
from tacitly.heads.newton import fit_newton, project, slopes
from tacitly.linalg import pack_symmetric, unpack_symmetric
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.clipping import LEAST, clip_factor
from tacitly.simd.lazy_njit import njit

PENALTY = 1.0
"""Ridge of a round's heads: a direction's share of the score has a prior variance of one. By reasoning: labels of a few
rows cannot tell larger scores apart, and only a head's direction and relative size enter the step."""

_LEAST_CURVATURE = 1e-6  # a user all of whose rows are beyond doubt has no more to say than this lets it

_LEAST_HEAD = 1e-6
"""Share of the score below which a head is rounding: that of a user with one class only and a level of its own is zero,
and scaling what rounding leaves of it to norm one would add noise."""

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


@dataclass(frozen=True)
class LossStep(Query):
    """What one user asks the basis to change, for targets as ``loss.encode`` gives them."""

    basis: Array  # whitened coordinates, orthonormal
    head_metric: Array  # k×k, symmetric: heads are measured as head_metric·V
    scale: float  # c
    whitening: Whitening
    loss: Loss
    intercept: bool = False

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, self.whitening.scale.size, None)
        check_shape("head_metric", self.head_metric, self.basis.shape[1], self.basis.shape[1])
        if self.loss.name == "squared":
            raise ValueError("a step for loss 'squared' is a BasisStep.")

    @property
    def coordinates(self) -> int:
        """Entries of a d×k matrix and of a symmetric k×k one."""
        d, k = self.basis.shape
        return int(d * k + k * (k + 1) // 2)

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return the unit vector (GVᵀ/c, VVᵀ)/ν, or zero where there is no head or a number is not finite."""
        rows, targets = X.astype(np.float64), y.astype(np.float64)
        scaled = (rows - rows.mean(axis=0) * self.intercept) * self.whitening.scale
        projected = rows @ self.whitening.to_raw(self.basis)
        projected -= projected.mean(axis=0) * self.intercept
        level, energy = np.square(projected).mean(), np.square(scaled).mean()
        if not (np.isfinite(level) and np.isfinite(targets).all() and level > 0):
            return np.zeros(self.coordinates)
        head, slope, curvature = newton_head(projected, targets, self.loss, PENALTY * level, self.intercept)
        if not np.square(head).sum() * level > _LEAST_HEAD**2:
            return np.zeros(self.coordinates)
        free = max(1, self.loss.columns - 1)
        bend = max(float(curvature.sum()) / (free * len(rows)), _LEAST_CURVATURE)
        raw = slope.T @ (rows - rows.mean(axis=0) * self.intercept) / (len(rows) * energy * bend)
        correction = self.whitening.transform(raw)
        correction -= correction @ self.basis @ self.basis.T
        measured = self.head_metric @ head
        joint = np.concatenate([(measured @ correction / self.scale).T.ravel(), pack_symmetric(measured @ measured.T)])
        norm = np.linalg.norm(joint)
        return joint / norm if np.isfinite(norm) and norm**2 > LEAST else np.zeros(self.coordinates)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """One fused pass: the d×k contribution is formed once a thread, never kept."""
        total: Array = self.block_sums(X, y, offsets, bound, max(1, len(offsets) - 1))[0]
        return total

    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        """Return the sums of several blocks of ``size`` users, a row a block."""
        d, k = self.basis.shape
        blocks = max(1, -(-(len(offsets) - 1) // size))
        step, second = np.zeros((blocks, k, d)), np.zeros((blocks, k, k))
        self._add(X, y, offsets, size, clip_factor(1.0, bound), step, second)
        moments = [pack_symmetric(block) for block in second]
        return np.hstack([step.transpose(0, 2, 1).reshape(blocks, -1), moments])

    def _add(self, X: Rows, y: Rows, offsets: Offsets, size: int, weight: float, step: Array, second: Array) -> None:
        rows, targets, directions = (
            read_only(X),
            read_only(y),
            np.ascontiguousarray(self.whitening.to_raw(self.basis).T),
        )
        basis, across = np.ascontiguousarray(self.basis.T), np.ascontiguousarray(self.whitening.directions.T)
        _add_steps(
            *(rows, targets, offsets, size, directions, basis, self.whitening.scale, across, self.whitening.gains),
            *(np.ascontiguousarray(self.head_metric), self.scale, self.loss.code, self.loss.columns),
            *(self.intercept, weight, step, second),
        )

    def split(self, released: Array) -> tuple[Array, Array]:
        """Return the released vector as its two matrices: the step (times 1/c) and the heads' second moment."""
        d, k = self.basis.shape
        return released[: d * k].reshape(d, k), unpack_symmetric(released[d * k :], k)


def newton_head(
    projected: Array, targets: Array, loss: Loss, penalty: float, intercept: bool
) -> tuple[Array, Array, Array]:
    """Fit one user's head as a round does; return it (k×c), and slopes and curvatures of every row's scores there."""
    k = projected.shape[1]
    rows = np.column_stack([projected, np.ones(len(projected))]) if intercept else projected
    penalties = np.append(np.full(k, penalty), [INTERCEPT_PENALTY] * intercept)
    head, scores = np.zeros((rows.shape[1], loss.columns)), np.zeros((len(rows), loss.columns))
    fit_newton(np.ascontiguousarray(rows), targets, loss.code, penalties, head, scores)
    both = [[slopes(loss.code, targets, scores, j, a) for a in range(loss.columns)] for j in range(len(rows))]
    found = np.array(both)
    return head[:k], found[:, :, 0], found[:, :, 1]


@_kernel
def _add_steps(
    X,
    y,
    offsets,
    size,
    directions,
    basis,
    scale,
    across,
    gains,
    metric,
    c,
    loss,
    columns,
    intercept,
    weight,
    step,
    second,
):
    """Add every user's contribution, of norm ``weight``, to its block of ``size`` users."""
    k, d = directions.shape
    q = k + (1 if intercept else 0)
    G, D, S, mean = np.empty((columns, d)), np.empty((k, d)), np.empty((k, k)), np.empty(d)
    penalties = np.empty(q)
    for i in range(offsets.size - 1):
        first, last = offsets[i], offsets[i + 1]
        m = last - first
        if m == 0:
            continue
        P, targets = np.empty((m, q)), np.empty(m)
        level, _ = project(X, first, last, directions, intercept, P)
        if not (math.isfinite(level) and level > 0.0):
            continue
        for j in range(m):
            targets[j] = y[first + j]
        penalties[:] = PENALTY * level
        if intercept:
            penalties[k] = INTERCEPT_PENALTY
        V, scores = np.zeros((q, columns)), np.zeros((m, columns))
        fit_newton(P, targets, loss, penalties, V, scores)
        if not _head_size(V, k) * level > _LEAST_HEAD * _LEAST_HEAD:
            continue
        energy = _energy(X, first, last, scale, intercept, mean)
        curvature = _corrections(X, first, last, targets, scores, loss, mean, G)
        length = 1.0 / (m * energy * max(curvature, _LEAST_CURVATURE))
        _whiten(G, scale, across, gains, length)
        _leave_out(G, basis)
        norm = _products(V, metric, G, c, D, S)
        if not (math.isfinite(norm) and norm * norm > LEAST):
            continue
        factor, block = weight / norm, i // size
        for b in range(k):
            for e in range(d):
                step[block, b, e] += factor * D[b, e]
            for e in range(k):
                second[block, b, e] += factor * S[b, e]


@_kernel
def _head_size(V, k):
    size = 0.0
    for b in range(k):
        for a in range(V.shape[1]):
            size += V[b, a] * V[b, a]
    return size


@_kernel
def _energy(X, first, last, scale, centered, mean):
    """Mean squared feature in whitening's scale, around the user's means if ``centered``; writes the means."""
    d, m = X.shape[1], last - first
    mean[:] = 0.0
    if centered:
        for j in range(first, last):
            for e in range(d):
                mean[e] += X[j, e] / m
    size = 0.0
    for j in range(first, last):
        for e in range(d):
            value = (X[j, e] - mean[e]) * scale[e]
            size += value * value
    return size / (m * d)


@_kernel
def _corrections(X, first, last, targets, scores, loss, mean, G):
    """Write XᵀR, a row a class, to G; return the mean curvature."""
    d, c = X.shape[1], scores.shape[1]
    G[:] = 0.0
    curvature = 0.0
    for j in range(last - first):
        for a in range(c):
            slope, second = slopes(loss, targets, scores, j, a)
            # Curvatures of c classes count a score c - 1 times: they add up to one that is free.
            curvature += second / max(1, c - 1)
            for e in range(d):
                G[a, e] += slope * (X[first + j, e] - mean[e])
    return curvature / (last - first)


@_kernel
def _whiten(G, scale, across, gains, length):
    d, r = G.shape[1], gains.size
    for a in range(G.shape[0]):
        for e in range(d):
            G[a, e] *= length * scale[e]
        # All products with the directions first: they are orthonormal, so one does not change another.
        for p in range(r):
            dot = 0.0
            for e in range(d):
                dot += across[p, e] * G[a, e]
            for e in range(d):
                G[a, e] += gains[p] * dot * across[p, e]


@_kernel
def _leave_out(G, basis):
    """Take out of each row what lies in the basis: a ridge leaves some there, and it would change nothing."""
    for a in range(G.shape[0]):
        for b in range(basis.shape[0]):
            dot = 0.0
            for e in range(G.shape[1]):
                dot += basis[b, e] * G[a, e]
            for e in range(G.shape[1]):
                G[a, e] -= dot * basis[b, e]


@_kernel
def _products(V, metric, G, c, D, S):
    """Write D = metric·V·G/c and S = (metric·V)(metric·V)ᵀ; return the norm of both together."""
    k, d = D.shape
    columns = V.shape[1]
    M = np.zeros((k, columns))
    for b in range(k):
        for p in range(k):
            for a in range(columns):
                M[b, a] += metric[b, p] * V[p, a]
    squared = 0.0
    for b in range(k):
        for e in range(d):
            value = 0.0
            for a in range(columns):
                value += M[b, a] * G[a, e]
            D[b, e] = value / c
            squared += D[b, e] * D[b, e]
        for e in range(k):
            value = 0.0
            for a in range(columns):
                value += M[b, a] * M[e, a]
            S[b, e] = value
            squared += value * value
    return math.sqrt(squared)
