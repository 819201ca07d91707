"""A source and one stateful stage: all that two hosts need. $PAIR_POLICY names another policy than the default."""

import os

from pyspark.sql import functions as F

import understudy as us

job = us.Job("pair", epoch="500ms")
positions = job.source("positions", us.sources.rate(rows_per_second=3000, keys=1000), host="h1", standbys=["h2"])
policy = eval(os.environ.get("PAIR_POLICY", "us.PassiveStandby()"), {"us": us})


@job.stage(positions, host="h2", standbys=["h1"], ha=policy)
def speeds(positions):
    return positions.groupBy("road").agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))


job.sink(speeds, us.sinks.parquet("out/pair"))
