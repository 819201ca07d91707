"""A stage waiting in the wings: it pastes checkpoints, and holds its engine ready: a query armed at the door."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.core.agreement import copy_serves
from understudy.core.beginning import Start
from understudy.core.numbers import Epoch, Generation
from understudy.errors import SetupError
from understudy.runtime import messages, wire
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.operator_saves import is_part
from understudy.runtime.parts import About, CheckpointDamaged, CheckpointPart
from understudy.runtime.role import Standby, Succession
from understudy.runtime.stage import RunningStage, position
from understudy.runtime.wire import Refusal

if TYPE_CHECKING:
    from understudy.runtime.engine import Armed
    from understudy.runtime.host import Host


def restored(host: Host, stage: str, unit: str, store: CheckpointStore) -> tuple[About | None, bool]:
    """Of the version that a store holds, its files made sure of; None when it holds none. And whether something had to
    be mended. A part of the windows of an operator that may lose rows is missed, and no more; of one that needs all of
    its input every part counts. Raises SetupError where no version is whole enough."""
    shape = host.topology.units[unit]
    may_lose = shape.policy.recovery == "saved" and not host.topology.stages[stage].needs_all_input
    manifest, complaints = store.restore(is_part if may_lose else None)
    for complaint in complaints:
        _complain(host, stage, unit, complaint)
    if manifest is None and complaints:
        raise SetupError(f"no undamaged checkpoint of stage {stage!r} is left on {host.name}")
    return None if manifest is None else manifest.about, bool(complaints)


def _complain(host: Host, stage: str, unit: str, text: str) -> None:
    host.report(messages.Notice("damaged", unit, f"{stage}: {text}"))


class StandbyStage(Standby):
    """Standby of one stage: it holds checkpoints, and an engine that is ready. At the first sign of trouble it may
    *rise*: run as a copy, on the newest checkpoint, until the primary answers again or is given up."""

    def __init__(self, host: Host, name: str, *, unit: str, generation: Generation, since: int, folder: Path) -> None:
        self.host, self.name, self.unit, self.generation, self.folder = host, name, unit, generation, folder
        self.since = since
        self.copy: RunningStage | None = None
        self._released = False
        self._before: CheckpointStore | None = None
        """What was held when another standby was promoted. It stays good until that one has sent a version."""
        self._hold(CheckpointStore(folder / f"standby-{generation}", clear=True))

    def _hold(self, store: CheckpointStore) -> None:
        self.store = store
        kind = self.host.kind(self.name)
        self.armed: Armed = kind.arm(self.name, unit=self.unit, generation=self.generation, store=store)

    def paste(self, part: CheckpointPart, body: bytes) -> Epoch | wire.Reply[Any] | None:
        """What takes long is done without the lock: a takeover needs it."""
        armed, before = self.armed, self.store
        try:
            ahead = before.write_ahead(part, body) if part.ahead and not self._released else None
            with armed.lock:
                store = self.store
                if self._released or armed is not self.armed:
                    return wire.refuse(Refusal.FENCED if self._released else Refusal.ELSEWHERE)
                if ahead is not None:
                    if store is not before:  # it has risen, and what was written went along or got lost
                        return wire.refuse(Refusal.ELSEWHERE)
                    store.came_ahead(ahead)
                    return None
                epoch = store.paste(part, body)
                if epoch is None:
                    return None
                if part.version is not None and part.version.whole:
                    armed.close_state()  # some files are others now
                self._let_go_of_before()
                next_ones = store.scrub_next()
            if epoch >= 0:
                armed.pasted()
            self._scrub(armed, store, next_ones)
            return epoch
        except CheckpointDamaged as error:
            self._complain(f"a checkpoint on {self.host.name} is damaged ({error}); asked for a whole one")
            return wire.refuse(Refusal.DAMAGED, str(error))
        except OSError as error:
            return wire.refuse(Refusal.DISK, f"{error.strerror or error} on {self.host.name}")

    def _scrub(self, armed: Armed, store: CheckpointStore, names: list[str]) -> None:
        rotten = store.rotten(names)
        with armed.lock:
            complaints = store.mend(rotten)
            if complaints:
                armed.close_state()  # some files are others now
        for complaint in complaints:
            self._complain(complaint)

    def _complain(self, text: str) -> None:
        _complain(self.host, self.name, self.unit, text)

    @property
    def running(self) -> RunningStage | None:
        return self.copy

    def follow(self, generation: Generation) -> None:
        """The checkpoints of the new primary come as new files of old names, so they get a store of
        their own, and the engine is made ready anew on that."""
        self.stand_down()
        self.armed.stop()
        with self.armed.lock:
            if self.store.versions():
                self._before = self.store
            self.generation = generation
            self._hold(CheckpointStore(self.folder / f"standby-{generation}", clear=True))

    def _let_go_of_before(self) -> None:
        if self._before is not None:
            shutil.rmtree(self._before.folder, ignore_errors=True)
            self._before = None

    # -- rising -----------------------------------------------------------------------------------------------------

    def rise(self) -> None:
        """Run from the newest version. What the primary still sends goes on being held beside it."""
        armed = self.armed
        with armed.lock:
            if self.copy is not None or not self.store.versions():
                return
            armed.abandon()
            caught_up = armed.catch_up()
            manifest, complaints = self.store.restore()
            for complaint in complaints:
                self._complain(complaint)
            if manifest is None:
                caught_up(True)
                return  # what it held is damaged; a takeover will fail
            try:
                held = self.store.clone(self.folder / f"held-{time.time_ns()}")
                self.store.hand_over_ahead(held)
            except OSError:
                caught_up(True)
                raise
            self.store.forget()
            self.copy = RunningStage(
                self.host,
                self.name,
                unit=self.unit,
                generation=self.generation,
                folder=self.folder,
                state=self.store.state,
                ready=armed.take(),
                primary=False,
                **position(manifest.about),
            )
            self.store = held
            caught_up(bool(complaints))  # last: others may have the lock meanwhile
        armed.release()
        self.copy.start()

    def risen_serves(self) -> bool | None:
        copy = self.copy
        if copy is None:
            return None
        with self.armed.lock:
            self._released = True  # take no more checkpoints
        held = self.store.versions()
        return not copy.stopping and copy_serves(copy.committed, held[-1] if held else None)

    def stand_down(self) -> None:
        """The primary is well: hold checkpoints again, as before."""
        copy, self.copy = self.copy, None
        if copy is None:
            return
        copy.stop()
        with self.armed.lock:
            self._hold(self.store)
        self.armed.pasted()

    # -- the end ----------------------------------------------------------------------------------------------------

    def succeed(self, generation: Generation, found: Start | None = None) -> Succession | None:
        if self.copy is not None:
            copy = self.copy
            with self.armed.lock:
                self._released = True
                self.store.clone(self.folder / "self")
            return copy, lambda: copy.promote(generation)
        about, ready, state = self._take_over()
        primary = self.host.lead(
            self.name, unit=self.unit, generation=generation, state=state, ready=ready, where=position(about, found)
        )

        def begin() -> None:
            self.armed.release()
            primary.start()

        return primary, begin

    def _take_over(self) -> tuple[About | None, Any, Path]:
        """Stop being a standby. Returns what is known of the version to go on from, what is ready of its engine, and
        the checkpoint folder."""
        self.armed.abandon()
        with self.armed.lock:
            self._released = True
            ready, store = self.armed.take(), self.store
            if self._before is not None and not store.versions():
                ready, store = None, self._before
            caught_up, mended = self.armed.catch_up(), True
            try:
                about, mended = restored(self.host, self.name, self.unit, store)
                store.clone(self.folder / "self")
                store.forget()
            finally:
                caught_up(mended)
            return about, ready, store.state

    def arm(self) -> str | wire.Reply[Any]:
        return self.armed.arm()

    def stop(self) -> None:
        self._released = True
        copy, self.copy = self.copy, None
        if copy is not None:
            copy.stop()
        self.armed.stop()

    def status(self) -> dict[str, Any]:
        versions = self.store.versions() or (self._before.versions() if self._before else [])
        return {
            "role": "standby",
            "unit": self.unit,
            "generation": self.generation,
            "armed": self.armed.armed,
            "rising": self.copy is not None,
            "checkpoint": versions[-1] if versions else None,
            "open": self.armed.open_at,
        }
