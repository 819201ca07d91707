"""What a user has without Understudy: a plain Structured Streaming job, killed and restarted cold.

A supervisor runs the job (this file with `--child`) as a subprocess, waits for its steady state, SIGKILLs
the whole process tree (driver, JVM, workers), starts it again at once on the same checkpoint, and takes the
time from the kill to the first output file of the new run.

The job is favoured where there was a choice. Its source is Spark's own JVM `rate` source, so no Python worker
has to start; the settings are those Understudy uses for its own stages; a batch that is merely repeated after
the restart counts as output. `rate` counts in whole seconds, so in steady state the job writes one file per
second even though the trigger fires every 500 ms; a restart finds a backlog and writes as soon as it can.

    python benchmarks/plain_failover.py [--kills 3] [--keys 1000] [--rows-per-s 3000] [--work DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# "A stage on Spark" in the design: what made small batches cheap there is given to the baseline as well.
SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
JVM_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
TRIGGER_S = 0.5
STEADY_BATCHES = 8  # files a run must have written before it is killed: past the slow first batches of a cold JVM
RATE_PERIOD_S = 1.0  # the `rate` source hands out whole seconds; the kill falls anywhere in one such period
PHASE_TIMEOUT_S = 120.0  # a cold start takes 10 to 25 s on 2 cores; beyond this the job is broken, not slow
MARKER = "UNDERSTUDY_BASELINE_RUN"  # environment variable by which a run's processes are recognised


# -- processes -----------------------------------------------------------------------------------------------


class Child:
    """A Python script run as a subprocess that can be ended with everything it started.

    The script must call `die_with_parent()` first. It gets a session of its own, so that Ctrl-C reaches the
    supervisor only. The caller must call `end()`.
    """

    def __init__(self, args: list[str], *, work: Path, log: Path, python_path: list[str] | None = None) -> None:
        work.mkdir(parents=True, exist_ok=True)
        (work / "tmp").mkdir(exist_ok=True)
        self.log = log
        self.marker = uuid.uuid4().hex
        self._killed: list[psutil.Process] = []
        env = dict(os.environ)
        env[MARKER] = self.marker
        env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable  # else workers may run another Python
        env["TMPDIR"] = env["SPARK_LOCAL_DIRS"] = str(work / "tmp")
        env["PYTHONUNBUFFERED"] = "1"
        inherited = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
        env["PYTHONPATH"] = os.pathsep.join([*(python_path or []), *inherited])
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, *args],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=work,
                env=env,
                start_new_session=True,
            )

    def kill(self) -> float:
        """SIGKILL the whole tree; return the `time.time()` just before the first signal."""
        try:
            root = psutil.Process(self.process.pid)
            tree = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            tree = []
        self._killed = tree
        killed_at = time.time()
        for p in tree:
            try:
                p.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait()  # the supervisor's own notice of the death
        return killed_at

    def end(self) -> None:
        """Kill what is left: the tree, and what was forked while that was being killed. Idempotent."""
        if self.process.poll() is None:
            self.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        stray = [p for p in psutil.process_iter() if _environment(p).get(MARKER) == self.marker]
        for p in stray:
            try:
                p.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs([*self._killed, *stray], timeout=10)

    def require_alive(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"the job ended by itself ({self.process.returncode}):\n{self.log_tail()}")

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def die_with_parent() -> None:
    """In the child: a supervisor that is gone, however it went, closes our stdin, and we end our tree."""

    def watch() -> None:
        sys.stdin.buffer.read()
        for p in psutil.Process().children(recursive=True):
            try:
                p.kill()
            except psutil.NoSuchProcess:
                pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def settings(work: Path, *, jvm_flags: str) -> dict[str, str]:
    """Spark's settings for a job in `work`. What a killed JVM leaves behind is left there, not in /tmp."""
    return {
        **SETTINGS,
        "spark.driver.extraJavaOptions": f"{jvm_flags} -Djava.io.tmpdir={work / 'tmp'}",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
    }


# -- the job -------------------------------------------------------------------------------------------------


def child(*, run: int, keys: int, rows_per_s: int, work: Path) -> None:
    """The plain job. It never ends by itself."""
    die_with_parent()
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    builder = SparkSession.builder.master("local[2]").appName("plain-failover")
    for name, value in settings(work, jvm_flags=JVM_FLAGS).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    out = work / "out"

    def write(batch: DataFrame, batch_id: int) -> None:
        name = f"{run:04d}-{batch_id:08d}.parquet"
        pq.write_table(batch.toArrow(), out / (name + ".tmp"))
        os.rename(out / (name + ".tmp"), out / name)

    rows = spark.readStream.format("rate").option("rowsPerSecond", rows_per_s).load()
    result = (
        rows.withColumn("key", F.col("value") % keys)
        .groupBy("key")
        .agg(F.avg("value").alias("mean"), F.count("*").alias("count"))
    )
    query = (
        result.writeStream.outputMode("update")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(processingTime=f"{int(TRIGGER_S * 1000)} milliseconds")
        .foreachBatch(write)
        .start()
    )
    query.awaitTermination()


# -- the supervisor ------------------------------------------------------------------------------------------


def cold_restart(
    kills: int = 3,
    *,
    keys: int = 1000,
    rows_per_s: int = 3000,
    work: Path,
    on_progress: Callable[[str], None] | None = None,
) -> list[float]:
    """Seconds from SIGKILL to the first output file of the restarted job, one per kill.

    `work` is a folder for the checkpoint, the output and the job's logs; its `plain_failover` subfolder is
    replaced. `on_progress` is called with one line of text per step. Raises RuntimeError when the job ends by
    itself, when it does not get going within PHASE_TIMEOUT_S, or when its output turns out to be wrong.
    """
    if kills < 1:
        raise ValueError(f"kills must be at least 1, not {kills}")
    tell = on_progress or (lambda line: None)
    work = Path(work).resolve() / "plain_failover"
    shutil.rmtree(work, ignore_errors=True)
    (work / "out").mkdir(parents=True)
    children: list[Child] = []

    def start() -> Child:
        run = len(children)
        args = [str(Path(__file__).resolve()), "--child", "--run", str(run), "--keys", str(keys)]
        args += ["--rows-per-s", str(rows_per_s), "--work", str(work)]
        children.append(Child(args, work=work, log=work / f"run{run}.log"))
        return children[-1]

    seconds: list[float] = []
    try:
        job = start()
        _wait_for_files(work, job, run=0, count=1)
        for number in range(1, kills + 1):
            _wait_for_files(work, job, run=number - 1, count=STEADY_BATCHES)
            # Killing on sight of a file would always hit the gap between a batch's output and its commit, so
            # the kills are spread evenly over the period instead.
            time.sleep((number - 0.5) / kills * RATE_PERIOD_S)
            job.require_alive()
            killed_at = job.kill()
            job = start()
            first = _wait_for_files(work, job, run=number, count=1)[0]
            seconds.append(first.stat().st_mtime - killed_at)
            tell(f"kill {number} of {kills}: {seconds[-1]:.2f} s to the first new output ({first.name})")
        _wait_for_files(work, job, run=kills, count=2)
    finally:
        for started in children:
            started.end()
    checked = _check(work / "out", keys=keys)
    tell(f"output checked: {checked} rows, each counted once across {kills} restarts")
    return seconds


def _wait_for_files(work: Path, job: Child, *, run: int, count: int) -> list[Path]:
    """The first files of a run in order of their batches, once there are `count`."""
    deadline = time.monotonic() + PHASE_TIMEOUT_S
    while time.monotonic() < deadline:
        files = sorted((work / "out").glob(f"{run:04d}-*.parquet"))
        if len(files) >= count:
            return files
        job.require_alive()
        time.sleep(0.05)  # coarse, to leave the CPU to the job: the times come from the files, not from this loop
    raise RuntimeError(f"run {run} wrote fewer than {count} files in {PHASE_TIMEOUT_S:.0f} s:\n{job.log_tail()}")


def _check(out: Path, *, keys: int) -> int:
    """Raise unless the last results are those of the rows 0, 1, 2, ... each taken once; return how many."""
    tables = [pq.read_table(f, partitioning=None) for f in sorted(out.glob("*.parquet"))]
    table = pa.concat_tables(tables)
    last = table.group_by("key").aggregate([("count", "max"), ("mean", "max")])  # both only grow
    count, key = last["count_max"], last["key"]
    # Key k holds the values k, k + keys, k + 2 keys, ...: their mean follows from their number.
    expected = pc.add(key, pc.multiply(pc.subtract(pc.cast(count, pa.float64()), 1.0), keys / 2))
    wrong = pc.sum(pc.greater(pc.abs(pc.subtract(last["mean_max"], expected)), 1e-6)).as_py() or 0
    spread = pc.max(count).as_py() - pc.min(count).as_py()
    if wrong or spread > 1 or len(last) != keys:
        raise RuntimeError(f"wrong output in {out}: {wrong} bad means, counts {spread} apart, {len(last)} keys")
    return int(pc.sum(count).as_py())


def main() -> None:
    parser = argparse.ArgumentParser(description="Cold restart of a plain Structured Streaming job.")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--rows-per-s", type=int, default=3000)
    parser.add_argument("--work", type=Path, help="where to put files (a temporary folder)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--run", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(run=args.run, keys=args.keys, rows_per_s=args.rows_per_s, work=args.work)
        return
    with tempfile.TemporaryDirectory(prefix="plain-failover-") as scratch:
        seconds = cold_restart(
            args.kills,
            keys=args.keys,
            rows_per_s=args.rows_per_s,
            work=args.work or Path(scratch),
            on_progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
    print(
        json.dumps(
            {
                "benchmark": "plain_failover",
                "kills": args.kills,
                "keys": args.keys,
                "rows_per_s": args.rows_per_s,
                "kill_to_first_output_s": [round(s, 3) for s in seconds],
            }
        )
    )


if __name__ == "__main__":
    main()
