"""A stage computed by an operator: the user's object, in a process of its own."""

from __future__ import annotations

import json
import threading
import time
import traceback
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from understudy import telling
from understudy.core.failover import CODE, MACHINE
from understudy.core.landed import Known
from understudy.core.numbers import Epoch, after
from understudy.core.policies.base import Want
from understudy.core.reach import Numbers, Reach
from understudy.core.saving import Saving
from understudy.runtime import blame, messages, wire
from understudy.runtime.arrow_types import collect
from understudy.runtime.engine import EngineFailed
from understudy.runtime.operator_process import Died, OperatorProcess, StateDamaged, Threw, Unfit
from understudy.runtime.operator_saves import Saves
from understudy.runtime.spark import root_cause
from understudy.runtime.spark_engine import SparkEngine
from understudy.runtime.spark_files import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from understudy.operators import Operator
    from understudy.runtime.engine import Ended
    from understudy.runtime.host import Host
    from understudy.runtime.shipping import Shipper
    from understudy.runtime.stage import RunningStage

HISTORY = "reach.json"
"""Of a last checkpoint: which epochs of input its state is made of."""


class Living:
    """The object of a running stage, and the states of it that were saved."""

    def __init__(self, stage: RunningStage, operator: Operator, process: OperatorProcess | None) -> None:
        """``process``: one that was started ahead of time, and has the state that the stage begins from."""
        self.stage, self.host, self._operator = stage, stage.host, operator
        self._process = process
        self._saves = Saves(stage.state)
        self._saving = Saving()
        self._busy = threading.Lock()
        """Held by whoever has the object process an epoch, or save what it made of it."""
        self._at: Epoch | None = stage.start_epoch
        """The epoch that the object's state is at; None in the middle of one, and after one that failed."""
        self._history = self._known_before(stage.state / HISTORY)
        self._reach = Reach(self._history.get("reach"))
        self._numbers: Numbers | None = None
        """Of a barrier: what its rows' numbers are. Used with ``host.changed`` held."""
        self.needs: Epoch | None = None
        """The oldest epoch of input that the state is made of; None where the object cannot tell: it is rebuilt by
        replay only if it keeps nothing."""

    def _known_before(self, path: Path) -> dict[str, Any]:
        """By a predecessor that was stopped where this one begins."""
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found if found.get("epoch") == self.stage.start_epoch else {}

    def start(self) -> None:
        """With the state that the stage begins from, less what would have left it meanwhile."""
        if self._process is None or not self._process.lives:
            self._start()
        assert self._process is not None
        missed = self.stage.missed
        if missed.epochs:
            self._process.missed([(stream, missed.rows.get(stream, 0)) for stream in self.stage.inputs], missed.epochs)
        if self._operator.pairs:
            totals = [following for _, following in self._process.spans_now() or []]
            with self.host.changed:
                self._numbers = Numbers(
                    self.stage.name, self.stage.start_epoch, totals, self._history.get("numbers")
                )

    def _start(self) -> None:
        self._process = OperatorProcess(self.stage.name, self._operator, self.host.imports)
        if self.stage.stopping:  # and whoever said so found no process yet
            self._process.end()
        self._process.make()
        saved = self._saves.read(self.stage.batch_of(self.stage.start_epoch))
        if saved is not None:
            self._process.restore(saved)

    def compute(self, epoch: Epoch, tables: list[pa.Table]) -> pa.Table:
        assert self._process is not None
        with self._busy:
            self._at = None  # should it throw half-way, that is nobody's state
            made = self._process.process(tables)
            self._at = epoch
            if self._process.spans is not None:
                self.needs = self._reach.committed(epoch, self._process.spans)
        if self._numbers is not None:
            with self.host.changed:
                self._numbers.committed(epoch, [following for _, following in self._process.spans or []])
        self.host.trace(self.stage.name, "computed", epoch)
        return made

    def save_if_due(self, epoch: Epoch) -> bool:
        """After an epoch was published. Returns whether the state after it was saved."""
        wants, due = self.stage.wants(), self._saving.due(epoch, time.monotonic())
        if Want.NOW not in wants and not (due and Want.AHEAD in wants):
            return False
        self._saving.within_s = self.stage.policy.checkpoint_s  # it may have changed
        begin = time.monotonic()
        self._save(epoch)
        took_s = time.monotonic() - begin
        if self._saving.took(took_s):
            stage = self.stage
            self.host.report(messages.Notice("late", stage.unit, telling.long_save(stage.name, took_s, stage.policy)))
        return True

    def _save(self, epoch: Epoch) -> None:
        """The state after ``epoch``, if the object is still there."""
        with self._busy:
            if self._at == epoch and not self.has(epoch) and self._process is not None:
                self._saves.add(self.stage.batch_of(epoch), self._process.save())

    def has(self, epoch: Epoch) -> bool:
        return self._saves.has(self.stage.batch_of(epoch))

    def files_of(self, epoch: Epoch) -> dict[str, Path]:
        """Where a stage stands still, it is asked for a state that was not saved ahead. Raises EngineFailed when the
        user's code fails at it, FileNotFoundError when the object has gone on."""
        if self.stage.batch_of(epoch) < 0:
            return {}
        try:
            self._save(epoch)
        except (Threw, Died) as error:
            raise EngineFailed(*cause_of(error)) from error
        return self._saves.files_of(self.stage.batch_of(epoch))

    def last_files(self, epoch: Epoch) -> dict[str, Path]:
        """With what the state needs of its input: it still does after a stop."""
        found = self.files_of(epoch)
        if self.needs is not None:
            path = self.stage.folder / HISTORY
            with self.host.changed:
                numbers = None if self._numbers is None else self._numbers.history()
            path.write_text(json.dumps({"epoch": epoch, "reach": self._reach.history(), "numbers": numbers}))
            found[HISTORY] = path
        return found

    def told(self, epoch: Epoch) -> Known:
        return {} if self._numbers is None else self._numbers.told(epoch)

    def lent(self, epoch: Epoch) -> AbstractContextManager[None]:
        return self._saves.lent(self.stage.batch_of(epoch))

    def size(self) -> int:
        return self._saves.size()

    def trim(self, epoch: Epoch) -> None:
        self._saves.trim(self.stage.batch_of(epoch))

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
                stage.publish(epoch, living.compute(epoch, [self._input(name, epoch) for name in stage.inputs]))
                epoch = stage.next_epoch(epoch, version=living.save_if_due(epoch))
            return "stopped", CODE
        except Exception as error:
            if not stage.stopping:
                traceback.print_exc()
            return cause_of(error)

    def _input(self, stream: str, epoch: Epoch) -> pa.Table:
        table = self.stage.input_table(stream, epoch)
        if table is None:
            raise RuntimeError(f"epoch {epoch} of {stream} is not here")
        return table

    def stop(self) -> None:
        self._living.stop()

    def files_of(self, epoch: Epoch) -> dict[str, Path]:
        return self._living.files_of(epoch)

    def files_for(self, shipper: Shipper, epoch: Epoch) -> dict[str, Path]:
        return self._living.files_of(epoch)

    def last_files(self, epoch: Epoch) -> dict[str, Path]:
        return self._living.last_files(epoch)

    def lent(self, epoch: Epoch) -> AbstractContextManager[None]:
        return self._living.lent(epoch)

    def sizes(self, epoch: Epoch) -> tuple[int, int]:
        return self._living.size(), self._living.size()

    def trimmed(self, epoch: Epoch) -> None:
        self._living.trim(epoch)

    def told(self, epoch: Epoch) -> Known:
        return self._living.told(epoch)

    def needs(self, epoch: Epoch) -> Epoch:
        """Asked after every epoch."""
        return after(epoch) if self._living.needs is None else self._living.needs


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

    def grant(self, done: Epoch) -> Epoch | wire.Reply[Any]:
        return self._granted(done, version=self._living.has(done))

    def publish(self, frame: DataFrame, batch: Batch) -> None:
        epoch = self.stage.epoch_of(batch)
        if self.stage.stopping or epoch < self.stage.output.queue.next:
            return  # Spark ran the batch again: the object has had it
        self.stage.publish(epoch, self._living.compute(epoch, [collect(frame)]))
        self._living.save_if_due(epoch)

    def stop(self) -> None:
        self._living.stop()  # first: the query would wait for what it is at
        super().stop()

    def files_of(self, epoch: Epoch) -> dict[str, Path]:
        return {**super().files_of(epoch), **self._living.files_of(epoch)}

    def files_for(self, shipper: Shipper, epoch: Epoch) -> dict[str, Path]:
        own = self._living.files_of(epoch)  # sent first: it is not kept for long
        return {**own, **super().files_for(shipper, epoch)}

    def lent(self, epoch: Epoch) -> AbstractContextManager[None]:
        return self._living.lent(epoch)

    def sizes(self, epoch: Epoch) -> tuple[int, int]:
        state, changed = super().sizes(epoch)
        return state + self._living.size(), changed + self._living.size()

    def trimmed(self, epoch: Epoch) -> None:
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
    if isinstance(error, Unfit):
        return str(error), CODE
    if isinstance(error, StateDamaged):  # as a checkpoint is of which no whole copy is left
        return str(error), MACHINE
    if isinstance(error, Threw):
        return root_cause(str(error)), blame.whose(str(error))
    if isinstance(error, Died):
        return str(error), CODE
    return str(error), blame.of(error)
