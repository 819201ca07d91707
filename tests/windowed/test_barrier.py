"""The n-th row of each input, and never another."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from saved_parts import HOWS, Disk

from understudy.windowed.barrier import Barrier
from understudy.windowed.base import StateDamaged


def table(begin: int, end: int, column: str = "n") -> pa.Table:
    return pa.table({column: pa.array(range(begin, end), pa.int64())})


def pairs(made: pa.Table) -> list[tuple[int, ...]]:
    return [tuple(row.values()) for row in made.to_pylist()]


def test_rows_wait_for_their_partners():
    barrier = Barrier(3)
    assert Barrier.needs_all_input
    assert pairs(barrier.process(table(0, 5), table(0, 2), table(0, 0))) == []
    made = barrier.process(table(5, 6), table(2, 4), table(0, 3))
    assert made.column_names == ["n", "n_2", "n_3"] and pairs(made) == [(n, n, n) for n in range(3)]
    assert pairs(barrier.process(table(6, 6), table(4, 8), table(3, 9))) == [(n, n, n) for n in range(3, 6)]


def test_mistakes_are_named():
    for inputs in (1, 0, "2", True):
        with pytest.raises(ValueError, match=r"barrier\(inputs="):
            Barrier(inputs)
    with pytest.raises(ValueError, match="'n_2'"):
        Barrier(2, schemas=[pa.schema({"n": "int64", "n_2": "int64"}), pa.schema({"n": "int64"})])
    twice = pa.schema([("n", pa.int64()), ("n", pa.int64())])
    with pytest.raises(ValueError, match="input 2 of the barrier has two columns named 'n'"):
        Barrier(2, schemas=[pa.schema({"n": "int64"}), twice])


def test_a_column_that_is_missing_when_it_runs_is_named_with_its_input():
    barrier = Barrier(2)
    barrier.process(table(0, 1), table(0, 0))
    with pytest.raises(ValueError, match=r"input 2 of the barrier has rows of .*: without a column 'n'"):
        barrier.process(table(1, 2), table(0, 1, "m"))
    made = barrier.process(table(1, 1), table(0, 3).append_column("m", pa.array([1, 2, 3])))
    assert pairs(made) == [(0, 0)], "nothing of that epoch was taken in, and what comes later is left out"


def test_it_travels():
    assert cloudpickle.loads(cloudpickle.dumps(Barrier(2))).process(table(0, 1), table(0, 1)).num_rows == 1


def ahead() -> tuple[Barrier, Disk, int]:
    """The first input runs ahead, and the state is some groups."""
    barrier, disk, at = Barrier(2), Disk(), 0
    for _ in range(5):
        barrier.process(table(at, at + 700), table(at // 7, at // 7 + 100))
        disk.keep(barrier.save())
        at += 700
    return barrier, disk, at


def test_only_what_is_new_is_saved():
    barrier, disk, at = ahead()
    barrier.process(table(at, at + 10), table(at // 7, at // 7 + 10))
    disk.keep(barrier.save())
    assert disk.written < sum(map(len, disk.parts.values())) / 4


@pytest.mark.parametrize("how", HOWS)
def test_damage_of_any_one_part_pairs_nothing_wrongly(how):
    _, disk, at = ahead()
    for name in disk.parts:
        other = Barrier(2)
        result = other.restore(disk.damaged(name, how), [0, 0])
        assert result.fresh == ("head" in name)
        made = pairs(other.process(table(at, at + 1000), table(at // 7, at + 1000)))
        assert all(one == two for one, two in made)
        if "input2.head" in name:
            assert len(made) == at + 1000 - 500, "nothing of it was waiting"
        if not result.fresh:
            assert len(made) == at + 1000 - 500 - result.damaged


@pytest.mark.parametrize("how", HOWS)
def test_without_any_head_nobody_knows_the_rows_numbers(how):
    """Found in review: all inputs were numbered from 0 again, and every pair was wrong."""
    barrier, disk = Barrier(2), Disk()
    barrier.process(table(0, 10), table(0, 7))
    disk.keep(barrier.save())
    parts = {name: disk.damaged(name, how).get(name) for name in disk.parts if "head" in name}
    for state in ({**disk.parts, **parts}, {}):
        with pytest.raises(StateDamaged, match=r"no head of the barrier's state can be read"):
            Barrier(2).restore(state)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.none() | st.integers(0, 5)), max_size=10)
)
def test_pairs_are_always_right(epochs):
    barrier, disk = Barrier(2), Disk()
    at, until, lost = [0, 0], 0, set[int]()
    for one, two, saving, losing in epochs:
        made = pairs(barrier.process(table(at[0], at[0] + one), table(at[1], at[1] + two)))
        at = [at[0] + one, at[1] + two]
        assert made == [(n, n) for n in range(until, min(at)) if n not in lost]
        until = min(at)
        if saving:
            disk.keep(barrier.save())
            if losing is not None:
                barrier = Barrier(2)
                barrier.restore(disk.parts, [losing, 0])
                lost |= set(range(at[0], at[0] + losing))
                at[0] += losing
