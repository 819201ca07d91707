"""A window over a whole stream, whose checkpoints write only the groups with new rows.

Where ``core/ring.py`` says which group is written when, this has the rows. Between two checkpoints a row costs that it
is counted; an epoch is appended by reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.core.reach import Span
from understudy.core.ring import Group, Ring, restored
from understudy.windowed.base import Rate, Restored, Times, Window
from understudy.windowed.log import Ints, Log
from understudy.windowed.parts import HEAD, Known, named, packed, packed_head, unpacked, unpacked_head

VERSION = 1


class RowWindow(Window):
    """The newest ``count`` rows. 0 keeps nothing. None keeps all until they are dropped, and then groups are numbered
    on.

    Every row that was ever seen has a number, lost ones too, and leaves when ``count`` rows have come after it.
    """

    def __init__(self, count: int | None, group: int) -> None:
        self.count, self._group = count, group
        self._ring = None if count == 0 else Ring(count, group)
        self._begin()

    def _begin(self) -> None:
        self.log = Log()
        self.notes: dict[str, Any] = {}
        """What the owner wants to have saved with the rows: plain values."""
        self._new = 0
        """Rows since the last checkpoint."""
        self._dropped_to = 0
        self._known = Known()
        self._rate = Rate()

    def __len__(self) -> int:
        return len(self.log)

    @property
    def total(self) -> int:
        """The number that the next row will have."""
        return self._new + (self._ring.total if self._ring is not None else 0)

    @property
    def group_count(self) -> int:
        return 0 if self._ring is None else len(self._ring.groups)

    def insert(self, table: pa.Table) -> tuple[int, int]:
        """Returns how many of the table's rows have left already, and the position of the first that is there."""
        ring = self._ring
        if ring is None:
            return table.num_rows, 0
        self._new += table.num_rows
        over = max(0, table.num_rows - self.count) if self.count is not None else 0
        self.log.append(table.slice(over) if over else table)
        self._slide(ring)
        return over, self.log.end - (table.num_rows - over)

    def drop(self, count: int) -> None:
        """The oldest ``count`` of the rows that are there. Only of a window that nothing leaves by itself."""
        assert self.count is None and self._ring is not None
        if count > 0:
            self._dropped_to = self.total if count >= len(self) else int(self.numbers()[count])
            self._slide(self._ring)

    def drop_before(self, number: int) -> None:
        assert self.count is None and self._ring is not None
        self._dropped_to = max(self._dropped_to, number)
        self._slide(self._ring)

    def _start(self, ring: Ring) -> int:
        return max(ring.start, self._dropped_to, self.total - self.count if self.count is not None else 0)

    def _slide(self, ring: Ring) -> None:
        start, total = self._start(ring), self.total
        self.log.drop(len(self.log) - (total - start - ring.missing(start, total)))

    def skip(self, lost: int) -> int:
        """So many rows are lost that would have come now. Returns the number of the next. Only right after a
        restore."""
        if self._ring is not None and lost:
            self.log.drop(self._ring.skip(lost))
        return self.total

    def missed(self, lost: int) -> int:
        if self._ring is None or lost <= 0:
            return 0
        before = len(self)
        self._ring.lose(self.total, lost)
        self._new += lost
        self._slide(self._ring)
        return before - len(self)

    def numbers(self, until: int | None = None) -> Ints:
        """Of the rows that are there, up to this one."""
        if self._ring is None:
            return np.empty(0, np.int64)
        start = self._start(self._ring)
        there = np.ones(max(0, (self.total if until is None else until) - start), bool)
        for begin, end in self._ring.holes:
            there[max(0, begin - start) : max(0, end - start)] = False
        return np.flatnonzero(there) + start

    def span(self) -> Span:
        return (0, 0) if self._ring is None else (min(self._start(self._ring), self.total), self.total)

    def table(self) -> pa.Table:
        return self.log.table()

    def save(self, at: float | None = None) -> dict[str, bytes | None]:
        """Every part by name; without content where the save or restore before had it already."""
        ring = self._ring
        if ring is None:
            return {}
        self._rate.saved(self._new, at)
        dirty = ring.advance(self._new, start=self._dropped_to)
        self._new = 0
        bodies: dict[str, bytes | None] = {}
        for group in dirty:
            body = packed(self._rows_of(ring, group))
            group.part = named(group.name, body)
            bodies[group.part] = body
        ring.written()
        live = ring.live()
        head = packed_head(
            {
                "version": VERSION,
                "window": ring.window,
                "group": ring.group,
                "total": ring.total,
                "start": ring.start,
                "writes": ring.writes,
                "rows_per_s": self._rate.rows_per_s,
                "holes": ring.holes,
                "groups": [[g.slot, g.write, g.first, g.newest, g.count, g.part] for g in live],
                "notes": self.notes,
            }
        )
        bodies[named(HEAD, head)] = head
        parts: dict[str, bytes | None] = dict.fromkeys([group.part for group in live])
        return self._known.only_new({**parts, **bodies}, bodies)

    def _rows_of(self, ring: Ring, group: Group) -> pa.Table:
        before = group.first - ring.start - ring.missing(ring.start, group.first)
        return self.log.slice(self.log.first + before, group.count)

    def restore(
        self, parts: Mapping[str, bytes | None], stale: int | None = None, times: Times | None = None
    ) -> Restored:
        """``stale``: rows that came after the save and are lost; ``times`` where nobody knows. Never raises: what
        cannot be read is reported."""
        if self._ring is None:
            return Restored()
        self._begin()
        self._ring = Ring(self.count, self._group)
        found = unpacked_head(parts)
        try:
            if found is None:
                raise ValueError("no head")
            name, head = found
            groups = [Group(*plain) for *plain, _ in head["groups"]]
            names = [each[-1] for each in head["groups"]]
            holes = [(begin, end) for begin, end in head["holes"]]
            ring = restored(
                head["window"], head["group"], total=head["total"], start=head["start"], writes=head["writes"],
                groups=groups, holes=holes,
            )  # fmt: skip
            self._rate.restored(float(head["rows_per_s"]), times)
            notes = dict(head["notes"])
        except (ValueError, KeyError, TypeError):
            return Restored(parts=tuple(name for name in parts if name.startswith(HEAD)), fresh=True)
        self.notes = notes
        damaged, bad = self._read(ring, groups, names, parts)
        gone = ring.skip(self._rate.lost(stale, times))
        self.log.drop(gone)
        self._ring = ring
        if (ring.window, ring.group) != (self.count, self._group):
            gone += self._lay_anew(ring)
        self._known.are({each: parts[each] for each in [name, *(group.part for group in self._ring.live())]})
        return Restored(len(self), gone, damaged, bad)

    def _read(
        self, ring: Ring, groups: list[Group], names: list[str], parts: Mapping[str, bytes | None]
    ) -> tuple[int, tuple[str, ...]]:
        """Oldest first. A file may begin with rows that had left the window when it was saved."""
        damaged, bad = 0, []
        tables: list[pa.Table] = []
        for group, name in zip(groups, names):
            table = unpacked(name, parts.get(name))
            if table is None or table.num_rows != group.count or (tables and table.schema != tables[0].schema):
                damaged += ring.damaged(group)
                bad.append(name)
                continue
            left = max(group.first, ring.start)
            inside = group.newest + 1 - left - ring.missing(left, group.newest + 1)
            tables.append(table.slice(table.num_rows - inside))
            group.part = name
        if tables:
            self.log.append(pa.concat_tables(tables))
        return damaged, tuple(bad)

    def _lay_anew(self, saved: Ring) -> int:
        """The job's window is another than when this was saved: all of it is written again."""
        ring = Ring(self.count, self._group, saved.start, saved.start, saved.writes, holes=saved.holes)
        self._ring, self._new, before = ring, saved.total - saved.start, len(self)
        self._slide(ring)
        return before - len(self)
