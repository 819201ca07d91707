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
        self.queries: dict[str, StreamingQuery] = {}

    def start(self, name: str) -> StreamingQuery:
        out = self.out.setdefault(name, {})

        def keep(rows: DataFrame, batch: int) -> None:
            out[batch] = sorted(map(str, rows.toArrow().to_pylist()))

        writer = self.frame.writeStream.outputMode(self.mode).foreachBatch(keep)
        self.queries[name] = writer.option("checkpointLocation", str(self.folder / name)).start()
        return self.queries[name]

    def until(self, name: str, batch: int) -> None:
        (self.folder / "new").write_text(str(batch + 1))
        (self.folder / "new").rename(self.folder / "upto")
        limit = time.monotonic() + 60
        while not (self.folder / name / "commits" / str(batch)).exists():
            assert self.queries[name].isActive, str(self.queries[name].exception())[-3000:]
            assert time.monotonic() < limit
            time.sleep(0.02)

    def bring(self, batch: int, source: str = "first", target: str = "second") -> tuple[int, list[str]]:
        """What a standby is sent: the files that ``target`` needs to go on after a batch of ``source``."""
        needed = files_of_version(self.folder / source, batch)
        for path in (self.folder / target).rglob("*"):
            if path.is_file() and str(path.relative_to(self.folder / target)) not in needed:
                path.unlink()
        for name, path in needed.items():
            there = self.folder / target / name
            there.parent.mkdir(parents=True, exist_ok=True)
            if name != "metadata":
                shutil.copy(path, there)
            elif not there.exists():
                there.write_text(json.dumps({"id": str(uuid.uuid4())}))
        return batch, list(needed)

    def at_the_door(self, spark: SparkSession) -> tuple[Stores, StreamingQuery]:
        """``first`` has run; ``second`` is held where its reader is made, with its state open after batch 2."""
        first = self.start("first")
        self.until("first", 2)
        stores = Stores(spark, "numbers", first, self.folder / "first")
        version = self.bring(2)
        (self.folder / "wait").touch()
        second = self.start("second")
        stores.open(second, version)
        return stores, second

    def image_of(self, name: str, after: int) -> None:
        """Wait until every partition of a state has been saved whole at a version after ``after``."""
        partitions = list((self.folder / name / "state" / "0").glob("[0-9]*"))
        while not all(any(int(path.stem) > after for path in where.glob("*.zip")) for where in partitions):
            time.sleep(0.1)


@pytest.fixture
def runs(spark: SparkSession, tmp_path: Path, kind: str) -> Iterator[Runs]:
    mode, build = STATES[kind]
    spark.dataSource.register(Numbers)
    rows = spark.readStream.format("numbers").option("folder", str(tmp_path)).load()
    yield Runs(build(rows), mode, tmp_path)
    (tmp_path / "wait").unlink(missing_ok=True)
    for query in spark.streams.active:
        query.stop()


@pytest.mark.parametrize("kind", STATES)
def test_the_first_batch_finds_its_state_open(spark: SparkSession, tmp_path: Path, runs: Runs) -> None:
    stores, second = runs.at_the_door(spark)
    for batch in (3, 5, 12):  # changes are replayed into what is open
        runs.until("first", batch)
        if batch == 12:
            stores.open(second, runs.bring(batch))
            runs.image_of("first", 5)  # and one that is brought as an image is opened anew, also at the same version
        stores.open(second, runs.bring(batch))
    runs.until("first", 30)
    for path in (tmp_path / "second" / "state").rglob("*"):
        if path.suffix in (".zip", ".changelog"):
            path.unlink()  # it could not be opened now
    (tmp_path / "wait").unlink()
    runs.until("second", 30)
    assert sorted(runs.out["second"]) == list(range(13, 31))
    assert all(runs.out["second"][batch] == runs.out["first"][batch] for batch in runs.out["second"])
    assert any(runs.out["second"].values())
    # What it has saved itself since then is whole, too.
    runs.image_of("second", 13)
    runs.bring(30, "second", "third")
    runs.start("third")
    runs.until("third", 31)
    runs.until("first", 31)
    assert runs.out["third"] == {31: runs.out["first"][31]}


@pytest.mark.parametrize("kind", ["an aggregate"])
def test_what_was_opened_is_closed_again(spark: SparkSession, tmp_path: Path, runs: Runs) -> None:
    stores, second = runs.at_the_door(spark)
    runs.until("first", 3)
    runs.bring(3)
    stores.close(second)
    (tmp_path / "wait").unlink()
    runs.until("first", 4)
    runs.until("second", 4)
    assert runs.out["second"] == {4: runs.out["first"][4]}


@pytest.mark.parametrize("kind", ["an aggregate"])
def test_changes_that_cannot_be_replayed(spark: SparkSession, tmp_path: Path, runs: Runs) -> None:
    stores, second = runs.at_the_door(spark)
    runs.until("first", 4)
    version = runs.bring(4)
    lost = next((tmp_path / "second").rglob("5.changelog"))
    kept = lost.read_bytes()
    lost.unlink()
    stores.open(second, version)  # says so, and leaves it to Spark
    lost.write_bytes(kept)
    runs.until("first", 5)
    (tmp_path / "wait").unlink()
    runs.until("second", 5)
    assert runs.out["second"] == {5: runs.out["first"][5]}
