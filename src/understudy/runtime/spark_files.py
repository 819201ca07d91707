"""What Spark keeps in a query's checkpoint folder: the files that version V needs, their sizes, and the watermark.

Spark's state files are immutable once their batch has committed, so naming the files that version V needs *is* the
snapshot.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

_NUMBERED = re.compile(r"(\d+)\.(delta|snapshot|changelog|zip)")
_WHOLE = ("snapshot", "zip")
_DESCRIBING = {"_metadata", "_stateSchema"}
"""Folders with what Spark says of a stateful operator: its kind and partitions, and what its state looks like."""


def files_of_version(folder: Path, batch: int) -> dict[str, Path]:
    """The files that a query needs to go on after ``batch``; names are relative to ``folder``."""
    needed: dict[str, Path] = {}
    if batch < 0:
        return needed

    def take(path: Path) -> None:
        needed[str(path.relative_to(folder))] = path

    if not (folder / "commits" / str(batch)).exists():
        raise FileNotFoundError(f"batch {batch} is not committed in {folder}")
    take(folder / "metadata")
    for log in ("offsets", "commits"):
        for number in (batch - 1, batch):
            if number >= 0:
                take(folder / log / str(number))
    for root, dirs, names in os.walk(folder / "state"):
        here = Path(root)
        if _DESCRIBING.intersection(here.relative_to(folder).parts):
            for name in names:
                if not name.startswith(".") and _batch_of(name) <= batch:
                    take(here / name)
            continue
        _take_state(here, names, batch + 1, take)
        dirs[:] = [d for d in dirs if d not in ("SSTs", "logs")]
    return needed


def move_in(folder: Path) -> None:
    """Make a checkpoint folder that was copied from elsewhere its own: Spark writes down, with their whole paths, where
    the descriptions of a state are. Files are replaced, not changed: other folders may have links to them."""
    here = f"file:{folder.resolve()}/state/"
    for path in (folder / "state").glob("*/_metadata/v2/*"):
        if path.name.startswith("."):
            continue
        version, _, text = path.read_text().partition("\n")
        described = json.loads(text)
        for store in described.get("stateStoreInfo", []):
            known = store.get("stateSchemaFilePaths", [])
            store["stateSchemaFilePaths"] = [_SCHEMA_FILE.sub(here, name) for name in known]
        moved = path.with_name(f".{path.name}.moved")
        moved.write_text(f"{version}\n{json.dumps(described)}")
        moved.rename(path)


_SCHEMA_FILE = re.compile(r"^.*/state/(?=[^/]+/_stateSchema/)")


def _batch_of(name: str) -> int:
    """Descriptions are named by the batch that wrote them: ``7``, ``7_<uuid>``; or ``metadata``, written once."""
    number = name.partition("_")[0]
    return int(number) if number.isdigit() else -1


def sizes_of_version(folder: Path, batch: int) -> tuple[int, int]:
    """Bytes of the state after ``batch``, and of what that batch changed in it."""
    needed = files_of_version(folder, batch)
    whole = sum(path.stat().st_size for name, path in needed.items() if name.startswith("state/"))
    changes = (p for p in (folder / "state").rglob(f"{batch + 1}.*") if p.suffix in (".changelog", ".delta"))
    return whole, sum(path.stat().st_size for path in changes)


def next_watermark_ms(folder: Path, batch: int) -> int:
    """The watermark that the batch after ``batch`` uses, from Spark's log of commits."""
    described = (folder / "commits" / str(batch)).read_text().splitlines()[1]
    return int(json.loads(described)["nextBatchWatermarkMs"])


def _take_state(here: Path, names: list[str], version: int, take: Any) -> None:
    """The newest whole image at or before ``version`` and every increment after it."""
    numbered = [(int(m[1]), m[2], name) for name in names if (m := _NUMBERED.fullmatch(name))]
    base, whole = max(((n, name) for n, kind, name in numbered if kind in _WHOLE and n <= version), default=(0, None))
    if whole is not None:
        take(here / whole)
        if whole.endswith(".zip"):
            for path in _rocksdb_files(here, here / whole):
                take(path)
    for n, kind, name in numbered:
        if kind not in _WHOLE and base < n <= version:
            take(here / name)


def _rocksdb_files(here: Path, image: Path) -> list[Path]:
    """The table and log files that a RocksDB image refers to, from the JSON inside its archive."""
    with zipfile.ZipFile(image) as archive:
        text = archive.read("metadata").decode()
    described = json.loads(text[text.index("{") :])
    tables = [here / "SSTs" / f["dfsSstFileName"] for f in described.get("sstFiles", [])]
    logs = [here / "logs" / f["dfsLogFileName"] for f in described.get("logFiles", [])]
    return tables + logs
