"""Keys as numbers, so that whole columns of them can be sorted and compared at once.

A single column of integers or times is its own numbers. Everything else is looked up, once for every key that is
different within an epoch, never for a row.

Floats are one key where Spark's GROUP BY says so: -0.0 and 0.0 are, and all NaNs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from understudy.windowed.log import Ints

NONE = -1
"""The number of a key that is not known."""
_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
Flags = npt.NDArray[np.bool_]


def kind(type_: Any) -> str:
    """Keys of two types can be compared where this is the same."""
    if pa.types.is_dictionary(type_):
        return kind(type_.value_type)
    if pa.types.is_integer(type_) and not pa.types.is_uint64(type_):  # which holds what int64 does not
        return "integer"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return "string"
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return "binary"
    return str(type_)


@lru_cache(maxsize=256)
def usable(type_: Any) -> bool:
    """Whether a column of this type can be a key: Arrow has no kernels for lists, structures, views and others."""
    try:
        column = as_key(pa.nulls(1, type_))
        _, firsts = distinct([column])
        values([column.take(pa.array(firsts))])
    except (pa.ArrowException, NotImplementedError, ValueError, TypeError):
        return False
    return True


def check(call: str, schema: pa.Schema, names: Sequence[str]) -> None:
    """Of columns that are there. ``call``: the function and its parameter, such as ``join(on``. Raises ValueError."""
    for name in names:
        type_ = schema.field(name).type
        if not usable(type_):
            raise ValueError(
                f"{call}={name!r}) is {type_}, which cannot be a key; cast it to a string, binary, a number or a time "
                "before, or take one of its parts"
            )


def plain(column: Any) -> Any:
    """One array of a column's values, not of a dictionary's."""
    if pa.types.is_dictionary(column.type):  # chunk by chunk: their dictionaries together may be too many to number
        column = column.cast(column.type.value_type)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def as_key(column: Any) -> Any:
    """One array of a column's values, with one zero and one NaN."""
    found = plain(column)
    if not pa.types.is_floating(found.type):
        return found
    numbers = found.to_numpy(zero_copy_only=False) + 0.0
    numbers[np.isnan(numbers)] = np.nan
    there = found.is_valid().to_numpy(zero_copy_only=False) if found.null_count else None
    return pa.array(numbers, mask=None if there is None else ~there, from_pandas=False)


def with_keys(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The table with floats among its key columns as ``as_key`` has them, for results that show the keys."""
    for at in (table.schema.get_field_index(name) for name in names):
        if at >= 0 and pa.types.is_floating(table.schema.field(at).type):
            table = table.set_column(at, table.schema.field(at), as_key(table.column(at)))
    return table


def keys_of(table: pa.Table, names: Sequence[str]) -> list[Any]:
    """The columns that all other functions here are given. Raises ValueError."""
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise ValueError(f"there is no column {missing[0]!r} among {table.column_names}")
    return [as_key(table[name]) for name in names]


def distinct(columns: Sequence[Any]) -> tuple[Ints, Ints]:
    """The keys of these columns as numbers from 0, in order of appearance, and a row that each appears in, the
    first."""
    codes: Ints = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        codes = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy(zero_copy_only=False)
        if len(columns) > 1:  # numbered again, or they would outgrow 64 bits
            codes = pc.dictionary_encode(pa.array(codes)).indices.to_numpy(zero_copy_only=False).astype(np.int64)
    count = int(codes.max()) + 1 if len(codes) else 0
    firsts: Ints = np.empty(count, np.int64)
    firsts[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, firsts


def values(columns: Sequence[Any]) -> list[Any]:
    """As Python's objects, of several columns as tuples. Times and floats are their bits: Python's times have no
    nanoseconds, end with the year 9999 and say the same twice when clocks are set back; its NaNs differ from each
    other."""
    found = [_bits(column).to_pylist() for column in columns]
    return found[0] if len(found) == 1 else list(zip(*found))


def _bits(column: Any) -> Any:
    type_ = column.type
    if not (pa.types.is_temporal(type_) or pa.types.is_floating(type_)) or type_.bit_width not in _BITS:
        return column
    return column.view(_BITS[type_.bit_width])


def present(columns: Sequence[Any]) -> Flags | None:
    """Which rows have no null among the columns. None: all."""
    if not any(column.null_count for column in columns):
        return None
    found = np.ones(len(columns[0]), bool)
    for column in columns:
        found &= column.is_valid().to_numpy(zero_copy_only=False)
    return found


def as_numbers(columns: Sequence[Any]) -> Ints | None:
    """A single column whose values are numbers of at most 64 bits. None: these must be looked up."""
    type_ = columns[0].type
    if len(columns) != 1 or not (pa.types.is_integer(type_) or pa.types.is_temporal(type_)):
        return None
    if pa.types.is_temporal(type_) and type_.bit_width not in (32, 64):
        return None  # an interval
    array = _bits(columns[0])
    if array.null_count:
        array = array.fill_null(0)
    found: Ints = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return found


class Lookup:
    """Numbers for keys, from 0 in the order in which they were first seen."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def known(self, columns: Sequence[Any]) -> Ints:
        """``NONE`` for keys that were never added."""
        codes, keys = self._distinct(columns)
        found = self._numbers
        return np.fromiter((found.get(key, NONE) for key in keys), np.int64, len(keys))[codes]

    def added(self, columns: Sequence[Any]) -> Ints:
        codes, keys = self._distinct(columns)
        return np.fromiter((self._number(key) for key in keys), np.int64, len(keys))[codes]

    def _distinct(self, columns: Sequence[Any]) -> tuple[Ints, list[Any]]:
        codes, firsts = distinct(columns)
        return codes, values([column.take(pa.array(firsts)) for column in columns])

    def _number(self, key: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next
            self._next += 1
        return number

    def forget_all_but(self, numbers: Ints) -> None:
        kept = set(numbers.tolist())
        self._numbers = {key: number for key, number in self._numbers.items() if number in kept}
