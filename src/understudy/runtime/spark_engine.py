"""A stage computed by Spark: one streaming query, whose state is in the files of its checkpoint folder."""

from __future__ import annotations

import json
import time
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from understudy.core.failover import CODE
from understudy.core.landed import Known
from understudy.core.numbers import Epoch, after
from understudy.core.windows import Windows
from understudy.errors import JobError
from understudy.runtime import blame, messages, wire
from understudy.runtime.arrow_types import collect
from understudy.runtime.spark import WORKER_LATE, root_cause
from understudy.runtime.spark_files import Batch, files_of_version, next_watermark_ms, sizes_of_version
from understudy.runtime.wire import Refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from understudy.runtime.engine import Ended
    from understudy.runtime.shipping import Shipper
    from understudy.runtime.stage import RunningStage

PARTITION_ROWS = 50_000
"""Rows per Spark partition of an input epoch. Below, a second task costs more than it gains."""
STARTS = 5
"""How often a query is started at the same epoch when its Python worker comes too late: that says something of the
machine, not of the job."""
STARTING_S = 20.0
"""How long a query that starts may keep others from starting."""
LOST = "understudy.lost"
"""Tells windows per key how many epochs are not in their state (``jvm/KeyWindow.java``)."""
RUN = "run"
"""Session of the readers of a running stage, as against those of a rehearsal."""


class SparkEngine:
    """``stage.base`` maps Spark's batch ids to epochs: epoch = batch + base."""

    def __init__(self, stage: RunningStage, query: Any = None) -> None:
        """``query``: one that was started ahead of time, and waits at the door."""
        self.stage, self.host = stage, stage.host
        self._query = query
        self._asked = False
        """The query has asked for an epoch."""
        self._windows: Windows | None = None

    def run(self) -> Ended:
        stage = self.stage
        starts, at = 0, stage.committed
        while True:
            cause, whose = self._until_it_ends()
            starts, at = (starts + 1 if stage.committed == at else 1), stage.committed
            if stage.stopping or starts == STARTS or WORKER_LATE not in cause:
                return cause, whose
            self._query, self._asked = None, False  # it goes on from its own checkpoint

    def _until_it_ends(self) -> Ended:
        """Start the query, unless it was before, and let it run."""
        stage = self.stage
        try:
            if self._query is None:
                plans = self.host.wait_for_plans()
                with self.host.starting:
                    if stage.stopping:
                        return "stopped", CODE
                    self._query = plans.start(stage.name, stage.state, self.publish)
                    if stage.stopping:  # and whoever said so found no query yet
                        self._query.stop()
                    self._wait_until_asked()
            self._query.awaitTermination()
            cause = "the query ended by itself"
            return cause, blame.whose(cause)
        except JobError as error:
            return str(error), CODE
        except Exception as error:
            if not stage.stopping:
                traceback.print_exc()
                print(getattr(error, "_stackTrace", ""), flush=True)  # where in Spark, for the host's log
            return root_cause(str(error)), blame.whose(str(error))

    def _wait_until_asked(self) -> None:
        """Until the query's readers are made, and it goes on by itself. A source that Spark reads may wait for its
        broker first: it does not hold up others for that long."""
        limit = time.monotonic() + STARTING_S
        while self._query.isActive and time.monotonic() < limit:
            with self.host.changed:
                if self.host.changed.wait_for(lambda: self.stage.stopping or self._asked, timeout=1.0):
                    return

    def stop(self) -> None:
        query = self._query
        if query is not None:
            try:
                query.stop()
            except Exception:
                traceback.print_exc()

    # -- what the query's readers ask ---------------------------------------------------------------------------------

    def arm(self) -> str | wire.Reply[Any]:
        return RUN

    def initial(self) -> Epoch:
        return Epoch(self.stage.base - 1)

    def grant(self, done: Epoch) -> Epoch | wire.Reply[Any]:
        """Spark asks for the epoch after ``done``: everything up to it is committed. Answers when it may go on."""
        return self._granted(done, version=True)

    def _granted(self, done: Epoch, *, version: bool) -> Epoch | wire.Reply[Any]:
        self._asked = True
        # A state that was saved some while ago goes on at a later epoch than the one that Spark's log ends with.
        epoch = self.stage.next_epoch(max(done, self.stage.start_epoch), version=version)
        return wire.refuse(Refusal.STOPPED) if epoch is None else epoch

    def parts(self, input: str, epoch: Epoch) -> messages.Partitioning:
        table = self.stage.input_table(input, epoch)
        rows, size = (0, 0) if table is None else (table.num_rows, table.nbytes)
        return messages.Partitioning(max(1, min(self.host.cores, -(-rows // PARTITION_ROWS))), size)

    def input_slice(self, input: str, epoch: Epoch, part: int, parts: int) -> pa.Table:
        table = self.stage.input_table(input, epoch)
        if table is None:
            raise flight.FlightServerError(f"epoch {epoch} of {input} is not here")
        self.host.trace(self.stage.name, "read", epoch)
        size = -(-table.num_rows // parts)
        return table.slice(part * size, size)

    def publish(self, frame: DataFrame, batch: Batch) -> None:
        epoch = self.stage.epoch_of(batch)
        self.host.trace(self.stage.name, "planned", epoch)
        if self.stage.base:
            frame.sparkSession.sparkContext.setLocalProperty(LOST, str(self.stage.base))
        table = collect(frame)
        self.host.trace(self.stage.name, "computed", epoch)
        self.stage.publish(epoch, table)

    # -- state --------------------------------------------------------------------------------------------------------

    def files_of(self, epoch: Epoch) -> dict[str, Path]:
        return files_of_version(self.stage.state, self.stage.batch_of(epoch))

    def files_for(self, shipper: Shipper, epoch: Epoch) -> dict[str, Path]:
        return shipper.files_of_query(self.stage.batch_of(epoch))

    def last_files(self, epoch: Epoch) -> dict[str, Path]:
        return {**self.files_of(epoch), **self._window_file(epoch)}

    def sizes(self, epoch: Epoch) -> tuple[int, int]:
        return sizes_of_version(self.stage.state, self.stage.batch_of(epoch))

    def lent(self, epoch: Epoch) -> AbstractContextManager[None]:
        """Spark keeps versions for long; one that is gone all the same is sent anew."""
        return nullcontext()

    def trimmed(self, epoch: Epoch) -> None:
        """Spark cleans up by itself."""

    def told(self, epoch: Epoch) -> Known:
        return {}

    def needs(self, epoch: Epoch) -> Epoch:
        """Without state nothing, else the oldest epoch that can be in an open window."""
        windows = self._windows_of(epoch)
        if windows is None:
            return after(epoch)
        return windows.committed(epoch, next_watermark_ms(self.stage.state, self.stage.batch_of(epoch)))

    def _windows_of(self, epoch: Epoch) -> Windows | None:
        """Made with the first epoch that is done: Spark has planned the stage by then."""
        found = self.host.wait_for_plans().operators(self.stage.name)
        if self._windows is None and found is not None and found.window is not None:
            kept = self.stage.state / "windows.json"
            history = json.loads(kept.read_text()) if kept.exists() else None
            self._windows = Windows(found.window, start=epoch, history=history)
        return self._windows

    def _window_file(self, epoch: Epoch) -> dict[str, Path]:
        """What a state needs of its input, as a file for a checkpoint: it still does after a stop."""
        if self._windows is None:
            return {}
        path = self.stage.folder / "windows.json"
        path.write_text(json.dumps(self._windows.history(epoch)))
        return {path.name: path}
