"""Bringing versions of a stage's state to its standbys, or to the own disk.

A version is an image of the state and the changes since. Changes are small; an image of a large state is not, and where
keys come in no order RocksDB writes most of its tables anew all the time. So a target stays with the image that it has,
and is sent changes; when these have become many, the next image is brought beside the versions, a part at a time.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as flight

from understudy.core.numbers import Epoch
from understudy.runtime import messages
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.parts import CheckpointDamaged, CheckpointPart, Shipped
from understudy.runtime.rehearsal import CALM_S
from understudy.runtime.spark import first_line
from understudy.runtime.spark_files import Batch, changes_in, files_of_version, files_since, image_in
from understudy.runtime.wire import Refusal

if TYPE_CHECKING:
    from understudy.runtime.stage import RunningStage

CALM_BYTES = 64 << 20
"""Within ``CALM_S`` of its start a stage is not asked for so much at once: a takeover needs the disk for itself."""
AT_ONCE_BYTES = 16 << 20
"""An image is sent with its version when the target lacks no more of it than this."""
CHANGES_BYTES, CHANGES = 64 << 20, 500
"""When the changes since the target's image have come to so many bytes, or so many for one store, it is brought a newer
one: whoever has to open its state without having followed it replays them all."""
BRINGING_SHARE = 0.5
"""How much of the time a newer image may be on its way: versions go first."""
BRINGING_AGAIN_S = 60.0
"""After a failure."""


class Shipper:
    """Brings versions of one stage's state to one standby or, lacking one, to this host's own disk."""

    def __init__(self, stage: RunningStage, target: str) -> None:
        self.stage, self.host, self.target = stage, stage.host, target
        self.over = False
        """Another target was chosen."""
        self._own = CheckpointStore(stage.folder / "self") if target == self.host.name else None
        # After a takeover the own disk has what the stage began from, as links.
        self._shipped = Shipped({} if self._own is None else self._own.shared_with(stage.state))
        self._sending = threading.Lock()
        """The own disk takes one message at a time."""
        self._newer: NewerImage | None = None
        self._no_newer_until = stage.started_at + CALM_S
        self._counted: Callable[[int], None] = lambda _: None

    def ship(
        self, epoch: Epoch, needed: dict[str, Path], counted: Callable[[int], None] = lambda _: None
    ) -> str | None:
        """Returns None when the version is safe at the target, else why not: ``fenced``, ``moved`` (another target was
        chosen meanwhile), ``disk: ...`` or another text. ``counted`` is told the bytes of every part."""
        failure: str | None = None
        self._counted = counted
        try:
            for part, body in self._shipped.parts(needed, self.stage.about(epoch)):
                failure = "moved" if self.over else self._send(part, body)
                if failure is not None:
                    break
                counted(len(body))
            else:
                self._shipped.accepted()
        except (flight.FlightError, pa.ArrowException, CheckpointDamaged, OSError) as error:
            failure = _failure(error)
        if failure is not None:
            self._shipped = Shipped({})
        with self.host.changed:
            return "moved" if self.over else failure

    def files_of_query(self, batch: Batch) -> dict[str, Path]:
        """The files that make the version after ``batch`` of the stage's query at the target. Raises FileNotFoundError
        when Spark has cleaned up meanwhile."""
        state, shipped, newer = self.stage.state, self._shipped, self._newer
        fresh = files_of_version(state, batch)
        if newer is not None and not newer.is_alive():
            kept = files_since(newer.files, shipped.files, fresh, state, batch) if newer.serves(shipped) else None
            if kept is None:
                shipped.forget_ahead()
                self._no_newer_until = time.monotonic() + BRINGING_AGAIN_S
            self._newer = newer = None
            if kept is not None:
                return kept
        if not shipped.files or (newer is None and self.lacks(fresh) <= AT_ONCE_BYTES):
            return fresh
        kept = files_since({}, shipped.files, fresh, state, batch)
        if kept is None or self.lacks(kept) > self.lacks(fresh):
            return fresh
        if newer is None and time.monotonic() >= self._no_newer_until and self._are_many(changes_in(kept)):
            self._bring_newer(image_in(fresh))
        return kept

    def _bring_newer(self, image: dict[str, Path]) -> None:
        try:
            self._newer = NewerImage(self, image)
            self._newer.start()
        except OSError as error:
            print(f"{self.stage.name}: a newer image cannot be kept: {error}", flush=True)
            self._no_newer_until = time.monotonic() + BRINGING_AGAIN_S

    def _are_many(self, changes: list[str]) -> bool:
        stores = {name.rpartition("/")[0] for name in changes}
        known = (self._shipped.files[name][0] for name in changes if name in self._shipped.files)
        return sum(known) > CHANGES_BYTES or len(changes) > CHANGES * len(stores)

    def lacks(self, needed: dict[str, Path]) -> int:
        """Bytes of a version that would have to be sent."""
        return sum(path.stat().st_size for name, path in needed.items() if not self._shipped.has(name))

    def bring(self, files: dict[str, Path]) -> bool:
        """Bring files ahead of the version that will name them. Returns whether all are there."""
        shipped = self._shipped
        try:
            for part, body in shipped.parts_ahead(files):
                begin = time.monotonic()
                if self.over or self._shipped is not shipped or self._send(part, body) is not None:
                    return False
                self._counted(len(body))
                time.sleep((time.monotonic() - begin) * (1 / BRINGING_SHARE - 1))
        except (flight.FlightError, pa.ArrowException, CheckpointDamaged, OSError) as error:
            print(f"{self.stage.name}: {self.target} cannot be brought a newer image: {_failure(error)}", flush=True)
            return False
        return True

    def _send(self, part: CheckpointPart, body: bytes) -> str | None:
        stage = self.stage
        if self._own is not None:
            with self._sending:
                self._own.paste(part, body)
            return None
        call = messages.Paste(stage.unit, stage.name, stage.generation, part)
        reply = self.host.peer(self.target).call(call, body, category="checkpoint", timeout_s=15)
        return f"disk: {reply.text}" if reply.refused == Refusal.DISK else reply.refused


def _failure(error: Exception) -> str:
    """Why a version could not be brought, in the words that ``Shipper.ship`` returns."""
    if isinstance(error, FileNotFoundError):
        return f"a file of the version is gone: {error}"
    if isinstance(error, CheckpointDamaged):
        return f"damaged: {error}"
    # Flight's errors may be OSErrors too.
    if isinstance(error, (flight.FlightError, pa.ArrowException)):
        return f"unreachable: {first_line(error)}"
    return f"disk: {error}"


class NewerImage(threading.Thread):
    """An image of the state on its way to a target that goes on with the one it has. Links keep its files: Spark
    deletes an image when there are enough newer ones."""

    def __init__(self, shipper: Shipper, image: dict[str, Path]) -> None:
        stage = shipper.stage
        super().__init__(name=f"newer image of {stage.name}", daemon=True)
        self._shipper, self._shipped = shipper, shipper._shipped
        self._folder = stage.folder / f"image-{time.time_ns()}"
        self._arrived = False
        self.files = {name: self._folder / name for name in image}
        try:
            for name, path in image.items():
                self.files[name].parent.mkdir(parents=True, exist_ok=True)
                os.link(path, self.files[name])
        except OSError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def run(self) -> None:
        try:
            self._arrived = self._shipper.bring(self.files)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def serves(self, shipped: Shipped) -> bool:
        """All of it is at the target, which is still thought to hold what it did."""
        return self._arrived and shipped is self._shipped and all(map(shipped.has, self.files))


class Shippers:
    """One shipper per stage and standby, as the newest plan names them."""

    def __init__(self, stages: Iterable[RunningStage]) -> None:
        self._stages = list(stages)
        self._at: dict[str, dict[str, Shipper]] = {}
        """Standby, as the machine knows it -> stage -> shipper. A host that began anew is another standby."""

    def aim(self, standbys: Mapping[str, tuple[str, int]]) -> None:
        """These are the standbys now, as ``keeping.standing`` names them. Call with ``host.changed`` held."""
        for key in set(self._at) - set(standbys):
            for shipper in self._at.pop(key).values():
                shipper.over = True
        for key in set(standbys) - set(self._at):
            self._at[key] = {stage.name: Shipper(stage, standbys[key][0]) for stage in self._stages}

    def to(self, key: str, stage: str) -> Shipper | None:
        return self._at.get(key, {}).get(stage)

    def of(self, stage: str) -> dict[str, Shipper]:
        """Standby -> shipper."""
        return {key: shippers[stage] for key, shippers in self._at.items()}
