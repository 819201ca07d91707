"""The traffic job with a stateful stage that nobody protects."""

from pyspark.sql import functions as F

import understudy as us

job = us.Job("unprotected", epoch="500ms")
positions = job.source("positions", us.sources.rate(rows_per_second=3000, keys=200), host="h1")


@job.stage(positions, ha=us.none, host="h2")
def speeds(positions):
    return positions.groupBy("road").agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))


job.sink(speeds, us.sinks.parquet("out/unprotected"))
