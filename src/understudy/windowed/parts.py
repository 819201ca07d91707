"""What a state is made of: parts, each with a name that says what is in it.

A name ends with a hash of the content. So no name is ever used for two contents, not even by a copy that goes on from
an older state and writes the same slot for the same time; and whether a part is damaged can be told from itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

HEAD = "head"
_DIGEST_BYTES = 16
_READ_FAILED = (pa.ArrowException, OSError, ValueError, KeyError, TypeError)


def named(stem: str, body: bytes) -> str:
    return f"{stem}-{_digest(body)}"


def intact(name: str, body: bytes | None) -> bool:
    return body is not None and name.endswith(f"-{_digest(body)}")


def _digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).hexdigest()


def packed(table: pa.Table, compression: str | None = None) -> bytes:
    """As Arrow IPC with its schema, so that a part can be read by itself."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table.combine_chunks())
    body: bytes = out.getvalue().to_pybytes()
    return body


def unpacked(name: str, body: bytes | None) -> pa.Table | None:
    """None where the part is missing or damaged."""
    if body is None or not intact(name, body):
        return None
    try:
        return pa.ipc.open_stream(pa.py_buffer(body)).read_all()
    except _READ_FAILED:
        return None


def packed_head(content: dict[str, Any]) -> bytes:
    """Of a window in many groups it is most of what a save has to write, and Python's own encoder takes several
    times as long."""
    return msgspec.json.encode(content, order="sorted")


def unpacked_head(parts: Mapping[str, bytes | None]) -> tuple[str, dict[str, Any]] | None:
    """Its name and content. None where it is missing or damaged."""
    names = [name for name in parts if name.startswith(f"{HEAD}-")]
    if len(names) != 1 or not intact(names[0], parts[names[0]]):
        return None
    try:
        content = json.loads(parts[names[0]] or b"")
    except ValueError:
        return None
    return (names[0], content) if isinstance(content, dict) else None


class Known:
    """The parts of the save, or restore, just before: those need not be handed over again."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()

    def only_new(self, parts: dict[str, bytes | None], written: Iterable[str]) -> dict[str, bytes | None]:
        """``parts`` without the content of those that were there before, among these that have any. What has none must
        have been there."""
        for name in written:
            if name in self._names:
                parts[name] = None
        self._names = frozenset(parts)
        return parts

    def are(self, parts: Mapping[str, bytes | None], damaged: tuple[str, ...] = ()) -> None:
        self._names = frozenset(name for name, body in parts.items() if body is not None and name not in damaged)


def prefixed(prefix: str, parts: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    return {f"{prefix}.{name}": body for name, body in parts.items()}


def under(prefix: str, parts: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    return {name[len(prefix) + 1 :]: body for name, body in parts.items() if name.startswith(f"{prefix}.")}
