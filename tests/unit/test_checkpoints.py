"""Checkpoints as files: what a version needs, what is shipped of it, and what a store gives back."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.runtime import checkpoints
from understudy.runtime.checkpoints import (
    VERSIONS_KEPT,
    CheckpointDamaged,
    CheckpointStore,
    Shipped,
    digest,
    files_of_version,
    next_watermark_ms,
    sizes_of_version,
)

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines

# -- what a version needs -----------------------------------------------------------------------------------------


def put(folder: Path, name: str, data: bytes | str = b"") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def spark_folder(folder: Path, batches: int) -> Path:
    """The logs of a query that has committed ``batches`` batches, with Hadoop's checksum files beside them."""
    put(folder, "metadata", '{"id":"q"}')
    for batch in range(batches):
        for log in ("offsets", "commits"):
            put(folder, f"{log}/{batch}", f"v1\n{log} {batch}")
            put(folder, f"{log}/.{batch}.crc", b"crc")
    put(folder, f"offsets/{batches}", "v1\nbegun, not committed")
    return folder


def image(path: Path, *, tables: tuple[str, ...] = (), logs: tuple[str, ...] = (), version: str = "v1\n") -> None:
    """A RocksDB image as Spark writes it: an archive whose member ``metadata`` names the files it refers to."""
    described = {
        "sstFiles": [{"localFileName": t[:6] + ".sst", "dfsSstFileName": t, "sizeBytes": 3} for t in tables],
        "logFiles": [{"localFileName": n[:6] + ".log", "dfsLogFileName": n, "sizeBytes": 3} for n in logs],
        "numKeys": 1,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata", version + json.dumps(described))
        archive.writestr("MANIFEST-000005", "rocksdb's own")
    for table in tables:
        put(path.parent, f"SSTs/{table}", b"sst")
    for log in logs:
        put(path.parent, f"logs/{log}", b"log")


def logs_of(batch: int) -> list[str]:
    return sorted(["metadata", *(f"{log}/{b}" for log in ("offsets", "commits") for b in (batch - 1, batch) if b >= 0)])


def names(folder: Path, batch: int) -> list[str]:
    needed = files_of_version(folder, batch)
    assert all(path == folder / name and path.is_file() for name, path in needed.items())
    return sorted(needed)


def test_before_the_first_batch_nothing_is_needed(tmp_path: Path) -> None:
    assert files_of_version(tmp_path, -1) == {}


def test_a_query_without_state_needs_its_last_log_entries(tmp_path: Path) -> None:
    spark_folder(tmp_path, 5)
    assert names(tmp_path, 0) == logs_of(0) == ["commits/0", "metadata", "offsets/0"]
    assert names(tmp_path, 4) == logs_of(4) == ["commits/3", "commits/4", "metadata", "offsets/3", "offsets/4"]


def test_a_batch_that_is_not_committed_is_refused(tmp_path: Path) -> None:
    spark_folder(tmp_path, 5)
    with pytest.raises(FileNotFoundError, match="batch 5 is not committed in"):
        files_of_version(tmp_path, 5)


def test_deltas_and_snapshots(tmp_path: Path) -> None:
    """The default provider: version V of the state (batch V-1) is the newest snapshot up to it plus deltas."""
    spark_folder(tmp_path, 8)
    for version in range(1, 9):
        put(tmp_path, f"state/0/1/{version}.delta", b"d")
        put(tmp_path, f"state/0/1/.{version}.delta.crc", b"c")
    put(tmp_path, "state/0/1/3.snapshot", b"s")
    put(tmp_path, "state/0/1/6.snapshot", b"s")
    put(tmp_path, "state/0/1/4.delta.tmp", b"torn")
    state = "state/0/1"
    assert names(tmp_path, 1) == sorted(logs_of(1) + [f"{state}/1.delta", f"{state}/2.delta"])
    assert names(tmp_path, 2) == sorted(logs_of(2) + [f"{state}/3.snapshot"])
    assert names(tmp_path, 4) == sorted(logs_of(4) + [f"{state}/3.snapshot", f"{state}/4.delta", f"{state}/5.delta"])
    assert names(tmp_path, 7) == sorted(logs_of(7) + [f"{state}/6.snapshot", f"{state}/7.delta", f"{state}/8.delta"])


def test_changelogs_and_images(tmp_path: Path) -> None:
    """RocksDB with changelogs: the newest image with the tables that it refers to, plus changelogs."""
    spark_folder(tmp_path, 6)
    state = tmp_path / "state" / "0" / "0" / "left-keyToNumValues"
    for version in range(1, 7):
        put(state, f"{version}.changelog", b"c")
    image(state / "2.zip", tables=("000001-uuid.sst",), logs=("000007-uuid.log",))
    image(state / "5.zip", tables=("000001-uuid.sst", "000009-other.sst"))
    put(state, "SSTs/000004-nobody.sst", b"no image refers to it")
    here = "state/0/0/left-keyToNumValues"
    assert names(tmp_path, 0) == sorted(logs_of(0) + [f"{here}/1.changelog"])
    assert names(tmp_path, 3) == sorted(
        logs_of(3)
        + [f"{here}/2.zip", f"{here}/SSTs/000001-uuid.sst", f"{here}/logs/000007-uuid.log"]
        + [f"{here}/3.changelog", f"{here}/4.changelog"]
    )
    assert names(tmp_path, 5) == sorted(
        logs_of(5)
        + [f"{here}/5.zip", f"{here}/SSTs/000001-uuid.sst", f"{here}/SSTs/000009-other.sst", f"{here}/6.changelog"]
    )


def test_sizes_of_a_state_and_of_what_changed_in_it(tmp_path: Path) -> None:
    spark_folder(tmp_path, 4)
    for partition, size in ((0, 10), (1, 5)):
        state = tmp_path / "state" / "0" / str(partition)
        for version in range(1, 5):
            put(state, f"{version}.changelog", b"c" * size * version)
    assert sizes_of_version(tmp_path, 2) == (15 * (1 + 2 + 3), 15 * 3)
    image(state / "3.zip", tables=("000001-uuid.sst",))
    whole, changed = sizes_of_version(tmp_path, 2)
    assert changed == 15 * 3, "an image does not hide what changed"
    assert whole == 10 * (1 + 2 + 3) + (state / "3.zip").stat().st_size + 3
    assert sizes_of_version(tmp_path, -1) == (0, 0)


def test_the_watermark_after_a_batch(tmp_path: Path) -> None:
    put(tmp_path, "commits/7", 'v1\n{"nextBatchWatermarkMs":1700000000123}')
    assert next_watermark_ms(tmp_path, 7) == 1_700_000_000_123


def test_the_metadata_of_an_image_as_spark_writes_it(tmp_path: Path) -> None:
    spark_folder(tmp_path, 1)
    state = tmp_path / "state" / "0" / "0"
    state.mkdir(parents=True)
    with zipfile.ZipFile(state / "1.zip", "w") as archive:
        archive.writestr(
            "metadata",
            'v1\n{"sstFiles":[{"localFileName":"000001.sst","dfsSstFileName":"000001-uuid.sst","sizeBytes":3}],'
            '"logFiles":[],"numKeys":1}',
        )
    put(state, "SSTs/000001-uuid.sst", b"sst")
    assert names(tmp_path, 0) == sorted(logs_of(0) + ["state/0/0/1.zip", "state/0/0/SSTs/000001-uuid.sst"])


def test_every_partition_and_the_schema_of_the_state(tmp_path: Path) -> None:
    spark_folder(tmp_path, 2)
    put(tmp_path, "state/0/_metadata/schema", b"v2")
    put(tmp_path, "state/0/_metadata/.schema.crc", b"c")
    put(tmp_path, "state/0/_metadata/v2/0_abc", b"nested")
    for partition in (0, 1):
        put(tmp_path, f"state/0/{partition}/1.delta", b"d")
        put(tmp_path, f"state/0/{partition}/2.delta", b"d")
    assert names(tmp_path, 1) == sorted(
        logs_of(1)
        + ["state/0/_metadata/schema", "state/0/_metadata/v2/0_abc"]
        + [f"state/0/{p}/{v}.delta" for p in (0, 1) for v in (1, 2)]
    )


def test_a_damaged_image_is_noticed(tmp_path: Path) -> None:
    spark_folder(tmp_path, 1)
    put(tmp_path, "state/0/0/1.zip", b"not an archive")
    with pytest.raises(zipfile.BadZipFile):
        files_of_version(tmp_path, 0)


# -- shipping and pasting -----------------------------------------------------------------------------------------


class Primary:
    """A folder of files that come and go, shipped to a store."""

    def __init__(self, folder: Path, store: CheckpointStore) -> None:
        self.folder, self.store = folder, store
        self.shipped = Shipped({})
        folder.mkdir(parents=True, exist_ok=True)

    def needed(self, files: dict[str, bytes]) -> dict[str, Path]:
        return {name: put(self.folder, name, data) for name, data in files.items()}

    def ship(self, epoch: int, files: dict[str, bytes]) -> list[int]:
        """Bring the store to a version. Returns the sizes of the messages."""
        sizes, results = [], []
        for header, body in self.shipped.parts(self.needed(files), {"epoch": epoch, "base": 0}):
            header = json.loads(json.dumps(header))  # as it arrives
            results.append(self.store.paste(header, body))
            sizes.append(len(body))
        assert results == [None] * (len(results) - 1) + [epoch]
        self.shipped.accepted()
        return sizes


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "store")


@pytest.fixture
def primary(tmp_path: Path, store: CheckpointStore) -> Primary:
    return Primary(tmp_path / "primary", store)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(checkpoints, "PART_BYTES", 10)
    return 10


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def manifest(folder: Path, epoch: int) -> Path:
    return folder / "manifests" / f"{epoch}.json"


def test_a_version_arrives_whole(store: CheckpointStore, primary: Primary) -> None:
    files = {"metadata": b"m", "state/0/1.delta": b"delta" * 100, "empty": b""}
    primary.ship(4, files)
    assert store.versions() == [4]
    assert content(store.state) == files
    restored, complaints = store.restore()
    assert complaints == []
    assert restored == {
        "epoch": 4,
        "base": 0,
        "files": {name: (len(data), digest(data)) for name, data in files.items()},
    }
    assert content(store.state) == files


def test_only_the_difference_is_shipped(store: CheckpointStore, primary: Primary) -> None:
    old = os.urandom(100_000)
    assert sum(primary.ship(0, {"old": old})) > 100_000
    assert sum(primary.ship(1, {"old": old, "new": b"n"})) < 1000
    assert sum(primary.ship(2, {"new": b"n"})) < 1000
    restored, _ = store.restore()
    assert restored is not None and list(restored["files"]) == ["new"]


def test_the_empty_version_is_a_version(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(-1, {})
    assert store.versions() == [-1]
    assert store.restore() == ({"epoch": -1, "base": 0, "files": {}}, [])


def test_files_larger_than_a_part(store: CheckpointStore, primary: Primary, small_parts: int) -> None:
    files = {"a": b"0123456789" * 3, "b": b"x", "c": b"y" * 25, "d": b"", "e": b"z" * 10}
    parts = list(Shipped({}).parts(primary.needed(files), {"epoch": 1}))
    assert all(len(body) == small_parts for _, body in parts[:-1])
    assert len(parts) == 7  # 66 bytes in tens, and the rest
    assert [header["zipped"] for header, _ in parts] == [0] * 6 + [1]
    assert [header["first"] for header, _ in parts] == [True] + [False] * 6
    assert parts[-1][0]["whole"] is True
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


def test_the_last_two_versions_are_kept(store: CheckpointStore, primary: Primary) -> None:
    assert VERSIONS_KEPT == 2
    for epoch in range(5):
        primary.ship(epoch, {"metadata": b"m", f"only-{epoch}": b"x", f"from-{epoch // 2}": b"y"})
    assert store.versions() == [3, 4]
    assert sorted(content(store.state)) == ["from-1", "from-2", "metadata", "only-3", "only-4"]


def test_a_store_opened_again_goes_on(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1"})
    primary.store = CheckpointStore(store.folder)
    primary.ship(1, {"a": b"1", "b": b"2"})
    restored, _ = CheckpointStore(store.folder).restore()
    assert restored is not None and sorted(restored["files"]) == ["a", "b"]


def test_clear_begins_anew(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1"})
    cleared = CheckpointStore(store.folder, clear=True)
    assert cleared.versions() == [] and content(cleared.state) == {}
    assert cleared.restore() == (None, [])


# -- damage -------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_versions(store: CheckpointStore, primary: Primary) -> dict[str, bytes]:
    older = {"metadata": b"m", "state/a": b"aa"}
    primary.ship(3, older)
    primary.ship(5, {**older, "state/b": b"bb"})
    return older


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_a_damaged_file_means_the_older_version_and_a_complaint(
    store: CheckpointStore, two_versions: dict[str, bytes]
) -> None:
    flip(store.state / "state" / "b")
    restored, complaints = CheckpointStore(store.folder).restore()
    assert restored is not None and restored["epoch"] == 3
    assert complaints == ["checkpoint of epoch 5 is damaged (state/b does not match its hash); using an older version"]
    assert content(store.state) == two_versions
    assert store.versions() == [3]


@pytest.mark.parametrize("harm", ["missing", "short", "long"])
def test_a_file_that_is_missing_or_of_another_length(
    store: CheckpointStore, two_versions: dict[str, bytes], harm: str
) -> None:
    path = store.state / "state" / "b"
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes({"short": b"b", "long": b"bbb"}[harm])
    restored, complaints = store.restore()
    assert restored is not None and restored["epoch"] == 3
    assert len(complaints) == 1 and complaints[0].startswith("checkpoint of epoch 5 is damaged (")
    assert content(store.state) == two_versions


def test_damage_to_what_both_versions_share_leaves_nothing(
    store: CheckpointStore, two_versions: dict[str, bytes]
) -> None:
    flip(store.state / "state" / "a")
    restored, complaints = store.restore()
    assert restored is None
    assert [c.split(" is damaged")[0] for c in complaints] == ["checkpoint of epoch 5", "checkpoint of epoch 3"]
    assert store.versions() == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"files": {"state/a": [2, "00"]}}', '{"files": {"../x": [0, ""]}}']
)
def test_a_damaged_manifest_means_the_older_version(
    store: CheckpointStore, two_versions: dict[str, bytes], text: str
) -> None:
    manifest(store.folder, 5).write_text(text)
    restored, complaints = store.restore()
    assert restored is not None and restored["epoch"] == 3
    assert len(complaints) == 1 and "epoch 5 is damaged" in complaints[0]


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_store_with_a_damaged_manifest_can_be_opened(
    store: CheckpointStore, two_versions: dict[str, bytes], text: str
) -> None:
    manifest(store.folder, 5).write_text(text)
    restored, complaints = CheckpointStore(store.folder).restore()
    assert restored is not None and restored["epoch"] == 3
    assert len(complaints) == 1


@pytest.mark.parametrize("text", ['{"files": []}', '{"files": {"state/a": 5}}', '{"files": null}'])
def test_a_manifest_of_another_shape_means_the_older_version(
    store: CheckpointStore, two_versions: dict[str, bytes], text: str
) -> None:
    manifest(store.folder, 5).write_text(text)
    restored, complaints = store.restore()
    assert restored is not None and restored["epoch"] == 3 and len(complaints) == 1


def test_a_damaged_old_manifest_does_not_stop_new_versions(
    store: CheckpointStore, primary: Primary, two_versions: dict[str, bytes]
) -> None:
    manifest(store.folder, 3).write_text("")
    primary.ship(7, two_versions)
    assert store.versions() == [5, 7]


def test_when_nothing_is_whole_nothing_is_left(store: CheckpointStore, two_versions: dict[str, bytes]) -> None:
    flip(store.state / "state" / "a")
    assert store.restore()[0] is None
    assert content(store.state) == {"metadata": b"m"}, "only the file that an armed query may have written stays"
    assert store.versions() == [] and CheckpointStore(store.folder).restore() == (None, [])


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
    parts = list(primary.shipped.parts(primary.needed(files), {"epoch": 1}))
    for header, body in parts[:-1]:
        assert store.paste(header, body) is None
    assert store.versions() == [0]
    again = CheckpointStore(store.folder)
    restored, complaints = again.restore()
    assert (restored or {})["epoch"] == 0 and complaints == []
    assert content(again.state) == {"a": b"1"}


def test_a_version_that_broke_off_can_be_sent_again(store: CheckpointStore, primary: Primary, small_parts: int) -> None:
    """As the keeper does: after a failure it forgets what was shipped and sends everything."""
    files = {"a": b"1", "big": b"x" * 35}
    header, body = next(primary.shipped.parts(primary.needed(files), {"epoch": 1}))
    store.paste(header, body)
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
    assert (restored or {})["epoch"] == 0 and complaints == []
    assert content(store.state) == {"a": b"1"}


def test_a_whole_version_forgets_parts_that_broke_off(
    store: CheckpointStore, primary: Primary, small_parts: int
) -> None:
    header, body = next(primary.shipped.parts(primary.needed({"gone": b"x" * 10, "b": b"y"}), {"epoch": 1}))
    assert store.paste(header, body) is None
    primary.shipped = Shipped({})
    primary.ship(2, {"b": b"y"})
    restored, _ = store.restore()
    assert list((restored or {})["files"]) == ["b"] and content(store.state) == {"b": b"y"}


def zipped(entries: list[list[Any]], body: bytes) -> bytes:
    return zlib.compress(json.dumps(entries).encode() + b"\n" + body)


def test_what_arrives_damaged_is_refused_and_leaves_no_version(store: CheckpointStore) -> None:
    entry = ["a", 0, 2, 2, digest(b"hi")]
    total = digest(f"a:{digest(b'hi')};".encode())
    last = {"zipped": 1, "first": True, "whole": True, "drop": [], "manifest": {"epoch": 0}, "sum": total}
    with pytest.raises(CheckpointDamaged, match="a arrived damaged"):
        store.paste(last, zipped([entry], b"ho"))
    with pytest.raises(CheckpointDamaged, match="a arrived damaged"):
        store.paste({"files": [entry], "zipped": 0}, b"h")
    assert store.versions() == [] and content(store.state) == {}
    assert store.paste(last, zipped([entry], b"hi")) == 0


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "..", "a/.."])
def test_a_name_that_would_leave_the_store_is_refused(store: CheckpointStore, tmp_path: Path, name: str) -> None:
    before = content(tmp_path)
    with pytest.raises(CheckpointDamaged, match=f"illegal file name '{name}'"):
        store.paste({"files": [[name, 0, 1, 1, digest(b"x")]]}, b"x")
    with pytest.raises(CheckpointDamaged, match="illegal file name"):
        store.paste({"zipped": 1, "drop": [], "manifest": {"epoch": 0}}, zipped([[name, 0, 1, 1, digest(b"x")]], b"x"))
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
        store.paste({"zipped": 1, "drop": [], "manifest": {"epoch": 0}}, body)


def test_a_disk_that_refuses_raises_oserror(store: CheckpointStore) -> None:
    put(store.folder, "incoming/a", b"a file where a folder is needed")
    with pytest.raises(OSError):
        store.paste({"files": [["a/b", 0, 1, 1, digest(b"x")]]}, b"x")


# -- clone and forget -----------------------------------------------------------------------------------------------


def test_rot_in_a_file_that_all_versions_share_is_found_and_mended(store: CheckpointStore, primary: Primary) -> None:
    files = {"shared": b"s" * 50, "a": b"1"}
    primary.ship(0, files)
    primary.ship(1, {**files, "b": b"2"})
    store.scrub()
    (store.state / "shared").write_bytes(b"t" * 50)
    with pytest.raises(CheckpointDamaged, match="shared does not match its hash"):
        store.scrub()
    primary.shipped = Shipped({})  # as the keeper does after a refusal
    primary.ship(2, {**files, "b": b"2"})
    store.scrub()
    restored, complaints = store.restore()
    assert (restored or {})["epoch"] == 2 and complaints == []


def test_scrubbing_gets_around_to_every_file(
    store: CheckpointStore, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SCRUB_BYTES", 10)
    primary.ship(0, {f"f{i}": b"x" * 20 for i in range(5)})
    (store.state / "f3").unlink()
    with pytest.raises(CheckpointDamaged, match="f3: No such file"):
        for _ in range(5):
            store.scrub()


def test_scrubbing_nothing_is_fine(store: CheckpointStore) -> None:
    store.scrub()


def test_a_clone_is_made_of_links_and_lives_on_its_own(
    store: CheckpointStore, two_versions: dict[str, bytes], tmp_path: Path
) -> None:
    newest = {**two_versions, "state/b": b"bb"}
    clone = store.clone(tmp_path / "clone")
    assert clone.versions() == [5] and content(clone.state) == newest
    for name in newest:
        assert (clone.state / name).stat().st_ino == (store.state / name).stat().st_ino
    store.forget()
    for name in newest:
        (store.state / name).unlink()
    restored, complaints = CheckpointStore(tmp_path / "clone").restore()
    assert (restored or {})["epoch"] == 5 and complaints == []
    assert content(clone.state) == newest


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
    assert sorted((restored or {})["files"]) == ["b", "c"]
    assert content(store.state) == {"a": b"1", "b": b"2"}, "the original is untouched"


def test_a_store_that_forgot_vouches_for_nothing_but_leaves_the_files(store: CheckpointStore, primary: Primary) -> None:
    primary.ship(0, {"a": b"1"})
    store.forget()
    assert store.versions() == []
    assert content(store.state) == {"a": b"1"}
    assert store.restore() == (None, [])
    assert content(store.state) == {}, "nothing is whole"


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
@given(CAPTURES, st.integers(1, 40), st.booleans())
def test_after_any_captures_the_newest_version_is_restored_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    captures: list[tuple[set[str], str, int]],
    part_bytes: int,
    damage: bool,
) -> None:
    """A file's name says what is in it, as with Spark. Broken-off captures are sent again in full to a new store,
    as to a new standby."""
    root = tmp_path_factory.mktemp("ck")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "PART_BYTES", part_bytes)
        patch.setattr(os, "fsync", lambda fd: None)  # only for speed: what is tested here is not durability
        primary = Primary(root / "primary", CheckpointStore(root / "store-0"))
        versions: list[tuple[int, dict[str, bytes]]] = []
        for epoch, (names, fate, cut) in enumerate(captures):
            files = {name: name.encode() * len(name) for name in sorted(names)}
            if fate == "broken off":
                parts = list(primary.shipped.parts(primary.needed(files), {"epoch": epoch}))
                for header, body in parts[: min(cut, len(parts) - 1)]:
                    assert primary.store.paste(header, body) is None
                primary.store = CheckpointStore(root / f"store-{epoch + 1}", clear=True)
                primary.shipped = Shipped({})
                versions.clear()
            elif fate == "reopened":
                primary.store = CheckpointStore(primary.store.folder)
            elif fate == "promoted":
                primary.store = primary.store.clone(root / f"store-{epoch + 1}")
                versions = versions[-1:]
            primary.ship(epoch, files)
            versions = [*versions, (epoch, files)][-VERSIONS_KEPT:]
            assert primary.store.versions() == [e for e, _ in versions]
            kept = {name for _, files in versions for name in files}
            assert set(content(primary.store.state)) == kept, "no file too few, no file too many"

        store = CheckpointStore(primary.store.folder)
        complaints_expected = 0
        if damage and len(versions) == 2 and (only := set(versions[1][1]) - set(versions[0][1]) - {"metadata"}):
            (store.state / min(only)).write_bytes(b"rot")
            versions.pop()
            complaints_expected = 1
        restored, complaints = store.restore()
        assert len(complaints) == complaints_expected
        if not versions:
            assert restored is None
            return
        epoch, files = versions[-1]
        assert restored is not None and restored["epoch"] == epoch
        found = content(store.state)
        if "metadata" not in files:
            found.pop("metadata", None)
        assert found == files
