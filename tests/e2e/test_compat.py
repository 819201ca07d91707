"""The PySpark that people write, killed in the middle, against plain Structured Streaming: `make compat`, quickly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from compat import good, shapes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

HELPERS = """
def tidy(name):
    return " ".join(name.split()).lower()
"""

JOB = '''
from dataclasses import dataclass

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import helpers
import understudy as us

spark = SparkSession.builder.appName("as in a script").getOrCreate()
FAST = F.col("speed") > 60
LIMITS = {0: 30, 1: 50}

@dataclass
class Car:
    road: int
    speed: float

    def label(self):
        return "fast" if self.speed > LIMITS.get(self.road, 70) else "slow"

def label(road, speed):
    return Car(road, speed).label()

@F.pandas_udf("double")
def halved(speed: pd.Series) -> pd.Series:
    return speed / 2

class Tally(StatefulProcessor):
    def init(self, handle):
        self.seen = handle.getValueState("seen", "n long")
        self.roads = handle.getMapState("roads", "road long", "n long")

    def handleInputRows(self, key, rows, timers):
        frames = list(rows)
        n = sum(map(len, frames)) + (self.seen.get()[0] if self.seen.exists() else 0)
        self.seen.update((n,))
        for road, count in pd.concat(frames).groupby("road").size().items():
            before = self.roads.getValue((int(road),))[0] if self.roads.containsKey((int(road),)) else 0
            self.roads.updateValue((int(road),), (before + int(count),))
        yield pd.DataFrame({"digit": [key[0]], "n": [n], "roads": [sum(1 for _ in self.roads.keys())]})

    def close(self):
        pass

job = us.Job("ordinary", epoch="1s")
positions = job.source("positions", us.sources.rate(rows_per_second=100, keys=9), host="h1", standbys=["h2"])
roads = spark.createDataFrame([(n, f"  Road   {n}") for n in range(9)], "road long, name string")

@job.stage(positions, host="h2", standbys=["h1"])
def labels(positions):
    labelled = F.udf(label, "string")
    return positions.groupBy(labelled("road", "speed").alias("label")).agg(F.sum(halved("speed")).alias("halves"))

@job.stage(positions, host="h2", standbys=["h1"])
def names(positions):
    tidied = F.udf(helpers.tidy, "string")
    named = positions.where(FAST).join(F.broadcast(roads), "road")
    return named.groupBy(tidied("name").alias("name")).count()

@job.stage(positions, host="h2", standbys=["h1"])
def tallies(positions):
    keyed = positions.withColumn("digit", F.col("id") % 5)
    return keyed.groupBy("digit").transformWithStateInPandas(
        Tally(), "digit long, n long, roads long", "Update", "None"
    )

@job.stage(positions, host="h2", standbys=["h1"], output_mode="append")
def windows(positions):
    at = F.timestamp_seconds(1_700_000_000 + F.col("id") / 50)
    timed = positions.withColumn("at", at).withWatermark("at", "1 second")
    timed.createOrReplaceTempView("timed")
    return timed.sparkSession.sql("SELECT window(at, '4 seconds') w, count(*) n FROM timed GROUP BY 1")

fast = job.aggregate(  # of the newest 30 rows of every road, on Spark
    positions, by="road", window=us.rows(30, group=8), engine="spark", name="fast",
    roles={"host": "h2", "standbys": ["h1"]},
    mean=("speed", "mean"), top=("speed", "max"), last=("id", "last"),
)

for stage in (labels, names, tallies, windows, fast):
    job.sink(stage, us.sinks.parquet("out/ordinary/" + stage.name))
'''


SHAPES = ("labels", "names", "tallies", "windows", "fast")


def test_ordinary_pyspark_is_the_same_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "ordinary.py").write_text(JOB)
    found = shapes(tmp_path / "ordinary.py", tmp_path / "out")
    assert {result["name"] for result in found} == {f"ordinary/{n}" for n in SHAPES}
    assert all(map(good, found)), found
