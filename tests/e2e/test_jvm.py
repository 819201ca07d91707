"""The Java that hosts add to Spark: the local disk (jvm/HostFileSystem.java), and state that is opened ahead of its
query (jvm/OpenedState.java)."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery

from understudy.runtime.opened import Stores
from understudy.runtime.spark_files import files_of_version

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def local(spark: SparkSession) -> tuple[Any, Any]:
    """Hadoop's file system for local paths, and its class of paths."""
    path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    return path("file:///").getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), path


def test_tables_are_linked_and_other_files_are_copied(spark: SparkSession, tmp_path: Path) -> None:
    files, path = local(spark)
    assert files.getClass().getName() == "understudy.HostFileSystem"
    for name, linked in (("1.sst", True), ("1.zip", False)):
        (tmp_path / name).write_bytes(b"rows")
        for number, copy in enumerate((files.copyToLocalFile, files.copyFromLocalFile)):
            there = tmp_path / f"there-{number}" / name
            copy(path(str(tmp_path / name)), path(str(there)))
            assert there.read_bytes() == b"rows"
            assert there.samefile(tmp_path / name) == linked, name


def test_a_copy_onto_what_is_there_already(spark: SparkSession, tmp_path: Path) -> None:
    files, path = local(spark)
    table, link, other = (tmp_path / name for name in ("1.sst", "2.sst", "3.sst"))
    table.write_bytes(b"rows")
    other.write_bytes(b"other")
    os.link(table, link)
    for target in (table, link, other):
        files.copyToLocalFile(path(str(table)), path(str(target)))
        assert target.read_bytes() == table.read_bytes() == b"rows"


def test_a_file_is_written_without_a_checksum_and_with_its_permissions(spark: SparkSession, tmp_path: Path) -> None:
    files, path = local(spark)
    out = files.create(path(str(tmp_path / "log")), True)
    out.write(7)
    out.close()
    assert [p.name for p in tmp_path.iterdir()] == ["log"]
    permission = spark.sparkContext._jvm.org.apache.hadoop.fs.permission.FsPermission  # type: ignore[union-attr]
    files.setPermission(path(str(tmp_path / "log")), permission("640"))
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o640


# -- state that is opened ahead of its query ------------------------------------------------------------------------

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot import tests


class Numbers(DataSource):
    """Ten rows a batch. While a file ``wait`` is in its folder, a reader is not made; nor is a batch that is not asked
    for by a file ``upto``."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "n long, at timestamp"

    def simpleStreamReader(self, schema: Any) -> Any:
        return NumbersReader(Path(self.options["folder"]))


class NumbersReader(SimpleDataSourceStreamReader):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        while (folder / "wait").exists():
            time.sleep(0.02)

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        from datetime import UTC, datetime, timedelta

        batch = start["batch"]
        if batch >= int((self.folder / "upto").read_text()):
            return iter([]), start
        began = datetime(2026, 1, 1, tzinfo=UTC)
        rows = [(n, began + timedelta(seconds=n)) for n in range(10 * batch, 10 * batch + 10)]
        return iter(rows), {"batch": batch + 1}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        return self.read(start)[0]

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(0)]


def late(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("at", "3 seconds")


STATES = {
    "an aggregate": ("update", lambda rows: rows.groupBy((F.col("n") % 7).alias("k")).agg(F.sum("n").alias("n"))),
    "duplicates": ("append", lambda rows: rows.select((F.col("n") % 135).alias("n")).dropDuplicates()),
    "windows": ("append", lambda rows: late(rows).groupBy(F.window("at", "4 seconds")).agg(F.sum("n").alias("n"))),
}


class Runs:
    """Queries of one DataFrame on folders of their own, and what came out of each."""

    def __init__(self, frame: DataFrame, mode: str, folder: Path) -> None:
        self.frame, self.mode, self.folder = frame, mode, folder
        self.out: dict[str, dict[int, list[Any]]] = {}

    def start(self, name: str) -> StreamingQuery:
        out = self.out.setdefault(name, {})

        def keep(rows: DataFrame, batch: int) -> None:
            out[batch] = sorted(map(str, rows.toArrow().to_pylist()))

        writer = self.frame.writeStream.outputMode(self.mode).foreachBatch(keep)
        return writer.option("checkpointLocation", str(self.folder / name)).start()

    def until(self, name: str, batch: int) -> None:
        (self.folder / "upto").write_text(str(batch + 1))
        limit = time.monotonic() + 60
        while not (self.folder / name / "commits" / str(batch)).exists():
            assert time.monotonic() < limit
            time.sleep(0.02)

    def bring(self, batch: int) -> None:
        """What a standby is sent: the files that ``second`` needs to go on after a batch of ``first``."""
        for name, path in files_of_version(self.folder / "first", batch).items():
            there = self.folder / "second" / name
            there.parent.mkdir(parents=True, exist_ok=True)
            if name == "metadata":
                there.write_text(json.dumps({"id": str(uuid.uuid4())})) if not there.exists() else None
            else:
                shutil.copy(path, there)


def loaded_in(query: StreamingQuery, batch: int) -> int:
    """How many stores a batch had to open from their files."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        for progress in query.recentProgress:
            if progress["batchId"] == batch:
                [state] = progress["stateOperators"]
                return int(state["customMetrics"]["rocksdbNumLoadedFromDfs"])
        time.sleep(0.02)
    raise TimeoutError(f"batch {batch} is not over")


@pytest.mark.parametrize("kind", STATES)
def test_the_first_batch_finds_its_state_open(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    mode, build = STATES[kind]
    spark.dataSource.register(Numbers)
    rows = spark.readStream.format("numbers").option("folder", str(tmp_path)).load()
    runs = Runs(build(rows), mode, tmp_path)
    first = runs.start("first")
    runs.until("first", 2)
    stores = Stores(spark, kind, first)
    runs.bring(2)
    (tmp_path / "wait").touch()
    second = runs.start("second")
    stores.open(second, 2)
    # Changes are replayed into what is open; a newer image is opened anew.
    for batch in (3, 5, 12):
        runs.until("first", batch)
        while batch > 10 and not list((tmp_path / "first").rglob("*.zip")):
            time.sleep(0.1)
        runs.bring(batch)
        stores.open(second, batch)
    runs.until("first", 15)
    (tmp_path / "wait").unlink()
    runs.until("second", 15)
    opened = loaded_in(second, 13)
    first.stop()
    second.stop()
    assert opened == 0, "it had to be opened after all"
    assert sorted(runs.out["second"]) == [13, 14, 15]
    assert all(runs.out["second"][batch] == runs.out["first"][batch] for batch in runs.out["second"])
    assert any(runs.out["second"].values())


def test_state_that_was_mended_is_opened_again(spark: SparkSession, tmp_path: Path) -> None:
    mode, build = STATES["an aggregate"]
    spark.dataSource.register(Numbers)
    runs = Runs(build(spark.readStream.format("numbers").option("folder", str(tmp_path)).load()), mode, tmp_path)
    first = runs.start("first")
    runs.until("first", 2)
    stores = Stores(spark, "mended", first)
    runs.bring(2)
    (tmp_path / "wait").touch()
    second = runs.start("second")
    stores.open(second, 2)
    stores.close(second)
    runs.until("first", 3)
    (tmp_path / "wait").unlink()
    runs.until("second", 3)
    opened = loaded_in(second, 3)
    first.stop()
    second.stop()
    assert opened > 0
    assert runs.out["second"] == {3: runs.out["first"][3]}
