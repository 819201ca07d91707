"""Columns of a stream as a user writes them: Spark's ``"road long, speed double"``, a Spark StructType or Arrow's own.

Spark parses such a text in its JVM. Hosts that run operators only have none, so it is read here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PLAIN: dict[str, pa.DataType] = {
    "tinyint": pa.int8(), "byte": pa.int8(),
    "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(),
    "bigint": pa.int64(), "long": pa.int64(),
    "float": pa.float32(), "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
_TOKEN = re.compile(r"\s*(`[^`]+`|\w+|[<>(),:])")


def arrow_schema(written: Any) -> pa.Schema:
    """Raises ValueError, saying what was expected where."""
    if isinstance(written, pa.Schema):
        return _unique(written, written.names)
    if isinstance(written, str):
        return _Reader(written).schema()
    if hasattr(written, "simpleString"):  # a StructType, without importing Spark for those who do not use it
        from pyspark.sql.pandas.types import to_arrow_schema

        return _unique(to_arrow_schema(written, timezone="UTC"), written.simpleString())
    raise ValueError(f'{written!r} is no schema; write for example "road long, speed double"')


def _unique(schema: pa.Schema, told: Any) -> pa.Schema:
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"schema {told!r} has column {twice!r} twice")
    return schema


def spark_schema(schema: pa.Schema) -> StructType:
    """Raises ValueError, naming the column whose type Spark does not have."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    for field in schema:
        try:
            from_arrow_schema(pa.schema([field]))
        except (PySparkException, pa.ArrowException, ValueError, TypeError):
            raise ValueError(
                f"column {field.name!r} is of type {field.type}, which Spark does not have; convert it before, "
                "for example to a long, a double or a string"
            ) from None
    return from_arrow_schema(schema)


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def schema(self) -> pa.Schema:
        return _unique(pa.schema(self._fields(end="")), self._text)

    def _fields(self, end: str) -> list[pa.Field]:
        fields = []
        while True:
            name = self._word("a column's name")
            if self._peek() == ":":
                self._take()
            kind = self._type()
            nullable = not self._skip("not", "null")
            fields.append(pa.field(name, kind, nullable))
            if self._peek() != ",":
                break
            self._take()
        if self._peek() != end:
            self._fail(f"',' or {end!r}" if end else "',' or the end")
        if end:
            self._take()
        return fields

    def _type(self) -> pa.DataType:
        name = self._word("a type").lower()
        if name in _PLAIN:
            return _PLAIN[name]
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name in ("array", "map", "struct"):
            self._expect("<")
            if name == "struct":
                return pa.struct(self._fields(end=">"))
            first = self._type()
            if name == "map":
                self._expect(",")
                kind: pa.DataType = pa.map_(first, self._type())
            else:
                kind = pa.list_(first)
            self._expect(">")
            return kind
        known = ", ".join(["decimal(p,s)", "array<…>", "map<…,…>", "struct<…>", *_PLAIN])
        raise ValueError(f"schema {self._text!r} has the unknown type {name!r}; types are: {known}")

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._take()
            precision = int(self._word("digits"))
            if self._peek() == ",":
                self._take()
                scale = int(self._word("digits"))
            self._expect(")")
        return pa.decimal128(precision, scale)

    # -- words ------------------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        if found is None and self._text[self._at :].strip():
            self._fail("a word")
        return found[1] if found else ""

    def _take(self) -> str:
        token = self._peek()
        found = _TOKEN.match(self._text, self._at)
        self._at = found.end() if found else len(self._text)
        return token

    def _skip(self, *words: str) -> bool:
        """Words that may be there, and mean something only together."""
        at = self._at
        if all(self._take().lower() == word for word in words):
            return True
        self._at = at
        return False

    def _word(self, what: str) -> str:
        token = self._peek()
        if not token or token in "<>(),:":
            self._fail(what)
        return self._take().strip("`")

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            self._fail(repr(token))
        self._take()

    def _fail(self, expected: str) -> None:
        rest = self._text[self._at :].strip()
        raise ValueError(
            f"schema {self._text!r}: expected {expected} {f'before {rest!r}' if rest else 'at the end'}; "
            'write for example "road long, speed double"'
        )
