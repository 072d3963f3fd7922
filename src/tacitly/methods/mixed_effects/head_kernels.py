"""Heads of many users as weighted means of candidates: compiled part of :mod:`~tacitly.methods.mixed_effects.evidence`.

A user's numbers depend on that user's candidates alone, to the last bit.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from tacitly.simd.lazy_njit import njit


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def write_mixed(candidates, shares, posteriors, rows, mean, out):
    """Write each user's mean of candidates by their shares (``mean`` for a user without rows), then a covariance.

    That is the upper triangle of the posterior's, which ``posteriors`` start with, plus that of the candidates.
    """
    kinds, users, p = candidates.shape
    apart, mixed, row = np.zeros((kinds, p)), np.zeros(p), np.zeros(p)
    for user in range(users):
        mixed[:] = 0.0
        for kind in range(kinds):
            for i in range(p):
                mixed[i] += shares[kind, user] * candidates[kind, user, i]
        for kind in range(kinds):
            for i in range(p):
                apart[kind, i] = candidates[kind, user, i] - mixed[i]
        place = 0
        for i in range(p):
            out[user, i] = mixed[i] if rows[user] > 0.0 else mean[i]
            for k in range(p):
                row[k] = 0.0
            for kind in range(kinds):
                factor = shares[kind, user] * apart[kind, i]
                for k in range(p):  # all of the row, though half would do: loops of one length become SIMD code
                    row[k] += factor * apart[kind, k]
            for k in range(i, p):
                out[user, p + place] = posteriors[user, place] + row[k]
                place += 1
