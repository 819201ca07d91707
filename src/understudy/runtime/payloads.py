"""Payloads of epochs: in memory up to a budget, on disk beyond it."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pyarrow as pa

from understudy.core.numbers import Epoch


class Payloads:
    """Tables by (stream, epoch). One per host, so that the budget is the host's.

    When the budget is exceeded the newest tables go to disk: the oldest are the ones about to be read. Not
    keeping them in memory at all is what the budget promises; reading them back maps the file.
    """

    def __init__(self, folder: Path, *, memory_bytes_max: int) -> None:
        self._folder = folder
        self._memory_bytes_max = memory_bytes_max
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, Epoch], pa.Table | Path] = {}
        self._files = count()
        self._deleting = ThreadPoolExecutor(1, thread_name_prefix="payloads")
        """Whoever drops a payload may hold a lock that everybody waits for."""
        self.memory_bytes = 0
        self.spilled_bytes = 0
        self.memory_bytes_peak = 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def put(self, stream: str, epoch: Epoch, table: pa.Table) -> None:
        size = table.nbytes
        with self._lock:
            self._forget((stream, epoch))
            fits = self.memory_bytes + size <= self._memory_bytes_max
            if fits:
                self._tables[stream, epoch] = table
                self.memory_bytes += size
                self.memory_bytes_peak = max(self.memory_bytes_peak, self.memory_bytes)
                return
        path = self._folder / f"{stream.replace('/', '~')}.{epoch}.{next(self._files)}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        with self._lock:
            self._tables[stream, epoch] = path
            self.spilled_bytes += size

    def get(self, stream: str, epoch: Epoch) -> pa.Table | None:
        with self._lock:
            kept = self._tables.get((stream, epoch))
        if isinstance(kept, Path):
            with pa.memory_map(str(kept)) as file:
                return pa.ipc.open_file(file).read_all()
        return kept

    def drop(self, stream: str, upto: Epoch) -> None:
        """Forget epochs of ``stream`` up to ``upto``."""
        with self._lock:
            for key in [k for k in self._tables if k[0] == stream and k[1] <= upto]:
                self._forget(key)

    def drop_all(self, stream: str) -> None:
        self.drop(stream, Epoch(1 << 62))

    def _forget(self, key: tuple[str, Epoch]) -> None:
        kept = self._tables.pop(key, None)
        if isinstance(kept, Path):
            self._deleting.submit(kept.unlink, missing_ok=True)
        elif kept is not None:
            self.memory_bytes -= kept.nbytes
