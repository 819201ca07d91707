"""Sources: the same entry gives the same rows, today or after any number of crashes, and every row comes once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.errors import JobError
from understudy.sources import FolderSource, RateSource, RecordedSource, SparkSource, folder, generate_rows, rate, spark

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines

# -- rate -------------------------------------------------------------------------------------------------------


def test_rows_look_like_cars() -> None:
    rows = generate_rows(5, 10_000, keys=7, seed=3)
    assert (
        rows.schema
        == rate().arrow_schema()
        == pa.schema([("id", pa.int64()), ("road", pa.int64()), ("speed", pa.float64())])
    )
    assert rows["id"].to_pylist() == list(range(5, 10_005))
    road, speed = rows["road"].to_numpy(), rows["speed"].to_numpy()
    assert set(road) == set(range(7))
    assert np.bincount(road).min() > 10_000 / 7 * 0.8, "roads are about equally busy"
    assert speed.min() == 0 and speed.max() == 511 / 4
    assert np.array_equal(speed * 4, np.round(speed * 4)), "multiples of 1/4, so that sums are exact"


@settings(PATIENT, max_examples=60)
@given(st.integers(0, 10**12), st.lists(st.integers(0, 50), max_size=8), st.integers(1, 1 << 31), st.integers(-5, 5))
def test_a_row_depends_on_its_id_alone_however_epochs_are_cut(
    first: int, cuts: list[int], keys: int, seed: int
) -> None:
    whole = generate_rows(first, sum(cuts), keys=keys, seed=seed)
    pieces, at = [whole.schema.empty_table()], first
    for count in cuts:
        pieces.append(generate_rows(at, count, keys=keys, seed=seed))
        at += count
    assert pa.concat_tables(pieces).combine_chunks() == whole.combine_chunks()
    assert all(0 <= road < keys for road in whole["road"].to_pylist())


def split_mix_64(x: int) -> int:
    """The published finaliser, in plain integers."""
    mask = (1 << 64) - 1
    x &= mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


@settings(PATIENT, max_examples=60)
@given(st.integers(0, 1 << 60), st.integers(1, (1 << 32) - 1), st.integers(-(1 << 40), 1 << 40))
def test_rows_are_a_plain_hash_of_id_and_seed(row: int, keys: int, seed: int) -> None:
    bits = split_mix_64(row + (seed + 1) * 0x9E3779B97F4A7C15)
    expected = {"id": row, "road": ((bits >> 32) * keys) >> 32, "speed": (bits & 511) / 4}
    assert generate_rows(row, 1, keys=keys, seed=seed).to_pylist() == [expected]


def test_seeds_differ_and_equal_seeds_agree() -> None:
    tables = [generate_rows(0, 1000, keys=1000, seed=seed) for seed in (0, 1, 2, -1, 1 << 40)]
    for i, one in enumerate(tables):
        for other in tables[i + 1 :]:
            same = np.mean(one["road"].to_numpy() == other["road"].to_numpy())
            assert same < 0.02, "two seeds share no more rows than chance"
    assert tables[0] == generate_rows(0, 1000, keys=1000, seed=0)


@settings(PATIENT, max_examples=60)
@given(st.floats(0.5, 1e5), st.lists(st.floats(0, 3), max_size=30), st.integers(0, 30))
def test_the_rate_is_kept_and_a_crash_leaves_no_gap(per_second: float, pauses: list[float], crash: int) -> None:
    source = rate(per_second)
    cursor, entries = source.open([]), []
    for i, pause in enumerate(pauses):
        if i == crash:
            cursor = source.open(list(entries))
        entries.append(json.loads(json.dumps(cursor.take(pause))))  # entries are JSON
    produced = sum(e["count"] for e in entries)
    owed = per_second * sum(pauses)
    assert owed - 2 <= produced <= owed + 1e-6 * owed + 1, "no row early, and none late by more than a crash"
    expected = 0
    for entry in entries:
        assert entry["first"] == expected
        expected += entry["count"]


def test_pacing_to_the_row() -> None:
    cursor = rate(10).open([])
    assert [cursor.take(t)["count"] for t in (0.05, 0.05, 0.25, 0.0, 1.0)] == [0, 1, 2, 0, 10]


def test_an_epoch_has_a_limit_and_what_is_over_waits() -> None:
    cursor = rate(100, rows_per_epoch=30).open([])
    assert [cursor.take(t) for t in (0.5, 0.1, 0.0)] == [
        {"first": 0, "count": 30},
        {"first": 30, "count": 30},
        {"first": 60, "count": 0},
    ]


def test_without_a_rate_epochs_are_of_one_size() -> None:
    cursor = rate(None, rows_per_epoch=5).open([{"first": 0, "count": 5}])
    assert cursor.take(0.0) == {"first": 5, "count": 5}
    assert cursor.take(9.0) == {"first": 10, "count": 5}
    assert rate(None).open([]).take(0.0) == {"first": 0, "count": 1_000_000}


def test_a_cursor_reads_what_an_entry_says() -> None:
    source = rate(10, keys=9, seed=4)
    assert source.open([]).read({"first": 7, "count": 3}) == generate_rows(7, 3, keys=9, seed=4)
    assert source.open([]).read({"first": 7, "count": 0}).num_rows == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows_per_second": 0}, r"rate\(rows_per_second=0\): must be positive, or None"),
        ({"rows_per_second": -5}, r"rows_per_second=-5"),
        ({"keys": 0}, r"rate\(keys=0\): must be between 1 and 4294967295"),
        ({"keys": 1 << 32}, r"keys=4294967296"),
        ({"rows_per_epoch": 0}, r"rate\(rows_per_epoch=0\): must be between 1 and 5000000"),
        ({"rows_per_epoch": 5_000_001}, r"rows_per_epoch=5000001"),
    ],
)
def test_wrong_rates_name_the_parameter_and_the_remedy(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(JobError, match=message):
        rate(**wrong)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_rate_is_finite(value: float) -> None:
    with pytest.raises(JobError):
        rate(value)


# -- folder -----------------------------------------------------------------------------------------------------

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])


def table(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers), "word": [f"w{n}" for n in numbers]}, schema=SCHEMA)


def put(where: Path, name: str, *numbers: int, at: int = 0) -> None:
    """A file of a given age, renamed into place as the docstring asks."""
    hidden = where / f".{name}"
    pq.write_table(table(*numbers), hidden)
    os.utime(hidden, ns=(at * 10**9, at * 10**9))
    hidden.rename(where / name)


def test_files_come_oldest_first_and_once(tmp_path: Path) -> None:
    put(tmp_path, "b", 1, 2, at=10)
    put(tmp_path, "a", 3, at=20)
    put(tmp_path, "c", 4, at=10)
    cursor = folder(tmp_path).open([])
    entry = cursor.take(0.5)
    assert entry == {"files": ["b", "c", "a"]}
    assert cursor.read(entry) == table(1, 2, 4, 3)
    assert cursor.take(0.5) == {"files": []}
    put(tmp_path, "late", 5, at=1)
    assert cursor.take(0.5) == {"files": ["late"]}, "new is what was not seen, whatever its age"


def test_an_epoch_without_files_has_the_columns_all_the_same(tmp_path: Path) -> None:
    cursor = folder(tmp_path, schema=SCHEMA).open([])
    empty = cursor.read(cursor.take(0.5))
    assert empty.num_rows == 0 and empty.schema == SCHEMA


def test_a_folder_goes_on_after_its_entries(tmp_path: Path) -> None:
    for i in range(5):
        put(tmp_path, f"f{i}", i, at=i)
    source = folder(tmp_path, files_per_epoch=2)
    first = source.open([])
    entries = [first.take(0.5), first.take(0.5)]
    assert entries == [{"files": ["f0", "f1"]}, {"files": ["f2", "f3"]}]
    second = source.open(entries)
    assert second.read(entries[1]) == table(2, 3), "an old epoch can be read again"
    assert second.take(0.5) == {"files": ["f4"]}


def test_hidden_files_and_folders_are_not_data(tmp_path: Path) -> None:
    put(tmp_path, "data", 1)
    put(tmp_path, "_SUCCESS", 2)
    (tmp_path / ".hidden").write_bytes(b"junk")
    (tmp_path / "sub").mkdir()
    cursor = folder(tmp_path, schema=SCHEMA).open([])
    assert cursor.take(0.5) == {"files": ["data"]}


@settings(PATIENT, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=8),
    st.integers(1, 3),
    st.sets(st.integers(0, 12)),
)
def test_every_file_comes_exactly_once_through_any_crashes(
    tmp_path_factory: pytest.TempPathFactory, arrivals: list[tuple[int, int]], per_epoch: int, crashes: set[int]
) -> None:
    where = tmp_path_factory.mktemp("in")
    source = folder(where, schema=SCHEMA, files_per_epoch=per_epoch)
    cursor, entries, names = source.open([]), [], []
    for step in range(12):
        if step in crashes:
            cursor = source.open(list(entries))
        for count, age in arrivals[step : step + 1]:
            for i in range(count):
                names.append(f"f{step}-{i}")
                put(where, names[-1], len(names), at=age)
        entries.append(cursor.take(0.5))
    while (entry := cursor.take(0.5))["files"]:
        entries.append(entry)
    assert sorted(n for e in entries for n in e["files"]) == sorted(names)
    assert all(len(e["files"]) <= per_epoch for e in entries)
    rows = [cursor.read(e)["n"].to_pylist() for e in entries]
    assert rows == [source.open([]).read(e)["n"].to_pylist() for e in entries], "reading again gives the same rows"


@pytest.mark.parametrize("format", ["json", "csv", "arrow"])
def test_other_formats(tmp_path: Path, format: str) -> None:
    rows, path = table(1, 2), tmp_path / "one"
    if format == "json":
        path.write_text("".join(json.dumps(r) + "\n" for r in rows.to_pylist()))
    elif format == "csv":
        pacsv.write_csv(rows, path)
    else:
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows)
    source = folder(tmp_path, format=format)
    assert source.schema.names == ["n", "word"]
    cursor = source.open([])
    assert cursor.read(cursor.take(0.5)).to_pydict() == rows.to_pydict()


def test_the_schema_is_read_from_the_first_file(tmp_path: Path) -> None:
    put(tmp_path, "a", 1)
    assert folder(tmp_path) == FolderSource(str(tmp_path), "parquet", SCHEMA)
    assert folder(tmp_path).arrow_schema() == SCHEMA


def test_wrong_folders_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"there is no such folder; create it first"):
        folder(tmp_path / "nowhere")
    with pytest.raises(JobError, match=r"folder\(format='xml'\): use 'parquet', 'json', 'csv' or 'arrow'"):
        folder(tmp_path, format="xml")
    with pytest.raises(JobError, match=r"is empty, so its columns are unknown; pass schema=pa.schema"):
        folder(tmp_path)


def test_the_schema_is_not_read_from_a_sub_folder(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    put(tmp_path, "data", 1)
    assert folder(tmp_path).schema == SCHEMA


@pytest.mark.parametrize("count", [0, -1])
def test_an_epoch_takes_at_least_one_file(tmp_path: Path, count: int) -> None:
    with pytest.raises(JobError):
        folder(tmp_path, schema=SCHEMA, files_per_epoch=count)


# -- recorded ---------------------------------------------------------------------------------------------------


def test_a_recording_is_replayed_epoch_by_epoch(tmp_path: Path) -> None:
    for epoch, rows in enumerate([table(1, 2), table(), *(table(n) for n in range(2, 12))]):
        with pa.ipc.new_file(tmp_path / f"{epoch}.arrow", rows.schema) as writer:
            writer.write_table(rows)
    source = RecordedSource(str(tmp_path))
    entries = source.entries()
    assert source.arrow_schema() == SCHEMA
    cursor = source.open(entries[:3])
    assert [cursor.read(e)["n"].to_pylist() for e in entries] == [[1, 2], [], *([n] for n in range(2, 12))]
    with pytest.raises(NotImplementedError, match="only replayed"):
        cursor.take(0.5)


# -- spark ------------------------------------------------------------------------------------------------------


def test_a_spark_source_is_a_function() -> None:
    def read(spark: object) -> None: ...

    assert spark(read) == SparkSource(read)  # type: ignore[arg-type]
    with pytest.raises(JobError, match="pass a function that takes a SparkSession"):
        spark("kafka")  # type: ignore[arg-type]


def test_sources_compare_by_what_they_say() -> None:
    assert rate(5, keys=3) == RateSource(5, 3, 0, None)
    assert rate(5) != rate(6)
