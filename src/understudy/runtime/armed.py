"""A query that is started ahead of time and held at the door: of a standby's state, or of nothing for a rebuild."""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from itertools import chain, count, repeat
from typing import TYPE_CHECKING, Any

from understudy.core.numbers import Epoch, Generation
from understudy.errors import JobError
from understudy.runtime import messages, wire
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.opened import Stores
from understudy.runtime.rehearsal import CALM_S, REHEARSAL_S, Rehearsal
from understudy.runtime.spark import root_cause
from understudy.runtime.wire import Refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from understudy.runtime.host import Host
    from understudy.runtime.spark import Plans
    from understudy.runtime.spark_files import Batch

COLD_EPOCHS = 3
"""Batches run on throw-away rows before arming: they load and compile classes."""
WARM_EPOCHS = 40
"""Batches run from a copy of the state once the query is armed, at most: only what was run many times is compiled."""
DOOR_S = 5.0
"""Between two looks whether the armed query still waits at the door."""
FOLLOW_SHARE = 0.25
"""How much of its time a standby may spend on taking its open state to what was pasted; a takeover does the rest."""
FOLLOW_PAUSE_S = 5.0
"""But no longer than this between two times: when much has changed at once it would never catch up."""
LONG_S = 1.0
"""An opening of state that takes longer is worth a line in the host's log."""
CATCH_UP_S = 0.2
"""How long a takeover waits for its state to be open. Usually it is by then; a large image may take longer."""


class ArmedQuery:
    """The stage's query on a standby's store: rehearsed, started ahead of time and held at the door, where its reader
    asks whether it may go on."""

    def __init__(
        self,
        host: Host,
        name: str,
        *,
        unit: str,
        generation: Generation,
        store: CheckpointStore,
        stateless: bool = False,
    ) -> None:
        """``stateless``: it will begin from nothing, so there is no state to wait for."""
        self.host, self.name, self.unit, self.generation, self.store = host, name, unit, generation, store
        self.stateless = stateless
        self.armed = False
        self.lock = threading.Condition()
        """Held by whoever changes or copies the store."""
        self.open_at: Epoch | None = None
        """The epoch at which the state is open."""
        self._following = False
        """The state is being opened."""
        self._query: Any = None
        self._rehearsal: Rehearsal | None = None
        self._abandoned = threading.Event()
        self._released = self._stopped = False
        self._has_state = self._has_snapshot = self._has_newer = False
        self._stores: Stores | None = None
        """What it has open; None before."""
        if host.job.stages[name].inputs:
            threading.Thread(target=self._arm, name=f"arm {name}", daemon=True).start()
        # Spark's own sources read their state when they are made, so theirs cannot be made ahead.

    def pasted(self) -> None:
        """The store has a (newer) version."""
        with self.host.changed:
            self._has_state = self._has_newer = True
            self._has_snapshot = self._has_snapshot or self.store.has_snapshot()
            self.host.changed.notify_all()

    def _arm(self) -> None:
        """Until it is abandoned: whatever goes wrong on the way may be over later, a full disk for example."""
        for pause_s in chain((1, 2, 4, 8, 16, 32), repeat(DOOR_S * 12)):
            self._try_to_arm()
            if self._abandoned.wait(pause_s):
                return

    def _try_to_arm(self) -> None:
        try:
            plans = self.host.wait_for_plans()
            # There is something to do meanwhile: rows come, and the first checkpoint with them.
            self._wait_for(lambda: self.host.go > 0 or self._has_state)
            if self.generation > 1:
                self._abandoned.wait(CALM_S)  # a standby made after a takeover
            if self.name not in plans.rehearsed:
                self._rehearse(COLD_EPOCHS)
            # Spark looks for the newest entries of the two logs once before our reader holds it, and insists that
            # they agree with what it finds afterwards; so there must be entries, or never any, when it is started.
            self._wait_for(lambda: self._has_state or self.stateless)
            self._start(plans)
            self._follow(plans)
            # Opening state is other code than beginning without, and opening a snapshot other than replaying changes:
            # both are rehearsed, when the query is armed: a takeover would rather be a little slower than wait.
            if not self.stateless:
                with_snapshot = self._has_snapshot
                self._rehearse(WARM_EPOCHS)
                if not with_snapshot and self.store.has_state():
                    self._wait_for(lambda: self._has_snapshot)
                    self._rehearse(WARM_EPOCHS)
            if not self._abandoned.is_set():
                self.host.report(messages.Warm(self.unit, self.generation, self.name))
            while not self._abandoned.is_set():
                if not self._query.isActive:
                    self._start(plans)
                begin = time.monotonic()
                self._follow(plans)
                self._abandoned.wait(min(FOLLOW_PAUSE_S, (time.monotonic() - begin) / FOLLOW_SHARE))
                self._wait_for(lambda: self._has_newer)
        except JobError as error:
            print(f"standby of {self.name}: {error}", flush=True)
        except Exception:
            traceback.print_exc()

    def _wait_for(self, there: Callable[[], bool]) -> None:
        """A query at the door that ends meanwhile is started again."""
        while not self._abandoned.is_set():
            with self.host.changed:
                if self.host.changed.wait_for(lambda: there() or self._abandoned.is_set(), timeout=DOOR_S):
                    return
            if self._query is not None and not self._query.isActive:
                self._start(self.host.wait_for_plans())

    def _start(self, plans: Plans) -> None:
        """Start the query, and wait until it is at the door. One that ends on the way is started again: on a machine
        that is very busy Spark may give up waiting for a Python worker."""
        for failed in count():
            with self.host.starting:
                with self.lock:
                    if self._abandoned.is_set():
                        return
                    self.armed = False
                    self.close_state()  # of the query before this one
                    self._query = plans.start(self.name, self.store.state, self._publish)
                there = False
                while not there and self._query.isActive:
                    with self.host.changed:
                        there = self.host.changed.wait_for(lambda: self.armed or self._abandoned.is_set(), timeout=1.0)
            if there:
                break
            cause = root_cause(str(self._query.exception()))
            print(f"standby of {self.name}: its query ended: {cause}", flush=True)
            self._abandoned.wait(min(60.0, 2.0**failed))
        if self.armed:
            self.host.report(messages.Armed(self.unit, self.generation, self.name, spare=self.stateless))

    def _rehearse(self, epochs: int) -> None:
        with self.lock:
            if self._abandoned.is_set():
                return
            copy = self.store.clone(self.store.folder.parent / f"rehearsal-{time.time_ns()}")
        copy.forget()
        # Spark stops a running query when one of the same id starts, and the armed one has the id of this copy.
        (copy.state / "metadata").unlink(missing_ok=True)
        (copy.state / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        rehearsal = Rehearsal(self.host, self.name, copy.state, epochs=epochs)
        try:
            # One at a time, the most exposed first: the running stages need the processor too. One that hangs does not
            # hold up others for ever.
            with self.host.rehearsing.turn(self.armed, timeout_s=2 * REHEARSAL_S):
                self._rehearsal = rehearsal
                if not self._abandoned.is_set():
                    rehearsal.run(self._abandoned)
        except Exception as error:
            # Throw-away rows may not suit the user's code; the takeover is then only slower.
            print(f"rehearsal of {self.name} failed: {root_cause(str(error))}", flush=True)
        finally:
            self._rehearsal = None
            shutil.rmtree(copy.folder, ignore_errors=True)

    def _follow(self, plans: Plans) -> None:
        """Have the state open at the newest version."""
        with self.lock:
            self._has_newer = False
            stores, version = plans.stores.get(self.name), self.store.version()
            if stores is None or version is None or self._abandoned.is_set() or self.store.is_changing():
                return
            if not self._query.isActive or not stores.suit(self.store):
                return
            self._stores, self._following = stores, True
            epoch = max(self.store.versions())
            self.store.lend()
        try:
            if self._open(version):
                self.open_at = epoch
        finally:
            with self.lock:
                self._following = False
                self.store.take_back()
                if self._stopped:
                    self.close_state()  # Spark would never close what was opened for a query that has ended
                self.lock.notify_all()

    def _open(self, version: tuple[Batch, list[str]]) -> bool:
        assert self._stores is not None
        begin = time.monotonic()
        is_open = self._stores.open(self._query, version)
        if (took_s := time.monotonic() - begin) > LONG_S:
            print(f"{time.time():.3f} {self.name}: opened after batch {version[0]}, in {took_s:.1f} s", flush=True)
        return is_open

    def catch_up(self) -> Callable[[bool], None]:
        """Take the open state to the newest version, while the caller makes sure of the store's files. The caller then
        calls what is returned, with whether something had to be mended: what was opened does not count then. Opening
        may go on afterwards: the query's first task waits for it. Call both with ``lock`` held, after ``abandon``;
        others may have it during the second."""
        stores, query, version = self._stores, self._query, self.store.version()
        if stores is None or version is None or not query.isActive:
            return lambda mended: None
        begun, done = threading.Event(), threading.Event()
        if not self._following and not self.store.is_changing():
            begun.set()

        def follow() -> None:
            begun.wait()
            try:
                self._open(version)
            finally:
                with self.lock:
                    done.set()
                    self.lock.notify_all()

        threading.Thread(target=follow, name=f"catch up {self.name}", daemon=True).start()

        def caught_up(mended: bool) -> None:
            limit = time.monotonic() + (math.inf if mended else CATCH_UP_S)
            self._wait_until(limit, lambda: not self._following)
            begun.set()  # what had come of a next version is gone now
            self._wait_until(limit, done.is_set)
            if mended:
                stores.close(query)
            stores.let_go(query)

        return caught_up

    def _wait_until(self, limit: float, there: Callable[[], bool]) -> None:
        """Call with ``lock`` held; others may have it meanwhile."""
        self.lock.wait_for(there, None if limit == math.inf else max(0.0, limit - time.monotonic()))

    def close_state(self) -> None:
        """What was opened for the query does not count any more. Call with ``lock`` held."""
        self.open_at = None
        if self._stores is not None and self._query is not None:
            self._stores.close(self._query)

    def _publish(self, frame: DataFrame, batch: Batch) -> None:
        self.host.publish(self.name, frame, batch)

    def arm(self) -> str | wire.Reply[Any]:
        """Its reader has come to the door. Answers when the query may go on, or is over."""
        rehearsal = self._rehearsal
        if rehearsal:
            return rehearsal.arm()
        with self.host.changed:
            self.armed = True
            self.host.changed.notify_all()
            self.host.changed.wait_for(lambda: self._released)
        engine = self.host.spark_engine(self.name)
        return wire.refuse(Refusal.STOPPED) if self._stopped or engine is None else engine.arm()

    def abandon(self) -> None:
        """No more preparations."""
        self._abandoned.set()
        self.host.wake()

    def take(self) -> Any:
        """The query, if it was started and lives: the caller's now, to be let go with ``release`` once somebody answers
        it. Call with ``lock`` held, after ``abandon``."""
        return self._query if self._query is not None and self._query.isActive else None

    def release(self) -> None:
        with self.host.changed:
            self._released = True
            self.host.changed.notify_all()

    def stop(self) -> None:
        self.abandon()
        with self.lock:
            query, self._stopped = self._query, True
        self.release()
        if query is not None:
            try:
                query.stop()
            except Exception:
                traceback.print_exc()
