"""Top-k selection for eight users at once, one user per SIMD lane (:mod:`tacitly.simd.registers`).

A mispredicted branch costs more than all the arithmetic around it, so the code has no branches. The position of a
number is written over the lowest bits of its absolute value, where it only breaks ties. Then maximum and minimum of two
numbers are sufficient to keep the largest in order, each with its position.
"""

# Numba-compiled functions, and code generators for them, have no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tacitly.simd.lazy_njit import UNCOUNTED, njit
from tacitly.simd.registers import address_of, load, splat, spread, store

LANES = 8  # doubles in a register
NOTHING = float(np.finfo(np.float64).tiny)  # a key below this is zero: only its position bits are set
_INTEGER = ir.IntType(64)

_operation: Any = intrinsic
_inside: Any = njit(**UNCOUNTED)


def position_mask(count: int) -> int:
    """Return a mask of the bits needed for ``count`` positions.

    >>> [position_mask(count) for count in (1, 2, 50, 64)]
    [0, 1, 63, 63]
    """
    return (1 << (count - 1).bit_length()) - 1


@_operation
def get(typing_context, array, position):
    """Load the element at a row-major position, without Numba's check for negative indices."""

    def generate(context, builder, signature, arguments):
        return builder.load(address_of(context, builder, signature.args[0], *arguments))

    return array.dtype(array, types.intp), generate


@_operation
def put(typing_context, array, position, value):
    """Store an element at a row-major position."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], address_of(context, builder, signature.args[0], *arguments[:2]))
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), generate


@_operation
def keyed(typing_context, register, position, mask):
    """Return the lanes' absolute values with ``position`` in the lowest bits; lanes that are not finite become zero."""

    def generate(context, builder, signature, arguments):
        value, position, mask = arguments
        lanes = register.lanes
        integers = ir.VectorType(_INTEGER, lanes)
        positive = ir.Constant(integers, [(1 << 63) - 1] * lanes)
        bits = builder.and_(builder.bitcast(value, integers), positive)
        finite = builder.icmp_signed("<", bits, ir.Constant(integers, [0x7FF << 52] * lanes))
        bits = builder.select(finite, bits, ir.Constant(integers, None))
        bits = builder.and_(bits, splat(builder, builder.not_(mask), lanes))
        return builder.bitcast(builder.or_(bits, splat(builder, position, lanes)), value.type)

    return register(register, types.int64, types.int64), generate


def _either(comparison):
    @_operation
    def operation(typing_context, a, b):
        def generate(context, builder, signature, arguments):
            return builder.select(builder.fcmp_ordered(comparison, *arguments), *arguments)

        return a(a, b), generate

    return operation


larger, smaller = _either(">"), _either("<")


@_operation
def where_less(typing_context, a, b, value, other):
    """Return ``value`` in lanes with a < b, ``other`` elsewhere (including where a or b is NaN)."""

    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered("<", *arguments[:2]), *arguments[2:])

    return a(a, a, a, a), generate


@_inside
def keep_largest(keys, length, count, out):
    """Write the ``count`` largest of ``length`` keys of every lane to ``out``, in order; the keys are overwritten.

    Each pass keeps four keys in registers and leaves the rest for the next pass.
    """
    for c in range(0, count, 4):
        b0 = b1 = b2 = b3 = spread(0.0)
        for a in range(length):
            key = load(keys, a * LANES)
            b0, key = larger(b0, key), smaller(b0, key)
            b1, key = larger(b1, key), smaller(b1, key)
            b2, key = larger(b2, key), smaller(b2, key)
            b3, key = larger(b3, key), smaller(b3, key)
            store(keys, a * LANES, key)
        store(out, c * LANES, b0)
        store(out, (c + 1) * LANES, b1)
        store(out, (c + 2) * LANES, b2)
        store(out, (c + 3) * LANES, b3)
