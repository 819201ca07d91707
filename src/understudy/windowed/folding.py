"""What comes of groups of rows: sums, means and the like, the same as on Spark (``jvm/Aggregates.java``).

They are told among values that are not null; ``("*", "count")`` counts rows. In sums and means booleans are 0 and 1,
and sums of whole numbers are int64, which is what Spark knows. A sum that its type cannot hold is an error, as in
Spark: a wrong number that looks right is worse than a job that stops. What comes up on the way may be larger, so that
the order of rows does not matter. NaN is larger than any other number. """

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from understudy.windowed.keys import plain
from understudy.windowed.log import Ints

_PLACED = ("first", "last")
FUNCTIONS = ("mean", "sum", "min", "max", "count", *_PLACED)
ALL = "*"
"""Instead of a column: rows."""

Outputs = dict[str, tuple[str, str]]
"""Name -> column and function."""

_INT64_MAX = 2**63 - 1
_DIGITS_MAX = 38
"""Of a decimal, here as in Spark."""
_HALF = 32
"""Bits of the lower half of a whole number, where the halves are added up apart."""


def is_output(value: Any) -> bool:
    """Whether it looks like one: ``("speed", "mean")``."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(s, str) for s in value)


def too_large(name: str, output: tuple[str, str], type_: Any) -> str:
    """What is said of a sum that its type cannot hold, on both engines."""
    remedy = "a double" if pa.types.is_decimal(type_) else "a double or a decimal"
    return f"aggregate({name}={output!r}): the sum is more than {type_} can hold; make {output[0]!r} {remedy} before"


def folded(groups: Ints, rows: pa.Table, outputs: Outputs) -> list[Any]:
    """The outputs of every group, in the order of their numbers, which are all from 0 on. Raises ValueError where a
    function is not for a column's type, and OverflowError."""
    columns = {name: _prepared(rows, name, output) for name, output in outputs.items() if output[0] != ALL}
    wide = {name for name, column in columns.items() if not _fits(column, outputs[name][1])}
    usual = {name: o for name, o in outputs.items() if name not in wide and o[1] not in _PLACED}
    found = _by_arrow(groups, columns, usual)
    count = int(groups.max()) + 1 if len(groups) else 0
    for name, output in outputs.items():
        if output[1] in _PLACED:
            found[name] = _placed(groups, count, columns[name], newest=output[1] == "last")
        elif name in wide:
            found[name] = _wide(groups, count, columns[name], name, output)
        elif output[1] == "max" and pa.types.is_floating(columns[name].type):
            found[name] = _with_nan(groups, columns[name], found[name])
    return [found[name] for name in outputs]


def _prepared(rows: pa.Table, name: str, output: tuple[str, str]) -> Any:
    """The column as Arrow is to add it up."""
    column, function = plain(rows[output[0]]), output[1]
    type_ = column.type
    if function not in ("sum", "mean") or not (pa.types.is_boolean(type_) or pa.types.is_integer(type_)):
        return column
    if function == "mean" and pa.types.is_integer(type_):  # Arrow adds them up as whole numbers
        return column.cast(pa.float64(), safe=False) if type_.bit_width == 64 and not _is_small(column) else column
    if pa.types.is_signed_integer(type_):
        return column
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        raise OverflowError(too_large(name, output, pa.int64())) from None


def _fits(column: Any, function: str) -> bool:
    """Whether Arrow's own sum of all its values is right. It does not say when it is not."""
    if function == "sum" and pa.types.is_int64(column.type):
        return _is_small(column)
    if function in ("sum", "mean") and pa.types.is_decimal128(column.type):
        return bool(column.type.precision + len(str(len(column))) <= _DIGITS_MAX)
    return True


def _is_small(column: Any) -> bool:
    """Whether no sum of these whole numbers is beyond int64."""
    found = pc.min_max(column).as_py()
    return bool(max(abs(found["min"] or 0), abs(found["max"] or 0)) * len(column) <= _INT64_MAX)


def _by_arrow(groups: Ints, columns: Mapping[str, Any], outputs: Outputs) -> dict[str, Any]:
    """Raises ValueError."""
    asked = [([], "count_all") if column == ALL else (f"of {n}", function) for n, (column, function) in outputs.items()]
    used = {f"of {name}": columns[name] for name, (column, _) in outputs.items() if column != ALL}
    try:
        made = pa.table({"group": pa.array(groups), **used}).group_by("group", use_threads=False).aggregate(asked)
    except pa.ArrowException as error:
        told = ", ".join(f"{name}={output!r}" for name, output in outputs.items())
        raise ValueError(f"aggregate({told}) cannot be had of these columns: {error}") from error
    # Arrow's hash tables have an order of their own, which another processor need not share
    order = np.argsort(made.column(0).combine_chunks().to_numpy(zero_copy_only=False))
    return dict(zip(outputs, made.take(pa.array(order)).columns[1:]))


def _wide(groups: Ints, count: int, column: Any, name: str, output: tuple[str, str]) -> Any:
    """A sum, or a mean of decimals, that may be beyond its type, or be so on the way. Raises OverflowError."""
    type_ = _by_arrow(groups[:0], {name: column[:0]}, {name: output})[name].type
    try:
        if not pa.types.is_decimal(type_):
            return _whole(groups, count, column)
        wider = column.cast(pa.decimal256(76, column.type.scale))
        return plain(_by_arrow(groups, {name: wider}, {name: output})[name]).cast(type_)
    except (pa.ArrowInvalid, OverflowError):
        raise OverflowError(too_large(name, output, type_)) from None


def _whole(groups: Ints, count: int, column: Any) -> Any:
    """The upper and lower halves of numbers are added up apart, where neither sum can be beyond 64 bits. Raises
    OverflowError."""
    there = column.is_valid().to_numpy(zero_copy_only=False)
    of, values = groups[there], column.drop_null().to_numpy(zero_copy_only=False)
    upper, lower, rows = (np.zeros(count, np.int64) for _ in range(3))
    np.add.at(upper, of, values >> _HALF)
    np.add.at(lower, of, values & ((1 << _HALF) - 1))
    np.add.at(rows, of, 1)
    upper += lower >> _HALF
    if (upper >= 1 << 31).any() or (upper < -(1 << 31)).any():
        raise OverflowError
    return pa.array((upper << _HALF) + (lower & ((1 << _HALF) - 1)), mask=rows == 0)


def _with_nan(groups: Ints, column: Any, largest: Any) -> Any:
    """Arrow passes NaN over."""
    nan = pc.fill_null(pc.is_nan(column), False).to_numpy(zero_copy_only=False)
    if not nan.any():
        return largest
    has = np.zeros(len(largest), bool)
    has[groups[nan]] = True
    return pc.if_else(pa.array(has), pa.scalar(float("nan"), largest.type), plain(largest))


def _placed(groups: Ints, count: int, column: Any, *, newest: bool) -> Any:
    """Of every group the first value, or the newest, that is not null: of columns of any type, which Arrow's own
    functions are not."""
    there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    if not newest:
        there = there[::-1]
    at = np.full(count, -1, np.int64)
    at[groups[there]] = there  # where several are for one group, the last of them stays
    return column.take(pa.array(at, mask=at < 0))
