"""What a run wrote, against what a failure-free run over the same seeded source wrote.

A folder sink holds one folder per epoch, ``epoch=000000000012/part-0.parquet`` (or ``.json``, one object per
line). Epochs are numbered alike in both runs, so each pair of folders is compared by itself, as a multiset:
the order of rows inside an epoch promises nothing, how often a row occurs does.

How two multisets are compared without a loop over rows: every column of both sides is turned into integer
codes such that equal values, on whichever side, get equal codes; codes of several columns are folded into one
code per row; then each side's codes are counted. Structs are folded field by field and lists element by
element, so nested values are compared as exactly as flat ones (JSON text of them would round floats and
confuse NaN with null).

Equal means: same value, whatever the storage type is (int32 or int64, milliseconds or nanoseconds, dictionary
or plain); null equals null, NaN equals NaN, 0.0 equals -0.0; no tolerance for floats; an integer is not a
float and a time with a zone is not one without.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

Verdict = Literal["precise", "rollback", "gap"]
Arrival = tuple[float, int, int]
"""(epoch seconds, epoch number, rows)"""

_Codes = npt.NDArray[np.int64]

_EPOCH_FOLDER = re.compile(r"epoch=(\d+)")

# How much longer than usual a pause may be and still pass for jitter. Below 2, one late micro-batch counts as
# an outage; far above, an outage of a few epochs would be called normal.
_ABNORMAL_PAUSE = 2.0


# --- What a run left behind ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The judgement on one sink, or, after `combine`, on all sinks of a job."""

    epochs_compared: int
    rows_run: int
    rows_reference: int
    lost: int
    """Rows of the reference that the run never wrote, nor anything in their place."""
    repeated: int
    """Rows written more often than in the reference, or on top of it; `unexpected` says how many were the
    latter."""
    different: int
    """Rows written with another content: a missing row paired with one the reference does not have."""
    first_difference: int | None
    """The first epoch that is not identical."""
    lost_epochs: list[int] = field(default_factory=list)
    """Every epoch that lost at least one row."""
    unexpected: int = 0
    """Those of `repeated` that the reference's epoch holds not even once. A rollback without any is
    repeatable; with some it diverged: the rows were made a second time, and came out otherwise."""

    @property
    def verdict(self) -> Verdict:
        """The recovery type that was seen, which may be better than the one the policy promises."""
        if self.lost or self.different:
            return "gap"
        return "rollback" if self.repeated else "precise"

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


def combine(comparisons: Sequence[Comparison]) -> Comparison:
    """One judgement for a job with several sinks: rows add up, and one bad sink spoils the verdict.

    ``epochs_compared`` is the smallest of them, since only so many epochs were checked everywhere.
    """
    if not comparisons:
        raise ValueError("comparisons is empty: a job without a sink left nothing that could be judged")
    firsts = [c.first_difference for c in comparisons if c.first_difference is not None]
    return Comparison(
        epochs_compared=min(c.epochs_compared for c in comparisons),
        rows_run=sum(c.rows_run for c in comparisons),
        rows_reference=sum(c.rows_reference for c in comparisons),
        lost=sum(c.lost for c in comparisons),
        repeated=sum(c.repeated for c in comparisons),
        different=sum(c.different for c in comparisons),
        first_difference=min(firsts, default=None),
        lost_epochs=sorted({epoch for c in comparisons for epoch in c.lost_epochs}),
        unexpected=sum(c.unexpected for c in comparisons),
    )


def compare_sinks(run: Path, reference: Path, *, since: int = 0, upto: int | None = None) -> Comparison:
    """Compare the rows of ``run`` with those of ``reference``, epoch by epoch, from epoch ``since`` through ``upto``.

    Without ``upto`` the last epoch that both have reached is the end, because the tail that a stopped run did
    not get to is not loss. Pass it whenever the run was meant to get there: only then does a run that never
    recovered show as a gap instead of as a short run.

    Raises ``ValueError`` where there is nothing to judge by, rather than calling a comparison of nothing
    precise. A run without a single epoch is compared with the whole reference: everything is lost.
    """
    of_run, of_reference = _epoch_files(run), _epoch_files(reference)
    if not of_reference:
        raise ValueError(f"reference={str(reference)!r} holds no epoch: run the failure-free job first")
    last = upto
    if last is None:
        last = min(max(of_run), max(of_reference)) if of_run else max(of_reference)
    epochs = sorted(epoch for epoch in of_run.keys() | of_reference.keys() if since <= epoch <= last)
    if not epochs:
        raise ValueError(f"neither sink has an epoch from since={since} through upto={upto}: nothing to compare")

    rows_run = rows_reference = lost = repeated = different = unexpected = 0
    first_difference: int | None = None
    lost_epochs: list[int] = []
    for epoch in epochs:
        try:
            found = _compare_epoch(of_run.get(epoch, []), of_reference.get(epoch, []))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"epoch {epoch} of {run} or {reference} cannot be read: {error}") from error
        # A surplus copy of a row that is rightly there is a repeat. Only rows unknown to the reference can be
        # the altered form of a missing one.
        altered = min(found.missing, found.unknown)
        rows_run += found.rows_run
        rows_reference += found.rows_reference
        different += altered
        lost += found.missing - altered
        repeated += found.copies + found.unknown - altered
        unexpected += found.unknown - altered
        if found.missing > altered:
            lost_epochs.append(epoch)
        if first_difference is None and (found.missing or found.copies or found.unknown):
            first_difference = epoch
    return Comparison(
        epochs_compared=len(epochs),
        rows_run=rows_run,
        rows_reference=rows_reference,
        lost=lost,
        repeated=repeated,
        different=different,
        first_difference=first_difference,
        lost_epochs=lost_epochs,
        unexpected=unexpected,
    )


# --- When it arrived ----------------------------------------------------------------------------------------


def arrivals(sink: Path) -> list[Arrival]:
    """When each epoch was complete in ``sink``, as (time, epoch, rows), sorted by epoch.

    The time is the newest modification time among the epoch's part files. An epoch that was written twice
    shows only its second time, and one without any part file, which may still be in the making, is left out.
    """
    result = []
    for epoch, files in sorted(_epoch_files(sink).items()):
        if files:
            newest_ns = max(file.stat().st_mtime_ns for file in files)
            result.append((newest_ns / 1e9, epoch, sum(_count_rows(file) for file in files)))
    return result


@dataclass(frozen=True)
class Recovery:
    """How long a failure interrupted the output, and where the time went. A part that cannot be told is None.

    ``detection_s + redeployment_s + reprocessing_s == silence_s`` when all four are known and the output
    stopped.
    """

    silence_s: float | None = None
    """From the kill to the first output that the failure did not let through: an epoch never seen before."""
    detection_s: float | None = None
    promotion_s: float | None = None
    """The share of `redeployment_s` until the standby was told to take over."""
    redeployment_s: float | None = None
    reprocessing_s: float | None = None
    """From the unit's return to its first new output at the sink: retransmission and reprocessing. 0 where
    the output never stopped, as under active standby."""
    longest_silence_s: float | None = None
    """The longest pause between two arrivals from the kill to full recovery. What a reader of the sink felt:
    it also counts the usual pause before the kill, and outputs that were still on their way hide nothing of
    it."""
    full_recovery_s: float | None = None
    """From the kill until the output came at its usual pace and kept it; 0 if it never left it."""
    first_output_at: float | None = None
    """The end of `silence_s`, in epoch seconds."""
    usual_gap_s: float | None = None
    """The median pause between arrivals before the kill; more than twice that counts as an interruption."""

    def to_dict(self) -> dict[str, float | None]:
        return asdict(self)


def recovery(
    arrivals: Sequence[Arrival],
    *,
    killed_at: float,
    detected_at: float | None = None,
    promoted_at: float | None = None,
    resumed_at: float | None = None,
    epoch_s: float,
) -> Recovery:
    """Split the interruption that a kill caused, judging by what arrived at the sink and when (paper A, Fig
    6-8).

    All times are in epoch seconds of one clock. ``epoch_s``, the job's epoch interval, stands in for the
    usual pause when fewer than two epochs had arrived before the kill.

    Epochs that a killed unit had already passed on still reach the sink after the kill. Taking one of them
    for recovered output would make the silence look like milliseconds, so when ``resumed_at`` is known and
    the output paused until then, arrivals before it do not end the silence.
    """
    if epoch_s <= 0:
        raise ValueError(f"epoch_s={epoch_s} must be positive: the job's epoch interval in seconds")
    in_time = sorted(arrivals)
    times = [time for time, _, _ in in_time]
    before = [time for time in times if time <= killed_at]
    pauses_before = [later - earlier for earlier, later in pairwise(before)]
    usual_gap_s = statistics.median(pauses_before) if pauses_before else epoch_s
    limit_s = _ABNORMAL_PAUSE * usual_gap_s

    pauses = [(earlier, later) for earlier, later in pairwise(times) if later > killed_at]
    if not before:  # nothing to measure the first pause from but the kill itself
        pauses = [(killed_at, time) for time in times[:1]] + pauses
    full_recovery_s = _settled_s(pauses, killed_at=killed_at, limit_s=limit_s)
    settled_at = float("inf") if full_recovery_s is None else killed_at + full_recovery_s
    around = [later - earlier for earlier, later in pauses if earlier <= killed_at or earlier < settled_at]

    first_output_at = _first_output_at(in_time, killed_at=killed_at, resumed_at=resumed_at, limit_s=limit_s)
    reprocessing_s = _difference(first_output_at, resumed_at)
    return Recovery(
        silence_s=_difference(first_output_at, killed_at),
        detection_s=_difference(detected_at, killed_at),
        promotion_s=_difference(promoted_at, detected_at),
        redeployment_s=_difference(resumed_at, detected_at),
        reprocessing_s=None if reprocessing_s is None else max(0.0, reprocessing_s),
        longest_silence_s=max(around, default=None),
        full_recovery_s=full_recovery_s,
        first_output_at=first_output_at,
        usual_gap_s=usual_gap_s,
    )


def _first_output_at(
    in_time: list[Arrival], *, killed_at: float, resumed_at: float | None, limit_s: float
) -> float | None:
    seen = max((epoch for time, epoch, _ in in_time if time <= killed_at), default=-1)
    new = [time for time, epoch, _ in in_time if time > killed_at and epoch > seen]
    if not new or resumed_at is None or new[0] >= resumed_at:
        return new[0] if new else None
    # Something new came before the unit was back: either the output never stopped, or that was still on its
    # way.
    returned = [time for time in new if time >= resumed_at]
    if not returned:
        return None
    last_before = max(time for time in new if time < resumed_at)
    return returned[0] if returned[0] - last_before > limit_s else new[0]


def _settled_s(pauses: list[tuple[float, float]], *, killed_at: float, limit_s: float) -> float | None:
    """The end of the last pause over ``limit_s``, provided something arrived after it to show that it was the
    last."""
    if not pauses:
        return None
    abnormal = [later for earlier, later in pauses if later - earlier > limit_s]
    if not abnormal:
        return 0.0
    return None if abnormal[-1] == pauses[-1][1] else abnormal[-1] - killed_at


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier


# --- Reading ------------------------------------------------------------------------------------------------


def _visible(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if not path.name.startswith(("_", ".")))


def _epoch_files(sink: Path) -> dict[int, list[Path]]:
    """The part files of every epoch. A folder that is not there is a sink nobody wrote to."""
    result: dict[int, list[Path]] = {}
    if not sink.is_dir():
        return result
    for folder in _visible(sink):
        match = _EPOCH_FOLDER.fullmatch(folder.name)
        if match is None or not folder.is_dir():
            continue
        files = sorted(_visible(folder))
        for file in files:
            if file.suffix not in (".parquet", ".json"):
                # Skipping it could hide rows, and make two sinks that nobody can read look identical.
                raise ValueError(f"{file} is neither .parquet nor .json; hide temporary files by a '_' or '.'")
        result.setdefault(int(match[1]), []).extend(files)
    return result


def _count_rows(file: Path) -> int:
    if file.suffix == ".json":
        return _count_lines(_json_lines(file))
    return int(pq.read_metadata(file).num_rows)


def _json_lines(file: Path) -> bytes:
    """The file's lines without blank ones, so that counting line ends counts rows."""
    return re.sub(rb"\n\s+", b"\n", file.read_bytes()).strip()


def _count_lines(lines: bytes) -> int:
    return lines.count(b"\n") + 1 if lines else 0


def _read_parquet(files: list[Path]) -> pa.Table:
    # Not pq.read_table: it would add a column for the epoch=… in the path. Files without rows may come from a
    # writer that had no schema to write, so theirs does not count.
    tables = [table for file in files if (table := pq.ParquetFile(file).read()).num_rows]
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def _read_json(run: bytes, reference: bytes) -> tuple[pa.Table, pa.Table]:
    """Parse both sides at once, so that types are guessed from the same evidence for both.

    A field that is absent equals one that is null: Spark's JSON writer leaves nulls out. Where Arrow cannot
    give a column one exact type (a number here, a text there; integers that only fit a float), lines are
    compared as text.
    """
    run_rows = _count_lines(run)
    lines = b"\n".join(side for side in (run, reference) if side)
    # A row must fit in one block, and all rows in one block settles the types in one go.
    read_options = pj.ReadOptions(use_threads=False, block_size=min(len(lines) + 1, 2**31 - 1))
    try:
        table = pj.read_json(pa.BufferReader(lines), read_options)
        as_text = pa.schema([pa.field(f.name, _times_as_text(f.type)) for f in table.schema])
        if as_text != table.schema:
            # Arrow takes texts that look like times for times: "2024-01-01" would equal "2024-01-01
            # 00:00:00".
            parse_options = pj.ParseOptions(explicit_schema=as_text)
            table = pj.read_json(pa.BufferReader(lines), read_options, parse_options)
    except pa.ArrowInvalid:
        table = None
    if table is None or ("double" in str(table.schema) and re.search(rb"[:\[,]\s*-?\d{16}", lines)):
        table = pa.table({"line": pa.array(lines.split(b"\n"), pa.large_binary())})
    return table.slice(0, run_rows), table.slice(run_rows)


def _times_as_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_times_as_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(inner.name, _times_as_text(inner.type)) for inner in kind])
    return kind


# --- Counting equal rows ------------------------------------------------------------------------------------


class _Found(NamedTuple):
    rows_run: int
    rows_reference: int
    missing: int
    """Reference rows without a counterpart in the run."""
    copies: int
    """Surplus rows of the run whose like the reference has, though less often."""
    unknown: int
    """Surplus rows of the run that the reference does not have at all."""


def _compare_epoch(run_files: list[Path], reference_files: list[Path]) -> _Found:
    suffixes = {file.suffix for file in run_files + reference_files}
    if len(suffixes) > 1:
        raise ValueError("parquet and json in one epoch: the types of the json side would only be guesses")
    if suffixes == {".json"}:
        sides = [b"\n".join(filter(None, map(_json_lines, files))) for files in (run_files, reference_files)]
        run_rows, reference_rows = (_count_lines(side) for side in sides)
    else:
        tables = _read_parquet(run_files), _read_parquet(reference_files)
        run_rows, reference_rows = (table.num_rows for table in tables)
    if not run_rows or not reference_rows:
        return _Found(run_rows, reference_rows, missing=reference_rows, copies=0, unknown=run_rows)
    if suffixes == {".json"}:
        tables = _read_json(sides[0], sides[1])

    run, reference = tables
    names = sorted(run.column_names)
    if names != sorted(reference.column_names):
        return _Found(run_rows, reference_rows, missing=reference_rows, copies=0, unknown=run_rows)
    codes = np.zeros(run_rows + reference_rows, dtype=np.int64)
    for name in names:
        codes = _fold(codes, _codes(_flat(run.column(name)), _flat(reference.column(name))))
    kinds = int(codes.max()) + 1
    in_run = np.bincount(codes[:run_rows], minlength=kinds)
    in_reference = np.bincount(codes[run_rows:], minlength=kinds)
    surplus = np.maximum(in_run - in_reference, 0)
    known = in_reference > 0
    return _Found(
        run_rows,
        reference_rows,
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
