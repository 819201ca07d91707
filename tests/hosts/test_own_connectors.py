"""A source and a sink of a user's own, in a package beside the job file: a database table that is read in ranges, and
one that is written exactly once."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path

import pytest

from understudy.errors import JobError
from understudy.runtime.session import LocalRun, wait_for

pytestmark = pytest.mark.timeout(120)

CONNECTORS = '''
import sqlite3
from dataclasses import dataclass

import pyarrow as pa
import understudy as us

SCHEMA = pa.schema([("id", pa.int64()), ("speed", pa.int64())])


@dataclass(frozen=True)
class TableSource(us.sources.Source):
    path: str

    def arrow_schema(self):
        return SCHEMA

    def open(self, entries):
        return Ranges(self.path, entries[-1]["upto"] if entries else 0)


class Ranges:
    """An entry is a range of ids: the same rows, whenever it is read."""

    def __init__(self, path, upto):
        self.path, self.upto = path, upto

    def query(self, text, *values):
        with sqlite3.connect(self.path, timeout=30) as database:
            return database.execute(text, values).fetchall()

    def take(self, elapsed_s):
        [(newest,)] = self.query("SELECT coalesce(max(id), 0) FROM cars")
        since, self.upto = self.upto, min(newest, self.upto + 50)
        return {"since": since, "upto": self.upto}

    def read(self, entry):
        rows = self.query("SELECT id, speed FROM cars WHERE id > ? AND id <= ?", entry["since"], entry["upto"])
        return pa.Table.from_arrays([pa.array([r[i] for r in rows], pa.int64()) for i in (0, 1)], schema=SCHEMA)


@dataclass(frozen=True)
class TableSink(us.sinks.Sink):
    """Exactly once: rows, epoch and generation are written in one transaction."""

    path: str

    def open(self, generation, spark):
        database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        database.execute("CREATE TABLE IF NOT EXISTS marks (generation, epoch)")
        database.execute("CREATE TABLE IF NOT EXISTS results (epoch, total)")
        if database.execute("SELECT count(*) FROM marks").fetchone() == (0,):
            database.execute("INSERT INTO marks VALUES (?, -1)", (generation,))
        database.execute("UPDATE marks SET generation = max(generation, ?)", (generation,))
        database.execute("COMMIT")
        database.close()
        return TableWriter(self.path, generation)

    def holds(self):
        try:
            [(count,)] = sqlite3.connect(self.path).execute("SELECT count(*) FROM results").fetchall()
        except sqlite3.Error:
            return None
        return f"{self.path} holds {count} results" if count else None

    def clear(self):
        with sqlite3.connect(self.path) as database:
            for table in ("marks", "results"):
                database.execute(f"DROP TABLE IF EXISTS {table}")


class TableWriter:
    def __init__(self, path, generation):
        self.path, self.generation = path, generation

    def write(self, epoch, table):
        database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        try:
            database.execute("BEGIN IMMEDIATE")
            [(generation, newest)] = database.execute("SELECT generation, epoch FROM marks").fetchall()
            if generation > self.generation:
                raise us.sinks.Fenced(f"generation {generation} writes")
            if epoch > newest:
                rows = [(epoch, total) for total in table["total"].to_pylist()]
                database.executemany("INSERT INTO results VALUES (?, ?)", rows)
                database.execute("UPDATE marks SET epoch = ?", (epoch,))
            database.execute("COMMIT")
        finally:
            database.close()
'''
JOB = """
import pyarrow as pa
import understudy as us
from connectors import TableSink, TableSource

job = us.Job("own", epoch="50ms", ha=us.PassiveStandby(every="100ms"))
cars = job.source("cars", TableSource({cars!r}), host="h1", standbys=["h2"])

@job.operator(cars, schema="total long", host="h2", standbys=["h1"])
class Total:
    def __init__(self):
        self.total = 0
    def process(self, cars):
        self.total += sum(cars["speed"].to_pylist())
        return pa.table({{"total": [self.total]}}) if cars.num_rows else None

job.sink(Total, TableSink({results!r}))
"""
ROWS = 3000


def test_nothing_is_lost_or_repeated_between_a_users_own_source_and_sink(tmp_path: Path) -> None:
    cars, results = tmp_path / "cars.db", tmp_path / "results.db"
    (tmp_path / "connectors.py").write_text(CONNECTORS)
    job = tmp_path / "job.py"
    job.write_text(JOB.format(cars=str(cars), results=str(results)))
    with sqlite3.connect(cars) as database:
        database.execute("CREATE TABLE cars (id INTEGER PRIMARY KEY, speed INTEGER)")
        database.executemany("INSERT INTO cars VALUES (?, ?)", [(i, i % 7) for i in range(1, ROWS + 1)])

    def totals() -> list[int]:
        try:
            found = sqlite3.connect(results, timeout=30).execute("SELECT total FROM results ORDER BY epoch").fetchall()
        except sqlite3.OperationalError:
            return []  # not made yet
        return [total for (total,) in found]

    expected = [sum(i % 7 for i in range(1, upto + 1)) for upto in range(50, ROWS + 1, 50)]
    with LocalRun(job, tmp_path / "state", hosts=3) as run:
        for stage, seen in (("Total", 10), ("cars", 30)):
            wait_for(lambda seen=seen: len(totals()) >= seen, 30, f"{seen} results")  # type: ignore[misc]
            run.wait(0)
            wait_for(lambda: all(u.ready for u in run.coordinator.failover.plan.units.values()), 30, "standbys")
            run.hosts.signal(run.host_of(stage), signal.SIGKILL)
        wait_for(lambda: len(totals()) >= len(expected), 30, "all results")
        run.wait(0.5)
        assert totals() == expected
    with pytest.raises(JobError, match="holds 60 results of another run; use --fresh"):
        LocalRun(job, tmp_path / "other", hosts=3)
