"""`make bench-latency`: from a row's being there to its result being durable, against plain Structured Streaming.

A process puts a small file into a folder all the time. The same stateful query reads it, run by plain Structured
Streaming as fast as it can, and by Understudy with a passive standby. Plain Spark has every setting that Understudy
gives itself, its file system included. All in one run; a row's time is that of the first result that counts it.

``plain_ms``, ``one_stage_ms``, ``chain3_ms``: medians over rows; ``ratio``: one stage against plain;
``short_epoch_ratio``: an epoch of 50 ms against the best; ``beat_ratio``: time between results at full demand, against
plain; ``batch_ratio``: a batch of this code against one of the code before (``--before COMMIT``).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common import BEFORE, JOBS, code_of, console, save
from plain_failover import Child, die_with_parent
from understudy.cli import FAST_START, interrupt_on_sigterm

FILE_EVERY_S, ROWS_PER_FILE, KEYS = 0.02, 10, 20
WARM_S = 10.0
"""Results of this time after everything runs do not count: the JVM still compiles."""
EPOCHS = ("50ms", "150ms", "300ms")
ROUNDS = 2
"""How often each is measured, in turn. The better counts: other work on the machine only ever adds."""


class Feeder(threading.Thread):
    """Puts rows into a folder and remembers when each was there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.over = folder, threading.Event()
        self.there_at: list[float] = []
        folder.mkdir(parents=True)
        (folder.parent / "new").mkdir()

    def run(self) -> None:
        due = time.monotonic()
        while not self.over.is_set():
            first = len(self.there_at) * ROWS_PER_FILE
            ids = np.arange(first, first + ROWS_PER_FILE)
            new = self.folder.parent / "new" / f"{len(self.there_at):08d}.parquet"
            pq.write_table(pa.table({"id": ids, "key": ids % KEYS}), new)
            new.rename(self.folder / new.name)
            self.there_at.append(time.time())
            due += FILE_EVERY_S
            self.over.wait(max(0.0, due - time.monotonic()))


def judge(out: Path, there_at: list[float], since: float) -> dict[str, float]:
    """Latency of rows that were there after ``since``, and the time between results, from what a sink wrote."""
    done, newest = [], []
    for path in sorted(out.glob("epoch=*/part-*")):
        table = pq.read_table(path, partitioning=None)
        if len(table):
            done.append(path.stat().st_ctime)
            newest.append(max(table["newest"].to_pylist()))
    upto = np.maximum.accumulate(np.array(newest))
    files = np.arange(len(there_at))
    where = np.searchsorted(upto, files * ROWS_PER_FILE + ROWS_PER_FILE - 1)
    times = np.array(there_at)
    counted = (where < len(done)) & (times > since)
    took = np.array(done)[where[counted]] - times[counted]
    beats = np.diff([t for t in done if t > since])
    return {
        "latency_ms": round(float(np.median(took)) * 1000, 1),
        "newest_ms": round(float(np.median([min(took[where[counted] == e]) for e in set(where[counted])])) * 1000, 1),
        "beat_ms": round(float(np.median(beats)) * 1000, 1),
        "results": len(beats),
    }


# -- what is measured, each in a process of its own ----------------------------------------------------------------


def plain(work: Path, seconds: float) -> dict[str, Any]:
    from pyspark.sql.pandas.types import from_arrow_schema

    from understudy import job_files
    from understudy.runtime.spark import start_session
    from understudy.sinks import FolderSink

    feeder = Feeder(work / "rows")
    os.environ["LATENCY_ROWS"] = str(feeder.folder)
    settings = {**FAST_START, "spark.python.daemon.module": "pyspark.daemon"}
    spark = start_session("plain", master="local[*]", settings=settings, local_dir=work / "spark", imports=work)
    stage = job_files.load(JOBS / "latency.py").stages["counts"]
    schema = from_arrow_schema(pa.schema([("id", pa.int64()), ("key", pa.int64())]))
    writer = FolderSink(str(work / "out"), "parquet").open(1, lambda: spark)
    frame = stage.function(spark.readStream.schema(schema).parquet(str(feeder.folder)))
    feeder.start()
    query = (
        frame.writeStream.outputMode("update")
        .foreachBatch(lambda rows, batch: writer.write(batch, rows.toArrow()))
        .option("checkpointLocation", str(work / "checkpoint"))
        .start()
    )
    while not (work / "out").exists() or not any((work / "out").glob("epoch=*")):
        time.sleep(0.1)
    time.sleep(WARM_S)
    since = time.time()
    time.sleep(seconds)
    batches = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]
    feeder.over.set()
    return {**judge(work / "out", feeder.there_at, since), "batch_ms": median(batches[-20:])}


def understudy(work: Path, seconds: float, epoch: str, stages: int) -> dict[str, Any]:
    from understudy.runtime.session import LocalRun

    feeder = Feeder(work / "rows")
    out = work / "out"
    os.environ.update(
        LATENCY_ROWS=str(feeder.folder), LATENCY_EPOCH=epoch, LATENCY_STAGES=str(stages), LATENCY_OUT=str(out)
    )
    run = LocalRun(JOBS / "latency.py", work / "state", hosts=2, fresh=True, settings=FAST_START)
    feeder.start()
    with run:
        run.coordinator.wait_until_running(armed=True)
        run.wait(WARM_S)
        since = time.time()
        run.wait(seconds)
        hosts = run.coordinator.status()["hosts"].values()
        batch_s = next(h["stages"]["counts"]["batch_s"] for h in hosts if "committed" in h["stages"].get("counts", {}))
        found = judge(out, feeder.there_at, since)
        feeder.over.set()
    return {**found, "batch_ms": round(batch_s * 1000, 1)}


def child(arguments: argparse.Namespace) -> None:
    die_with_parent()
    work = arguments.child.resolve()
    if arguments.kind == "plain":
        result = plain(work, arguments.seconds)
    else:
        result = understudy(work, arguments.seconds, arguments.epoch, arguments.stages)
    (work / "result.json").write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


# -- the benchmark --------------------------------------------------------------------------------------------------


def measure(work: Path, seconds: float, *words: str, source: Path | None = None) -> dict[str, Any]:
    """``source``: the code to measure, if it is not this one."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    arguments = [str(Path(__file__).resolve()), "--child", str(work), "--seconds", str(seconds), *words]
    child = Child(arguments, work=work / "work", log=work / "log", python_path=[str(source)] if source else None)
    try:
        if child.process.wait(240 + seconds) != 0:
            raise RuntimeError(f"{' '.join(words)} failed:\n{child.log_tail()}")
    finally:
        child.end()
    found: dict[str, Any] = json.loads((work / "result.json").read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--before", default=BEFORE, help="commit to compare a batch with; 'none' leaves that out")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kind", default="understudy", help=argparse.SUPPRESS)
    parser.add_argument("--epoch", default="50ms", help=argparse.SUPPRESS)
    parser.add_argument("--stages", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return 0
    interrupt_on_sigterm()
    work = (arguments.out / "bench-latency").resolve()
    found: dict[str, dict[str, Any]] = {}

    def one(name: str, *words: str, source: Path | None = None) -> None:
        with console.status(f"{name} ..."):
            measured = measure(work / name.replace(" ", "-"), arguments.seconds, *words, source=source)
        console.print(f"  {name}: {measured}", highlight=False)
        if name not in found or measured["latency_ms"] < found[name]["latency_ms"]:
            found[name] = measured

    if arguments.before != "none":
        one("before", "--epoch", "300ms", source=code_of(arguments.before, work / "code-before"))
    for _ in range(ROUNDS):
        one("plain", "--kind", "plain")
        for epoch in EPOCHS:
            one(f"one stage {epoch}", "--epoch", epoch)
    one("chain of 3", "--stages", "3")
    ours = {epoch: found[f"one stage {epoch}"] for epoch in EPOCHS}
    best = min(ours, key=lambda epoch: ours[epoch]["latency_ms"])
    plain = found["plain"]
    batch_ms = median(each["batch_ms"] for each in ours.values())
    result = {
        "plain_ms": plain["latency_ms"],
        "one_stage_ms": ours[best]["latency_ms"],
        "ratio": round(ours[best]["latency_ms"] / plain["latency_ms"], 3),
        "best_epoch": best,
        "short_epoch_ratio": round(ours["50ms"]["latency_ms"] / ours[best]["latency_ms"], 3),
        "chain3_ms": found["chain of 3"]["latency_ms"],
        "beat_ratio": round(ours["50ms"]["beat_ms"] / plain["beat_ms"], 3),
        "batch_ratio": round(batch_ms / found["before"]["batch_ms"], 3) if "before" in found else None,
        "all": found,
    }
    save("bench-latency", result, arguments.out)
    console.print({key: value for key, value in result.items() if key != "all"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
