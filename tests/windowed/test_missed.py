"""Stale rows after a restore (Jacques-Silva et al. 2009, Section 4): what would have expired while epochs were lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_parts import Disk

import understudy as us
from understudy.windowed.aggregate import Aggregate
from understudy.windowed.barrier import Barrier
from understudy.windowed.base import Windowed
from understudy.windowed.indexed import IndexedWindow
from understudy.windowed.join import Join
from understudy.windowed.keyed import KeyedWindows
from understudy.windowed.rows import RowWindow


def rows(*numbers: int, name: str = "n") -> pa.Table:
    return pa.table({"key": pa.array([n % 3 for n in numbers], pa.int64()), name: pa.array(numbers, pa.int64())})


def numbers(window: RowWindow) -> list[int]:
    return window.table()["n"].to_pylist() if len(window) else []


def restored(window: Any, again: Any) -> Any:
    disk = Disk()
    disk.keep(window.save())
    again.restore(disk.parts)
    return again


@pytest.mark.parametrize(("missed", "left"), [(0, 10), (3, 7), (10, 0), (99, 0)])
def test_of_w_rows_that_missed_m_at_most_w_less_m_remain(missed: int, left: int) -> None:
    window = RowWindow(10, 4)
    window.insert(rows(*range(25)))
    again = restored(window, RowWindow(10, 4))
    assert again.missed(missed) == 10 - left
    assert numbers(again) == list(range(25 - left, 25))


def test_a_window_that_was_not_full_has_room_for_what_it_missed() -> None:
    window = RowWindow(10, 4)
    window.insert(rows(*range(4)))
    again = restored(window, RowWindow(10, 4))
    assert again.missed(6) == 0 and again.missed(1) == 1
    assert numbers(again) == [1, 2, 3]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_it_is_as_if_it_had_been_known_at_the_restore(data: st.DataObject) -> None:
    """And what is saved afterwards says the same."""
    count, group = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    size = st.integers(0, 15)
    first, lost, more = data.draw(size), data.draw(size), data.draw(size)
    window = RowWindow(count, min(group, count))
    window.insert(rows(*range(first)))
    disk = Disk()
    disk.keep(window.save())
    known, told = RowWindow(count, min(group, count)), RowWindow(count, min(group, count))
    gone = known.restore(disk.parts, lost).stale
    told.restore(disk.parts)
    assert told.missed(lost) == gone and numbers(told) == numbers(known)
    for each in (known, told):
        each.insert(rows(*range(100, 100 + more)))
    assert numbers(told) == numbers(known) and told.total == known.total and told.span() == known.span()
    after = Disk()
    after.parts, after._ever = dict(disk.parts), dict(disk.parts)
    after.keep(told.save())
    again = RowWindow(count, min(group, count))
    assert not again.restore(after.parts).parts
    assert numbers(again) == numbers(told) and again.total == told.total
    again.insert(rows(500))
    told.insert(rows(500))
    assert numbers(again) == numbers(told)


def test_of_another_size_than_when_it_was_saved() -> None:
    window = RowWindow(10, 4)
    window.insert(rows(*range(25)))
    again = restored(window, RowWindow(6, 2))
    assert numbers(again) == list(range(19, 25))
    again.missed(4)
    assert numbers(again) == [23, 24]
    third = restored(again, RowWindow(6, 2))
    assert numbers(third) == [23, 24]
    third.insert(rows(30))
    assert numbers(third) == [24, 30], "four that are lost count among the six"
    third.insert(rows(31))
    assert numbers(third) == [30, 31]


def test_what_has_left_is_found_no_more() -> None:
    window = IndexedWindow(6, 2, ["key"])
    window.insert(rows(*range(6)))
    again = restored(window, IndexedWindow(6, 2, ["key"]))
    assert again.missed(4) == 4
    _, found = again.matches([pa.array([0, 1, 2], pa.int64())])
    assert again.take(found, ["n"])["n"].to_pylist() == [4, 5]


def keyed_numbers(window: KeyedWindows) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in window.table().to_pylist() if len(window) else []:
        found.setdefault(row["key"], []).append(row["n"])
    return found


def by_key(**counts: int) -> pa.Table:
    keys = [int(name[1:]) for name, count in counts.items() for _ in range(count)]
    return pa.table({"key": pa.array(keys, pa.int64()), "n": pa.array(range(len(keys)), pa.int64())})


def test_of_each_key_as_many_as_its_rate_says() -> None:
    window = KeyedWindows(10, 2, ["key"])
    window.insert(by_key(k0=20, k1=10))
    again = restored(window, KeyedWindows(10, 2, ["key"]))
    assert again.missed(6) == 6
    assert {key: len(found) for key, found in keyed_numbers(again).items()} == {0: 6, 1: 8}, "four, and two"


def test_of_many_rare_keys_some_lose_a_row() -> None:
    """No share is a whole row; altogether they lose as many as came."""
    window = KeyedWindows(1, 1, ["key"])
    window.insert(by_key(**{f"k{key}": 1 for key in range(40)}))
    again = restored(window, KeyedWindows(1, 1, ["key"]))
    assert again.missed(30) == 30 and len(again) == 10


def test_every_input_of_an_operator_has_its_own() -> None:
    def join() -> Join:
        return Join("key", us.rows(6), us.rows(4))

    def saved() -> Join:
        first = join()
        first.process(rows(*range(6), name="a"), rows(*range(4), name="b"))
        return first

    again = restored(saved(), join())
    assert again.missed([5, 1]) == 6
    made = again.process(rows(name="a"), rows(0, 1, 2, name="b"))
    assert made["a"].to_pylist() == [5], "of the left side"
    again = restored(saved(), join())
    again.missed([5, 1])
    made = again.process(rows(0, 1, 2, name="a"), rows(name="b"))
    assert made["b"].to_pylist() == [3, 1, 2], "of the right side"


@pytest.mark.parametrize("make", [
    lambda: Aggregate("key", us.rows(5), n=("*", "count")),
    lambda: Aggregate("key", us.seconds(1, of="n"), c=("*", "count")),
    lambda: Join("key", us.rows(5, per="key"), us.rows(0)),
    lambda: Barrier(2),
])  # fmt: skip
def test_all_of_them_take_it(make: Any) -> None:
    operator: Windowed = make()
    inputs = 1 if isinstance(operator, Aggregate) else 2
    operator.process(*[rows(*range(9), name=["n", "m"][i]) for i in range(inputs)])
    again = restored(operator, make())
    assert again.missed([4] * inputs) >= 0
    again.process(*[rows(*range(9, 20), name=["n", "m"][i]) for i in range(inputs)])
    restored(again, make())
