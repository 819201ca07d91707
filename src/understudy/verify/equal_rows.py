"""How many rows of two tables are equal, each taken as a multiset: the order of rows means nothing, how often a row
occurs does.

How two multisets are compared without a loop over rows: every column of both sides is turned into integer codes such
that equal values, on whichever side, get equal codes; codes of several columns are folded into one code per row; then
each side's codes are counted. Structs are folded field by field and lists element by element, so nested values are
compared as exactly as flat ones (JSON text of them would round floats and confuse NaN with null).

Equal means: same value, whatever the storage type is (int32 or int64, milliseconds or nanoseconds, dictionary or
plain); null equals null, NaN equals NaN, 0.0 equals -0.0; no tolerance for floats; an integer is not a float and a time
with a zone is not one without.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

_Codes = npt.NDArray[np.int64]


class Found(NamedTuple):
    rows_run: int
    rows_reference: int
    missing: int
    """Reference rows without a counterpart in the run."""
    copies: int
    """Surplus rows of the run whose like the reference has, though less often."""
    unknown: int
    """Surplus rows of the run that the reference does not have at all."""


def nothing_equal(rows_run: int, rows_reference: int) -> Found:
    return Found(rows_run, rows_reference, missing=rows_reference, copies=0, unknown=rows_run)


def count(run: pa.Table, reference: pa.Table) -> Found:
    """Neither table may be empty."""
    names = sorted(run.column_names)
    if names != sorted(reference.column_names):
        return nothing_equal(run.num_rows, reference.num_rows)
    codes = np.zeros(run.num_rows + reference.num_rows, dtype=np.int64)
    for name in names:
        codes = _fold(codes, _codes(_flat(run.column(name)), _flat(reference.column(name))))
    kinds = int(codes.max()) + 1
    in_run = np.bincount(codes[: run.num_rows], minlength=kinds)
    in_reference = np.bincount(codes[run.num_rows :], minlength=kinds)
    surplus = np.maximum(in_run - in_reference, 0)
    known = in_reference > 0
    return Found(
        run.num_rows,
        reference.num_rows,
        missing=int(np.maximum(in_reference - in_run, 0).sum()),
        copies=int(surplus[known].sum()),
        unknown=int(surplus[~known].sum()),
    )


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _fold(left: _Codes, right: _Codes) -> _Codes:
    """One code per pair of codes. Dense again afterwards, so that the product cannot outgrow 64 bits."""
    if not len(left):
        return left
    return _int64(pd.factorize(left * (int(right.max()) + 1) + right)[0])


def _codes(run: pa.Array, reference: pa.Array) -> _Codes:
    """Codes for the run's values followed by the reference's: equal exactly where the values are."""
    ordered = not (pa.types.is_map(run.type) or pa.types.is_map(reference.type))
    run, reference = _plain(run), _plain(reference)
    if pa.types.is_null(run.type):
        run = pa.nulls(len(run), reference.type)
    if pa.types.is_null(reference.type):
        reference = pa.nulls(len(reference), run.type)

    kind = _kind(run.type)
    if kind != _kind(reference.type):
        return _codes_of_unlike(run, reference)
    if kind == "struct":
        return _codes_of_structs(run, reference)
    if kind == "list":
        return _codes_of_lists(run, reference, ordered=ordered)
    values = _concat(run, reference)
    if values is None:
        return _codes_of_unlike(run, reference)
    if kind == "float":
        # Codes come from bits: make all NaNs one, and -0.0 + 0.0 is 0.0.
        values = pc.if_else(pc.is_nan(values), float("nan"), pc.add(values, 0.0))
    return _int64(pc.dictionary_encode(values, null_encoding="encode").indices)


def _codes_of_unlike(run: pa.Array, reference: pa.Array) -> _Codes:
    """Values that cannot be equal because their types cannot, except that nothing equals nothing."""
    return np.concatenate([_valid(run), 2 * _valid(reference)])


def _codes_of_structs(run: pa.StructArray, reference: pa.StructArray) -> _Codes:
    names = sorted(inner.name for inner in run.type)
    if names != sorted(inner.name for inner in reference.type):
        return _codes_of_unlike(run, reference)
    # flatten() carries a null struct over to its fields; the validity tells it from a struct of nulls.
    run_fields = dict(zip((inner.name for inner in run.type), run.flatten()))
    reference_fields = dict(zip((inner.name for inner in reference.type), reference.flatten()))
    codes = np.concatenate([_valid(run), _valid(reference)])
    for name in names:
        codes = _fold(codes, _codes(run_fields[name], reference_fields[name]))
    return codes


def _codes_of_lists(run: pa.Array, reference: pa.Array, *, ordered: bool) -> _Codes:
    """Elements become codes, a list becomes the text of its elements' codes, and texts become codes."""
    elements = _codes(pc.list_flatten(run), pc.list_flatten(reference))
    lengths = np.concatenate([_lengths(run), _lengths(reference)])
    if not ordered:  # a map is a list of entries in an order that means nothing
        elements = elements[np.lexsort((elements, np.repeat(np.arange(len(lengths)), lengths)))]
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    texts = pc.binary_join(pa.ListArray.from_arrays(offsets, pa.array(elements).cast(pa.string())), ",")
    codes = _int64(pc.dictionary_encode(texts).indices)
    return _fold(np.concatenate([_valid(run), _valid(reference)]), codes)


def _lengths(lists: pa.Array) -> _Codes:
    return _int64(pc.fill_null(pc.list_value_length(lists), 0))


def _valid(values: pa.Array) -> _Codes:
    return _int64(values.is_valid())


def _int64(values: Any) -> _Codes:
    return np.asarray(values, dtype=np.int64)


def _plain(values: pa.Array) -> pa.Array:
    """The same values without the ways of storing them that Arrow's functions do not take."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _plain(values.dictionary_decode())
    if pa.types.is_map(kind):
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return values.cast(pa.list_(entry))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return values.cast(pa.timestamp(kind.unit, "UTC"))  # the same instants, whatever the zone is called
    if pa.types.is_floating(kind):
        return values.cast(pa.float64())
    return values


def _kind(kind: pa.DataType) -> str:
    """The class of types within which values of different types can be equal."""
    types = pa.types
    if types.is_struct(kind):
        return "struct"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return "list"
    if types.is_integer(kind):
        return "integer"
    if types.is_floating(kind):
        return "float"
    if types.is_decimal(kind):
        return "decimal"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    if types.is_timestamp(kind):
        return "instant" if kind.tz is not None else "local time"
    return str(kind)


def _concat(run: pa.Array, reference: pa.Array) -> pa.Array | None:
    """Both sides as one array of a type that holds every value of either exactly, or None if there is
    none."""
    if run.type == reference.type:
        return pa.concat_arrays([run, reference])
    kind = _kind(run.type)
    wider: list[pa.DataType]
    if kind == "integer":
        wider = [pa.int64(), pa.decimal128(20, 0)]
    elif kind == "decimal":
        wider = [pa.decimal256(76, max(run.type.scale, reference.type.scale))]
    elif kind == "text":
        wider = [pa.large_string()]
    elif kind == "bytes":
        wider = [pa.large_binary()]
    else:  # times: the finer unit unless it overflows, then the coarser one unless it cuts digits off
        zone = run.type.tz
        units = sorted({run.type.unit, reference.type.unit}, key=["ns", "us", "ms", "s"].index)
        wider = [pa.timestamp(unit, zone) for unit in units]
    for target in wider:
        try:
            return pa.concat_arrays([run.cast(target), reference.cast(target)])
        except pa.ArrowInvalid:
            continue
    return None
