"""A stateful stage with ten million keys of 128 bytes that do not compress: more than a gigabyte of state.

The first rows touch five hundred keys each, until all are there; those after touch one.
"""

from pyspark.sql import functions as F

import understudy as us

KEYS, KEYS_PER_ROW = 10_000_000, 500

job = us.Job("ten-million", epoch="500ms")
positions = job.source(
    "positions", us.sources.rate(rows_per_second=2000, keys=KEYS, rows_per_epoch=1000), host="h1", standbys=["h2"]
)


@job.stage(positions, host="h2", standbys=["h1"])
def speeds(positions):
    first = F.col("id") * KEYS_PER_ROW
    loading = F.col("id") < KEYS // KEYS_PER_ROW
    keys = F.when(loading, F.sequence(first, first + KEYS_PER_ROW - 1)).otherwise(F.array("road"))
    noise = F.concat(*(F.unhex(F.sha2(F.concat("key", F.lit(salt)).cast("string"), 512)) for salt in "ab"))
    rows = positions.select(F.explode(keys).alias("key"), "speed", loading.alias("loading"))
    totals = rows.groupBy("key").agg(
        F.count("*").alias("cars"), F.max(noise).alias("noise"), F.max("loading").alias("loading")
    )
    # Spark does not keep what nobody looks at.
    return totals.where("cars > 1 OR NOT loading OR length(noise) != 128").drop("noise", "loading")


job.sink(speeds, us.sinks.parquet("out/ten-million"))
