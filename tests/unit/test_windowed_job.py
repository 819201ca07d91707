"""Operators with windows, as a job file writes them: what they make is known, and mistakes show where they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import understudy as us
from understudy.errors import JobError


def two() -> tuple[us.Job, us.Stream, us.Stream]:
    job = us.Job("windowed")
    made = (job.source(name, us.sources.rate(rows_per_second=1, keys=1)) for name in ("a", "b"))
    return (job, *made)  # type: ignore[return-value]


def test_what_comes_of_them_is_known_before_anything_runs() -> None:
    job, a, b = two()
    pairs = job.join(a, b, on="road", left=us.rows(100), right=us.rows(0))
    tops = job.aggregate(pairs, by="road", window=us.rows(10, per="road"), top=("speed", "max"), name="tops")
    both = job.barrier(a, tops)
    schemas = {name: stage.declared_schema() for name, stage in job.stages.items()}
    assert schemas[pairs.name].names == ["id", "road", "speed", "id_right", "speed_right"]
    assert schemas["tops"].types == [schemas["a"].field(name).type for name in ("road", "speed")]
    assert schemas[both.name].names == ["id", "road", "speed", "road_2", "top"]
    assert [job.stages[s.name].needs_all_input for s in (pairs, tops, both)] == [False, False, True]


def lists(job: us.Job, rows: us.Stream) -> us.Stream:
    return job.operator(rows, name="lists", schema="l array<long>")(Passing)


WRONG: dict[str, tuple[Callable[[us.Job, us.Stream, us.Stream], Any], str]] = {
    "column": (lambda j, a, b: j.join(a, b, on="x", left=us.rows(9), right=us.rows(0)), "no such column"),
    "nothing": (lambda j, a, b: j.join(a, b, on="road", left=us.rows(0), right=us.rows(0)), "keeps no row of either"),
    "group": (lambda j, a, b: j.join(a, b, on="road", left=us.rows(9, group=10), right=us.rows(0)), "choose 1 to 9"),
    "window 0": (lambda j, a, b: j.aggregate(a, by="road", window=us.rows(0), n=("*", "count")), "nothing to add up"),
    "function": (lambda j, a, b: j.aggregate(a, by="road", window=us.rows(5), m=("speed", "mode")), "functions are"),
    "times": (lambda j, a, b: j.aggregate(a, by="road", window=us.seconds(5), n=("*", "count")), "of='at'"),
    "one input": (lambda j, a, b: j.barrier(a), "must be 2 or more"),
    "role": (lambda j, a, b: j.barrier(a, b, hots="h1"), "got hots="),
    "stream": (lambda j, a, b: j.barrier(a, "c"), "unknown stream 'c'; streams so far: a, b"),
    "engine": (lambda j, a, b: j.join(a, b, on="road", left=us.rows(9), right=us.rows(0), engine="spark"), "one order"),
    "engines": (lambda j, a, b: j.aggregate(a, by="road", window=us.rows(5), m=("id", "max"), engine="x"), "engine="),
    "schema": (lambda j, a, b: j.barrier(a, b, schema="x long"), "leave it out"),
    "key of lists": (lambda j, a, b: j.aggregate(lists(j, a), by="l", window=us.rows(5), n=("*", "count")),
                     r"aggregate\(by='l'\) is list<item: int64>, which cannot be a key"),
    "join of lists": (lambda j, a, b: j.join(lists(j, a), "lists", on="l", left=us.rows(9), right=us.rows(0)),
                      r"join\(on='l'\) is list<item: int64>, which cannot be a key"),
    "by": (lambda j, a, b: j.aggregate(a, by=3, window=us.rows(5), n=("*", "count")), r"aggregate\(by=3\) must name"),
    "suffix": (lambda j, a, b: j.join(a, b, on="road", left=us.rows(9), right=us.rows(0), suffix=None), "suffix=None"),
    "twice": (lambda j, a, b: j.operator(a, name="o", schema=pa.schema([("z", pa.int64())] * 2))(Passing), "'z' twice"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_told_with_what_to_do(mistake: str) -> None:
    call, words = WRONG[mistake]
    with pytest.raises((JobError, ValueError), match=words):
        call(*two())


def test_windows_per_key_behind_a_query_are_a_query() -> None:
    """Elsewhere they are operators: a job without queries needs no JVM."""
    job, a, b = two()

    @job.stage(a)
    def fast(a):  # type: ignore[no-untyped-def]
        return a

    window, whole = us.rows(9, per="road"), us.rows(9)
    found = {
        "behind": job.aggregate(fast, by="road", window=window, n=("*", "count"), name="behind"),
        "join": job.join(fast, b, on="road", left=window, right=us.rows(0), name="join"),
        "asked": job.aggregate(a, by="road", window=window, n=("*", "count"), name="asked", engine="spark"),
        "source": job.aggregate(a, by="road", window=window, n=("*", "count"), name="source"),
        "not": job.join(fast, b, on="road", left=window, right=whole, schema="x long", name="not"),
    }
    assert [name for name in found if job.stages[name].function is not None] == ["behind", "join", "asked"]
    assert [name for name in found if job.stages[name].operator is not None] == ["source", "not"]


def test_a_barrier_is_not_behind_what_may_lose_rows() -> None:
    job, a, b = two()

    @job.operator(a, schema="id long", ha=us.Checkpoint())
    class Some:
        def process(self, a: pa.Table) -> pa.Table:
            return a.select(["id"])

    job.sink(job.barrier(Some, b, ha=us.Checkpoint()), us.sinks.console())
    with pytest.raises(JobError, match="needs every row of its input, but unit 'Some' may lose some"):
        job.check_ends()


def test_a_class_says_of_itself_that_it_needs_all_input() -> None:
    job, a, _ = two()

    @job.operator(a, schema="id long")
    class Picky:
        needs_all_input = True

        def process(self, a: pa.Table) -> pa.Table:
            return a.select(["id"])

    assert job.stages["Picky"].needs_all_input
    with pytest.raises(JobError, match="needs_all_input is 'yes'; make it True or False"):
        job.operator(a, schema="id long", name="other")(type("Odd", (Passing,), {"needs_all_input": "yes"}))


class Passing:
    def process(self, a: pa.Table) -> pa.Table:
        return a
