"""Shapes of stages: event time. Windows, sessions and duplicates, with watermarks and late rows."""

import helpers
from pyspark.sql import functions as F

import understudy as us

job = us.Job("compat-windows", epoch="1s")
positions = job.source("positions", us.sources.rate(rows_per_second=100, keys=20, seed=5), host="h1", standbys=["h2"])
rare = job.source("rare", us.sources.rate(rows_per_second=0.4, keys=3, seed=6), host="h1", standbys=["h2"])


def timed(positions, delay="3 seconds"):
    return positions.withColumn("time", helpers.late_time()).withWatermark("time", delay)


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def tumbling(positions):
    made = timed(positions).groupBy(F.window("time", "4 seconds"), (F.col("road") % 5).alias("road"))
    return made.agg(F.count("*").alias("cars"), F.sum("speed").alias("speeds"))


@job.stage(positions, output_mode="update", host="h2", standbys=["h1"])
def sliding(positions):
    made = timed(positions).groupBy(F.window("time", "8 seconds", "2 seconds").alias("w"), F.col("road") % 2)
    return made.agg(F.avg("speed").alias("mean")).select("w.start", "w.end", "mean")


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def sessions(positions):
    # A road's session ends with a second without a car; every road has pauses of its own.
    driving = timed(positions).where((F.floor(F.col("id") / 75) % 7) != F.col("road") % 7)
    made = driving.groupBy(F.session_window("time", "1 second"), (F.col("road") % 7).alias("road"))
    return made.agg(F.count("*").alias("cars"), F.max("speed").alias("most"))


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def sessions_with_gaps_by_row(positions):
    gap = (
        F.when(F.col("road") % 4 == 0, "500 milliseconds").when(F.col("speed") > 120, "3 seconds").otherwise("1 second")
    )
    driving = timed(positions).where((F.floor(F.col("id") / 75) % 4) != F.col("road") % 4)
    return driving.groupBy((F.col("road") % 4).alias("road"), F.session_window("time", gap)).count()


@job.stage(positions, output_mode="complete", host="h2", standbys=["h1"])
def windows_in_complete_mode(positions):
    return (
        timed(positions)
        .groupBy(F.window("time", "20 seconds", startTime="5 seconds"))
        .agg(F.count("*").alias("cars"), F.min("speed").alias("least"))
    )


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def window_of_windows(positions):
    fine = (
        timed(positions, "1 second")
        .groupBy(F.window("time", "1 second"), (F.col("road") % 3).alias("road"))
        .agg(F.sum("speed").alias("speeds"))
    )
    return fine.groupBy(F.window("window", "4 seconds"), "road").agg(
        F.max("speeds").alias("busiest"), F.count("*").alias("seconds")
    )


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def window_time_of_windows(positions):
    fine = timed(positions, "1 second").groupBy(F.window("time", "500 milliseconds")).agg(F.count("*").alias("cars"))
    at = fine.select(F.window_time("window").alias("at"), "cars")
    return at.groupBy(F.window("at", "2 seconds")).agg(F.max("cars").alias("most"), F.sum("cars").alias("cars"))


def seconds_of_roads(positions):
    """Every road and second, many times over."""
    seconds = positions.select("road", F.date_trunc("second", helpers.late_time()).alias("second"))
    return seconds.withWatermark("second", "4 seconds")


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def duplicates_then_window(positions):
    once = seconds_of_roads(positions).dropDuplicates(["road", "second"])
    return once.groupBy(F.window("second", "4 seconds")).agg(F.count("*").alias("n"), F.sum("road").alias("roads"))


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def duplicates_with_watermark(positions):
    return seconds_of_roads(positions).dropDuplicates(["road", "second"])


@job.stage(positions, host="h2", standbys=["h1"])
def duplicates_within_watermark(positions):
    # Every second row is an echo of what came 5 s before. Time goes by the key: which of two equal rows of a batch
    # comes first must not matter.
    car = F.floor(F.col("id") / 10) - F.when(F.col("id") % 2 == 0, 0).otherwise(25)
    cars = positions.select(car.alias("car")).withColumn("time", F.timestamp_seconds(helpers.START + F.col("car") / 5))
    return cars.withWatermark("time", "8 seconds").dropDuplicatesWithinWatermark(["car"])


@job.stage(rare, output_mode="append", host="h2", standbys=["h1"])
def windows_with_empty_epochs(rare):
    made = rare.withColumn("time", F.timestamp_seconds(helpers.START + F.col("id") * 5)).withWatermark(
        "time", "0 seconds"
    )
    return made.groupBy(F.window("time", "10 seconds", "5 seconds")).agg(
        F.count("*").alias("cars"), F.sum("speed").alias("speeds")
    )


@job.stage(positions, rare, output_mode="append", host="h2", standbys=["h1"])
def union_then_window(positions, rare):
    # The watermark is that of the slower of both.
    time = F.timestamp_seconds(helpers.START + F.col("id") * 5 + 5)
    both = timed(positions).unionByName(rare.withColumn("time", time).withWatermark("time", "0 seconds"))
    return both.groupBy(F.window("time", "4 seconds")).agg(F.count("*").alias("cars"), F.max("speed").alias("most"))


for shape in (
    tumbling,
    sliding,
    sessions,
    sessions_with_gaps_by_row,
    windows_in_complete_mode,
    window_of_windows,
    window_time_of_windows,
    duplicates_then_window,
    duplicates_with_watermark,
    duplicates_within_watermark,
    windows_with_empty_epochs,
    union_then_window,
):
    job.sink(shape, us.sinks.parquet(f"out/compat/windows/{shape.name}"))
