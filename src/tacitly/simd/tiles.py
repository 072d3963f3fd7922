"""Tiles of sixteen registers, one user per SIMD lane: the inner steps of inverting many small matrices at once.

A tile is four by four entries of a matrix, each a register of :mod:`tacitly.simd.registers`. The generated code is one
straight sequence, so that entries stay in registers, and every loaded number is used four times.
"""

# Code generators for Numba have no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tacitly.simd.registers import FUSE, Register, address_of, shuffle, splat

_operation: Any = intrinsic
SIDE = 4  # rows and columns of a tile
_LANES = 8  # doubles in a register
_Z = ir.IntType(64)


class _Lanes:
    """Registers in an array, addressed by number: positions in the array are multiples of the number of lanes."""

    def __init__(self, context, builder, kind, array):
        self._builder = builder
        self._vector = context.get_value_type(Register(types.float64))
        start = address_of(context, builder, kind, array, _Z(0), pointee=self._vector)
        self._start = start

    def _at(self, number):
        return self._builder.gep(self._start, [number])

    def load(self, number):
        return self._builder.load(self._at(number), align=8)

    def store(self, number, value):
        self._builder.store(value, self._at(number), align=8)


def _steps(builder, start, step, count=SIDE):
    """Return start, start + step, and so on."""
    found = [start]
    for _ in range(count - 1):
        found.append(builder.add(found[-1], step))
    return found


def _transposed(builder, rows):
    """Return the columns of as many rows as lanes: pairs of lanes are exchanged, then pairs of pairs, up to halves.

    Each exchange is one instruction of AVX-512.
    """
    lanes = len(rows)
    for unit in (1 << power for power in range(lanes.bit_length() - 1)):
        low = [(i // unit % 2) * lanes + i - i // unit % 2 * unit for i in range(lanes)]
        high = [lane + unit for lane in low]
        mixed = [None] * lanes
        for i in range(lanes):
            if i // unit % 2 == 0:
                mixed[i] = shuffle(builder, rows[i], rows[i + unit], low)
                mixed[i + unit] = shuffle(builder, rows[i], rows[i + unit], high)
        rows = mixed
    return rows


@_operation
def transpose_eight(typing_context, array, position, stride, out, place):
    """Store eight columns of eight rows, from a position on: register ``place + i`` of ``out`` gets column i."""

    def generate(context, builder, signature, arguments):
        values, position, stride, target, place = arguments
        vector = context.get_value_type(Register(types.float64))
        rows = []
        for row in _steps(builder, position, stride, _LANES):
            address = address_of(context, builder, signature.args[0], values, row, pointee=vector)
            rows.append(builder.load(address, align=8))
        lanes = _Lanes(context, builder, signature.args[3], target)
        for i, row in enumerate(_transposed(builder, rows)):
            lanes.store(builder.add(place, _Z(i)), row)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, out, types.intp), generate


@_operation
def transpose_back(typing_context, room, place, out, position, stride):
    """Store the lanes of eight registers, from number ``place`` on, as eight rows from a position of ``out`` on."""

    def generate(context, builder, signature, arguments):
        array, place, target, position, stride = arguments
        lanes = _Lanes(context, builder, signature.args[0], array)
        columns = [lanes.load(builder.add(place, _Z(i))) for i in range(_LANES)]
        places = _steps(builder, position, stride, _LANES)
        for at, row in zip(places, _transposed(builder, columns), strict=True):
            builder.store(row, address_of(context, builder, signature.args[2], target, at, pointee=row.type), align=8)
        return context.get_dummy_value()

    return types.void(room, types.intp, out, types.intp, types.intp), generate


@_operation
def transpose_square(typing_context, array, position, stride, out, place, step):
    """Store the columns of as many rows as lanes, which lie ``stride`` apart: column i at place + i·step of ``out``.

    Both arrays have the same dtype.
    """
    register, align = Register(array.dtype), array.dtype.bitwidth // 8

    def generate(context, builder, signature, arguments):
        values, position, stride, target, place, step = arguments
        vector, rows = context.get_value_type(register), []
        for at in _steps(builder, position, stride, register.lanes):
            address = address_of(context, builder, signature.args[0], values, at, pointee=vector)
            rows.append(builder.load(address, align=align))
        columns = zip(_steps(builder, place, step, register.lanes), _transposed(builder, rows), strict=True)
        for at, column in columns:
            address = address_of(context, builder, signature.args[3], target, at, pointee=vector)
            builder.store(column, address, align=align)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, out, types.intp, types.intp), generate


def _subtraction(wanted):
    """Return the operation that subtracts products from selected entries (i, k) of a tile."""

    def operation(typing_context, room, place, stride, left, row_step, step, right, width):
        def generate(context, builder, signature, arguments):
            array, place, stride, left, row_step, step, right, width = arguments
            lanes = _Lanes(context, builder, signature.args[0], array)
            starts = _steps(builder, place, stride)
            places = {
                (i, k): builder.add(start, _Z(k)) for i, start in enumerate(starts) for k in range(SIDE) if wanted(i, k)
            }
            sums = {pair: lanes.load(at) for pair, at in places.items()}
            for of_left, of_right in zip(_steps(builder, left, step), _steps(builder, right, width), strict=True):
                factors = [builder.fneg(lanes.load(at)) for at in _steps(builder, of_left, row_step)]
                others = [lanes.load(builder.add(of_right, _Z(k))) for k in range(SIDE)]
                for i, k in sums:
                    product = builder.fmul(factors[i], others[k], flags=FUSE)
                    sums[i, k] = builder.fadd(sums[i, k], product, flags=FUSE)
            for pair, at in places.items():
                lanes.store(at, sums[pair])
            return context.get_dummy_value()

        return types.void(room, *(types.intp,) * 7), generate

    operation.__doc__ = """Subtract from the tile at ``place`` the products of four rows with four columns.

    Entry (i, k), at place + i·stride + k, is reduced by the sum over q < 4 of room[left + i·row_step + q·step] ·
    room[right + q·width + k]. All of these are numbers of registers.
    """
    return _operation(operation)


subtract_products = _subtraction(lambda i, k: True)
subtract_upper_products = _subtraction(lambda i, k: i <= k)


def _reciprocal(builder, value):
    one, nan = (splat(builder, ir.DoubleType()(number), _LANES) for number in (1.0, math.nan))
    positive = builder.fcmp_ordered(">", value, ir.Constant(value.type, None))
    return builder.select(positive, builder.fdiv(one, value), nan)


@_operation
def reciprocal(typing_context, register):
    """Return 1/x for every lane, NaN where x is not positive."""

    def generate(context, builder, signature, arguments):
        return _reciprocal(builder, *arguments)

    return register(register), generate


@_operation
def invert_four(typing_context, room, place, stride, start):
    """Replace the upper triangle of a tile by that of minus its inverse, and write the inverse's from ``start`` on.

    The result is NaN where the tile is not positive definite.
    """

    def generate(context, builder, signature, arguments):
        array, place, stride, start = arguments
        own = _Lanes(context, builder, signature.args[0], array)
        starts = _steps(builder, place, stride)
        pairs = [(i, k) for i in range(SIDE) for k in range(i, SIDE)]
        entry = {pair: own.load(builder.add(starts[pair[0]], _Z(pair[1]))) for pair in pairs}
        for pivot in range(SIDE):
            inverse = _reciprocal(builder, entry[pivot, pivot])
            line = {k: entry[min(k, pivot), max(k, pivot)] for k in range(SIDE) if k != pivot}
            scaled = {k: builder.fmul(value, inverse) for k, value in line.items()}
            for i, k in pairs:
                if pivot not in (i, k):
                    product = builder.fmul(builder.fneg(scaled[i]), line[k], flags=FUSE)
                    entry[i, k] = builder.fadd(entry[i, k], product, flags=FUSE)
            for k, value in scaled.items():
                entry[min(k, pivot), max(k, pivot)] = value
            entry[pivot, pivot] = builder.fneg(inverse)
        for number, (i, k) in enumerate(pairs):
            own.store(builder.add(starts[i], _Z(k)), entry[i, k])
            own.store(builder.add(start, _Z(number)), builder.fneg(entry[i, k]))
        return context.get_dummy_value()

    return types.void(room, types.intp, types.intp, types.intp), generate
