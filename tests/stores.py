"""A checkpoint store and whoever ships to it, for tests of both."""

from __future__ import annotations

from pathlib import Path

import msgspec

from files import put
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.parts import About, CheckpointPart, Shipped


class Primary:
    """A folder of files that come and go, shipped to a store."""

    def __init__(self, folder: Path, store: CheckpointStore) -> None:
        self.folder, self.store = folder, store
        self.shipped = Shipped({})
        folder.mkdir(parents=True, exist_ok=True)

    def needed(self, files: dict[str, bytes]) -> dict[str, Path]:
        return {name: put(self.folder, name, data) for name, data in files.items()}

    def ship(self, epoch: int, files: dict[str, bytes]) -> list[int]:
        """Bring the store to a version. Returns the sizes of the messages."""
        sizes, results = [], []
        for part, body in self.shipped.parts(self.needed(files), About(epoch)):
            part = msgspec.json.decode(msgspec.json.encode(part), type=CheckpointPart)  # as it arrives
            results.append(self.store.paste(part, body))
            sizes.append(len(body))
        assert results == [None] * (len(results) - 1) + [epoch]
        self.shipped.accepted()
        return sizes


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def manifest(folder: Path, epoch: int, kind: str = "json") -> Path:
    return folder / "manifests" / f"{epoch}.{kind}"


def twins(store: CheckpointStore) -> Path:
    return store.folder / "twins"


FILES = {"metadata": b"m", "state/a": b"aa", "state/b": b"bb"}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def scrub(store: CheckpointStore) -> list[str]:
    """As a standby does with every version."""
    return store.mend(store.rotten(store.scrub_next()))
