"""What comes of groups of rows: the same as on Spark, and never a wrong number that looks right."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.schemas import spark_schema
from understudy.windowed.aggregate import Aggregate
from understudy.windowed.folding import folded
from understudy.windowed.spans import rows, seconds

NAN = float("nan")


def of(values: list[Any], type_: Any, function: str) -> Any:
    """Of one group."""
    groups = np.zeros(len(values), np.int64)
    (found,) = folded(groups, pa.table({"v": pa.array(values, type_)}), {"out": ("v", function)})
    return found


def test_booleans_are_nought_and_one_in_sums_and_means() -> None:
    found = of([True, None, True, False], pa.bool_(), "sum")
    assert found.to_pylist() == [2] and found.type == pa.int64()
    assert of([True, None, True, False], pa.bool_(), "mean").to_pylist() == [2 / 3]
    assert of([True, False], pa.bool_(), "max").to_pylist() == [True]


WHOLE = [pa.bool_(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int8(), pa.int64()]


@pytest.mark.parametrize("type_", WHOLE)
def test_sums_of_whole_numbers_can_be_deployed(type_: Any) -> None:
    given_ = pa.schema({"k": pa.int64(), "v": type_, "at": pa.int64()})
    for window in (rows(5), seconds(5, of="at")):
        made = Aggregate("k", window, n=("v", "sum")).schema(given_)
        assert made.field("n").type == pa.int64()
        assert spark_schema(made.remove(made.get_field_index("k")))["n"].dataType.simpleString() == "bigint"
    ones = [True, True] if type_ == pa.bool_() else [1, 1]
    assert of(ones, type_, "sum").to_pylist() == [2]
    assert of(ones, type_, "mean").to_pylist() == [1.0]


TOO_LARGE = [
    ([2**62, None, 2**62], pa.int64(), "int64 can hold; make 'v' a double or a decimal"),
    ([-(2**63), -1], pa.int64(), "int64 can hold"),
    ([2**63], pa.uint64(), "int64 can hold"),
    ([Decimal("9" * 36)] * 101, pa.decimal128(38, 2), r"decimal128\(38, 2\) can hold; make 'v' a double before"),
]


@pytest.mark.parametrize(("values", "type_", "says"), TOO_LARGE)
def test_a_sum_that_its_type_cannot_hold_is_an_error_that_names_it(values: Any, type_: Any, says: str) -> None:
    with pytest.raises(OverflowError, match=rf"aggregate\(out=\('v', 'sum'\)\): the sum is more than {says}"):
        of(values, type_, "sum")
    whole = pa.table({"k": [1] * len(values), "v": pa.array(values, type_)})
    with pytest.raises(OverflowError, match="total="):
        Aggregate("k", rows(500), total=("v", "sum")).process(whole)


def test_on_the_way_a_sum_may_be_larger() -> None:
    """The order of rows is not Spark's to keep."""
    assert of([2**62, 2**62, -(2**62)], pa.int64(), "sum").to_pylist() == [2**62]
    assert of([2**63 - 1, 1, -1], pa.int64(), "sum").to_pylist() == [2**63 - 1]
    money = [Decimal("9" * 36)] * 101 + [Decimal("-" + "9" * 36)] * 101
    assert of(money, pa.decimal128(38, 2), "sum").to_pylist() == [Decimal("0.00")]


def test_means_are_right_where_sums_are_not_to_be_had() -> None:
    assert of([2**62, 2**62], pa.int64(), "mean").to_pylist() == [2.0**62]
    assert of([2**63, 2**63], pa.uint64(), "mean").to_pylist() == [2.0**63]
    assert of([Decimal("9" * 36)] * 200, pa.decimal128(38, 2), "mean").to_pylist() == [Decimal("9" * 36)]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=12))
def test_sums_are_pythons(values: list[tuple[int, int | None]]) -> None:
    keys, table = [k for k, _ in values], pa.table({"v": pa.array([v for _, v in values], pa.int64())})
    groups = np.array([list(dict.fromkeys(keys)).index(k) for k in keys])
    wanted = []
    for key in dict.fromkeys(keys):
        good = [v for k, v in values if k == key and v is not None]
        wanted.append(sum(good) if good else None)
    if all(total is None or -(2**63) <= total < 2**63 for total in wanted):
        assert folded(groups, table, {"s": ("v", "sum")})[0].to_pylist() == wanted
    else:
        with pytest.raises(OverflowError, match="s="):
            folded(groups, table, {"s": ("v", "sum")})


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()])
def test_nan_is_larger_than_any_other_number(type_: Any) -> None:
    """As in Spark, and so in jvm/Aggregates.java."""
    values = pa.array([1.5, NAN, None, NAN, 2.0, None, math.inf, NAN], type_)
    table, groups = pa.table({"v": values}), np.array([0, 0, 0, 1, 2, 3, 4, 4])
    least, most = folded(groups, table, {"least": ("v", "min"), "most": ("v", "max")})
    assert str(least.to_pylist()) == str([1.5, NAN, 2.0, None, math.inf])
    assert str(most.to_pylist()) == str([NAN, NAN, 2.0, None, NAN])
    assert most.type == least.type == type_


def test_every_output_keeps_its_place() -> None:
    table = pa.table({"v": pa.array([2**62, 2**62, 7, None], pa.int64()), "x": [NAN, 1.0, 2.0, 3.0]})
    outputs: Any = {
        "z": ("v", "last"), "s": ("v", "min"), "m": ("x", "max"), "n": ("*", "count"), "mean": ("v", "mean"),
    }  # fmt: skip
    made = folded(np.array([0, 0, 1, 1]), table, outputs)
    assert [str(column.to_pylist()) for column in made] == [
        str([2**62, 7]), str([2**62, 7]), str([NAN, 3.0]), str([2, 2]), str([2.0**62, 7.0])
    ]  # fmt: skip
