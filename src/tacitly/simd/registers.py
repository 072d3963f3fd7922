"""SIMD registers for compiled kernels.

Numba vectorises simple loops, but not the most expensive operation here: many short dot products at once. So a register
of 64 bytes is a Numba type (:class:`Register`) with only the operations that kernels need. LLVM maps it to the
machine's registers: one of AVX-512, two of AVX2, four of NEON.

Two rules keep users separate. A register never mixes two rows: the end of a row is read under a mask, because zero
times a neighbour's NaN is NaN. And NaN and infinity keep their meaning (no ``nnan``, no ``ninf``), because kernels rely
on it to leave out users whose values are not finite.
"""

# Numba-compiled functions, and code generators for them, have no types that mypy knows.
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
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, models, overload, register_model

_operation: Any = intrinsic  # its declared type describes the generators below, not the functions that kernels call
_BYTES = 64
_HALF_ROOT = int(np.array([math.sqrt(0.5)]).view(np.int64)[0])  # bits of the smallest significand; below √2
FUSE = ("contract",)  # allow fused multiply-add, and no other change of the arithmetic


def padded(matrix: npt.NDArray[np.floating], dtype: npt.DTypeLike) -> npt.NDArray[np.floating]:
    """Return a cache-aligned copy, zero-padded to multiples of 4 rows and 16 columns, so that no row needs a mask.

    >>> padded(np.ones((2, 3)), np.float32).shape
    (4, 16)
    """
    rows, columns = matrix.shape
    copy = aligned_zeros(rows + -rows % 4, columns + -columns % 16, dtype)
    copy[:rows, :columns] = matrix
    return copy


def aligned_zeros(rows: int, columns: int, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[np.floating]:
    """Return zeros aligned to a cache line: a load that straddles two lines takes twice as long."""
    item = np.dtype(dtype).itemsize
    flat = np.zeros(rows * columns + _BYTES // item, dtype=dtype)
    start = -flat.ctypes.data % _BYTES // item
    return flat[start : start + rows * columns].reshape(rows, columns)


class Register(types.Type):
    """Numba type of a 64-byte vector of floats."""

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
    """Return the address of an element, by its position in row-major order."""
    if kind.layout != "C":  # in any other layout, row-major positions would be wrong, or outside of the array
        raise TypeError(f"kernels that address by position need C-contiguous arrays. Found {kind}.")
    address = builder.gep(context.make_array(kind)(context, builder, array).data, [position])
    return address if pointee is None else builder.bitcast(address, pointee.as_pointer())


def shuffle(builder, a, b, lanes):
    """Return a vector of selected lanes of two vectors; the second's lanes are numbered after the first's."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes)))


def splat(builder, value, lanes):
    """Return a vector with one value in every lane."""
    vector = ir.VectorType(value.type, lanes)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return shuffle(builder, single, single, [0] * lanes)


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
def frozen(typing_context, array):
    """Return an array as a read-only one, so that a kernel that takes users' rows is compiled once, not twice."""

    def generate(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    return array.copy(readonly=True)(array), generate


@_operation
def lanes_of(typing_context, array):
    """Return how many elements of this array's dtype a register holds."""

    def generate(context, builder, signature, arguments):
        return context.get_constant(types.intp, Register(array.dtype).lanes)

    return types.intp(array), generate


@_operation
def load(typing_context, array, position):
    """Load consecutive elements from a row-major position."""
    register = Register(array.dtype)

    def generate(context, builder, signature, arguments):
        address = address_of(context, builder, signature.args[0], *arguments, pointee=context.get_value_type(register))
        return builder.load(address, align=array.dtype.bitwidth // 8)

    return register(array, types.intp), generate


@_operation
def load_first(typing_context, array, position, count):
    """Load ``count`` elements, then zeros; memory beyond them is not read."""
    register = Register(array.dtype)

    def generate(context, builder, signature, arguments):
        return _masked_load(context, builder, signature.args[0], arguments, register.lanes)

    return register(array, types.intp, types.intp), generate


@_operation
def load_doubles(typing_context, array, position, count):
    """Load ``count`` elements, then zeros, converted to double precision."""
    register = Register(types.float64)

    def generate(context, builder, signature, arguments):
        value = _masked_load(context, builder, signature.args[0], arguments, register.lanes)
        return _cast(builder, value, ir.DoubleType())

    return register(array, types.intp, types.intp), generate


@_operation
def widened(typing_context, array, position):
    """Load eight elements, converted to double precision."""
    register = Register(types.float64)

    def generate(context, builder, signature, arguments):
        vector = ir.VectorType(context.get_value_type(array.dtype), register.lanes)
        address = address_of(context, builder, signature.args[0], *arguments, pointee=vector)
        return _cast(builder, builder.load(address, align=array.dtype.bitwidth // 8), ir.DoubleType())

    return register(array, types.intp), generate


@_operation
def repeat(typing_context, array, position):
    """Return a register with one element of an array in every lane."""
    register = Register(array.dtype)

    def generate(context, builder, signature, arguments):
        address = address_of(context, builder, signature.args[0], *arguments)
        return splat(builder, builder.load(address), register.lanes)

    return register(array, types.intp), generate


@_operation
def repeat_pair(typing_context, array, position):
    """Return a register with one element of an array in the first half of the lanes and the next one in the second."""
    register = Register(array.dtype)

    def generate(context, builder, signature, arguments):
        two = ir.VectorType(context.get_value_type(array.dtype), 2)
        address = address_of(context, builder, signature.args[0], *arguments, pointee=two)
        pair, half = builder.load(address, align=array.dtype.bitwidth // 8), register.lanes // 2
        return shuffle(builder, pair, pair, [0] * half + [1] * half)

    return register(array, types.intp), generate


@_operation
def load_every(typing_context, array, position, stride):
    """Load elements position, position + stride, and so on."""
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
    """Store a register to an array, in the array's precision."""

    def generate(context, builder, signature, arguments):
        value = _cast(builder, arguments[2], context.get_value_type(array.dtype))
        address = address_of(context, builder, signature.args[0], *arguments[:2], pointee=value.type)
        builder.store(value, address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, register), generate


@_operation
def add_to(typing_context, array, position, register):
    """Add a register to an array, in the array's precision."""

    def generate(context, builder, signature, arguments):
        value = _cast(builder, arguments[2], context.get_value_type(array.dtype))
        address = address_of(context, builder, signature.args[0], *arguments[:2], pointee=value.type)
        align = array.dtype.bitwidth // 8
        builder.store(builder.fadd(builder.load(address, align=align), value), address, align=align)
        return context.get_dummy_value()

    return types.void(array, types.intp, register), generate


@_operation
def fetch(typing_context, array, position):
    """Prefetch an element's cache line; harmless beyond the end of the array.

    It uses the L2 cache, not L1: L1 prefetches queue behind its few miss buffers and stall the loads that are needed
    now (measured: slower than no prefetch, while L2 prefetches hide the memory latency).
    """

    def generate(context, builder, signature, arguments):
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        address = address_of(context, builder, signature.args[0], *arguments, pointee=ir.IntType(8))
        builder.call(function, [address, flag(0), flag(2), flag(1)])  # read, L2, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@_operation
def spread(typing_context, value):
    """Return a register with one number in every lane."""
    register = Register(value)

    def generate(context, builder, signature, arguments):
        return splat(builder, arguments[0], register.lanes)

    return register(value), generate


def _arithmetic(name):
    @_operation
    def operation(typing_context, a, b):
        def generate(context, builder, signature, arguments):
            return getattr(builder, name)(*arguments, flags=FUSE)

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


def _of_one_argument(name, register):
    """Return signature and generator of the LLVM function with this name."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(arguments[0].type, [arguments[0].type])
        intrinsic_name = f"llvm.{name}.v{register.lanes}f{register.dtype.bitwidth}"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, intrinsic_name), arguments)

    return register(register), generate


@_operation
def root(typing_context, register):
    """Return the square root of every lane; NaN where it is negative."""
    return _of_one_argument("sqrt", register)


@_operation
def with_sign_of(typing_context, register, other):
    """Return the absolute values of one register with the signs of another."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(arguments[0].type, [arguments[0].type] * 2)
        name = f"llvm.copysign.v{register.lanes}f{register.dtype.bitwidth}"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

    return register(register, other), generate


@_operation
def nearest(typing_context, register):
    """Return every lane rounded to the nearest integer."""
    return _of_one_argument("nearbyint", register)


@_operation
def absolute(typing_context, register):
    """Return the absolute value of every lane."""
    return _of_one_argument("fabs", register)


@_operation
def exponent(typing_context, register):
    """Return the exponents e of doubles m·2^e with √½ ≤ m < √2, as numbers; for positive normal numbers."""

    def generate(context, builder, signature, arguments):
        return builder.sitofp(_exponents(builder, arguments[0])[1], arguments[0].type)

    return register(register), generate


@_operation
def significand(typing_context, register):
    """Return the m of :func:`exponent`."""

    def generate(context, builder, signature, arguments):
        bits, exponents = _exponents(builder, arguments[0])
        exponents = builder.shl(exponents, splat(builder, bits.type.element(52), register.lanes))
        return builder.bitcast(builder.sub(bits, exponents), arguments[0].type)

    return register(register), generate


def _exponents(builder, value):
    """Return the bits of doubles, and their exponents as integers."""
    bits = builder.bitcast(value, ir.VectorType(ir.IntType(64), value.type.count))
    least = splat(builder, bits.type.element(_HALF_ROOT), value.type.count)
    return bits, builder.ashr(builder.sub(bits, least), splat(builder, bits.type.element(52), value.type.count))


@_operation
def at_least(typing_context, register, value):
    """Return the maximum of ``register`` and ``value``; ``value`` also where a lane is NaN."""

    def generate(context, builder, signature, arguments):
        least = splat(builder, arguments[1], register.lanes)
        return builder.select(builder.fcmp_ordered(">", arguments[0], least), arguments[0], least)

    return register(register, register.dtype), generate


@_operation
def at_most(typing_context, register, value):
    """Return the minimum of ``register`` and ``value``; ``value`` also where a lane is NaN."""

    def generate(context, builder, signature, arguments):
        most = splat(builder, arguments[1], register.lanes)
        return builder.select(builder.fcmp_ordered("<", arguments[0], most), arguments[0], most)

    return register(register, register.dtype), generate


@_operation
def beyond(typing_context, register, value):
    """Return an integer that is zero if the absolute value of every lane is a number of at most ``value``."""

    def generate(context, builder, signature, arguments):
        most = splat(builder, arguments[1], register.lanes)
        kind = ir.FunctionType(arguments[0].type, [arguments[0].type])
        name = f"llvm.fabs.v{register.lanes}f{register.dtype.bitwidth}"
        size = builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [arguments[0]])
        flags = builder.fcmp_unordered(">", size, most)
        return builder.zext(builder.bitcast(flags, ir.IntType(register.lanes)), ir.IntType(64))

    return types.intp(register, register.dtype), generate


@_operation
def where_finite(typing_context, test, register):
    """Return ``register`` where ``test`` is finite, else zero."""

    def generate(context, builder, signature, arguments):
        # x − x is zero for finite numbers only.
        zero = ir.Constant(arguments[0].type, None)
        finite = builder.fcmp_ordered("==", builder.fsub(arguments[0], arguments[0]), zero)
        return builder.select(finite, arguments[1], zero)

    return register(test, register), generate


@_operation
def where_number(typing_context, test, register):
    """Return ``register`` where ``test`` is not NaN, else NaN."""

    def generate(context, builder, signature, arguments):
        nan = splat(builder, arguments[1].type.element(math.nan), register.lanes)
        return builder.select(builder.fcmp_ordered("ord", arguments[0], arguments[0]), arguments[1], nan)

    return register(test, register), generate


@_operation
def where_usable(typing_context, size, register):
    """Return ``register`` where ``size`` is positive and finite, else zero (a product with zero would keep NaN)."""

    def generate(context, builder, signature, arguments):
        test, value = arguments
        zero, infinity = ir.Constant(test.type, None), splat(builder, test.type.element(math.inf), register.lanes)
        usable = builder.and_(builder.fcmp_ordered(">", test, zero), builder.fcmp_ordered("<", test, infinity))
        return builder.select(usable, value, zero)

    return register(register, register), generate


@_operation
def total(typing_context, register):
    """Return the sum of the lanes."""

    def generate(context, builder, signature, arguments):
        value = arguments[0]
        while value.type.count > 1:
            value = _fold(builder, value)
        return builder.extract_element(value, ir.IntType(32)(0))

    return register.dtype(register), generate


def _fold(builder, value):
    half = value.type.count // 2
    low, high = (shuffle(builder, value, value, range(start, start + half)) for start in (0, half))
    return builder.fadd(low, high)


@_operation
def no_products(typing_context, array):
    """Return sixteen zero registers, the initial sums of :func:`add_products`."""
    sums = types.UniTuple(Register(array.dtype), 16)

    def generate(context, builder, signature, arguments):
        return context.get_constant_null(sums)

    return sums(array), generate


@_operation(prefer_literal=True)
def add_products(typing_context, sums, rows, columns, part):
    """Return sums[4i + j] + rows[i]·columns[j], lane by lane, for four rows and four columns.

    ``part`` selects the pairs: ``all``, ``lower`` (j ≤ i), or i < 1, 2 or 3 (``first``, ``two``, ``three``); the other
    sums are returned unchanged.
    """
    few = {"first": 1, "two": 2, "three": 3}
    name = part.literal_value

    def wanted(i, j):
        return j <= i if name == "lower" else i < few.get(name, 4)

    def generate(context, builder, signature, arguments):
        old, left, right = (cgutils.unpack_tuple(builder, argument) for argument in arguments[:3])
        new = [
            builder.fadd(old[4 * i + j], builder.fmul(left[i], right[j], flags=FUSE), flags=FUSE)
            if wanted(i, j)
            else old[4 * i + j]
            for i in range(4)
            for j in range(4)
        ]
        return context.make_tuple(builder, sums, new)

    return sums(sums, rows, columns, part), generate


@_operation
def store_totals(typing_context, array, position, stride, sums):
    """Store the sum of the lanes of sums[4i + j] to array[position + stride·i + j], in the array's precision."""

    def generate(context, builder, signature, arguments):
        values, position, stride, registers = arguments
        totals = _totals(builder, cgutils.unpack_tuple(builder, registers))
        for value in totals:
            for start in range(0, value.type.count, 4):
                four = shuffle(builder, value, value, range(start, start + 4))
                four = _cast(builder, four, context.get_value_type(array.dtype))
                address = address_of(context, builder, signature.args[0], values, position, pointee=four.type)
                builder.store(four, address, align=array.dtype.bitwidth // 8)
                position = builder.add(position, stride)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, sums), generate


def _totals(builder, registers):
    """Sum the lanes of each of sixteen registers; return the totals in order, packed into few registers.

    Reducing one register at a time takes log2(lanes) steps with most lanes idle. Instead two registers are halved into
    one, two of those into one, and so on: three instructions per pair. The final position of each total follows from
    the instructions, so they are run on labels first to find the order in which to pass the registers.
    """
    halves = [_fold(builder, register) for register in registers]  # taking the lower half of a register is free
    lanes = halves[0].type.count

    def add(a, b, even, odd):
        return builder.fadd(shuffle(builder, a, b, even), shuffle(builder, a, b, odd))

    def label(a, b, even, odd):
        return [(a + b)[lane] for lane in even]

    labels = _halvings([[number] * lanes for number in range(16)], lanes, label)
    order = [number for row in labels for number in row]
    return _halvings([halves[order.index(number)] for number in range(16)], lanes, add)


def _halvings(items, lanes, add):
    """Combine pairs of items until each lane is a total: first 128-bit pieces are added, then lanes within a piece.

    In this order each shuffle is one x86 instruction: it takes ``unit`` lanes at a time from every ``span`` lanes.
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
