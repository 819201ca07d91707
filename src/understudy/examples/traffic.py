"""Mean speed and number of cars per road, kept up through the death of a host."""

from pyspark.sql import functions as F

import understudy as us

job = us.Job("traffic", epoch="500ms")

positions = job.source("positions", us.sources.rate(rows_per_second=3000, keys=1000))


@job.stage(positions)
def moving(positions):  # plain PySpark: DataFrame in, DataFrame out
    return positions.where("speed > 1")


@job.stage(moving, ha=us.PassiveStandby(checkpoint="sweeping", every="500ms"))
def speeds(moving):
    return moving.groupBy("road").agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))


job.sink(speeds, us.sinks.parquet("out/speeds"))
