"""Every kind of stage under ``us.Checkpoint``: without state, with variables, with ``save`` and ``restore``, windows by
rows (of the whole stream and per key) and by time, a barrier; with $KINDS_SPARK also queries, and windows per key on
Spark. All of them are on one host, and what they read is made on another."""

import json
import os

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

import understudy as us

on_spark = bool(os.environ.get("KINDS_SPARK"))
saved = us.Checkpoint(every="3s" if on_spark else "1s")
at = {"host": "h2", "standbys": ["h3"]}
job = us.Job("kinds", epoch="500ms" if on_spark else "100ms")
trades = job.source("trades", us.sources.rate(rows_per_second=1000, keys=20), host="h1")
quotes = job.source("quotes", us.sources.rate(rows_per_second=100, keys=20, seed=7), host="h1")


@job.operator(trades, schema="id long, speed double", stateless=True, ha=saved, **at)
class Fast:
    def process(self, trades):
        return trades.filter(pc.greater(trades["speed"], 1)).select(["id", "speed"])


@job.operator(trades, schema="epochs long, rows long", ha=saved, **at)
class Counts:
    def __init__(self):
        self.epochs = self.rows = 0

    def process(self, trades):
        self.epochs, self.rows = self.epochs + 1, self.rows + trades.num_rows
        return pa.table({"epochs": [self.epochs], "rows": [self.rows]})


@job.operator(trades, schema="epochs long, total double", ha=saved, **at)
class Totals:
    """Saves what it is made of itself."""

    def __init__(self):
        self.epochs, self.total = 0, 0.0

    def process(self, trades):
        self.epochs, self.total = self.epochs + 1, self.total + (pc.sum(trades["speed"]).as_py() or 0.0)
        return pa.table({"epochs": [self.epochs], "total": [self.total]})

    def save(self):
        return json.dumps([self.epochs, self.total]).encode()

    def restore(self, saved):
        self.epochs, self.total = json.loads(saved)


pairs = job.join(
    trades, quotes, on="road", left=us.rows(2000, group=100), right=us.rows(0), name="pairs", ha=saved, **at
)
means = job.aggregate(
    trades, by="road", window=us.rows(100, per="road"), mean=("speed", "mean"), name="means", ha=saved, roles=at
)
recent = job.aggregate(
    trades, by="road", window=us.seconds(2, of="id"), mean=("speed", "mean"), name="recent", ha=saved, roles=at
)
both = job.barrier(trades, quotes, name="both", ha=saved, **at)
streams = [Fast, Counts, Totals, pairs, means, recent, both]

if on_spark:

    @job.stage(trades, ha=saved, **at)
    def slow(trades):
        return trades.where("speed < 1").select("id", "road", "speed")

    @job.stage(trades, output_mode="update", ha=saved, **at)
    def sums(trades):
        return trades.groupBy("road").agg(F.count("*").alias("n"))

    newest = job.aggregate(
        slow, by="road", window=us.rows(20, per="road"), mean=("speed", "mean"), name="newest", ha=saved, roles=at
    )
    streams += [slow, sums, newest]

for stream in streams:
    job.sink(stream, us.sinks.parquet(f"out/{stream.name}"))
