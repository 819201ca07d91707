"""One stateful stage fed as fast as it takes its input; size and protection come from the environment."""

import os

from pyspark.sql import functions as F

import understudy as us

ROWS = int(os.environ.get("FLOOD_ROWS", "2000000"))
STAGES = int(os.environ.get("FLOOD_STAGES", "1"))
PROTECTED = os.environ.get("FLOOD_PROTECTED") == "1"

job = us.Job("flood", epoch="1ms", ha=us.PassiveStandby(every="500ms") if PROTECTED else us.none)
stream = job.source("positions", us.sources.rate(rows_per_second=None, keys=1000, rows_per_epoch=ROWS), host="h1")

if STAGES == 3:

    @job.stage(stream, host="h2")
    def moving(positions):
        return positions.where("speed > 1")

    @job.stage(moving, host="h1")
    def tagged(moving):
        return moving.withColumn("fast", F.col("speed") > 64)

    stream = tagged


@job.stage(stream, host="h1" if STAGES == 1 else "h2")
def speeds(positions):
    return positions.groupBy("road").agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))


job.sink(speeds, us.sinks.parquet("out/flood"))
