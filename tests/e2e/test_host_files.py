"""The local disk as a host's Spark uses it (jvm/HostFileSystem.java)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

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
