"""Epochs as a sink writes them, for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def epoch_folder(sink: Path, epoch: int) -> Path:
    folder = sink / f"epoch={epoch:012d}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def put(sink: Path, epoch: int, table: pa.Table | dict[str, Any], part: int = 0) -> Path:
    path = epoch_folder(sink, epoch) / f"part-{part}.parquet"
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path)
    return path


def put_json(sink: Path, epoch: int, rows: Iterable[Any]) -> Path:
    path = epoch_folder(sink, epoch) / "part-0.json"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path
