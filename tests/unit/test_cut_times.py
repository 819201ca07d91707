"""The time at which an epoch was cut: fixed once, kept, and carried with the rows wherever they go."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import understudy as us
from understudy import job_files
from understudy.cut_times import (
    KEY,
    entry_time,
    newest,
    plain_entry,
    time_of,
    timed_entry,
    with_time,
    without_time,
)
from understudy.runtime import source as source_module
from understudy.runtime import wire
from understudy.runtime.host import Host, HostConfig
from understudy.runtime.messages import Options, Peek, TakeJob
from understudy.runtime.operator_process import OperatorProcess
from understudy.runtime.payloads import Payloads
from understudy.runtime.source import EntryLog, SourceStage
from understudy.runtime.spark_source import SparkSourceStage
from understudy.runtime.stage import FRESH, RunningStage
from understudy.runtime.streams import SinkWriter, write_table
from understudy.runtime.wire import Peer, Server, Service, table_stream
from understudy.sources import RecordedSource

ROWS = pa.table({"road": pa.array([1, 2], pa.int64())})
NONE = ROWS.slice(0, 0)
SECOND = 1_000_000


# -- what carries it ------------------------------------------------------------------------------------------------


def test_it_is_put_on_and_taken_off_and_nothing_else_is() -> None:
    of_a_file = ROWS.replace_schema_metadata({b"pandas": b"{}"})
    timed = with_time(of_a_file, 5)
    assert time_of(timed.schema) == 5 and timed.schema.metadata[b"pandas"] == b"{}"
    assert time_of(with_time(timed, 7).schema) == 7
    assert without_time(timed).schema.metadata == with_time(timed, None).schema.metadata == {b"pandas": b"{}"}
    assert without_time(ROWS) is ROWS and without_time(with_time(ROWS, 1)).schema.metadata is None
    assert time_of(ROWS.schema) is None


def test_several_inputs_go_by_the_newest() -> None:
    assert newest([with_time(NONE, 5), with_time(ROWS, 9), ROWS, None]) == 9
    assert newest([ROWS, None]) is None and newest([]) is None


@pytest.mark.parametrize("entry", [{"first": 0, "count": 5}, {}, "e0", None, [1]])
def test_an_entry_is_its_sources_own(entry: Any) -> None:
    assert plain_entry(timed_entry(entry, 5)) == plain_entry(entry) == entry
    assert (entry_time(timed_entry(entry, 5)), entry_time(entry)) == (5, None)


@pytest.mark.parametrize("table", [ROWS, NONE])
def test_it_is_there_after_the_disk_and_the_wire(table: pa.Table, tmp_path: Path) -> None:
    table = with_time(table, 42)
    spilling = Payloads(tmp_path / "queues", memory_bytes_max=0 if table.num_rows else -1)
    spilling.put("out:a", 0, table)  # type: ignore[arg-type]
    assert list((tmp_path / "queues").iterdir())
    assert time_of(spilling.get("out:a", 0).schema) == 42  # type: ignore[arg-type, union-attr]
    write_table(tmp_path / "0.arrow", table)  # as in checkpoints
    with pa.memory_map(str(tmp_path / "0.arrow")) as file:
        assert time_of(pa.ipc.open_file(file).read_all().schema) == 42
    server = Server("127.0.0.1:0", "t", Service({}, {Peek: lambda get: table_stream(table)}))
    try:
        reply, found = Peer(server.address, "t").get(Peek("a"))
    finally:
        server.shutdown()
    assert not reply.refused and time_of(found.schema) == 42 and found == table


def test_nothing_else_goes_over_the_wire_with_it() -> None:
    noted = with_time(ROWS, 42).replace_schema_metadata({KEY: b"42", b"pandas": b"long", wire.HEADER_KEY: b"stale"})
    found: list[Any] = []
    stream = wire.flight.RecordBatchStream
    try:
        wire.flight.RecordBatchStream = found.append
        table_stream(noted)
        table_stream(ROWS)
    finally:
        wire.flight.RecordBatchStream = stream
    assert set(found[0].schema.metadata) == {KEY, wire.HEADER_KEY}
    assert set(found[1].schema.metadata) == {wire.HEADER_KEY}


# -- who fixes it ---------------------------------------------------------------------------------------------------

JOB = """
import understudy as us

job = us.Job("cut", epoch="50ms")
positions = job.source("positions", us.sources.rate(rows_per_second=100, keys=3))
other = job.source("other", us.sources.rate(rows_per_second=100, keys=3))


@job.operator(positions, other, schema="road long", name="Both")
class Both:
    def process(self, positions, other):
        return positions.select(["road"])


stream = job.aggregate(Both, by="road", window={window}, n=("*", "count"), name="counts", schema={schema!r})
job.sink(stream, us.sinks.console())
"""
TIMED, NOT_TIMED = "us.seconds(20, slide=5)", "us.rows(5)"


def taken(folder: Path, window: str) -> Host:
    file = folder / "job.py"
    file.write_text(JOB.format(window=window, schema=None))
    host = Host(HostConfig("h1", folder / "h1", "127.0.0.1:1", "token", lazy_spark=True))
    host.take_job(TakeJob("1", file.name, str(folder), 0.5, 3, {}, Options()), job_files.pack(file))
    return host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = taken(tmp_path, TIMED)
    yield found
    found.server.shutdown()


@pytest.fixture
def plain_host(tmp_path: Path) -> Iterator[Host]:
    """Of a job that does not want to know."""
    found = taken(tmp_path, NOT_TIMED)
    yield found
    found.server.shutdown()


def source(host: Host, folder: Path) -> SourceStage:
    return SourceStage(host, "positions", unit="positions", generation=1, log=EntryLog(folder / "entries.jsonl"))  # type: ignore[arg-type]


def clock(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    times = [int(second * 1e9) for second in seconds]
    monkeypatch.setattr(source_module, "time", SimpleNamespace(**vars(time) | {"time_ns": lambda: times.pop(0)}))


def test_a_source_fixes_it_and_it_never_goes_back(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 10, 12, 11, 13)
    first = source(host, tmp_path)
    first.log.append([first._cut(0.1) for _ in range(3)])
    assert [entry_time(entry) for entry in first.log.entries] == [10 * SECOND, 12 * SECOND, 12 * SECOND]
    assert [plain_entry(entry)["count"] for entry in first.log.entries] == [10, 10, 10]
    again = source(host, tmp_path)  # whoever has its log
    found = [again.regenerate(epoch) for epoch in range(3)]  # type: ignore[arg-type]
    assert [time_of(table.schema) for table in found if table] == [10 * SECOND, 12 * SECOND, 12 * SECOND]
    assert found[2] is not None and found[2]["id"].to_pylist() == list(range(20, 30)), "its source knows nothing of it"
    assert entry_time(again._cut(0.1)) == 13 * SECOND


def test_a_clock_that_is_behind_does_not_turn_time_back(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, 10, 3)
    first = source(host, tmp_path)
    first.log.append([first._cut(0.1)])
    assert entry_time(source(host, tmp_path)._cut(0.1)) == 10 * SECOND


def test_a_job_that_does_not_want_to_know_does_not_pay(plain_host: Host, host: Host, tmp_path: Path) -> None:
    assert host.job.needs_cut_times and not plain_host.job.needs_cut_times
    cutting = source(plain_host, tmp_path)
    entry = cutting._cut(0.1)
    assert entry == {"first": 0, "count": 10} and cutting._read(entry).schema.metadata is None
    late = timed_entry(entry, 5)  # the job file was edited while the job was stopped
    assert cutting._read(late) == cutting._read(entry) and cutting._read(late).schema.metadata is None


def spark_source(folder: Path, *, timed: bool = True) -> Any:
    (folder / "state").mkdir(exist_ok=True)
    made = SimpleNamespace(host=SimpleNamespace(job=SimpleNamespace(needs_cut_times=timed)), state=folder / "state")
    made._cut_folder = made.state / "cut"
    return made


def test_a_source_that_spark_reads_keeps_it_where_its_standby_finds_it(tmp_path: Path) -> None:
    stage = spark_source(tmp_path)
    assert SparkSourceStage._cut(spark_source(tmp_path, timed=False), ROWS) is ROWS
    begin = time.time_ns() // 1000
    first = time_of(SparkSourceStage._cut(stage, ROWS).schema)
    assert first is not None and first >= begin
    (kept,) = (tmp_path / "state" / "cut").iterdir()
    assert int(kept.name) == first
    ahead = first + 3600 * SECOND  # of a host whose clock was ahead
    kept.rename(kept.with_name(str(ahead)))
    assert time_of(SparkSourceStage._cut(stage, NONE).schema) == ahead
    assert [path.name for path in (tmp_path / "state" / "cut").iterdir()] == [str(ahead)]


def test_a_recording_has_it_and_its_columns_have_not(tmp_path: Path) -> None:
    write_table(tmp_path / "0.arrow", with_time(ROWS, 42))
    recorded = RecordedSource(str(tmp_path))
    (entry,) = recorded.entries()
    assert time_of(recorded.read(entry).schema) == 42
    assert recorded.arrow_schema().metadata is None


# -- on its way -----------------------------------------------------------------------------------------------------


def both(host: Host, folder: Path) -> RunningStage:
    folders = {"folder": folder / "s", "state": folder / "s" / "state"}
    return RunningStage(host, "Both", unit="Both", generation=1, **folders, **FRESH)  # type: ignore[arg-type]


def test_what_a_stage_makes_has_the_newest_of_its_inputs(host: Host, tmp_path: Path) -> None:
    stage = both(host, tmp_path)
    for name, table in (("positions", with_time(ROWS, 5)), ("other", with_time(NONE, 9))):
        host.payloads.put(stage.inlets[name].key, 0, table)  # type: ignore[arg-type]
        host.payloads.put(stage.inlets[name].key, 1, without_time(table))  # type: ignore[arg-type]
    stage.publish(0, NONE)  # type: ignore[arg-type]
    stage.publish(1, with_time(ROWS, 3))  # type: ignore[arg-type]
    made = [host.payloads.get(stage.output.key, epoch) for epoch in (0, 1)]  # type: ignore[arg-type]
    assert [time_of(table.schema) for table in made if table is not None] == [9, None]


def test_an_epoch_that_was_lost_has_none(host: Host, tmp_path: Path) -> None:
    """Not that of the newest, whose columns it has."""
    stage = both(host, tmp_path)
    stage.gap, stage._told_lost = 2, True  # type: ignore[assignment]
    for name in stage.inputs:
        host.payloads.put(stage.inlets[name].key, 0, with_time(NONE, 9))  # type: ignore[arg-type]
    stage.publish(0, ROWS)  # type: ignore[arg-type]
    lost = stage.regenerate(1)  # type: ignore[arg-type]
    assert lost is not None and lost.schema == ROWS.schema and time_of(lost.schema) is None


def test_sinks_are_not_shown_it() -> None:
    shown: list[pa.Table] = []
    writer = SimpleNamespace(write=lambda epoch, table: shown.append(table))
    answers: list[Any] = [(None, with_time(ROWS, 5)), (None, None)]
    queue = SimpleNamespace(first=0, progress={"sink:s": SimpleNamespace(acked=-1)})
    output = SimpleNamespace(queue=queue, take=lambda *_: answers.pop(0), ack=lambda *_: None)
    host = SimpleNamespace(
        sink=lambda name: SimpleNamespace(open=lambda *_: writer),
        wait_for_spark=None,
        trace=lambda *_: None,
        changed=threading.Condition(),
        landed=SimpleNamespace(has=lambda *_: None),
    )
    stage = SimpleNamespace(name="a", host=host, output=output, generation=1, stopping=False)
    SinkWriter(stage, "s").run()
    assert shown == [ROWS] and shown[0].schema.metadata is None


def test_a_users_operator_is_not_shown_it_and_one_that_counts_it_is(tmp_path: Path) -> None:
    class Shows:
        def process(self, rows: pa.Table) -> pa.Table:
            return pa.table({"metadata": [str(rows.schema.metadata)]})

    job = us.Job("cut")
    a = job.source("a", us.sources.rate(rows_per_second=1, keys=1))
    job.operator(a, schema="metadata string", name="shows")(Shows)
    job.aggregate(a, by="road", window=us.seconds(1), n=("*", "count"), name="counts")
    operators = [job.stages[name].operator for name in ("shows", "counts")]
    shows, counts = (OperatorProcess("op", each, tmp_path) for each in operators if each is not None)
    try:
        assert shows.process([with_time(ROWS, 5)]).to_pydict() == {"metadata": ["None"]}
        shows.rehearse([with_time(ROWS, 5)])
        assert counts.process([with_time(ROWS, 500_000)]).num_rows == 0
        counts.rehearse([with_time(ROWS, 5)])
        assert counts.process([with_time(NONE, 2 * SECOND)])["n"].to_pylist() == [1, 1]
    finally:
        shows.end()
        counts.end()
