"""Rows in order of arrival, by position: appended at one end, dropped at the other, taken from anywhere.

Inserting keeps a reference; columns that are dictionaries are laid out. Pieces are merged when the newest has become
half as large as the one before it, so that there are few (the logarithm of the rows) and a row is copied as often at
most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from understudy.windowed.base import aligned

Ints = npt.NDArray[np.int64]


class Log:
    def __init__(self) -> None:
        self.first = 0
        """The position of the oldest row that is there."""
        self.end = 0
        """The position that the next row will have."""
        self.schema: Any = None
        self._pieces: list[pa.Table] = []
        self._whole: pa.Table | None = None

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def pieces(self) -> int:
        return len(self._pieces)

    def append(self, table: pa.Table, what: str = "the window") -> None:
        table = aligned(table, self.schema, what)
        self.schema = table.schema
        if not table.num_rows:
            return
        if any(column.num_chunks > 1 for column in table.columns):
            table = table.combine_chunks()
        self._whole = None
        self.end += table.num_rows
        self._pieces.append(table)
        first, rows = len(self._pieces) - 1, table.num_rows
        while first > 0 and self._pieces[first - 1].num_rows <= 2 * rows:
            first -= 1
            rows += self._pieces[first].num_rows
        if first < len(self._pieces) - 1:
            self._pieces[first:] = [pa.concat_tables(self._pieces[first:]).combine_chunks()]

    def drop(self, count: int) -> None:
        """The oldest ``count`` rows."""
        if count <= 0:
            return
        self._whole = None
        self.first += count
        gone = 0
        while gone < len(self._pieces) and count >= self._pieces[gone].num_rows:
            count -= self._pieces[gone].num_rows
            gone += 1
        del self._pieces[:gone]
        if count:
            self._pieces[0] = self._pieces[0].slice(count)

    def table(self) -> pa.Table:
        """All rows. Raises ValueError before any table was appended."""
        if self._whole is None:
            if self.schema is None:
                raise ValueError("nothing was ever put in, so that nobody knows its columns")
            self._whole = pa.concat_tables(self._pieces) if self._pieces else self.schema.empty_table()
        return self._whole

    def slice(self, position: int, count: int) -> pa.Table:
        return self.table().slice(position - self.first, count)

    def take(self, positions: Ints, names: Sequence[str] | None = None) -> pa.Table:
        """Rows in this order, all columns or these."""
        rows = self.table() if names is None else self.table().select(list(names))
        return rows.take(pa.array(positions - self.first))
