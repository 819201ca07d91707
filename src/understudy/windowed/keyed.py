"""A window for every key: the newest rows of each, made when a key first comes, saved like ``RowWindow``.

All keys are worked on together: rows are in one log, and numpy's arrays say of each whose it is, which of its key's
rows, and where it was saved. What an epoch costs is sorting its own rows by key, and merging them into the index of all
rows.

The ring of a key is three numbers: how many rows it has had, how many it had at the last save, and where its *open*
group begins, which is the one that a new row goes into. A save writes the open groups of the keys that got rows, whole,
and what follows; closed groups are never written again for new rows (see ``bundles`` for what else may move them).

With ``group="auto"`` an open group is closed when it has a quarter of the rows that the key gets between two saves
(``core/ring.group_for``). A group of one size for all is what the paper found wanting under Zipf keys (Section 5.2): a
rare key's group, many rows, was written again for each new one.

Keys are kept for ever, with their newest rows: that is what a window by rows means. Null is a key like any other here.

What is known of a key is saved with its rows. So after rows were lost, or a part was damaged, a save writes everything:
rows have left then that no newer ones of their key drove out, and bundles from before would bring them back. A key that
lost all of its rows in this way is forgotten by that save. Nothing comes of it: numbers only say which of a key's rows
are the newest, none of the old ones is anywhere any more, and its next row is the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from understudy.core.ring import GROUPS_MIN, GROUPS_PER_PERIOD, check
from understudy.windowed import bundles
from understudy.windowed.base import Rate, Restored, Times, Window
from understudy.windowed.bundles import Bundle, Runs
from understudy.windowed.index import Index, spread
from understudy.windowed.keys import NONE, Lookup, keys_of, present
from understudy.windowed.log import Ints, Log
from understudy.windowed.parts import HEAD, Known, named, packed_head, unpacked_head

VERSION = 1
_FADING = 0.3
"""Weight of the newest period in a key's rate: a key that becomes busy has larger groups after a few saves."""
_DEAD_MAX = 4096
"""Rows in the log that have left their windows, besides as many as live, before they are taken out."""


class KeyedWindows(Window):
    def __init__(self, count: int, group: int | Literal["auto"], per: Sequence[str]) -> None:
        """``count`` at least 1: a window of nothing needs no keys."""
        check(count, 1 if group == "auto" else group)
        self.count, self._group, self._per = count, group, tuple(per)
        self._begin()

    def _begin(self) -> None:
        self.log = Log()
        self._lookup = Lookup()
        self._index = Index()
        """Of the rows that are in a window: their keys and positions."""
        # of every row in the log
        self._key: Ints = np.empty(0, np.int64)
        self._number: Ints = np.empty(0, np.int64)
        """Which of its key's rows it is, lost ones counted."""
        self._bundle: Ints = np.empty(0, np.int64)
        """The slot of the bundle that it was saved in; slots are used again."""
        # of every key
        self._total: Ints = np.zeros(0, np.int64)
        self._saved_total: Ints = np.zeros(0, np.int64)
        self._open: Ints = np.zeros(0, np.int64)
        self._saved: Ints = np.zeros(0, np.int64)
        """The save with its newest row."""
        self._rate: npt.NDArray[np.float64] = np.zeros(0, np.float64)
        """Rows per save."""
        self._holes = False
        """Whether rows may be missing between others of their key, or after them."""
        self._bundles: dict[int, Bundle] = {}
        self._saves = self._written = 0
        self._new = 0
        self._known = Known()
        self._clock = Rate()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def schema(self) -> pa.Schema | None:
        """Of the rows that came; None before the first."""
        return self.log.schema

    @property
    def key_count(self) -> int:
        return len(self._lookup)

    def insert(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        keys = self._lookup.added(keys_of(table, self._per))
        self._room_for(len(self._lookup))
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        touched, counts = ordered[starts], np.diff(np.append(starts, len(ordered)))
        numbers = np.empty(len(keys), np.int64)
        numbers[order] = np.arange(len(keys)) + np.repeat(self._total[touched] - starts, counts)
        self._total[touched] += counts
        self._new += len(keys)
        stay = numbers >= self._total[keys] - self.count
        if not stay.all():
            table, keys, numbers = table.filter(pa.array(stay)), keys[stay], numbers[stay]
        position = self.log.end
        self.log.append(table, "a window per key")
        self._key = _placed(self._key, position, keys)
        self._number = _placed(self._number, position, numbers)
        self._bundle = _placed(self._bundle, position, np.full(len(keys), NONE, np.int64))
        self._index.insert(keys, np.arange(position, self.log.end), self._staying(touched, counts))
        if self.log.end > 2 * len(self._index) + _DEAD_MAX:
            self._compact()

    def _room_for(self, count: int) -> None:
        self._total, self._saved_total = _grown(self._total, count), _grown(self._saved_total, count)
        self._open, self._saved = _grown(self._open, count), _grown(self._saved, count)
        if len(self._rate) < count:
            self._rate = np.concatenate([self._rate, np.zeros(len(self._total) - len(self._rate))])

    def _staying(self, touched: Ints, counts: Ints) -> npt.NDArray[np.bool_] | None:
        """Which entries of the index are still in their windows after these keys have got so many rows."""
        begins, ends = self._index.ranges(touched)
        if self._holes:
            entries, asked = spread(begins, ends - begins)
            numbers = self._number[self._index.rows[entries]]
            leaving = entries[numbers < (self._total[touched] - self.count)[asked]]
        else:
            held = ends - begins
            leaving, _ = spread(begins, np.clip(held + counts - self.count, 0, held))
        if not len(leaving):
            return None
        keep = np.ones(len(self._index), bool)
        keep[leaving] = False
        return keep

    def _compact(self) -> None:
        live = np.sort(self._index.rows)
        log = Log()
        log.append(self.log.take(live))
        self.log = log
        self._key, self._number, self._bundle = self._key[live], self._number[live], self._bundle[live]
        self._index.rows = np.searchsorted(live, self._index.rows)

    def matches(self, columns: Sequence[Any], *, nulls: bool = False) -> tuple[Ints, Ints]:
        """For the rows of these key columns: pairs of a row's number and the position of a row here, in this order.
        With ``nulls`` a null finds nulls."""
        keys = self._lookup.known(columns)
        there = None if nulls else present(columns)
        if there is not None:
            keys[~there] = NONE
        return self._index.matches(keys)

    def take(self, positions: Ints, names: Sequence[str] | None = None) -> pa.Table:
        return self.log.take(positions, names)

    def table(self) -> pa.Table:
        """All rows, ordered by key, in the order in which keys first came."""
        return self.log.take(self._index.rows)

    def save(self, at: float | None = None) -> dict[str, bytes | None]:
        self._clock.saved(self._new, at)
        self._new = 0
        self._saves += 1
        self._holes = self._holes and self._has_holes()  # they leave with time
        opened = self._advance()
        keys, rows = self._index.keys, self._index.rows
        saved_in = self._bundle[rows]
        dirty = saved_in == NONE
        dirty |= self._number[rows] >= opened[keys]
        counts = np.bincount(saved_in[~dirty], minlength=max(self._bundles, default=0) + 1)
        self._bundles = {slot: bundle for slot, bundle in self._bundles.items() if counts[slot]}
        live = {slot: int(counts[slot]) for slot in self._bundles}
        moved = bundles.to_move(live, {slot: bundle.size for slot, bundle in self._bundles.items()})
        if moved:
            is_moved = np.zeros(len(counts), bool)
            is_moved[list(moved)] = True
            dirty |= is_moved[saved_in]
        for slot in moved:
            del self._bundles[slot]
        parts: dict[str, bytes | None] = {}
        positions = rows[dirty]
        for begin in range(0, len(positions), bundles.PART_ROWS):
            parts |= self._write(positions[begin : begin + bundles.PART_ROWS], live)
        # a later bundle overrides an earlier one
        ordered = sorted(self._bundles.items(), key=lambda found: found[1].number)
        head = packed_head(
            {
                "version": VERSION,
                "window": self.count,
                "per": self._per,
                "saves": self._saves,
                "written": self._written,
                "rows_per_s": self._clock.rows_per_s,
                "bundles": [[b.number, b.rows, b.directory, b.size, live[slot]] for slot, b in ordered],
            }
        )
        names = [name for bundle in self._bundles.values() for name in (bundle.rows, bundle.directory)]
        parts[named(HEAD, head)] = head
        return self._known.only_new({**dict.fromkeys(names), **parts}, parts)

    def _advance(self) -> Ints:
        """The rings of all keys. Returns from which number on each key's rows are to be written."""
        count = len(self._lookup)
        touched = np.flatnonzero(self._total[:count] > self._saved_total[:count])
        opened = np.full(count, np.iinfo(np.int64).max)
        opened[touched] = self._open[touched]
        total = self._total[touched]
        latest = (total - self._saved_total[touched]) / np.maximum(1, self._saves - self._saved[touched])
        before = self._rate[touched]
        self._rate[touched] = np.where(before == 0, latest, before + _FADING * (latest - before))
        group = self._groups(touched)
        self._open[touched] += (total - self._open[touched]) // group * group
        self._saved_total[touched] = total
        self._saved[touched] = self._saves
        return opened

    def _groups(self, keys: Ints) -> Ints:
        """As ``core/ring.group_for``, of many keys."""
        if self._group != "auto":
            return np.full(len(keys), self._group, np.int64)
        largest = max(1, -(-self.count // GROUPS_MIN))
        return np.clip(np.rint(self._rate[keys] / GROUPS_PER_PERIOD), 1, largest).astype(np.int64)

    def _write(self, positions: Ints, live: dict[int, int]) -> dict[str, bytes | None]:
        keys, numbers = self._key[positions], self._number[positions]
        begins = np.flatnonzero(np.concatenate(([True], (keys[1:] != keys[:-1]) | (numbers[1:] != numbers[:-1] + 1))))
        each = keys[begins]
        rows = self.log.take(positions)
        runs = Runs(
            [column.take(pa.array(begins)) for column in keys_of(rows, self._per)],
            numbers[begins],
            np.diff(np.append(begins, len(keys))),
            self._total[each],
            self._open[each],
            self._saved[each],
            self._rate[each],
        )
        self._written += 1
        bundle, parts = bundles.write(self._written, rows, numbers, runs)
        slot = next(slot for slot in itertools.count() if slot not in self._bundles)
        self._bundles[slot] = bundle
        self._bundle[positions] = slot
        live[slot] = len(positions)
        return parts

    def restore(
        self, parts: Mapping[str, bytes | None], stale: int | None = None, times: Times | None = None
    ) -> Restored:
        """Lost rows are known of all keys together only, so each key is taken to have lost its share of them, by its
        rate. A damaged head costs everything. Never raises."""
        self._begin()
        found = unpacked_head(parts)
        try:
            if found is None or tuple(found[1]["per"]) != self._per:
                raise ValueError("no head")
            name, head = found
            listed = [(Bundle(*plain), int(live)) for *plain, live in head["bundles"]]
            self._saves, self._written = int(head["saves"]), int(head["written"])
            self._clock.restored(float(head["rows_per_s"]), times)
        except (ValueError, KeyError, TypeError):
            self._begin()
            return Restored(parts=tuple(name for name in parts if name.startswith(HEAD)), fresh=True)
        damaged, bad = self._read(listed, parts)
        held = len(self._index)
        if bad:
            self._write_anew()
        self._lose(self._clock.lost(stale, times))
        self._holes = self._has_holes()  # also in what was saved after a loss
        names = [name for bundle in self._bundles.values() for name in (bundle.rows, bundle.directory)]
        self._known.are({each: parts[each] for each in [name, *names]})
        return Restored(len(self), held - len(self), damaged, bad)

    def _read(self, listed: list[tuple[Bundle, int]], parts: Mapping[str, bytes | None]) -> tuple[int, tuple[str, ...]]:
        damaged, bad = 0, []
        tables: list[pa.Table] = []
        found: list[tuple[Ints, Ints, int]] = []  # keys and numbers of a bundle's rows, and its slot
        gone: list[tuple[Ints, Ints]] = []
        for bundle, live in listed:
            runs, rows = bundles.read(bundle, self._per, parts)
            if runs is None:
                damaged += live
                bad.append(bundle.directory)
                continue
            each = self._lookup.added(runs.keys)
            self._room_for(len(self._lookup))
            self._know(each, runs)
            if not runs.exact:
                bad.append(bundle.directory)
            numbers, asked = spread(runs.first, runs.count)
            if rows is None or (tables and rows.schema != tables[0].schema):
                bad.append(bundle.rows)
                gone.append((each[asked], numbers))
                continue
            slot = len(self._bundles)
            self._bundles[slot] = bundle
            tables.append(rows)
            found.append((each[asked], numbers, slot))
        if found:
            self._lay(pa.concat_tables(tables), found)
        if gone:
            damaged += self._missing(gone)
        return damaged, tuple(bad)

    def _know(self, keys: Ints, runs: Runs) -> None:
        """A later bundle knows better, unless all that it knows is its rows."""
        if runs.exact:
            self._total[keys], self._open[keys] = runs.total, runs.open
            self._saved[keys], self._rate[keys] = runs.saved, runs.rate
        else:
            newer = runs.total > self._total[keys]
            np.maximum.at(self._total, keys, runs.total)
            self._open[keys[newer]] = self._total[keys[newer]]
            self._saved[keys[newer]] = self._saves
        self._saved_total[keys] = self._total[keys]

    def _lay(self, rows: pa.Table, found: list[tuple[Ints, Ints, int]]) -> None:
        """In the order of keys and numbers: rows of different keys need no other."""
        keys = np.concatenate([keys for keys, _, _ in found])
        numbers = np.concatenate([numbers for _, numbers, _ in found])
        sizes = [len(keys) for keys, _, _ in found]
        at = bundles.latest(keys, numbers, np.repeat(np.arange(len(found)), sizes))
        at = at[numbers[at] >= self._total[keys[at]] - self.count]
        self.log.append(rows.take(pa.array(at)))
        self._key, self._number = keys[at], numbers[at]
        self._bundle = np.repeat(np.array([slot for _, _, slot in found], np.int64), sizes)[at]
        self._index.keys, self._index.rows = self._key.copy(), np.arange(len(at))

    def _missing(self, gone: list[tuple[Ints, Ints]]) -> int:
        """How many rows of those were in a window, and are in no older bundle either."""
        keys = np.concatenate([keys for keys, _ in gone])
        numbers = np.concatenate([numbers for _, numbers in gone])
        there = numbers >= self._total[keys] - self.count
        keys, numbers = keys[there], numbers[there]
        marks = np.concatenate([np.zeros(len(keys), np.int64), np.ones(len(self._key), np.int64)])
        at = bundles.latest(np.concatenate([keys, self._key]), np.concatenate([numbers, self._number]), marks)
        return int((marks[at] == 0).sum())

    def missed(self, lost: int) -> int:
        """Each key is taken to have lost its share, as in ``restore``."""
        held = len(self._index)
        self._lose(lost)
        return held - len(self._index)

    def _lose(self, lost: int) -> None:
        count = len(self._lookup)
        rates = self._rate[:count] / np.maximum(1, self._saves - self._saved[:count] + 1)
        if not lost or not rates.sum():
            return
        share = lost * (rates / rates.sum())
        each = np.floor(share).astype(np.int64)
        # of many rare keys nobody loses a whole row: those that come nearest lose what is left
        each[np.argsort(each - share, kind="stable")[: lost - int(each.sum())]] += 1
        self._total[:count] += each
        self._saved_total[:count] += each  # they say nothing of the keys' rates
        self._holes = True
        self._write_anew()
        keys, rows = self._index.keys, self._index.rows
        keep = self._number[rows] >= self._total[keys] - self.count
        self._index.keys, self._index.rows = keys[keep], rows[keep]

    def _write_anew(self) -> None:
        """The next save writes everything: what has left without newer rows of its key is in older bundles still."""
        self._bundles = {}
        self._bundle[:] = NONE

    def _has_holes(self) -> bool:
        keys, numbers = self._index.keys, self._number[self._index.rows]
        if not len(keys):
            return False
        newest = np.append(keys[1:] != keys[:-1], True)
        following = np.where(newest, self._total[keys], np.append(numbers[1:], 0))
        return bool((following != numbers + 1).any())


def _grown(array: Ints, count: int) -> Ints:
    """With room for so many, twice as much as before if need be."""
    if len(array) >= count:
        return array
    return np.concatenate([array, np.zeros(max(count, 2 * len(array)) - len(array), np.int64)])


def _placed(array: Ints, position: int, values: Ints) -> Ints:
    """``values`` from there on."""
    array = _grown(array, position + len(values))
    array[position : position + len(values)] = values
    return array
