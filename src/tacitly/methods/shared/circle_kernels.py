"""Points on the circle, added up: the compiled form of :func:`~tacitly.methods.shared.batch.circle`."""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from tacitly.simd.lanes import LANES
from tacitly.simd.lazy_njit import njit
from tacitly.simd.points import logarithm, point
from tacitly.simd.registers import at_least, at_most, load_first, spread, total, where_usable


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def add_points(norms, reach, middle, size, out):
    """Write, for each block of ``size`` norms, the sum of the points of their logarithms (base 2) − ``middle``.

    A norm that is zero or not finite adds nothing.
    """
    for block in range(len(out)):
        stop, one, other = min((block + 1) * size, norms.size), spread(0.0), spread(0.0)
        for first in range(block * size, stop, LANES):
            norm = load_first(norms, first, stop - first)
            octaves = at_most(at_least(logarithm(norm) - spread(middle), -reach), reach)
            cosine, sine = point(octaves * spread(0.9 / reach))
            one, other = one + where_usable(norm, cosine), other + where_usable(norm, sine)
        out[block, 0], out[block, 1] = total(one), total(other)
