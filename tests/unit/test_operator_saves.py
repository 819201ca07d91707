"""States of an object as files: in one piece, or part by part."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import understudy as us
from stores import Primary
from understudy.errors import SetupError
from understudy.runtime import messages
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.operator_saves import Saves, is_part
from understudy.runtime.standby import restored


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "operator").iterdir()}


def test_a_part_that_has_not_changed_is_the_file_of_the_save_before(tmp_path: Path) -> None:
    saves = Saves(tmp_path)
    saves.add(3, {"head": b"h3", "a": b"a3", "b": b"b3"})
    saves.add(7, {"head": b"h7", "a": None, "c": b"c7"})
    assert saves.read(3) == {"head": b"h3", "a": b"a3", "b": b"b3"}
    assert saves.read(7) == {"head": b"h7", "a": b"a3", "c": b"c7"}
    new = set(saves.files_of(7)) - set(saves.files_of(3))
    assert new == {"operator/7.parts", "operator/7.head", "operator/7.c"}
    assert saves.size() == sum(path.stat().st_size for path in saves.files_of(7).values())


def test_what_a_newer_state_still_has_outlives_the_older_one(tmp_path: Path) -> None:
    saves = Saves(tmp_path)
    saves.add(1, {"a": b"1", "b": b"1"})
    for batch in (2, 3, 4):
        saves.add(batch, {"a": None, "b": b"x" * batch})
    saves.trim(4)
    assert names(tmp_path) == {"1.a", "3.b", "4.b", "3.parts", "4.parts"}
    assert saves.read(4) == {"a": b"1", "b": b"xxxx"}
    assert not saves.has(2)


def test_somebody_else_goes_on_with_the_files(tmp_path: Path) -> None:
    Saves(tmp_path).add(5, {"a": b"5", "b": b"5"})
    saves = Saves(tmp_path)
    saves.add(9, {"a": None, "b": b"9"})
    assert Saves(tmp_path).read(9) == {"a": b"5", "b": b"9"}


def test_a_part_whose_file_is_gone_is_missing(tmp_path: Path) -> None:
    saves = Saves(tmp_path)
    saves.add(5, {"a": b"5", "b": b"5"})
    (tmp_path / "operator" / "5.b").unlink()
    assert saves.read(5) == {"a": b"5", "b": None}


def test_a_save_does_not_look_at_files_that_it_has_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large window nearly all parts are those of the save before."""
    parts = {f"part {number}": b"x" * number for number in range(100)}
    Saves(tmp_path).add(1, parts)
    saves = Saves(tmp_path)
    looked_at: list[str] = []
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **how: (looked_at.append(self.name), stat(self, **how))[1])
    saves.add(2, {**dict.fromkeys(parts), "part 7": b"new"})
    assert set(looked_at) <= {"operator"}, "a folder that is there"
    monkeypatch.undo()
    assert saves.size() == sum(path.stat().st_size for path in saves.files_of(2).values())
    saves.add(3, dict.fromkeys(parts))
    saves.add(4, dict.fromkeys(parts))
    saves.trim(4)
    assert set(saves._bytes) == names(tmp_path), "nothing is remembered of what was deleted"


@pytest.mark.parametrize("needs_all_input", [True, False])
def test_of_an_operator_that_needs_all_input_every_part_counts(tmp_path: Path, needs_all_input: bool) -> None:
    """A barrier must not go on without a part, nor without its head."""
    store = CheckpointStore(tmp_path / "store")
    files = {"operator/4.input1.0-1-x": b"rows", "operator/4.input1.head-y": b"head", "operator/4.parts": b"{}"}
    assert [is_part(name) for name in files] == [True, True, False]
    Primary(tmp_path / "primary", store).ship(4, files)
    for folder in ("state", "twins"):
        (store.folder / folder / "operator" / "4.input1.head-y").write_bytes(b"rot")
    reports: list[messages.Notice] = []
    host: Any = SimpleNamespace(name="h2", report=reports.append)
    shape, stage = SimpleNamespace(policy=us.Checkpoint()), SimpleNamespace(needs_all_input=needs_all_input)
    host.topology = SimpleNamespace(units={"u": shape}, stages={"pairs": stage})
    if needs_all_input:
        with pytest.raises(SetupError, match="no undamaged checkpoint of stage 'pairs' is left on h2"):
            restored(host, "pairs", "u", store)
        assert "beyond repair (operator/4.input1.head-y does not match its hash" in reports[0].text
    else:
        about, mended = restored(host, "pairs", "u", store)
        assert mended and about is not None and "goes on without it" in reports[0].text


def test_a_state_in_one_piece_is_one_file(tmp_path: Path) -> None:
    saves = Saves(tmp_path)
    for batch in range(5):
        saves.add(batch, bytes([batch]))
    saves.trim(3)
    assert names(tmp_path) == {"2", "3", "4"}
    assert saves.files_of(4) == {"operator/4": tmp_path / "operator" / "4"}
    with pytest.raises(FileNotFoundError):
        saves.files_of(9)
    assert saves.read(9) is None


def test_a_state_that_is_being_sent_stays_however_many_come_after_it(tmp_path: Path) -> None:
    saves = Saves(tmp_path)
    saves.add(1, {"a": b"1", "b": b"1"})
    with saves.lent(1):
        files = saves.files_of(1)
        for batch in range(2, 9):
            saves.add(batch, {"a": b"%d" % batch, "b": None})
            saves.trim(batch)
        assert all(path.exists() for path in files.values())
        assert not saves.has(3), "others do not"
    saves.trim(8)
    assert not saves.has(1) and saves.read(8) == {"a": b"8", "b": b"1"}


def test_a_state_that_lacks_a_part_is_good_to_go_on_from_and_is_saved_anew(tmp_path: Path) -> None:
    Saves(tmp_path).add(5, {"a": b"5", "b": b"5"})
    (tmp_path / "operator" / "5.b").unlink()
    saves = Saves(tmp_path)
    assert saves.read(5) == {"a": b"5", "b": None} and not saves.has(5)
    saves.add(5, {"a": None, "c": b"c"})
    assert saves.has(5) and all(path.exists() for path in saves.files_of(5).values())
