"""Classes that Spark loads, recorded once, so that every later JVM maps them into memory instead of reading them.

Loading and checking some ten thousand classes is most of what a cold Spark does: with the record (Java's class data
sharing) a session starts in half the time, and so does the first batch of a query. `understudy prepare` makes it, and
`make setup` calls that. It belongs to one Java, one PySpark and one folder; for others Java would not take it. Without
it everything works, only slower.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from understudy.runtime.spark_jvm import JAR, java_says

_QUIET = "-Xlog:disable -Xlog:all=off"


def archive() -> Path:
    """Where the record for this Java and this PySpark is, or would be. It goes when the environment goes."""
    about = "|".join([java_says(), str(Path(pyspark.__file__).parent), pyspark.__version__])
    key = hashlib.sha256(about.encode() + JAR.read_bytes()).hexdigest()
    return Path(sys.prefix, "share", "understudy", f"classes-{key[:16]}.jsa")


def options() -> str:
    """What to tell a JVM, so that it uses the record, if there is one."""
    file = archive()
    return f'{_QUIET} -Xshare:auto "-XX:SharedArchiveFile={file}"' if file.is_file() else ""


def record() -> Path:
    """Run a few queries in a process of their own, and record what they load. Raises OSError or RuntimeError."""
    target = archive()
    target.parent.mkdir(parents=True, exist_ok=True)
    for old in target.parent.glob("classes-*.jsa"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="understudy-prepare-", dir=target.parent) as folder:
        made = Path(folder, "classes.jsa")
        command = [sys.executable, "-m", "understudy.runtime.class_archive", folder, str(made)]
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
        except subprocess.TimeoutExpired:
            raise RuntimeError("Spark's classes could not be recorded within ten minutes") from None
        if done.returncode != 0 or not made.is_file():
            raise RuntimeError(f"Spark's classes could not be recorded: {done.stderr[-2000:]}")
        made.rename(target)
    return target


def _rehearse(folder: Path, made: Path) -> None:
    """What hosts do: stateful queries with RocksDB, Python workers, Arrow, and a callback for every batch."""
    from pyspark import SparkContext
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from understudy.runtime.spark import start_session

    settings = {
        "spark.driver.extraJavaOptions": f'{_QUIET} -XX:+UseSerialGC "-XX:ArchiveClassesAtExit={made}"',
    }
    spark = start_session("prepare", master="local[*]", settings=settings, local_dir=folder / "spark", imports=folder)
    spark.dataSource.register(_numbers())
    rows = spark.readStream.format("understudy_numbers").load()
    timed = rows.withColumn("at", F.timestamp_seconds("n")).withWatermark("at", "1 second")
    twice = F.udf(lambda n: 2 * n, "long")
    frames: list[tuple[str, DataFrame]] = [
        ("update", rows.groupBy((F.col("n") % 3).alias("k")).agg(F.avg(twice("n")), F.count("*"))),
        ("append", timed.groupBy(F.window("at", "2 seconds")).count()),
        ("append", rows.where("n > 1").withColumn("m", F.col("n") + 1)),
    ]
    for number, (mode, frame) in enumerate(frames):
        query = (
            frame.writeStream.outputMode(mode)
            .foreachBatch(lambda batch, _: batch.toArrow())
            .option("checkpointLocation", str(folder / f"checkpoint-{number}"))
            .start()
        )
        while query.isActive and len(query.recentProgress) < 3:
            query.awaitTermination(1)
        query.stop()
    gateway = SparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.proc.stdin.close()  # the JVM ends by itself, and writes what it has loaded
    gateway.proc.wait()


def _numbers() -> type:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"n": 0}

        def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
            return {"n": start["n"] + 10}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition((start["n"], end["n"]))]

        def read(self, partition: InputPartition):  # type: ignore[no-untyped-def]
            import pyarrow as pa

            yield pa.record_batch({"n": pa.array(range(*partition.value), pa.int64())})

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "understudy_numbers"

        def schema(self) -> str:
            return "n long"

        def streamReader(self, schema: object) -> Reader:
            return Reader()

    return Numbers


if __name__ == "__main__":
    _rehearse(Path(sys.argv[1]), Path(sys.argv[2]))
