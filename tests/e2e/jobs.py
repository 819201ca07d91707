"""Jobs for the end-to-end tests, as source text: each test writes the one it needs into its own folder."""

from pathlib import Path


def write_job(folder: Path, text: str, **values: object) -> Path:
    path = folder / "job.py"
    path.write_text(text.format(**{k: str(v) if isinstance(v, Path) else v for k, v in values.items()}))
    return path


HEAD = """
from pyspark.sql import functions as F
import understudy as us

job = us.Job("tested", epoch="300ms")
"""

RATE = (
    HEAD
    + """
positions = job.source("positions", us.sources.rate(rows_per_second=2000, keys=50), host="h1", standbys=["h2"])
"""
)

PAIR = (
    RATE
    + """
@job.stage(positions, host="h2", standbys=["h1"])
def speeds(positions):
    return positions.groupBy("road").agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))

job.sink(speeds, us.sinks.parquet({sink!r}))
"""
)

RARELY = (
    RATE
    + """
@job.stage(positions, host="h2", standbys=["h1"], ha=us.PassiveStandby(every="3s"))
def speeds(positions):
    return positions.groupBy("road").agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))

job.sink(speeds, us.sinks.parquet({sink!r}))
"""
)

THROWS = (
    RATE
    + """
@job.stage(positions, host="h2", standbys=["h1"])
def speeds(positions):
    bad = F.udf(lambda i: 1 + 0 * (1 // (5000 - i)) if {broken} else 1, "long")
    return positions.withColumn("one", bad("id")).groupBy("road").agg(F.sum("one").alias("n"))

job.sink(speeds, us.sinks.parquet({sink!r}))
"""
)

SPARKED = (
    HEAD
    + """
numbers = job.source("numbers", us.sources.spark(
    lambda spark: spark.readStream.schema("n long").parquet({files!r})), host="h1", standbys=["h2"])

@job.stage(numbers, host="h2", standbys=["h1"])
def counts(numbers):
    return numbers.groupBy((F.col("n") % 10).alias("digit")).agg(F.count("*").alias("c"))

job.sink(counts, us.sinks.json_lines({sink!r}))
"""
)

DIAMOND = (
    HEAD
    + """
numbers = job.source("numbers", us.sources.spark(
    lambda spark: spark.readStream.schema("n long").parquet({files!r})), host="h1", standbys=["h2"])

@job.stage(numbers, host="h2", standbys=["h1"])
def even(numbers):
    return numbers.where("n % 2 = 0")

@job.stage(numbers, host="h1", standbys=["h2"])
def odd(numbers):
    return numbers.where("n % 2 = 1")

@job.stage(even, odd, host="h2", standbys=["h1"])
def all_of_them(even, odd):
    return even.union(odd).groupBy((F.col("n") % 10).alias("digit")).agg(F.count("*").alias("c"))

job.sink(all_of_them, us.sinks.json_lines({sink!r}))
job.sink(even, us.sinks.parquet({other!r}), name="even-copy")
"""
)

EACH_ITS_OWN = (
    HEAD
    + """
positions = job.source("positions", us.sources.rate(rows_per_second=2000, keys=50), host="h1", standbys=["h2"])

with job.unit("moving", ha=us.ActiveStandby(delivery="eager")):
    @job.stage(positions, host="h2", standbys=["h1"])
    def moves(positions):
        return positions.where("speed > 1")

    @job.stage(moves)
    def kept(moves):
        return moves.where("road < 40")

@job.stage(kept, host="h3", standbys=["h4"], ha=us.Hybrid())
def speeds(kept):
    return kept.groupBy("road").agg(F.avg("speed").alias("mean"), F.count("*").alias("cars"))

with job.unit("pair", ha=us.PassiveStandby("synchronous", every="900ms", standbys=2)):
    @job.stage(speeds, host="h4", standbys=["h1"])
    def counts(speeds):
        return speeds.groupBy("cars").agg(F.count("*").alias("n"))

    @job.stage(counts)
    def many(counts):
        return counts.where("n > 1")

job.sink(many, us.sinks.parquet({sink!r}))
"""
)

REPLAYED = (
    RATE
    + """
@job.stage(positions, host="h1", standbys=["h2"])
def timed(positions):  # of a hundred rows, one is so late that its window is closed, and one just in time
    age_s = F.expr("CASE id % 100 WHEN 0 THEN 9 WHEN 50 THEN 2 ELSE 0 END")
    return positions.withColumn("at", F.timestamp_seconds(1700000000 + F.col("id") / 2000 - age_s))

@job.stage(timed, host="h2", ha=us.UpstreamBackup(ack_every="500ms"), output_mode="append")
def closed(timed):
    late = timed.withWatermark("at", "1 second").where("speed > 1")
    return late.groupBy(F.window("at", "2 seconds"), "road").agg(F.count("*").alias("cars"), F.sum("id").alias("ids"))

@job.stage(positions, host="h2", ha=us.UpstreamBackup())
def open(positions):  # its time is made inside of it, and jumps back now and then
    at = F.timestamp_seconds(1700000000 + F.col("id") / 2000 - F.expr("CASE WHEN id % 70 = 0 THEN 4 ELSE 0 END"))
    late = positions.withColumn("at", at).withWatermark("at", "500 milliseconds")
    return late.groupBy(F.window("at", "3 seconds", "1 second"), "road").agg(F.count("*").alias("cars"))

@job.stage(positions, host="h2", ha=us.UpstreamBackup())
def moving(positions):
    return positions.where("speed > 1")

@job.stage(moving, host="h1", standbys=["h2"])
def speeds(moving):
    return moving.groupBy("road").agg(F.count("*").alias("cars"))

job.sink(closed, us.sinks.parquet({sink!r}))
job.sink(open, us.sinks.parquet({other!r}))
job.sink(speeds, us.sinks.parquet({third!r}))
"""
)

NOTED = (
    RATE
    + """
import time
from pathlib import Path

@job.stage(positions, host="h2", ha=us.UpstreamBackup())
def open(positions):
    timed = positions.withColumn("at", F.timestamp_seconds(1700000000 + F.col("id") / 2000))
    windows = timed.withWatermark("at", "1 second").groupBy(F.window("at", "4 seconds"), "road")
    return windows.agg(F.count("*").alias("cars"))

def note(df, epoch):
    rows = sorted((r["window"]["start"].timestamp(), r["road"], r["cars"]) for r in df.collect())
    temporary = Path({notes!r}, f".{{epoch}}")
    temporary.write_text(str(rows))
    temporary.rename(Path({notes!r}, f"{{epoch}} {{time.time_ns()}}"))

job.sink(open, us.sinks.foreach_epoch(note))
"""
)

IN_ORDER = (
    RATE
    + """
@job.stage(positions, host="h1", ha=us.UpstreamBackup())
def timed(positions):
    return positions.withColumn("at", F.timestamp_seconds(1700000000 + F.col("id") / 2000))

@job.stage(timed, host="h2", ha=us.UpstreamBackup(), output_mode="append")
def closed(timed):
    windows = timed.withWatermark("at", "1 second").groupBy(F.window("at", "4 seconds"))
    return windows.agg(F.count("*").alias("cars"), F.sum("id").alias("ids"))

job.sink(closed, us.sinks.parquet({sink!r}))
"""
)

GOALS = (
    RATE
    + """
@job.stage(positions, host="h2", ha=us.auto(recovery_time="30s"))
def moving(positions):
    return positions.where("speed > 1").withColumn("at", F.timestamp_seconds(1700000000 + F.col("id") / 2000))

@job.stage(moving, host="h1", standbys=["h2"], ha=us.auto(recovery_time={within!r}, overhead=0.2))
def speeds(moving):
    return moving.groupBy("road").agg(F.count("*").alias("cars"))

@job.stage(moving, host="h2", standbys=["h1"])
def dice(moving):
    late = moving.withWatermark("at", "5 seconds").withColumn("die", F.rand())
    return late.groupBy(F.window("at", "10 seconds")).agg(F.max("die").alias("die"))

job.sink(speeds, us.sinks.parquet({sink!r}))
job.sink(dice, us.sinks.parquet({other!r}))
"""
)

PREPARED = (
    RATE
    + """
import pyarrow as pa

def totals(positions):
    return positions.groupBy("road").agg(F.sum("speed").alias("speed"), F.count("*").alias("cars"))

@job.operator(positions, schema="road long, most double, epochs long", prepare=totals, host="h2", standbys=["h1"])
class Most:
    def __init__(self):
        self.most, self.epochs = {{}}, 0

    def process(self, totals):
        self.epochs += 1
        for road, speed in zip(totals["road"].to_pylist(), totals["speed"].to_pylist()):
            self.most[road] = max(speed, self.most.get(road, 0.0)) + 1
        roads = sorted(self.most)
        return pa.table({{"road": roads, "most": [self.most[r] for r in roads], "epochs": [self.epochs] * len(roads)}})

@job.stage(Most, host="h1", standbys=["h2"])
def newest(most):
    return most.groupBy("road").agg(F.max("most").alias("most"), F.max("epochs").alias("epochs"))

job.sink(newest, us.sinks.parquet({sink!r}))
"""
)
