"""Checkpoints as files: what version V of a Spark checkpoint folder needs, and the store that keeps versions.

Spark's state files are immutable once their batch has committed, so naming the files that version V needs *is*
the snapshot, and shipping those not shipped before *is* the delta. A store keeps the files of the last few
versions, each described by a manifest with every file's length and hash; what no manifest names is deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSIONS_KEPT = 2
"""A damaged newest version must leave one to fall back on. More would make upstream queues keep more."""
PART_BYTES = 8 << 20
"""Size of one message of a checkpoint: large enough to be fast, small enough not to hold up memory."""

SCRUB_BYTES = 16 << 20
"""How much of what a store holds is read again after each version, so that damage is found while the sender still has
the file. More finds it sooner and costs the disk more."""

_NUMBERED = re.compile(r"(\d+)\.(delta|snapshot|changelog|zip)")
_WHOLE = ("snapshot", "zip")


class CheckpointDamaged(Exception):
    pass


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
        if "_metadata" in here.relative_to(folder).parts:
            for name in names:
                if not name.startswith("."):
                    take(here / name)
            continue
        _take_state(here, names, batch + 1, take)
        dirs[:] = [d for d in dirs if d not in ("SSTs", "logs")]
    return needed


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


def digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


# -- shipping -----------------------------------------------------------------------------------------------------


@dataclass
class Shipped:
    """What one store is known to hold, so that only the rest is sent."""

    files: dict[str, tuple[int, str]]

    def parts(self, needed: dict[str, Path], about: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Messages that bring the store to this version, in order. After the last one was accepted, call
        ``accepted``. ``about`` goes into the manifest. ``whole`` says that nothing the store may have counts;
        ``sum`` lets it notice that it does not have what the sender thinks it has."""
        whole = not self.files
        first = True
        self._new = {name: path for name, path in needed.items() if name not in self.files}
        self._gone = [name for name in self.files if name not in needed]
        self._sizes: dict[str, tuple[int, str]] = {}
        entries: list[list[Any]] = []
        body = bytearray()
        for name, path in self._new.items():
            data = memoryview(path.read_bytes())
            self._sizes[name] = (len(data), digest(data))
            offset = 0
            while True:
                chunk = data[offset : offset + PART_BYTES - len(body)]
                end = offset + len(chunk)
                final = [len(data), self._sizes[name][1]] if end == len(data) else []
                entries.append([name, offset, len(chunk), *final])
                body += chunk
                offset = end
                if len(body) >= PART_BYTES:
                    yield {"files": entries, "zipped": 0, "first": first}, bytes(body)
                    entries, body, first = [], bytearray(), False
                if end == len(data):
                    break
        packed = zlib.compress(json.dumps(entries, separators=(",", ":")).encode() + b"\n" + body, 6)
        described = {name: self._sizes.get(name) or self.files[name] for name in needed}
        header = {"zipped": 1, "drop": self._gone, "manifest": about, "sum": _sum(described)}
        yield {**header, "first": first, "whole": whole}, packed

    def accepted(self) -> None:
        self.files.update(self._sizes)
        for name in self._gone:
            del self.files[name]


def _checked(entries: Any) -> list[Any]:
    """Entries of the shape [name, offset, length] or [name, offset, length, size, hash]."""
    if not isinstance(entries, list):
        raise CheckpointDamaged("a part arrived damaged: no list of files")
    for entry in entries:
        shape = [type(value) for value in entry] if isinstance(entry, list) else []
        if shape not in ([str, int, int], [str, int, int, int, str]):
            raise CheckpointDamaged(f"a part arrived damaged: {entry!r}")
    return entries


def _sum(files: Mapping[str, tuple[int, str]]) -> str:
    return digest("".join(f"{name}:{files[name][1]};" for name in sorted(files)).encode())


# -- the store ----------------------------------------------------------------------------------------------------


class CheckpointStore:
    """Versions of one stage's state on this host's disk: ``state/`` holds files, ``manifests/`` says which belong
    to which epoch. ``state/`` of the newest version is a checkpoint folder that Spark can open in place."""

    def __init__(self, folder: Path, *, clear: bool = False) -> None:
        self.folder = folder
        self.state = folder / "state"
        self._manifests = folder / "manifests"
        self._incoming = folder / "incoming"
        if clear:
            shutil.rmtree(folder, ignore_errors=True)
        for path in (self.state, self._manifests, self._incoming):
            path.mkdir(parents=True, exist_ok=True)
        newest = self.versions()[-1:]
        try:
            self._files: dict[str, tuple[int, str]] = self._read(newest[0])["files"] if newest else {}
        except (OSError, ValueError):
            self._files = {}  # the next delta will not fit, and the sender starts over with a whole version
        self._staged: dict[str, tuple[int, str]] = {}
        self._unscrubbed: list[str] = []

    def versions(self) -> list[int]:
        return sorted(int(p.stem) for p in self._manifests.glob("*.json"))

    def has_snapshot(self) -> bool:
        """The newest version has a whole image of some state, not only increments."""
        return any(name.endswith((".zip", ".snapshot")) for name in self._files)

    def paste(self, header: dict[str, Any], body: bytes) -> int | None:
        """Apply one part. Returns the epoch once its last part made the version whole and durable.
        Raises OSError when the disk refuses and CheckpointDamaged when what came is not what was sent."""
        try:
            if header.get("zipped"):
                text, _, body = zlib.decompress(body).partition(b"\n")
                entries = json.loads(text)
            else:
                entries = header["files"]
        except (zlib.error, ValueError) as error:
            raise CheckpointDamaged(f"a part arrived damaged: {error}") from None
        if header.get("first"):
            self._staged = {}
        position = 0
        for name, offset, length, *final in _checked(entries):
            target = self._inside(self._incoming, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "r+b" if offset else "wb") as file:
                file.seek(offset)
                file.write(body[position : position + length])
                file.flush()
                if final:
                    os.fsync(file.fileno())
            position += length
            if final:
                size, expected = final
                if target.stat().st_size != size or digest(target.read_bytes()) != expected:
                    raise CheckpointDamaged(f"{name} arrived damaged")
                place = self._inside(self.state, name)
                place.parent.mkdir(parents=True, exist_ok=True)
                target.rename(place)
                self._staged[name] = (size, expected)
        if "manifest" not in header:
            return None
        before = {} if header.get("whole") else {k: v for k, v in self._files.items() if k not in header["drop"]}
        files = {**before, **self._staged}
        if _sum(files) != header.get("sum"):
            raise CheckpointDamaged("this store lacks files that the version builds on")
        self._files = files
        return self._finish(header["manifest"])

    def _finish(self, about: dict[str, Any]) -> int:
        epoch = int(about["epoch"])
        temporary = self._incoming / "manifest"
        with open(temporary, "w") as file:
            json.dump({**about, "files": self._files}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._manifests / f"{epoch}.json")
        versions = self.versions()
        stale, kept = versions[:-VERSIONS_KEPT], versions[-VERSIONS_KEPT:]
        if stale:
            dropped = {name for v in stale for name in self._names(v)}
            wanted = {name for v in kept for name in self._names(v)} | set(self._files)
            for name in dropped - wanted:
                self._inside(self.state, name).unlink(missing_ok=True)
            for version in stale:
                (self._manifests / f"{version}.json").unlink()
        return epoch

    def scrub(self) -> None:
        """Read some of the newest version's files again, all of them in turn over time. Two versions share most of
        their files, so one that rots would spoil both; found in time, it is sent again with a whole version."""
        left = SCRUB_BYTES
        while left > 0:
            if not self._unscrubbed:
                self._unscrubbed = list(self._files)
                if left < SCRUB_BYTES or not self._unscrubbed:
                    return  # once around is enough
            name = self._unscrubbed.pop()
            if name in self._files:
                size, expected = self._files[name]
                left -= size + 1
                try:
                    self._verify(name, size, expected)
                except OSError as error:
                    raise CheckpointDamaged(f"{name}: {error.strerror or error}") from None

    def restore(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Make ``state/`` exactly the newest undamaged version. Returns its manifest (None when there is none) and
        what to tell the user about versions that had to be passed over."""
        complaints: list[str] = []
        for version in reversed(self.versions()):
            try:
                manifest = self._read(version)
                for name, (size, expected) in manifest["files"].items():
                    self._verify(name, size, expected)
            except (OSError, ValueError, KeyError, CheckpointDamaged) as error:
                complaints.append(f"checkpoint of epoch {version} is damaged ({error}); using an older version")
                (self._manifests / f"{version}.json").unlink(missing_ok=True)
                continue
            self._files = manifest["files"]
            self._keep_only(set(manifest["files"]))
            return manifest, complaints
        self._files = {}
        self._keep_only(set())
        return None, complaints

    def clone(self, target: Path) -> CheckpointStore:
        """The newest version again in ``target``, as hard links: files here never change, they only come and go."""
        copy = CheckpointStore(target, clear=True)
        versions = self.versions()
        if versions:
            for name in self._files:
                place = copy._inside(copy.state, name)
                place.parent.mkdir(parents=True, exist_ok=True)
                os.link(self._inside(self.state, name), place)
            shutil.copy(self._manifests / f"{versions[-1]}.json", copy._manifests)
            copy._files = dict(self._files)
        return copy

    def forget(self) -> None:
        """The files now belong to a running query; this store no longer vouches for any version."""
        for manifest in self._manifests.glob("*.json"):
            manifest.unlink()
        self._files = {}

    def _verify(self, name: str, size: int, expected: str) -> None:
        path = self._inside(self.state, name)
        data = path.read_bytes()
        if len(data) != size or digest(data) != expected:
            raise CheckpointDamaged(f"{name} does not match its hash")

    def _keep_only(self, names: set[str]) -> None:
        for root, _dirs, files in os.walk(self.state):
            for file in files:
                path = Path(root, file)
                relative = str(path.relative_to(self.state))
                # The running (armed) query has written its own metadata file; it must not lose it.
                if relative not in names and relative != "metadata":
                    path.unlink()

    def _read(self, version: int) -> dict[str, Any]:
        """A manifest whose shape has been checked; raises ValueError when it is damaged."""
        manifest = json.loads((self._manifests / f"{version}.json").read_text())
        try:
            files = {str(name): (int(size), str(known)) for name, (size, known) in manifest["files"].items()}
            return {**manifest, "epoch": int(manifest["epoch"]), "files": files}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the manifest is damaged: {error!r}") from None

    def _names(self, version: int) -> set[str]:
        try:
            return set(self._read(version)["files"])
        except (OSError, ValueError):
            return set()

    def _inside(self, root: Path, name: str) -> Path:
        """A path below ``root``; a name that would leave it is an attack or a bug."""
        path = root / name
        if os.path.isabs(name) or ".." in Path(name).parts:
            raise CheckpointDamaged(f"illegal file name {name!r}")
        return path
