"""A window for every key, against a dictionary of lists."""

from __future__ import annotations

import random
from collections import defaultdict
from copy import deepcopy
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_parts import HOWS, Disk

from understudy.windowed import bundles
from understudy.windowed.keyed import KeyedWindows


def table(*rows: tuple[Any, int]) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in rows], pa.int64()), "n": pa.array([n for _, n in rows], pa.int64())})


def held(windows: KeyedWindows) -> dict[Any, list[int]]:
    found = defaultdict(list)
    if len(windows):
        for row in windows.table().to_pylist():
            found[row["k"]].append(row["n"])
    return dict(found)


class Naive:
    def __init__(self, count: int) -> None:
        self.count = count
        self.rows: dict[Any, list[int]] = defaultdict(list)

    def insert(self, rows: list[tuple[Any, int]]) -> None:
        for key, n in rows:
            self.rows[key] = [*self.rows[key], n][-self.count :]

    def held(self) -> dict[Any, list[int]]:
        return {key: rows for key, rows in self.rows.items() if rows}


def copy_of(windows: KeyedWindows) -> KeyedWindows:
    return KeyedWindows(windows.count, windows._group, windows._per)


KEY = st.integers(0, 5) | st.none()
EPOCHS = st.lists(st.tuples(st.lists(KEY, max_size=15), st.booleans(), st.booleans()), max_size=12)


@settings(max_examples=60)
@given(st.integers(1, 9).flatmap(lambda w: st.tuples(st.just(w), st.integers(1, w) | st.just("auto"))), EPOCHS)
def test_every_key_has_its_newest_rows(sizes, epochs):
    windows, naive, disk, at = KeyedWindows(*sizes, ["k"]), Naive(sizes[0]), Disk(), 0
    for keys, saving, restoring in epochs:
        rows = [(key, at + number) for number, key in enumerate(keys)]
        at += len(rows)
        windows.insert(table(*rows))
        naive.insert(rows)
        assert held(windows) == naive.held()
        if saving:
            disk.keep(windows.save())
            other = copy_of(windows)
            result = other.restore(disk.parts, 0)
            assert held(other) == naive.held() and result.kept == len(windows) and not result.parts
            windows = other if restoring else windows


def written(windows: KeyedWindows, saved: dict[str, bytes | None]) -> int:
    """Rows in the parts that are new."""
    bodies = [body for name, body in saved.items() if name.startswith("rows") and body is not None]
    return sum(pa.ipc.open_stream(body).read_all().num_rows for body in bodies)


def test_a_group_is_written_whole_and_closed_when_it_is_full():
    windows, disk = KeyedWindows(100, 10, ["k"]), Disk()
    sizes = []
    for begin in range(0, 30, 5):
        windows.insert(table(*[(1, n) for n in range(begin, begin + 5)]))
        saved = windows.save()
        sizes.append(written(windows, saved))
        disk.keep(saved)
    assert sizes == [5, 10, 5, 10, 5, 10]


def test_nothing_new_writes_nothing():
    windows = KeyedWindows(100, "auto", ["k"])
    windows.insert(table(*[(n % 7, n) for n in range(50)]))
    windows.save()
    assert [name[:4] for name, body in windows.save().items() if body is not None] == ["head"]


def test_thousands_of_keys_are_a_few_parts():
    windows, disk = KeyedWindows(10, "auto", ["k"]), Disk()
    for epoch in range(8):
        windows.insert(table(*[(n, epoch) for n in range(5000)]))
        disk.keep(windows.save())
        assert sum(body is not None for body in windows.save().values()) == 1
        assert len(disk.parts) <= 2 * 8 + 1


def zipf(count: int, keys: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return draw.choices(range(keys), [1 / (rank + 1) for rank in range(keys)], k=count)


def amplification(group: int | str, window: int = 256, keys: int = 200, per_save: int = 500, saves: int = 80) -> float:
    """Rows written for every new row, and that everything can be read all along."""
    windows, disk, rows, at = KeyedWindows(window, group, ["k"]), Disk(), 0, 0
    naive = Naive(window)
    for save in range(saves):
        new = [(key, at + n) for n, key in enumerate(zipf(per_save, keys, save))]
        at += len(new)
        windows.insert(table(*new))
        naive.insert(new)
        saved = windows.save()
        disk.keep(saved)
        if save >= saves // 4:
            rows += written(windows, saved)
        on_disk = sum(bundle.size for bundle in windows._bundles.values())
        assert on_disk <= (1 / bundles.LIVES_MIN) * len(windows) + 2 * per_save
        assert len(windows._bundles) <= bundles.SMALL_MAX + 3 * len(windows) // (bundles.PART_ROWS // 2) + 1
    other = copy_of(windows)
    other.restore(disk.parts)
    assert held(other) == naive.held()
    return rows / (per_save * (saves - saves // 4))


def test_zipf_keys_with_a_group_for_each_write_little_twice():
    """Section 5.2: with one size for all, rare keys' groups are written again for every row."""
    auto, fixed = amplification("auto"), amplification(128)
    assert auto < 1.7, "each new row, an eighth of it again with its group, and what is moved"
    assert fixed > 2 * auto


def test_lost_rows_are_shared_out_by_the_rate_of_each_key():
    windows, disk = KeyedWindows(100, "auto", ["k"]), Disk()
    for save in range(20):
        windows.insert(table(*[(1, n) for n in range(30)], *[(2, n) for n in range(10)]))
        disk.keep(windows.save(at=float(save)))
    for about in ({"stale": 40}, {"times": (19.0, 20.0)}):
        other = copy_of(windows)
        result = other.restore(disk.parts, **about)
        assert (len(held(other)[1]), len(held(other)[2]), result.stale) == (70, 90, 40)
        other.insert(table(*[(1, n) for n in range(30)]))
        assert len(held(other)[1]) == 70, "rows leave when they would have"
        after = deepcopy(disk)
        after.keep(other.save())
        again = copy_of(windows)
        again.restore(after.parts)
        assert held(again) == held(other)


@pytest.mark.parametrize("how", HOWS)
def test_damage_of_any_one_part(how):
    windows, naive, disk, at = KeyedWindows(20, 4, ["k"]), Naive(20), Disk(), 0
    for save in range(12):
        rows = [(key, at + n) for n, key in enumerate(zipf(30, 8, save))]
        at += 30
        windows.insert(table(*rows))
        naive.insert(rows)
        disk.keep(windows.save())
    whole = naive.held()
    for name in disk.parts:
        other = copy_of(windows)
        result = other.restore(disk.damaged(name, how))
        if name.startswith("head"):
            assert result.fresh and not held(other)
            continue
        now = held(other)
        assert result.parts == (name,) and all(set(rows) <= set(whole[key]) for key, rows in now.items())
        assert sum(map(len, now.values())) == sum(map(len, whole.values())) - result.damaged == result.kept
        assert (result.damaged > 0) == name.startswith("rows")
        more = [(key, at + n) for n, key in enumerate(zipf(40, 8, 99))]
        other.insert(table(*more))
        assert all(set(rows) <= {*whole.get(key, []), *(n for _, n in more)} for key, rows in held(other).items())
        after = Disk()
        after.parts = {n: body for n, body in disk.parts.items() if n != name}
        after._ever = dict(disk.parts)
        after.keep(other.save())
        again = copy_of(windows)
        assert not again.restore(after.parts).parts and held(again) == held(other)


def kept(windows: KeyedWindows, disk: Disk) -> tuple[KeyedWindows, Disk]:
    """What somebody else makes of a save."""
    other, disk = copy_of(windows), deepcopy(disk)
    assert not other.restore(disk.parts).parts
    return other, disk


@pytest.mark.parametrize("group", ["auto", 2, 10])
def test_what_left_because_rows_were_lost_does_not_come_back_with_the_next_save(group):
    windows, disk = KeyedWindows(10, group, ["k"]), Disk()
    windows.insert(table(*[(1, n) for n in range(10)]))
    disk.keep(windows.save())
    windows, disk = kept(windows, disk)
    windows.missed(5)
    disk.keep(windows.save())
    assert held(kept(windows, disk)[0]) == held(windows) == {1: [5, 6, 7, 8, 9]}, "no new row of the key"
    windows.insert(table(*[(1, n) for n in range(15, 17)]))
    disk.keep(windows.save())
    other, _ = kept(windows, disk)
    for each in (windows, other):
        each.insert(table(*[(1, n) for n in range(17, 20)]))
        assert held(each) == {1: [15, 16, 17, 18, 19]}, "lost rows count, also after another restore"


def test_what_a_damaged_group_cost_does_not_come_back_with_the_next_save():
    windows, disk = KeyedWindows(10, 5, ["k"]), Disk()
    for begin, end in ((0, 10), (10, 14)):
        windows.insert(table(*[(1, n) for n in range(begin, end)]))
        disk.keep(windows.save())
    name = next(name for name in disk.parts if name.startswith("rows-2"))
    windows = copy_of(windows)
    assert windows.restore(disk.damaged(name, "flipped")).damaged == 4
    del disk.parts[name]
    disk.keep(windows.save())
    assert held(kept(windows, disk)[0]) == held(windows) == {1: [4, 5, 6, 7, 8, 9]}


def test_a_key_that_lost_all_of_its_rows_is_forgotten_and_nothing_comes_of_it():
    windows, disk = KeyedWindows(2, 1, ["k"]), Disk()
    for n in range(4):
        windows.insert(table((1, n), (2, n)))
        disk.keep(windows.save())
    windows, disk = kept(windows, disk)
    windows.missed(99)
    disk.keep(windows.save())
    other, _ = kept(windows, disk)
    assert held(windows) == held(other) == {} and (windows.key_count, other.key_count) == (2, 0)
    for n in range(100, 104):
        windows.insert(table((1, n)))
        other.insert(table((1, n)))
        assert held(windows) == held(other)


def test_a_loss_costs_one_whole_save():
    windows, disk = KeyedWindows(10, 2, ["k"]), Disk()
    windows.insert(table(*[(n % 50, n) for n in range(500)]))
    disk.keep(windows.save())
    windows, disk = kept(windows, disk)
    windows.missed(100)
    sizes = []
    for n in range(3):
        saved = windows.save()
        disk.keep(saved)
        sizes.append(written(windows, saved))
        windows.insert(table((7, 1000 + n)))
    assert sizes == [400, 1, 2]


CRASH = st.tuples(st.just("lose"), st.integers(0, 12)) | st.tuples(st.just("damage"), st.integers(0, 9))
ROUNDS = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=9), st.sampled_from([True, True, False]), st.none() | CRASH),
    min_size=3, max_size=12,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 9).flatmap(lambda w: st.tuples(st.just(w), st.integers(1, w) | st.just("auto"))), ROUNDS)
def test_whoever_restores_goes_on_as_the_one_who_saved(sizes, rounds):
    """Through any history of losses and damage. And what has left stays away."""
    windows, disk, others = KeyedWindows(*sizes, ["k"]), Disk(), list[tuple[KeyedWindows, Disk]]()
    seen, gone, gone_by_the_save = set[int](), set[int](), set[int]()

    def check() -> None:
        assert all(held(other) == held(windows) for other, _ in others)
        here = {n for rows in held(windows).values() for n in rows}
        assert not here & gone
        gone.update(seen - here)

    for keys, saving, crash in rounds:
        new = [(key, len(seen) + number) for number, key in enumerate(keys)]
        seen |= {n for _, n in new}
        for each in (windows, *(other for other, _ in others)):
            each.insert(table(*new))
        check()
        if saving:
            for each, its in ((windows, disk), *others):
                its.keep(each.save())
            others = [*others[-1:], kept(windows, disk)]
            gone_by_the_save = set(gone)
            check()
        if crash is not None and disk.parts:
            what, about = crash
            parts, gone = dict[str, Any](disk.parts), set(gone_by_the_save)
            whole = [bundle for bundle in windows._bundles.values() if {bundle.rows, bundle.directory} <= set(parts)]
            if what == "damage" and whole:  # of a bundle without either part nobody knows what it replaced
                bundle = whole[about // 2 % len(whole)]
                name = (bundle.rows, bundle.directory)[about % 2]
                del disk.parts[name]
                parts[name] = None
            windows, others = copy_of(windows), []
            windows.restore(parts)
            if what == "lose":
                windows.missed(about)
            check()


def test_a_body_is_divided(monkeypatch):
    monkeypatch.setattr(bundles, "PART_ROWS", 64)
    windows, disk = KeyedWindows(50, 7, ["k"]), Disk()
    for save in range(6):
        windows.insert(table(*[(key, n) for n, key in enumerate(zipf(200, 30, save))]))
        disk.keep(windows.save())
    other = copy_of(windows)
    other.restore(disk.parts)
    assert held(other) == held(windows) and len(disk.parts) > 10
    assert max(bundle.size for bundle in windows._bundles.values()) == 64


def test_rows_that_have_left_are_taken_out():
    windows = KeyedWindows(2, "auto", ["k"])
    for _ in range(30):
        windows.insert(table(*[(n % 50, n) for n in range(1000)]))
    assert len(windows) == 100 and windows.log.end < 10_000


def test_keys_of_several_columns_and_strings():
    windows, disk = KeyedWindows(2, 1, ["k", "s"]), Disk()
    rows = pa.table({"k": [1, 1, 1, 2, 1], "s": ["a", "a", "b", "a", "a"], "n": range(5)})
    windows.insert(rows)
    disk.keep(windows.save())
    other = KeyedWindows(2, 1, ["k", "s"])
    other.restore(disk.parts)
    assert other.table()["n"].to_pylist() == [1, 4, 2, 3] and other.key_count == 3
    assert KeyedWindows(2, 1, ["s"]).restore(disk.parts).fresh, "these are windows of other keys"
