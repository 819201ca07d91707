"""A version of a stage's state as messages: its files cut into parts, and the parts written to files again.

Only what the other end lacks is sent. What arrives is checked, made durable and written twice, each file beside its
*twin*; what becomes of it then is the store's business (``checkpoints.py``).
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from understudy.core.numbers import FIRST_EPOCH, FIRST_GENERATION, Epoch, Generation
from understudy.core.row_counts import Missed
from understudy.runtime.wire import Message

PART_BYTES = 8 << 20
"""Size of one message of a checkpoint: large enough to be fast, small enough not to hold up memory."""


Known = tuple[int, str]
"""Of a file: its length and its hash."""


class CheckpointDamaged(Exception):
    pass


class About(Message, frozen=True):
    """What is to be known of a version besides its files."""

    epoch: Epoch
    base: int = 0
    """What Spark's batch ids lack to epochs (``RunningStage.base``)."""
    gap: Epoch = FIRST_EPOCH
    """Epochs before this one were lost without protection."""
    generation: Generation = FIRST_GENERATION
    landed: dict[str, Epoch] = msgspec.field(default_factory=dict)
    """What sinks had (``core.landed``)."""
    usual: dict[str, float] = msgspec.field(default_factory=dict)
    """Rows per epoch of each input, as of late."""
    missed: Missed = Missed()
    """What the state itself lacks, where it is the one that its stage began from."""
    schema: str = ""
    """Of the stage, in Spark's words."""


class Chunk(Message, frozen=True, array_like=True):
    """Some bytes of a file, in a part."""

    name: str
    offset: int
    length: int
    known: Known | None = None
    """Of the whole file, with the last of its bytes."""


class Version(Message, frozen=True):
    """Comes with the last part of one."""

    about: About
    sum: str
    """Lets a store notice that it does not have what the sender thinks it has."""
    drop: tuple[str, ...] = ()
    """Files of the version before that are not of this one."""
    take: tuple[str, ...] = ()
    """Files that were brought ahead."""
    whole: bool = False
    """Nothing that the store may have counts."""
    forgets: bool = False
    """Nor does what was brought ahead and is not taken."""


class CheckpointPart(Message, frozen=True):
    """Describes the bytes that come with it."""

    chunks: tuple[Chunk, ...] | None = None
    """What the bytes are of. None: the bytes are compressed, and begin with a line that says so."""
    first: bool = False
    ahead: bool = False
    """Of files that come ahead of the version that will name them."""
    version: Version | None = None


def digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


@dataclass
class Shipped:
    """What one store is known to hold, so that only the rest is sent."""

    files: dict[str, Known]
    """Those of its newest version."""
    ahead: dict[str, Known] = field(default_factory=dict)
    """Those that were brought ahead of the version that will name them."""
    _forgets: bool = False

    def has(self, name: str) -> bool:
        return name in self.files or name in self.ahead

    def parts(self, needed: dict[str, Path], about: About) -> Iterator[tuple[CheckpointPart, bytes]]:
        """Messages that bring the store to this version, in order. After the last one was accepted, call
        ``accepted``."""
        whole, forgets = not self.files, self._forgets
        self._forgets = False
        first = True
        ahead = dict(self.ahead)  # it may grow meanwhile
        self._taken = {n: ahead[n] for n in needed if n not in self.files and n in ahead}
        self._gone = [name for name in self.files if name not in needed]
        self._sizes: dict[str, Known] = {}
        new = {name: path for name, path in needed.items() if name not in self.files and name not in ahead}
        for chunks, body in _cut(new, self._sizes):
            if len(body) < PART_BYTES:
                break  # the rest, which may be nothing
            yield CheckpointPart(tuple(chunks), first=first), body
            first = False
        packed = zlib.compress(msgspec.json.encode(chunks) + b"\n" + body, 6)
        described = {name: self._sizes.get(name) or self.files.get(name) or self._taken[name] for name in needed}
        drop, take = tuple(self._gone), tuple(self._taken)
        version = Version(about, summed(described), drop, take, whole=whole, forgets=whole or forgets)
        yield CheckpointPart(first=first, version=version), packed

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

    def parts_ahead(self, files: dict[str, Path]) -> Iterator[tuple[CheckpointPart, bytes]]:
        """Messages that bring files ahead of the version that will name them. They may go in between those of versions.
        A file counts as brought when its last message was accepted, that is, when the next one is asked for."""
        sizes: dict[str, Known] = {}
        for chunks, body in _cut({n: path for n, path in files.items() if not self.has(n)}, sizes):
            yield CheckpointPart(tuple(chunks), ahead=True), body
            self.ahead.update({chunk.name: chunk.known for chunk in chunks if chunk.known is not None})


def _cut(files: dict[str, Path], sizes: dict[str, Known]) -> Iterator[tuple[list[Chunk], bytes]]:
    """The bytes of files in parts of ``PART_BYTES``, each with what it holds of which; the last is smaller, or empty.
    Lengths and hashes are added to ``sizes``."""
    chunks: list[Chunk] = []
    body = bytearray()
    for name, path in files.items():
        data = memoryview(path.read_bytes())
        sizes[name] = (len(data), digest(data))
        offset = 0
        while True:
            chunk = data[offset : offset + PART_BYTES - len(body)]
            end = offset + len(chunk)
            chunks.append(Chunk(name, offset, len(chunk), sizes[name] if end == len(data) else None))
            body += chunk
            offset = end
            if len(body) >= PART_BYTES:
                yield chunks, bytes(body)
                chunks, body = [], bytearray()
            if end == len(data):
                break
    yield chunks, bytes(body)


def written(root: Path, part: CheckpointPart, body: bytes) -> dict[str, Known]:
    """Write one part below ``root``. Returns the files that are whole with it, each of them durable and beside its
    twin."""
    chunks = part.chunks
    if chunks is None:
        try:
            text, _, body = zlib.decompress(body).partition(b"\n")
            chunks = msgspec.json.decode(text, type=tuple[Chunk, ...])
        except (zlib.error, msgspec.MsgspecError) as error:
            raise CheckpointDamaged(f"a part arrived damaged: {error}") from None
    whole: dict[str, Known] = {}
    position = 0
    for chunk in chunks:
        target = inside(root, chunk.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "r+b" if chunk.offset else "wb") as file:
            file.seek(chunk.offset)
            file.write(body[position : position + chunk.length])
            file.flush()
            if chunk.known is not None:
                os.fsync(file.fileno())
        position += chunk.length
        if chunk.known is not None:
            data = target.read_bytes()
            if (len(data), digest(data)) != chunk.known:
                raise CheckpointDamaged(f"{chunk.name} arrived damaged")
            twin_of(target).write_bytes(data)
            whole[chunk.name] = chunk.known
    return whole


def inside(root: Path, name: str) -> Path:
    """A path below ``root``; a name that would leave it is an attack or a bug."""
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise CheckpointDamaged(f"illegal file name {name!r}")
    return root / name


def twin_of(came: Path) -> Path:
    return came.with_name(f"{came.name}.twin")


def summed(files: Mapping[str, Known]) -> str:
    return digest("".join(f"{name}:{files[name][1]};" for name in sorted(files)).encode())
