"""Which rows have a key: pairs of a key's number and a row's position, sorted, and merged with what is new.

Within a key the positions ascend, so what is found comes in order of arrival. Merging is two passes over memory, which
for a window of 131,072 rows is less than sorting a thousand new ones and far less than building a hash table anew.
"""

from __future__ import annotations

import numpy as np

from understudy.windowed.keys import Flags
from understudy.windowed.log import Ints


class Index:
    def __init__(self) -> None:
        self.keys: Ints = np.empty(0, np.int64)
        self.rows: Ints = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.keys)

    def insert(self, keys: Ints, rows: Ints, keep: Flags | None = None) -> None:
        """``rows`` are newer than all that are here. ``keep``: which of the old entries are to stay."""
        old_keys, old_rows = self.keys, self.rows
        if keep is not None:
            old_keys, old_rows = old_keys[keep], old_rows[keep]
        order = np.argsort(keys, kind="stable")
        keys, rows = keys[order], rows[order]
        if not len(old_keys):
            self.keys, self.rows = keys, rows
            return
        at = np.searchsorted(old_keys, keys, side="right") + np.arange(len(keys))
        is_old = np.ones(len(old_keys) + len(keys), bool)
        is_old[at] = False
        self.keys, self.rows = np.empty(len(is_old), np.int64), np.empty(len(is_old), np.int64)
        self.keys[at], self.keys[is_old] = keys, old_keys
        self.rows[at], self.rows[is_old] = rows, old_rows

    def ranges(self, keys: Ints) -> tuple[Ints, Ints]:
        """For every key from where up to where its entries are."""
        order = np.argsort(keys, kind="stable")  # searching in order stays within the processor's caches
        begin, end = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        begin[order] = np.searchsorted(self.keys, keys[order], side="left")
        end[order] = np.searchsorted(self.keys, keys[order], side="right")
        return begin, end

    def matches(self, keys: Ints) -> tuple[Ints, Ints]:
        """Pairs of a row of ``keys`` and the position of a row here with the same key, in the order of the one and
        then of the other."""
        begin, end = self.ranges(keys)
        entries, asked = spread(begin, end - begin)
        return asked, self.rows[entries]


def spread(begins: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """All of ``begins[i] .. begins[i] + counts[i] - 1``, one after the other, and the ``i`` of each."""
    asked = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return np.arange(len(asked)) + (begins - before)[asked], asked
