"""Windows per key on Spark (windowed/on_spark.py) against the operators of the same name, epoch by epoch."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from understudy.core.operators import judge
from understudy.runtime import spark_operators
from understudy.runtime.arrow_types import collect
from understudy.runtime.spark import root_cause
from understudy.runtime.spark_engine import LOST
from understudy.windowed.aggregate import Aggregate
from understudy.windowed.join import Join
from understudy.windowed.on_spark import KeyedAggregate, KeyedJoin
from understudy.windowed.spans import Rows, rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

EPOCHS, RESTART_AFTER = 8, 5
FLOATS = {"single": pa.float32(), "double": pa.float64()}
TEXTS = ["b", "a", "é", "z\U0001f697", "z\ufb01", None]
TIMES = [datetime.datetime(1999, 12, 31, 23, 59, 59, 999999), datetime.datetime(2026, 7, 1), None]


def epoch(draw: np.random.Generator, number: int, keys: int) -> pa.Table:
    """Rows of many types, nulls among them; every other epoch is small, and one is empty."""
    count = 0 if number == 3 else int(draw.integers(1, 40 if number % 2 else 400))

    def some(values: list[Any]) -> list[Any]:
        return [values[i] for i in draw.integers(0, len(values), count)]

    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "k": pa.array(some([*range(keys), None]), pa.int32()),
            "text": pa.array(some(TEXTS), pa.string()),
            "speed": pa.array(some([0.5, -1.25, 3.0, None]), pa.float64()),
            "small": pa.array(some([1, -2, 3, None]), pa.int16()),
            "price": pa.array(some([Decimal("1.10"), Decimal("-2.25"), None]), pa.decimal128(10, 2)),
            "at": pa.array(some(TIMES), pa.timestamp("us", tz="UTC")),
            "level": pa.array(some([0.5, float("nan"), -2.0, None]), pa.float64()),
            "odd `name`": pa.array(some([True, False, None]), pa.bool_()),
        }
    )


def run(
    spark: SparkSession, folder: Path, streams: list[list[pa.Table]], build: Callable[..., DataFrame], lost: int = 0
) -> tuple[list[pa.Table], DataFrame]:
    """What comes of every epoch; in the middle the query is stopped, and started again from its checkpoint. ``lost``:
    so many epochs came meanwhile that it will never see."""
    found: dict[int, pa.Table] = {}
    inputs = []
    for number, tables in enumerate(streams):
        (folder / f"in-{number}").mkdir()
        parquet.write_table(tables[0].slice(0, 0), folder / f"schema-{number}.parquet")
        schema = spark.read.parquet(str(folder / f"schema-{number}.parquet")).schema
        read = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        inputs.append(read.parquet(str(folder / f"in-{number}")))
    frame = build(*inputs)
    for first, last in ((0, RESTART_AFTER), (RESTART_AFTER, EPOCHS)):
        for number in range(first, last):  # all are there before it starts, or the streams would not keep step
            for stream, tables in enumerate(streams):
                path = folder / f"in-{stream}" / f"{number}.parquet"
                parquet.write_table(tables[number], path)
                os.utime(path, (number + 1, number + 1))
        writer = frame.writeStream.outputMode("append").option("checkpointLocation", str(folder / "checkpoint"))

        def publish(made: DataFrame, batch: int, lost: int = lost if first else 0) -> None:
            made.sparkSession.sparkContext.setLocalProperty(LOST, str(lost))
            found[batch] = collect(made)

        query = writer.foreachBatch(publish).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    assert sorted(found) == list(range(EPOCHS))
    return [found[number] for number in range(EPOCHS)], frame


def counted(table: pa.Table) -> Counter[str]:
    return Counter(str(list(row.items())) for row in table.to_pylist())


OUTPUTS = {
    "n": ("*", "count"), "texts": ("text", "count"), "mean": ("speed", "mean"), "sum": ("speed", "sum"),
    "whole": ("small", "sum"), "money": ("price", "sum"), "least": ("text", "min"), "most": ("text", "max"),
    "latest": ("at", "max"), "first": ("at", "first"), "last": ("small", "last"), "flag": ("odd `name`", "first"),
    "flags": ("odd `name`", "sum"), "share": ("odd `name`", "mean"), "high": ("level", "max"), "low": ("level", "min"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("by", "window"),
    [("k", rows(7, group=3)), (["k", "text"], rows(50, per=["k", "text"])), ("k", rows(200, group="auto", per="k"))],
)
def test_an_aggregate_is_that_of_the_operator(
    spark: SparkSession, tmp_path: Path, by: str | list[str], window: Rows
) -> None:
    draw = np.random.default_rng(7)
    epochs = [epoch(draw, number, 6) for number in range(EPOCHS)]
    operator = Aggregate(by, window, **OUTPUTS)
    on_spark = KeyedAggregate(Aggregate(by, window, **OUTPUTS), by, window, OUTPUTS)
    made, frame = run(spark, tmp_path, [epochs], on_spark)
    for number, table in enumerate(epochs):
        wanted = operator.process(table)
        assert counted(made[number]) == counted(wanted), f"epoch {number}"
        assert made[number].schema.types == wanted.schema.types
        assert made[number].schema.names == wanted.schema.names
    judged = judge(spark_operators.read(frame))
    assert (judged.state, judged.determinism) == ("unbounded", "deterministic")
    assert "newest rows of every key" in judged.state_cause


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([2**62, 2**62, -(2**62)] * 2), r"aggregate\(total=\('v', 'sum'\)\): the sum is more than int64"),
        (pa.array([Decimal("9" * 35)] * 102, pa.decimal128(38, 2)), r"the sum is more than decimal128\(38, 2\)"),
    ],
)
def test_a_sum_that_its_type_cannot_hold_is_an_error_that_names_it(
    spark: SparkSession, tmp_path: Path, values: pa.Array, said: str
) -> None:
    window, outputs = rows(500, per="k"), {"total": ("v", "sum"), "mean": ("v", "mean")}
    table = pa.table({"k": pa.array([1] * len(values), pa.int64()), "v": values})
    good = table.slice(0, 3)  # two of them are too much on the way
    like = Aggregate("k", window, **outputs)
    epochs = [good, *[good.slice(0, 0)] * 3, *[table] * 4]
    with pytest.raises(StreamingQueryException, match=said) as failed:
        run(spark, tmp_path, [epochs], KeyedAggregate(like, "k", window, outputs))
    assert "the sum is more than" in root_cause(str(failed.value)), "it is what the job says"
    other = Aggregate("k", window, **outputs)
    assert other.process(good).num_rows == 1
    with pytest.raises(OverflowError, match=said):
        other.process(table)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (rows(9, group=4, per="k"), rows(0)),
        (rows(300, group="auto", per="k"), rows(5, per="k")),
        (rows(0), rows(8, per="k")),
    ],
)
def test_a_join_is_that_of_the_operator(spark: SparkSession, tmp_path: Path, left: Rows, right: Rows) -> None:
    draw = np.random.default_rng(8)
    lefts = [epoch(draw, number, 20) for number in range(EPOCHS)]
    rights = [epoch(draw, number + 1, 30).select(["id", "k", "text"]) for number in range(EPOCHS)]
    operator = Join("k", left, right)
    made, _ = run(spark, tmp_path, [lefts, rights], KeyedJoin(Join("k", left, right), left, right))
    for number in range(EPOCHS):
        wanted = operator.process(lefts[number], rights[number])
        assert counted(made[number]) == counted(wanted), f"epoch {number}"
        assert made[number].schema.names == wanted.schema.names
        assert made[number].schema.types == wanted.schema.types
    assert any(table.num_rows for table in made)


def test_there_is_one_zero_and_one_nan(spark: SparkSession, tmp_path: Path) -> None:
    """State is found by the bits of its key; and a row of the next epoch has others."""
    draw, window = np.random.default_rng(10), rows(4)
    numbers = [0.0, -0.0, float("nan"), -float("nan"), 1.5, None]
    epochs = []
    for number in range(EPOCHS):
        drawn = [numbers[i] for i in draw.integers(0, len(numbers), number + 2)]
        keys = {name: pa.array(drawn, type_, from_pandas=False) for name, type_ in FLOATS.items()}
        epochs.append(pa.table({**keys, "n": range(number + 2)}))
    by, outputs = list(FLOATS), {"n": ("n", "count"), "last": ("n", "last")}
    operator = Aggregate(by, window, **outputs)
    on_spark = KeyedAggregate(Aggregate(by, window, **outputs), by, window, outputs)
    (tmp_path / "join").mkdir()
    made, _ = run(spark, tmp_path, [epochs], on_spark)
    span = rows(3, per=by)
    join = Join(by, span, span)
    pairs, _ = run(spark, tmp_path / "join", [epochs, epochs], KeyedJoin(Join(by, span, span), span, span))
    for number, table in enumerate(epochs):
        assert counted(made[number]) == counted(operator.process(table)), f"epoch {number}"
        assert counted(pairs[number]) == counted(join.process(table, table)), f"epoch {number}"


def test_a_side_with_nothing_but_the_key(spark: SparkSession, tmp_path: Path) -> None:
    draw = np.random.default_rng(9)
    lefts = [epoch(draw, number, 5).select(["k"]) for number in range(EPOCHS)]
    rights = [epoch(draw, number, 5).select(["k"]) for number in range(EPOCHS)]
    span = rows(3, per="k")
    operator = Join("k", span, span)
    made, _ = run(spark, tmp_path, [lefts, rights], KeyedJoin(Join("k", span, span), span, span))
    for number in range(EPOCHS):
        assert counted(made[number]) == counted(operator.process(lefts[number], rights[number])), f"epoch {number}"


def test_rows_that_would_have_left_while_epochs_were_lost_are_gone(spark: SparkSession, tmp_path: Path) -> None:
    """One key has three rows in every epoch, one has a row in every other epoch, and one comes once more after a long
    time. Four epochs are lost: of the first twelve rows would have come, of the second two."""
    kept = rows(20, group=4, per="k")

    def table(number: int) -> pa.Table:
        keys = ["often"] * 3 + ["seldom"] * (number % 2) + ["once"] * (number in (0, EPOCHS - 1))
        return pa.table({"k": keys, "v": [number] * len(keys)})

    outputs = {"n": ("v", "count"), "oldest": ("v", "first")}
    operator = Aggregate("k", kept, **outputs)
    made, _ = run(
        spark, tmp_path, [[table(n) for n in range(EPOCHS)]], KeyedAggregate(operator, "k", kept, outputs), lost=4
    )
    found = {(n, row["k"]): (row["n"], row["oldest"]) for n in range(EPOCHS) for row in made[n].to_pylist()}
    assert RESTART_AFTER == 5  # rows of epochs 0 to 4 are in the state
    assert found[4, "often"] == (15, 0)
    assert found[5, "often"] == (20 - 12, 3)  # 15 + 12 + 3 rows have come: the first ten have left
    assert found[6, "often"] == (20 - 12, 4)
    assert found[5, "seldom"] == (3, 1)
    assert found[7, "once"] == (2, 0)
