"""Shapes of stages: aggregates and duplicates by key, remembered for ever."""

from pyspark.sql import functions as F

import understudy as us

job = us.Job("compat-aggregates", epoch="1s")
positions = job.source("positions", us.sources.rate(rows_per_second=100, keys=20, seed=8), host="h1", standbys=["h2"])
rare = job.source("rare", us.sources.rate(rows_per_second=0.4, keys=3, seed=9), host="h1", standbys=["h2"])


@job.stage(positions, host="h2", standbys=["h1"])
def counts_by_key(positions):
    return positions.groupBy("road").count()


@job.stage(positions, output_mode="complete", host="h2", standbys=["h1"])
def totals_in_complete_mode(positions):
    totals = positions.groupBy("road").agg(F.sum("speed").alias("speeds"), F.count("*").alias("cars"))
    return totals.where("cars > 3").orderBy(F.desc("speeds"), "road").limit(5)


@job.stage(positions, host="h2", standbys=["h1"])
def without_keys(positions):
    return positions.agg(F.count("*").alias("cars"), F.avg("speed").alias("mean"), F.max("speed").alias("most"))


@job.stage(positions, host="h2", standbys=["h1"])
def first_of_each_key(positions):
    # Half of the rows are copies of older ones, from up to four epochs before.
    car = F.when(F.col("id") % 2 == 0, F.col("id")).otherwise(
        F.greatest(F.lit(0), F.col("id") - 1 - F.col("id") % 8 * 50)
    )
    return positions.select(car.alias("car"), (car % 7).alias("kind")).dropDuplicates(["car"])


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def distinct_rows(positions):
    return positions.select("road", F.floor("speed").alias("band")).distinct()


@job.stage(positions, output_mode="update", host="h2", standbys=["h1"])
def rollup(positions):
    made = positions.rollup((F.col("road") % 3).alias("district"), (F.col("road") % 2).alias("side"))
    return made.agg(F.grouping_id().alias("level"), F.count("*").alias("cars"), F.max("speed").alias("most"))


@job.stage(positions, output_mode="complete", host="h2", standbys=["h1"])
def cube(positions):
    made = positions.cube((F.col("road") % 3).alias("district"), (F.col("speed") > 60).alias("fast"))
    return made.agg(F.count("*").alias("cars"))


@job.stage(positions, host="h2", standbys=["h1"])
def grouping_sets(positions):
    positions.createOrReplaceTempView("positions_in_sets")
    return positions.sparkSession.sql(
        "SELECT road, id % 2 AS parity, sum(speed) AS speeds FROM positions_in_sets "
        "GROUP BY GROUPING SETS ((road), (id % 2), ())"
    )


@job.stage(positions, host="h2", standbys=["h1"])
def sketches_and_sets(positions):
    bands = F.collect_set(F.floor(F.col("speed") / 2).cast("int"))
    return positions.groupBy((F.col("road") % 4).alias("district")).agg(
        F.approx_count_distinct("id").alias("cars"), F.sort_array(bands).alias("bands")
    )


@job.stage(positions, host="h2", standbys=["h1"])
def the_row_of_the_most(positions):
    by = F.struct("speed", "id")
    return positions.groupBy("road").agg(
        F.max_by("id", by).alias("fastest"), F.min_by("id", by).alias("slowest"), F.max(by).alias("most")
    )


@job.stage(positions, host="h2", standbys=["h1"])
def pivoted(positions):
    # Of a structure: the pivot of a number is two aggregates in a row, which Spark refuses without a watermark.
    graded = positions.withColumn("grade", F.when(F.col("speed") < 40, "slow").otherwise("fast"))
    return graded.groupBy("road").pivot("grade", ["slow", "fast", "parked"]).agg(F.max(F.struct("speed", "id")))


@job.stage(positions, host="h2", standbys=["h1"])
def skewed(positions):
    key = F.when(F.col("id") % 10 != 0, F.lit("all")).otherwise(F.concat(F.lit("one "), F.col("id").cast("string")))
    return positions.groupBy(key.alias("key")).agg(F.count("*").alias("cars"), F.sum("speed").alias("speeds"))


@job.stage(positions, host="h2", standbys=["h1"])
def keys_that_are_null_or_structs(positions):
    # A key may be null, a field of it may be null, and both are keys like others.
    inner = F.struct(F.when(F.col("road") % 4 != 0, F.col("road") % 4).alias("a"), (F.col("id") % 2 == 0).alias("b"))
    key = F.when(F.col("road") != 7, inner)
    return positions.groupBy(key.alias("key"), F.when(F.col("road") % 5 != 0, F.lit("x")).alias("x")).agg(
        F.count("*").alias("cars"), F.sum("speed").alias("speeds")
    )


@job.stage(rare, output_mode="complete", host="h2", standbys=["h1"])
def totals_of_empty_epochs(rare):
    return rare.groupBy("road").agg(F.count("*").alias("cars"), F.sum("speed").alias("speeds"))


for shape in (
    counts_by_key,
    totals_in_complete_mode,
    without_keys,
    first_of_each_key,
    distinct_rows,
    rollup,
    cube,
    grouping_sets,
    sketches_and_sets,
    the_row_of_the_most,
    pivoted,
    skewed,
    keys_that_are_null_or_structs,
    totals_of_empty_epochs,
):
    job.sink(shape, us.sinks.parquet(f"out/compat/aggregates/{shape.name}"))
