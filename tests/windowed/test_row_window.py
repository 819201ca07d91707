"""A window by row count on Arrow, against a list."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved_parts import HOWS, Disk

from understudy.windowed.log import Log
from understudy.windowed.rows import RowWindow


def table(begin: int, end: int) -> pa.Table:
    numbers = list(range(begin, end))
    return pa.table({"n": pa.array(numbers, pa.int64()), "text": pa.array([f"row {n}" for n in numbers], pa.string())})


def numbers(window: RowWindow) -> list[int]:
    return window.table()["n"].to_pylist() if window.log.schema is not None else []


def filled(count: int, group: int, *sizes: int) -> tuple[RowWindow, Disk, int]:
    """With a save after every epoch of one of these sizes."""
    window, disk, at = RowWindow(count, group), Disk(), 0
    for size in sizes:
        window.insert(table(at, at + size))
        at += size
        disk.keep(window.save())
    return window, disk, at


def test_figure_6_in_parts():
    window, disk, _ = filled(15, 5, 13)
    assert sorted(name[:3] for name in disk.parts) == ["0-1", "1-2", "2-3", "hea"]
    window.insert(table(13, 18))
    saved = window.save()
    assert {name[:3]: body is None for name, body in saved.items()} == {
        "0-1": True, "1-2": True, "2-4": False, "3-5": False, "hea": False,
    }  # fmt: skip
    disk.keep(saved)
    other = RowWindow(15, 5)
    result = other.restore(disk.parts)
    assert (result.kept, result.stale, result.damaged, result.fresh) == (15, 0, 0, False)
    assert numbers(other) == list(range(3, 18)), "A-C are in G1's file, and cut off"
    assert other.table().equals(window.table())


def test_a_save_without_anything_new_writes_nothing():
    window, *_ = filled(100, 10, 42)
    assert all(body is None for body in window.save().values())


def test_what_was_restored_is_not_written_again():
    _, disk, at = filled(100, 10, 75)
    other = RowWindow(100, 10)
    other.restore(disk.parts)
    other.insert(table(at, at + 2))
    saved = other.save()
    assert sorted(name[:2] for name, body in saved.items() if body is not None) == ["7-", "he"]
    disk.keep(saved)
    assert len(disk.parts) == 9


def test_two_copies_that_go_on_from_one_state_use_other_names():
    window, disk, at = filled(100, 10, 75)
    other = RowWindow(100, 10)
    other.restore(disk.parts)
    window.insert(table(at, at + 2))
    other.insert(table(1000, 1002))
    mine, others = window.save(), other.save()
    assert not {n for n, body in mine.items() if body is not None} & {n for n, b in others.items() if b is not None}


def test_rows_that_are_known_to_be_lost_push_others_out():
    _, disk, _ = filled(15, 5, 13)
    window = RowWindow(15, 5)
    result = window.restore(disk.parts, stale=7)
    assert (result.kept, result.stale) == (8, 5), "20 rows were seen, so the first five would be gone"
    assert numbers(window) == list(range(5, 13))
    window.insert(table(20, 24))
    assert numbers(window) == list(range(9, 13)) + list(range(20, 24)), "and rows leave when they would have"
    disk.keep(window.save())
    window.insert(table(24, 30))
    disk.keep(window.save())
    other = RowWindow(15, 5)
    other.restore(disk.parts)
    assert numbers(other) == numbers(window) == list(range(20, 30))
    assert other.total == 30


def test_a_window_that_was_not_full_has_nothing_stale():
    _, disk, _ = filled(100, 10, 30)
    window = RowWindow(100, 10)
    assert window.restore(disk.parts, stale=50).stale == 0
    assert window.restore(disk.parts, stale=100).kept == 0
    assert window.restore(disk.parts, stale=10**9).stale == 30


def test_the_formula_of_the_paper_where_nobody_knows():
    """Section 4.4: (T_recovery - T_serialization) x tuples per second."""
    window, disk = RowWindow(1000, 100), Disk()
    for number in range(5):
        window.insert(table(number * 500, number * 500 + 500))
        disk.keep(window.save(at=100.0 + 2 * number))
    other = RowWindow(1000, 100)
    assert other.restore(disk.parts, times=(108.0, 109.0)).stale == 250, "250 rows a second, for a second"
    assert other.restore(disk.parts, stale=3, times=(108.0, 109.0)).stale == 3, "known is better"
    assert other.restore(disk.parts).stale == 0


@pytest.mark.parametrize("how", HOWS)
def test_damage_of_any_one_part_costs_at_most_its_rows(how):
    window, disk, at = filled(100, 8, 30, 61, 50)
    for name in disk.parts:
        other = RowWindow(100, 8)
        result = other.restore(disk.damaged(name, how))
        if name.startswith("head"):
            assert result.fresh and result.kept == len(other) == 0
            assert "begun from nothing" in result.words
        else:
            assert 0 < result.damaged <= 8 and result.parts == (name,) and not result.fresh
            assert result.kept == len(other) == 100 - result.damaged
            assert name in result.words
        other.insert(table(at, at + 20))
        again = RowWindow(100, 8)
        assert not again.restore({n: b if b is not None else disk.parts[n] for n, b in other.save().items()}).damaged
        assert numbers(again) == numbers(other)
        expected = set() if result.fresh else set(numbers(window))
        assert set(numbers(other)) <= {n for n in expected if n >= at + 20 - 100} | set(range(at, at + 20))


def test_a_name_that_is_not_there_at_all():
    assert RowWindow(10, 2).restore({}).fresh
    assert RowWindow(10, 2).restore({"head-00": b"{}"}).fresh


def test_a_window_of_nothing():
    window = RowWindow(0, 1)
    window.insert(table(0, 10))
    assert len(window) == 0 and window.save() == {} and not window.restore({}).fresh


def test_another_window_than_when_it_was_saved():
    _, disk, at = filled(100, 10, 75, 60)
    for count, group in ((50, 10), (200, 10), (100, 7)):
        window, fresh = RowWindow(count, group), Disk()
        result = window.restore(disk.parts)
        assert numbers(window) == list(range(max(35, 135 - count), 135)) and result.stale == max(0, 100 - count)
        window.insert(table(at, at + 5))
        fresh.parts = dict(disk.parts)
        fresh._ever = dict(disk.parts)
        fresh.keep(window.save())
        again = RowWindow(count, group)
        again.restore(fresh.parts)
        assert numbers(again) == numbers(window)


def test_other_columns_are_refused_in_words():
    window, _, _ = filled(10, 2, 3)
    with pytest.raises(ValueError, match="the window has rows of n int64, text string, and is given x int64"):
        window.insert(pa.table({"x": [1]}))
    window.insert(pa.table({"text": ["a"], "n": pa.array([1], pa.int32())}))
    assert len(window) == 4


def test_pieces_stay_few():
    log = Log()
    for number in range(1000):
        log.append(table(number, number + 1))
        log.drop(len(log) - 100)
    assert log.pieces <= 8 and log.table()["n"].to_pylist() == list(range(900, 1000))


def test_an_open_window_keeps_all_until_it_is_dropped():
    window, disk = RowWindow(None, 4), Disk()
    window.insert(table(0, 10))
    disk.keep(window.save())
    window.drop(5)
    window.insert(table(10, 13))
    disk.keep(window.save())
    assert sorted(name[:2] for name in disk.parts) == ["1-", "2-", "3-", "he"]
    other = RowWindow(None, 4)
    damaged = next(name for name in disk.parts if name.startswith("2-"))
    assert other.restore(disk.damaged(damaged, "cut")).damaged == 4
    assert numbers(other) == other.numbers().tolist() == [5, 6, 7, 12]
    other.drop(2)
    assert numbers(other) == other.numbers().tolist() == [7, 12]
    other.drop(5)
    assert numbers(other) == [] and other.total == 13


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 60)),
        st.tuples(st.just("save")),
        st.tuples(st.just("restore"), st.integers(0, 30), st.none() | st.integers(0, 9)),
    ),
    max_size=15,
)


@given(st.integers(1, 30).flatmap(lambda w: st.tuples(st.just(w), st.integers(1, w))), STEPS)
def test_a_window_is_what_a_list_of_numbers_says(sizes, steps):
    count, _ = sizes
    window, disk = RowWindow(*sizes), Disk()
    rows: list[int] = []
    saved: tuple[list[int], int] | None = None
    at = 0
    for what, *about in steps:
        if what == "insert":
            window.insert(table(at, at + about[0]))
            rows += range(at, at + about[0])
            at += about[0]
        elif what == "save":
            disk.keep(window.save())
            saved = list(rows), at
        elif saved is not None:
            lost, broken = about
            parts: dict[str, bytes | None] = dict(disk.parts)
            groups = sorted(name for name in parts if not name.startswith("head"))
            window = RowWindow(*sizes)
            if broken is not None and groups:
                parts[groups[broken % len(groups)]] = b"?"
            result = window.restore(parts, lost)
            rows, at = [row for row in saved[0] if row >= saved[1] + lost - count], saved[1] + lost
            rest = numbers(window)
            assert set(rest) <= set(rows) and len(rows) - len(rest) <= result.damaged <= sizes[1]
            assert result.kept + result.stale + result.damaged == len(saved[0])
            rows = rest
        rows = [row for row in rows if row >= at - count]
        assert numbers(window) == rows == window.numbers().tolist()
