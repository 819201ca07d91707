"""Files for tests."""

from __future__ import annotations

from pathlib import Path


def put(folder: Path, name: str, data: bytes | str = b"") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path
