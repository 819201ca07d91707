"""A job's own functions run by plain Structured Streaming over epochs that were recorded: what a run must agree with.

One recorded epoch becomes one file, and one file one micro-batch, because update mode, watermarks and timers depend on
how a stream is cut. Every stage that has a sink is one query; stages between it and the sources are part of it.

    python benchmarks/plain_job.py JOB.py --entries ENTRIES.json --out DIR [--at-once 3]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from plain_failover import Child, die_with_parent
from understudy import job_files
from understudy.cli import FAST_START
from understudy.runtime.arrow_types import collect
from understudy.runtime.spark import start_session
from understudy.sinks import FolderSink

PLAIN = {
    **FAST_START,
    # What Understudy sets for its own machinery, set back.
    "spark.python.daemon.module": "pyspark.daemon",
    # Results do not depend on it, and one takes half as long.
    "spark.sql.shuffle.partitions": "1",
}


def reference(job_file: Path, entries: dict[str, list[Any]], out: Path, *, timeout_s: float = 900.0) -> None:
    """Run it in a process of its own; ``out`` gets a folder per sink. Raises RuntimeError when it fails."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    out = out.resolve()
    (out / "entries.json").write_text(json.dumps(entries))
    arguments = [Path(__file__).resolve(), job_file.resolve(), "--entries", out / "entries.json", "--out", out]
    child = Child(list(map(str, arguments)), work=out / "work", log=out / "plain.log")
    try:
        if child.process.wait(timeout_s) != 0:
            raise RuntimeError(f"plain Structured Streaming failed on {job_file}:\n{child.log_tail()}")
    finally:
        child.end()


def write_epochs(source: Any, entries: list[Any], folder: Path) -> None:
    """A file per epoch. Spark reads files in the order of their times."""
    folder.mkdir(parents=True)
    cursor = source.open([])
    for epoch, entry in enumerate(entries):
        path = folder / f"{epoch:06d}.parquet"
        pq.write_table(cursor.read(entry), path)
        os.utime(path, (1_700_000_000 + epoch, 1_700_000_000 + epoch))


def run(job_file: Path, entries: dict[str, list[Any]], out: Path, at_once: int) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    work = out / "work"
    imports = work / "imports"
    job_files.link_imports(job_file.parent.resolve(), job_files.pack(job_file), imports)
    sys.path.insert(0, str(imports))
    spark = start_session("plain", master="local[*]", settings=PLAIN, local_dir=work / "spark", imports=imports)
    job = job_files.load(job_file)
    epochs = min(map(len, entries.values()))
    for name in entries:
        write_epochs(job.stages[name].source, entries[name][:epochs], work / "epochs" / name)

    def frame(name: str) -> Any:
        stage = job.stages[name]
        if stage.function is not None:
            return stage.function(*map(frame, stage.inputs))
        reader = spark.readStream.schema(from_arrow_schema(stage.source.arrow_schema())).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(work / "epochs" / name))

    def one(name: str) -> None:
        stage = job.stages[name]
        (sink,) = stage.sinks
        writer = FolderSink(str(out / sink), "parquet").open(1, lambda: spark)
        refused: Exception | None = None
        for mode in [stage.output_mode] if stage.output_mode else ["update", "append"]:
            plan = frames[name].writeStream.outputMode(mode).trigger(availableNow=True)
            plan = plan.foreachBatch(lambda rows, batch: writer.write(batch, collect(rows)))
            try:
                query = plan.option("checkpointLocation", str(work / "checkpoints" / name)).start()
            except Exception as error:
                refused = error
                continue
            query.awaitTermination()
            print(f"{name}: done", flush=True)
            return
        raise RuntimeError(f"{name}: {refused}")

    # Here, as a script does: Spark's active session is that of the thread which made it.
    frames = {name: frame(name) for name, stage in job.stages.items() if stage.sinks}
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, frames))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--entries", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=3)
    arguments = parser.parse_args()
    die_with_parent()
    run(arguments.job, json.loads(arguments.entries.read_text()), arguments.out, arguments.at_once)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
