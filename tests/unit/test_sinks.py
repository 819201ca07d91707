"""Folder sinks: each epoch once, whole or not at all, and nothing from a writer whose time is over."""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import math
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.errors import JobError
from understudy.sinks import ConsoleSink, Fenced, FolderSink, FolderWriter, console, foreach_epoch, json_lines, parquet

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def no_spark() -> Any:
    raise AssertionError("a folder sink needs no Spark")


def written(root: Path) -> dict[int, list[int]]:
    """Epoch -> numbers, read the way a user would."""
    found = {}
    for folder in sorted(root.glob("epoch=*")):
        files = list(folder.iterdir())
        assert [f.name for f in files] == ["part-0.parquet"]
        found[int(folder.name.removeprefix("epoch="))] = pq.read_table(files[0], partitioning=None)["n"].to_pylist()
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out"


# -- once -------------------------------------------------------------------------------------------------------


def test_an_epoch_is_a_folder_that_others_read_as_a_partition(root: Path) -> None:
    writer = parquet(root).open(1, no_spark)
    writer.write(0, rows(1, 2))
    writer.write(12, rows(3))
    assert (root / "epoch=000000000012" / "part-0.parquet").is_file()
    assert written(root) == {0: [1, 2], 12: [3]}
    table = pq.read_table(root, partitioning="hive")
    assert table.sort_by("n").to_pydict() == {"n": [1, 2, 3], "epoch": [0, 0, 12]}
    assert [p.name for p in (root / "_tmp").iterdir()] == ["lock"], "nothing is left behind"


def test_writing_an_epoch_again_does_nothing(root: Path) -> None:
    writer = parquet(root).open(1, no_spark)
    writer.write(0, rows(1))
    before = (root / "epoch=000000000000" / "part-0.parquet").stat()
    writer.write(0, rows(1))
    parquet(root).open(2, no_spark).write(0, rows(7))
    assert written(root) == {0: [1]}
    assert (root / "epoch=000000000000" / "part-0.parquet").stat().st_ino == before.st_ino


def test_a_gap_is_not_filled_after_what_follows_it(root: Path) -> None:
    first = parquet(root).open(1, no_spark)
    first.write(0, rows(1))
    first.write(3, rows(2))
    (root / "epoch=000000000005").mkdir()
    second = parquet(root).open(2, no_spark)
    for epoch in range(6):
        second.write(epoch, rows(7))
    assert written(root) == {0: [1], 3: [2], 4: [7], 5: [7]}


def test_an_epoch_whose_folder_was_made_before_a_crash_is_still_written(root: Path) -> None:
    writer = parquet(root).open(1, no_spark)
    (root / "epoch=000000000003").mkdir()
    writer.write(3, rows(1))
    assert written(root) == {3: [1]}


def test_an_epoch_without_rows_is_an_epoch(root: Path) -> None:
    parquet(root).open(1, no_spark).write(0, rows())
    json_lines(root / "json").open(1, no_spark).write(0, rows())
    assert written(root) == {0: []}
    assert (root / "json" / "epoch=000000000000" / "part-0.json").read_text() == ""


def test_a_table_that_cannot_be_written_leaves_nothing(root: Path) -> None:
    writer = parquet(root).open(1, no_spark)
    with pytest.raises(pa.ArrowException):
        writer.write(0, pa.table({"u": pa.array([], pa.dense_union([pa.field("a", pa.int8())]))}))
    assert written(root) == {}
    assert [p.name for p in (root / "_tmp").iterdir()] == ["lock"]


def test_clear_forgets_everything(root: Path) -> None:
    sink = parquet(root)
    sink.clear()
    sink.open(5, no_spark).write(0, rows(1))
    (root / "mine.txt").write_text("not ours")
    sink.clear()
    assert written(root) == {}
    assert (root / "mine.txt").exists()
    sink.open(1, no_spark).write(0, rows(2))
    assert written(root) == {0: [2]}


# -- fenced -----------------------------------------------------------------------------------------------------


def test_an_older_writer_is_refused_and_adds_nothing(root: Path) -> None:
    old, new = parquet(root).open(1, no_spark), parquet(root).open(2, no_spark)
    with pytest.raises(Fenced, match="is written by generation 2, this is 1"):
        old.write(0, rows(1))
    assert written(root) == {}
    new.write(0, rows(2))
    assert written(root) == {0: [2]}


def test_a_newer_writer_that_appears_between_two_writes_fences_the_older(root: Path) -> None:
    old = parquet(root).open(1, no_spark)
    old.write(0, rows(1))
    new = parquet(root).open(3, no_spark)
    with pytest.raises(Fenced):
        old.write(1, rows(1))
    with pytest.raises(Fenced):
        old.write(0, rows(1))
    new.write(0, rows(3))
    new.write(1, rows(3))
    assert written(root) == {0: [1], 1: [3]}
    assert [p.name for p in (root / "_tmp").iterdir()] == ["lock"]


def test_a_newer_writer_that_appears_within_a_write_fences_it(root: Path) -> None:
    """The older writer has its file ready and waits for the lock; meanwhile the generation rises."""
    old = parquet(root).open(1, no_spark)
    outcome: list[BaseException] = []

    def write() -> None:
        try:
            old.write(0, rows(1))
        except BaseException as error:
            outcome.append(error)

    with open(root / "_tmp" / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(200):
            if len(list((root / "_tmp").iterdir())) == 2:
                break
            thread.join(0.01)
        thread.join(0.02)
        assert thread.is_alive(), "it waits for the lock"
        (root / "_generation").write_text("2")
    thread.join(10)
    assert [type(e) for e in outcome] == [Fenced]
    assert written(root) == {}


def test_an_older_writer_that_comes_late_is_refused_from_the_start(root: Path) -> None:
    parquet(root).open(9, no_spark)
    late = parquet(root).open(8, no_spark)
    with pytest.raises(Fenced, match="generation 9, this is 8"):
        late.write(0, rows(1))


def test_two_writers_of_one_generation_do_not_fence_each_other(root: Path) -> None:
    one, other = parquet(root).open(4, no_spark), parquet(root).open(4, no_spark)
    one.write(0, rows(1))
    other.write(0, rows(1))
    other.write(1, rows(2))
    one.write(1, rows(2))
    assert written(root) == {0: [1], 1: [2]}


@settings(PATIENT, max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=20))
def test_any_interleaving_of_generations(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[int, int]]
) -> None:
    """A writer of generation g writes g. Naive oracle: whoever is not fenced adds what is newer than all before."""
    root = tmp_path_factory.mktemp("sink")
    writers: dict[int, FolderWriter] = {}
    expected: dict[int, list[int]] = {}
    for generation, epoch in script:
        if generation not in writers:
            writers[generation] = FolderWriter(root, "parquet", generation)
        if generation < max(writers):
            with pytest.raises(Fenced):
                writers[generation].write(epoch, rows(generation))
        else:
            writers[generation].write(epoch, rows(generation))
            if epoch > max(expected, default=-1):
                expected[epoch] = [generation]
    assert written(root) == expected


WRITER = """
import sys
from itertools import count
from pathlib import Path
import pyarrow as pa, pyarrow.parquet
from understudy.sinks import Fenced, FolderWriter

generation = int(sys.argv[2])
print("here", flush=True)
sys.stdin.readline()
writer = FolderWriter(Path(sys.argv[1]), "parquet", generation)
last = None
for epoch in count():
    try:
        writer.write(epoch, pa.table({"n": [generation]}))
    except Fenced:
        print("fenced at", epoch, flush=True)
        break
    if epoch == 0:
        print("first", flush=True)
    if epoch == 30 and generation == 2:
        last = int(sys.stdin.readline())
    if last is not None and epoch >= last:
        print("wrote", flush=True)
        break
"""


def test_two_processes_at_once(root: Path) -> None:
    """The old primary writes away; the new one comes in the middle. Every epoch is there once: the old one's up to
    the one at which it was fenced, then the new one's."""
    command = [sys.executable, "-c", WRITER, str(root)]
    old, new = (
        subprocess.Popen([*command, str(g)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for g in (1, 2)
    )

    def say(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def hear(process: subprocess.Popen[str]) -> str:
        assert process.stdout
        return process.stdout.readline().rstrip()

    try:
        assert hear(old) == hear(new) == "here"
        say(old, "go")
        assert hear(old) == "first"
        say(new, "go")
        assert hear(new) == "first"
        words = hear(old)
        assert words.startswith("fenced at ")
        fenced_at = int(words.removeprefix("fenced at "))
        last = max(fenced_at, 30) + 5
        say(new, str(last))
        assert hear(new) == "wrote"
    finally:
        for process in (old, new):
            process.kill()
            process.communicate()
    assert fenced_at > 0
    assert written(root) == {e: [1] if e < fenced_at else [2] for e in range(last + 1)}


# -- json -------------------------------------------------------------------------------------------------------


def read_json(root: Path, epoch: int) -> list[dict[str, Any]]:
    text = (root / f"epoch={epoch:012d}" / "part-0.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


FLOATS = st.floats(allow_nan=False)


@settings(PATIENT, max_examples=30)
@given(st.lists(st.tuples(FLOATS, st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=5), st.none()), max_size=5))
def test_json_loses_no_bit(tmp_path_factory: pytest.TempPathFactory, values: list[tuple]) -> None:
    root = tmp_path_factory.mktemp("json")
    columns = list(zip(*values)) or [(), (), (), ()]
    types = [pa.float64(), pa.int64(), pa.string(), pa.bool_()]
    arrays = {name: pa.array(c, t) for name, c, t in zip("fitb", columns, types)}
    json_lines(root).open(1, no_spark).write(0, pa.table(arrays))
    text = (root / "epoch=000000000000" / "part-0.json").read_text()
    found = [json.loads(line) for line in text.split("\n")[:-1]]
    assert [tuple(r.values()) for r in found] == values
    for row, value in zip(found, values):
        assert math.copysign(1, row["f"]) == math.copysign(1, value[0])


def test_json_of_awkward_floats(root: Path) -> None:
    awkward = [0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 123456789.12345679, 2.0**53 + 2]
    json_lines(root).open(1, no_spark).write(0, pa.table({"x": awkward}))
    assert [r["x"].hex() for r in read_json(root, 0)] == [x.hex() for x in awkward]


def test_json_of_other_types(root: Path) -> None:
    table = pa.table(
        {
            "at": pa.array([dt.datetime(2024, 2, 29, 12, 0, 0, 123456)], pa.timestamp("us")),
            "day": pa.array([dt.date(2024, 2, 29)]),
            "price": pa.array([Decimal("12345678901234567890.12")], pa.decimal128(30, 2)),
            "list": pa.array([[1.5, None]]),
            "struct": pa.array([{"a": 1, "b": "ü\n"}]),
            "null": pa.array([None], pa.int8()),
        }
    )
    json_lines(root).open(1, no_spark).write(0, table)
    assert read_json(root, 0) == [
        {
            "at": "2024-02-29 12:00:00.123456",
            "day": "2024-02-29",
            "price": "12345678901234567890.12",
            "list": [1.5, None],
            "struct": {"a": 1, "b": "ü\n"},
            "null": None,
        }
    ]


def test_json_in_several_chunks_keeps_the_order(root: Path) -> None:
    table = pa.concat_tables([rows(*range(15_000)), rows(*range(15_000, 15_010))])
    json_lines(root).open(1, no_spark).write(0, table)
    assert [r["n"] for r in read_json(root, 0)] == list(range(15_010))


# -- the other sinks --------------------------------------------------------------------------------------------


def test_the_console_shows_the_first_rows(capsys: pytest.CaptureFixture[str]) -> None:
    sink = console(rows=2)
    assert sink == ConsoleSink(2)
    sink.clear()
    sink.open(1, no_spark).write(7, rows(11, 12, 13))
    shown = capsys.readouterr().out
    assert shown.startswith("-- epoch 7: 3 rows\n")
    assert [line.strip() for line in shown.splitlines()[1:]] == ["n", "11", "12"]


def test_foreach_calls_the_function_with_a_frame_and_the_epoch() -> None:
    class Session:
        """Stands for a SparkSession: all that the sink asks of it."""

        def createDataFrame(self, table: pa.Table) -> list[dict[str, Any]]:
            return table.to_pylist()

    calls: list[Any] = []
    sink = foreach_epoch(lambda frame, epoch: calls.append((frame, epoch)))
    sink.clear()
    writer = sink.open(1, Session)  # type: ignore[arg-type]
    writer.write(3, rows(1))
    writer.write(4, rows())
    assert calls == [([{"n": 1}], 3), ([], 4)]
    with pytest.raises(JobError, match=r"pass a function of \(df, epoch\)"):
        foreach_epoch("print")  # type: ignore[arg-type]


def test_folder_sinks_know_where_they_are_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parquet("out") == FolderSink(str(tmp_path / "out"), "parquet")
    assert json_lines(Path("out")) == FolderSink(str(tmp_path / "out"), "json")
