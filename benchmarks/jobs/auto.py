"""Three jobs of one unit each, different in state and rate. $AUTO_CASE names one, $AUTO_POLICY its policy; without it,
the unit has a goal in its place."""

import os

from pyspark.sql import functions as F

import understudy as us

case = os.environ.get("AUTO_CASE", "small state")
goal = {
    "small state": us.auto(recovery_time="6s"),
    "windows": us.auto(recovery_time="30s"),
    "large changes": us.auto(recovery_time="6s"),
}[case]
policy = eval(os.environ["AUTO_POLICY"], {"us": us}) if "AUTO_POLICY" in os.environ else goal

job = us.Job("auto", epoch="500ms", ha=policy)
rows = 300 if case == "large changes" else 3000
positions = job.source("positions", us.sources.rate(rows_per_second=rows, keys=200), host="h1")

if case == "small state":

    @job.stage(positions, host="h2", standbys=["h3"])
    def work(positions):
        return positions.groupBy("road").agg(F.avg("speed"), F.count("*"))

elif case == "windows":

    @job.stage(positions, host="h2", standbys=["h3"])
    def work(positions):
        """Every row has a key of its own, until its window is closed."""
        timed = positions.withColumn("at", F.timestamp_millis(F.col("id"))).withWatermark("at", "1 second")
        return timed.groupBy(F.window("at", "1 second"), "id").agg(F.avg("speed"), F.count("*"))

else:

    @job.stage(positions, host="h2", standbys=["h3"])
    def work(positions):
        """Every row changes the state of forty keys. What is shown is chosen by what was counted: Spark would make a
        choice by key before it counts."""
        keys = F.transform(F.sequence(F.lit(0), F.lit(39)), lambda n: (F.col("id") * 7919 + n * 104729) % 100_000)
        counts = positions.select(F.explode(keys).alias("key"), "speed").groupBy("key")
        return counts.agg(F.avg("speed").alias("mean"), F.count("*").alias("cars")).where("cars % 100 = 0")


job.sink(work, us.sinks.parquet("out/auto"))
