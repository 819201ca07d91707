"""Spark's own plans, judged: about thirty small stages in one SparkSession."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from understudy.core.operators import OperatorClass, Window, judge
from understudy.runtime import spark_operators as operators

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def cars(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate").load()
    return rows.selectExpr("timestamp AS at", "value % 10 AS road", "CAST(value AS double) AS speed", "value AS id")


def judged(spark: SparkSession, build: Callable[[DataFrame], DataFrame], mode: str | None = None) -> OperatorClass:
    return judge(operators.read(build(cars(spark))), output_mode=mode)


def late(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("at", "5 seconds")


def counted(key: Any, pandas: Any, state: Any) -> Iterator[Any]:
    yield from pandas


WINDOWED: dict[str, tuple[Callable[[DataFrame], DataFrame], Window | None]] = {
    "tumbling": (lambda c: late(c).groupBy(F.window("at", "10 seconds"), "road").count(), Window(10, 5)),
    "sliding": (lambda c: late(c).groupBy(F.window("at", "10 seconds", "4 seconds")).count(), Window(10, 5)),
    "renamed": (
        lambda c: late(c).groupBy(F.window("at", "1 minute").alias("w")).count().select("w.end"),
        Window(60, 5),
    ),
    "named before": (
        lambda c: late(c).withColumn("w", F.window("at", "500 milliseconds")).groupBy("w").count(),
        Window(0.5, 5),
    ),
    "filtered": (lambda c: late(c).where("speed > 1").groupBy(F.window("at", "2 hours")).count(), Window(7200, 5)),
    "computed time": (
        lambda c: (
            c.withColumn("t", F.timestamp_seconds("id"))
            .withWatermark("t", "1 second")
            .groupBy(F.window("t", "3 seconds"))
            .count()
        ),
        Window(3, 1),
    ),
    "by the column itself": (lambda c: late(c).groupBy("at").count(), Window(0, 5)),
    "duplicates by time": (lambda c: late(c).dropDuplicates(), Window(0, 5)),
    "duplicates within": (lambda c: late(c).dropDuplicatesWithinWatermark(["id"]), None),
}


@pytest.mark.parametrize("name", WINDOWED)
def test_windowed(spark: SparkSession, name: str) -> None:
    build, window = WINDOWED[name]
    found = judged(spark, build)
    assert (found.state, found.window) == ("windowed", window)
    assert bool(found.refusal) == (window is None)


UNBOUNDED: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "groupBy": (lambda c: c.groupBy("road").count(), "groupBy(road) without a watermark keeps every key for ever"),
    "no watermark": (lambda c: c.groupBy(F.window("at", "10 seconds")).count(), "groupBy(window) without a watermark"),
    "other keys": (lambda c: late(c).groupBy("road").count(), "groupBy(road) without the watermark's column"),
    "a window's end": (
        lambda c: late(c).select(F.window("at", "10 seconds").alias("w")).groupBy("w.end").count(),
        "groupBy(w.end) without the watermark's column",
    ),
    "moved time": (
        lambda c: late(c).groupBy(F.window(F.col("at") + F.expr("INTERVAL 1 HOUR"), "10 seconds")).count(),
        "groupBy(window) without the watermark's column",
    ),
    "session": (lambda c: late(c).groupBy(F.session_window("at", "10 seconds")).count(), "a session can go on"),
    "total": (lambda c: c.agg(F.sum("id")), "an aggregate over the whole stream"),
    "duplicates": (lambda c: c.dropDuplicates(["id"]), "dropDuplicates(id) without a watermark's column"),
    "two streams": (
        lambda c: c.join(c.select(F.col("id").alias("other")), F.col("id") == F.col("other")),
        "a join of two streams",
    ),
    "limit": (lambda c: c.limit(5), "limit counts rows for ever"),
    "with state": (
        lambda c: c.groupBy("road").applyInPandasWithState(counted, "id long", "n long", "append", "NoTimeout"),
        "applyInPandasWithState keeps whatever",
    ),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_unbounded(spark: SparkSession, name: str) -> None:
    build, cause = UNBOUNDED[name]
    found = judged(spark, build)
    assert found.state == "unbounded"
    assert cause in found.state_cause
    assert found.refusal


def test_complete_mode_keeps_every_window(spark: SparkSession) -> None:
    found = judged(spark, WINDOWED["tumbling"][0], "complete")
    assert (found.state, found.window) == ("unbounded", None)


def same(frames: Iterator[Any]) -> Iterator[Any]:
    yield from frames


ARBITRARY: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "rand": (lambda c: c.withColumn("r", F.rand() * 2), "rand() is random"),
    "uuid": (lambda c: c.withColumn("r", F.expr("uuid()")), "uuid() is random"),
    "sample": (lambda c: c.sample(0.5), "sample() is random"),
    "now": (lambda c: c.where(F.col("at") < F.current_timestamp()), "current_timestamp() reads the clock"),
    "today": (lambda c: c.withColumn("d", F.current_date()), "current_date() reads the clock"),
    "unix": (lambda c: c.withColumn("u", F.unix_timestamp()), "current_timestamp() reads the clock"),
    "first": (lambda c: late(c).groupBy(F.window("at", "1 second")).agg(F.first("id")), "first() depends on the order"),
    "list": (lambda c: c.groupBy("road").agg(F.collect_list("id")), "collect_list() depends on the order"),
    "numbers": (lambda c: c.withColumn("n", F.monotonically_increasing_id()), "monotonically_increasing_id() depends"),
    "mapInPandas": (lambda c: c.mapInPandas(same, c.schema), "mapInPandas: a function Spark cannot look into"),
    "mapInArrow": (lambda c: c.mapInArrow(same, c.schema), "mapInArrow: a function Spark cannot look into"),
    "udf": (
        lambda c: c.withColumn("f", F.udf(lambda x: x, "long").asNondeterministic()("id")),
        "lambda() is declared non-deterministic",
    ),
    "duplicates of a column": (lambda c: c.dropDuplicates(["road"]), "dropDuplicates keeps whichever row"),
}


class Counts(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        yield from rows


def transformed(frame: DataFrame, mode: str, method: str = "transformWithState") -> DataFrame:
    return getattr(late(frame).groupBy("road"), method)(Counts(), "id long", "append", mode)


def timed_out(frame: DataFrame, timeout: str) -> DataFrame:
    return late(frame).groupBy("road").applyInPandasWithState(counted, "id long", "n long", "append", timeout)


CANNOT_LOOK = "a function Spark cannot look into"
WALL_CLOCK: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "timeouts": (
        lambda c: timed_out(c, "ProcessingTimeTimeout"),
        "applyInPandasWithState() is time-dependent: its timeouts go by the wall clock of each batch",
    ),
    "timers": (
        lambda c: transformed(c, "ProcessingTime"),
        "transformWithState() is time-dependent: its timers and its TTL go by the wall clock of each batch",
    ),
    "timers in pandas": (
        lambda c: transformed(c, "ProcessingTime", "transformWithStateInPandas"),
        "transformWithState() is time-dependent: its timers and its TTL go by the wall clock of each batch",
    ),
    "no timeouts": (lambda c: timed_out(c, "NoTimeout"), f"applyInPandasWithState: {CANNOT_LOOK}"),
    "event time": (lambda c: timed_out(c, "EventTimeTimeout"), f"applyInPandasWithState: {CANNOT_LOOK}"),
    "no timers": (lambda c: transformed(c, "None"), f"transformWithState: {CANNOT_LOOK}"),
    "event time of timers": (lambda c: transformed(c, "EventTime"), f"transformWithState: {CANNOT_LOOK}"),
}


@pytest.mark.parametrize("name", WALL_CLOCK)
def test_what_goes_by_the_wall_clock(spark: SparkSession, name: str) -> None:
    build, cause = WALL_CLOCK[name]
    found = judged(spark, build)
    assert (found.state, found.determinism, found.determinism_cause) == ("unbounded", "arbitrary", cause)


@pytest.mark.parametrize("name", ARBITRARY)
def test_arbitrary(spark: SparkSession, name: str) -> None:
    build, cause = ARBITRARY[name]
    found = judged(spark, build)
    assert found.determinism == "arbitrary"
    assert cause in found.determinism_cause


def test_the_better_classes(spark: SparkSession, tmp_path: Path) -> None:
    def classes(build: Callable[[DataFrame], DataFrame]) -> tuple[str, str]:
        found = judged(spark, build)
        return found.state, found.determinism

    spark.range(10).selectExpr("id AS road", "id * 2 AS limit").write.parquet(str(tmp_path / "limits"))
    limits = spark.read.parquet(str(tmp_path / "limits"))
    assert classes(lambda c: c.where("speed > 1").select("id")) == ("stateless", "repeatable")
    assert classes(lambda c: c.union(c).withColumn("e", F.explode(F.array("id")))) == ("stateless", "repeatable")
    assert classes(WINDOWED["tumbling"][0]) == ("windowed", "convergent-capable")
    assert classes(WINDOWED["duplicates within"][0])[0] == "windowed"
    assert classes(UNBOUNDED["groupBy"][0]) == ("unbounded", "deterministic")
    assert classes(lambda c: c.join(limits.groupBy("road").count(), "road")) == ("stateless", "repeatable")
    assert judged(spark, lambda c: c.join(limits, "road")).notes == (
        "a static table is read anew in every epoch; recovery is exact while it does not change",
    )
    twice = judged(spark, lambda c: c.withColumn("d", F.udf(lambda x: 2 * x, "long")("id")))
    assert (twice.determinism, twice.notes) == (
        "repeatable",
        ("lambda() is taken to be deterministic, as it is declared to be",),
    )
    mean = judged(spark, lambda c: c.groupBy("road").agg(F.avg("speed")))
    assert mean.notes == ("avg() of floating-point numbers can differ in the last bit with their order",)
    whole = judged(spark, lambda c: c.groupBy("road").agg(F.avg("id"), F.max("speed")))
    assert whole.notes == ()
    both = judged(spark, lambda c: late(c).dropDuplicates().groupBy(F.window("at", "10 seconds")).count())
    assert "make a stage of each" in both.refusal
    two = judged(spark, lambda c: late(c).union(late(c)).groupBy(F.window("at", "10 seconds")).count())
    assert "several watermarks" in two.refusal


def test_sql_is_judged_as_the_functions_are(spark: SparkSession) -> None:
    def sql(text: str) -> OperatorClass:
        late(cars(spark)).createOrReplaceTempView("cars")
        return judge(operators.read(spark.sql(text)))

    assert sql("WITH fast AS (SELECT * FROM cars WHERE speed > 1) SELECT id FROM fast").state == "stateless"
    window = sql("SELECT window(at, '10 seconds') AS w, count(*) FROM cars GROUP BY window(at, '10 seconds')")
    assert window.window == Window(10, 5)
    assert sql("SELECT DISTINCT road FROM cars").state == "unbounded"
