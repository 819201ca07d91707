"""A chain whose streams are wide and whose state is small, as in Gu et al. 2009, so that what a policy sends shows.
$FIRST_POLICY names the policy of the first unit, $POLICY that of the last. They are on four hosts, so that whoever
reads, primary or standby, reads from another one: what stays on a host crosses no network, and is not counted."""

import os

from pyspark.sql import functions as F

import understudy as us

first, last = (eval(os.environ.get(name, "us.PassiveStandby()"), {"us": us}) for name in ("FIRST_POLICY", "POLICY"))
job = us.Job("policies", epoch="500ms")
positions = job.source("positions", us.sources.rate(rows_per_second=3000, keys=20), host="h1", standbys=["h3"])


@job.stage(positions, host="h2", standbys=["h3"], ha=first)
def wide(positions):
    more = {f"speed{i}": F.col("speed") * i for i in range(12)}
    return positions.withColumns({"at": F.timestamp_millis(F.col("id")), **more})


@job.stage(wide, host="h4", standbys=["h1"], ha=last)
def windows(wide):
    return wide.withWatermark("at", "1 second").groupBy(F.window("at", "1 second"), "road").agg(F.avg("speed11"))


job.sink(windows, us.sinks.parquet("out/policies"))
