"""A sum plus ideal Gaussian noise, rounded to cells: proposed by float64, decided exactly where that could be wrong.

The noise is z·s with z = Φ⁻¹(U) and U uniform; bits of U are drawn as needed. Only the number of the cell that contains
the noisy sum is returned, so arithmetic errors matter only if they move the noisy sum across a border between cells.

Let w be the noisy sum in cells, as float64 computes it from 127 bits of U. Its error is below 2⁻²³ cells: the quantile
function has a relative error below 2⁻⁴⁸ (SciPy states 2⁻⁵⁰; the tests measure it), which is 2⁻²⁴ cells at 9 standard
deviations; rounding of U, of the product and of the sum adds less than 2⁻²⁶. If w is further than 2⁻¹⁸ cells from every
border, the cell is therefore right whatever the remaining bits of U are. Otherwise, and beyond 9 standard deviations,
256 more bits are drawn and U is compared with Φ at the border in 200-digit decimal arithmetic. The probability that
this does not decide is below 2⁻²⁵⁰ per coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt

_FINENESS = 20  # cells per standard deviation, as a power of two, unless the grid is coarser
_MARGIN = 2.0**-18  # cells; 32 times the error of float64
_MORE_BITS = 256
_DIGITS = 200  # of absolute precision: 384 bits are 116
_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651"
    "3282306647093844609550582231725359408128481117450284102701938521105559644622948954930381964"
)

Integers = npt.NDArray[np.int64]


def noisy_cells(total: Integers, scale: float, random_bytes: Callable[[int], bytes]) -> tuple[Integers, int]:
    """Return the cell of ``total`` plus Gaussian noise of standard deviation ``scale``, and the size of a cell.

    All in steps of the grid that ``total`` is on. Cell c is [c − ½, c + ½) times the size, a power of two.
    """
    width = max(0, math.floor(math.log2(scale)) - _FINENESS)
    whole = (total + ((1 << width) >> 1)) >> width
    rest = total - (whole << width)  # within half a cell of 0, so that float64 holds the noisy rest to the last bits
    bits = np.frombuffer(random_bytes(16 * total.size), dtype=np.uint64).reshape(2, total.size)
    cells, unsure = _proposed(rest, scale, width, bits)
    for i in np.flatnonzero(unsure):
        more = int.from_bytes(random_bytes(_MORE_BITS // 8), "little")
        drawn = (int(bits[0, i]) >> 1) << 64 | int(bits[1, i])
        # The middle of what 127 and 256 bits leave open.
        tail = Fraction((drawn << _MORE_BITS | more) * 2 + 1, 1 << (129 + _MORE_BITS))
        cells[i] = _decided(int(cells[i]), int(rest[i]), scale, width, tail, upper=not int(bits[0, i]) & 1)
    return whole + cells, 1 << width


def _proposed(
    rest: Integers, scale: float, width: int, bits: npt.NDArray[np.uint64]
) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return cells as float64 finds them, and where they are too near to a border to be sure."""
    from scipy.special import ndtri

    first = bits[0] >> np.uint64(1)
    # Both tails use the lower one, where float64 resolves small probabilities.
    tail = first.astype(np.float64) * 2.0**-64 + (bits[1].astype(np.float64) + 0.5) * 2.0**-128
    z = np.where(bits[0] & np.uint64(1), -1.0, 1.0) * -ndtri(tail)
    noisy = (rest + z * scale) * 2.0**-width
    cells = np.floor(noisy + 0.5)
    near = np.abs(noisy + 0.5 - np.rint(noisy + 0.5)) < _MARGIN
    return cells.astype(np.int64), near | (first < np.uint64(1 << 4))  # a tail below 2^-60 begins beyond 8.8


def _decided(cell: int, rest: int, scale: float, width: int, tail: Fraction, *, upper: bool) -> int:
    """Return the cell of one coordinate exactly, starting from the proposed one."""

    def beyond(border: int) -> bool:
        """Whether the noisy rest is at least (border − ½) cells."""
        z = (Fraction(2 * border - 1, 2) * (1 << width) - rest) / Fraction(scale)
        below = tail_below(z)
        return tail <= 1 - below if upper else tail >= below

    while beyond(cell + 1):
        cell += 1
    while not beyond(cell):
        cell -= 1
    return cell


def tail_below(z: Fraction) -> Fraction:
    """Φ(z) with an error below 10⁻¹⁹⁰: ½ + φ(z)·(z + z³/3 + z⁵/15 + …), whose terms all have one sign.

    >>> float(tail_below(Fraction(0))), round(float(tail_below(Fraction(-3))) * 1e5, 6)
    (0.5, 134.989803)
    """
    with localcontext() as context:
        context.prec = _DIGITS
        x = abs(Decimal(z.numerator) / Decimal(z.denominator))
        term = total = x
        n, least = 1, Decimal(10) ** -_DIGITS
        while term > least * total and n < 20_000:
            n += 2
            term = term * x * x / n
            total += term
        inner = (-x * x / 2).exp() / (2 * _PI).sqrt() * total
        below = Fraction(Decimal("0.5") - inner)
    return below if z < 0 else 1 - below
