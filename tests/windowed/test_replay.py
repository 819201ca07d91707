"""What upstream backup counts on: an operator whose windows let go of old input makes the same again when it is rebuilt
from the epochs that its rows came in."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import understudy as us
from understudy.core.operators import Window
from understudy.core.reach import Numbers, Reach, numbered
from understudy.cut_times import with_time
from understudy.windowed.aggregate import Aggregate
from understudy.windowed.barrier import Barrier
from understudy.windowed.base import Windowed
from understudy.windowed.join import Join

Epochs = list[tuple[pa.Table, ...]]
PATIENT = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def run(make: Callable[[], Windowed], epochs: Epochs, start: int) -> tuple[list[pa.Table], list[int]]:
    operator, reach, made, needs = make(), Reach(), [], []
    for epoch in range(start, len(epochs)):
        made.append(operator.process(*epochs[epoch]))
        needs.append(reach.committed(epoch, operator.spans()))
    return made, needs


def check_replay(make: Callable[[], Windowed], epochs: Epochs, data: st.DataObject) -> None:
    made, needs = run(make, epochs, 0)
    had = data.draw(st.integers(0, len(epochs) - 1), label="what consumers have")
    begin = data.draw(st.integers(0, needs[had]), label="the oldest that is there")
    again, needed = run(make, epochs, begin)
    assert again[max(0, had + 1 - begin) :] == made[had + 1 :]
    assert needed[max(0, had - begin) :] == needs[max(had, begin) :]


KEYED = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99)), max_size=4)


def keyed(rows: list[tuple[str, int]], name: str) -> pa.Table:
    columns = [pa.array([key for key, _ in rows], pa.string()), pa.array([value for _, value in rows], pa.int64())]
    return pa.table(columns, names=["key", name])


@PATIENT
@given(st.lists(st.tuples(KEYED, KEYED), min_size=1, max_size=15), st.integers(0, 6), st.integers(1, 6), st.data())
def test_a_join(epochs: list[tuple[list[tuple[str, int]], ...]], left: int, right: int, data: st.DataObject) -> None:
    tables = [(keyed(a, "a"), keyed(b, "b")) for a, b in epochs]
    check_replay(lambda: Join("key", us.rows(left), us.rows(right)), tables, data)


@PATIENT
@given(st.lists(st.tuples(KEYED, KEYED), min_size=1, max_size=15), st.data())
def test_a_barrier_that_is_told_the_numbers_of_its_rows(
    epochs: list[tuple[list[tuple[str, int]], ...]], data: st.DataObject
) -> None:
    tables = [(keyed(a, "a"), keyed(b, "b")) for a, b in epochs]
    first, numbers, reach, made = Barrier(2), Numbers("both", -1, (0, 0)), Reach(), []
    had = data.draw(st.integers(0, len(tables) - 1), label="what consumers have")
    known = {}
    for epoch, each in enumerate(tables):
        made.append(first.process(*each))
        numbers.committed(epoch, [following for _, following in first.spans()])
        needed = reach.committed(epoch, first.spans())
        if epoch <= had:
            known = numbers.told(needed)
    begin, totals = numbered(known, "both", 2)
    second = Barrier(2)
    second.missed(totals)
    again = [second.process(*each) for each in tables[begin:]]
    assert again[max(0, had + 1 - begin) :] == made[had + 1 :]
    assert second.spans() == first.spans() or begin > len(tables) - 1


def test_a_barrier_takes_no_room_for_what_came_before() -> None:
    barrier = Barrier(2)
    barrier.missed([10**15, 10**15 + 2])
    rows = [keyed([("a", n) for n in range(4)], name) for name in "ab"]
    made = barrier.process(*rows)
    assert (made["a"].to_pylist(), made["b"].to_pylist()) == ([2, 3], [0, 1]), "the two that wait are not here"
    assert barrier.spans() == [(10**15 + 4, 10**15 + 4), (10**15 + 4, 10**15 + 6)]
    again = Barrier(2)
    again.restore(barrier.save())
    assert again.spans() == barrier.spans()


TIMED = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-900, 900)), max_size=4)


@PATIENT
@given(st.lists(TIMED, min_size=1, max_size=20), st.sampled_from([(1000, 500), (300, 300)]), st.sampled_from([0, 0.4]),
       st.data())  # fmt: skip
def test_an_aggregate_by_time(
    epochs: list[list[tuple[str, int]]], span: tuple[int, int], late: float, data: st.DataObject
) -> None:
    """Rows are early and late, so that windows close, rows come too late, and some are in few of their windows."""
    tables: Epochs = []
    for epoch, rows in enumerate(epochs):
        moved = [(key, 10_000 + 200 * epoch + drift) for key, drift in rows]
        tables.append((keyed(moved, "at"),))
    window = us.seconds(span[0] / 1000, slide=span[1] / 1000, of="at")
    check_replay(lambda: Aggregate("key", window, late=late, n=("*", "count"), last=("at", "last")), tables, data)


@PATIENT
@given(
    st.lists(st.tuples(st.none() | st.integers(0, 700), st.lists(st.sampled_from("ab"), max_size=3)), max_size=20),
    st.sampled_from([(1000, 500), (300, 300), (700, 200)]),
    st.data(),
)
def test_an_aggregate_by_the_times_at_which_epochs_were_cut(
    epochs: list[tuple[int | None, list[str]]], span: tuple[int, int], data: st.DataObject
) -> None:
    """Time goes on while nothing comes, so that replays begin where no row was; and some epochs were lost."""
    tables, at = [(with_time(keyed([], "n"), 0),)], 0
    for number, (passed_ms, keys) in enumerate(epochs):
        at += passed_ms or 0
        rows = keyed([(key, number) for key in keys], "n") if passed_ms is not None else keyed([], "n")
        tables.append((with_time(rows, None if passed_ms is None else at * 1000),))
    window = us.seconds(span[0] / 1000, slide=span[1] / 1000)
    check_replay(lambda: Aggregate("key", window, rows=("*", "count"), last=("n", "last")), tables, data)


def test_what_can_be_rebuilt_and_what_cannot() -> None:
    rows = Join("key", us.rows(32_768), us.rows(0)).judged()
    assert (rows.state, rows.determinism, rows.rows, rows.refusal) == ("windowed", "convergent-capable", 32_768, "")
    assert rows.state_cause == "a window of 32,768 rows lets go of a row when so many have come after it"
    timed = Aggregate("key", us.seconds(20, slide=5, of="at"), late=3, n=("*", "count")).judged()
    assert (timed.state, timed.window, timed.refusal) == ("windowed", Window(20, 3), "")
    assert timed.state_cause == "window of 20 s and 3 s for late rows lets go of input after 23 s"
    for keyed_ in (
        Join("key", us.rows(10, per="key"), us.rows(5)).judged(),
        Join("key", us.rows(0), us.rows(5, per="key")).judged(),
        Aggregate("key", us.rows(10), n=("*", "count")).judged(),
    ):
        assert keyed_.state == "unbounded" and "however old they are" in keyed_.refusal
    barrier = Barrier(2).judged()
    assert (barrier.state, barrier.determinism, barrier.refusal) == ("windowed", "deterministic", "")


def test_a_restored_window_numbers_its_rows_on() -> None:
    first = Join("key", us.rows(3), us.rows(0))
    nothing = keyed([], "b")
    for value in range(4):
        first.process(keyed([("a", value)], "a"), nothing)
    second = Join("key", us.rows(3), us.rows(0))
    second.restore(first.save())
    assert second.spans() == first.spans() == [(1, 4), (0, 0)]
    second.process(keyed([("a", 9)], "a"), nothing)
    assert second.spans() == [(2, 5), (0, 0)]


def test_rows_of_every_key_are_not_told() -> None:
    with pytest.raises(NotImplementedError):
        Aggregate("key", us.rows(10, per="key"), n=("*", "count")).spans()
