"""Shapes of stages: Python functions that are called for every row, and what they take along."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import helpers
from fleet import zone_of
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

import understudy as us

NAMES = {0: "High Street", 1: "Mill Lane", 2: "Station Road", 3: "Church Walk"}
OTHER = "elsewhere"
STEP = 8.0
TRIP = StructType(
    [StructField("label", StringType()), StructField("energy", DoubleType()), StructField("n", LongType())]
)


def grade(speed):
    if speed < 30:
        return "slow"
    return "fast" if speed > 90 else "middling"


class Scale:
    """A gauge that rounds down to whole steps."""

    def __init__(self, step):
        self.step = step

    def __call__(self, speed):
        return float(speed // self.step * self.step)

    def steps(self, speed):
        return int(speed // self.step)


SCALE = Scale(STEP)


def name_of(road):
    return NAMES.get(road, OTHER)


def clamp(speed, low, high):
    return min(max(speed, low), high)


@F.udf("string")
def zone(road):
    return zone_of(road)


@dataclass(frozen=True)
class Car:
    road: int
    speed: float

    @property
    def energy(self):
        return self.speed * self.speed


class Trip(NamedTuple):
    label: str
    energy: float
    n: int


def trip(road, speed):
    car = Car(road, speed)
    return Trip(f"{NAMES.get(car.road % 4)}/{grade(car.speed)}", car.energy, 1)


job = us.Job("compat-functions", epoch="1s")
positions = job.source("positions", us.sources.rate(rows_per_second=100, keys=20, seed=1), host="h1", standbys=["h2"])
rare = job.source("rare", us.sources.rate(rows_per_second=0.4, keys=3, seed=2), host="h1", standbys=["h2"])


@job.stage(positions, host="h2", standbys=["h1"])
def top_level_function(positions):
    graded = F.udf(grade, StringType())
    return positions.groupBy(graded("speed").alias("grade"), "road").count()


@job.stage(positions, host="h2", standbys=["h1"])
def instance_of_a_class(positions):
    # Both the object itself and one of its methods.
    rounded, steps = F.udf(SCALE, "double"), F.udf(SCALE.steps, "int")
    return positions.groupBy("road").agg(F.sum(rounded("speed")).alias("rounded"), F.max(steps("speed")).alias("steps"))


@job.stage(positions, output_mode="complete", host="h2", standbys=["h1"])
def constants_at_the_top(positions):
    named = F.udf(name_of)
    return positions.groupBy(named("road").alias("name")).agg(F.count("*").alias("cars"), F.max("speed").alias("most"))


@job.stage(positions, host="h2", standbys=["h1"])
def module_beside_the_job(positions):
    tidied = F.udf(helpers.tidy, "string")
    written = F.when(F.col("id") % 10 != 0, F.concat(F.lit("  Road   No "), F.col("road").cast("string")))
    return positions.groupBy(tidied(written).alias("name")).agg(F.count("*").alias("cars"))


@job.stage(positions, output_mode="update", host="h2", standbys=["h1"])
def import_inside_a_function(positions):
    @F.udf("double")
    def excess(road, speed):
        from fleet.limits import limit_of

        return max(0.0, speed - limit_of(road))

    return positions.groupBy("road").agg(F.sum(excess("road", "speed")).alias("excess"))


@job.stage(positions, host="h2", standbys=["h1"])
def decorator_and_package(positions):
    return positions.groupBy(zone("road").alias("zone")).agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))


@job.stage(positions, host="h2", standbys=["h1"])
def lambda_and_partial(positions):
    parity = F.udf(lambda n: "odd" if n % 2 else "even")
    clamped = F.udf(functools.partial(clamp, low=20.0, high=100.0), "double")
    return positions.groupBy(parity("id").alias("parity"), "road").agg(F.sum(clamped("speed")).alias("clamped"))


@job.stage(positions, host="h2", standbys=["h1"])
def closure_over_locals(positions):
    base, weights = 3, [1, 10, 100]

    def weight(number):
        return weights[number % base]

    weighed = F.udf(weight, "long")
    return positions.groupBy("road").agg(F.sum(weighed("id")).alias("weight"))


@job.stage(positions, host="h2", standbys=["h1"])
def dataclass_and_named_tuple(positions):
    made = positions.select("road", F.udf(trip, TRIP)("road", "speed").alias("trip"))
    return made.groupBy("trip.label").agg(F.sum("trip.energy").alias("energy"), F.sum("trip.n").alias("n"))


@job.stage(positions, host="h2", standbys=["h1"])
def broadcast_variable(positions):
    tolls = positions.sparkSession.sparkContext.broadcast({road: road % 4 * 0.5 for road in range(20)})
    toll = F.udf(lambda road: tolls.value[road], "double")
    return positions.groupBy("road").agg(F.sum(toll("road")).alias("tolls"), F.count("*").alias("cars"))


@job.stage(positions, output_mode="complete", host="h2", standbys=["h1"])
def registered_for_sql(positions):
    spark = positions.sparkSession
    spark.udf.register("grade_of", grade, "string")
    positions.createOrReplaceTempView("positions_to_grade")
    return spark.sql("SELECT grade_of(speed) AS grade, count(*) AS cars FROM positions_to_grade GROUP BY 1")


@job.stage(rare, output_mode="complete", host="h2", standbys=["h1"])
def seldom_called(rare):
    shouted = F.udf(lambda road: f"ROAD {road}", "string")
    return rare.groupBy(shouted("road").alias("road")).agg(F.count("*").alias("cars"), F.max("id").alias("latest"))


for shape in (
    top_level_function,
    instance_of_a_class,
    constants_at_the_top,
    module_beside_the_job,
    import_inside_a_function,
    decorator_and_package,
    lambda_and_partial,
    closure_over_locals,
    dataclass_and_named_tuple,
    broadcast_variable,
    registered_for_sql,
    seldom_called,
):
    job.sink(shape, us.sinks.parquet(f"out/compat/functions/{shape.name}"))
