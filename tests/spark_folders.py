"""Checkpoint folders as Spark fills them, for tests."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from files import put


def spark_folder(folder: Path, batches: int) -> Path:
    """The logs of a query that has committed ``batches`` batches, with Hadoop's checksum files beside them."""
    put(folder, "metadata", '{"id":"q"}')
    for batch in range(batches):
        for log in ("offsets", "commits"):
            put(folder, f"{log}/{batch}", f"v1\n{log} {batch}")
            put(folder, f"{log}/.{batch}.crc", b"crc")
    put(folder, f"offsets/{batches}", "v1\nbegun, not committed")
    return folder


def image(path: Path, *, tables: tuple[str, ...] = (), logs: tuple[str, ...] = (), version: str = "v1\n") -> None:
    """A RocksDB image as Spark writes it: an archive whose member ``metadata`` names the files it refers to."""
    described = {
        "sstFiles": [{"localFileName": t[:6] + ".sst", "dfsSstFileName": t, "sizeBytes": 3} for t in tables],
        "logFiles": [{"localFileName": n[:6] + ".log", "dfsLogFileName": n, "sizeBytes": 3} for n in logs],
        "numKeys": 1,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata", version + json.dumps(described))
        archive.writestr("MANIFEST-000005", "rocksdb's own")
    for table in tables:
        put(path.parent, f"SSTs/{table}", b"sst")
    for log in logs:
        put(path.parent, f"logs/{log}", b"log")
