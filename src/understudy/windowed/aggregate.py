"""Sums, means and the like of each key's rows, within a window (Section 4's aggregate).

With a window **by rows** every epoch gives one row for each key that got rows in it, over the newest of that key's.

With a window **by time** there is one row for each key and each window that has closed (``timed.py``).

Of a row only the columns that are needed are kept. What comes of a group of rows is in ``folding.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.core.operators import OperatorClass, of_keys
from understudy.durations import seconds as in_seconds
from understudy.windowed.base import Restored, Times, Window, Windowed, check_columns
from understudy.windowed.folding import ALL, FUNCTIONS, Outputs, folded, is_output
from understudy.windowed.keyed import KeyedWindows
from understudy.windowed.keys import check as check_keys
from understudy.windowed.keys import distinct, keys_of
from understudy.windowed.parts import under
from understudy.windowed.spans import Rows, Seconds, columns
from understudy.windowed.timed import WINDOW_END, WINDOW_START, ByTime


class Aggregate(Windowed):
    """Results have the columns ``by``, for a window by time ``window_start`` and ``window_end`` in the type of the time
    column, timestamps where there is none, and then the outputs: ``mean_speed=("speed", "mean")``."""

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
        refuse_outputs({"late": late, "schemas": schemas})
        self._by = columns("aggregate", "by", by)
        self._outputs = _checked(outputs, self._by, isinstance(window, Seconds))
        needed = dict.fromkeys(column for column, _ in self._outputs.values() if column != ALL)
        self._inner: _ByRows | ByTime
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
            self.needs_cut_times = window.of is None
            if late and window.of is None:
                raise ValueError(
                    f"aggregate(late={late!r}) is for times in a column, as in us.seconds(20, of='at'); the time at "
                    "which an epoch was cut never goes back"
                )
            late_ms = round(in_seconds(late, what="aggregate(late)") * 1000) if late else 0
            self._inner = ByTime(self._by, list(needed), self._outputs, window, late_ms)
        else:
            raise ValueError(f"aggregate(window={window!r}) must be us.rows(...) or us.seconds(...)")
        if schemas is not None:
            self.schema(*schemas)

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Of what comes of rows like these. Raises ValueError."""
        self._require(given)
        self._inner.check(given)
        return self._inner.made(self._inner.prepared(given.empty_table())).schema

    def _require(self, given: pa.Schema) -> None:
        """Raises ValueError where a column is missing, is there twice or cannot be a key."""
        check_columns("the input of the aggregate", given, self._inner.needed)
        check_keys("aggregate(by", given, self._by)

    def process(self, *tables: pa.Table) -> pa.Table:
        (table,) = tables
        self._require(table.schema)
        return self._inner.process(table.select(self._inner.needed))

    def judged(self) -> OperatorClass:
        return self._inner.judged()

    def windows(self) -> Mapping[str, Window]:
        return {"rows": self._inner.window}

    def missed(self, rows: Sequence[int]) -> int:
        self._inner.missed(rows[0])
        return super().missed(rows)

    def save(self, at: float | None = None) -> dict[str, bytes | None]:
        self._inner.note()
        return super().save(at)

    def restore(
        self, parts: Mapping[str, bytes | None], lost: Sequence[int | None] = (), times: Times | None = None
    ) -> Restored:
        return self._inner.restore(under("rows", parts), lost[0] if lost else None, times).within("rows")


def refuse_outputs(parameters: Mapping[str, Any]) -> None:
    """Raises ValueError where a parameter is given what was meant as an output of that name."""
    for name, value in parameters.items():
        if is_output(value) and value[1] in FUNCTIONS:
            raise ValueError(
                f"aggregate({name}={value!r}): the name {name} is taken, by a parameter; give this output another"
            )


def _checked(outputs: Mapping[str, Any], by: Sequence[str], timed: bool) -> Outputs:
    if not outputs:
        raise ValueError('aggregate needs an output, such as mean=("speed", "mean")')
    own = (WINDOW_START, WINDOW_END) if timed else ()
    for name in set(by) & set(own):
        raise ValueError(
            f"aggregate(by={name!r}): the result has a column {name!r} of its own, the one of its windows; rename "
            "yours in a stage or operator before"
        )
    for name, output in outputs.items():
        if name in (*by, *own):
            raise ValueError(f"aggregate({name}=...): the result has a column of that name already; choose another")
        if not is_output(output):
            raise ValueError(f'aggregate({name}={output!r}) must be a column and a function, such as ("speed", "mean")')
        if output[1] not in FUNCTIONS:
            raise ValueError(f"aggregate({name}={output!r}): the functions are {', '.join(FUNCTIONS)}")
        if output[0] == ALL and output[1] != "count":
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

    def prepared(self, table: pa.Table) -> pa.Table:
        """Nothing has to be added."""
        return table

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
        return pa.table([*keys, *folded(asked, rows, self._outputs)], names=[*self._by, *self._outputs])

    def missed(self, lost: int) -> None:
        """The window sees to it."""

    def note(self) -> None:
        """The rows are all there is to save."""

    def restore(self, parts: Mapping[str, bytes | None], stale: int | None, times: Times | None) -> Restored:
        return self.window.restore(parts, stale, times)
