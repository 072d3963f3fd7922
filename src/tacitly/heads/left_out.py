"""Leave-one-out errors of many ridge fits at once, one penalty per SIMD lane.

This uses explicit SIMD registers. Otherwise the compiler keeps the sums of a loop over sixteen penalties in memory and
checks for overlap before each update, which is seven times slower.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

from tacitly.simd.lazy_njit import njit
from tacitly.simd.registers import at_least, load, spread, store

_kernel: Any = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@_kernel
def left_out_errors(rows, targets, right, shrinkage, free, out):
    """Write sums of squared leave-one-out errors for sixteen penalties: residuals over one minus leverage.

    Rows are given in coordinates of the system's eigenvectors, and ``right`` is Xᵀy in these coordinates. ``shrinkage``
    holds 1/(eigenvalue + penalty), one row per eigenvalue. ``free`` is 1 minus the leverage that an intercept adds to
    each row.
    """
    m, k = rows.shape
    sum0 = sum1 = spread(0.0)
    for j in range(m):
        left0 = left1 = spread(targets[j])
        rest0 = rest1 = spread(free)
        for b in range(k):
            x, y = spread(rows[j, b]), spread(right[b])
            part0, part1 = x * load(shrinkage, 16 * b), x * load(shrinkage, 16 * b + 8)
            left0, left1 = left0 - part0 * y, left1 - part1 * y
            rest0, rest1 = rest0 - part0 * x, rest1 - part1 * x
        left0, left1 = left0 / at_least(rest0, 1e-6), left1 / at_least(rest1, 1e-6)
        sum0, sum1 = sum0 + left0 * left0, sum1 + left1 * left1
    store(out, 0, sum0)
    store(out, 8, sum1)
