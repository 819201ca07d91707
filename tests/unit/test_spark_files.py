"""What a version of a query's state needs of Spark's checkpoint folder."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from files import put
from spark_folders import image, spark_folder
from understudy.runtime.spark_files import (
    changes_in,
    files_of_version,
    files_since,
    image_in,
    move_in,
    next_watermark_ms,
    settings_of,
    sizes_of_version,
)


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


def large(folder: Path) -> Path:
    """Two stores; the second one's images are older."""
    spark_folder(folder, 9)
    for store in ("state/0/0", "state/0/1/left-keyToNumValues"):
        for version in range(1, 10):
            put(folder / store, f"{version}.changelog", b"c")
    image(folder / "state/0/0/2.zip", tables=("1-a.sst",))
    image(folder / "state/0/0/5.zip", tables=("1-a.sst", "2-b.sst"))
    image(folder / "state/0/1/left-keyToNumValues/4.zip", tables=("3-c.sst",), logs=("4-d.log",))
    put(folder, "state/0/_metadata/metadata", "described")
    return folder


def test_whoever_has_an_image_needs_only_the_changes_since(tmp_path: Path) -> None:
    large(tmp_path)
    held = files_of_version(tmp_path, 2)
    fresh = files_of_version(tmp_path, 8)
    # Spark has cleaned up: what the other one holds already need not be here.
    for gone in ("2.zip", "SSTs/1-a.sst", "3.changelog"):
        (tmp_path / "state/0/0" / gone).unlink()
    kept = files_since({}, held, fresh, tmp_path, 8) or {}
    left = "state/0/1/left-keyToNumValues"
    assert sorted(kept) == sorted(
        [*logs_of(8), "state/0/_metadata/metadata", "state/0/0/2.zip", "state/0/0/SSTs/1-a.sst"]
        + [f"state/0/0/{version}.changelog" for version in range(3, 10)]
        + [f"{left}/{version}.changelog" for version in range(1, 10)]
    )
    assert sorted(changes_in(kept)) == sorted(name for name in kept if name.endswith(".changelog"))


def test_whoever_is_given_an_image_needs_the_changes_since_that(tmp_path: Path) -> None:
    large(tmp_path)
    held, fresh = files_of_version(tmp_path, 2), files_of_version(tmp_path, 6)
    given = image_in(fresh)
    left = "state/0/1/left-keyToNumValues"
    assert sorted(given) == sorted(
        ["state/0/0/5.zip", "state/0/0/SSTs/1-a.sst", "state/0/0/SSTs/2-b.sst"]
        + [f"{left}/4.zip", f"{left}/SSTs/3-c.sst", f"{left}/logs/4-d.log"]
    )
    kept = files_since({n: Path("links", n) for n in given}, held, files_of_version(tmp_path, 8), tmp_path, 8) or {}
    assert sorted(kept) == sorted(files_of_version(tmp_path, 8))
    assert all(kept[name] == Path("links", name) for name in given)


@pytest.mark.parametrize("gone", ["state/0/0/7.changelog", "state/0/1/left-keyToNumValues/9.changelog"])
def test_without_all_changes_since_an_image_it_is_of_no_use(tmp_path: Path, gone: str) -> None:
    large(tmp_path)
    held, fresh = files_of_version(tmp_path, 2), files_of_version(tmp_path, 8)
    (tmp_path / gone).unlink()
    assert files_since({}, held, fresh, tmp_path, 8) is None


def test_an_image_that_is_newer_than_the_version_is_of_no_use(tmp_path: Path) -> None:
    large(tmp_path)
    given = image_in(files_of_version(tmp_path, 8))
    assert files_since(given, {}, files_of_version(tmp_path, 2), tmp_path, 2) is None


def test_names_with_ids_count_if_the_log_of_commits_has_them(tmp_path: Path) -> None:
    """Spark's second format: a query that was replaced may have written other files of the same version."""
    spark_folder(tmp_path, 6)
    mine, others = ({v: f"{v:08d}-{who}-0000-0000-000000000000" for v in range(1, 7)} for who in ("aaaa", "bbbb"))
    state = tmp_path / "state" / "0" / "0"
    for version in range(1, 7):
        ids = {"0": [[mine[version]], ["00000000-cccc-0000-0000-000000000000"]]}
        put(tmp_path, f"commits/{version - 1}", "v2\n" + json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": ids}))
        for id in (mine[version], others[version]):
            put(state, f"{version}_{id}.changelog", b"c")
    for version, id, table in ((2, mine[2], "1-mine.sst"), (4, others[4], "2-other.sst"), (4, mine[4], "3-mine.sst")):
        image(state / f"{version}_{id}.zip", tables=(table,))
    here = "state/0/0"
    assert names(tmp_path, 2) == sorted(
        {*logs_of(2), "commits/1"}
        | {f"{here}/2_{mine[2]}.zip", f"{here}/SSTs/1-mine.sst", f"{here}/3_{mine[3]}.changelog"}
    )
    assert names(tmp_path, 5) == sorted(
        {*logs_of(5), "commits/3"}
        | {f"{here}/4_{mine[4]}.zip", f"{here}/SSTs/3-mine.sst"}
        | {f"{here}/{version}_{mine[version]}.changelog" for version in (5, 6)}
    )


def test_a_version_whose_commits_are_gone_is_refused(tmp_path: Path) -> None:
    spark_folder(tmp_path, 4)
    for version in range(1, 5):
        put(tmp_path, f"state/0/0/{version}_{version:08d}-aaaa-0000-0000-000000000000.changelog", b"c")
        ids = {"0": [[f"{version:08d}-aaaa-0000-0000-000000000000"]]}
        put(tmp_path, f"commits/{version - 1}", "v2\n" + json.dumps({"stateUniqueIds": ids}))
    assert "commits/0" in names(tmp_path, 3)
    (tmp_path / "commits" / "1").unlink()
    with pytest.raises(FileNotFoundError, match="lacks changes up to version 4"):
        files_of_version(tmp_path, 3)


def test_the_settings_that_a_query_keeps(tmp_path: Path) -> None:
    assert settings_of(tmp_path) is None
    put(tmp_path, "offsets/9", 'v1\n{"batchWatermarkMs":0,"conf":{"a":"1"}}\n{"offset":1}')
    put(tmp_path, "offsets/10", 'v1\n{"batchWatermarkMs":0,"conf":{"a":"2"}}\n{"offset":2}')
    assert settings_of(tmp_path) == {"a": "2"}


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


def described(folder: Path, batch: int, root: str) -> Path:
    """What transformWithState writes about its state: a description, and where it is, with its whole path."""
    schemas, metadata = folder / "state/0/_stateSchema/default", folder / "state/0/_metadata/v2"
    for path in (schemas, metadata):
        path.mkdir(parents=True, exist_ok=True)
    (schemas / f"{batch}_4f5e").write_text("schema")
    name = f"file:{root}/state/0/_stateSchema/default/{batch}_4f5e"
    info = {"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": [name]}
    text = json.dumps({"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [info], "operatorPropertiesJson": "{}"})
    (metadata / str(batch)).write_text(f"v2\n{text}")
    return metadata / str(batch)


def test_descriptions_of_a_state_are_part_of_a_version(tmp_path: Path) -> None:
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
        for number in range(4):
            (tmp_path / log / str(number)).write_text("v1\n{}")
    (tmp_path / "metadata").write_text("{}")
    described(tmp_path, 0, "/x")
    described(tmp_path, 3, "/x")
    needed = files_of_version(tmp_path, 2)
    assert "state/0/_stateSchema/default/0_4f5e" in needed and "state/0/_metadata/v2/0" in needed
    assert not any("/3" in name for name in needed if name.startswith("state/"))


def test_a_folder_that_was_copied_from_elsewhere_is_made_its_own(tmp_path: Path) -> None:
    file = described(tmp_path / "here", 0, "/other/host/stages/s/state-1")
    linked = tmp_path / "link"
    linked.hardlink_to(file)
    before = linked.read_text()
    move_in(tmp_path / "here")
    (info,) = json.loads(file.read_text().partition("\n")[2])["stateStoreInfo"]
    (path,) = info["stateSchemaFilePaths"]
    assert path == f"file:{tmp_path}/here/state/0/_stateSchema/default/0_4f5e"
    assert Path(path.removeprefix("file:")).read_text() == "schema"
    assert linked.read_text() == before, "others may have links to the file"
    move_in(tmp_path / "nothing-there")
