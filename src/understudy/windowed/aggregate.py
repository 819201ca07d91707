"""Sums, means and the like of each key's rows, within a window (Section 4's aggregate).

With a window **by rows** every epoch gives one row for each key that got rows in it, over the newest of that key's.

With a window **by time** there is one row for each key and each window that has closed. Windows are ``[start, start +
length)`` at every multiple of the slide, so a row is in ``length / slide`` of them, and is added up once for each. Time
is the newest event time so far, less ``late``: a window closes when that reaches its end, a row whose windows are all
closed is dropped, and one that comes in between counts in those that are open. No clock is asked: copies and replays
agree. Results are ordered by window, then by when a key first came.

Of a row only the columns that are needed are kept. What is first, last, least and so on is told among values that are
not null; ``("*", "count")`` counts rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.core.operators import OperatorClass, of_keys, of_time
from understudy.core.operators import Window as Reach
from understudy.durations import seconds as in_seconds
from understudy.windowed.base import Restored, Times, Window, Windowed, check_columns
from understudy.windowed.index import spread
from understudy.windowed.keyed import KeyedWindows
from understudy.windowed.keys import Flags, distinct, keys_of, plain
from understudy.windowed.keys import check as check_keys
from understudy.windowed.log import Ints
from understudy.windowed.parts import under
from understudy.windowed.rows import RowWindow
from understudy.windowed.spans import TIME_COLUMN, Rows, Seconds, columns

_PLACED = ("first", "last")
FUNCTIONS = ("mean", "sum", "min", "max", "count", *_PLACED)
WINDOW_START, WINDOW_END = "window_start", "window_end"
GROUP = 512
"""Rows that are saved together in a window by time, whose size nobody knows ahead."""
_PER_MS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
_MARK = "mark"


class Aggregate(Windowed):
    """Results have the columns ``by``, for a window by time ``window_start`` and ``window_end`` in the type of the time
    column, and then the outputs: ``mean_speed=("speed", "mean")``."""

    def __init__(
        self,
        by: str | Sequence[str],
        window: Rows | Seconds,
        *,
        late: float | str = 0,
        schemas: Sequence[pa.Schema] | None = None,
        **outputs: tuple[str, str],
    ) -> None:
        """``late``: seconds by which rows may come after newer ones. ``schemas``: of the input, if it is known."""
        self._by = columns("aggregate", "by", by)
        self._outputs = _checked(outputs, self._by, isinstance(window, Seconds))
        needed = dict.fromkeys(column for column, _ in self._outputs.values() if column != "*")
        self._inner: _ByRows | _ByTime
        if isinstance(window, Rows):
            if window.count == 0:
                raise ValueError("aggregate(window=rows(0)) keeps no row, so that there is nothing to add up")
            if window.per is not None and set(window.per) != set(self._by):
                raise ValueError(f"aggregate(window=rows(per={window.per!r})) must be per key, by={self._by!r}")
            if late:
                raise ValueError(f"aggregate(late={late!r}) is for windows by time; one by rows knows no time")
            keyed = KeyedWindows(window.count, window.group_of_key, self._by)
            self._inner = _ByRows(self._by, list(needed), self._outputs, keyed)
        elif isinstance(window, Seconds):
            late_ms = round(in_seconds(late, what="aggregate(late)") * 1000) if late else 0
            self._inner = _ByTime(self._by, list(needed), self._outputs, window, late_ms)
        else:
            raise ValueError(f"aggregate(window={window!r}) must be us.rows(...) or us.seconds(...)")
        if schemas is not None:
            self.schema(*schemas)

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Of what comes of rows like these. Raises ValueError."""
        for name in self._inner.needed:
            if name not in given.names and name == TIME_COLUMN:
                raise ValueError(f"say which column has the times, as in us.seconds(20, of='at'): one of {given.names}")
            if name not in given.names:
                raise ValueError(f"aggregate needs a column {name!r}; the input has only {given.names}")
        check_columns("the input of the aggregate", given)
        check_keys("aggregate(by", given, self._by)
        self._inner.check(given)
        return self._inner.made(given.empty_table()).schema

    def process(self, *tables: pa.Table) -> pa.Table:
        (table,) = tables
        check_columns("the input of the aggregate", table.schema, self._inner.needed)
        check_keys("aggregate(by", table.schema, self._by)
        return self._inner.process(table.select(self._inner.needed))

    def judged(self) -> OperatorClass:
        return self._inner.judged()

    def windows(self) -> Mapping[str, Window]:
        return {"rows": self._inner.window}

    def save(self, at: float | None = None) -> dict[str, bytes | None]:
        self._inner.note()
        return super().save(at)

    def restore(
        self, parts: Mapping[str, bytes | None], lost: Sequence[int | None] = (), times: Times | None = None
    ) -> Restored:
        return self._inner.restore(under("rows", parts), lost[0] if lost else None, times).within("rows")


Outputs = dict[str, tuple[str, str]]


def _checked(outputs: Mapping[str, Any], by: Sequence[str], timed: bool) -> Outputs:
    if not outputs:
        raise ValueError('aggregate needs an output, such as mean=("speed", "mean")')
    taken = [*by, *((WINDOW_START, WINDOW_END) if timed else ())]
    for name, output in outputs.items():
        if name in taken:
            raise ValueError(f"aggregate({name}=...): the result has a column of that name already; choose another")
        if not (isinstance(output, (tuple, list)) and len(output) == 2 and all(isinstance(s, str) for s in output)):
            raise ValueError(f'aggregate({name}={output!r}) must be a column and a function, such as ("speed", "mean")')
        if output[1] not in FUNCTIONS:
            raise ValueError(f"aggregate({name}={output!r}): the functions are {', '.join(FUNCTIONS)}")
        if output[0] == "*" and output[1] != "count":
            raise ValueError(f"aggregate({name}={output!r}): only count goes without a column")
    return {name: (column, function) for name, (column, function) in outputs.items()}


class _ByRows:
    def __init__(self, by: Sequence[str], columns: Sequence[str], outputs: Outputs, window: KeyedWindows) -> None:
        self.needed = list(dict.fromkeys([*by, *columns]))
        self.window = window
        self._by, self._outputs = by, outputs

    def judged(self) -> OperatorClass:
        return of_keys()

    def check(self, given: pa.Schema) -> None:
        """Every column will do."""

    def process(self, table: pa.Table) -> pa.Table:
        self.window.insert(table)
        return self.made(table)

    def made(self, table: pa.Table) -> pa.Table:
        """For the keys of these rows, which are in the windows."""
        keys = keys_of(table, self._by)
        asked, rows = np.empty(0, np.int64), table
        if table.num_rows:
            _, firsts = distinct(keys)
            keys = [column.take(pa.array(firsts)) for column in keys]
            asked, found = self.window.matches(keys, nulls=True)
            rows = self.window.take(found)
        return pa.table([*keys, *_added_up(asked, rows, self._outputs)], names=[*self._by, *self._outputs])

    def note(self) -> None:
        """The rows are all there is to save."""

    def restore(self, parts: Mapping[str, bytes | None], stale: int | None, times: Times | None) -> Restored:
        return self.window.restore(parts, stale, times)


class _ByTime:
    def __init__(
        self, by: Sequence[str], columns: Sequence[str], outputs: Outputs, span: Seconds, late_ms: int
    ) -> None:
        self._of = span.of or TIME_COLUMN
        self.needed = list(dict.fromkeys([*by, self._of, *columns]))
        self.window = RowWindow(None, GROUP)
        self._by, self._outputs, self._span, self._late_ms = list(by), outputs, span, late_ms
        self._mark: int | None = None
        """Windows that end here or before are closed: the newest event time, less what may be late."""

    def judged(self) -> OperatorClass:
        """The row that set the mark is among those that are kept: it is in a window that is open. So a replay has the
        same mark when it is as far, and drops, closes and counts the same from then on."""
        return of_time(Reach(self._span.length_ms / 1000, self._late_ms / 1000))

    def check(self, given: pa.Schema) -> None:
        type_, span = given.field(self._of).type, self._span
        if not (pa.types.is_timestamp(type_) or pa.types.is_integer(type_)):
            raise ValueError(
                f"aggregate(window=seconds(of={self._of!r})) is {type_}; it must be a timestamp, or int64 milliseconds"
            )
        if pa.types.is_timestamp(type_) and type_.unit == "s" and (span.length_ms % 1000 or span.slide_ms % 1000):
            raise ValueError(f"column {self._of!r} is in whole seconds, and so must the window and its slide be")

    def process(self, table: pa.Table) -> pa.Table:
        self.check(table.schema)
        times, valid = self._times(table)
        newest = int(times[valid].max()) - self._late_ms if valid.any() else None
        good = valid if self._mark is None else valid & (self._last_end(times) > self._mark)
        self.window.insert(table if good.all() else table.filter(pa.array(good)))
        if newest is None or (self._mark is not None and newest <= self._mark):
            return self.made(table.slice(0, 0))
        made = self._closed(newest)
        self._mark = newest
        self._drop()
        return made

    def _times(self, table: pa.Table) -> tuple[Ints, Flags]:
        """Of every row, in milliseconds, and whether it has one. Rows without are in no window."""
        column = plain(table[self._of])
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        multiplied, divided = _PER_MS[column.type.unit] if pa.types.is_timestamp(column.type) else (1, 1)
        if pa.types.is_timestamp(column.type):
            column = column.view(pa.int64())
        if column.null_count:
            column = column.fill_null(0)
        found: Ints = column.to_numpy(zero_copy_only=False).astype(np.int64) * multiplied // divided
        return found, valid

    def _last_end(self, times: Ints) -> Ints:
        return times // self._span.slide_ms * self._span.slide_ms + self._span.length_ms

    def _closed(self, until: int) -> pa.Table:
        """Of the windows that are open and end by then."""
        rows, span = self.window.table(), self._span
        times, _ = self._times(rows)
        first = (times - span.length_ms) // span.slide_ms + 1
        if self._mark is not None:
            first = np.maximum(first, (self._mark - span.length_ms) // span.slide_ms + 1)
        last = np.minimum(times // span.slide_ms, (until - span.length_ms) // span.slide_ms)
        windows, at = spread(first, np.maximum(0, last - first + 1))
        order = np.argsort(windows, kind="stable")
        return self.made(rows.take(pa.array(at[order])), windows[order] * span.slide_ms)

    def made(self, rows: pa.Table, starts: Ints | None = None) -> pa.Table:
        """``starts``: of the window that each row is to be added to."""
        starts = np.empty(0, np.int64) if starts is None else starts
        keys = keys_of(rows, self._by)
        groups, firsts = distinct([pa.array(starts), *keys])
        keys, start = [column.take(pa.array(firsts)) for column in keys], starts[firsts]
        type_ = rows.schema.field(self._of).type
        times = [self._in_type(each, type_) for each in (start, start + self._span.length_ms)]
        outputs = _added_up(groups, rows, self._outputs)
        return pa.table([*keys, *times, *outputs], names=[*self._by, WINDOW_START, WINDOW_END, *self._outputs])

    def _in_type(self, milliseconds: Ints, type_: Any) -> Any:
        if not pa.types.is_timestamp(type_):
            return pa.array(milliseconds)
        multiplied, divided = _PER_MS[type_.unit]
        return pa.array(milliseconds * divided // multiplied).view(type_)

    def _drop(self) -> None:
        """What is before the first row that is in an open window."""
        if self._mark is not None and len(self.window):
            ended = self._last_end(self._times(self.window.table())[0]) <= self._mark
            self.window.drop(len(ended) if ended.all() else int(np.argmin(ended)))

    def note(self) -> None:
        self.window.notes = {_MARK: self._mark}

    def restore(self, parts: Mapping[str, bytes | None], lost: int | None, times: Times | None) -> Restored:
        """How many rows are lost says nothing of time; the next rows do. Where only ``times`` are known, event time is
        taken to have gone on as they did: windows that would have closed meanwhile are not made up of what is left.
        """
        found = self.window.restore(parts, lost)
        self._mark = self.window.notes.get(_MARK)
        if times is None or lost is not None or self._mark is None:
            return found
        self._mark += max(0, round((times[1] - times[0]) * 1000))
        self._drop()
        gone = found.kept - len(self.window)
        return replace(found, kept=len(self.window), stale=gone)


def _added_up(groups: Ints, rows: pa.Table, outputs: Outputs) -> list[Any]:
    """The outputs of every group, in the order of their numbers. Raises ValueError."""
    summed = {name: output for name, output in outputs.items() if output[1] not in _PLACED}
    names = ["group", *(f"column {name}" for name in rows.column_names)]
    asked = [([], "count_all") if c == "*" else (f"column {c}", function) for c, function in summed.values()]
    table = pa.table([pa.array(groups), *rows.columns], names=names)
    try:
        made = table.group_by("group", use_threads=False).aggregate(asked)
    except pa.ArrowException as error:
        told = ", ".join(f"{name}={output!r}" for name, output in summed.items())
        raise ValueError(f"aggregate({told}) cannot be had of these columns: {error}") from error
    # Arrow's hash tables have an order of their own, which another processor need not share
    order = np.argsort(made.column(0).combine_chunks().to_numpy(zero_copy_only=False))
    found = dict(zip(summed, made.take(pa.array(order)).columns[1:]))
    for name, (column, function) in outputs.items():
        if function in _PLACED:
            found[name] = _placed(groups, made.num_rows, plain(rows[column]), newest=function == "last")
    return [found[name] for name in outputs]


def _placed(groups: Ints, count: int, column: Any, *, newest: bool) -> Any:
    """Of every group the first value, or the newest, that is not null: of columns of any type, which Arrow's own
    functions are not."""
    there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    if not newest:
        there = there[::-1]
    at = np.full(count, -1, np.int64)
    at[groups[there]] = there  # where several are for one group, the last of them stays
    return column.take(pa.array(at, mask=at < 0))
