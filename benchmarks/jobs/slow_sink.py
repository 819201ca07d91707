"""A source at full speed, a stage that passes everything on, and a sink that takes a second for every epoch."""

import time

import understudy as us

job = us.Job("slow-sink", epoch="1ms")
positions = job.source("positions", us.sources.rate(rows_per_second=None, keys=1000, rows_per_epoch=500_000), host="h1")


@job.stage(positions, host="h2")
def everything(positions):
    return positions.where("speed >= 0")


job.sink(everything, us.sinks.foreach_epoch(lambda df, epoch: time.sleep(1)))
