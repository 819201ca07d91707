"""Shapes of stages: functions over whole columns (pandas, Arrow), functions that return tables, columns at the top."""

from collections.abc import Iterator

import helpers
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from fleet.limits import limit_of
from pyspark.sql import functions as F

import understudy as us

FAST = F.col("speed") > 90
HOUR = F.floor(F.col("id") / 500).alias("hour")
BANDS = pd.Series([0.0, 32.0, 64.0, 96.0])


@F.pandas_udf("double")
def excess(road: pd.Series, speed: pd.Series) -> pd.Series:
    return (speed - road.map(limit_of)).clip(lower=0.0)


@F.pandas_udf("long")
def band(speeds: Iterator[pd.Series]) -> Iterator[pd.Series]:
    edges = BANDS.to_numpy()  # once for all batches: what iterators are for
    for speed in speeds:
        yield pd.Series(edges.searchsorted(speed.to_numpy(), side="right"))


@F.pandas_udf("name string, square double")
def described(road: pd.Series, speed: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"name": "Road " + road.astype(str), "square": speed * speed})


@F.udtf(returnType="part string, weight int")
class Parts:
    """A position as several rows: as many as its speed has hundreds, tens and ones."""

    def eval(self, speed: float):
        for name, size in (("hundreds", 100), ("tens", 10), ("ones", 1)):
            number, speed = int(speed // size), speed % size
            if number:
                yield name, number


@F.udtf(returnType="n int")
class UpTo:
    def __init__(self):
        self.step = 1

    def eval(self, last: int):
        for n in range(0, last, self.step):
            yield (n,)


def halves(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        for side in ("left", "right"):
            yield frame.assign(side=side, speed=frame["speed"] / 2)


def evens(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.equal(pc.bit_wise_and(batch["id"], 1), 0))


job = us.Job("compat-vectors", epoch="1s")
positions = job.source("positions", us.sources.rate(rows_per_second=100, keys=20, seed=3), host="h1", standbys=["h2"])
rare = job.source("rare", us.sources.rate(rows_per_second=0.4, keys=3, seed=4), host="h1", standbys=["h2"])


@job.stage(positions, host="h2", standbys=["h1"])
def pandas_series(positions):
    return positions.groupBy("road").agg(F.sum(excess("road", "speed")).alias("excess"), F.count("*").alias("cars"))


@job.stage(positions, output_mode="complete", host="h2", standbys=["h1"])
def pandas_iterator(positions):
    return positions.groupBy(band("speed").alias("band")).agg(F.count("*").alias("cars"), F.max("id").alias("latest"))


@job.stage(positions, host="h2", standbys=["h1"])
def pandas_struct(positions):
    made = positions.select(described("road", "speed").alias("d"))
    return made.groupBy("d.name").agg(F.sum("d.square").alias("squares"))


@job.stage(positions, output_mode="update", host="h2", standbys=["h1"])
def arrow_function(positions):
    @F.arrow_udf("double")
    def rounded(speed: pa.Array) -> pa.Array:
        return pc.multiply(pc.floor(pc.divide(speed, 16.0)), 16.0)

    return positions.groupBy(rounded("speed").alias("rounded")).agg(F.count("*").alias("cars"))


@job.stage(positions, host="h2", standbys=["h1"])
def rows_through_arrow(positions):
    initials = F.udf(lambda road, name: [name[:1], str(road % 3)], "array<string>", useArrow=True)
    made = positions.select(initials("road", F.lit("road")).alias("initials"), "speed")
    return made.groupBy("initials").agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))


@job.stage(positions, host="h2", standbys=["h1"])
def table_function_in_a_join(positions):
    parts = positions.lateralJoin(Parts(F.col("speed").outer()))
    return parts.groupBy("road", "part").agg(F.sum("weight").alias("weight"))


@job.stage(positions, host="h2", standbys=["h1"])
def table_function_in_sql(positions):
    spark = positions.sparkSession
    spark.udtf.register("up_to", UpTo)
    positions.createOrReplaceTempView("positions_to_repeat")
    return spark.sql(
        "SELECT n, count(*) AS cars, sum(speed) AS speeds "
        "FROM positions_to_repeat, LATERAL up_to(CAST(road % 4 AS INT)) GROUP BY n"
    )


@job.stage(positions, host="h2", standbys=["h1"])
def column_at_the_top(positions):
    return positions.where(FAST).groupBy(HOUR, "road").agg(F.count("*").alias("cars"), F.sum("speed").alias("speeds"))


@job.stage(positions, host="h2", standbys=["h1"])
def map_in_pandas(positions):
    made = positions.mapInPandas(halves, "id long, road long, speed double, side string")
    return made.groupBy("road", "side").agg(F.sum("speed").alias("speeds"))


@job.stage(positions, host="h2", standbys=["h1"])
def map_in_arrow(positions):
    return positions.mapInArrow(evens, positions.schema).groupBy("road").agg(F.count("*").alias("even"))


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def map_then_window(positions):
    made = positions.withColumn("time", helpers.late_time()).mapInPandas(
        lambda frames: (frame[frame["speed"] > 20] for frame in frames),
        "id long, road long, speed double, time timestamp",
    )
    # The watermark comes last: it would not get through a function that returns rows of its own.
    windows = made.withWatermark("time", "2 seconds").groupBy(F.window("time", "4 seconds"))
    return windows.agg(F.count("*").alias("cars"), F.sum("speed").alias("speeds"))


@job.stage(positions, host="h2", standbys=["h1"])
def grouped_apply(positions):
    # Of each micro-batch, as Spark does it: what comes of it is kept by the aggregate.
    def widest(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.nlargest(1, ["speed", "id"])[["road", "id", "speed"]]

    return (
        positions.groupBy("road")
        .applyInPandas(widest, "road long, id long, speed double")
        .groupBy("road")
        .agg(F.sum("speed").alias("speeds"))
    )


@job.stage(rare, output_mode="complete", host="h2", standbys=["h1"])
def seldom_in_pandas(rare):
    return (
        rare.select("id", excess("road", "speed").alias("excess"))
        .groupBy()
        .agg(F.count("*").alias("cars"), F.sum("excess").alias("excess"))
    )


for shape in (
    pandas_series,
    pandas_iterator,
    pandas_struct,
    arrow_function,
    rows_through_arrow,
    table_function_in_a_join,
    table_function_in_sql,
    column_at_the_top,
    map_in_pandas,
    map_in_arrow,
    map_then_window,
    grouped_apply,
    seldom_in_pandas,
):
    job.sink(shape, us.sinks.parquet(f"out/compat/vectors/{shape.name}"))
