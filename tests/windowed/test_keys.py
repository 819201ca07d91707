"""Which values are one key, and which columns can be keys at all."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from saved_parts import Disk

from understudy.windowed.aggregate import Aggregate
from understudy.windowed.barrier import Barrier
from understudy.windowed.join import Join
from understudy.windowed.keys import Lookup, usable
from understudy.windowed.spans import Seconds, rows, seconds

# -- types ------------------------------------------------------------------------------------------------------------

UNUSABLE = [
    pa.list_(pa.int64()), pa.struct({"a": pa.int64()}), pa.map_(pa.string(), pa.int64()), pa.string_view(),
    pa.binary_view(), pa.dictionary(pa.int32(), pa.list_(pa.int64())),
]  # fmt: skip


@pytest.mark.parametrize("type_", UNUSABLE, ids=str)
def test_a_type_that_cannot_be_a_key_is_told_before_any_row_comes(type_):
    """Found in review: an error of Arrow's at the first epoch with rows."""
    schema = pa.schema({"k": type_, "at": pa.int64()})
    for span in (rows(5), seconds(5, of="at")):
        with pytest.raises(ValueError, match=r"aggregate\(by='k'\) is .*, which cannot be a key; cast it to"):
            Aggregate("k", span, schemas=[schema], n=("*", "count"))
        with pytest.raises(ValueError, match=r"aggregate\(by='k'\) is"):
            Aggregate("k", span, n=("*", "count")).process(schema.empty_table())
    with pytest.raises(ValueError, match=r"join\(on='k'\) is .*, which cannot be a key; cast it to"):
        Join(["at", "k"], rows(5), rows(5), schemas=(schema, schema))


USABLE = {
    pa.bool_(): [True, False], pa.int8(): [1, 2], pa.uint64(): [2**64 - 1, 2**63], pa.float32(): [1.5, -2.0],
    pa.float16(): [np.float16(1), np.float16(2)], pa.string(): ["a", "b"], pa.large_string(): ["a", "b"],
    pa.binary(): [b"a", b"b"], pa.binary(1): [b"a", b"b"], pa.decimal128(5, 2): [1, 2], pa.decimal256(50, 2): [1, 2],
    pa.date32(): [1, 2], pa.date64(): [0, 86_400_000], pa.time32("s"): [1, 2], pa.time64("ns"): [1, 2],
    pa.timestamp("ns"): [1, 2], pa.duration("ns"): [1, 2], pa.dictionary(pa.int8(), pa.string()): ["a", "b"],
}  # fmt: skip


@pytest.mark.parametrize("type_", USABLE, ids=str)
@pytest.mark.parametrize("per", [None, "k"])
def test_all_other_types_find_their_like(type_, per):
    assert usable(type_)
    table = pa.table({"k": pa.array([*USABLE[type_], None], type_), "v": [1, 2, 3]})
    made = Join("k", rows(9, per=per), rows(0), schemas=(table.schema, table.schema)).process(table, table)
    assert made.select(["v", "v_right"]).to_pylist() == [{"v": n, "v_right": n} for n in (1, 2)]
    both = Join(["k", "v"], rows(9, per=per and ["k", "v"]), rows(0))
    assert both.process(table, table)["v"].to_pylist() == [1, 2]


# -- values -----------------------------------------------------------------------------------------------------------

NANS = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64).tolist()


@pytest.mark.parametrize("type_", [pa.float64(), pa.float32(), pa.float16()], ids=str)
def test_there_is_one_zero_and_one_nan(type_):
    """As in Spark's GROUP BY. Found in review: rows in one window were told of as two keys."""
    numbers = [np.float64(n).astype(type_.to_pandas_dtype()) for n in (-0.0, 0.0, *NANS)]
    keys = pa.array([*numbers, None], type_, from_pandas=False)
    for span in (rows(9), seconds(1, of="at")):
        counts, disk = Aggregate("k", span, n=("*", "count")), Disk()
        counts.process(pa.table({"k": keys, "at": [0] * 5}).slice(0, 2))
        disk.keep(counts.save())
        counts = Aggregate("k", span, n=("*", "count"))
        counts.restore(disk.parts)
        made = counts.process(pa.table({"k": keys, "at": [0] * 5}))
        if isinstance(span, Seconds):
            late = pa.table({"k": keys.slice(4), "at": [5000]})
            made = counts.process(late)
        assert made["n"].to_pylist() == [4, 2, 1]
        assert str(made["k"].to_pylist()) == "[0.0, nan, None]"
    for per in (None, "k"):
        join = Join("k", rows(9, per=per), rows(0))
        made = join.process(pa.table({"k": keys, "a": range(5)}), pa.table({"k": keys, "b": range(5)}))
        pairs = list(zip(made["b"].to_pylist(), made["a"].to_pylist()))
        assert pairs == [*itertools.product([0, 1], [0, 1]), *itertools.product([2, 3], [2, 3])]
        assert str(made["k"].to_pylist()) == str([0.0] * 4 + [float("nan")] * 4), "as it is told on Spark"


HOUR = 3_600_000_000
CLOCKS_GO_BACK = 1_603_587_600_000_000
TIMES: dict[str, tuple[Any, list[int]]] = {
    "the same local time twice": (pa.timestamp("us", "Europe/Berlin"), [CLOCKS_GO_BACK - HOUR, CLOCKS_GO_BACK]),
    "nanoseconds": (pa.time64("ns"), [1, 2, 999]),
    "nanoseconds of a timestamp": (pa.timestamp("ns"), [1, 2]),
    "after the year 9999": (pa.timestamp("us"), [300_000_000_000_000_000, 300_000_000_000_000_001]),
    "as long before": (pa.timestamp("s"), [-300_000_000_000, -300_000_000_001]),
}


@pytest.mark.parametrize("case", TIMES)
@pytest.mark.parametrize("others", [[], ["z"]], ids=["one column", "several"])
def test_times_are_told_apart_to_the_last_bit(case, others):
    """Found in review: as Python's objects they are not, or cannot be had."""
    type_, times = TIMES[case]
    table = pa.table({"k": pa.array(times, type_), "z": ["a"] * len(times), "v": range(len(times))})
    counts, disk = Aggregate(["k", *others], rows(5), n=("*", "count")), Disk()
    counts.process(table)
    disk.keep(counts.save())
    again = Aggregate(["k", *others], rows(5), n=("*", "count"))
    again.restore(disk.parts)
    made = again.process(table)
    assert made["n"].to_pylist() == [2] * len(times) and made["k"].type == type_
    for per in (None, ["k", *others]):
        join = Join(["k", *others], rows(5, per=per), rows(0))
        assert join.process(table, table)["v"].to_pylist() == list(range(len(times)))


def test_a_key_in_two_columns_is_not_the_same_the_other_way_round():
    lookup = Lookup()
    one, two = pa.array([1, 2], pa.timestamp("us")), pa.array([2, 1], pa.timestamp("us"))
    assert lookup.added([one, two]).tolist() == [0, 1] and lookup.known([two, one]).tolist() == [1, 0]


# -- dictionaries -----------------------------------------------------------------------------------------------------


def words(number: int, count: int, indices: Any = None) -> pa.Table:
    """Others in every epoch."""
    column = pa.array([f"{number}-{n}" for n in range(count)], pa.string()).dictionary_encode()
    return pa.table({"k": column if indices is None else column.cast(pa.dictionary(indices, pa.string()))})


def test_dictionaries_do_not_grow():
    """Found in review: what is merged of them never shrinks, and is saved with every group."""
    join, disk = Join("k", rows(1000), rows(0)), Disk()
    for number in range(100):
        join.process(words(number, 100), words(number, 0))
        disk.keep(join.save())
    assert join._left.rows.table().nbytes < 50_000
    assert sum(map(len, disk.parts.values())) < 100_000
    assert disk.written < 20_000


@pytest.mark.parametrize("make", [
    lambda: Join("k", rows(1000), rows(0)),
    lambda: Join("k", rows(1000, per="k"), rows(0)),
    lambda: Barrier(2),
])  # fmt: skip
def test_dictionaries_with_small_indices_do_not_overflow(make):
    """Found in review. Results are of the values' type, and so it is declared: they may have more of them, too."""
    operator, left = make(), words(0, 20, pa.int8())
    right = words(0, 20).slice(0, 0)
    declared = operator.schema(left.schema, right.schema)
    assert set(declared.types) == {pa.string()}
    for number in range(20):
        operator.process(words(number, 20, pa.int8()), right)
    everything = pa.concat_tables([words(number, 20) for number in range(20)])
    made = operator.process(words(0, 0, pa.int8()), everything)
    assert made.num_rows == 400 and made.schema == declared
    chunks = pa.concat_tables([words(number, 100, pa.int8()) for number in range(5)])
    counts = Aggregate("k", rows(5), n=("*", "count"), z=("k", "last"))
    assert counts.process(chunks).num_rows == 500 and counts.schema(chunks.schema).field("z").type == pa.string()


def test_dictionaries_within_other_columns_do_not_grow_either():
    def table(number: int) -> pa.Table:
        inner = words(number, 50)["k"].combine_chunks()
        lists = pa.ListArray.from_arrays(range(51), inner)
        return pa.table({"k": [1] * 50, "s": pa.StructArray.from_arrays([inner], ["d"]), "l": lists})

    join = Join("k", rows(100), rows(0))
    for number in range(20):
        join.process(table(number), pa.table({"k": pa.array([], pa.int64())}))
    made = join.process(table(0).slice(0, 0), pa.table({"k": [1]}))
    assert made.schema.field("s").type == pa.struct({"d": pa.string()})
    assert made["s"].to_pylist() == [{"d": f"{number}-{n}"} for number in (18, 19) for n in range(50)]
    assert join._left.rows.table().nbytes < 20_000
