"""A stateful stage with ten million keys of 128 bytes each that do not compress: more than a gigabyte of state.

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
    rows = positions.select(F.explode(keys).alias("key"), loading.alias("loading"))
    # Numbers, not bytes: Spark aggregates those without sorting, ten times as fast.
    noise = [F.max(F.xxhash64("key", F.lit(salt))).alias(f"noise{salt}") for salt in range(16)]
    totals = rows.groupBy("key").agg(F.count("*").alias("cars"), F.max("loading").alias("loading"), *noise)
    # Spark does not keep what nobody looks at.
    looked_at = F.greatest(*(f"noise{salt}" for salt in range(16))) == 0
    return totals.where(F.expr("cars > 1 OR NOT loading") | looked_at).select("key", "cars")


job.sink(speeds, us.sinks.parquet("out/ten-million"))
