"""A source and one stateful stage: all that two hosts need."""

from pyspark.sql import functions as F

import understudy as us

job = us.Job("pair", epoch="500ms")
positions = job.source("positions", us.sources.rate(rows_per_second=3000, keys=1000), host="h1", standbys=["h2"])


@job.stage(positions, host="h2", standbys=["h1"])
def speeds(positions):
    return positions.groupBy("road").agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))


job.sink(speeds, us.sinks.parquet("out/pair"))
