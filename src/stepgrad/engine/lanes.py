"""Rows of `LANES` numbers that a kernel works on at once: one row is one register of the machine, or a few.

LLVM makes such code of a loop over the row only where it can prove that no two arrays share memory, which it cannot here. So
kernels say it: `plus(a, b)` adds two rows, number by number. With numba switched off, a row is an array.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

LANES = 16
_INT32, _FLOAT64 = ir.IntType(32), ir.DoubleType()


class RowType(types.Type):
    """`LANES` numbers of one type."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole  # int32, else float64
        super().__init__(name=f"Row({'int32' if whole else 'float64'})")

    @property
    def vector(self) -> ir.VectorType:
        """As LLVM calls it."""
        return ir.VectorType(_INT32 if self.whole else _FLOAT64, LANES)


COUNTS, NUMBERS = RowType(True), RowType(False)


@register_model(RowType)
class _RowModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, fe_type.vector)


@intrinsic
def _no_counts(typingctx: Any) -> Any:
    return COUNTS(), lambda context, builder, signature, args: ir.Constant(COUNTS.vector, [0] * LANES)


@intrinsic
def _no_numbers(typingctx: Any) -> Any:
    return NUMBERS(), lambda context, builder, signature, args: ir.Constant(NUMBERS.vector, [0.0] * LANES)


def _pointer(context: Any, builder: Any, kind: Any, rows: Any, i: Any, index: Any) -> Any:
    """The address of row i of a contiguous array (n, LANES), and the bytes of a number in it."""
    data = context.make_array(kind)(context, builder, rows).data
    first = builder.mul(context.cast(builder, i, index, types.int64), ir.Constant(ir.IntType(64), LANES))
    vector = ir.VectorType(data.type.pointee, LANES)
    return builder.bitcast(builder.gep(data, [first]), vector.as_pointer()), kind.dtype.bitwidth // 8


@intrinsic
def _load(typingctx: Any, rows: Any, i: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place, size = _pointer(context, builder, rows, args[0], args[1], i)
        row = builder.load(place, align=size)  # rows begin anywhere
        return builder.zext(row, COUNTS.vector) if size == 1 else row

    return COUNTS(rows, i), codegen


@intrinsic
def _store(typingctx: Any, row: Any, rows: Any, i: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place, size = _pointer(context, builder, rows, args[1], args[2], i)
        builder.store(args[0], place, align=size)
        return context.get_dummy_value()

    return types.none(row, rows, i), codegen


def _each(of_counts: str, of_numbers: str) -> Any:
    """An operation on two rows of one type, by LLVM's names for it."""

    @intrinsic
    def operation(typingctx: Any, a: Any, b: Any) -> Any:
        name = of_counts if a.whole else of_numbers
        return a(a, b), lambda context, builder, signature, args: getattr(builder, name)(*args)

    return operation


@intrinsic
def _ratio(typingctx: Any, a: Any, b: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fdiv(*(builder.sitofp(count, NUMBERS.vector) for count in args))

    return NUMBERS(a, b), codegen


@intrinsic
def _larger(typingctx: Any, a: Any, b: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return NUMBERS(a, b), codegen


@intrinsic
def _look_up(typingctx: Any, table: Any, row: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(table)(context, builder, args[0]).data
        words = ir.VectorType(ir.IntType(64), LANES)
        places = builder.mul(builder.sext(args[1], words), ir.Constant(words, [LANES] * LANES))
        places = builder.add(places, ir.Constant(words, list(range(LANES))))
        found = ir.Constant(NUMBERS.vector, ir.Undefined)
        for number in range(LANES):
            lane = ir.Constant(_INT32, number)
            value = builder.load(builder.gep(data, [builder.extract_element(places, lane)]))
            found = builder.insert_element(found, value, lane)
        return found

    return NUMBERS(table, row), codegen


if numba.config.DISABLE_JIT:  # Python cannot call intrinsics

    def no_counts() -> Any:
        """A row of zeros to count with."""
        return np.zeros(LANES, dtype=np.int64)

    def no_numbers() -> Any:
        """A row of zeros to add numbers to."""
        return np.zeros(LANES)

    def load(rows: Any, i: int) -> Any:
        """Row i of a contiguous array (n, LANES) of uint8 or int32, as counts."""
        return rows[i].astype(np.int64)

    def store(row: Any, rows: Any, i: int) -> None:
        """rows[i] = row, where the array (n, LANES) is contiguous and of the row's type."""
        rows[i] = row

    def ratio(a: Any, b: Any) -> Any:
        """a / b of counts; nan where both are 0."""
        return a / b

    def larger(a: Any, b: Any) -> Any:
        """The larger of two numbers; b where a is nan."""
        return np.where(a > b, a, b)

    def look_up(table: Any, row: Any) -> Any:
        """table[row[l], l] for each l; the table is contiguous float64 (n, LANES)."""
        return table[row, np.arange(LANES)]

    plus, minus, times = np.add, np.subtract, np.multiply
else:
    no_counts, no_numbers, load, store = _no_counts, _no_numbers, _load, _store
    ratio, larger, look_up = _ratio, _larger, _look_up
    plus, minus, times = _each("add", "fadd"), _each("sub", "fsub"), _each("mul", "fmul")
