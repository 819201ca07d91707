"""Shapes of stages: types of columns. Most are made in one stage and kept in another, so that they cross the wire."""

import helpers
from pyspark.sql import functions as F

import understudy as us

job = us.Job("compat-datatypes", epoch="1s")
positions = job.source("positions", us.sources.rate(rows_per_second=100, keys=20, seed=15), host="h1", standbys=["h2"])


def now_and_then(column):
    """The column, with a null in every third row or so."""
    return F.when(F.col("id") % 3 != 0, column)


# -- nested -------------------------------------------------------------------------------------------------------


@job.stage(positions, host="h2", standbys=["h1"])
def nested_rows(positions):
    point = F.struct(F.col("speed").alias("x"), now_and_then(F.col("road").cast("int")).alias("y"))
    tags = F.transform(
        F.sequence(F.lit(0), (F.col("id") % 4).cast("int")),
        lambda n: F.struct(n.alias("n"), F.concat(F.lit("tag "), n.cast("string")).alias("name")),
    )
    lists = F.create_map(F.lit("ids"), F.array("id", "road"), F.lit("none"), F.array().cast("array<long>"))
    return positions.select("id", "road", point.alias("point"), now_and_then(tags).alias("tags"), lists.alias("lists"))


@job.stage(nested_rows, host="h2", standbys=["h1"])
def nested(nested_rows):
    return nested_rows.groupBy("road").agg(
        F.max("point").alias("furthest"),
        F.max_by("tags", "id").alias("tags"),
        F.sum(F.size("tags")).alias("number"),
        F.sum(F.element_at("lists", "ids")[0]).alias("ids"),
        F.to_json(F.max_by("lists", "id")).alias("lists"),
    )


@job.stage(nested_rows, output_mode="append", host="h2", standbys=["h1"])
def nested_as_keys(nested_rows):
    # A duplicate has the same struct and the same array of structs.
    half = F.struct((F.floor(F.col("point.x") / 4)).alias("x"), F.col("point.y").alias("y"))
    return nested_rows.select(half.alias("point"), "tags").dropDuplicates()


# -- numbers ------------------------------------------------------------------------------------------------------


@job.stage(positions, host="h2", standbys=["h1"])
def decimal_rows(positions):
    large = F.expr("CAST(id AS DECIMAL(10, 0)) * CAST(1000000007.0000000001 AS DECIMAL(20, 10))").cast("decimal(38,10)")
    return positions.select(
        "id", "road", large.alias("large"), now_and_then(F.col("speed")).cast("decimal(10,2)").alias("price")
    )


@job.stage(decimal_rows, host="h2", standbys=["h1"])
def decimals(decimal_rows):
    return decimal_rows.groupBy("road").agg(
        F.sum("large").alias("large"),
        F.max("large").alias("most"),
        F.sum("price").alias("price"),
        F.max_by("price", "id").alias("latest"),
    )


@job.stage(positions, host="h2", standbys=["h1"])
def small_rows(positions):
    return positions.select(
        "id",
        (F.col("speed") > 64).alias("fast"),
        (F.col("id") % 128).cast("byte").alias("tiny"),
        (F.col("id") % 30_000 - 15_000).cast("short").alias("small"),
        F.col("road").cast("int").alias("medium"),
        F.col("speed").cast("float").alias("single"),
    )


@job.stage(small_rows, host="h2", standbys=["h1"])
def small_numbers(small_rows):
    return small_rows.groupBy("fast", (F.col("tiny") % F.lit(4).cast("byte")).alias("tiny")).agg(
        F.min("small").alias("small"),
        F.sum("medium").alias("medium"),
        F.max("single").alias("single"),
        F.sum("single").alias("singles"),
        F.bool_or(F.col("tiny") == 127).alias("ever"),
        F.max_by("tiny", "id").alias("latest"),
    )


# -- times --------------------------------------------------------------------------------------------------------


@job.stage(positions, host="h2", standbys=["h1"])
def time_rows(positions):
    instant = F.timestamp_micros(F.lit(helpers.START * 1_000_000) + F.col("id") * 3_600_000_123)
    return positions.select(
        "id",
        (F.col("road") % 6).alias("road"),
        instant.alias("instant"),
        now_and_then(instant.cast("timestamp_ntz")).alias("local"),
        F.to_date(instant).alias("day"),
        F.date_add(F.lit("0001-01-01").cast("date"), (F.col("id") % 1000).cast("int")).alias("ancient"),
    )


@job.stage(time_rows, host="h2", standbys=["h1"])
def times(time_rows):
    return time_rows.groupBy("road").agg(
        F.max("instant").alias("instant"),
        F.min("local").alias("first"),
        F.max("local").alias("local"),
        F.max("day").alias("day"),
        F.min("ancient").alias("ancient"),
        F.approx_count_distinct("day").alias("days"),
    )


@job.stage(time_rows, output_mode="append", host="h2", standbys=["h1"])
def windows_of_days(time_rows):
    # An epoch holds about four days.
    days = time_rows.withWatermark("instant", "12 hours").groupBy(F.window("instant", "10 days"), "road")
    return days.agg(F.count("*").alias("cars"), F.max("local").alias("local"), F.min("day").alias("day"))


@job.stage(positions, host="h2", standbys=["h1"])
def interval_rows(positions):
    span = F.expr("make_dt_interval(0, 0, 0, speed) + INTERVAL '1 02:03:04.5' DAY TO SECOND")
    return positions.select("id", "road", now_and_then(span).alias("span"))


@job.stage(interval_rows, host="h2", standbys=["h1"])
def intervals(interval_rows):
    totals = interval_rows.groupBy("road").agg(F.sum("span").alias("total"), F.max("span").alias("longest"))
    return totals.select("road", F.col("total").cast("string"), F.col("longest").cast("string"))


# -- others -------------------------------------------------------------------------------------------------------


@job.stage(positions, host="h2", standbys=["h1"])
def binary_rows(positions):
    return positions.select(
        "id",
        F.unhex(F.sha1((F.col("road") % 7).cast("string"))).alias("key"),
        now_and_then(F.encode(F.hex("id"), "UTF-16")).alias("data"),
    )


@job.stage(binary_rows, host="h2", standbys=["h1"])
def binaries(binary_rows):
    return binary_rows.groupBy("key").agg(
        F.max("data").alias("most"), F.max_by("data", "id").alias("latest"), F.sum(F.length("data")).alias("bytes")
    )


@job.stage(positions, host="h2", standbys=["h1"])
def null_rows(positions):
    types = (
        "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(20,5)", "string", "binary",
        "date", "timestamp", "timestamp_ntz", "interval day to second", "array<int>", "struct<a: int, b: string>",
    )  # fmt: skip
    nothing = [F.lit(None).cast(t).alias(f"n{i}") for i, t in enumerate(types)]
    return positions.select("id", "road", *nothing)


@job.stage(null_rows, host="h2", standbys=["h1"])
def nulls(null_rows):
    columns = [name for name in null_rows.columns if name not in ("id", "road", "n13")]
    return null_rows.groupBy("n8", "n15", (F.col("road") % 4).alias("road")).agg(
        F.count("*").alias("rows"), *[F.max(name).alias(f"max_{name}") for name in columns]
    )


@job.stage(positions, host="h2", standbys=["h1"])
def holed_rows(positions):
    # Spark copies arrays of numbers in another way than other arrays. The map is never null, but what it is in may be.
    types = (
        "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(9,2)", "decimal(30,5)",
        "string", "binary", "date", "timestamp", "timestamp_ntz", "array<bigint>",
    )  # fmt: skip
    values = {
        "boolean": "id % 2 = 0",
        "binary": "CAST(CAST(id AS STRING) AS BINARY)",
        "date": "date_add(DATE'2026-01-01', CAST(id % 90 AS INT))",
        "timestamp_ntz": "timestamp_seconds(id)",
        "array<bigint>": "array(id, NULL)",
    }
    columns = []
    for number, kind in enumerate(types):
        value = F.expr(values.get(kind, "id % 100")).cast(kind)
        columns.append(F.array(now_and_then(value), value, F.lit(None).cast(kind)).alias(f"a{number}"))
    pair = F.create_map(F.lit(1), now_and_then(F.col("id")), F.lit(2), F.lit(None).cast("bigint"))
    return positions.select("id", "road", *columns, now_and_then(F.struct(pair.alias("pair"))).alias("m"))


@job.stage(holed_rows, host="h2", standbys=["h1"])
def nulls_inside(holed_rows):
    columns = [name for name in holed_rows.columns if name not in ("id", "road")]
    return holed_rows.groupBy("road").agg(*[F.max_by(F.to_json(F.struct(name)), "id").alias(name) for name in columns])


@job.stage(positions, host="h2", standbys=["h1"])
def variant_rows(positions):
    text = F.to_json(F.struct("road", "speed", F.struct(F.array("id", "road").alias("list")).alias("deep")))
    return positions.select("id", now_and_then(F.parse_json(text)).alias("event"))


@job.stage(variant_rows, host="h2", standbys=["h1"])
def variants(variant_rows):
    road = F.variant_get("event", "$.road", "long")
    return variant_rows.groupBy(road.alias("road")).agg(
        F.sum(F.variant_get("event", "$.speed", "double")).alias("speeds"),
        F.max(F.try_variant_get("event", "$.deep.list[0]", "long")).alias("latest"),
        F.max(F.to_json("event")).alias("text"),
    )


@job.stage(positions, host="h2", standbys=["h1"])
def long_rows(positions):
    # One megabyte, of every hundredth position.
    megabyte = F.repeat(F.md5(F.col("id").cast("string")), 32_768)
    return positions.where("id % 100 = 0").select(
        (F.col("id") / 100 % 3).cast("int").alias("lane"), "id", megabyte.alias("text")
    )


@job.stage(long_rows, host="h2", standbys=["h1"])
def strings_of_a_megabyte(long_rows):
    return long_rows.groupBy("lane").agg(
        F.max_by("text", "id").alias("latest"), F.sum(F.length("text")).alias("length")
    )


@job.stage(positions, host="h2", standbys=["h1"])
def wide_rows(positions):
    return positions.select("road", *[(F.col("id") * (n + 1) % 1009).alias(f"c{n:03}") for n in range(299)])


@job.stage(wide_rows, host="h2", standbys=["h1"])
def three_hundred_columns(wide_rows):
    sums = [F.sum(name).alias(name) for name in wide_rows.columns if name != "road"]
    return wide_rows.groupBy((F.col("road") % 2).alias("road")).agg(*sums)


for shape in (
    nested,
    nested_as_keys,
    decimals,
    small_numbers,
    times,
    windows_of_days,
    intervals,
    binaries,
    nulls,
    holed_rows,
    nulls_inside,
    variants,
    strings_of_a_megabyte,
    three_hundred_columns,
):
    job.sink(shape, us.sinks.parquet(f"out/compat/datatypes/{shape.name}"))
