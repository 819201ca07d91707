"""Windows by time: what closing costs, and what becomes of windows that were open when rows were lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from saved_parts import Disk

from understudy.cut_times import KEY, with_time
from understudy.windowed import timed
from understudy.windowed.aggregate import Aggregate
from understudy.windowed.spans import seconds


def at(*seconds_: float, key: int = 1) -> pa.Table:
    times = [int(second * 1000) for second in seconds_]
    return pa.table({"k": pa.array([key] * len(times), pa.int64()), "at": pa.array(times, pa.int64())})


def windows(made: pa.Table) -> list[tuple[float, int]]:
    """Where each begins, and how many rows were in it."""
    return [(row["window_start"] / 1000, row["n"]) for row in made.to_pylist()]


def counts(length: float, slide: float | None = None, late: float = 0) -> Aggregate:
    return Aggregate("k", seconds(length, slide=slide, of="at"), late=late, n=("*", "count"))


def test_windows_that_close_together_are_added_up_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is in 600 of them: all at once they were twelve million rows, and 1.1 GB."""
    added_up: list[int] = []
    folded = timed.folded

    def noted(groups: Any, rows: pa.Table, outputs: Any) -> Any:
        added_up.append(len(groups))
        return folded(groups, rows, outputs)

    monkeypatch.setattr(timed, "folded", noted)
    aggregate = counts(600, slide=1)
    rows = pa.table({"k": [n % 10 for n in range(20_000)], "at": [500_000 + n % 1000 for n in range(20_000)]})
    aggregate.process(rows)
    made = aggregate.process(at(10_000))
    assert made.num_rows == 600 * 10 and set(made["n"].to_pylist()) == {2000}
    assert made["window_start"].to_pylist() == sorted(made["window_start"].to_pylist())
    assert max(added_up) <= timed.PAIRS and sum(added_up) == 600 * 20_000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4000), min_size=1, max_size=40), st.integers(1, 30), st.sampled_from([(10, 1), (7, 3)]))
def test_some_at_a_time_is_the_same_as_all_at_once(times: list[int], most: int, span: tuple[int, int]) -> None:
    def made() -> pa.Table:
        aggregate = counts(*span)
        aggregate.process(pa.table({"k": [t % 3 for t in times], "at": [t * 100 for t in times]}))
        return aggregate.process(at(10_000))

    whole, pairs = made(), timed.PAIRS
    try:
        timed.PAIRS = most
        assert made() == whole
    finally:
        timed.PAIRS = pairs


def test_rows_are_looked_at_only_when_time_has_passed_the_end_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregate = counts(60, slide=20)
    aggregate.process(at(*range(10)))
    looked: list[Any] = []
    table = aggregate._inner.window.table
    monkeypatch.setattr(aggregate._inner.window, "table", lambda: looked.append(1) or table())
    for second in range(10, 20):
        assert not aggregate.process(at(second)).num_rows
    assert not looked
    assert windows(aggregate.process(at(20))) == [(-40, 20)]
    assert looked


def restored(aggregate: Aggregate, again: Aggregate) -> Aggregate:
    disk = Disk()
    disk.keep(aggregate.save())
    assert not again.restore(disk.parts).parts
    return again


def test_a_window_that_closed_while_rows_were_lost_is_not_made_of_what_is_left() -> None:
    before = counts(10)
    before.process(at(0, 1, 2, 3))
    after = restored(before, counts(10))
    assert after.missed([26]) == 0
    assert windows(after.process(at(30))) == []
    assert windows(after.process(at(40))) == [(30, 1)]


def test_a_window_that_is_still_open_goes_on() -> None:
    before = counts(10, slide=5)
    before.process(at(0, 1, 7))
    after = restored(before, counts(10, slide=5))
    after.missed([2])
    assert windows(after.process(at(11, 12))) == [], "what began at 0, and lacks rows"
    assert windows(after.process(at(15))) == [(5, 3)], "it lacks rows too, as is said of the stage"


def test_windows_that_began_afterwards_are_made() -> None:
    """While a host is replaced, rows collect in one epoch: more than a window may be in it."""
    before = counts(2)
    before.process(at(0, 1))
    after = restored(before, counts(2))
    after.missed([1])
    assert windows(after.process(at(4, 5, 6, 7, 8))) == [(4, 2), (6, 2)]


def test_what_was_lost_without_rows_took_no_time() -> None:
    before = counts(10)
    before.process(at(0, 1))
    after = restored(before, counts(10))
    after.missed([0])
    assert windows(after.process(at(30))) == [(0, 2)]


@pytest.mark.parametrize("known", [True, False])
def test_that_rows_are_lost_is_saved_until_time_has_gone_on(known: bool) -> None:
    before, disk = counts(10), Disk()
    before.process(at(0, 3))
    disk.keep(before.save())
    between = counts(10)
    between.restore(disk.parts, [5] if known else [])
    if not known:
        between.missed([5])
    between.process(at(2))
    after = restored(between, counts(10))
    assert windows(after.process(at(30))) == []
    again = restored(after, counts(10))
    assert windows(again.process(at(40))) == [(30, 1)], "and forgotten then"


# -- of the times at which epochs were cut --------------------------------------------------------------------------


def cut(second: float | None, *keys: int, _time: int = 0) -> pa.Table:
    """An epoch. It has a column whose name may mislead."""
    rows = {"k": pa.array(keys, pa.int64()), "_time": pa.array([_time] * len(keys), pa.int64())}
    return with_time(pa.table(rows), None if second is None else int(second * 1_000_000))


def cut_counts(length: float, slide: float | None = None) -> Aggregate:
    return Aggregate("k", seconds(length, slide=slide), n=("*", "count"))


def started(made: pa.Table) -> list[tuple[Any, float, int]]:
    return [(r["k"], r["window_start"].timestamp(), r["n"]) for r in made.to_pylist()]


def test_every_row_has_the_time_of_its_epoch_and_windows_close_while_nothing_comes() -> None:
    aggregate = cut_counts(20, slide=5)
    assert started(aggregate.process(cut(100.5, 1, 1, 2))) == []
    assert started(aggregate.process(cut(104.9, 1))) == []
    assert started(aggregate.process(cut(105))) == [(1, 85, 3), (2, 85, 1)], "an epoch without rows"
    made = aggregate.process(cut(125))
    assert started(made) == [(k, start, n) for start in (90, 95, 100) for k, n in ((1, 3), (2, 1))]
    assert made.schema == aggregate.schema(cut(None).schema) == pa.schema(
        {"k": pa.int64(), "window_start": pa.timestamp("us", "UTC"), "window_end": pa.timestamp("us", "UTC"),
         "n": pa.int64()}
    )  # fmt: skip
    assert not len(aggregate._inner.window) and aggregate.spans() == [(4, 4)], "and its rows are let go of"


def test_a_column_of_that_name_is_counted_only_when_it_is_named() -> None:
    aggregate = Aggregate("k", seconds(10), n=("*", "count"), most=("_time", "max"))
    aggregate.process(cut(1, 1, 1, _time=10**12))
    assert aggregate.process(cut(10, 1)).to_pydict()["most"] == [10**12]
    named = Aggregate("k", seconds(10, of="_time"), n=("*", "count"))
    assert windows(named.process(cut(5000, 1, _time=0))) == [], "whenever it was cut"
    assert windows(named.process(cut(5001, 1, _time=10_000))) == [(0, 1)]


def test_an_epoch_without_a_time_leaves_the_clock_alone() -> None:
    aggregate = cut_counts(10)
    assert aggregate.process(cut(None)).num_rows == 0
    aggregate.process(cut(8, 1))
    for lost in (cut(None), cut(None, 1)):
        assert started(aggregate.process(lost)) == []
    assert started(aggregate.process(cut(12, 2))) == [(1, 0, 1)]


def test_it_is_saved_with_its_rows() -> None:
    before = cut_counts(10)
    before.process(cut(8, 1).replace_schema_metadata({KEY: b"8000000", b"understudy": b"a header"}))
    after = restored(before, cut_counts(10))
    assert started(after.process(cut(9.999))) == []
    assert started(after.process(cut(10, 1))) == [(1, 0, 1)]
    assert after._inner.window.table().schema.metadata is None


@pytest.mark.parametrize("rows", [0, 3])
def test_lost_epochs_took_time_with_or_without_rows(rows: int) -> None:
    """What closed meanwhile has been made by whoever was there."""
    before = cut_counts(10, slide=5)
    before.process(cut(8, 1))
    after = restored(before, cut_counts(10, slide=5))
    after.missed([rows])
    assert started(after.process(cut(12, 2))) == []
    assert started(after.process(cut(15))) == [(1, 5, 1), (2, 5, 1)]


EVENTS = st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=3, max_size=12)


@settings(max_examples=100, deadline=None)
@given(EVENTS, st.sampled_from([(10, 5, 0), (10, 10, 0), (6, 4, 8), (3, 3, 20)]), st.data())
def test_no_window_is_made_twice_and_what_began_later_is_whole(
    drifts: list[list[int]], shape: tuple[int, int, int], data: st.DataObject
) -> None:
    """Rows are as late as they may be, and no later."""
    length, slide, late = shape
    epochs, newest = [], 0
    for epoch, each in enumerate(drifts):
        epochs.append([max(newest - late, 8 * epoch + drift - 15) for drift in each])
        newest = max([newest, *epochs[-1]])
    saved = data.draw(st.integers(0, len(epochs) - 2), label="saved after")
    resumed = data.draw(st.integers(saved + 1, len(epochs) - 1), label="goes on with")
    lost = sum(len(epoch) for epoch in epochs[saved + 1 : resumed])
    assume(lost > 0)
    reference, disk, wanted = counts(length, slide, late), Disk(), []
    for epoch, times in enumerate(epochs):
        wanted.append(windows(reference.process(at(*times))))
        if epoch == saved:
            disk.keep(reference.save())
    after = counts(length, slide, late)
    after.restore(disk.parts)
    after.missed([lost])
    found = [window for times in epochs[resumed:] for window in windows(after.process(at(*times)))]
    had = {start for each in wanted[:resumed] for start, _ in each}
    assert not had & {start for start, _ in found}
    gone = max((time for times in epochs[:resumed] for time in times), default=0)
    whole = {w for each in wanted[resumed:] for w in each if w[0] > gone}
    assert whole == {window for window in found if window[0] > gone}
