"""The states of an operator's object that were saved, by batch, as files in a stage's state folder.

What ``save`` returned is one file, ``operator/12``. An operator with windows saves part by part, and most of its parts
are those of the save before: each part is a file of its own, named by the batch at which it was written, and
``operator/12.parts`` lists those that are the state. So a checkpoint sends only what was written since the last one.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from understudy.runtime.spark_files import Batch

FOLDER = "operator"
"""Of a checkpoint. Numbers are batches, which are to epochs as Spark's are (``RunningStage.base``): a state may go on
at a later epoch than it was saved at."""
KEPT = 2
"""How many states are kept from before the trim point."""
_PARTS = ".parts"


def is_part(name: str) -> bool:
    """Whether a file of a checkpoint is one part of several that an operator's state is made of."""
    folder, _, file = name.rpartition("/")
    return folder == FOLDER and "." in file and not file.endswith(_PARTS)


State = bytes | dict[str, bytes | None]
"""What an object gave: in one piece, or by parts. A part without content is that of the save before, or is missing."""
Listed = dict[str, str]
"""Part -> its file."""


class Saves:
    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER
        self._lock = threading.Lock()
        self._batches: set[Batch] = set()
        self._listed: dict[Batch, Listed] = {}
        """Those that were saved by parts."""
        self._bytes: dict[str, int] = {}
        """Of every file. Asking the file system instead would be two calls for each of hundreds of parts that a save
        has not written, which took longer than what it has."""
        self._lent: Counter[Batch] = Counter()
        """Those that somebody is reading: they are kept, however old."""
        there = list(self._folder.glob("*"))
        self._bytes.update((path.name, path.stat().st_size) for path in there)
        for path in there:
            number = path.name.removesuffix(_PARTS)
            if not number.isdigit():
                continue
            batch = Batch(int(number))
            if path.name != number:
                self._listed[batch] = msgspec.json.decode(path.read_bytes(), type=Listed)
            self._batches.add(batch)

    def has(self, batch: Batch) -> bool:
        """All of it: one that lacks a part, since that was damaged, is good to go on from, and is saved anew."""
        with self._lock:
            return batch in self._batches and all(name in self._bytes for name in self._names(batch))

    @contextmanager
    def lent(self, batch: Batch) -> Iterator[None]:
        """Its files stay meanwhile: sending a large state takes longer than newer ones take to come."""
        with self._lock:
            self._lent[batch] += 1
        try:
            yield
        finally:
            with self._lock:
                self._lent[batch] -= 1

    def add(self, batch: Batch, saved: State) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if isinstance(saved, bytes):
            self._write(str(batch), saved)
        else:
            before = self._listed[max(self._listed)] if self._listed else {}
            new: Listed = {}
            for part, content in saved.items():
                if content is not None:
                    new[part] = f"{batch}.{part}"
                    self._create(new[part], content)
            listed = {part: new.get(part) or before[part] for part in saved}
            self._write(f"{batch}{_PARTS}", msgspec.json.encode(listed))
            with self._lock:
                self._listed[batch] = listed
        with self._lock:
            self._batches.add(batch)

    def _create(self, name: str, content: bytes) -> None:
        """A part, which nobody knows of before the list is written that names it: it need not be there as a whole at
        once, as ``_write`` has it, which for a small part takes twice as long."""
        try:
            file = os.open(f"{self._folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:  # of a save that failed, or was killed
            self._write(name, content)
            return
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(file, left) :]
        finally:
            os.close(file)
        with self._lock:
            self._bytes[name] = len(content)

    def _write(self, name: str, content: bytes) -> None:
        temporary = self._folder / f".{name}"
        temporary.write_bytes(content)
        os.rename(temporary, self._folder / name)
        with self._lock:
            self._bytes[name] = len(content)

    def read(self, batch: Batch) -> State | None:
        if batch not in self._batches:
            return None
        if batch not in self._listed:
            return (self._folder / str(batch)).read_bytes()
        return {part: self._content(file) for part, file in self._listed[batch].items()}

    def _content(self, file: str) -> bytes | None:
        try:
            return (self._folder / file).read_bytes()
        except FileNotFoundError:
            return None

    def files_of(self, batch: Batch) -> dict[str, Path]:
        if not self.has(batch):
            raise FileNotFoundError(f"the state after batch {batch} was not saved")
        return self._files(batch)

    def _files(self, batch: Batch) -> dict[str, Path]:
        return {f"{FOLDER}/{name}": self._folder / name for name in self._names(batch)}

    def size(self) -> int:
        """Of the newest."""
        with self._lock:
            if not self._batches:
                return 0
            return sum(self._bytes.get(name, 0) for name in self._names(max(self._batches)))

    def trim(self, batch: Batch) -> None:
        """Nobody will ask for an older state than the newest that is no newer than ``batch``. One more is kept: it may
        be on its way."""
        with self._lock:
            old = [b for b in sorted(b for b in self._batches if b <= batch)[:-KEPT] if not self._lent[b]]
            before = {name for each in old for name in self._names(each)}
            for each in old:
                self._batches.remove(each)
                self._listed.pop(each, None)
            still = {name for each in self._batches for name in self._names(each)}
            for name in before - still:
                self._bytes.pop(name, None)
        for name in before - still:
            (self._folder / name).unlink(missing_ok=True)

    def _names(self, batch: Batch) -> list[str]:
        listed = self._listed.get(batch)
        return [str(batch)] if listed is None else [f"{batch}{_PARTS}", *listed.values()]
