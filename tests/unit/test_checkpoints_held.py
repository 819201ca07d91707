"""A version while a store holds it: scrubbed, cloned, left to a query, added to ahead of time."""

from __future__ import annotations

import json
import os
import shutil
import time
import zlib
from pathlib import Path

import pytest

from files import put
from stores import FILES, Primary, content, flip, scrub, twins
from understudy.runtime import checkpoints, parts
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.parts import About, CheckpointDamaged, Shipped, digest
from understudy.runtime.session import wait_for

# -- clone and forget -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["state", "twins"])
def test_rot_is_found_and_mended(held: CheckpointStore, where: str) -> None:
    assert scrub(held) == []
    flip(held.folder / where / "state" / "a")
    assert scrub(held) == ["state/a does not match its hash; mended from its twin"]
    assert content(held.state) == FILES == content(twins(held))
    assert scrub(held) == []


def test_rot_in_both_is_found_while_the_sender_has_the_file(held: CheckpointStore, primary: Primary) -> None:
    flip(held.state / "state" / "a")
    flip(twins(held) / "state" / "a")
    with pytest.raises(CheckpointDamaged, match="state/a does not match its hash, and its twin is damaged too"):
        scrub(held)
    primary.shipped = Shipped({})  # as the keeper does after a refusal
    primary.ship(6, FILES)
    assert scrub(held) == [] and content(held.state) == FILES == content(twins(held))


def test_scrubbing_gets_around_to_every_file(
    store: CheckpointStore, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SCRUB_BYTES", 10)
    primary.ship(0, {f"f{i}": b"x" * 20 for i in range(5)})
    (store.state / "f0").unlink()
    found = [scrub(store) for _ in range(5 * 41 // 10 + 1)]
    assert [text for texts in found for text in texts] == ["f0: No such file or directory; mended from its twin"]
    assert found.index(["f0: No such file or directory; mended from its twin"]) > 10, "ten bytes each time, on average"


def test_scrubbing_nothing_is_fine(store: CheckpointStore) -> None:
    assert scrub(store) == []


def test_a_clone_is_made_of_links_and_lives_on_its_own(held: CheckpointStore, tmp_path: Path) -> None:
    clone = held.clone(tmp_path / "clone")
    assert clone.versions() == [5] and content(clone.state) == FILES == content(twins(clone))
    for name in FILES:
        assert (clone.state / name).stat().st_ino == (held.state / name).stat().st_ino
    held.forget()
    assert content(twins(held)) == {}
    for name in FILES:
        (held.state / name).unlink()
    flip(clone.state / "state" / "a")
    restored, complaints = CheckpointStore(tmp_path / "clone").restore()
    assert restored is not None and restored.about.epoch == 5 and len(complaints) == 1
    assert content(clone.state) == FILES


@pytest.mark.parametrize("where", ["state", "twins"])
def test_a_clone_of_what_is_damaged_can_be_mended(held: CheckpointStore, tmp_path: Path, where: str) -> None:
    (held.folder / where / "state" / "b").unlink()
    clone = held.clone(tmp_path / "clone")
    restored, _ = clone.restore()
    scrub(clone)
    assert restored is not None and restored.about.epoch == 5 and content(clone.state) == FILES == content(twins(clone))


def test_a_clone_replaces_what_was_there(store: CheckpointStore, primary: Primary, tmp_path: Path) -> None:
    primary.ship(0, {"a": b"1"})
    put(tmp_path, "clone/state/stale", b"x")
    put(tmp_path, "clone/manifests/99.json", b"{}")
    clone = store.clone(tmp_path / "clone")
    assert clone.versions() == [0] and content(clone.state) == {"a": b"1"}


def test_a_clone_of_nothing_is_empty(store: CheckpointStore, tmp_path: Path) -> None:
    clone = store.clone(tmp_path / "clone")
    assert clone.versions() == [] and content(clone.state) == {}
    assert clone.restore() == (None, [])


def test_a_clone_takes_deltas(store: CheckpointStore, primary: Primary, tmp_path: Path) -> None:
    primary.ship(0, {"a": b"1", "b": b"2"})
    primary.store = store.clone(tmp_path / "clone")
    primary.ship(1, {"b": b"2", "c": b"3"})
    restored, _ = CheckpointStore(tmp_path / "clone").restore()
    assert restored is not None and sorted(restored.files) == ["b", "c"]
    assert content(store.state) == {"a": b"1", "b": b"2"}, "the original is untouched"


def test_a_store_that_forgot_vouches_for_nothing_but_leaves_the_files(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1"})
    store.forget()
    assert store.versions() == []
    assert content(store.state) == {"a": b"1"}
    assert store.restore() == (None, [])
    assert content(store.state) == {}, "nothing is whole"


# -- a large state is not read again --------------------------------------------------------------------------------

TABLE = "state/0/0/SSTs/1.sst"


@pytest.fixture
def large(store: CheckpointStore, primary: Primary) -> CheckpointStore:
    primary.ship(3, {TABLE: os.urandom(checkpoints.ALWAYS_READ_BYTES + 1), "commits/3": b"v1"})
    return store


def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    monkeypatch.setattr(checkpoints, "digest", lambda data: sizes.append(len(data)) or digest(data))
    return sizes


def test_a_large_file_that_was_read_before_and_not_touched_is_not_read_again(
    large: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = read_sizes(monkeypatch)
    assert large.restore() == (large.restore()[0], []) and max(sizes) < checkpoints.ALWAYS_READ_BYTES
    clone = large.clone(tmp_path / "clone")
    assert clone.restore()[1] == [] and max(sizes) < checkpoints.ALWAYS_READ_BYTES


def test_another_process_reads_it_once(large: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, sizes = CheckpointStore(large.folder), read_sizes(monkeypatch)
    opened.restore()
    assert sum(size > checkpoints.ALWAYS_READ_BYTES for size in sizes) == 1
    opened.restore()
    assert sum(size > checkpoints.ALWAYS_READ_BYTES for size in sizes) == 1


@pytest.mark.parametrize("harm", ["changed", "truncated", "replaced", "gone"])
def test_a_large_file_that_was_touched_is_mended(large: CheckpointStore, harm: str) -> None:
    path = large.state / TABLE
    whole = path.read_bytes()
    time.sleep(0.02)  # the system's clock for files ticks every few milliseconds
    if harm == "changed":
        flip(path)
    elif harm == "truncated":
        os.truncate(path, 10)
    elif harm == "replaced":
        other = path.with_name("other")
        other.write_bytes(bytes(len(whole)))
        other.rename(path)
    else:
        path.unlink()
    manifest, complaints = large.restore()
    assert manifest is not None and len(complaints) == 1 and "mended from its twin" in complaints[0]
    assert path.read_bytes() == whole


def test_scrubbing_reads_large_files_all_the_same(large: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = read_sizes(monkeypatch)
    scrub(large)
    assert sum(size > checkpoints.ALWAYS_READ_BYTES for size in sizes) == 2


def test_what_a_clone_shares_need_not_be_sent_to_it(store: CheckpointStore, primary: Primary, tmp_path: Path) -> None:
    """After a takeover: the own disk has what the stage began from."""
    primary.ship(3, {"state/0/0/1.zip": b"image", "state/0/0/2.changelog": b"two"})
    own = store.clone(tmp_path / "self")
    store.forget()
    put(store.state, "state/0/0/3.changelog", b"three")
    (store.state / "state/0/0/2.changelog").unlink()
    put(store.state, "state/0/0/2.changelog", b"other")  # of the same name, but not the same file
    assert set(own.shared_with(store.state)) == {"state/0/0/1.zip"}
    running = Primary(store.state, own)
    running.shipped = Shipped(own.shared_with(store.state))
    needed = {name: store.state / name for name in ("state/0/0/1.zip", "state/0/0/3.changelog")}
    [(part, body)] = running.shipped.parts(needed, About(4))
    assert part.version is not None and part.version.drop == part.version.take == ()
    sent = json.loads(zlib.decompress(body).partition(b"\n")[0])
    assert [name for name, *_ in sent] == ["state/0/0/3.changelog"]


# -- files that come ahead of the version that names them ---------------------------------------------------------


def bring(primary: Primary, files: dict[str, bytes]) -> None:
    for part, body in primary.shipped.parts_ahead(primary.needed(files)):
        assert primary.store.paste(part, body) is None


@pytest.mark.parametrize("part_bytes", [10, 1000])
def test_what_came_ahead_is_not_sent_again(
    store: CheckpointStore, primary: Primary, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", part_bytes)
    old, new = {"a": b"1", "old": b"o" * 35}, {"a": b"1", "table": b"t" * 35, "other": b"x" * 10}
    primary.ship(0, old)
    bring(primary, {"table": new["table"], "other": new["other"]})
    assert not store.is_changing() and content(store.state) == old
    assert store.version() is None or store.versions() == [0]
    [size] = primary.ship(1, new)
    assert size < 40
    assert content(store.state) == content(twins(store)) == new
    assert primary.shipped.ahead == {}
    restored, complaints = store.restore()
    assert restored is not None and restored.about.epoch == 1 and complaints == []


def test_files_may_come_ahead_in_the_middle_of_a_version(
    store: CheckpointStore, primary: Primary, small_parts: int
) -> None:
    primary.ship(0, {"a": b"1"})
    files = {"a": b"1", "big": b"x" * 35}
    version = primary.shipped.parts(primary.needed(files), About(1))
    ahead = primary.shipped.parts_ahead(primary.needed({"table": b"t" * 25}))
    results = [store.paste(*message) for pair in zip(ahead, version) for message in pair]
    results += [store.paste(*message) for message in [*ahead, *version]]
    assert 1 in results and content(store.state) == files
    primary.shipped.accepted()
    primary.ship(2, {**files, "table": b"t" * 25})
    assert content(store.state) == {**files, "table": b"t" * 25}


def test_a_version_that_counts_on_what_a_store_lost_is_refused(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1"})
    bring(primary, {"table": b"t"})
    again = CheckpointStore(store.folder)
    [message] = primary.shipped.parts(primary.needed({"a": b"1", "table": b"t"}), About(1))
    with pytest.raises(CheckpointDamaged, match="lacks files"):
        again.paste(*message)
    assert again.versions() == [0]


def are_deleted(folder: Path, pattern: str) -> bool:
    """Within a second; a rename is not enough."""
    wait_for(lambda: not list(folder.rglob(pattern)), 1.0, "files to be deleted")
    return True


@pytest.fixture
def deletes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "DISCARD_S", 0.1)


@pytest.mark.usefixtures("deletes_soon")
@pytest.mark.parametrize("whole", [True, False])
def test_what_came_ahead_for_nothing_is_deleted(store: CheckpointStore, primary: Primary, whole: bool) -> None:
    primary.ship(0, {"a": b"1"})
    bring(primary, {"table": b"t"})
    if whole:
        primary.shipped = Shipped({})
    else:
        primary.shipped.forget_ahead()
    primary.ship(1, {"a": b"1", "b": b"2"})
    assert are_deleted(store.folder, "table*")


def test_what_came_ahead_goes_along_with_a_standby_that_rises(
    store: CheckpointStore, primary: Primary, tmp_path: Path
) -> None:
    primary.ship(0, {"a": b"1"})
    bring(primary, {"table": b"t" * 35})
    held = store.clone(tmp_path / "held")
    store.hand_over_ahead(held)
    store.forget()
    primary.store = held
    [size] = primary.ship(1, {"a": b"1", "table": b"t" * 35})
    assert size < 40 and content(held.state) == {"a": b"1", "table": b"t" * 35}


@pytest.mark.usefixtures("deletes_soon")
def test_a_query_that_runs_keeps_neither_twins_nor_what_came_ahead(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1"})
    bring(primary, {"table": b"t"})
    store.forget()
    assert content(store.state) == {"a": b"1"} and content(twins(store)) == {}
    assert are_deleted(store.folder, "table*") and are_deleted(store.folder, "discarded*")


def test_a_takeover_does_not_wait_for_deletions(
    store: CheckpointStore, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary.ship(0, {"a": b"1"})
    bring(primary, {"table": b"t"})
    deleted: list[Path] = []
    monkeypatch.setattr(shutil, "rmtree", lambda folder, **_: deleted.append(folder))
    monkeypatch.setattr(checkpoints, "DISCARD_S", 0.5)
    store.forget()
    assert deleted == []
    wait_for(lambda: len(deleted) == 2, 5.0, "deletions")


def test_what_a_killed_process_did_not_get_around_to_deleting_is_deleted(
    store: CheckpointStore, primary: Primary
) -> None:
    primary.ship(0, {"a": b"1"})
    bring(primary, {"table": b"t"})
    primary.shipped.forget_ahead()
    primary.ship(1, {"a": b"1"})
    assert list(store.folder.glob("discarded-*"))
    CheckpointStore(store.folder)
    assert not list(store.folder.glob("discarded-*")) and content(store.state) == {"a": b"1"}


def test_scrubbing_looks_away_when_a_file_goes_meanwhile(store: CheckpointStore, primary: Primary) -> None:
    """It reads without keeping anybody from changing the store."""
    primary.ship(0, {"a": b"1", "b": b"2"})
    names = store.scrub_next()
    primary.ship(1, {"a": b"1"})
    rotten = store.rotten(names)
    assert store.mend(rotten) == []
    names = store.scrub_next()
    store.state.joinpath("a").unlink()
    rotten = store.rotten(names)
    primary.ship(2, {"c": b"3"})
    assert rotten == ["a"] and store.mend(rotten) == []


def test_files_that_are_being_read_stay(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1", "old": b"o"})
    store.lend()
    primary.ship(1, {"a": b"1", "new": b"n"})
    assert set(content(store.state)) == set(content(twins(store))) == {"a", "old", "new"}
    store.restore()
    assert set(content(store.state)) == {"a", "old", "new"}
    store.take_back()
    assert set(content(store.state)) == set(content(twins(store))) == {"a", "new"}


def test_what_a_query_runs_on_is_not_taken_back_from_it(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1"})
    store.lend()
    store.forget()
    store.take_back()
    assert content(store.state) == {"a": b"1"}


def test_what_comes_ahead_damaged_is_refused(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1"})
    part, _ = next(primary.shipped.parts_ahead(primary.needed({"table": b"table"})))
    with pytest.raises(CheckpointDamaged, match="table arrived damaged"):
        store.paste(part, b"tablf")
    assert primary.shipped.ahead == {}


def test_the_newest_version_as_spark_counts_it(store: CheckpointStore, primary: Primary, small_parts: int) -> None:
    assert store.version() is None
    primary.ship(2, {"commits/2": b"log"})
    assert store.version() is None, "it has no state"
    primary.ship(3, {"commits/3": b"log", "state/0/0/4.changelog": b"four"})
    assert store.version() == (3, ["commits/3", "state/0/0/4.changelog"])
    assert not store.is_changing()
    messages = list(primary.shipped.parts(primary.needed({"state/0/0/5.zip": b"x" * 3 * small_parts}), About(4)))
    for part, body in messages[:-1]:
        store.paste(part, body)
    assert store.is_changing()
    assert store.version() == (3, ["commits/3", "state/0/0/4.changelog"])
