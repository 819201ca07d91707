"""A window over a whole stream in which rows are found by their key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.core.reach import Span
from understudy.windowed.base import Restored, Times, Window
from understudy.windowed.index import Index
from understudy.windowed.keys import Lookup, as_numbers, keys_of, present
from understudy.windowed.log import Ints
from understudy.windowed.rows import RowWindow

_FORGET_FROM = 4096
"""Keys that are known without being in the window any more, before they are looked for and forgotten."""


class IndexedWindow(Window):
    def __init__(self, count: int, group: int, on: Sequence[str]) -> None:
        self.rows = RowWindow(count, group)
        self._on = tuple(on)
        self._begin()

    def _begin(self) -> None:
        self._index = Index()
        self._lookup = Lookup()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def schema(self) -> pa.Schema | None:
        """Of the rows that came; None before the first."""
        return self.rows.log.schema

    def insert(self, table: pa.Table) -> None:
        over, position = self.rows.insert(table)
        if over < table.num_rows:
            self._add(keys_of(table.slice(over), self._on), position)

    def _add(self, columns: Sequence[Any], position: int) -> None:
        there = present(columns)
        if there is not None:  # a null equals nothing
            columns = [column.filter(pa.array(there)) for column in columns]
        keys = as_numbers(columns)
        if keys is None:
            keys = self._lookup.added(columns)
        rows = np.arange(position, self.rows.log.end)
        keep = self._index.rows >= self.rows.log.first
        self._index.insert(keys, rows if there is None else rows[there], keep)
        if len(self._lookup) > 2 * len(self._index) + _FORGET_FROM:
            self._lookup.forget_all_but(np.unique(self._index.keys))

    def matches(self, columns: Sequence[Any]) -> tuple[Ints, Ints]:
        """For the rows of these key columns: pairs of a row's number and the position of a row here, in this order."""
        if not len(self):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        there = present(columns)
        if there is not None:
            columns = [column.filter(pa.array(there)) for column in columns]
        keys = as_numbers(columns)
        if keys is None:
            keys = self._lookup.known(columns)
        asked, positions = self._index.matches(keys)
        return asked if there is None else np.flatnonzero(there)[asked], positions

    def take(self, positions: Ints, names: Sequence[str]) -> pa.Table:
        return self.rows.log.take(positions, names)

    def missed(self, lost: int) -> int:
        gone = self.rows.missed(lost)
        nothing = np.empty(0, np.int64)
        self._index.insert(nothing, nothing, self._index.rows >= self.rows.log.first)
        return gone

    def span(self) -> Span:
        return self.rows.span()

    def save(self, at: float | None = None) -> dict[str, bytes | None]:
        return self.rows.save(at)

    def restore(
        self, parts: Mapping[str, bytes | None], stale: int | None = None, times: Times | None = None
    ) -> Restored:
        self._begin()
        found = self.rows.restore(parts, stale, times)
        if len(self.rows):
            self._add(keys_of(self.rows.table(), self._on), self.rows.log.first)
        return found
