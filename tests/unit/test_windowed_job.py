"""Operators with windows, as a job file writes them: what they make is known, and mistakes show where they are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import understudy as us
from understudy.errors import JobError
from understudy.runtime.kinds import OperatorKind, SparkKind
from understudy.runtime.spark import Plans


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
    "never late": (
        lambda j, a, b: j.aggregate(a, by="road", window=us.seconds(5), late=3, n=("*", "count")), "of='at'"
    ),
    "taken": (lambda j, a, b: j.aggregate(a, by="road", window=us.rows(5), name=("id", "max")), "name name is taken"),
    "late": (lambda j, a, b: j.aggregate(a, by="road", window=us.rows(5), late=("id", "max")), "name late is taken"),
    "schemas": (lambda j, a, b: j.aggregate(a, by="road", window=us.rows(5), schemas=("id", "max")), "schemas is"),
    "by": (
        lambda j, a, b: j.aggregate(
            j.aggregate(a, by="road", window=us.seconds(5, of="id"), n=("*", "count"), name="first"),
            by="window_start", window=us.seconds(60, of="window_end"), most=("n", "max"),
        ), "by='window_start'.*rename yours",
    ),
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
    "no name": (lambda j, a, b: j.aggregate(a, by=3, window=us.rows(5), n=("*", "count")), r"by=3\) must name"),
    "suffix": (lambda j, a, b: j.join(a, b, on="road", left=us.rows(9), right=us.rows(0), suffix=None), "suffix=None"),
    "twice": (lambda j, a, b: j.operator(a, name="o", schema=pa.schema([("z", pa.int64())] * 2))(Passing), "'z' twice"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_told_with_what_to_do(mistake: str) -> None:
    call, words = WRONG[mistake]
    with pytest.raises((JobError, ValueError), match=words):
        call(*two())


def test_windows_by_time_without_a_column() -> None:
    """The call of the README."""
    job, a, _ = two()
    of_a_column = job.aggregate(a, by="road", window=us.seconds(20, of="id"), n=("*", "count"), name="of_a_column")
    assert not job.needs_cut_times
    means = job.aggregate(a, by="road", window=us.seconds(20, slide=5), mean=("speed", "mean"))
    assert job.needs_cut_times and job.stages[means.name].needs_cut_times
    assert not job.stages[of_a_column.name].needs_cut_times
    schema, time = job.stages[means.name].declared_schema(), pa.timestamp("us", "UTC")
    assert schema == pa.schema({"road": pa.int64(), "window_start": time, "window_end": time, "mean": pa.float64()})


def test_where_the_mistake_is() -> None:
    job, a, _ = two()
    with pytest.raises(JobError, match=r"^test_windowed_job.py:\d+: aggregate\(ha=\('id', 'sum'\)\)"):
        job.aggregate(a, by="road", window=us.rows(5), ha=("id", "sum"))  # type: ignore[arg-type]


def test_a_type_that_spark_does_not_have_is_named_whatever_the_stage(tmp_path: Path) -> None:
    """Checkpoints name columns in Spark's words, also of jobs without Spark."""
    job, a, _ = two()
    job.operator(a, schema=pa.schema({"id": pa.int64(), "big": pa.uint64()}), name="operator")(Passing)
    strange = pa.schema({"half": pa.float16()})
    job.source("source", us.sources.folder(tmp_path, schema=strange))
    job.aggregate("operator", by="id", window=us.rows(9), big=("big", "max"), name="aggregate")
    host: Any = SimpleNamespace(job=job)
    for kind, stage, column in (
        (OperatorKind(host), "operator", "column 'big' is of type uint64"),
        (OperatorKind(host), "aggregate", "column 'big' is of type uint64"),
        (SparkKind(host), "source", "column 'half' is of type halffloat"),
    ):
        with pytest.raises(JobError, match=f"test_windowed_job.py:.*stage '{stage}': {column}, which Spark does not"):
            kind.schema(stage)
    with pytest.raises(JobError, match="'source': column 'half'"):
        Plans(host, job, "").schema("source")


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
