"""Operators made ready ahead of time: a standby's process, with the object in the state of the newest version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from understudy.errors import JobError
from understudy.runtime import wire
from understudy.runtime.armed import ArmedQuery
from understudy.runtime.operator_engine import Saves, cause_of, started
from understudy.runtime.operator_process import Died, OperatorProcess, Threw
from understudy.runtime.rehearsal import sample
from understudy.runtime.wire import Refusal

if TYPE_CHECKING:
    from understudy.operators import Operator
    from understudy.runtime.checkpoints import CheckpointStore
    from understudy.runtime.host import Host

REHEARSED_ROWS = 10
"""Few: what a row costs is not known, and the running stages need the processor."""
REHEARSE_AGAIN_S = 0.2
"""Between two looks whether there are rows to rehearse on."""
AGAIN_S = 5.0
"""Before a standby's process that failed to start, or died, is started again."""


class ArmedOperator:
    """A standby's process, with the object in the state of the newest version."""

    def __init__(
        self,
        host: Host,
        name: str,
        operator: Operator,
        store: CheckpointStore,
        *,
        stateless: bool = False,
        lock: threading.Condition | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """``about``: what the coordinator is told with the news that it is armed; None where somebody else tells, and
        the object is given what a query prepares."""
        self._about = about
        self._rehearsed = about is None
        self.host, self.name, self._operator, self._store = host, name, operator, store
        self.lock = lock or threading.Condition()
        self.armed = False
        self.open_at: int | None = None
        self._acting = threading.Lock()
        """Held by whoever changes the object's state. Nobody waits for ``lock`` with it."""
        self._loaded: int | None = None
        """The version that the object's state is of. Changed with ``_acting`` held."""
        self._complaint = ""
        self._stateless = self._newer = stateless
        self._process: OperatorProcess | None = None
        self._abandoned = False
        threading.Thread(target=self._run, name=f"arm {name}", daemon=True).start()

    def pasted(self) -> None:
        with self.lock:
            self._newer = True
            self.lock.notify_all()

    def _run(self) -> None:
        while True:
            with self.lock:
                waits = self._rehearsed or not self.armed
                self.lock.wait_for(lambda: self._newer or self._abandoned, None if waits else REHEARSE_AGAIN_S)
                if self._abandoned:
                    return
                newer, self._newer = self._newer, False
            if newer and not self._follow():
                return
            if self.armed and not self._rehearsed:
                self._rehearse()

    def _follow(self) -> bool:
        """Have the object in the state of the newest version. False when somebody takes over meanwhile."""
        with self.lock:
            process = self._process
            epoch, saved = self._newest()
        try:
            if process is None or not process.lives:
                process, loads = started(self.host, self.name, self._operator, saved), False
            else:
                loads = True
            with self._acting:
                if self._abandoned and loads:
                    return False  # whoever takes over has the process, and sees to its state
                if loads and saved is not None:
                    process.restore(saved)
                self._loaded = epoch
        except Exception as error:
            self._complain(cause_of(error)[0])
            process, epoch = None, None
        with self.lock:
            if self._abandoned and process is not self._process:  # whoever takes over has found none
                if process is not None:
                    process.end()
                return False
            self._keep(process, epoch)
            if process is None:
                self._newer = True
                self.lock.wait_for(lambda: self._abandoned, timeout=AGAIN_S)
        return True

    def _complain(self, cause: str) -> None:
        """Once: it is tried again and again."""
        if self._abandoned:
            return  # it was ended in the middle
        print(f"standby of {self.name}: {cause}", flush=True)
        if cause != self._complaint and self._about is not None:
            self._complaint = cause
            text = f"{self.name}: its standby on {self.host.name} cannot take over what was saved: {cause}"
            self.host.report("damaged", stage=self.name, unit=self._about["unit"], text=text)

    def _rehearse(self) -> None:
        """On recent rows, as soon as there are any."""
        process, tables = self._process, [sample(self.host, s) for s in self.host.job.stages[self.name].inputs]
        rows = [table.slice(0, REHEARSED_ROWS) for table in tables if table is not None and table.num_rows]
        if process is None or len(rows) < len(tables):
            return
        try:
            process.rehearse(rows)
        except (Threw, Died) as error:  # throw-away rows may not suit the user's code
            print(f"rehearsal of {self.name} failed: {cause_of(error)[0]}", flush=True)
        self._rehearsed = True
        self.host.report("warm", stage=self.name, **(self._about or {}))

    def _keep(self, process: OperatorProcess | None, epoch: int | None) -> None:
        before, self._process, self.open_at = self._process, process, epoch
        if before is not None and before is not process:
            before.end()
        was, self.armed = self.armed, process is not None and (self._stateless or epoch is not None)
        if self.armed and not was and self._about is not None:
            self.host.report("armed", stage=self.name, **self._about)

    def _newest(self) -> tuple[int | None, bytes | None]:
        """Call with ``lock`` held."""
        versions = self._store.versions()
        return (versions[-1], Saves(self._store.state).read(versions[-1])) if versions else (None, None)

    def close_state(self) -> None:
        self.open_at = self._loaded = None
        self._newer = True
        self.lock.notify_all()

    def abandon(self) -> None:
        with self.lock:
            self._abandoned = True
            self.lock.notify_all()

    def take(self) -> OperatorProcess | None:
        return self._process if self._process is not None and self._process.lives else None

    def catch_up(self) -> Callable[[bool], None]:
        process, versions = self.take(), self._store.versions()

        def caught_up(mended: bool) -> None:
            if process is None or not versions:
                return
            with self._acting:  # what is under way ends first; nothing comes after it
                if self._loaded == versions[-1] and not mended:
                    return
                saved = Saves(self._store.state).read(versions[-1])
                try:
                    if saved is not None:
                        process.restore(saved)
                except (Threw, Died) as error:
                    cause = cause_of(error)[0]
                    raise JobError(f"operator {self.name!r} cannot be restored: {cause}") from None

        return caught_up

    def release(self) -> None:
        """It waits for nothing."""

    def arm(self) -> wire.Reply:
        return wire.refuse(Refusal.STOPPED)

    def stop(self) -> None:
        self.abandon()
        with self.lock:
            self._keep(None, None)


class ArmedPrepared(ArmedQuery):
    """The query that prepares, at the door, and the process that is given what it makes."""

    def __init__(self, host: Host, name: str, operator: Operator, **about: Any) -> None:
        super().__init__(host, name, **about)
        stateless = about.get("stateless", False)
        self._operator = ArmedOperator(host, name, operator, self.store, stateless=stateless, lock=self.lock)

    def pasted(self) -> None:
        super().pasted()
        self._operator.pasted()

    def close_state(self) -> None:
        super().close_state()
        self._operator.close_state()

    def abandon(self) -> None:
        super().abandon()
        self._operator.abandon()

    def take(self) -> tuple[Any, OperatorProcess | None] | None:
        query, process = super().take(), self._operator.take()
        return None if query is None and process is None else (query, process)

    def catch_up(self) -> Callable[[bool], None]:
        of_query, of_object = super().catch_up(), self._operator.catch_up()

        def caught_up(mended: bool) -> None:
            of_object(mended)
            of_query(mended)

        return caught_up

    def stop(self) -> None:
        self._operator.stop()
        super().stop()
