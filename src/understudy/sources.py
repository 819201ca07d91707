"""Where rows come from.

A source cuts its rows into epochs. For each epoch it writes an **entry**, a small JSON value that says exactly
which rows the epoch holds, and the entry is safe on the standby before the epoch is sent anywhere. So after a
crash the very same epochs are read again, and a drill can replay a whole run from its entries.

``rate`` and ``folder`` run in the host itself, without Spark. ``spark`` takes any function that returns a
``spark.readStream`` DataFrame; what it reads cannot be asked for again by entry, so its rows are preserved: sent
to the standby before anyone downstream sees them.

To read from elsewhere, derive from ``Source`` in a package of your own, and pass its object to ``job.source``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from understudy.cut_times import without_time
from understudy.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Entry = dict[str, Any]


class Cursor(Protocol):
    """A source being read."""

    def take(self, elapsed_s: float) -> Entry:
        """Decide what the next epoch holds, ``elapsed_s`` after the one before. The entry, as JSON, is safe on a second
        host before it is read; it may hold no rows."""
        ...

    def read(self, entry: Entry) -> pa.Table:
        """Exactly the rows that an entry names, today or after any number of crashes, on any host."""
        ...


class Source(ABC):
    """A source that the host reads by itself. Objects travel with the job file to every host: keep names and settings
    in them, and open connections in ``open``."""

    @abstractmethod
    def arrow_schema(self) -> pa.Schema:
        """Of every table that is read."""

    @abstractmethod
    def open(self, entries: list[Entry]) -> Cursor:
        """Go on after ``entries``, the entries so far, oldest first."""


# -- rate ---------------------------------------------------------------------------------------------------------

RATE_SCHEMA = pa.schema([("id", pa.int64()), ("road", pa.int64()), ("speed", pa.float64())])
_EPOCH_ROWS_MAX = 5_000_000  # one epoch must fit in memory many times over; beyond, rows wait for the next epoch


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: a good 64-bit hash of each element, in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def generate_rows(first: int, count: int, *, keys: int, seed: int = 0) -> pa.Table:
    """Rows ``first`` to ``first + count - 1``; each depends on its id and the seed alone.

    Speeds are multiples of 1/4, so that sums and means are exact whatever the order of addition, and two copies
    of a stage agree to the bit.
    """
    ids = np.arange(first, first + count, dtype=np.int64)
    salt = (seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    bits = _mix(ids.astype(np.uint64) + np.uint64(salt))
    road = ((bits >> np.uint64(32)) * np.uint64(keys)) >> np.uint64(32)  # multiply-shift: far cheaper than modulo
    speed = (bits & np.uint64(0x1FF)).astype(np.float64)
    speed *= 0.25
    columns = [pa.array(ids), pa.array(road.view(np.int64)), pa.array(speed)]
    return pa.Table.from_arrays(columns, schema=RATE_SCHEMA)


@dataclass(frozen=True)
class RateSource(Source):
    rows_per_second: float | None
    keys: int
    seed: int
    rows_per_epoch: int | None

    def arrow_schema(self) -> pa.Schema:
        return RATE_SCHEMA

    def open(self, entries: list[Entry]) -> Cursor:
        return _RateCursor(self, next_id=entries[-1]["first"] + entries[-1]["count"] if entries else 0)


class _RateCursor:
    def __init__(self, source: RateSource, *, next_id: int) -> None:
        self._source = source
        self._next_id = next_id
        self._owed = 0.0

    def take(self, elapsed_s: float) -> Entry:
        source = self._source
        if source.rows_per_second is None:
            count = source.rows_per_epoch or 1_000_000
        else:
            self._owed += source.rows_per_second * elapsed_s
            count = min(int(self._owed), source.rows_per_epoch or _EPOCH_ROWS_MAX)
            self._owed -= count
        entry = {"first": self._next_id, "count": count}
        self._next_id += count
        return entry

    def read(self, entry: Entry) -> pa.Table:
        return generate_rows(entry["first"], entry["count"], keys=self._source.keys, seed=self._source.seed)


def rate(
    rows_per_second: float | None = 1000, *, keys: int = 100, seed: int = 0, rows_per_epoch: int | None = None
) -> RateSource:
    """Car positions made up at a steady rate: ``id``, ``road`` (0 … keys-1) and ``speed``.

    ``rows_per_second=None`` produces ``rows_per_epoch`` rows (default one million) as fast as they are taken.
    """
    if rows_per_second is not None and not 0 < rows_per_second < float("inf"):
        raise JobError(f"rate(rows_per_second={rows_per_second}): must be positive, or None for no limit")
    if keys < 1 or keys >= 1 << 32:
        raise JobError(f"rate(keys={keys}): must be between 1 and 4294967295")
    if rows_per_epoch is not None and not 0 < rows_per_epoch <= _EPOCH_ROWS_MAX:
        raise JobError(f"rate(rows_per_epoch={rows_per_epoch}): must be between 1 and {_EPOCH_ROWS_MAX}")
    return RateSource(rows_per_second, keys, seed, rows_per_epoch)


# -- folder -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FolderSource(Source):
    path: str
    format: str
    schema: pa.Schema = field(compare=False)
    files_per_epoch: int = 100

    def arrow_schema(self) -> pa.Schema:
        return self.schema

    def open(self, entries: list[Entry]) -> Cursor:
        return _FolderCursor(self, seen={name for entry in entries for name in entry["files"]})


class _FolderCursor:
    def __init__(self, source: FolderSource, *, seen: set[str]) -> None:
        self._source = source
        self._seen = seen

    def take(self, elapsed_s: float) -> Entry:
        with os.scandir(self._source.path) as listing:
            fresh = [(f.stat().st_mtime_ns, f.name) for f in listing if f.is_file() and _is_data(f.name, self._seen)]
        names = [name for _, name in sorted(fresh)[: self._source.files_per_epoch]]
        self._seen.update(names)
        return {"files": names}

    def read(self, entry: Entry) -> pa.Table:
        if not entry["files"]:
            return self._source.schema.empty_table()
        import pyarrow.dataset as pads

        paths = [str(Path(self._source.path, name)) for name in entry["files"]]
        return pads.dataset(paths, schema=self._source.schema, format=self._source.format).to_table()


def _is_data(name: str, seen: set[str]) -> bool:
    return not name.startswith((".", "_")) and name not in seen


def folder(
    path: str | os.PathLike[str],
    *,
    format: str = "parquet",
    schema: pa.Schema | None = None,
    files_per_epoch: int = 100,
) -> FolderSource:
    """Every file that appears in a folder, once, oldest first. Put files there by renaming them into place.

    Without ``schema`` (a pyarrow schema) it is read from the first file that is there already.
    """
    where = os.path.abspath(path)
    if format not in ("parquet", "json", "csv", "arrow"):
        raise JobError(f"folder(format={format!r}): use 'parquet', 'json', 'csv' or 'arrow'")
    if files_per_epoch < 1:
        raise JobError(f"folder(files_per_epoch={files_per_epoch}): must be at least 1")
    if not os.path.isdir(where):
        raise JobError(f"folder({where!r}): there is no such folder; create it first")
    if schema is None:
        import pyarrow.dataset as pads

        with os.scandir(where) as listing:
            names = sorted(f.name for f in listing if f.is_file() and _is_data(f.name, set()))
        if not names:
            raise JobError(f"folder({where!r}) is empty, so its columns are unknown; pass schema=pa.schema(...)")
        schema = pads.dataset(os.path.join(where, names[0]), format=format).schema
    return FolderSource(where, format, schema, files_per_epoch)


# -- spark --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SparkSource:
    function: Callable[[SparkSession], DataFrame]


def spark(function: Callable[[SparkSession], DataFrame]) -> SparkSource:
    """Any Structured Streaming source: ``function(spark)`` returns a ``spark.readStream`` DataFrame (Kafka, …)."""
    if not callable(function):
        raise JobError("spark(function): pass a function that takes a SparkSession and returns a streaming DataFrame")
    return SparkSource(function)


# -- recorded -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedSource(Source):
    """Epochs that a drill recorded from a Spark source, one Arrow file each, for its replay."""

    path: str

    def arrow_schema(self) -> pa.Schema:
        return without_time(self._read("0.arrow")).schema

    def open(self, entries: list[Entry]) -> Cursor:
        return self

    def take(self, elapsed_s: float) -> Entry:
        raise NotImplementedError("a recording is only replayed")

    def read(self, entry: Entry) -> pa.Table:
        return self._read(entry["file"])

    def _read(self, name: str) -> pa.Table:
        with pa.memory_map(str(Path(self.path, name))) as file:
            return pa.ipc.open_file(file).read_all()

    def entries(self) -> list[Entry]:
        count = len(list(Path(self.path).glob("*.arrow")))
        return [{"file": f"{epoch}.arrow"} for epoch in range(count)]


AnySource = Source | SparkSource
