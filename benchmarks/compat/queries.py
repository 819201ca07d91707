"""Shapes of stages: SQL, JSON, arrays, odd names, a fitted model, and other things that queries are made of."""

import helpers
from pyspark.ml import Pipeline
from pyspark.ml.classification import DecisionTreeClassifier
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import understudy as us

EVENT = "road long, speed double, tags array<string>, place struct<x: int, y: int>, missing string"

job = us.Job("compat-queries", epoch="1s")
positions = job.source("positions", us.sources.rate(rows_per_second=100, keys=20, seed=16), host="h1", standbys=["h2"])
rare = job.source("rare", us.sources.rate(rows_per_second=0.4, keys=3, seed=17), host="h1", standbys=["h2"])


@job.stage(positions, host="h2", standbys=["h1"])
def sql_over_a_view(positions):
    positions.createOrReplaceTempView("positions_of_sql")
    return positions.sparkSession.sql(
        """
        WITH graded AS (
            SELECT road, speed, CASE WHEN speed < 30 THEN 'slow' WHEN speed < 90 THEN 'middling' ELSE 'fast' END grade
            FROM positions_of_sql
        )
        SELECT grade, road % 5 AS road, count(*) AS cars, sum(speed) FILTER (WHERE speed > 10) AS speeds
        FROM graded GROUP BY ALL HAVING count(*) > 2
        """
    )


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def sql_with_arguments(positions):
    timed = positions.withColumn("time", helpers.late_time()).withWatermark("time", "2 seconds")
    spark = SparkSession.getActiveSession()
    return spark.sql(
        "SELECT window.start, window.end, count(*) AS cars FROM {timed} "
        "WHERE speed > :least GROUP BY window(time, '4 seconds')",
        args={"least": 25.0},
        timed=timed,
    )


@job.stage(positions, host="h2", standbys=["h1"])
def exploded(positions):
    words = F.split(F.concat_ws(" ", F.lit("road"), (F.col("road") % 4).cast("string"), F.hex(F.col("id") % 9)), " ")
    return positions.select(F.posexplode(words).alias("at", "word")).groupBy("word", "at").count()


@job.stage(positions, host="h2", standbys=["h1"])
def higher_order_functions(positions):
    marks = F.transform(F.sequence(F.lit(1), F.col("road") % 5 + 1), lambda n: n * F.col("id") % 11)
    kept = F.filter(marks, lambda mark: mark > 3)
    total = F.aggregate(kept, F.lit(0).cast("long"), lambda sum, mark: sum + mark)
    by_mark = F.map_from_entries(
        F.array(F.struct(F.lit("total"), total), F.struct(F.lit("n"), F.size(kept).cast("long")))
    )
    made = positions.select("road", F.map_filter(by_mark, lambda _, value: value > 0).alias("marks"))
    return made.groupBy("road").agg(
        F.sum(F.col("marks")["total"]).alias("total"),
        F.count_if(F.map_contains_key("marks", "n")).alias("kept"),
        F.max(F.array_sort(F.map_keys("marks"))).alias("keys"),
    )


@job.stage(positions, host="h2", standbys=["h1"])
def json_rows(positions):
    place = F.struct((F.col("id") % 3).alias("x"), F.col("road").alias("y"))
    whole = F.to_json(F.struct("road", "speed", F.array(F.lit("a"), F.lit('ü"')).alias("tags"), place.alias("place")))
    return positions.select(F.when(F.col("id") % 20 != 0, whole).otherwise("{broken").alias("text"))


@job.stage(json_rows, host="h2", standbys=["h1"])
def json_there_and_back(json_rows):
    event = json_rows.select(F.from_json("text", EVENT).alias("event")).select("event.*")
    totals = event.groupBy("place.x", F.element_at("tags", 2).alias("tag")).agg(
        F.count("*").alias("cars"), F.sum("speed").alias("speeds"), F.count("missing").alias("missing")
    )
    return totals.select("x", F.to_json(F.struct("tag", "cars", "speeds", "missing")).alias("text"))


@job.stage(positions, host="h2", standbys=["h1"])
def oddly_named_rows(positions):
    return positions.select(
        F.col("road").alias("Straße"),
        F.col("speed").alias("speed in km/h"),
        F.col("id").alias("a.b"),
        F.struct(F.col("id").alias("c d"), F.lit("ÄÖ 🚗").alias("e.f")).alias("nested `x`"),
        F.concat(F.lit("道路 "), (F.col("road") % 3).cast("string")).alias("名前"),
    )


@job.stage(oddly_named_rows, host="h2", standbys=["h1"])
def odd_names(oddly_named_rows):
    return oddly_named_rows.groupBy("Straße", "名前").agg(
        F.sum("speed in km/h").alias("sum of speed in km/h"),
        F.max("`a.b`").alias("a.b"),
        F.max("`nested ``x```.`e.f`").alias("e f"),
        F.max_by("`nested ``x```", "`a.b`").alias("nested ´x´"),
    )


@job.stage(positions, host="h2", standbys=["h1"])
def upper_and_lower_case(positions):
    # Spark does not tell Road from road, but keeps what was written.
    made = positions.select("ROAD", F.col("Speed").alias("SpeedOfCar"), "iD")
    return made.groupBy("Road").agg(F.sum("SPEEDOFCAR").alias("Sum"), F.max("ID").alias("latestId"))


@job.stage(positions, host="h2", standbys=["h1"])
def regression(positions):
    points = positions.sparkSession.createDataFrame(
        [(float(x), 2.0 * x + 1.0) for x in range(8)], "speed double, label double"
    )
    model = Pipeline(stages=[VectorAssembler(inputCols=["speed"], outputCol="features"), LinearRegression()]).fit(
        points
    )
    # Rounded: how a model is fitted may differ in the last bits from JVM to JVM.
    made = model.transform(positions).select("road", F.round("prediction", 1).alias("prediction"))
    return made.groupBy("road").agg(F.max("prediction").alias("most"), F.count("*").alias("n"))


@job.stage(positions, output_mode="complete", host="h2", standbys=["h1"])
def classification(positions):
    known = [(float(s), "slow" if s < 40 else "middling" if s < 90 else "fast") for s in range(0, 128, 8)]
    training = positions.sparkSession.createDataFrame(known, "speed double, grade string")
    index = StringIndexer(inputCol="grade", outputCol="label", stringOrderType="alphabetAsc").fit(training)
    tree = DecisionTreeClassifier(maxDepth=2, seed=1)
    assembler = VectorAssembler(inputCols=["speed"], outputCol="features")
    model = Pipeline(stages=[assembler, tree]).fit(index.transform(training))
    grade = F.element_at(F.array(*[F.lit(label) for label in index.labels]), F.col("prediction").cast("int") + 1)
    return (
        model.transform(positions)
        .groupBy(grade.alias("grade"))
        .agg(F.count("*").alias("cars"), F.min("speed").alias("least"))
    )


@job.stage(positions, rare, host="h2", standbys=["h1"])
def union_of_two_sources(positions, rare):
    both = positions.withColumn("from", F.lit("often")).unionByName(rare.drop("speed"), allowMissingColumns=True)
    return both.groupBy("from", (F.col("road") % 3).alias("road")).agg(
        F.count("*").alias("cars"), F.sum("speed").alias("speeds")
    )


@job.stage(positions, host="h2", standbys=["h1"])
def many_small_steps(positions):
    def in_metres(frame):
        return frame.withColumns({"metres": F.col("speed") / 4, "lane": F.expr("id % 2")})

    made = positions.transform(in_metres).repartition(3, "road").na.replace(0, 100, "lane").drop("speed")
    return (
        made.selectExpr("stack(2, 'metres', metres, 'lane', CAST(lane AS DOUBLE)) AS (what, value)")
        .groupBy("what")
        .agg(F.sum("value").alias("sum"), F.count("*").alias("n"))
    )


for shape in (
    sql_over_a_view,
    sql_with_arguments,
    exploded,
    higher_order_functions,
    json_there_and_back,
    odd_names,
    upper_and_lower_case,
    regression,
    classification,
    union_of_two_sources,
    many_small_steps,
):
    job.sink(shape, us.sinks.parquet(f"out/compat/queries/{shape.name}"))
