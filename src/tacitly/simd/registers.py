"""Vector registers for compiled kernels, and small pieces that several of them share.

Numba vectorises simple loops, but not what costs most here: many short dot products at once. So a register of 64 bytes
is a type of its own (:class:`Register`), with just the operations the kernels need. LLVM maps it to what the machine
has: one register of AVX-512, two of AVX2, four of NEON.

Two rules keep users apart. A register never mixes two rows: the end of a row is read under a mask, because zero times a
neighbour's NaN is NaN. And NaN and infinity keep their meaning (no ``nnan``, no ``ninf``): kernels rely on it to leave
out users whose numbers are not finite.
"""

# What Numba compiles, and what generates code for it, has no types that mypy knows.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

_operation: Any = intrinsic  # its own type speaks of the generator below, not of the function that kernels call
_BYTES = 64
_FUSE = ("contract",)  # a product and a sum may become one instruction; nothing else may change


def padded(matrix: npt.NDArray[np.floating], dtype: npt.DTypeLike) -> npt.NDArray[np.floating]:
    """Copy with zeros added up to multiples of 4 rows and 16 columns (no direction then needs a mask), on a cache line.

    >>> padded(np.ones((2, 3)), np.float32).shape
    (4, 16)
    """
    rows, columns = matrix.shape
    copy = aligned_zeros(rows + -rows % 4, columns + -columns % 16, dtype)
    copy[:rows, :columns] = matrix
    return copy


def aligned_zeros(rows: int, columns: int, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[np.floating]:
    """Zeros that start on a cache line: a register that straddles two takes twice as long to read."""
    item = np.dtype(dtype).itemsize
    flat = np.zeros(rows * columns + _BYTES // item, dtype=dtype)
    start = -flat.ctypes.data % _BYTES // item
    return flat[start : start + rows * columns].reshape(rows, columns)


class Register(types.Type):
    """64 bytes of equal floats."""

    def __init__(self, dtype: types.Float) -> None:
        super().__init__(name=f"Register({dtype})")
        self.dtype = dtype
        self.lanes = 8 * _BYTES // dtype.bitwidth


@register_model(Register)
class _RegisterModel(models.PrimitiveModel):
    def __init__(self, manager, register):
        lane = manager.lookup(register.dtype).get_value_type()
        super().__init__(manager, register, ir.VectorType(lane, register.lanes))


def address_of(context, builder, kind, array, position, *, pointee=None):
    """Point to an element of an array, counted along its rows."""
    if kind.layout != "C":  # positions count along rows: in any other array they would point elsewhere, or outside
        raise TypeError(f"kernels that address by position need arrays in rows, one after the other. Found {kind}.")
    address = builder.gep(context.make_array(kind)(context, builder, array).data, [position])
    return address if pointee is None else builder.bitcast(address, pointee.as_pointer())


def _shuffle(builder, a, b, lanes):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes)))


def splat(builder, value, lanes):
    """Put one value in every lane."""
    vector = ir.VectorType(value.type, lanes)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return _shuffle(builder, single, single, [0] * lanes)


def _cast(builder, value, lane):
    vector = ir.VectorType(lane, value.type.count)
    if value.type == vector:
        return value
    return builder.fpext(value, vector) if lane == ir.DoubleType() else builder.fptrunc(value, vector)


def _masked_load(context, builder, kind, arguments, lanes):
    array, position, count = arguments
    vector, flag = ir.VectorType(context.get_value_type(kind.dtype), lanes), ir.IntType(32)
    numbers = ir.Constant(ir.VectorType(count.type, lanes), list(range(lanes)))
    mask = builder.icmp_signed("<", numbers, splat(builder, count, lanes))
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(vector, [vector.as_pointer(), flag, mask.type, vector]),
        f"llvm.masked.load.v{lanes}f{kind.dtype.bitwidth}.p0",
    )
    address = address_of(context, builder, kind, array, position, pointee=vector)
    return builder.call(function, [address, flag(kind.dtype.bitwidth // 8), mask, ir.Constant(vector, None)])


@_operation
def lanes_of(typing_context, array):
    """Count the elements of this array that a register holds."""

    def generate(context, builder, signature, arguments):
        return context.get_constant(types.intp, Register(array.dtype).lanes)

    return types.intp(array), generate


@_operation
def load(typing_context, array, position):
    """Read elements position, position + 1, and so on of an array, counted along its rows."""
    register = Register(array.dtype)

    def generate(context, builder, signature, arguments):
        address = address_of(context, builder, signature.args[0], *arguments, pointee=context.get_value_type(register))
        return builder.load(address, align=array.dtype.bitwidth // 8)

    return register(array, types.intp), generate


@_operation
def load_first(typing_context, array, position, count):
    """Read ``count`` elements, then zeros; nothing beyond them is touched."""
    register = Register(array.dtype)

    def generate(context, builder, signature, arguments):
        return _masked_load(context, builder, signature.args[0], arguments, register.lanes)

    return register(array, types.intp, types.intp), generate


@_operation
def load_doubles(typing_context, array, position, count):
    """Read ``count`` elements, then zeros, in double precision."""
    register = Register(types.float64)

    def generate(context, builder, signature, arguments):
        value = _masked_load(context, builder, signature.args[0], arguments, register.lanes)
        return _cast(builder, value, ir.DoubleType())

    return register(array, types.intp, types.intp), generate


@_operation
def load_every(typing_context, array, position, stride):
    """Read elements position, position + stride, and so on."""
    register = Register(array.dtype)

    def generate(context, builder, signature, arguments):
        values, position, stride = arguments
        value = ir.Constant(context.get_value_type(register), ir.Undefined)
        for lane in range(register.lanes):
            element = builder.load(address_of(context, builder, signature.args[0], values, position))
            value = builder.insert_element(value, element, ir.IntType(32)(lane))
            position = builder.add(position, stride)
        return value

    return register(array, types.intp, types.intp), generate


@_operation
def store(typing_context, array, position, register):
    """Write a register to an array, in the array's precision."""

    def generate(context, builder, signature, arguments):
        value = _cast(builder, arguments[2], context.get_value_type(array.dtype))
        address = address_of(context, builder, signature.args[0], *arguments[:2], pointee=value.type)
        builder.store(value, address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, register), generate


@_operation
def fetch(typing_context, array, position):
    """Ask for an element's cache line; harmless beyond the end.

    Into the second cache, not the first: requests to the first queue behind its few miss buffers and stall the
    loads that are needed now (measured: worse than none, where these hide all of memory's time).
    """

    def generate(context, builder, signature, arguments):
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        address = address_of(context, builder, signature.args[0], *arguments, pointee=ir.IntType(8))
        builder.call(function, [address, flag(0), flag(2), flag(1)])  # to read, second cache, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@_operation
def spread(typing_context, value):
    """Put one number in every lane."""
    register = Register(value)

    def generate(context, builder, signature, arguments):
        return splat(builder, arguments[0], register.lanes)

    return register(value), generate


def _arithmetic(name):
    @_operation
    def operation(typing_context, a, b):
        def generate(context, builder, signature, arguments):
            return getattr(builder, name)(*arguments, flags=_FUSE)

        return a(a, b), generate

    def implementation(a, b):
        if isinstance(a, Register) and a == b:
            return lambda a, b: operation(a, b)
        return None

    return implementation


overload(operator.add)(_arithmetic("fadd"))
overload(operator.sub)(_arithmetic("fsub"))
overload(operator.mul)(_arithmetic("fmul"))
overload(operator.truediv)(_arithmetic("fdiv"))


@_operation
def root(typing_context, register):
    """Take square roots; NaN of negative lanes."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(arguments[0].type, [arguments[0].type])
        name = f"llvm.sqrt.v{register.lanes}f{register.dtype.bitwidth}"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

    return register(register), generate


@_operation
def where_usable(typing_context, size, register):
    """Keep lanes whose size is positive and finite; zero elsewhere, whatever is there (a product would keep NaN)."""

    def generate(context, builder, signature, arguments):
        test, value = arguments
        zero, infinity = ir.Constant(test.type, None), splat(builder, test.type.element(math.inf), register.lanes)
        usable = builder.and_(builder.fcmp_ordered(">", test, zero), builder.fcmp_ordered("<", test, infinity))
        return builder.select(usable, value, zero)

    return register(register, register), generate


@_operation
def total(typing_context, register):
    """Add up the lanes."""

    def generate(context, builder, signature, arguments):
        value = arguments[0]
        while value.type.count > 1:
            value = _fold(builder, value)
        return builder.extract_element(value, ir.IntType(32)(0))

    return register.dtype(register), generate


def _fold(builder, value):
    half = value.type.count // 2
    low, high = (_shuffle(builder, value, value, range(start, start + half)) for start in (0, half))
    return builder.fadd(low, high)


@_operation
def no_products(typing_context, array):
    """Return sixteen registers of zeros: where sums of products start."""
    sums = types.UniTuple(Register(array.dtype), 16)

    def generate(context, builder, signature, arguments):
        return context.get_constant_null(sums)

    return sums(array), generate


@_operation(prefer_literal=True)
def add_products(typing_context, sums, rows, columns, part):
    """Return sums[4i + j] + rows[i]·columns[j], lane by lane, for four rows and four columns.

    ``part`` says for which i and j: ``all``, ``lower`` (j ≤ i), or i below one (``first``), ``two`` or ``three``; the
    other sums stay as they are.
    """
    few = {"first": 1, "two": 2, "three": 3}
    name = part.literal_value

    def wanted(i, j):
        return j <= i if name == "lower" else i < few.get(name, 4)

    def generate(context, builder, signature, arguments):
        old, left, right = (cgutils.unpack_tuple(builder, argument) for argument in arguments[:3])
        new = [
            builder.fadd(old[4 * i + j], builder.fmul(left[i], right[j], flags=_FUSE), flags=_FUSE)
            if wanted(i, j)
            else old[4 * i + j]
            for i in range(4)
            for j in range(4)
        ]
        return context.make_tuple(builder, sums, new)

    return sums(sums, rows, columns, part), generate


@_operation
def store_totals(typing_context, array, position, stride, sums):
    """Write the sum of the lanes of sums[4i + j] to array[position + stride·i + j], in the array's precision."""

    def generate(context, builder, signature, arguments):
        values, position, stride, registers = arguments
        totals = _totals(builder, cgutils.unpack_tuple(builder, registers))
        for value in totals:
            for start in range(0, value.type.count, 4):
                four = _shuffle(builder, value, value, range(start, start + 4))
                four = _cast(builder, four, context.get_value_type(array.dtype))
                address = address_of(context, builder, signature.args[0], values, position, pointee=four.type)
                builder.store(four, address, align=array.dtype.bitwidth // 8)
                position = builder.add(position, stride)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, sums), generate


def _totals(builder, registers):
    """Add up the lanes of sixteen registers, into few registers, in order.

    One register alone takes as many steps as its lanes can be halved, and most lanes idle. Instead two registers are
    halved into one, two of those into one, and so on: three instructions a pair. Where a lane ends up follows from
    the instructions; running them on labels first tells in which order to give the registers.
    """
    halves = [_fold(builder, register) for register in registers]  # the lower half of a register is free to take
    lanes = halves[0].type.count

    def add(a, b, even, odd):
        return builder.fadd(_shuffle(builder, a, b, even), _shuffle(builder, a, b, odd))

    def label(a, b, even, odd):
        return [(a + b)[lane] for lane in even]

    labels = _halvings([[number] * lanes for number in range(16)], lanes, label)
    order = [number for row in labels for number in row]
    return _halvings([halves[order.index(number)] for number in range(16)], lanes, add)


def _halvings(items, lanes, add):
    """Halve pairs of items until each lane is a total: first 128-bit pieces are added, then lanes within a piece.

    So each shuffle is one instruction of x86: it takes ``unit`` lanes at a time from every ``span`` lanes.
    """
    piece = lanes // 2
    rounds = [(lanes, piece)] + [(piece, piece >> i) for i in range(1, piece.bit_length())]
    for span, unit in rounds:
        even = [
            source + start + lane
            for start in range(0, lanes, span)
            for source in (0, lanes)
            for lane in range(span)
            if lane // unit % 2 == 0
        ]
        odd = [lane + unit for lane in even]
        items = [add(a, b, even, odd) for a, b in zip(items[::2], items[1::2], strict=True)]
    return items
