"""What a folder sink holds: one folder per epoch, ``epoch=000000000012/part-0.parquet`` (or ``.json``, one object per
line).

Whoever judges a run reads its sinks through this module, so that all of them agree on what counts as an epoch, a part
file and a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from understudy.core.numbers import Epoch

_EPOCH_FOLDER = re.compile(r"epoch=(\d+)")


def _visible(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if not path.name.startswith(("_", ".")))


def epoch_files(sink: Path) -> dict[Epoch, list[Path]]:
    """The part files of every epoch. A folder that is not there is a sink nobody wrote to."""
    result: dict[Epoch, list[Path]] = {}
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
        result.setdefault(Epoch(int(match[1])), []).extend(files)
    return result


def count_rows(file: Path) -> int:
    if file.suffix == ".json":
        return count_lines(json_lines(file))
    return int(pq.read_metadata(file).num_rows)


def json_lines(file: Path) -> bytes:
    """The file's lines without blank ones, so that counting line ends counts rows."""
    return re.sub(rb"\n\s+", b"\n", file.read_bytes()).strip()


def count_lines(lines: bytes) -> int:
    return lines.count(b"\n") + 1 if lines else 0


def read_parquet(files: list[Path]) -> pa.Table:
    # Not pq.read_table: it would add a column for the epoch=… in the path. Files without rows may come from a
    # writer that had no schema to write, so theirs does not count.
    tables = [table for file in files if (table := pq.ParquetFile(file).read()).num_rows]
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def read_json(run: bytes, reference: bytes) -> tuple[pa.Table, pa.Table]:
    """Parse both sides at once, so that types are guessed from the same evidence for both.

    A field that is absent equals one that is null: Spark's JSON writer leaves nulls out. Where Arrow cannot
    give a column one exact type (a number here, a text there; integers that only fit a float), lines are
    compared as text.
    """
    run_rows = count_lines(run)
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
