"""Checkpoints as files: what is shipped of a version, and what a store gives back."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from files import put
from stores import FILES, Primary, content, flip, manifest, scrub, twins
from understudy.runtime import parts
from understudy.runtime.checkpoints import CheckpointStore, Manifest
from understudy.runtime.parts import About, CheckpointDamaged, CheckpointPart, Chunk, Shipped, Version, digest

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines


def test_a_version_arrives_whole(store: CheckpointStore, primary: Primary) -> None:
    files = {"metadata": b"m", "state/0/1.delta": b"delta" * 100, "empty": b""}
    primary.ship(4, files)
    assert store.versions() == [4]
    assert content(store.state) == files
    restored, complaints = store.restore()
    assert complaints == []
    assert restored == Manifest(About(4), {name: (len(data), digest(data)) for name, data in files.items()})
    assert content(store.state) == files


def test_only_the_difference_is_shipped(store: CheckpointStore, primary: Primary) -> None:
    old = os.urandom(100_000)
    assert sum(primary.ship(0, {"old": old})) > 100_000
    assert sum(primary.ship(1, {"old": old, "new": b"n"})) < 1000
    assert sum(primary.ship(2, {"new": b"n"})) < 1000
    restored, _ = store.restore()
    assert restored is not None and list(restored.files) == ["new"]


def test_the_empty_version_is_a_version(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(-1, {})
    assert store.versions() == [-1]
    assert store.restore() == (Manifest(About(-1), {}), [])


def test_files_larger_than_a_part(store: CheckpointStore, primary: Primary, small_parts: int) -> None:
    files = {"a": b"0123456789" * 3, "b": b"x", "c": b"y" * 25, "d": b"", "e": b"z" * 10}
    parts = list(Shipped({}).parts(primary.needed(files), About(1)))
    assert all(len(body) == small_parts for _, body in parts[:-1])
    assert len(parts) == 7  # 66 bytes in tens, and the rest
    assert [part.chunks is None for part, _ in parts] == [False] * 6 + [True]
    assert [part.first for part, _ in parts] == [True] + [False] * 6
    version = parts[-1][0].version
    assert version is not None and version.whole
    primary.ship(1, files)
    assert content(store.state) == files
    assert content(store.folder / "incoming") == {}


@pytest.mark.parametrize("sizes", [(10,), (5, 5), (9, 1, 10), (0, 10, 0), (10, 10), (11,), (1,) * 10])
def test_sizes_around_a_part(
    store: CheckpointStore, primary: Primary, small_parts: int, sizes: tuple[int, ...]
) -> None:
    files = {f"f{i}": bytes([65 + i]) * size for i, size in enumerate(sizes)}
    primary.ship(0, files)
    assert content(store.state) == files


def test_the_newest_version_is_kept_twice(store: CheckpointStore, primary: Primary) -> None:
    for epoch in range(5):
        primary.ship(epoch, {"metadata": b"m", f"only-{epoch}": b"x", f"from-{epoch // 2}": b"y"})
    assert store.versions() == [4]
    assert content(store.state) == {"metadata": b"m", "only-4": b"x", "from-2": b"y"} == content(twins(store))
    for name in content(store.state):
        assert (store.state / name).stat().st_ino != (twins(store) / name).stat().st_ino, "a link would rot with it"


def test_a_store_left_in_the_middle_of_a_change_has_both_versions(store: CheckpointStore, primary: Primary) -> None:
    """As after a crash between the newer manifest and the end of the older one."""
    primary.ship(3, {"a": b"1"})
    older = manifest(store.folder, 3).read_bytes()
    primary.ship(4, {"a": b"1", "b": b"2"})
    manifest(store.folder, 3).write_bytes(older)
    primary.store = again = CheckpointStore(store.folder)
    assert again.versions() == [3, 4]
    restored, complaints = again.restore()
    assert restored is not None and restored.about.epoch == 4 and complaints == []
    primary.ship(5, {"b": b"2"})
    assert again.versions() == [5] and content(again.state) == {"b": b"2"} == content(twins(again))


def test_of_both_versions_the_damaged_one_is_forgotten(
    store: CheckpointStore, primary: Primary, tmp_path: Path
) -> None:
    primary.ship(3, {"a": b"1"})
    older = manifest(store.folder, 3).read_bytes()
    primary.ship(4, {"a": b"1", "b": b"2"})
    manifest(store.folder, 3).write_bytes(older)
    for root in (store.state, twins(store)):
        (root / "b").write_bytes(b"?")
    again = CheckpointStore(store.folder)
    restored, complaints = again.restore()
    assert restored is not None and restored.about.epoch == 3 and len(complaints) == 1
    assert again.versions() == [3]
    restored, complaints = again.clone(tmp_path / "clone").restore()
    assert restored is not None and restored.about.epoch == 3, "what is cloned is what was restored"
    assert complaints == []


def test_a_store_opened_again_goes_on(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1"})
    primary.store = CheckpointStore(store.folder)
    primary.ship(1, {"a": b"1", "b": b"2"})
    restored, _ = CheckpointStore(store.folder).restore()
    assert restored is not None and sorted(restored.files) == ["a", "b"]


def test_clear_begins_anew(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1"})
    cleared = CheckpointStore(store.folder, clear=True)
    assert cleared.versions() == [] and content(cleared.state) == {}
    assert cleared.restore() == (None, [])


# -- damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["flipped", "missing", "short", "long"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_mended_from_its_twin(held: CheckpointStore, name: str, harm: str) -> None:
    path = held.state / name
    if harm == "flipped":
        flip(path)
    elif harm == "missing":
        path.unlink()
    else:
        path.write_bytes(FILES[name] + b"x" if harm == "long" else FILES[name][1:])
    restored, complaints = CheckpointStore(held.folder).restore()
    assert restored is not None and restored.about.epoch == 5 and content(held.state) == FILES
    cause = f"{name}: No such file or directory" if harm == "missing" else f"{name} does not match its hash"
    assert complaints == [f"{cause}; mended from its twin"]
    assert CheckpointStore(held.folder).restore()[1] == []


@pytest.mark.parametrize("folder", ["state", "twins"])
def test_a_whole_folder_may_be_lost(held: CheckpointStore, folder: str) -> None:
    shutil.rmtree(held.folder / folder)
    restored, complaints = held.restore()
    assert restored is not None and restored.about.epoch == 5 and content(held.state) == FILES
    assert len(complaints) == (3 if folder == "state" else 0)
    scrub(held)
    assert content(twins(held)) == FILES


def test_any_number_of_files_may_be_damaged_once(held: CheckpointStore) -> None:
    flip(held.state / "state" / "a")
    flip(held.state / "metadata")
    flip(twins(held) / "state" / "b")
    restored, complaints = held.restore()
    assert restored is not None and restored.about.epoch == 5 and content(held.state) == FILES and len(complaints) == 2


def test_when_a_file_and_its_twin_are_damaged_nothing_is_left(held: CheckpointStore) -> None:
    flip(held.state / "state" / "a")
    (twins(held) / "state" / "a").unlink()
    restored, complaints = held.restore()
    assert restored is None and complaints == [
        "checkpoint of epoch 5 is damaged beyond repair (state/a does not match its hash, and its twin is damaged too)"
    ]
    assert content(held.state) == {"metadata": b"m"}, "only the file that an armed query may have written stays"
    again, complaints_again = CheckpointStore(held.folder).restore()
    assert again is None and len(complaints_again) == 1, "nobody may take it for a store that never held anything"


def test_what_can_be_dispensed_with_is_missing_and_the_rest_is_there(held: CheckpointStore) -> None:
    flip(held.state / "state" / "a")
    (twins(held) / "state" / "a").unlink()
    restored, complaints = held.restore(lambda name: name == "state/a")
    rest = {name: body for name, body in FILES.items() if name != "state/a"}
    assert restored is not None and restored.about.epoch == 5 and list(restored.files) == list(rest)
    assert content(held.state) == rest and len(complaints) == 1 and complaints[0].endswith("; goes on without it")
    assert held.restore(lambda name: False)[0] is None, "its manifest still knows it"


TEXTS = [
    "", "{", "[]", "{}", "5", '{"digest": "00", "manifest": []}', '{"digest": 5, "manifest": {}}', '{"manifest": {}}',
    '{"digest": "00", "manifest": {"about": {"epoch": 5}, "files": {"../x": [0, ""]}}}',
    '{"digest": "' + digest(b"[]") + '", "manifest": []}',
]  # fmt: skip


@pytest.mark.parametrize("kind", ["json", "twin"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_damaged_manifest_has_a_twin_too(held: CheckpointStore, kind: str, text: str) -> None:
    manifest(held.folder, 5, kind).write_text(text)
    restored, _ = CheckpointStore(held.folder).restore()
    assert restored is not None and restored.about.epoch == 5 and content(held.state) == FILES


def test_a_manifest_in_which_one_bit_changed_is_not_believed(held: CheckpointStore) -> None:
    """It is still of the right shape, and would have whole files taken for damaged ones."""
    known = digest(FILES["state/a"])
    changed = known[:-1] + ("0" if known[-1] != "0" else "1")
    path = manifest(held.folder, 5)
    path.write_text(path.read_text().replace(known, changed))
    restored, complaints = CheckpointStore(held.folder).restore()
    assert restored is not None and restored.about.epoch == 5 and complaints == []


@pytest.mark.parametrize("text", TEXTS)
def test_a_store_without_a_manifest_to_believe_can_be_opened_and_filled(
    held: CheckpointStore, primary: Primary, text: str
) -> None:
    for kind in ("json", "twin"):
        manifest(held.folder, 5, kind).write_text(text)
    primary.store = again = CheckpointStore(held.folder)
    with pytest.raises(CheckpointDamaged, match="this store lacks files"):
        primary.ship(6, {**FILES, "state/c": b"cc"})
    primary.shipped = Shipped({})  # as the keeper does after a refusal
    primary.ship(7, FILES)
    restored, complaints = again.restore()
    assert restored is not None and restored.about.epoch == 7 and complaints == [] and content(again.state) == FILES


def test_nothing_but_unreadable_manifests_is_nothing(held: CheckpointStore) -> None:
    for kind in ("json", "twin"):
        manifest(held.folder, 5, kind).write_text("{")
    restored, complaints = CheckpointStore(held.folder).restore()
    assert restored is None and len(complaints) == 1
    assert complaints[0].startswith("checkpoint of epoch 5 is damaged beyond repair (the manifest is damaged: ")


def test_restoring_removes_what_came_after(store: CheckpointStore, primary: Primary) -> None:
    """Parts of a version that never became whole, and files that a query wrote: gone; its metadata file stays."""
    primary.ship(0, {"a": b"1"})
    put(store.state, "state/0/9.delta", b"not ours")
    put(store.state, "metadata", b"an armed query has begun here")
    restored, _ = store.restore()
    assert restored is not None and sorted(content(store.state)) == ["a", "metadata"]


def test_a_version_that_broke_off_is_not_a_version(store: CheckpointStore, primary: Primary, small_parts: int) -> None:
    primary.ship(0, {"a": b"1"})
    files = {"a": b"1", "big": b"x" * 35, "other": b"y" * 12}
    parts = list(primary.shipped.parts(primary.needed(files), About(1)))
    for part, body in parts[:-1]:
        assert store.paste(part, body) is None
    assert store.versions() == [0]
    again = CheckpointStore(store.folder)
    restored, complaints = again.restore()
    assert restored is not None and restored.about.epoch == 0 and complaints == []
    assert content(again.state) == {"a": b"1"}


def test_a_version_that_broke_off_can_be_sent_again(store: CheckpointStore, primary: Primary, small_parts: int) -> None:
    """As the keeper does: after a failure it forgets what was shipped and sends everything."""
    files = {"a": b"1", "big": b"x" * 35}
    part, body = next(primary.shipped.parts(primary.needed(files), About(1)))
    store.paste(part, body)
    primary.shipped = Shipped({})
    primary.ship(1, files)
    assert content(store.state) == files


def test_sending_everything_again_leaves_nothing_of_older_versions(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"old": b"1"})
    primary.shipped = Shipped({})  # as after a failed capture
    for epoch in (1, 2, 3):
        primary.ship(epoch, {"new": b"2"})
    assert store.restore()[0] is not None
    assert content(store.state) == {"new": b"2"}


def test_a_store_that_lost_its_files_does_not_take_a_delta(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"old": b"1"})
    primary.store = store = CheckpointStore(store.folder, clear=True)
    files = {"old": b"1", "new": b"2"}
    with pytest.raises(CheckpointDamaged, match="this store lacks files that the version builds on"):
        primary.ship(1, files)
    assert store.versions() == []
    primary.shipped = Shipped({})  # as the keeper does after a failure
    primary.ship(1, files)
    assert store.restore()[0] is not None and content(store.state) == files


def test_a_refused_delta_leaves_the_versions_before_it(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1"})
    primary.shipped.files["lost"] = (1, digest(b"x"))  # what the sender wrongly believes to be there
    with pytest.raises(CheckpointDamaged, match="lacks files"):
        primary.ship(1, {"a": b"1", "lost": b"x", "new": b"2"})
    restored, complaints = store.restore()
    assert restored is not None and restored.about.epoch == 0 and complaints == []
    assert content(store.state) == {"a": b"1"}


def test_a_whole_version_forgets_parts_that_broke_off(
    store: CheckpointStore, primary: Primary, small_parts: int
) -> None:
    part, body = next(primary.shipped.parts(primary.needed({"gone": b"x" * 10, "b": b"y"}), About(1)))
    assert store.paste(part, body) is None
    primary.shipped = Shipped({})
    primary.ship(2, {"b": b"y"})
    restored, _ = store.restore()
    assert restored is not None and list(restored.files) == ["b"] and content(store.state) == {"b": b"y"}


def zipped(chunks: list[Chunk], body: bytes) -> bytes:
    return zlib.compress(msgspec.json.encode(chunks) + b"\n" + body)


LAST = CheckpointPart(version=Version(About(0), ""))


def test_what_arrives_damaged_is_refused_and_leaves_no_version(store: CheckpointStore) -> None:
    chunk = Chunk("a", 0, 2, (2, digest(b"hi")))
    total = digest(f"a:{digest(b'hi')};".encode())
    last = CheckpointPart(first=True, version=Version(About(0), total, whole=True))
    with pytest.raises(CheckpointDamaged, match="a arrived damaged"):
        store.paste(last, zipped([chunk], b"ho"))
    with pytest.raises(CheckpointDamaged, match="a arrived damaged"):
        store.paste(CheckpointPart((chunk,)), b"h")
    assert store.versions() == [] and content(store.state) == {}
    assert store.paste(last, zipped([chunk], b"hi")) == 0


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "..", "a/.."])
def test_a_name_that_would_leave_the_store_is_refused(store: CheckpointStore, tmp_path: Path, name: str) -> None:
    before = content(tmp_path)
    with pytest.raises(CheckpointDamaged, match=f"illegal file name '{name}'"):
        store.paste(CheckpointPart((Chunk(name, 0, 1, (1, digest(b"x"))),)), b"x")
    with pytest.raises(CheckpointDamaged, match="illegal file name"):
        store.paste(LAST, zipped([Chunk(name, 0, 1, (1, digest(b"x")))], b"x"))
    assert content(tmp_path) == before
    assert store.versions() == []


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"not compressed", id="not compressed"),
        pytest.param(b"", id="empty"),
        pytest.param(zlib.compress(b"no newline"), id="no header"),
        pytest.param(
            zlib.compress(b"[[1]]\n"),
            id="another shape",
        ),
    ],
)
def test_nonsense_is_damage(store: CheckpointStore, body: bytes) -> None:
    with pytest.raises(CheckpointDamaged):
        store.paste(LAST, body)


def test_a_version_whose_manifest_cannot_be_written_changes_nothing(held: CheckpointStore, primary: Primary) -> None:
    (held.folder / "incoming" / "manifest").mkdir()
    with pytest.raises(OSError):
        primary.ship(6, {"metadata": b"m", "state/c": b"cc"})
    (held.folder / "incoming" / "manifest").rmdir()
    clone = held.clone(held.folder.parent / "clone")
    for store in (clone, held):
        restored, complaints = store.restore()
        assert restored is not None and restored.about.epoch == 5 and complaints == [] and content(store.state) == FILES


def test_an_older_version_that_comes_late_changes_nothing(held: CheckpointStore, primary: Primary) -> None:
    primary.shipped = Shipped({})
    primary.ship(4, {"metadata": b"m", "state/old": b"o"})
    clone = held.clone(held.folder.parent / "clone")
    for store in (clone, held):
        restored, complaints = store.restore()
        assert restored is not None and restored.about.epoch == 5 and complaints == [] and content(store.state) == FILES


def test_a_disk_that_refuses_raises_oserror(store: CheckpointStore) -> None:
    put(store.folder, "incoming/a", b"a file where a folder is needed")
    with pytest.raises(OSError):
        store.paste(CheckpointPart((Chunk("a/b", 0, 1, (1, digest(b"x"))),)), b"x")


# -- property ---------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["metadata", "commits/1", "state/0/0/1.delta", "state/0/0/2.zip", "state/0/0/SSTs/x.sst", "y"])
CAPTURES = st.lists(
    st.tuples(
        st.sets(NAMES),
        st.sampled_from(["whole", "whole", "whole", "broken off", "reopened", "promoted"]),
        st.integers(0, 5),
    ),
    max_size=8,
)


@settings(PATIENT, max_examples=60)
@given(CAPTURES, st.integers(1, 40), st.dictionaries(NAMES, st.sampled_from(["state", "twins"])))
def test_after_any_captures_the_newest_version_is_restored_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    captures: list[tuple[set[str], str, int]],
    part_bytes: int,
    damage: dict[str, str],
) -> None:
    """Also when of every file one of its two copies is damaged. A file's name says what is in it, as with Spark.
    Broken-off captures are sent again in full to a new store, as to a new standby."""
    root = tmp_path_factory.mktemp("ck")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_BYTES", part_bytes)
        patch.setattr(os, "fsync", lambda fd: None)  # only for speed: what is tested here is not durability
        primary = Primary(root / "primary", CheckpointStore(root / "store-0"))
        newest: tuple[int, dict[str, bytes]] | None = None
        for epoch, (names, fate, cut) in enumerate(captures):
            files = {name: name.encode() * len(name) for name in sorted(names)}
            if fate == "broken off":
                messages = list(primary.shipped.parts(primary.needed(files), About(epoch)))
                for part, body in messages[: min(cut, len(messages) - 1)]:
                    assert primary.store.paste(part, body) is None
                primary.store = CheckpointStore(root / f"store-{epoch + 1}", clear=True)
                primary.shipped = Shipped({})
            elif fate == "reopened":
                primary.store = CheckpointStore(primary.store.folder)
            elif fate == "promoted":
                primary.store = primary.store.clone(root / f"store-{epoch + 1}")
            primary.ship(epoch, files)
            newest = epoch, files
            assert primary.store.versions() == [epoch]
            assert content(primary.store.state) == files == content(twins(primary.store)), "no file too few or too many"

        store = CheckpointStore(primary.store.folder)
        if newest is None:
            assert store.restore() == (None, [])
            return
        epoch, files = newest
        harmed = {name: where for name, where in damage.items() if name in files}
        for name, where in harmed.items():
            (store.folder / where / name).write_bytes(b"rot")
        restored, complaints = store.restore()
        assert len(complaints) == list(harmed.values()).count("state")
        assert restored is not None and restored.about.epoch == epoch
        assert content(store.state) == files
