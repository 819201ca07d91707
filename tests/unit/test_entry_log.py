"""The entries of a source on disk: what was appended is there after a crash, and a torn end is cut off."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.runtime.source import EntryLog

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines


def reopen(path: Path) -> list[dict]:
    log = EntryLog(path)
    log.close()
    return log.entries


def line(entry: dict) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def test_entries_are_there_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "entries.jsonl"
    log = EntryLog(path)
    assert log.entries == []
    log.append([{"first": 0, "count": 5}])
    log.append([{"first": 5, "count": 0}, {"files": ["a\nb", "ü"]}])
    log.append([])
    assert path.read_bytes().count(b"\n") == 3, "one line per epoch, flushed before append returns"
    log.close()
    assert reopen(path) == log.entries == [{"first": 0, "count": 5}, {"first": 5, "count": 0}, {"files": ["a\nb", "ü"]}]


def test_clear_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    path.write_bytes(line({"first": 0, "count": 5}))
    log = EntryLog(path, clear=True)
    assert log.entries == [] and path.read_bytes() == b""
    log.append([{"first": 0, "count": 1}])
    log.close()
    assert reopen(path) == [{"first": 0, "count": 1}]
    EntryLog(tmp_path / "none.jsonl", clear=True).close()


def test_a_torn_last_line_is_cut_off_and_its_epoch_written_again(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    path.write_bytes(line({"first": 0, "count": 5}) + b'{"first":5,"cou')
    log = EntryLog(path)
    assert log.entries == [{"first": 0, "count": 5}]
    assert path.read_bytes() == line({"first": 0, "count": 5})
    log.append([{"first": 5, "count": 7}])
    log.close()
    assert reopen(path) == [{"first": 0, "count": 5}, {"first": 5, "count": 7}]


def test_a_tear_within_a_character_is_a_tear(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    path.write_bytes(line({"first": 0, "count": 5}) + '{"files":["ü'.encode()[:-1])
    assert reopen(path) == [{"first": 0, "count": 5}]


ENTRIES = st.lists(
    st.fixed_dictionaries({"first": st.integers(0, 10**9), "count": st.integers(0, 99)})
    | st.fixed_dictionaries({"files": st.lists(st.text(max_size=4), max_size=2)}),
    max_size=5,
)


@settings(PATIENT, max_examples=60)
@given(ENTRIES, ENTRIES, st.data())
def test_a_crash_at_any_byte_keeps_every_whole_line(
    tmp_path_factory: pytest.TempPathFactory, before: list[dict], later: list[dict], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("log") / "entries.jsonl"
    log = EntryLog(path)
    log.append(before)
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    kept = path.read_bytes().count(b"\n")

    log = EntryLog(path)
    assert log.entries == before[:kept]
    log.append(later)
    log.close()
    assert reopen(path) == before[:kept] + later


def test_a_tear_exactly_before_the_newline(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    path.write_bytes(line({"first": 0, "count": 5}) + line({"first": 5, "count": 5})[:-1])
    log = EntryLog(path)
    assert log.entries == [{"first": 0, "count": 5}]
    log.append([{"first": 10, "count": 1}])
    log.append([{"first": 11, "count": 1}])
    log.close()
    assert reopen(path) == [{"first": 0, "count": 5}, {"first": 10, "count": 1}, {"first": 11, "count": 1}]


def test_what_was_never_published_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    log = EntryLog(path)
    log.append([{"n": 0}, {"n": 1}, {"n": 2}])
    log.truncate(5)
    assert len(log.entries) == 3
    log.truncate(1)
    log.append([{"n": "another 1"}])
    log.close()
    assert reopen(path) == log.entries == [{"n": 0}, {"n": "another 1"}]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 3])
def test_a_full_disk_leaves_nothing_behind_that_would_come_twice(tmp_path: Path, room: int) -> None:
    path = tmp_path / "entries.jsonl"
    log = EntryLog(path)
    log.append([{"n": 0}])
    size = path.stat().st_size
    for _ in range(3):
        with files_no_larger_than(size + room), pytest.raises(OSError):
            log.append([{"n": 1}])
        assert log.entries == [{"n": 0}] and path.stat().st_size == size
    log.append([{"n": 1}])
    log.close()
    assert reopen(path) == log.entries == [{"n": 0}, {"n": 1}]
