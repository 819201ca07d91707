"""Where results go.

A folder sink keeps one sub-folder per epoch, ``epoch=000000000012/part-0.parquet``, which Spark and others read as
a table partitioned by ``epoch``. A writer that begins adds nothing to epochs up to the newest that is there, and a
writer of an older generation is refused, so neither a takeover nor a primary that wakes up again can add a row, and
what was lost without protection stays a gap: it is not filled after what follows it was read.

To write elsewhere, derive from ``Sink`` in a package of your own, and pass its object to ``job.sink``.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Fenced(Exception):
    """A newer generation of the unit writes to this sink."""


class Writer(Protocol):
    """Writes one stream's epochs, for one generation of the unit that makes them.

    ``write`` is called once per epoch, in order, and must return only when the epoch is durable: it is acknowledged
    then, and may be forgotten everywhere else. When it throws, or its host dies in the middle, nobody knows whether the
    epoch was written: another writer, of a newer generation, is given it again, and some before it. A sink is *exactly
    once* when its writers, in one step with writing, refuse to go on once a newer generation has opened it (raise
    ``Fenced``), and skip epochs up to the newest that is there. Without that it is at least once, by epoch number.
    """

    def write(self, epoch: int, table: pa.Table) -> None: ...


class Sink(ABC):
    """Where a stream goes. Objects travel with the job file to every host: keep names and settings in them, and open
    connections in ``open``."""

    needs_spark: ClassVar[bool] = False
    """It calls ``spark`` when it is opened or written to."""

    @abstractmethod
    def open(self, generation: int, spark: Callable[[], SparkSession]) -> Writer:
        """On the host that makes the stream, at the start and after every takeover; a later generation is higher."""

    def clear(self) -> None:  # noqa: B027 - many have nothing to forget
        """Forget everything written: the job starts over (``--fresh``)."""

    def holds(self) -> str | None:
        """What is there of another run, if anything: a job that starts from nothing is then refused, since epochs that
        are there count as written."""
        return None

    def try_on(self, table: pa.Table) -> None:  # noqa: B027 - many take any
        """Raises when a table of this kind, which has no rows, cannot be written."""


@dataclass(frozen=True)
class FolderSink(Sink):
    path: str
    format: str

    def open(self, generation: int, spark: Callable[[], SparkSession]) -> Writer:
        return FolderWriter(Path(self.path), self.format, generation)

    def try_on(self, table: pa.Table) -> None:
        _write(table, self.format, io.BytesIO())

    def holds(self) -> str | None:
        return f"{self.path} holds epochs" if any(Path(self.path).glob("epoch=*")) else None

    def clear(self) -> None:
        root = Path(self.path)
        for entry in root.glob("epoch=*"):
            shutil.rmtree(entry)
        (root / "_generation").unlink(missing_ok=True)


class FolderWriter:
    def __init__(self, root: Path, format: str, generation: int) -> None:
        self._root, self._format, self._generation = root, format, generation
        (root / "_tmp").mkdir(parents=True, exist_ok=True)
        with self._locked():
            marker = root / "_generation"
            if self._newest_generation() < generation:
                temporary = root / "_tmp" / uuid.uuid4().hex
                temporary.write_text(str(generation))
                temporary.rename(marker)
            self._newest = self._newest_epoch()

    def write(self, epoch: int, table: pa.Table) -> None:
        if epoch <= self._newest:
            with self._locked():
                self._require_newest_generation()
            return
        folder = self._root / f"epoch={epoch:012d}"
        final = folder / f"part-0.{self._format}"
        temporary = self._root / "_tmp" / uuid.uuid4().hex
        try:
            with open(temporary, "wb") as file:
                _write(table, self._format, file)
                file.flush()
                os.fsync(file.fileno())
            with self._locked():
                self._require_newest_generation()
                if not final.exists():
                    folder.mkdir(exist_ok=True)
                    os.rename(temporary, final)
            self._newest = epoch
        finally:
            temporary.unlink(missing_ok=True)

    def _require_newest_generation(self) -> None:
        newest = self._newest_generation()
        if newest > self._generation:
            raise Fenced(f"{self._root} is written by generation {newest}, this is {self._generation}")

    def _newest_epoch(self) -> int:
        """A folder without a file is of a writer that died on the way: it does not count."""
        for folder in sorted(self._root.glob("epoch=*"), reverse=True):
            if any(folder.glob("part-*")):
                return int(folder.name.partition("=")[2])
        return -1

    def _newest_generation(self) -> int:
        try:
            return int((self._root / "_generation").read_text())
        except FileNotFoundError:
            return 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Check and rename are one step against other writers. The lock dies with its process."""
        with open(self._root / "_tmp" / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _write(table: pa.Table, format: str, file: Any) -> None:
    if format == "parquet":
        pq.write_table(table, file)
    else:
        _write_json(table, file)


def _write_json(table: pa.Table, file: Any) -> None:
    """Through Python's own encoder: pandas' rounds floats, and Arrow has none."""
    for batch in table.to_batches(max_chunksize=10_000):
        file.write("".join(json.dumps(row, default=str) + "\n" for row in batch.to_pylist()).encode())


@dataclass(frozen=True)
class ConsoleSink(Sink):
    rows: int

    def open(self, generation: int, spark: Callable[[], SparkSession]) -> Writer:
        return _ConsoleWriter(self.rows)


class _ConsoleWriter:
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def write(self, epoch: int, table: pa.Table) -> None:
        head = table.slice(0, self._rows).to_pandas().to_string(index=False)
        print(f"-- epoch {epoch}: {table.num_rows} rows\n{head}", flush=True)


@dataclass(frozen=True)
class ForeachSink(Sink):
    needs_spark: ClassVar[bool] = True
    function: Callable[[DataFrame, int], Any]

    def open(self, generation: int, spark: Callable[[], SparkSession]) -> Writer:
        return _ForeachWriter(self.function, spark)


class _ForeachWriter:
    def __init__(self, function: Callable[[DataFrame, int], Any], spark: Callable[[], SparkSession]) -> None:
        self._function, self._spark = function, spark

    def write(self, epoch: int, table: pa.Table) -> None:
        self._function(self._spark().createDataFrame(table), epoch)


def parquet(path: str | os.PathLike[str]) -> FolderSink:
    """A folder of Parquet files, one per epoch; exactly once."""
    return FolderSink(os.path.abspath(path), "parquet")


def json_lines(path: str | os.PathLike[str]) -> FolderSink:
    """A folder of newline-delimited JSON files, one per epoch; exactly once."""
    return FolderSink(os.path.abspath(path), "json")


def console(rows: int = 10) -> ConsoleSink:
    """Print the first ``rows`` rows of every epoch where the host runs."""
    return ConsoleSink(rows)


def foreach_epoch(function: Callable[[DataFrame, int], Any]) -> ForeachSink:
    """Call ``function(df, epoch)`` for every epoch, in order, at least once: after a takeover the newest epochs may
    come again with the same number and rows, so make it idempotent by ``epoch``."""
    if not callable(function):
        raise JobError("foreach_epoch(function): pass a function of (df, epoch)")
    return ForeachSink(function)
