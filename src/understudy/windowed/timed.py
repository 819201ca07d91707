"""The aggregate's windows by time: one row for each key and each window that has closed.

Windows are ``[start, start + length)`` at every multiple of the slide, so a row is in ``length / slide`` of them, and
is added up once for each. Time is the newest event time so far, less ``late``: a window closes when that reaches its
end, a row whose windows are all closed is dropped, and one that comes in between counts in those that are open. No
clock is asked: copies and replays agree. Results are ordered by window, then by when a key first came.

Without a column, all rows of an epoch have the time at which it was cut (``understudy.cut_times``). It goes on while no
rows come, and never back. An epoch that was lost comes out empty and without a time, and leaves the clock alone.

Windows have numbers: number 0 starts at time 0. So nothing has to be looked at before time has passed the end of one.

After a loss (``missed``) nobody knows what time it was when the last of the lost rows came. Of the windows that had
begun by then, those that end before the next row comes have been made already, or lack rows, or both; they are not
made. Those that are still open go on without what was lost, and close in their time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.core.operators import OperatorClass, of_time
from understudy.core.operators import Window as Reach
from understudy.cut_times import time_of
from understudy.windowed.base import Restored, Times
from understudy.windowed.folding import Outputs, folded
from understudy.windowed.index import spread
from understudy.windowed.keys import Flags, distinct, keys_of, plain
from understudy.windowed.log import Ints
from understudy.windowed.rows import RowWindow
from understudy.windowed.spans import Seconds

CUT = "understudy.cut"
"""Of the rows that are kept: when their epoch was cut. No column of the user's."""
_CUT_TYPE = pa.timestamp("us", "UTC")
WINDOW_START, WINDOW_END = "window_start", "window_end"
GROUP = 512
"""Rows that are saved together in a window whose size nobody knows ahead."""
PAIRS = 1 << 18
"""Rows, counted once for every window that they are in, that are added up at once: some megabytes. Where time jumps,
all windows close together, and every row is in many of them."""
_PER_MS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
_MARK, _CLOSED, _LACKS = "mark", "closed", "lacks"


class ByTime:
    def __init__(
        self, by: Sequence[str], columns: Sequence[str], outputs: Outputs, span: Seconds, late_ms: int
    ) -> None:
        """``columns``: those that the outputs need."""
        self._cut, self._of = span.of is None, span.of or CUT
        self.needed = list(dict.fromkeys([*by, *([] if self._cut else [self._of]), *columns]))
        self.window = RowWindow(None, GROUP)
        self._by, self._outputs, self._late_ms = list(by), outputs, late_ms
        self._length_ms, self._slide_ms = span.length_ms, span.slide_ms
        self._mark: int | None = None
        """The newest event time, less what may be late."""
        self._closed: int | None = None
        """The number of the newest window that is closed: those before it are too."""
        self._lacks = False
        """Rows were lost after the newest that it has, and time has not gone on since."""

    def judged(self) -> OperatorClass:
        """The row that set the mark is among those that are kept: it is in a window that is open. So a replay has the
        same mark when it is as far, and drops, closes and counts the same from then on. Where epochs have the time,
        every one that is replayed sets it; of a mark from before the oldest row came no window is left to close."""
        return of_time(Reach(self._length_ms / 1000, self._late_ms / 1000))

    def check(self, given: pa.Schema) -> None:
        """Raises ValueError."""
        if self._cut:
            return
        type_ = given.field(self._of).type
        if not (pa.types.is_timestamp(type_) or pa.types.is_integer(type_)):
            raise ValueError(
                f"aggregate(window=seconds(of={self._of!r})) is {type_}; it must be a timestamp, or int64 milliseconds"
            )
        if pa.types.is_timestamp(type_) and type_.unit == "s" and (self._length_ms % 1000 or self._slide_ms % 1000):
            raise ValueError(f"column {self._of!r} is in whole seconds, and so must the window and its slide be")

    def prepared(self, table: pa.Table) -> pa.Table:
        """With its times, where they are no column of its own."""
        if not self._cut:
            return table
        cut_us = time_of(table.schema)
        times = pa.nulls(len(table), _CUT_TYPE) if cut_us is None else np.full(len(table), cut_us)
        return table.append_column(CUT, pa.array(times, _CUT_TYPE))

    def process(self, table: pa.Table) -> pa.Table:
        self.check(table.schema)
        cut_us = time_of(table.schema)
        table = self.prepared(table).replace_schema_metadata(None)
        times, valid = self._times(table)
        good = valid if self._closed is None else valid & (times // self._slide_ms > self._closed)
        self.window.insert(table if good.all() else table.filter(pa.array(good)))
        newest = int(times[valid].max()) if valid.any() else None
        if self._cut and cut_us is not None:
            newest = cut_us // 1000  # also where no row came
        if newest is None or (self._mark is not None and newest - self._late_ms <= self._mark):
            return self.made(table.slice(0, 0))
        if self._lacks:
            self._give_up(newest)
        self._mark = newest - self._late_ms
        until = self._last_ended(self._mark)
        if self._closed is not None and until <= self._closed:
            return self.made(table.slice(0, 0))
        made = self._until(until)
        self._close(until)
        return made

    def _last_ended(self, time: int) -> int:
        """The number of the newest window that has ended by then."""
        return (time - self._length_ms) // self._slide_ms

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

    def _until(self, until: int) -> pa.Table:
        """Of the windows that are open, up to this one."""
        rows = self.window.table()
        times, _ = self._times(rows)
        first = (times - self._length_ms) // self._slide_ms + 1
        if self._closed is not None:
            first = np.maximum(first, self._closed + 1)
        made = [self.made(rows.slice(0, 0))]
        for at, begin, end in _portions(first, np.minimum(times // self._slide_ms, until), PAIRS):
            windows, of = spread(begin, end - begin + 1)
            order = np.argsort(windows, kind="stable")
            made.append(self.made(rows.take(pa.array(at[of[order]])), windows[order] * self._slide_ms))
        return pa.concat_tables(made)

    def made(self, rows: pa.Table, starts: Ints | None = None) -> pa.Table:
        """``starts``: of the window that each row is to be added to."""
        starts = np.empty(0, np.int64) if starts is None else starts
        keys = keys_of(rows, self._by)
        groups, firsts = distinct([pa.array(starts), *keys])
        keys, start = [column.take(pa.array(firsts)) for column in keys], starts[firsts]
        type_ = rows.schema.field(self._of).type
        times = [self._in_type(each, type_) for each in (start, start + self._length_ms)]
        outputs = folded(groups, rows, self._outputs)
        return pa.table([*keys, *times, *outputs], names=[*self._by, WINDOW_START, WINDOW_END, *self._outputs])

    def _in_type(self, milliseconds: Ints, type_: Any) -> Any:
        if not pa.types.is_timestamp(type_):
            return pa.array(milliseconds)
        multiplied, divided = _PER_MS[type_.unit]
        return pa.array(milliseconds * divided // multiplied).view(type_)

    def _close(self, until: int) -> None:
        """Windows up to this one. What is before the first row that is in an open window leaves."""
        self._closed = until if self._closed is None else max(self._closed, until)
        if len(self.window):
            ended = self._times(self.window.table())[0] // self._slide_ms <= self._closed
            self.window.drop(len(ended) if ended.all() else int(np.argmin(ended)))

    # -- what was lost ------------------------------------------------------------------------------------------------

    def missed(self, lost: int) -> None:
        """Epochs were lost, and so many rows with them. How many says nothing of time; the next ones do. Time that was
        fixed when epochs were cut has gone on also without rows."""
        self._lacks = self._lacks or (self._mark is not None and (lost > 0 or self._cut))

    def _give_up(self, newest: int) -> None:
        """The first rows after a loss have come. No row of theirs is older than the mark was by then, so that windows
        which had closed end before their newest one, whatever may be late."""
        assert self._mark is not None
        self._lacks = False
        begun = (self._mark + self._late_ms) // self._slide_ms
        self._close(min(begun, self._last_ended(newest)))

    def note(self) -> None:
        """The end of the newest window that is closed: its number would be another one's under another slide."""
        closed_ms = None if self._closed is None else self._closed * self._slide_ms + self._length_ms
        self.window.notes = {_MARK: self._mark, _CLOSED: closed_ms, _LACKS: self._lacks}

    def restore(self, parts: Mapping[str, bytes | None], lost: int | None, times: Times | None) -> Restored:
        """Where only ``times`` are known, event time is taken to have gone on as they did: windows that would have
        closed meanwhile are not made up of what is left."""
        found = self.window.restore(parts, lost)
        notes = self.window.notes
        self._mark, closed_ms, self._lacks = notes.get(_MARK), notes.get(_CLOSED), notes.get(_LACKS, False)
        self._closed = None if closed_ms is None else self._last_ended(closed_ms)
        if lost:
            self.missed(lost)
        if times is None or lost is not None or self._mark is None:
            return found
        self._mark += max(0, round((times[1] - times[0]) * 1000))
        self._close(self._last_ended(self._mark))
        return replace(found, kept=len(self.window), stale=found.kept - len(self.window))


def _portions(first: Ints, last: Ints, most: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Rows are in windows ``first`` to ``last``, those without any passed over: positions of rows and their windows,
    portion by portion in the order of the windows. None has more than ``most`` pairs, unless of a single window."""
    rows = np.flatnonzero(first <= last)
    left = [(rows, first[rows], last[rows])] if len(rows) else []
    while left:
        rows, first, last = left.pop()
        lowest, highest = int(first.min()), int(last.max())
        if lowest == highest or int((last - first + 1).sum()) <= most:
            yield rows, first, last
            continue
        middle = (lowest + highest) // 2
        upper, lower = last > middle, first <= middle
        for half, begin, end in ((upper, middle + 1, highest), (lower, lowest, middle)):
            if half.any():
                left.append((rows[half], np.maximum(first[half], begin), np.minimum(last[half], end)))
