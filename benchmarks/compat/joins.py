"""Shapes of stages: joins of two streams, and of a stream with a table."""

import helpers
from pyspark.sql import functions as F

import understudy as us

ROADS = [(road, f"Road {road}", road % 3) for road in range(0, 20, 2)]
DISTRICTS = [(0, "north"), (1, "south")]

job = us.Job("compat-joins", epoch="1s")
# Of both, an epoch holds about two seconds of event time.
positions = job.source("positions", us.sources.rate(rows_per_second=100, keys=20, seed=10), host="h1", standbys=["h2"])
tolls = job.source("tolls", us.sources.rate(rows_per_second=25, keys=20, seed=11), host="h1", standbys=["h2"])
rare = job.source("rare", us.sources.rate(rows_per_second=0.4, keys=3, seed=12), host="h1", standbys=["h2"])


def cars_of(positions, delay="2 seconds"):
    # Every 4th row only: the others are there for the joins with tables.
    cars = positions.where("id % 4 = 0").select(
        F.col("id").alias("car"), F.col("road").alias("car_road"), "speed", helpers.event_time(50).alias("seen")
    )
    return cars.withWatermark("seen", delay)


def tolls_of(tolls, delay="3 seconds"):
    paid = tolls.select(
        F.col("id").alias("toll"), F.col("road").alias("toll_road"), helpers.event_time(12.5).alias("paid")
    )
    return paid.withWatermark("paid", delay)


SOON = F.expr("car_road = toll_road AND paid BETWEEN seen AND seen + INTERVAL 3 SECONDS")


@job.stage(positions, tolls, host="h2", standbys=["h1"])
def inner_in_a_time_range(positions, tolls):
    return cars_of(positions).join(tolls_of(tolls), SOON)


@job.stage(positions, tolls, output_mode="append", host="h2", standbys=["h1"])
def left_outer(positions, tolls):
    return cars_of(positions).join(tolls_of(tolls), SOON, "leftOuter").select("car", "toll", "seen", "paid")


@job.stage(positions, tolls, output_mode="append", host="h2", standbys=["h1"])
def right_outer(positions, tolls):
    return cars_of(positions).join(tolls_of(tolls), SOON, "rightOuter").select("car", "toll", "seen", "paid")


@job.stage(positions, tolls, output_mode="append", host="h2", standbys=["h1"])
def full_outer(positions, tolls):
    return cars_of(positions).join(tolls_of(tolls), SOON, "fullOuter").select("car", "toll", "seen", "paid")


@job.stage(positions, tolls, output_mode="append", host="h2", standbys=["h1"])
def left_semi(positions, tolls):
    return cars_of(positions).join(tolls_of(tolls), SOON, "leftSemi")


@job.stage(positions, tolls, host="h2", standbys=["h1"])
def inner_without_watermark(positions, tolls):
    # Both sides are kept for ever. Cars and tolls with the same number meet: the cars run ahead.
    cars = positions.where("road < 5").select("id", "speed")
    return cars.join(tolls.select("id", F.col("road").alias("toll_road")), "id")


@job.stage(positions, tolls, output_mode="append", host="h2", standbys=["h1"])
def join_then_window(positions, tolls):
    paid = cars_of(positions).join(tolls_of(tolls), SOON)
    return paid.groupBy(F.window("seen", "4 seconds")).agg(F.count("*").alias("paid"), F.sum("speed").alias("speeds"))


@job.stage(positions, tolls, host="h2", standbys=["h1"])
def by_two_keys_one_a_struct(positions, tolls):
    key = F.struct((F.col("road") % 4).alias("a"), F.when(F.col("road") % 5 != 0, F.lit("x")).alias("b"))
    cars = positions.where("id % 8 = 0").select(key.alias("key"), F.floor(F.col("id") / 400).alias("turn"), "id")
    paid = tolls.select(key.alias("key"), F.floor(F.col("id") / 100).alias("turn"), F.col("id").alias("toll"))
    # A turn takes about four epochs. A struct with a null inside equals another one.
    return cars.join(paid, ["key", "turn"]).select("key.a", "key.b", "turn", "id", "toll")


@job.stage(positions, rare, output_mode="append", host="h2", standbys=["h1"])
def with_a_side_that_is_mostly_empty(positions, rare):
    closed = rare.select(
        F.col("id").alias("closure"),
        F.col("road").alias("closed_road"),
        F.timestamp_seconds(helpers.START + F.col("id") * 5).alias("closed"),
    ).withWatermark("closed", "5 seconds")
    when = F.expr("car_road % 3 = closed_road AND seen BETWEEN closed AND closed + INTERVAL 6 SECONDS")
    return cars_of(positions).join(closed, when, "leftOuter").select("car", "speed", "closure")


@job.stage(positions, host="h2", standbys=["h1"])
def table_inner(positions):
    roads = positions.sparkSession.createDataFrame(ROADS, "road long, name string, district int")
    return positions.join(roads, "road").groupBy("name").agg(F.count("*").alias("cars"), F.sum("speed").alias("speeds"))


@job.stage(positions, host="h2", standbys=["h1"])
def table_broadcast_left_outer(positions):
    roads = positions.sparkSession.createDataFrame(ROADS, ["road", "name", "district"])
    joined = positions.join(F.broadcast(roads), "road", "left")
    return joined.groupBy("district").agg(F.count("*").alias("cars"), F.count("name").alias("named"))


@job.stage(positions, output_mode="complete", host="h2", standbys=["h1"])
def tables_in_sql(positions):
    spark = positions.sparkSession
    positions.createOrReplaceTempView("positions_to_join")
    spark.createDataFrame(ROADS, "road long, name string, district int").createOrReplaceTempView("roads_to_join")
    spark.createDataFrame(DISTRICTS, "district int, called string").createOrReplaceTempView("districts_to_join")
    return spark.sql(
        "SELECT d.called, r.name, count(*) AS cars, max(p.speed) AS most FROM positions_to_join p "
        "JOIN roads_to_join r ON p.road = r.road LEFT JOIN districts_to_join d ON d.district = r.district "
        "GROUP BY d.called, r.name"
    )


@job.stage(positions, host="h2", standbys=["h1"])
def fast_cars(positions):
    return positions.where("speed > 100").select(
        F.col("id").alias("fast"), "road", helpers.event_time().alias("fast_time")
    )


@job.stage(positions, host="h2", standbys=["h1"])
def slow_cars(positions):
    return positions.where("speed < 20").select("id", "road", helpers.event_time().alias("slow_time"))


@job.stage(fast_cars, slow_cars, host="h2", standbys=["h1"])
def one_source_with_itself(fast_cars, slow_cars):
    fast = fast_cars.withWatermark("fast_time", "2 seconds")
    slow = slow_cars.withWatermark("slow_time", "2 seconds").withColumnRenamed("road", "slow_road")
    behind = F.expr("road = slow_road AND slow_time BETWEEN fast_time AND fast_time + INTERVAL 5 SECONDS")
    return fast.join(slow, behind).select(
        "road", "fast", "id", (F.col("slow_time") - F.col("fast_time")).cast("string").alias("later")
    )


for shape in (
    inner_in_a_time_range,
    left_outer,
    right_outer,
    full_outer,
    left_semi,
    inner_without_watermark,
    join_then_window,
    by_two_keys_one_a_struct,
    with_a_side_that_is_mostly_empty,
    table_inner,
    table_broadcast_left_outer,
    tables_in_sql,
    one_source_with_itself,
):
    job.sink(shape, us.sinks.parquet(f"out/compat/joins/{shape.name}"))
