"""A version of a stage's state as messages: its files cut into parts, and the parts written to files again.

Only what the other end lacks is sent. What arrives is checked, made durable and written twice, each file beside its
*twin*; what becomes of it then is the store's business (``checkpoints.py``).
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PART_BYTES = 8 << 20
"""Size of one message of a checkpoint: large enough to be fast, small enough not to hold up memory."""


class CheckpointDamaged(Exception):
    pass


def digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


@dataclass
class Shipped:
    """What one store is known to hold, so that only the rest is sent."""

    files: dict[str, tuple[int, str]]
    """Those of its newest version, each with its length and hash."""
    ahead: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Those that were brought ahead of the version that will name them."""
    _forgets: bool = False

    def has(self, name: str) -> bool:
        return name in self.files or name in self.ahead

    def parts(self, needed: dict[str, Path], about: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Messages that bring the store to this version, in order. After the last one was accepted, call
        ``accepted``. ``about`` goes into the manifest. ``whole`` says that nothing the store may have counts;
        ``sum`` lets it notice that it does not have what the sender thinks it has."""
        whole, forgets = not self.files, self._forgets
        self._forgets = False
        first = True
        ahead = dict(self.ahead)  # it may grow meanwhile
        self._taken = {n: ahead[n] for n in needed if n not in self.files and n in ahead}
        self._gone = [name for name in self.files if name not in needed]
        self._sizes: dict[str, tuple[int, str]] = {}
        new = {name: path for name, path in needed.items() if name not in self.files and name not in ahead}
        for entries, body in _chunks(new, self._sizes):
            if len(body) < PART_BYTES:
                break  # the rest, which may be nothing
            yield {"files": entries, "zipped": 0, "first": first}, body
            first = False
        packed = zlib.compress(json.dumps(entries, separators=(",", ":")).encode() + b"\n" + body, 6)
        described = {name: self._sizes.get(name) or self.files.get(name) or self._taken[name] for name in needed}
        header = {"zipped": 1, "drop": self._gone, "take": list(self._taken), "manifest": about}
        yield {**header, "sum": summed(described), "first": first, "whole": whole, "forgets": whole or forgets}, packed

    def accepted(self) -> None:
        self.files.update(self._sizes | self._taken)
        for name in self._gone:
            del self.files[name]
        for name in self._taken:
            del self.ahead[name]

    def forget_ahead(self) -> None:
        """No version will name what was brought ahead. The store is told with the next one."""
        self.ahead.clear()
        self._forgets = True

    def parts_ahead(self, files: dict[str, Path]) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Messages that bring files ahead of the version that will name them. They may go in between those of versions.
        A file counts as brought when its last message was accepted, that is, when the next one is asked for."""
        sizes: dict[str, tuple[int, str]] = {}
        for entries, body in _chunks({n: path for n, path in files.items() if not self.has(n)}, sizes):
            yield {"files": entries, "zipped": 0, "ahead": 1}, body
            self.ahead.update({name: sizes[name] for name, _, _, *final in entries if final})


def _chunks(files: dict[str, Path], sizes: dict[str, tuple[int, str]]) -> Iterator[tuple[list[list[Any]], bytes]]:
    """The bytes of files in parts of ``PART_BYTES``, each with what it holds of which; the last is smaller, or empty.
    Lengths and hashes are added to ``sizes``."""
    entries: list[list[Any]] = []
    body = bytearray()
    for name, path in files.items():
        data = memoryview(path.read_bytes())
        sizes[name] = (len(data), digest(data))
        offset = 0
        while True:
            chunk = data[offset : offset + PART_BYTES - len(body)]
            end = offset + len(chunk)
            final = [*sizes[name]] if end == len(data) else []
            entries.append([name, offset, len(chunk), *final])
            body += chunk
            offset = end
            if len(body) >= PART_BYTES:
                yield entries, bytes(body)
                entries, body = [], bytearray()
            if end == len(data):
                break
    yield entries, bytes(body)


def _checked(entries: Any) -> list[Any]:
    """Entries of the shape [name, offset, length] or [name, offset, length, size, hash]."""
    if not isinstance(entries, list):
        raise CheckpointDamaged("a part arrived damaged: no list of files")
    for entry in entries:
        shape = [type(value) for value in entry] if isinstance(entry, list) else []
        if shape not in ([str, int, int], [str, int, int, int, str]):
            raise CheckpointDamaged(f"a part arrived damaged: {entry!r}")
    return entries


def written(root: Path, header: Mapping[str, Any], body: bytes) -> dict[str, tuple[int, str]]:
    """Write one part below ``root``. Returns the files that are whole with it, each of them durable and beside its
    twin."""
    try:
        if header.get("zipped"):
            text, _, body = zlib.decompress(body).partition(b"\n")
            entries = json.loads(text)
        else:
            entries = header["files"]
    except (zlib.error, ValueError) as error:
        raise CheckpointDamaged(f"a part arrived damaged: {error}") from None
    whole: dict[str, tuple[int, str]] = {}
    position = 0
    for name, offset, length, *final in _checked(entries):
        target = inside(root, name)
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
            data = target.read_bytes()
            if len(data) != size or digest(data) != expected:
                raise CheckpointDamaged(f"{name} arrived damaged")
            twin_of(target).write_bytes(data)
            whole[name] = (size, expected)
    return whole


def inside(root: Path, name: str) -> Path:
    """A path below ``root``; a name that would leave it is an attack or a bug."""
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise CheckpointDamaged(f"illegal file name {name!r}")
    return root / name


def twin_of(came: Path) -> Path:
    return came.with_name(f"{came.name}.twin")


def summed(files: Mapping[str, tuple[int, str]]) -> str:
    return digest("".join(f"{name}:{files[name][1]};" for name in sorted(files)).encode())
