"""Schemas as users write them, read as Spark reads them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from understudy.schemas import arrow_schema, spark_schema


@pytest.mark.parametrize(
    ("written", "spark"),
    [
        ("road long, speed double", "struct<road:bigint,speed:double>"),
        ("a INT, b smallint, c tinyint, d float", "struct<a:int,b:smallint,c:tinyint,d:float>"),
        ("name: string, ok: boolean", "struct<name:string,ok:boolean>"),
        ("`a column` string", "struct<a column:string>"),
        ("d date, at timestamp, then timestamp_ntz", "struct<d:date,at:timestamp,then:timestamp_ntz>"),
        ("price decimal(12, 2), n decimal", "struct<price:decimal(12,2),n:decimal(10,0)>"),
        ("xs array<int>, m map<string, array<double>>", "struct<xs:array<int>,m:map<string,array<double>>>"),
        ("s struct<a: int, b: struct<c: string>>", "struct<s:struct<a:int,b:struct<c:string>>>"),
        ("raw binary, n long not null", "struct<raw:binary,n:bigint>"),
    ],
)
def test_what_spark_calls_it(written: str, spark: str) -> None:
    assert spark_schema(arrow_schema(written)).simpleString() == spark


def test_not_null_is_kept() -> None:
    assert [field.nullable for field in arrow_schema("a long not null, b long")] == [False, True]


def test_arrow_and_spark_have_schemas_of_their_own() -> None:
    schema = pa.schema([("road", pa.int64())])
    assert arrow_schema(schema) is schema
    assert arrow_schema(t.StructType([t.StructField("road", t.LongType())])) == schema


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("road", "expected a type at the end"),
        ("", "expected a column's name at the end"),
        ("road lang", "unknown type 'lang'; types are: decimal(p,s), array<…>"),
        ("road long speed double", "expected ',' or the end before 'speed double'"),
        ("road long,", "expected a column's name at the end"),
        ("a array<int", "expected '>' at the end"),
        ("a long, a long", "has column 'a' twice"),
        ("a long; b long", "expected a word before '; b long'"),
        (17, "17 is no schema"),
    ],
)
def test_mistakes(written: object, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        arrow_schema(written)
    assert words in str(caught.value)
