"""Operators made ready ahead of time: a standby's process, with the object in the state of the newest version."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from understudy.core.numbers import Epoch
from understudy.runtime import messages, wire
from understudy.runtime.armed import ArmedQuery
from understudy.runtime.operator_engine import cause_of
from understudy.runtime.operator_process import Died, OperatorProcess, Threw
from understudy.runtime.operator_saves import Saves, State
from understudy.runtime.rehearsal import sample
from understudy.runtime.wire import Refusal

if TYPE_CHECKING:
    from understudy.operators import Operator
    from understudy.runtime.checkpoints import CheckpointStore
    from understudy.runtime.host import Host

REHEARSAL_S = 10.0
"""One that takes longer is ended: the takeover is then only slower."""
REHEARSED_ROWS = 10
"""Few: what a row costs is not known, and the running stages need the processor."""
REHEARSE_AGAIN_S = 0.2
"""Between two looks whether there are rows to rehearse on."""
AGAIN_S = 5.0
"""Before a standby's process that failed to start, or died, is started again."""


class ArmedOperator:
    """A standby's process, with the object in the state of the newest version. What is called first is slow, imports
    for example; so as soon as there are rows another process rehearses on some, and takes the place of the first."""

    def __init__(
        self,
        host: Host,
        name: str,
        operator: Operator,
        store: CheckpointStore,
        *,
        stateless: bool = False,
        lock: threading.Condition | None = None,
        told: messages.Armed | None = None,
    ) -> None:
        """``told``: what the coordinator is told when it is armed; None where somebody else tells, and the object is
        given what a query prepares."""
        self.host, self.name, self._operator, self._store = host, name, operator, store
        self._told = told
        self._rehearsed, self._look_again_s = told is None, REHEARSE_AGAIN_S
        self.lock = lock or threading.Condition()
        self.armed = False
        self.open_at: Epoch | None = None
        self._stateless = self._newer = stateless
        self._process: OperatorProcess | None = None
        """Who would take over has this one."""
        self._coming: OperatorProcess | None = None
        """One that is being made, or rehearses. It ends when somebody takes over."""
        self._acting = threading.Lock()
        """Held by whoever changes the state of the first. Nobody waits for ``lock`` with it."""
        self._complaint = ""
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
                self.lock.wait_for(lambda: self._newer or self._abandoned, None if waits else self._look_again_s)
                if self._abandoned:
                    return
                newer, self._newer = self._newer, False
                process = self._process
            if newer:
                self._follow(process)
            if self.armed and not self._rehearsed:
                self._rehearse()

    def _follow(self, process: OperatorProcess | None) -> None:
        """Have the object in the state of the newest version."""
        try:
            if process is None or not process.lives:
                process = self._made()
            if process is not None:
                self._load(process)
        except Exception as error:
            self._failed(cause_of(error)[0])

    def _made(self) -> OperatorProcess | None:
        """Another process; None when it is no longer wanted."""
        process = OperatorProcess(self.name, self._operator, self.host.imports)
        with self.lock:
            self._coming = process
            if self._abandoned:
                process.end()
                return None
        process.make()
        return process

    def _load(self, process: OperatorProcess) -> None:
        """Bring a process to the newest version, and count on it from then on."""
        with self.lock:
            versions = self._store.versions()
            epoch = versions[-1] if versions else None
            saved = self._saved()
        with self._acting:
            if self._abandoned:  # whoever takes over sees to the state itself
                return
            if saved is not None:
                process.restore(saved)
            process.version = epoch
        with self.lock:
            if not self._abandoned:
                self._keep(process, epoch)

    def _saved(self) -> State | None:
        """What the object returned for the newest version."""
        version = self._store.newest()
        return None if version is None else Saves(self._store.state).read(version[0])

    def _keep(self, process: OperatorProcess | None, epoch: Epoch | None) -> None:
        """Call with ``lock`` held."""
        before, self._process, self._coming, self.open_at = self._process, process, None, epoch
        if before is not None and before is not process:
            before.end()
        was, self.armed = self.armed, process is not None and (self._stateless or epoch is not None)
        if self.armed and not was and self._told is not None:
            self.host.report(self._told)

    def _failed(self, cause: str) -> None:
        """Told once, and tried again and again."""
        with self.lock:
            if self._abandoned:
                return  # it was ended in the middle
            self._keep(None, None)
            self._newer = True
        print(f"standby of {self.name}: {cause}", flush=True)
        if cause != self._complaint and self._told is not None:
            self._complaint = cause
            text = f"{self.name}: its standby on {self.host.name} cannot take over what was saved: {cause}"
            self.host.report(messages.Notice("damaged", self._told.unit, text))
        with self.lock:
            self.lock.wait_for(lambda: self._abandoned, timeout=AGAIN_S)

    def _rehearse(self) -> None:
        """On recent rows, as soon as there are any, in a process of its own: nothing of it stays, and a takeover does
        not wait for it."""
        tables = [sample(self.host, stream) for stream in self.host.job.stages[self.name].inputs]
        rows = [table.slice(0, REHEARSED_ROWS) for table in tables if table is not None and table.num_rows]
        if len(rows) < len(tables):
            self._look_again_s = min(2 * self._look_again_s, AGAIN_S)
            return
        process = None
        try:
            process = self._made()
            if process is None:
                return
            limit = threading.Timer(REHEARSAL_S, process.end)
            limit.start()
            try:
                process.rehearse(rows)
            finally:
                limit.cancel()
            self._load(process)
        except (Threw, Died) as error:  # throw-away rows may not suit the user's code; the takeover is then only slower
            print(f"rehearsal of {self.name} failed: {cause_of(error)[0]}", flush=True)
            if process is not None:
                process.end()
        if not self._abandoned and self._told is not None:
            self._rehearsed = True
            self.host.report(messages.Warm(self._told.unit, self._told.generation, self.name))

    def close_state(self) -> None:
        self.open_at, self._newer = None, True
        if self._process is not None:
            self._process.version = None
        self.lock.notify_all()

    def abandon(self) -> None:
        with self.lock:
            self._abandoned = True
            coming, self._coming = self._coming, None
            self.lock.notify_all()
        if coming is not None:
            coming.end()

    def take(self) -> OperatorProcess | None:
        return self._process if self._process is not None and self._process.lives else None

    def catch_up(self) -> Callable[[bool], None]:
        process, versions = self.take(), self._store.versions()
        newest = self._store.newest()  # now: the store is about to forget what it holds

        def caught_up(mended: bool) -> None:
            if process is None or not versions:
                return
            with self._acting:  # what is under way ends first; nothing comes after it
                if process.version == versions[-1] and not mended:
                    return
                if newest is None:
                    process.end()  # nobody knows what it should be at
                    return
                saved = Saves(self._store.state).read(newest[0])
                try:
                    if saved is not None:
                        process.restore(saved)
                except (Threw, Died):
                    process.end()  # whoever takes over makes one of its own, and says what fails there

        return caught_up

    def release(self) -> None:
        """It waits for nothing."""

    def arm(self) -> str | wire.Reply[Any]:
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
