"""The inverse in a lane is that of the matrix in it, whatever is in the others."""

from __future__ import annotations

import numpy as np
import pytest

from tacitly.simd.inverses import invert
from tacitly.simd.lanes import LANES, lane_zeros, load_eight
from tacitly.simd.lazy_njit import njit


@njit(error_model="numpy")
def inverted(rows, out):  # type: ignore[no-untyped-def]
    """Write what inverting leaves of matrices and vectors, one row per user."""
    p = int(np.sqrt(rows.shape[1]))
    width = rows.shape[1] + -rows.shape[1] % LANES
    room, spare = lane_zeros(width + 4 * p + 10), np.zeros((LANES, width))
    for first in range(0, len(rows), LANES):
        load_eight(rows, first, spare, room, 0, True)
        invert(room, 0, p, 0, p * p, width, rows, 0, 1)
        for u in range(min(LANES, len(rows) - first)):
            for a in range(rows.shape[1]):
                out[first + u, a] = room[a, u]


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 7, 8, 17])
def test_upper_triangles_are_minus_the_inverse_and_vectors_are_solved(p: int) -> None:
    rng, users = np.random.default_rng(p), 21
    halves = rng.normal(size=(users, p, p + 3)) * np.exp(3 * rng.normal(size=(users, 1, 1)))
    matrices, vectors = halves @ halves.transpose(0, 2, 1) + np.eye(p), rng.normal(size=(users, p))
    matrices[3, -1, -1] = -1.0  # not positive definite
    vectors[5, 0] = np.nan
    rows = np.concatenate([matrices.reshape(users, -1), vectors], axis=1)
    out, alone = np.zeros_like(rows), np.zeros((1, rows.shape[1]))
    inverted(rows, out)
    upper = np.triu_indices(p)
    for user in range(users):
        found, solved = -out[user, : p * p].reshape(p, p)[upper], out[user, p * p :]
        if user == 3:
            assert np.isnan(found).any()
            continue
        inverse = np.linalg.inv(matrices[user])
        np.testing.assert_allclose(found, inverse[upper], rtol=1e-9, atol=1e-11 * np.abs(inverse).max())
        if user != 5:
            scale = np.abs(inverse).max() * np.abs(vectors[user]).max()
            np.testing.assert_allclose(solved, inverse @ vectors[user], rtol=1e-9, atol=1e-10 * scale)
        inverted(rows[user : user + 1], alone)  # the others did not move a bit of it
        np.testing.assert_array_equal(alone[0, : p * p].reshape(p, p)[upper], out[user, : p * p].reshape(p, p)[upper])
