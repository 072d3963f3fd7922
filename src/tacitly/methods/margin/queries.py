"""The user's part of Private FedRep's Algorithm 3: how well a public candidate separates one user's labels by a margin.

A user's loss for candidate Ũ is the smallest share, over a public finite set of heads v of norm one, of the user's rows
that ⟨z/‖z‖, Ũv⟩ puts on the wrong side or closer than the margin ρ. Rows are scaled to length one (the paper: a ball of
radius r) and the minimum is over a finite set instead of a ball. Both change the utility but not the sensitivity.

Release :class:`MarginLosses`, through :meth:`~tacitly.federation.base.Federation.select`. Unit: the user. A loss is a
number in [0, 1] that depends on one user's rows and on public fields, so one user moves every total by at most 1: all
in one direction under zero-out, in either direction under replace-one. One event of pure ε (``SelectionEvent``), by
permute-and-flip.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows, check_shape, check_size, read_only
from tacitly.federation.scores import MOST_STEPS, STEPS, Scores
from tacitly.simd.lazy_njit import njit

_CHUNK = 4096  # candidates scored in one pass over a user's rows

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


@dataclass(frozen=True)
class MarginLosses(Scores):
    """Smallest margin loss of one user under each candidate; targets are 0 and 1."""

    candidates: Array  # (number, k', k)
    dictionary: Array  # (heads, k); the negative of each head belongs to it too
    margin: float
    half: bool = False  # use only the first half of each user's rows, as printed
    centered: bool = False  # subtract the user's mean row
    steps: int = STEPS

    def __post_init__(self) -> None:
        check_shape("candidates", self.candidates, None, None, None)
        check_shape("dictionary", self.dictionary, None, self.candidates.shape[2])
        check_size("steps", self.steps, MOST_STEPS)

    @property
    def coordinates(self) -> int:
        """One number per candidate."""
        return len(self.candidates)

    def losses(self, X: Rows, y: Rows) -> Array:
        """Return the minimum over heads of the share of rows with margin at most ρ; zero for a user without rows."""
        rows = X[: len(X) // 2] if self.half else X
        if len(rows) == 0:
            return np.zeros(self.coordinates)
        rows, signs = rows.astype(np.float64), 2.0 * y[: len(rows)].astype(np.float64) - 1.0
        if self.centered:
            rows = rows - rows.mean(axis=0)
        lengths = np.linalg.norm(rows, axis=1)
        units = rows * np.divide(signs, lengths, out=np.zeros(len(rows)), where=lengths > 0)[:, None]
        heads = np.vstack([self.dictionary, -self.dictionary])
        return np.array(
            [1.0 - np.max(np.mean(units @ each @ heads.T > self.margin, axis=0)) for each in self.candidates]
        )

    def block_losses(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return all users' losses in one pass: a user's rows stay in cache while the candidates are scored."""
        heads, margin, parts = self.dictionary.astype(np.float32), np.float32(self.margin), []
        for chunk in self._chunks:
            out = np.zeros((len(offsets) - 1, chunk.shape[2]))
            _margin_losses(read_only(X), read_only(y), offsets, chunk, heads, margin, self.half, self.centered, out)
            parts.append(out)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    @cached_property
    def _chunks(self) -> list[npt.NDArray[np.float32]]:
        """Candidates along the last axis, in chunks that keep counts of all heads small; computed once per query."""
        turned = self.candidates.transpose(2, 1, 0)
        starts = range(0, self.coordinates, _CHUNK)
        return [np.ascontiguousarray(turned[:, :, a : a + _CHUNK], dtype=np.float32) for a in starts]


def head_dictionary(rank: int, random_state: int = 0) -> Array:
    """Return public heads of norm one, spread over half the sphere; their negatives cover the other half.

    Eight angles for two directions; from three on, sixteen random heads per direction.

    >>> head_dictionary(1), head_dictionary(2).shape, head_dictionary(3).shape
    (array([[1.]]), (8, 2), (48, 3))
    """
    if rank == 1:
        return np.ones((1, 1))
    if rank == 2:
        angles = np.pi * np.arange(8) / 8
        return np.column_stack([np.cos(angles), np.sin(angles)])
    heads = np.random.default_rng(random_state).standard_normal((16 * rank, rank))
    return np.asarray(heads / np.linalg.norm(heads, axis=1, keepdims=True))


@_kernel
def _margin_losses(X, y, offsets, candidates, dictionary, margin, half, centered, out):
    """Score users one by one; inner loops run over the candidates, the last axis of (k, k', number)."""
    k, _, number = candidates.shape
    heads = dictionary.shape[0]
    P = np.empty((k, number), dtype=np.float32)
    above, below = np.empty((heads, number), dtype=np.float32), np.empty((heads, number), dtype=np.float32)
    for i in range(offsets.size - 1):
        first, last = offsets[i], offsets[i + 1]
        m = (last - first) // 2 if half else last - first
        if m == 0:
            continue
        units = _signed_units(X, y, first, m, centered)
        above[:] = 0.0
        below[:] = 0.0
        for j in range(m):
            for b in range(k):
                _combine(units[j], candidates[b], P[b])
            for h in range(heads):
                _count(dictionary[h], P, margin, above[h], below[h])
        for c in range(number):
            best = np.float32(0.0)
            for h in range(heads):
                best = max(best, above[h, c], below[h, c])
            out[i, c] = 1.0 - best / m


@_kernel
def _combine(weights, rows, out):
    """Write Σ_a weights[a]·rows[a] to ``out``, eight rows at a time, so that ``out`` is read back less often."""
    d, number = rows.shape
    out[:] = np.float32(0.0)
    whole = d - d % 8
    for a in range(0, whole, 8):
        w0, w1, w2, w3 = weights[a], weights[a + 1], weights[a + 2], weights[a + 3]
        w4, w5, w6, w7 = weights[a + 4], weights[a + 5], weights[a + 6], weights[a + 7]
        for c in range(number):
            low = w0 * rows[a, c] + w1 * rows[a + 1, c] + w2 * rows[a + 2, c] + w3 * rows[a + 3, c]
            high = w4 * rows[a + 4, c] + w5 * rows[a + 5, c] + w6 * rows[a + 6, c] + w7 * rows[a + 7, c]
            out[c] += low + high
    for a in range(whole, d):
        for c in range(number):
            out[c] += weights[a] * rows[a, c]


@_kernel
def _count(head, P, margin, above, below):
    """Count one row for every candidate that puts it beyond the margin, with this head or with its negative."""
    one, zero = np.float32(1.0), np.float32(0.0)
    if P.shape[0] == 2:
        h0, h1 = head[0], head[1]
        for c in range(P.shape[1]):
            value = h0 * P[0, c] + h1 * P[1, c]
            above[c] += one if value > margin else zero
            below[c] += one if value < -margin else zero
        return
    for c in range(P.shape[1]):
        value = zero
        for b in range(P.shape[0]):
            value += head[b] * P[b, c]
        above[c] += one if value > margin else zero
        below[c] += one if value < -margin else zero


@_kernel
def _signed_units(X, y, first, m, centered):
    """Return rows scaled to length one, with the sign of their label; zero if the length is zero or not finite."""
    d = X.shape[1]
    units, row, mean = np.empty((m, d), dtype=np.float32), np.empty(d), np.zeros(d)
    if centered:
        for j in range(m):
            for a in range(d):
                mean[a] += X[first + j, a] / m
    for j in range(m):
        size = 0.0
        for a in range(d):
            row[a] = X[first + j, a] - mean[a]
            size += row[a] * row[a]
        factor = (2.0 * y[first + j] - 1.0) / math.sqrt(size)
        for a in range(d):
            units[j, a] = row[a] * factor if math.isfinite(factor) else 0.0
    return units
