"""A stage that would be rebuilt on this host by replay, made ready ahead of time."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.core.numbers import Generation
from understudy.runtime import wire
from understudy.runtime.checkpoints import CheckpointStore

if TYPE_CHECKING:
    from understudy.runtime.host import Host


class Spare:
    """The engine of a stage that would be rebuilt here by replay: it begins from nothing, so it can be made ready
    without anybody sending anything."""

    def __init__(self, host: Host, name: str, *, unit: str, generation: Generation, folder: Path) -> None:
        self.generation = generation
        store = CheckpointStore(folder / f"spare-{time.time_ns()}", clear=True)
        self.folder, self.state = store.folder, store.state
        self.ready: Any = None
        kind = host.kind(name)
        self._armed = kind.arm(name, unit=unit, generation=generation, store=store, stateless=True)

    def arm(self) -> str | wire.Reply[Any]:
        return self._armed.arm()

    def take(self) -> bool:
        """Stop getting ready. True when there is something: it is the caller's then, who registers what runs it and
        calls ``release``."""
        self._armed.abandon()
        with self._armed.lock:
            self.ready = self._armed.take()
        return self.ready is not None

    def status(self) -> dict[str, Any]:
        return {"armed": self._armed.armed, "generation": self.generation}

    def release(self) -> None:
        self._armed.release()

    def stop(self) -> None:
        self._armed.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
