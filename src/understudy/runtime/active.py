"""A standby that runs: it is given the primary's state once, with its output queue, and then keeps up by itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.core.beginning import Start
from understudy.core.numbers import Epoch, Generation
from understudy.runtime import messages, wire
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.parts import CheckpointDamaged, CheckpointPart
from understudy.runtime.role import Standby, Succession
from understudy.runtime.stage import RunningStage, position
from understudy.runtime.wire import Refusal

if TYPE_CHECKING:
    from understudy.runtime.host import Host


class ActiveStandbyStage(Standby):
    """Stands where a passive standby stands: takes checkpoints, and can be taken over from."""

    def __init__(self, host: Host, name: str, *, unit: str, generation: Generation, since: int, folder: Path) -> None:
        self.host, self.name, self.unit, self.generation, self.since = host, name, unit, generation, since
        self.folder = folder
        self.store = CheckpointStore(folder / f"standby-{generation}-{since}", clear=True)
        self.copy: RunningStage | None = None
        self._lock = threading.Lock()
        self._released = False

    def paste(self, part: CheckpointPart, body: bytes) -> Epoch | wire.Reply[Any] | None:
        try:
            with self._lock:
                if self._released:
                    return wire.refuse(Refusal.FENCED)
                epoch = self.store.paste(part, body)
                # A copy that has got further already, under another primary, simply goes on.
                if epoch is not None and (self.copy is None or self.copy.committed < epoch):
                    self._run()
            return epoch
        except CheckpointDamaged as error:
            return wire.refuse(Refusal.DAMAGED, str(error))
        except OSError as error:
            return wire.refuse(Refusal.DISK, f"{error.strerror or error} on {self.host.name}")

    def _run(self) -> None:
        """Start from what was pasted; again, where the primary had to give the state once more."""
        if self.copy is not None:
            self.copy.stop()
        own = self.store.clone(self.folder / f"copy-{time.time_ns()}")
        manifest, _ = own.restore()
        assert manifest is not None
        own.forget()
        self.copy = RunningStage(
            self.host,
            self.name,
            unit=self.unit,
            generation=self.generation,
            folder=self.folder,
            state=own.state,
            primary=False,
            since=self.since,
            **position(manifest.about),
        )
        self.copy.start()

    def follow(self, generation: Generation) -> None:
        """The copy that has become primary gives its state once more, as to any standby it does not know."""
        with self.host.changed:
            self.generation = generation
            copy = self.copy
            if copy is not None:
                copy.generation = generation
            self.host.changed.notify_all()
        if copy is not None and copy.resumed_at is not None:
            self.host.report(messages.Armed(self.unit, generation, self.name))

    @property
    def running(self) -> RunningStage | None:
        return self.copy

    def succeed(self, generation: Generation, found: Start | None = None) -> Succession | None:
        copy = self._release()
        return None if copy is None else (copy, lambda: copy.promote(generation))

    def _release(self) -> RunningStage | None:
        """Stop being a standby. Returns the running copy; None when there is none yet, or it has given up."""
        with self._lock:
            self._released = True
            copy = self.copy
            return None if copy is None or copy.stopping else copy

    def stop(self) -> None:
        copy = self._release()
        if copy is not None:
            copy.stop()

    def status(self) -> dict[str, Any]:
        copy = self.copy
        return {
            "role": "standby",
            "unit": self.unit,
            "generation": self.generation,
            "armed": copy is not None and copy.resumed_at is not None,
            "checkpoint": None if copy is None else copy.committed,
        }
