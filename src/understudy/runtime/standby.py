"""A stage waiting in the wings: it pastes checkpoints, rehearses the query, and holds it armed at the door."""

from __future__ import annotations

import json
import shutil
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count, pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from understudy.errors import JobError, SetupError
from understudy.runtime import wire
from understudy.runtime.checkpoints import CheckpointDamaged, CheckpointStore
from understudy.runtime.spark import root_cause
from understudy.runtime.stage import RunningStage, position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from understudy.runtime.host import Host
    from understudy.runtime.spark import Plans

COLD_EPOCHS = 3
"""Batches run on throw-away rows before arming: they load and compile classes."""
WARM_EPOCHS = 40
"""Batches run from a copy of the state once the query is armed, at most: only what was run many times is compiled."""
NO_FASTER, LAST = 0.9, 3
"""A query is warm when none of its last so many batches took less than this part of the fastest before."""
REHEARSAL_S = 45.0
"""A rehearsal that takes longer hangs, and others wait for it. The takeover is then only slower."""
DOOR_S = 5.0
"""Between two looks whether the armed query still waits at the door."""
CALM_S = 3.0
"""A standby made after a takeover waits this long before it rehearses: the new primary needs the processor more."""


def restored(host: Host, stage: str, unit: str, store: CheckpointStore) -> dict[str, Any] | None:
    """The manifest of the version that a store holds, its files made sure of; None when it holds none."""
    manifest, complaints = store.restore()
    for complaint in complaints:
        _complain(host, stage, unit, complaint)
    if manifest is None and complaints:
        raise SetupError(f"no undamaged checkpoint of stage {stage!r} is left on {host.name}")
    return manifest


def _complain(host: Host, stage: str, unit: str, text: str) -> None:
    host.report("damaged", stage=stage, unit=unit, text=f"{stage}: {text}")


class Turns:
    """Whose turn it is to rehearse on a host: one at a time, and first those whose takeover would be the slowest."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[bool, int]] = []
        self._busy = False
        self._numbers = count()

    @contextmanager
    def turn(self, armed: bool, *, timeout_s: float) -> Iterator[None]:
        """Whoever is ``armed`` already comes after those that are not. Raises TimeoutError."""
        with self._changed:
            mine = (armed, next(self._numbers))
            self._waiting.append(mine)
            try:
                if not self._changed.wait_for(lambda: not self._busy and min(self._waiting) == mine, timeout_s):
                    raise TimeoutError("another one does not end")
                self._busy = True
            finally:
                self._waiting.remove(mine)
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()


class Rehearsal:
    """Runs the stage's own query on a copy of recent rows, starting from a copy of the state or from nothing, so that a
    takeover meets a warm JVM, warm workers, and has been through the opening of the state once."""

    def __init__(self, host: Host, name: str, state: Path, *, epochs: int) -> None:
        self.host, self.name, self.state = host, name, state
        self.session = f"rehearsal of {name}, {time.time_ns()}"
        self._epochs = epochs
        self._first: int | None = None
        self._last = -1
        self._granted_at: list[float] = []
        self.over = False
        self._done = threading.Event()
        self._samples: dict[str, pa.Table] = {}

    def run(self, abandoned: threading.Event) -> None:
        plans = self.host.wait_for_plans()
        for stream in self.host.job.stages[self.name].inputs:
            self._samples[stream] = self._sample(stream) or plans.arrow_schema(stream).empty_table()
        self.host.rehearsals[self.session] = self
        query = None
        try:
            query = plans.start(self.name, self.state, self._publish)
            limit = time.monotonic() + REHEARSAL_S
            while not self._done.wait(0.2) and not abandoned.is_set() and query.isActive:
                if time.monotonic() > limit:
                    raise TimeoutError(f"no end after {REHEARSAL_S:.0f} s")
            if self._done.is_set():
                plans.warm.add(self.name)
                took = ", ".join(f"{end - begin:.2f}" for begin, end in pairwise(self._granted_at))
                print(f"{time.time():.3f} {self.name}: rehearsed; batches took {took} s", flush=True)
        finally:
            with self.host.changed:
                self.over = True
                self.host.changed.notify_all()
            del self.host.rehearsals[self.session]
            if query is not None:
                query.stop()

    def _sample(self, stream: str) -> pa.Table | None:
        producer = self.host.primary_of_stream(stream)
        if producer is None or producer == self.host.name:
            return None
        try:
            reply, table = self.host.peer(producer).get(
                {"get": "peek", "stream": stream}, category="control", timeout_s=5
            )
        except (flight.FlightError, pa.ArrowException, OSError):
            return None
        return None if reply.refused else table

    def _publish(self, frame: DataFrame, batch: int) -> None:
        frame.toArrow()

    def arm(self) -> dict[str, Any]:
        return {"session": self.session}

    def initial(self) -> dict[str, Any]:
        return {"epoch": -1}

    def grant(self, after: int) -> wire.Reply | dict[str, Any]:
        if self._first is None:
            self._first = self._last = after - 1
        if after > self._last:  # each input asks
            self._last = after
            self._granted_at.append(time.monotonic())
        if after - self._first <= self._epochs and not self._is_warm():
            return {"epoch": after + 1}
        self._done.set()
        with self.host.changed:
            self.host.changed.wait_for(lambda: self.over)
        return wire.refuse("stopped")

    def _is_warm(self) -> bool:
        took = [end - begin for begin, end in pairwise(self._granted_at)]
        return len(took) > LAST and min(took[-LAST:]) > NO_FASTER * min(took[:-LAST])

    def parts(self, input: str, epoch: int) -> dict[str, Any]:
        return {"parts": 1, "bytes": self._samples[input].nbytes}

    def input_slice(self, input: str, epoch: int, part: int, parts: int) -> pa.Table:
        return self._samples[input]


class ArmedQuery:
    """The stage's query on a standby's store: rehearsed, started ahead of time and held at the door, where its reader
    asks whether it may go on."""

    def __init__(
        self, host: Host, name: str, *, unit: str, generation: int, store: CheckpointStore, stateless: bool = False
    ) -> None:
        """``stateless``: it will begin from nothing, so there is no state to wait for."""
        self.host, self.name, self.unit, self.generation, self.store = host, name, unit, generation, store
        self.stateless = stateless
        self.armed = False
        self.lock = threading.Lock()
        """Held by whoever changes or copies the store."""
        self._query: Any = None
        self._rehearsal: Rehearsal | None = None
        self._abandoned = threading.Event()
        self._released = self._stopped = False
        self._has_state = self._has_snapshot = False
        threading.Thread(target=self._arm, name=f"arm {name}", daemon=True).start()

    def pasted(self) -> None:
        """The store has a (newer) version."""
        if not self._has_snapshot:
            with self.host.changed:
                self._has_state = True
                self._has_snapshot = self.store.has_snapshot()
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
            if not self.host.job.stages[self.name].inputs:
                self._abandoned.wait()  # Spark's own sources read their state when made: they cannot be made ahead
            # There is something to do meanwhile: rows come, and the first checkpoint with them.
            self._wait_for(lambda: self.host.go > 0 or self._has_state)
            if self.generation > 1:
                self._abandoned.wait(CALM_S)
            if self.name not in plans.warm:
                self._rehearse(COLD_EPOCHS)
            # Spark looks for the newest entries of the two logs once before our reader holds it, and insists that
            # they agree with what it finds afterwards; so there must be entries, or never any, when it is started.
            self._wait_for(lambda: self._has_state or self.stateless)
            self._start(plans)
            # Opening state is other code than beginning without, and opening a snapshot other than replaying changes:
            # both are rehearsed, when the query is armed: a takeover would rather be a little slower than wait.
            if not self.stateless:
                with_snapshot = self._has_snapshot
                self._rehearse(WARM_EPOCHS)
                if not with_snapshot and self.store.has_state():
                    self._wait_for(lambda: self._has_snapshot)
                    self._rehearse(WARM_EPOCHS)
            if not self._abandoned.is_set():
                self.host.report("warm", stage=self.name, unit=self.unit, generation=self.generation)
            while not self._abandoned.wait(DOOR_S):
                if not self._query.isActive:
                    self._start(plans)
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
            about = {"unit": self.unit, "generation": self.generation, "spare": self.stateless}
            self.host.report("armed", stage=self.name, **about)

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

    def _publish(self, frame: DataFrame, batch: int) -> None:
        self.host.publish(self.name, frame, batch)

    def arm(self) -> wire.Reply | dict[str, Any]:
        """Its reader has come to the door. Answers when the query may go on, or is over."""
        rehearsal = self._rehearsal
        if rehearsal:
            return rehearsal.arm()
        with self.host.changed:
            self.armed = True
            self.host.changed.notify_all()
            self.host.changed.wait_for(lambda: self._released)
        running = self.host.running(self.name)
        return wire.refuse("stopped") if self._stopped or running is None else running.arm()

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


class Spare:
    """The query of a stage that would be rebuilt here by replay: it begins from nothing, so it can be armed without
    anybody sending anything."""

    def __init__(self, host: Host, name: str, *, unit: str, generation: int, folder: Path) -> None:
        self.generation = generation
        store = CheckpointStore(folder / f"spare-{time.time_ns()}", clear=True)
        self.folder, self.state = store.folder, store.state
        self.query: Any = None
        self._query = ArmedQuery(host, name, unit=unit, generation=generation, store=store, stateless=True)

    def arm(self) -> wire.Reply | dict[str, Any]:
        return self._query.arm()

    def take(self) -> bool:
        """Stop getting ready. True when the query lives: it is in ``query`` then, at the door or on its way there. The
        caller registers what runs it, and then calls ``release``."""
        self._query.abandon()
        with self._query.lock:
            self.query = self._query.take()
        return self.query is not None

    def release(self) -> None:
        self._query.release()

    def stop(self) -> None:
        self._query.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class StandbyStage:
    """Standby of one stage: it holds checkpoints and an armed query. At the first sign of trouble it may *rise*: run as
    a copy, on the newest checkpoint, until the primary answers again or is given up."""

    def __init__(self, host: Host, name: str, *, unit: str, generation: int, since: int, folder: Path) -> None:
        self.host, self.name, self.unit, self.generation, self.folder = host, name, unit, generation, folder
        self.since = since
        self.copy: RunningStage | None = None
        self._released = False
        self._before: CheckpointStore | None = None
        """What was held when another standby was promoted. It stays good until that one has sent a version."""
        self._hold(CheckpointStore(folder / f"standby-{generation}", clear=True))

    def _hold(self, store: CheckpointStore) -> None:
        self.store = store
        self.query = ArmedQuery(self.host, self.name, unit=self.unit, generation=self.generation, store=store)

    def paste(self, header: dict[str, Any], body: bytes) -> wire.Reply | dict[str, Any]:
        try:
            query = self.query
            with query.lock:
                if self._released or query is not self.query:
                    return wire.refuse("fenced" if self._released else "elsewhere")
                epoch = self.store.paste(header, body)
                if epoch is not None:
                    for complaint in self.store.scrub():
                        self._complain(complaint)
                    self._let_go_of_before()
            if epoch is not None and epoch >= 0:
                query.pasted()
            return {"epoch": epoch}
        except CheckpointDamaged as error:
            self._complain(f"a checkpoint on {self.host.name} is damaged ({error}); asked for a whole one")
            return wire.refuse("damaged", str(error))
        except OSError as error:
            return wire.refuse("disk", f"{error.strerror or error} on {self.host.name}")

    def _complain(self, text: str) -> None:
        _complain(self.host, self.name, self.unit, text)

    def follow(self, generation: int) -> None:
        """Another standby has become primary. Its checkpoints come as new files of old names, so they get a store of
        their own, and the query is armed anew on that."""
        self.stand_down()
        self.query.stop()
        with self.query.lock:
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
        query = self.query
        with query.lock:
            if self.copy is not None or not self.store.versions():
                return
            query.abandon()
            manifest, complaints = self.store.restore()
            for complaint in complaints:
                self._complain(complaint)
            if manifest is None:
                return  # what it held is damaged; a takeover will fail
            held = self.store.clone(self.folder / f"held-{time.time_ns()}")
            self.store.forget()
            self.copy = RunningStage(
                self.host,
                self.name,
                unit=self.unit,
                generation=self.generation,
                folder=self.folder,
                state=self.store.state,
                query=query.take(),
                primary=False,
                **position(manifest),
            )
            self.store = held
        query.release()
        self.copy.start()

    def copy_serves(self) -> bool:
        """The copy can be promoted: it has not given up, and its input is still there. Producers keep what the held
        version lacks, which got newer while the primary lived on."""
        copy = self.copy
        return copy is not None and not copy.stopping and copy.committed >= max(self.store.versions(), default=-1)

    def close(self) -> None:
        """Take no more checkpoints: what is held is judged, and must not change meanwhile."""
        with self.query.lock:
            self._released = True

    def stand_down(self) -> None:
        """The primary is well: hold checkpoints again, as before."""
        copy, self.copy = self.copy, None
        if copy is None:
            return
        copy.stop()
        with self.query.lock:
            self._hold(self.store)
        self.query.pasted()

    # -- the end ----------------------------------------------------------------------------------------------------

    def take_over(self) -> tuple[dict[str, Any] | None, Any, Path]:
        """Stop being a standby. Returns the manifest of the version to go on from, the armed query, if any, and the
        checkpoint folder. The caller registers the primary and then calls ``release``."""
        self.query.abandon()
        with self.query.lock:
            self._released = True
            query, store = self.query.take(), self.store
            if self._before is not None and not store.versions():
                query, store = None, self._before
            manifest = restored(self.host, self.name, self.unit, store)
            store.clone(self.folder / "self")
            store.forget()
            return manifest, query, store.state

    def take_copy(self) -> RunningStage | None:
        """Stop being a standby that has risen. Returns the copy, which is the caller's to promote; None when there is
        none: then what is held is taken over instead."""
        copy = self.copy
        if copy is not None:
            with self.query.lock:
                self._released = True
                self.store.clone(self.folder / "self")
        return copy

    def release(self) -> None:
        self.query.release()

    def arm(self) -> wire.Reply | dict[str, Any]:
        copy = self.copy
        return self.query.arm() if copy is None else copy.arm()

    def stop(self) -> None:
        self._released = True
        copy, self.copy = self.copy, None
        if copy is not None:
            copy.stop()
        self.query.stop()

    def status(self) -> dict[str, Any]:
        versions = self.store.versions() or (self._before.versions() if self._before else [])
        return {
            "role": "standby",
            "unit": self.unit,
            "generation": self.generation,
            "armed": self.query.armed,
            "rising": self.copy is not None,
            "checkpoint": versions[-1] if versions else None,
        }
