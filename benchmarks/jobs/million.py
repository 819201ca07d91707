"""A stateful stage with a million keys: the first ten thousand rows touch a hundred keys each, the rest one."""

from pyspark.sql import functions as F

import understudy as us

PRELOAD_ROWS, KEYS_PER_ROW = 10_000, 100

job = us.Job("million", epoch="500ms")
positions = job.source("positions", us.sources.rate(rows_per_second=3000, keys=1_000_000), host="h1", standbys=["h2"])


@job.stage(positions, host="h2", standbys=["h1"])
def speeds(positions):
    first = F.col("id") * KEYS_PER_ROW
    keys = F.when(F.col("id") < PRELOAD_ROWS, F.sequence(first, first + KEYS_PER_ROW - 1)).otherwise(F.array("road"))
    return (
        positions.select(F.explode(keys).alias("key"), "speed")
        .groupBy("key")
        .agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))
    )


job.sink(speeds, us.sinks.parquet("out/million"))
