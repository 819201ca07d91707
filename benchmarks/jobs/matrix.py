"""A chain in which every policy can protect every stage: its state is a window, which lets go of old input.
$MATRIX_POLICY names the policy, $MATRIX_ROWS_PER_S the load. The two stages can die together: their standbys are
elsewhere."""

import os

from pyspark.sql import functions as F

import understudy as us

policy = eval(os.environ.get("MATRIX_POLICY", "us.PassiveStandby()"), {"us": us})
rate = float(os.environ.get("MATRIX_ROWS_PER_S", "3000"))
job = us.Job("matrix", epoch="500ms", ha=policy)
positions = job.source("positions", us.sources.rate(rows_per_second=rate, keys=200), host="h1")


@job.stage(positions, host="h2", standbys=["h1"])
def moving(positions):
    return positions.where("speed > 1").withColumn("at", F.timestamp_millis(F.col("id")))


@job.stage(moving, host="h3", standbys=["h1"])
def speeds(moving):
    windows = moving.withWatermark("at", "2 seconds").groupBy(F.window("at", "4 seconds"), "road")
    return windows.agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))


job.sink(speeds, us.sinks.parquet("out/matrix"))
