"""Two streams, row by row equal in their key columns, each within a window (Section 4.4's join).

An epoch has no order between its two inputs, so one is laid down, and every copy and every replay finds the same rows:

1. The left rows are matched with the right window as it was before the epoch, and go into the left window.
2. The right rows are matched with the left window, which has this epoch's left rows by now (the newest of them, where
   there are more than it holds), and go into the right window.

What is found by left rows comes first, in their order; then what is found by right rows, in theirs; and for one row in
the order in which its partners arrived. A null in a key column equals nothing, as in SQL; results show the left row's
key, and of a float its one zero and its one NaN. Columns that are dictionaries come out as their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from understudy.core.operators import OperatorClass, of_keys, of_rows
from understudy.windowed.base import Window, Windowed, aligned, check_columns, decoded_schema
from understudy.windowed.indexed import IndexedWindow
from understudy.windowed.keyed import KeyedWindows
from understudy.windowed.keys import check as check_keys
from understudy.windowed.keys import keys_of, kind, with_keys
from understudy.windowed.log import Ints
from understudy.windowed.spans import Rows, columns

SUFFIX = "_right"


class Join(Windowed):
    """Results have all left columns, then the right ones without the key. A right column whose name the left input has
    as well gets ``suffix``."""

    def __init__(
        self,
        on: str | Sequence[str],
        left: Rows,
        right: Rows,
        *,
        suffix: str = SUFFIX,
        schemas: tuple[pa.Schema, pa.Schema] | None = None,
    ) -> None:
        """``schemas``: of the inputs, where they are known; what does not fit is said at once."""
        self.on = columns("join", "on", on)
        if not isinstance(suffix, str):
            raise ValueError(f"join(suffix={suffix!r}) must be a text, such as {SUFFIX!r}")
        self._suffix = suffix
        for side, span in (("left", left), ("right", right)):
            if not isinstance(span, Rows):
                raise ValueError(f"join({side}={span!r}) must be a window by rows, such as us.rows(1000)")
            if span.per is not None and set(span.per) != set(self.on):
                raise ValueError(f"join({side}=rows(per={span.per!r})) must be per key of the join, on={self.on!r}")
        if left.count == right.count == 0:
            raise ValueError("join(left=rows(0), right=rows(0)) keeps no row of either, so that none is ever matched")
        if schemas is not None:
            self.schema(*schemas)
        self._left, self._right = _window(left, self.on), _window(right, self.on)
        self._fits: tuple[pa.Schema, pa.Schema, pa.Schema] | None = None
        """The newest inputs' schemas, and what comes of them: they hardly ever change."""

    def schema(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        """Of what comes of rows like these. Raises ValueError."""
        left, right = decoded_schema(left), decoded_schema(right)
        for side, schema in (("left", left), ("right", right)):
            check_columns(f"the {side} input of the join", schema)
            missing = next((name for name in self.on if name not in schema.names), None)
            if missing is not None:
                raise ValueError(f"join(on={missing!r}): the {side} input has no such column, only {schema.names}")
            check_keys("join(on", schema, self.on)
        for name in self.on:
            kinds = kind(left.field(name).type), kind(right.field(name).type)
            if kinds[0] != kinds[1]:
                raise ValueError(f"join(on={name!r}) is {kinds[0]} on the left and {kinds[1]} on the right; cast one")
        fields = [*left, *(right.field(name).with_name(self._named(name, left)) for name in self._rest(right))]
        names = [field.name for field in fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(
                f"join(suffix={self._suffix!r}): two columns of the result are named {twice!r}; rename one"
            )
        return pa.schema(fields)

    def _rest(self, right: pa.Schema) -> list[str]:
        return [name for name in right.names if name not in self.on]

    def _named(self, name: str, left: pa.Schema) -> str:
        return name + self._suffix if name in left.names else name

    def process(self, *tables: pa.Table) -> pa.Table:
        left, right = (
            with_keys(aligned(table, window.schema, f"the {side} input of the join"), self.on)
            for table, (side, window) in zip(tables, (("left", self._left), ("right", self._right)), strict=True)
        )
        if self._fits is None or not (left.schema.equals(self._fits[0]) and right.schema.equals(self._fits[1])):
            self._fits = left.schema, right.schema, self.schema(left.schema, right.schema)
        schema = self._fits[2]
        rest = self._rest(right.schema)
        left_keys, right_keys = keys_of(left, self.on), keys_of(right, self.on)
        asked, found = self._right.matches(left_keys)
        first = _beside(_taken(left, asked), self._right, found, rest)
        self._left.insert(left)
        asked, found = self._left.matches(right_keys)
        second = _beside(_taken(right.select(rest), asked), self._left, found, left.column_names, before=True)
        self._right.insert(right)
        made = [_as(schema, part) for part in (first, second) if part is not None]
        return pa.concat_tables(made) if made else schema.empty_table()

    def judged(self) -> OperatorClass:
        windows = (self._left, self._right)
        whole = [window.rows.count or 0 for window in windows if isinstance(window, IndexedWindow)]
        return of_rows(*whole) if len(whole) == len(windows) else of_keys()

    def windows(self) -> Mapping[str, Window]:
        return {"left": self._left, "right": self._right}


def _window(span: Rows, on: Sequence[str]) -> IndexedWindow | KeyedWindows:
    if span.per is not None and span.count:
        return KeyedWindows(span.count, span.group, span.per)
    return IndexedWindow(span.count, 1 if span.group == "auto" else span.group, on)


def _taken(table: pa.Table, rows: Ints) -> pa.Table | None:
    return table.take(pa.array(rows)) if len(rows) else None


def _beside(
    asking: pa.Table | None,
    window: IndexedWindow | KeyedWindows,
    found: Ints,
    names: Sequence[str],
    *,
    before: bool = False,
) -> list[Any] | None:
    """The columns of rows that asked, and of those that they found."""
    if asking is None:
        return None
    other = window.take(found, names)
    return [*other.columns, *asking.columns] if before else [*asking.columns, *other.columns]


def _as(schema: pa.Schema, made: list[Any]) -> pa.Table:
    return pa.table(
        [column if column.type == field.type else column.cast(field.type) for column, field in zip(made, schema)],
        schema=schema,
    )
