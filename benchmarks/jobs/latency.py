"""Rows that come as files, a chain of one or three stages, the last with state: what `make bench-latency` measures."""

import os

import pyarrow as pa
from pyspark.sql import functions as F

import understudy as us

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.int64())])

job = us.Job("latency", epoch=os.environ.get("LATENCY_EPOCH", "300ms"))
rows = job.source("rows", us.sources.folder(os.environ["LATENCY_ROWS"], schema=SCHEMA), host="h1", standbys=["h2"])
last = rows
if os.environ.get("LATENCY_STAGES") == "3":

    @job.stage(rows, host="h2", standbys=["h1"])
    def kept(rows):
        return rows.where("key >= 0")

    @job.stage(kept, host="h1", standbys=["h2"])
    def last(kept):
        return kept.withColumn("twice", F.col("key") * 2)


@job.stage(last, host="h2", standbys=["h1"])
def counts(rows):
    return rows.groupBy("key").agg(F.count("*").alias("rows"), F.max("id").alias("newest"))


job.sink(counts, us.sinks.parquet(os.environ.get("LATENCY_OUT", "out/latency")))
