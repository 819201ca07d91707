"""How rows of Spark are typed in Arrow: while they are sent, and when Spark takes them back.

Where a struct is null, Arrow has a null in each of its fields as well, also in those that never are by themselves. A
column that says both cannot be converted (``DataFrame.toArrow`` fails on a map, an array or a variant in such a struct)
nor be relied on by others, so it is sent with fields that can be null. But Spark takes back only what it has declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def collect(frame: DataFrame) -> pa.Table:
    """The frame's rows, as they are sent."""
    taken: Any = frame  # of a private method, the same in PySpark 4.2 and 4.3
    batches = taken._collect_as_arrow(empty_list_if_zero_records=False)
    return pa.Table.from_batches(batches).cast(as_sent(frame.schema))


def as_declared(schema: StructType) -> pa.Schema:
    """As PySpark demands that rows are typed."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")


def as_sent(schema: StructType) -> pa.Schema:
    return pa.schema([_with_nulls(field, within=False) for field in as_declared(schema)])


def _with_nulls(field: pa.Field, *, within: bool) -> pa.Field:
    """``within`` a struct that can be null, every field can."""
    kind, nullable = field.type, field.nullable or within
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_nulls(inner, within=nullable) for inner in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _with_nulls(kind.item_field, within=False))
    elif pa.types.is_list(kind):
        kind = pa.list_(_with_nulls(kind.value_field, within=False))
    return pa.field(field.name, kind, nullable, field.metadata)


def taken_back(table: pa.Table, declared: pa.Schema) -> pa.Table:
    """The rows as ``declared``. No value is copied."""
    if table.schema.types == declared.types:
        return table
    batches = [
        pa.record_batch([_declared(c, t) for c, t in zip(batch.columns, declared.types, strict=True)], schema=declared)
        for batch in table.to_batches()
    ]
    return pa.Table.from_batches(batches, declared)


def _declared(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        fields = [_declared(array.field(i), field.type) for i, field in enumerate(kind)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    values = _declared(_entries(array) if pa.types.is_map(kind) else array.values, kind.field(0).type)
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), [validity, offsets], array.null_count, array.offset, [values])


def _entries(array: pa.MapArray) -> pa.StructArray:
    kind = array.type
    entries = [pa.field(kind.key_field.name, kind.key_type, False), kind.item_field]
    return pa.StructArray.from_arrays([array.keys, array.items], fields=entries)
