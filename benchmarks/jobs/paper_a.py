"""Gu et al. 2009, Section 5: 3,000 rows a second and a state of 20 rows."""

from pyspark.sql import functions as F

import understudy as us

job = us.Job("paper-a", epoch="500ms")
positions = job.source("positions", us.sources.rate(rows_per_second=3000, keys=20), host="h1", standbys=["h2"])


@job.stage(positions, host="h2", standbys=["h3"])
def first(positions):
    return positions.withColumn("speed", F.col("speed") * 2)


@job.stage(first, host="h3", standbys=["h1"])
def second(first):
    return first.groupBy("road").agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))


job.sink(second, us.sinks.parquet("out/paper-a"))
