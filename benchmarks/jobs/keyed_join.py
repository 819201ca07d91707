"""The join per key of Jacques-Silva et al. 2009, Section 5.2, on Spark and fed as fast as it takes its input: 50 keys
in a window of 1,024 rows each, 600 keys on the other side, $KEYED_ROWS rows of each in an epoch."""

import os
from dataclasses import dataclass

import numpy as np

import understudy as us
from understudy.lab.spade_join import first_stream, second_stream

ROWS = int(os.environ.get("KEYED_ROWS", "1000"))
MAKE = {"first": (first_stream, 50), "second": (second_stream, 600)}


@dataclass(frozen=True)
class Stream(us.sources.Source):
    which: str

    def arrow_schema(self):
        return self.rows(0, 0).schema

    def rows(self, number, count):
        make, keys = MAKE[self.which]
        return make(np.random.default_rng(number), count, keys)

    def open(self, entries):
        return Cursor(self, len(entries))


class Cursor:
    def __init__(self, stream, number):
        self.stream, self.number = stream, number

    def take(self, elapsed_s):
        self.number += 1
        return {"number": self.number}

    def read(self, entry):
        return self.stream.rows(entry["number"], ROWS)


job = us.Job("keyed", epoch="1ms", ha=us.none)
first = job.source("first", Stream("first"), host="h1")
second = job.source("second", Stream("second"), host="h1")
pairs = job.join(
    first, second, on="k", left=us.rows(1024, per="k", group=64), right=us.rows(0), engine="spark", name="pairs",
    host="h1", standbys=["h2"],
)
job.sink(pairs, us.sinks.parquet("out/pairs"))
