"""The job of Gu et al. 2009, Section 5, in PySpark: eight stages in a chain, in four units of two.

A stage hands every row on and keeps, for each of 20 keys, how many rows it saw and their sum, which it adds to its
output when they change: selectivity 1 (and 20 rows), and a state of 20 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import understudy as us
from understudy.core.policies.spelling import parse

KEYS = 20
UNITS = ("one", "two", "three", "four")
HOSTS = ("h1", "h2", "h3", "h1")
STANDBYS = ("h3", "h4", "h1", "h3")
"""Of the units, in order. The second unit, which is the one that fails, has its host and its standby's for itself; so
all its streams cross hosts, before and after a failure, and it can fail again when the first host has come back."""


def build(*, rows_per_s: float, epoch: str, policies: Sequence[str], sink: str = "out/gu") -> us.Job:
    """One policy per unit, in words; the source has its own, as all sources do."""
    job = us.Job("gu", epoch=epoch)
    source = us.sources.rate(rows_per_second=rows_per_s, keys=KEYS)
    stream = job.source("source", source, host=HOSTS[0], standbys=STANDBYS[0])
    for unit, host, standby, policy in zip(UNITS, HOSTS, STANDBYS, policies, strict=True):
        with job.unit(unit, ha=parse(policy), host=host, standbys=standby):
            for number in (1, 2):
                stage = job.stage(stream, name=f"{unit}{number}", output_mode="update")
                stream = stage(_pass_on(first=unit == UNITS[0] and number == 1))
    job.sink(stream, us.sinks.parquet(sink))
    return job


def _pass_on(*, first: bool) -> Callable[[Any], Any]:
    def pass_on(rows: Any) -> Any:
        from pyspark.sql import functions as F

        rows = rows if first else rows.where("not counted").drop("counted")
        sums = rows.groupBy("road").agg(F.count("*").alias("id"), F.sum("speed").alias("speed"))
        kept = rows.select("id", "road", "speed", F.lit(False).alias("counted"))
        return kept.unionByName(sums.select("id", "road", "speed", F.lit(True).alias("counted")))

    return pass_on
