"""A chain of three stages, placed so that the two neighbours ``moving`` and ``speeds`` can die together."""

from pyspark.sql import functions as F

import understudy as us

job = us.Job("chain", epoch="500ms")
positions = job.source("positions", us.sources.rate(rows_per_second=3000, keys=200), host="h1", standbys=["h2"])


@job.stage(positions, host="h2", standbys=["h1"])
def moving(positions):
    return positions.where("speed > 1")


@job.stage(moving, host="h3", standbys=["h1"])
def speeds(moving):
    return moving.groupBy("road").agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))


@job.stage(speeds, host="h1", standbys=["h2"])
def slow(speeds):
    return speeds.where("mean < 64")


job.sink(slow, us.sinks.parquet("out/slow"))
