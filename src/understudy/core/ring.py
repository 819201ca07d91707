"""Which files hold a sliding window, and which of them a checkpoint has to write.

Jacques-Silva et al. 2009, Section 4.4. The window of the newest W rows is kept in groups of g rows. Rows are numbered
from the first that was ever seen, and row *n* belongs to group ``n // g``; W rows touch at most ``ceil(W / g) + 1``
groups, so as many *slots* in a ring are enough. A slot has a file's name, a dirty bit, a count and the number of its
newest row. The ring advances only when a checkpoint is taken, by the rows that have come since the one before: in
between there is nothing to do for a row but to count it. Groups with new rows are dirty and are written whole; a group
that has only lost rows is not written again, and its slot is free when it has lost all of them.

The paper reuses a slot's file. Here every writing has a name of its own, ``3-17`` for slot 3 and the ring's seventeenth
writing, because an older checkpoint, which may still be wanted, is made of older files.

Rows can be missing: lost between a checkpoint and a restore, or with a damaged file. They keep their numbers, as
*holes*, so that what would have expired by now does, and no row stays in the window longer because others are gone.

A window by time, or a queue, has no fixed number of rows. Its ring is open: slots are numbered on, and the caller says
what the oldest row is (``window=None``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

GROUPS = 64
"""Into how many groups a window is divided if nobody says. A checkpoint writes up to one group more than what is new,
so with 64 groups that is at most 1.6 % of the window; with many more, files would be many and small, and opening them
would cost more than what is in them."""
GROUPS_MIN = 2
"""Of a key's window whose rows are many in a period: with one, every checkpoint would write all of it."""
GROUPS_PER_PERIOD = 4
"""How many groups of a key are filled between two checkpoints. What is written again with a group is half of one on
average: an eighth of what is new. With one it would be half of that; with many more, groups would be many and small."""


def default_group(window: int) -> int:
    return max(1, round(window / GROUPS))


def group_for(rows_per_period: float, window: int) -> int:
    """The group size for a key that gets so many rows between two checkpoints.

    The group that is open is written again with every new row, so a large one is waste where rows are few; and small
    ones are many files where rows are many.
    """
    largest = max(1, -(-window // GROUPS_MIN))
    return min(max(1, round(rows_per_period / GROUPS_PER_PERIOD)), largest)


def check(window: int, group: int) -> None:
    """Raises ValueError, naming the parameter and what to write instead."""
    if window < 1:
        raise ValueError(f"window={window} must be at least 1 row")
    if group < 1:
        raise ValueError(f"group={group} must be at least 1 row")
    if group > window:
        raise ValueError(f"group={group} is larger than the window of {window} rows; choose 1 to {window}")


@dataclass(slots=True)
class Group:
    """A slot in use."""

    slot: int
    write: int
    first: int
    """The number of the oldest row in the file."""
    newest: int
    """The number of the newest."""
    count: int
    """Rows in the file: less than from first to newest where some are missing."""
    dirty: bool = False
    part: str = ""
    """What it was written as: whoever writes it says."""

    @property
    def name(self) -> str:
        return f"{self.slot}-{self.write}"


@dataclass(slots=True)
class Ring:
    """Call ``advance`` when a checkpoint is taken, and ``written`` when what it returned is safe."""

    window: int | None
    """None: open; the caller says what the oldest row is."""
    group: int
    total: int = 0
    """Rows up to the newest checkpoint, missing ones too: the number of the next row."""
    start: int = 0
    """The number of the oldest row in the window."""
    writes: int = 0
    groups: dict[int, Group] = field(default_factory=dict)
    """By slot, oldest rows first: only the newest group is ever made again."""
    holes: list[tuple[int, int]] = field(default_factory=list)
    """Numbers of missing rows in the window, from and up to, ascending."""

    def __post_init__(self) -> None:
        if self.window is not None:
            check(self.window, self.group)
        elif self.group < 1:
            raise ValueError(f"group={self.group} must be at least 1 row")

    @property
    def slots(self) -> int | None:
        return None if self.window is None else -(-self.window // self.group) + 1

    def slot_of(self, row: int) -> int:
        number = row // self.group
        return number if self.slots is None else number % self.slots

    def advance(self, new: int, *, start: int = 0) -> list[Group]:
        """A checkpoint is taken, ``new`` rows after the one before; of an open ring also the oldest row's number.
        Returns the groups to write, oldest first."""
        before = self.total
        self.total += new
        self._slide(start)
        if new:
            # rows that came and went between two checkpoints are in no group
            for number in range(max(before, self.start) // self.group, (self.total - 1) // self.group + 1):
                self._touch(number)
        return [group for group in self.live() if group.dirty]

    def _touch(self, number: int) -> None:
        first = max(number * self.group, self.start)
        newest = min((number + 1) * self.group, self.total) - 1
        count = newest + 1 - first - self.missing(first, newest + 1)
        if count == 0:
            return
        self.writes += 1
        slot = self.slot_of(first)
        self.groups[slot] = Group(slot, self.writes, first, newest, count, dirty=True)

    def _slide(self, start: int) -> None:
        self.start = max(self.start, start, self.total - self.window if self.window is not None else 0)
        for slot in [slot for slot, group in self.groups.items() if group.newest < self.start]:
            del self.groups[slot]
        self.holes = [(max(begin, self.start), end) for begin, end in self.holes if end > self.start]

    def written(self) -> None:
        for group in self.groups.values():
            group.dirty = False

    def live(self) -> list[Group]:
        """The groups that the window is made of, oldest first."""
        return list(self.groups.values())

    def missing(self, begin: int, end: int) -> int:
        """How many rows from ``begin`` up to ``end`` are missing."""
        return sum(max(0, min(end, until) - max(begin, since)) for since, until in self.holes)

    def skip(self, lost: int) -> int:
        """After a restore: so many rows came after the checkpoint and are lost. Returns how many of those in the window
        would have expired meanwhile."""
        held = self.total - self.start - self.missing(self.start, self.total)
        if lost:
            self._add_hole(self.total, self.total + lost)
            self.total += lost
        self._slide(0)
        return held - (self.total - self.start - self.missing(self.start, self.total))

    def lose(self, begin: int, lost: int) -> None:
        """The same of rows that are counted with those of the next ``advance``: so many from this number on are
        lost."""
        self._add_hole(begin, begin + lost)

    def damaged(self, group: Group) -> int:
        """The group's file cannot be read. Returns how many rows of the window are gone with it."""
        begin, end = max(group.first, self.start), group.newest + 1
        gone = end - begin - self.missing(begin, end)
        del self.groups[group.slot]
        self._add_hole(begin, end)
        return gone

    def _add_hole(self, begin: int, end: int) -> None:
        merged: list[tuple[int, int]] = []
        for since, until in sorted([*self.holes, (begin, end)]):
            if merged and since <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(until, merged[-1][1]))
            else:
                merged.append((since, until))
        self.holes = merged


def restored(
    window: int | None, group: int, *, total: int, start: int, writes: int, groups: Iterable[Group],
    holes: Iterable[tuple[int, int]],
) -> Ring:  # fmt: skip
    """A ring as it was at a checkpoint. Raises ValueError when that cannot have been."""
    ring = Ring(window, group, total, start, writes, holes=list(holes))
    for each in groups:
        if not (start <= each.newest < total and each.first <= each.newest and ring.slot_of(each.first) == each.slot):
            raise ValueError(f"group {each.name} does not belong to a window of rows {start} to {total}")
        ring.groups[each.slot] = each
    return ring
