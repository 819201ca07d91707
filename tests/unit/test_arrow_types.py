"""Rows of Spark in Arrow: with nulls where a struct is null, and as declared when Spark takes them back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType, VariantType

from understudy.runtime.arrow_types import as_declared, as_sent, taken_back

LONG = LongType()
INNER = StructType(
    [
        StructField("pair", MapType(StringType(), LONG, valueContainsNull=False), nullable=False),
        StructField("list", ArrayType(LONG, containsNull=False), nullable=False),
        StructField("deep", StructType([StructField("n", LONG, nullable=False)]), nullable=False),
    ]
)
SCHEMA = StructType(
    [
        StructField("id", LONG, nullable=False),
        StructField("plain", INNER, nullable=False),
        StructField("holed", INNER),
        StructField("list", ArrayType(INNER)),
        StructField("map", MapType(StringType(), INNER)),
        StructField("event", VariantType()),
    ]
)


def rows() -> pa.Table:
    whole = {"pair": [("a", 1)], "list": [1, 2], "deep": {"n": 3}}
    event = {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}
    some = [
        {"id": 0, "plain": whole, "holed": whole, "list": [whole, None], "map": [("x", whole), ("y", None)]},
        {"id": 1, "plain": whole, "holed": None, "list": None, "map": None, "event": None},
        {"id": 2, "plain": whole, "holed": None, "list": [], "map": []},
        {"id": 3, "plain": whole, "holed": whole, "list": [None, whole], "map": [("z", None)], "event": event},
    ]
    return pa.Table.from_pylist(some, schema=as_sent(SCHEMA))


def test_within_a_struct_that_can_be_null_everything_can() -> None:
    sent = as_sent(SCHEMA)
    assert not sent.field("id").nullable and not sent.field("plain").nullable
    assert [f.nullable for f in sent.field("plain").type] == [False, False, False]
    holed = sent.field("holed").type
    assert [f.nullable for f in holed] == [True, True, True]
    assert holed.field("deep").type.field("n").nullable
    # What is in a list or a map that is not there is not there at all.
    assert not holed.field("list").type.value_field.nullable and not holed.field("pair").type.item_field.nullable
    assert [f.nullable for f in sent.field("event").type] == [True, True]


def test_what_needs_no_nulls_is_sent_as_declared() -> None:
    simple = StructType([SCHEMA["id"], SCHEMA["plain"], StructField("text", StringType())])
    assert as_sent(simple) == as_declared(simple)
    table = as_sent(simple).empty_table()
    assert taken_back(table, as_declared(simple)) is table


@pytest.mark.parametrize(("offset", "length"), [(0, 4), (1, 3), (1, 1), (3, 1), (0, 0)])
def test_spark_takes_back_what_it_declared(offset: int, length: int) -> None:
    table, declared = rows().slice(offset, length), as_declared(SCHEMA)
    back = taken_back(table, declared)
    assert back.schema == declared and table.schema != declared
    assert back.to_pylist() == table.to_pylist()
