"""Which files hold a sliding window (Jacques-Silva et al. 2009, Section 4.4), against a list of numbered rows."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.core.ring import Ring, default_group, group_for, restored


def of(ring: Ring) -> list[tuple[int, int, int]]:
    return [(group.slot, group.count, group.newest) for group in ring.live()]


def test_the_worked_example_of_figure_6():
    """A window of 15 rows in groups of 5: four slots. At t1 13 rows are new (A-M), at t2 five (N-R)."""
    ring = Ring(window=15, group=5)
    assert ring.slots == 4
    dirty = ring.advance(13)
    assert [(g.name, g.count) for g in dirty] == [("0-1", 5), ("1-2", 5), ("2-3", 3)], "G1 to G3 are written"
    ring.written()
    dirty = ring.advance(5)
    assert [(g.name, g.first, g.newest) for g in dirty] == [("2-4", 10, 14), ("3-5", 15, 17)], "K-O and P-R, whole"
    assert ring.start == 3, "A-C have left the window"
    assert [g.name for g in ring.live()] == ["0-1", "1-2", "2-4", "3-5"], "G1's file stays, though it lost three rows"
    assert ring.live()[0].count == 5, "they are still in the file"
    ring.written()
    assert [g.name for g in ring.advance(2)] == ["3-6"], "S-T fill G4"
    assert [g.slot for g in ring.live()] == [1, 2, 3], "G1 has lost all its rows: its slot is free"
    ring.written()
    assert [(g.name, g.first) for g in ring.advance(1)] == [("0-7", 20)], "and taken again, by another file"


def test_what_was_not_written_stays_dirty():
    ring = Ring(window=10, group=5)
    ring.advance(3)
    assert [g.name for g in ring.advance(0)] == ["0-1"]
    assert [g.name for g in ring.advance(4)] == ["0-2", "1-3"]
    ring.written()
    assert ring.advance(0) == []


def test_a_window_that_is_all_new_between_two_checkpoints():
    ring = Ring(window=10, group=4)
    ring.advance(3)
    ring.written()
    dirty = ring.advance(1000)
    assert [(g.first, g.newest, g.count) for g in dirty] == [(993, 995, 3), (996, 999, 4), (1000, 1002, 3)]
    assert ring.live() == dirty


@pytest.mark.parametrize(
    ("window", "group", "says"),
    [(0, 1, "window=0"), (-1, 1, "window=-1"), (5, 0, "group=0"), (5, 6, "group=6"), (None, 0, "group=0")],
)
def test_bad_sizes_are_named(window, group, says):
    with pytest.raises(ValueError, match=says):
        Ring(window, group)


def test_slots_are_rounded_up():
    assert Ring(window=10, group=4).slots == 4
    assert Ring(window=1, group=1).slots == 2
    assert Ring(window=None, group=4).slots is None


def test_group_sizes():
    assert [default_group(w) for w in (0, 1, 64, 32768)] == [1, 1, 1, 512]
    assert [group_for(rate, 1024) for rate in (0.01, 4, 29, 1200, 5000)] == [1, 1, 7, 300, 512]
    assert group_for(5, 1) == 1


def test_an_open_ring_is_told_what_is_oldest():
    ring = Ring(window=None, group=4)
    assert [g.name for g in ring.advance(6)] == ["0-1", "1-2"]
    ring.written()
    assert [g.name for g in ring.advance(3, start=5)] == ["1-3", "2-4"]
    assert [(g.first, g.newest) for g in ring.live()] == [(5, 7), (8, 8)]


def test_a_restored_ring_must_be_possible():
    ring = Ring(window=15, group=5)
    (group, *_) = ring.advance(13)
    good = dict(total=13, start=0, writes=3, holes=[])
    assert of(restored(15, 5, groups=[group], **good)) == [(0, 5, 4)]
    for bad in (replace(group, slot=1), replace(group, newest=13), replace(group, first=9)):
        with pytest.raises(ValueError, match="does not belong"):
            restored(15, 5, groups=[bad], **good)


class Disk:
    """A naive window beside the ring: rows are their numbers, files are lists of them."""

    def __init__(self, window: int, group: int) -> None:
        self.ring = Ring(window, group)
        self.rows: deque[int] = deque()
        self.next = self.new = 0
        self.files: dict[str, list[int]] = {}

    def insert(self, count: int) -> None:
        for _ in range(count):
            self.rows.append(self.next)
            self.next += 1
            self.expire()
        self.new += count

    def expire(self) -> None:
        while self.rows and self.rows[0] < self.next - self.ring.window:
            self.rows.popleft()

    def checkpoint(self) -> None:
        clean = {g.name for g in self.ring.live()}
        dirty = self.ring.advance(self.new)
        new = set(range(self.next - self.new, self.next)) & set(self.rows)
        self.new = 0
        assert clean.isdisjoint(g.name for g in dirty) and not set(self.files) & {g.name for g in dirty}
        for group in dirty:
            self.files[group.name] = [row for row in self.rows if group.first <= row <= group.newest]
            assert len(self.files[group.name]) == group.count <= self.ring.group
            assert new & set(self.files[group.name]), "a group without a new row is never written"
        self.ring.written()
        assert len(self.ring.live()) <= self.ring.slots
        assert self.read() == list(self.rows)

    def read(self) -> list[int]:
        found = [row for group in self.ring.live() for row in self.files[group.name]]
        return [row for row in found if row >= self.ring.start]

    def restore(self, lost: int, broken: int | None) -> None:
        """As of the newest checkpoint; so many rows after it are lost, and a file is broken."""
        before = self.read()
        live = self.ring.live()
        if broken is not None and live:
            group = live[broken % len(live)]
            gone = set(self.files[group.name])
            count = self.ring.damaged(group)
            assert count <= self.ring.group and count == len(gone & set(before))
            before = [row for row in before if row not in gone]
        stale = self.ring.skip(lost)
        self.next, self.new = self.ring.total, 0
        self.rows = deque(before)
        self.expire()
        assert stale == len(before) - len(self.rows)
        assert self.read() == list(self.rows)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 40)),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("restore"), st.integers(0, 25), st.none() | st.integers(0, 9)),
    ),
    max_size=25,
)


@given(st.integers(1, 20).flatmap(lambda w: st.tuples(st.just(w), st.integers(1, w))), STEPS)
def test_what_is_on_disk_is_the_window_as_of_the_last_checkpoint(sizes, steps):
    disk = Disk(*sizes)
    plain = True  # nothing was lost so far
    for what, *about in steps:
        if what == "restore":
            plain &= about == [0, None]
        getattr(disk, what)(*about)
        if what == "checkpoint" and plain:
            total = disk.ring.total
            assert disk.read() == list(range(max(0, total - sizes[0]), total))
