"""The checkers, on real files: what they must count, what they must not be fooled by, and a naive oracle."""

from __future__ import annotations

import datetime as dt
import json
import math
import tempfile
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sink_epochs import epoch_folder, put, put_json

from understudy.verify.compare import Comparison, combine, compare_sinks

NAN = float("nan")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def ref(tmp_path: Path) -> Path:
    return tmp_path / "reference"


def counts(c: Comparison) -> tuple[int, int, int]:
    return c.lost, c.repeated, c.different


def one(run: Path, ref: Path, left: pa.Array, right: pa.Array) -> tuple[int, int, int]:
    """Compare two columns as the only epoch of two sinks."""
    put(run, 0, pa.table({"v": left}))
    put(ref, 0, pa.table({"v": right}))
    return counts(compare_sinks(run, ref))


# --- counting -----------------------------------------------------------------------------------------------


def test_identical_rows_in_any_order_and_any_parts_are_precise(run: Path, ref: Path) -> None:
    put(ref, 0, {"a": [1, 2, 2, 3], "b": ["x", "y", "y", None]})
    put(run, 0, {"b": [None, "y"], "a": [3, 2]}, part=0)
    put(run, 0, {"b": ["y", "x"], "a": [2, 1]}, part=1)
    result = compare_sinks(run, ref)
    assert result == Comparison(1, 4, 4, 0, 0, 0, None, [])
    assert result.verdict == "precise"


def test_lost_row_is_a_gap(run: Path, ref: Path) -> None:
    for epoch in range(3):
        put(ref, epoch, {"a": [1, 2, 2]})
        put(run, epoch, {"a": [1, 2, 2] if epoch != 1 else [1, 2]})
    result = compare_sinks(run, ref)
    assert counts(result) == (1, 0, 0)
    assert (result.first_difference, result.lost_epochs, result.verdict) == (1, [1], "gap")


def test_a_copy_is_a_rollback_and_expected(run: Path, ref: Path) -> None:
    put(ref, 0, {"a": [1, 2]})
    put(run, 0, {"a": [1, 2, 2, 2]})
    result = compare_sinks(run, ref)
    assert counts(result) == (0, 2, 0)
    assert (result.verdict, result.unexpected, result.first_difference) == ("rollback", 0, 0)


def test_a_row_made_again_otherwise_is_a_diverging_rollback(run: Path, ref: Path) -> None:
    put(ref, 0, {"a": [1, 2]})
    put(run, 0, {"a": [1, 2, 7]})
    result = compare_sinks(run, ref)
    assert (counts(result), result.unexpected, result.verdict) == ((0, 1, 0), 1, "rollback")


def test_altered_rows_are_paired_but_a_copy_never_stands_in_for_a_lost_row(run: Path, ref: Path) -> None:
    put(ref, 0, {"a": [1, 2, 3]})
    put(run, 0, {"a": [1, 2, 99]})
    put(ref, 1, {"a": [1, 2, 3]})
    put(run, 1, {"a": [1, 2, 2]})
    put(ref, 2, {"a": [1, 2, 3]})
    put(run, 2, {"a": [1, 1, 98, 97, 96]})
    result = compare_sinks(run, ref)
    # epoch 0: 3 became 99. Epoch 1: 3 lost, 2 repeated. Epoch 2: 2 and 3 altered, 1 repeated, one row on top.
    assert counts(result) == (1, 3, 3)
    assert (result.unexpected, result.lost_epochs, result.verdict) == (1, [1], "gap")


def test_missing_epochs_inside_are_lost_but_the_tail_is_not(run: Path, ref: Path) -> None:
    for epoch in range(10):
        put(ref, epoch, {"a": [epoch, epoch]})
        if epoch not in (0, 3, 4) and epoch < 7:
            put(run, epoch, {"a": [epoch, epoch]})
    result = compare_sinks(run, ref)
    assert (result.epochs_compared, result.rows_run, result.rows_reference) == (7, 8, 14)
    assert (counts(result), result.lost_epochs) == ((6, 0, 0), [0, 3, 4])
    assert compare_sinks(run, ref, upto=9).lost_epochs == [0, 3, 4, 7, 8, 9]
    assert compare_sinks(run, ref, upto=2).lost_epochs == [0]


def test_an_epoch_the_reference_lacks_is_extra_up_to_the_end_only(run: Path, ref: Path) -> None:
    put(ref, 0, {"a": [1]})
    put(ref, 2, {"a": [3]})
    for epoch in range(5):
        put(run, epoch, {"a": [epoch + 1]})
    result = compare_sinks(run, ref)
    assert (result.epochs_compared, counts(result), result.first_difference) == (3, (0, 1, 0), 1)
    assert counts(compare_sinks(run, ref, upto=4)) == (0, 3, 0)


def test_empty_epochs_compare_whatever_schema_or_file_they_have(run: Path, ref: Path) -> None:
    put(ref, 0, {"a": pa.array([], pa.int64())})
    put(run, 0, {"zzz": pa.array([], pa.string())})
    put(ref, 1, {"a": pa.array([], pa.int64())})  # no folder at all in the run
    epoch_folder(run, 2)  # a folder without a file
    put(ref, 2, {"a": pa.array([], pa.int64())})
    put(run, 3, {"a": [1]}, part=0)
    put(run, 3, {"b": pa.array([], pa.int64())}, part=1)
    put(ref, 3, {"a": [1]})
    result = compare_sinks(run, ref)
    assert (result.verdict, result.epochs_compared, result.first_difference) == ("precise", 4, None)


def test_other_columns_are_different_rows(run: Path, ref: Path) -> None:
    put(ref, 0, {"a": [1, 2], "b": [1, 2]})
    put(run, 0, {"a": [1, 2], "c": [1, 2]})
    put(ref, 1, {"a": [1, 2], "b": [1, 2]})
    put(run, 1, {"a": [1]})
    assert counts(compare_sinks(run, ref)) == (1, 0, 3)


def test_hidden_and_foreign_names_are_ignored(run: Path, ref: Path) -> None:
    put(ref, 0, {"a": [1]})
    put(run, 0, {"a": [1]})
    (run / "epoch=000000000000" / "_part-1.parquet").write_bytes(b"half")
    (run / "epoch=000000000000" / ".part-0.parquet.crc").write_bytes(b"crc")
    (run / "_spark_metadata").mkdir()
    (run / ".epoch=000000000001").mkdir()
    (run / "epoch=1.tmp").mkdir()
    (run / "README.md").write_text("not an epoch")
    assert compare_sinks(run, ref, upto=5) == Comparison(1, 1, 1, 0, 0, 0, None, [])


def test_nothing_to_judge_by_is_never_precise(run: Path, ref: Path) -> None:
    with pytest.raises(ValueError, match="failure-free"):
        compare_sinks(run, ref)
    put(ref, 5, {"a": [1, 2]})
    with pytest.raises(ValueError, match="upto=4"):
        compare_sinks(run, ref, upto=4)
    result = compare_sinks(run, ref)  # a run that wrote nothing
    assert (result.lost, result.verdict) == (2, "gap")


def test_unreadable_files_are_named(run: Path, ref: Path) -> None:
    put(ref, 0, {"a": [1]})
    put(run, 0, {"a": [1]}).write_bytes(b"PAR1 torn")
    with pytest.raises(ValueError, match="epoch 0"):
        compare_sinks(run, ref)
    (epoch_folder(run, 0) / "part-0.csv").write_text("a\n1\n")
    with pytest.raises(ValueError, match=r"part-0\.csv"):
        compare_sinks(run, ref)


# --- equality -----------------------------------------------------------------------------------------------


def test_floats_are_compared_exactly(run: Path, ref: Path) -> None:
    odd_nan = np.frombuffer(np.uint64(0x7FF8000000000123).tobytes(), np.float64)[0]
    left = pa.array([NAN, NAN, None, -0.0, 0.1 + 0.2, math.inf])
    right = pa.array([odd_nan, NAN, None, 0.0, 0.3, math.inf], from_pandas=False)
    assert one(run, ref, left, right) == (0, 0, 1)  # 0.30000000000000004 is not 0.3
    assert one(run, ref, pa.array([NAN]), pa.array([None], pa.float64())) == (0, 0, 1)


def test_nulls_are_not_empty_strings_zeros_or_false(run: Path, ref: Path) -> None:
    assert one(run, ref, pa.array(["", None]), pa.array([None, None], pa.string())) == (0, 0, 1)
    assert one(run, ref, pa.array([0, None]), pa.array([0, 0])) == (0, 0, 1)
    assert one(run, ref, pa.array([False, None]), pa.array([None, None], pa.bool_())) == (0, 0, 1)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([1, None], pa.int32()), pa.array([None, 1], pa.int64())),
        (pa.array([1.5], pa.float32()), pa.array([1.5])),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "a"], pa.large_string())),
        (pa.array([b"a"]), pa.array([b"a"], pa.binary(1))),
        (pa.array([1_000], pa.timestamp("ms")), pa.array([1_000_000_000], pa.timestamp("ns"))),
        (pa.array([7], pa.timestamp("us", "UTC")), pa.array([7], pa.timestamp("us", "Europe/Berlin"))),
        # nanoseconds cannot hold the year 9999
        (pa.array([dt.datetime(9999, 1, 1), dt.datetime(1999, 1, 1)]), None),
        (pa.array([Decimal("1.50")]), pa.array([Decimal("1.5")])),
        (pa.nulls(2), pa.nulls(2, pa.list_(pa.string()))),
        (pa.array([dt.date(2024, 1, 1), None]), None),
        (pa.array([dt.timedelta(1), None]), None),
    ],
)
def test_storage_types_do_not_matter(run: Path, ref: Path, left: pa.Array, right: pa.Array | None) -> None:
    assert one(run, ref, left, left if right is None else right) == (0, 0, 0)


def test_integers_of_mixed_sign_and_far_timestamps_keep_all_digits(run: Path, ref: Path) -> None:
    assert one(run, ref, pa.array([2**63, 1], pa.uint64()), pa.array([1, -1], pa.int64())) == (0, 0, 1)
    far, near = dt.datetime(9999, 1, 1), dt.datetime(1999, 1, 1)
    assert one(run, ref, pa.array([far, near]), pa.array([near], pa.timestamp("ns"))) == (0, 1, 0)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([1]), pa.array([1.0])),
        (pa.array([1]), pa.array(["1"])),
        (pa.array([7], pa.timestamp("us")), pa.array([7], pa.timestamp("us", "UTC"))),
        (pa.array([{"x": 1}]), pa.array([{"x": 1, "y": None}])),
        (pa.array([[1]]), pa.array([[1.0]])),
        (pa.array([True]), pa.array([1])),
    ],
)
def test_other_types_are_other_values(run: Path, ref: Path, left: pa.Array, right: pa.Array) -> None:
    assert one(run, ref, left, right) == (0, 0, 1)
    nothing = [None, None]  # but nothing equals nothing
    assert one(run, ref, pa.array(nothing, left.type), pa.array(nothing, right.type)) == (0, 0, 0)


NESTED = pa.list_(pa.struct([("x", pa.list_(pa.float64())), ("y", pa.string())]))


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([[{"x": [NAN, 0.1], "y": "a"}], None, []], [[], None, [{"x": [NAN, 0.1], "y": "a"}]], (0, 0, 0)),
        ([[{"x": [0.1 + 0.2], "y": "a"}]], [[{"x": [0.3], "y": "a"}]], (0, 0, 1)),
        ([[{"x": [NAN], "y": "a"}]], [[{"x": [None], "y": "a"}]], (0, 0, 1)),
        ([[{"x": [], "y": "a"}]], [[{"x": None, "y": "a"}]], (0, 0, 1)),
        ([[None]], [[{"x": None, "y": None}]], (0, 0, 1)),
        ([[]], [None], (0, 0, 1)),
        ([[{"x": [1.0, 2.0], "y": "a"}]], [[{"x": [2.0, 1.0], "y": "a"}]], (0, 0, 1)),
        # the same elements, cut into lists elsewhere
        ([[{"x": [1.0], "y": "a"}, {"x": [2.0], "y": "a"}], []],
         [[{"x": [1.0], "y": "a"}], [{"x": [2.0], "y": "a"}]], (0, 0, 2)),
        ([[], [], []], [[]], (0, 2, 0)),
    ],
)  # fmt: skip
def test_nested_values_are_compared_exactly(
    run: Path, ref: Path, left: list[Any], right: list[Any], expected: tuple[int, int, int]
) -> None:
    assert one(run, ref, pa.array(left, NESTED), pa.array(right, NESTED)) == expected


def test_nested_storage_and_order_of_fields_and_map_entries_do_not_matter(run: Path, ref: Path) -> None:
    left = pa.array([{"x": 1, "y": "a"}], pa.struct([("x", pa.int32()), ("y", pa.string())]))
    right = pa.array([{"y": "a", "x": 1}], pa.struct([("y", pa.string()), ("x", pa.int64())]))
    assert one(run, ref, left, right) == (0, 0, 0)
    fixed = pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
    assert one(run, ref, fixed, pa.array([None, [1, 2]])) == (0, 0, 0)
    kind = pa.map_(pa.string(), pa.int64())
    left = pa.array([[("a", 1), ("b", 2)], None, []], kind)
    assert one(run, ref, left, pa.array([[("b", 2), ("a", 1)], None, []], kind)) == (0, 0, 0)
    assert one(run, ref, left, pa.array([[("b", 1), ("a", 2)], None, []], kind)) == (0, 0, 1)


def test_columns_are_compared_together_not_each_by_itself(run: Path, ref: Path) -> None:
    put(run, 0, {"a": [1, 2], "b": [1, 2]})
    put(ref, 0, {"a": [1, 2], "b": [2, 1]})
    assert counts(compare_sinks(run, ref)) == (0, 0, 2)


# --- JSON ---------------------------------------------------------------------------------------------------


def test_json_rows_compare_by_value(run: Path, ref: Path) -> None:
    put_json(ref, 0, [{"a": 1, "b": "x"}, {"a": 2.5, "b": None, "c": [{"d": 1}]}])
    put_json(run, 0, [' {"c": [{"d": 1}],  "a": 2.5} ', "", "", '{"b": "x", "a": 1.0}'])
    put_json(ref, 1, [])
    put_json(run, 1, [])
    result = compare_sinks(run, ref)
    assert (result.verdict, result.rows_run, result.epochs_compared) == ("precise", 2, 2)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([{"a": 1}], [{"a": 1, "b": 2}], (0, 0, 1)),
        ([{"a": "2024-01-01"}], [{"a": "2024-01-01 00:00:00"}], (0, 0, 1)),
        ([{"a": [{"t": "2024-01-01"}]}], [{"a": [{"t": "2024-01-01 00:00:00"}]}], (0, 0, 1)),
        ([{"a": 12345678901234567890}], [{"a": 12345678901234567891}], (0, 0, 1)),
        ([{"a": 2**53 + 1}, {"a": 0.5}], [{"a": 2**53}, {"a": 0.5}], (0, 0, 1)),
        ([{"a": 2**62 + 1}], [{"a": 2**62}], (0, 0, 1)),
        ([{"a": "1"}, {"a": "y"}], [{"a": 1}, {"a": "y"}], (0, 0, 1)),
        ([{"a": 1}] * 3, [], (0, 3, 0)),
        ([], [{"a": 1}] * 3, (3, 0, 0)),
    ],
)
def test_json_guesses_do_not_blur(
    run: Path, ref: Path, left: list[Any], right: list[Any], expected: tuple[int, int, int]
) -> None:
    put_json(run, 0, left)
    put_json(ref, 0, right)
    assert counts(compare_sinks(run, ref)) == expected


def test_formats_are_not_mixed(run: Path, ref: Path) -> None:
    put_json(run, 0, [{"a": 1}])
    put(ref, 0, {"a": [1]})
    with pytest.raises(ValueError, match="parquet"):
        compare_sinks(run, ref)


# --- oracle -------------------------------------------------------------------------------------------------

SCHEMA = pa.schema(
    [("i", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("l", pa.list_(pa.float64()))]
)
some_float = st.sampled_from([None, NAN, 0.0, -0.0, 0.1])
some_row = st.tuples(
    st.sampled_from([None, 0, 1]),
    some_float,
    st.sampled_from([None, "", "a,b"]),
    st.none() | st.lists(some_float, max_size=2),
)
some_sink = st.dictionaries(st.integers(0, 4), st.lists(some_row, max_size=8), max_size=5)


def key(value: Any) -> Any:
    """Make a value hashable with NaN equal to NaN; -0.0 equals 0.0 in Python already."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return tuple(map(key, value)) if isinstance(value, (list, tuple)) else (type(value).__name__, value)


def naive(run: dict[int, list[Any]], ref: dict[int, list[Any]], last: int) -> dict[str, Any]:
    """What `compare_sinks` promises, with a Counter and loops."""
    lost = repeated = different = 0
    lost_epochs, touched = [], []
    for epoch in range(last + 1):
        have, want = Counter(map(key, run.get(epoch, []))), Counter(map(key, ref.get(epoch, [])))
        missing, surplus = (want - have).total(), have - want
        altered = min(missing, sum(n for row, n in surplus.items() if row not in want))
        different += altered
        lost += missing - altered
        repeated += surplus.total() - altered
        lost_epochs += [epoch] if missing > altered else []
        touched += [epoch] if have != want else []
    return {
        "lost": lost,
        "repeated": repeated,
        "different": different,
        "lost_epochs": lost_epochs,
        "first_difference": touched[0] if touched else None,
        "rows_run": sum(len(rows) for epoch, rows in run.items() if epoch <= last),
        "rows_reference": sum(len(rows) for epoch, rows in ref.items() if epoch <= last),
    }


def write(sink: Path, epochs: dict[int, list[Any]]) -> None:
    for epoch, rows in epochs.items():
        put(sink, epoch, pa.Table.from_pylist([dict(zip(SCHEMA.names, row)) for row in rows], SCHEMA))


@settings(max_examples=200, deadline=None)
@given(ref=some_sink.filter(bool), run=some_sink, data=st.data())
def test_counts_agree_with_a_naive_oracle(
    ref: dict[int, list[Any]], run: dict[int, list[Any]], data: st.DataObject
) -> None:
    for epoch in ref.keys() & run.keys():  # mostly the same rows in another order, as in life
        if data.draw(st.booleans()):
            run[epoch] = data.draw(st.permutations(ref[epoch])) + run[epoch][:1]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "run"), run)
        write(Path(folder, "ref"), ref)
        got = compare_sinks(Path(folder, "run"), Path(folder, "ref")).to_dict()
    want = naive(run, ref, min(max(run), max(ref)) if run else max(ref))
    assert {name: got[name] for name in want} == want


def test_half_a_million_rows_take_seconds(run: Path, ref: Path) -> None:
    """A loop over rows in Python would take minutes here."""
    n = 500_000
    rng = np.random.default_rng(7)
    lists = pa.ListArray.from_arrays(np.arange(0, 2 * n + 1, 2, dtype=np.int32), rng.integers(0, 9, 2 * n))
    texts = pa.array(rng.integers(0, n, n)).cast("string")
    table = pa.table({"k": rng.integers(0, 1000, n), "v": rng.random(n), "s": texts, "l": lists})
    put(ref, 0, table)
    put(run, 0, table.take(pa.array(rng.permutation(n)[1:])))
    started = time.process_time()
    assert counts(compare_sinks(run, ref)) == (1, 0, 0)
    assert time.process_time() - started < 20


# --- several sinks ------------------------------------------------------------------------------------------


def test_combine_adds_rows_and_the_worst_verdict_wins() -> None:
    good = Comparison(9, 10, 10, 0, 0, 0, None, [])
    back = Comparison(8, 12, 10, 0, 2, 0, 5, [], unexpected=1)
    gap = Comparison(7, 7, 10, 3, 0, 0, 4, [6, 4])
    assert combine([good]).verdict == "precise"
    assert combine([good, back]).verdict == "rollback"
    assert combine([good, back, gap]) == Comparison(7, 29, 30, 3, 2, 0, 4, [4, 6], unexpected=1)
    assert combine([good, back, gap]).to_dict()["verdict"] == "gap"
    assert json.dumps(gap.to_dict())
    with pytest.raises(ValueError, match="empty"):
        combine([])
