"""What Spark keeps in a query's checkpoint folder: the files that version V needs, their sizes, and the watermark.

Spark's state files are immutable once their batch has committed, so naming the files that version V needs *is* the
snapshot.

Spark names them ``12.changelog`` or, in its second format, ``12_<id>.changelog``: then two queries may have written the
same version, and the log of commits says whose counts.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NewType

Batch = NewType("Batch", int)
"""Spark's number of a batch of one query. ``RunningStage.batch_of`` tells which one makes an epoch."""
_NUMBERED = re.compile(r"(\d+)(?:_([0-9a-f-]{36}))?\.(delta|snapshot|changelog|zip)")
_WHOLE = ("snapshot", "zip")
_CHANGES = ".changelog"
_DESCRIBING = {"_metadata", "_stateSchema"}
"""Folders with what Spark says of a stateful operator: its kind and partitions, and what its state looks like."""


def files_of_version(folder: Path, batch: Batch) -> dict[str, Path]:
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
        for path in _state_files(here, names, batch + 1, folder / "commits"):
            take(path)
        dirs[:] = [d for d in dirs if d not in ("SSTs", "logs")]
    return needed


def files_since(
    image: dict[str, Path], held: Collection[str], fresh: Mapping[str, Path], folder: Path, batch: Batch
) -> dict[str, Path] | None:
    """The files of the version after ``batch`` (``fresh`` has it with its newest images of state) for somebody who
    ``held`` the files of an older one: with the images that they have, or with other ones (``image``), and all changes
    since. None where a change is gone, or Spark names its files otherwise."""
    needed = {name: path for name, path in fresh.items() if _store_of(name) is None}
    images: dict[str | None, dict[str, Path]] = {_store_of(name): {} for name in fresh}
    given = {_store_of(name) for name in image}
    for name, path in (image | {n: folder / n for n in held if _store_of(n) not in given}).items():
        if not name.endswith(_CHANGES):
            images.setdefault(_store_of(name), {})[name] = path
    for store, files in images.items():
        if store is None:
            continue
        known = [_NUMBERED.fullmatch(name.removeprefix(f"{store}/")) for name in files]
        base = max((int(found[1]) for found in known if found), default=0)
        changes = [f"{store}/{version}{_CHANGES}" for version in range(base + 1, batch + 2)]
        if base > batch + 1 or not all(name in held or (folder / name).exists() for name in changes):
            return None
        needed |= files | {name: folder / name for name in changes}
    return needed


def image_in(files: Mapping[str, Path]) -> dict[str, Path]:
    """Of a version's files, the whole images of its state."""
    return {n: path for n, path in files.items() if _store_of(n) is not None and not n.endswith(_CHANGES)}


def changes_in(files: Iterable[str]) -> list[str]:
    """Of a version's files, the changes since its images."""
    return [name for name in files if name.endswith(_CHANGES) and _store_of(name) is not None]


def _store_of(name: str) -> str | None:
    """The state store whose file this is; None for logs, and for what describes a state."""
    folder, _, file = name.rpartition("/")
    if not folder.startswith("state/") or _DESCRIBING.intersection(folder.split("/")):
        return None
    above, _, last = folder.rpartition("/")
    return above if last in ("SSTs", "logs") else folder if _NUMBERED.fullmatch(file) else None


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


def sizes_of_version(folder: Path, batch: Batch) -> tuple[int, int]:
    """Bytes of the state after ``batch``, and of what that batch changed in it."""
    needed = files_of_version(folder, batch)
    whole = sum(path.stat().st_size for name, path in needed.items() if name.startswith("state/"))
    changes = (p for p in (folder / "state").rglob(f"{batch + 1}[._]*") if _is_change(p.name, batch + 1))
    return whole, sum(path.stat().st_size for path in changes)


def _is_change(name: str, version: int) -> bool:
    found = _NUMBERED.fullmatch(name)
    return found is not None and found[3] not in _WHOLE and int(found[1]) == version


def settings_of(folder: Path) -> dict[str, str] | None:
    """The settings that a query was begun with and keeps, from Spark's log of offsets; None before its first batch."""
    batches = [int(path.name) for path in (folder / "offsets").glob("*") if path.name.isdigit()]
    if not batches:
        return None
    found = json.loads((folder / "offsets" / str(max(batches))).read_text().splitlines()[1])
    return dict(found.get("conf", {}))


def next_watermark_ms(folder: Path, batch: Batch) -> int:
    """The watermark that the batch after ``batch`` uses, from Spark's log of commits."""
    described = (folder / "commits" / str(batch)).read_text().splitlines()[1]
    return int(json.loads(described)["nextBatchWatermarkMs"])


def _state_files(here: Path, names: list[str], version: int, commits: Path) -> Iterator[Path]:
    """The newest whole image at or before ``version``, every increment after it and, where names have ids, the commits
    that say which count."""
    numbered = [(int(m[1]), m[2], m[3], m[0]) for m in map(_NUMBERED.fullmatch, names) if m and int(m[1]) <= version]
    ids = {n: _ids_of(commits, n) for n in {n for n, id, _, _ in numbered if id}}
    numbered = [each for each in numbered if each[1] is None or each[1] in ids[each[0]]]
    base, whole = max(((n, name) for n, _, kind, name in numbered if kind in _WHOLE), default=(0, None))
    if ids and not set(range(base + 1, version + 1)) <= {n for n, _, kind, _ in numbered if kind not in _WHOLE}:
        raise FileNotFoundError(f"{here} lacks changes up to version {version}, or the commits that name them")
    if whole is not None:
        if whole.endswith(".zip"):
            yield from _rocksdb_files(here, here / whole)
        yield here / whole  # after its tables: whoever finds it shall find them
    for n, id, kind, name in numbered:
        if kind not in _WHOLE and n > base:
            yield here / name
        if id is not None and n >= base:
            yield commits / str(n - 1)


def _ids_of(commits: Path, version: int) -> set[str]:
    """The ids of all state files of a version that was committed."""
    try:
        described = json.loads((commits / str(version - 1)).read_text().splitlines()[1])
    except FileNotFoundError:
        return set()  # never committed, or so old that Spark has cleaned up
    return {id for operator in described.get("stateUniqueIds", {}).values() for stores in operator for id in stores}


def _rocksdb_files(here: Path, image: Path) -> list[Path]:
    """The table and log files that a RocksDB image refers to, from the JSON inside its archive."""
    with zipfile.ZipFile(image) as archive:
        text = archive.read("metadata").decode()
    described = json.loads(text[text.index("{") :])
    tables = [here / "SSTs" / f["dfsSstFileName"] for f in described.get("sstFiles", [])]
    logs = [here / "logs" / f["dfsLogFileName"] for f in described.get("logFiles", [])]
    return tables + logs
