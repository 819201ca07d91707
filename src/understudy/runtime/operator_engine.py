"""A stage computed by an operator: the user's object, in a process of its own."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from understudy.core.failover import CODE
from understudy.core.operators import OperatorClass, of_object
from understudy.core.saving import Saving
from understudy.errors import JobError
from understudy.runtime import blame, wire
from understudy.runtime.armed import ArmedQuery
from understudy.runtime.arrow_types import collect
from understudy.runtime.engine import require_writable
from understudy.runtime.operator_process import Died, OperatorProcess, Threw
from understudy.runtime.rehearsal import sample
from understudy.runtime.spark import root_cause
from understudy.runtime.spark_engine import SparkEngine
from understudy.schemas import spark_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from understudy.operators import Operator
    from understudy.runtime.checkpoints import CheckpointStore
    from understudy.runtime.engine import Armed, Ended, Engine
    from understudy.runtime.host import Host
    from understudy.runtime.shipping import Shipper
    from understudy.runtime.stage import RunningStage

FOLDER = "operator"
"""Of a checkpoint: ``operator/12`` is what the object's ``save`` returned after epoch 12."""
REHEARSED_ROWS = 10
"""Few: what a row costs is not known, and the running stages need the processor."""
REHEARSE_AGAIN_S = 0.2
"""Between two looks whether there are rows to rehearse on."""
KEPT = 2
"""How many states are kept from before the trim point."""
AGAIN_S = 5.0
"""Before a standby's process that failed to start, or died, is started again."""


class Saves:
    """The states of an object that were saved, by epoch, as files in a stage's state folder."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        for path in self._folder.glob("*"):
            if path.name.isdigit():
                self._sizes[int(path.name)] = path.stat().st_size

    def has(self, epoch: int) -> bool:
        return epoch in self._sizes

    def add(self, epoch: int, saved: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".{epoch}"
        temporary.write_bytes(saved)
        os.rename(temporary, self._folder / str(epoch))
        with self._lock:
            self._sizes[epoch] = len(saved)

    def read(self, epoch: int) -> bytes | None:
        return (self._folder / str(epoch)).read_bytes() if self.has(epoch) else None

    def files_of(self, epoch: int) -> dict[str, Path]:
        if not self.has(epoch):
            raise FileNotFoundError(f"the state after epoch {epoch} was not saved")
        return {f"{FOLDER}/{epoch}": self._folder / str(epoch)}

    def size(self) -> int:
        """Of the newest."""
        with self._lock:
            return self._sizes[max(self._sizes)] if self._sizes else 0

    def trim(self, epoch: int) -> None:
        """Nobody will ask for an older state than the newest that is no newer than ``epoch``. One more is kept: it may
        be on its way."""
        with self._lock:
            old = sorted(e for e in self._sizes if e <= epoch)[:-KEPT]
            for each in old:
                del self._sizes[each]
        for each in old:
            (self._folder / str(each)).unlink(missing_ok=True)


class Living:
    """The object of a running stage, and the states of it that were saved."""

    def __init__(self, stage: RunningStage, operator: Operator, process: OperatorProcess | None) -> None:
        """``process``: one that was started ahead of time, and has the state that the stage begins from."""
        self.stage, self.host, self._operator = stage, stage.host, operator
        self._process = process
        self._saves = Saves(stage.state)
        self._saving = Saving(stage.policy.checkpoint_s)
        self._busy = threading.Lock()
        """Held by whoever has the object process an epoch, or save what it made of it."""
        self._at = stage.start_epoch
        """The epoch that the object's state is at."""

    def start(self) -> None:
        """Unless it was before."""
        if self._process is None:
            saved = self._saves.read(self.stage.start_epoch)
            self._process = started(self.host, self.stage.name, self._operator, saved)
            if self.stage.stopping:  # and whoever said so found no process yet
                self._process.end()

    def compute(self, epoch: int, tables: list[pa.Table]) -> pa.Table:
        assert self._process is not None
        with self._busy:
            made = self._process.process(tables)
            self._at = epoch
        self.host.trace(self.stage.name, "computed", epoch)
        return made

    def save_if_due(self, epoch: int) -> bool:
        """After an epoch was published. Returns whether the state after it was saved."""
        if not self.stage.wants_version() or not self._saving.due(epoch, time.monotonic()):
            return False
        begin = time.monotonic()
        self._save(epoch)
        self._saving.took(time.monotonic() - begin)
        return True

    def _save(self, epoch: int) -> None:
        """The state after ``epoch``, if the object is still there."""
        with self._busy:
            if self._at == epoch and not self._saves.has(epoch) and self._process is not None:
                self._saves.add(epoch, self._process.save())

    def has(self, epoch: int) -> bool:
        return self._saves.has(epoch)

    def files_of(self, epoch: int) -> dict[str, Path]:
        """Where a stage stands still, it is asked for a state that was not saved ahead."""
        if epoch < 0:
            return {}
        try:
            self._save(epoch)
        except (Threw, Died) as error:
            raise FileNotFoundError(f"the state after epoch {epoch} cannot be saved: {error}") from error
        return self._saves.files_of(epoch)

    def size(self) -> int:
        return self._saves.size()

    def trim(self, epoch: int) -> None:
        self._saves.trim(epoch)

    def stop(self) -> None:
        if self._process is not None:
            self._process.end()


class OperatorEngine:
    """An operator that is given its inputs as they come."""

    def __init__(self, stage: RunningStage, living: Living) -> None:
        self.stage, self._living = stage, living

    def run(self) -> Ended:
        stage, living = self.stage, self._living
        try:
            living.start()
            epoch = stage.next_epoch(stage.start_epoch)
            while epoch is not None:
                tables = [stage.input_table(name, epoch) for name in stage.inputs]
                stage.publish(epoch, living.compute(epoch, [table for table in tables if table is not None]))
                epoch = stage.next_epoch(epoch, version=living.save_if_due(epoch))
            return "stopped", CODE
        except Exception as error:
            if not stage.stopping:
                traceback.print_exc()
            return cause_of(error)

    def stop(self) -> None:
        self._living.stop()

    def files_of(self, epoch: int) -> dict[str, Path]:
        return self._living.files_of(epoch)

    def files_for(self, shipper: Shipper, epoch: int) -> dict[str, Path]:
        return self._living.files_of(epoch)

    def last_files(self, epoch: int) -> dict[str, Path]:
        return self._living.files_of(epoch)

    def sizes(self, epoch: int) -> tuple[int, int]:
        return self._living.size(), self._living.size()

    def trimmed(self, epoch: int) -> None:
        self._living.trim(epoch)

    def needs(self, epoch: int) -> int:
        return epoch + 1  # only operators without state are rebuilt by replay


class PreparedEngine(SparkEngine):
    """An operator that is given what a query has prepared. The query's state and the object's are of one epoch."""

    def __init__(self, stage: RunningStage, query: Any, living: Living) -> None:
        super().__init__(stage, query)
        self._living = living

    def run(self) -> Ended:
        try:
            self._living.start()
        except Exception as error:
            return cause_of(error)
        return super().run()

    def grant(self, after: int) -> wire.Reply | dict[str, Any]:
        return self._granted(after, version=self._living.has(after))

    def publish(self, frame: DataFrame, batch: int) -> None:
        epoch = batch + self.stage.base
        if self.stage.stopping or epoch < self.stage.output.queue.next:
            return  # Spark ran the batch again: the object has had it
        self.stage.publish(epoch, self._living.compute(epoch, [collect(frame)]))
        self._living.save_if_due(epoch)

    def stop(self) -> None:
        super().stop()
        self._living.stop()

    def files_of(self, epoch: int) -> dict[str, Path]:
        return {**super().files_of(epoch), **self._living.files_of(epoch)}

    def files_for(self, shipper: Shipper, epoch: int) -> dict[str, Path]:
        return {**super().files_for(shipper, epoch), **self._living.files_of(epoch)}

    def sizes(self, epoch: int) -> tuple[int, int]:
        state, changed = super().sizes(epoch)
        return state + self._living.size(), changed + self._living.size()

    def trimmed(self, epoch: int) -> None:
        self._living.trim(epoch)


def started(host: Host, name: str, operator: Operator, saved: bytes | None) -> OperatorProcess:
    """A process with the object in it, in the state that was saved."""
    process = OperatorProcess(name, operator, host.imports)
    try:
        process.make()
        if saved is not None:
            process.restore(saved)
    except BaseException:
        process.end()
        raise
    return process


def cause_of(error: Exception) -> Ended:
    """In the words of the user's code, where it threw."""
    if isinstance(error, Threw):
        return root_cause(str(error)), blame.whose(str(error))
    if isinstance(error, Died):
        return str(error), CODE
    return str(error), blame.of(error)


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
                process = started(self.host, self.name, self._operator, saved)
            elif saved is not None:
                process.restore(saved)
        except Exception as error:
            print(f"standby of {self.name}: {cause_of(error)[0]}", flush=True)
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
        self.open_at, self._newer = None, True
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
            if process is None or not versions or (self.open_at == versions[-1] and not mended):
                return
            saved = Saves(self._store.state).read(versions[-1])
            if saved is not None:
                process.restore(saved)

        return caught_up

    def release(self) -> None:
        """It waits for nothing."""

    def arm(self) -> wire.Reply:
        return wire.refuse("stopped")

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


class OperatorKind:
    """Stages that are operators without a query."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def _operator(self, stage: str) -> Operator:
        operator = self.host.job.stages[stage].operator
        assert operator is not None
        return operator

    def check(self, stage: str) -> None:
        """Make the object once, so that mistakes show before anything runs. Raises JobError."""
        defined = self.host.job.stages[stage]
        require_writable(defined, self._operator(stage).schema)
        try:
            started(self.host, stage, self._operator(stage), None).end()
        except (Threw, Died) as error:
            raise JobError(f"{defined.where}: operator {stage!r} cannot be made: {cause_of(error)[0]}") from None

    def judged(self, stage: str) -> OperatorClass:
        return of_object(stateless=self._operator(stage).stateless)

    def schema(self, stage: str) -> str:
        return spark_words(self._operator(stage).schema)

    def arrow_schema(self, stage: str) -> pa.Schema:
        return self._operator(stage).schema

    def engine(self, stage: RunningStage, ready: Any) -> Engine:
        return OperatorEngine(stage, Living(stage, self._operator(stage.name), ready))

    def arm(self, stage: str, *, unit: str, generation: int, store: CheckpointStore, stateless: bool = False) -> Armed:
        about = {"unit": unit, "generation": generation, "spare": stateless}
        return ArmedOperator(self.host, stage, self._operator(stage), store, stateless=stateless, about=about)


class PreparedKind(OperatorKind):
    """Stages that are operators behind a query."""

    def check(self, stage: str) -> None:
        self.host.wait_for_plans().frame(stage)
        super().check(stage)

    def judged(self, stage: str) -> OperatorClass:
        query = self.host.wait_for_plans().operators(stage)
        assert query is not None
        return of_object(stateless=self._operator(stage).stateless, query=query)

    def engine(self, stage: RunningStage, ready: Any) -> Engine:
        query, process = ready or (None, None)
        return PreparedEngine(stage, query, Living(stage, self._operator(stage.name), process))

    def arm(self, stage: str, *, unit: str, generation: int, store: CheckpointStore, stateless: bool = False) -> Armed:
        about = {"unit": unit, "generation": generation, "store": store, "stateless": stateless}
        return ArmedPrepared(self.host, stage, self._operator(stage), **about)
