"""What a user has without Understudy: rows per second through one plain Structured Streaming query.

The query is `groupBy("road").agg(avg("speed"), count("*"))`, fed by a Python data source of two partitions
that yields Arrow record batches, and drained by `foreachBatch` + `toArrow()`: the way a stage of Understudy
is fed and drained, but with no queue, no copy and no epoch protocol around it. It runs in a subprocess, so
that the JVM is a fresh one.

    python benchmarks/plain_throughput.py [--rows-per-epoch 1000000] [--epochs 10] [--store memory] ...
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

try:
    from plain_failover import Child, die_with_parent, settings  # run as a script, or in a Spark worker
except ModuleNotFoundError:
    from benchmarks.plain_failover import Child, die_with_parent, settings

GENERATOR = "understudy.sources:generate_rows"
SEED = 1
PARTITIONS = 2
WARM_UP_EPOCHS = 15  # the JIT is still gaining before: epochs of 1M rows went 1.4, ... 0.50, ... 0.42 s
# Rows per Arrow batch. One run each of 16, 64, 256 and 1024 Ki gave 2.1, 2.1, 2.3 and 2.3M rows/s.
BATCH_ROWS = 256 * 1024
TIMEOUT_S = 600.0  # for the whole run
JVM_FLAGS = "-XX:+UseSerialGC"  # default tiering: stopping at C1 is for fast starts, not for throughput
STORES = {
    "memory": {},  # Spark's default: HDFSBackedStateStoreProvider
    "rocksdb": {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
}


# -- the source ----------------------------------------------------------------------------------------------


def load_generator(name: str) -> Callable[..., pa.Table]:
    """`package.module:function`, of the signature `(first, count, *, keys, seed) -> pyarrow.Table`."""
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(f"generator must look like 'package.module:function', not {name!r}")
    return getattr(importlib.import_module(module), function)


class Slice(InputPartition):
    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count


class RowsReader(DataSourceStreamReader):
    """An endless source, always one epoch ahead. Holds only strings: Spark pickles it, and makes two."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = {k: options[k] for k in ("rows", "keys", "seed", "generator")}

    def initialOffset(self) -> dict[str, int]:
        return {"epoch": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"epoch": start["epoch"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Slice]:
        rows = int(self.options["rows"])
        first, count = start["epoch"] * rows, (end["epoch"] - start["epoch"]) * rows
        cuts = [first + count * i // PARTITIONS for i in range(PARTITIONS + 1)]
        return [Slice(a, b - a) for a, b in pairwise(cuts) if a < b]

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        generate = load_generator(self.options["generator"])
        keys, seed = int(self.options["keys"]), int(self.options["seed"])
        table = generate(partition.first, partition.count, keys=keys, seed=seed)
        yield from table.to_batches(max_chunksize=BATCH_ROWS)


class RowsSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "plain_rows"

    def schema(self) -> str:
        return self.options["schema"]

    def streamReader(self, schema: Any) -> RowsReader:
        return RowsReader(self.options)


# -- the job -------------------------------------------------------------------------------------------------


def child(*, rows_per_epoch: int, epochs: int, keys: int, store: str, generator: str, work: Path) -> None:
    """Run the query for the warm-up and the measured epochs, then write `result.json` and leave."""
    die_with_parent()
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    from plain_throughput import RowsSource as source  # not __main__'s: workers must import the class

    sample = load_generator(generator)(0, 1000, keys=keys, seed=SEED)
    schema = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in from_arrow_schema(sample.schema))

    builder = SparkSession.builder.master("local[2]").appName("plain-throughput")
    for name, value in {**settings(work, jvm_flags=JVM_FLAGS), **STORES[store]}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(source)

    total = WARM_UP_EPOCHS + epochs
    done_at: list[float] = []
    cpu_at: list[tuple[float, float]] = []  # at the start and the end of the clock
    outputs: list[pa.Table] = []
    finished = threading.Event()

    def sink(batch: DataFrame, batch_id: int) -> None:
        if len(done_at) < total:
            outputs.append(batch.toArrow())
            done_at.append(time.perf_counter())
            if len(done_at) in (WARM_UP_EPOCHS, total):
                cpu_at.append(_cpu_s())
        if len(done_at) == total:
            finished.set()

    rows = (
        spark.readStream.format("plain_rows")
        .options(schema=schema, rows=rows_per_epoch, keys=keys, seed=SEED, generator=generator)
        .load()
    )
    query = (
        rows.groupBy("road")
        .agg(F.avg("speed").alias("speed"), F.count("*").alias("count"))
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(work / "checkpoint"))
        .foreachBatch(sink)
        .start()
    )
    while not finished.wait(0.2):
        if query.exception() is not None:
            raise query.exception()

    seconds = done_at[total - 1] - done_at[WARM_UP_EPOCHS - 1]
    _check(outputs, rows=total * rows_per_epoch)
    own_s, all_s = (b - a for a, b in zip(*cpu_at))
    result = {
        "rows_per_s": epochs * rows_per_epoch / seconds,
        "cpu_s_per_million_rows": round(own_s / (epochs * rows_per_epoch / 1e6), 3),
        "cores_used_by_others": round(max(0.0, all_s - own_s) / seconds, 2),
        "epoch_s": [round(b - a, 3) for a, b in pairwise(done_at)],
        "roads": outputs[-1].num_rows,
    }
    (work / "result.json").write_text(json.dumps(result))
    os._exit(0)  # spark.stop() may hang in the middle of a batch; the supervisor ends the JVM


def _cpu_s() -> tuple[float, float]:
    """CPU seconds so far of this job's processes, and of the whole machine: a busy one must show."""
    own = 0.0
    me = psutil.Process()
    for p in [me, *me.children(recursive=True)]:
        try:
            t = p.cpu_times()
            own += t.user + t.system
        except psutil.NoSuchProcess:
            pass
    machine = psutil.cpu_times()
    return own, sum(machine) - machine.idle - getattr(machine, "iowait", 0.0) - getattr(machine, "guest", 0.0)


def _check(outputs: list[pa.Table], *, rows: int) -> None:
    """Raise unless the last count per road adds up to every row that was read."""
    counts = pa.concat_tables(outputs).group_by("road").aggregate([("count", "max")])["count_max"]  # they only grow
    counted = pc.sum(counts).as_py()
    if counted != rows:
        raise RuntimeError(f"wrong output: {counted} rows counted of {rows}")


# -- the supervisor ------------------------------------------------------------------------------------------


def plain_run(
    *,
    rows_per_epoch: int,
    epochs: int,
    keys: int,
    work: Path,
    generator: str = GENERATOR,
    store: str = "rocksdb",
) -> dict[str, Any]:
    """As `plain_rows_per_s`, with what explains the figure: each epoch's seconds (warm-up too), CPU, load."""
    if store not in STORES:
        raise ValueError(f"store must be one of {sorted(STORES)}, not {store!r}")
    if rows_per_epoch < 1 or epochs < 1:
        raise ValueError("rows_per_epoch and epochs must be at least 1")
    load_generator(generator)  # a wrong name should fail here, not in a worker
    here = Path(__file__).resolve().parent
    Path(work).mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="plain_throughput-", dir=Path(work).resolve()))
    args = [str(here / "plain_throughput.py"), "--child", "--work", str(work), "--generator", generator]
    args += [
        "--rows-per-epoch",
        str(rows_per_epoch),
        "--epochs",
        str(epochs),
        "--keys",
        str(keys),
        "--store",
        store,
    ]
    # Everything importable here is importable there, in the driver as in the workers.
    python_path = [str(here), str(here.parent / "src"), *(p for p in sys.path if p)]
    job = Child(args, work=work, log=work / "job.log", python_path=python_path)
    try:
        job.process.wait(timeout=TIMEOUT_S)
        if job.process.returncode != 0:
            raise RuntimeError(f"the query failed ({job.process.returncode}):\n{job.log_tail()}")
        return json.loads((work / "result.json").read_text())
    finally:
        job.end()


def plain_rows_per_s(
    *, rows_per_epoch: int, epochs: int, keys: int, work: Path, generator: str, store: str = "rocksdb"
) -> float:
    """Rows per second over `epochs` epochs, between `foreachBatch` completions, after a warm-up.

    `generator` is `package.module:function`, importable here, with the signature of
    `understudy.sources.generate_rows`; making the rows is part of what is timed. `store` is `rocksdb` (with
    changelog checkpointing) or `memory`. `work` gets a new subfolder with the checkpoint, the log and the
    result. Raises RuntimeError when the query fails or its counts do not add up, subprocess.TimeoutExpired
    after TIMEOUT_S.
    """
    run = plain_run(
        rows_per_epoch=rows_per_epoch, epochs=epochs, keys=keys, work=work, generator=generator, store=store
    )
    return run["rows_per_s"]


def main() -> None:
    sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "src"))
    parser = argparse.ArgumentParser(description="Throughput of a plain Structured Streaming query.")
    parser.add_argument("--rows-per-epoch", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--store", choices=sorted(STORES), default="rocksdb")
    parser.add_argument("--generator", default=GENERATOR, help="package.module:function")
    parser.add_argument("--work", type=Path, help="where to put files (a temporary folder)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    parameters = {
        "rows_per_epoch": args.rows_per_epoch,
        "epochs": args.epochs,
        "keys": args.keys,
        "store": args.store,
        "generator": args.generator,
    }
    if args.child:
        try:
            child(**parameters, work=args.work)
        except BaseException:
            traceback.print_exc()
        os._exit(1)  # with a JVM attached and a thread reading stdin, an orderly exit may hang
    with tempfile.TemporaryDirectory(prefix="plain-throughput-") as scratch:
        result = plain_run(**parameters, work=args.work or Path(scratch))
    result["rows_per_s"] = round(result["rows_per_s"])
    print(json.dumps({"benchmark": "plain_throughput", **parameters, **result}))


if __name__ == "__main__":
    main()
