"""What a host runs: a stage, fed by inlets, drained by consumers and sinks, kept safe by its keeper.

A stage runs as primary or, under active standby, as a copy: on the same input, without sending, telling the primary how
far it is. A copy that is promoted simply goes on. Like the streams it lives under its host's one condition.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa
import pyarrow.flight as flight

from understudy.core import keeping
from understudy.core.acks import FINAL
from understudy.core.failover import CODE, StandbyUnusable
from understudy.core.pacing import Pace
from understudy.core.policies import Policy, base
from understudy.core.policies.upstream import Row
from understudy.core.windows import Windows
from understudy.errors import JobError
from understudy.runtime import blame, wire
from understudy.runtime.arrow_types import collect
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.keeper import Keeper, Reporter
from understudy.runtime.parts import Shipped
from understudy.runtime.spark import WORKER_LATE, root_cause
from understudy.runtime.spark_files import files_of_version, next_watermark_ms, sizes_of_version
from understudy.runtime.streams import AHEAD_MAX, Inlet, SinkWriter, Stream, write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from understudy.runtime.host import Host

BATCHES = 20
"""How many batches tell how long one takes. The first ones of a query, still being compiled, must fall out of it."""
PARTITION_ROWS = 50_000
"""Rows per Spark partition of an input epoch. Below, a second task costs more than it gains."""
STARTS = 5
"""How often a query is started at the same epoch when its Python worker comes too late: that says something of the
machine, not of the job."""
STARTING_S = 20.0
"""How long a query that starts may keep others from starting."""
RUN = "run"
"""Session of the readers of a running stage, as against those of a rehearsal."""


class Position(TypedDict):
    """Where a stage goes on that is restored from a checkpoint, as arguments of ``RunningStage``."""

    start_epoch: int
    base: int
    gap: int


FRESH: Position = {"start_epoch": -1, "base": 0, "gap": 0}


def position(manifest: dict[str, Any]) -> Position:
    return {"start_epoch": manifest["epoch"], "base": manifest["base"], "gap": manifest.get("gap", 0)}


class RunningStage:
    """One PySpark stage, running. Its state is at ``start_epoch``; ``base`` maps Spark's batch ids to epochs
    (epoch = batch + base). Output that came with its state is in ``state/queue``."""

    def __init__(
        self,
        host: Host,
        name: str,
        *,
        unit: str,
        generation: int,
        folder: Path,
        state: Path,
        start_epoch: int,
        base: int,
        query: Any = None,
        primary: bool = True,
        since: int | None = None,
        gap: int = 0,
        row: Row | None = None,
    ) -> None:
        """Not ``primary``: runs as a copy. With ``since``, the plan that made this host a standby, its primary counts
        on it and is told how far it is. ``gap``: epochs before this one were lost while the unit had no protection.
        ``row``: it is being rebuilt, and with whom."""
        self.host, self.name, self.unit, self.generation = host, name, unit, generation
        self.primary, self.since = primary, since
        self.folder, self.state = folder, state
        self.start_epoch, self.base, self.gap, self.row = start_epoch, base, gap, row
        self.inputs = host.job.stages[name].inputs
        self.granted = self.committed = start_epoch
        self.keepers: tuple[Keeper, ...] = ()
        """What protects it as a primary: one keeper; a second one while the unit changes to another policy."""
        self.pace = Pace()
        """As a primary: lets running copies keep up."""
        self.started_at = time.monotonic()
        self.resumed_at: float | None = None
        self.stopping = False
        self.paused_by: set[object] = set()
        """The keepers that want it to stand still; while its unit's policy changes, there are two."""
        self.error: str | None = None
        self._windows: Windows | None = None
        self._batch_at: float | None = None
        self._batches_s: deque[float] = deque(maxlen=BATCHES)
        """When the batch under way was granted, and how long the last ones took."""
        self.output = self._restored_output()
        self.inlets = {s: Inlet(self, s) for s in self.inputs}
        self._query = query
        self._asked = False
        """The query has asked for an epoch."""
        self._threads = [*self.inlets.values(), *(self._sink_writers() if primary else [])]
        if since is not None:
            self._threads.append(Reporter(self, since))
        self._threads.append(threading.Thread(target=self._run_query, name=f"query {name}", daemon=True))

    @property
    def policy(self) -> Policy:
        return self.host.topology.units[self.unit].policy

    def _sink_writers(self) -> list[SinkWriter]:
        return [SinkWriter(self, s) for s in self.host.job.stages[self.name].sinks]

    def _restored_output(self) -> Stream:
        """The output queue as it was when the state was captured, where the checkpoint carries it."""
        folder = self.state / "queue"
        kept = sorted(int(p.stem) for p in folder.glob("*.arrow"))
        rebuilt = self.row is not None
        output = Stream(self.host, self.name, start=kept[0] if kept else self.start_epoch + 1, rebuilt=rebuilt)
        output.owner = self
        for epoch in kept:
            with pa.memory_map(str(folder / f"{epoch}.arrow")) as file:
                self.host.payloads.put(output.key, epoch, pa.ipc.open_file(file).read_all())
            output.queue.append(epoch)
        return output

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def promote(self, generation: int) -> None:
        """From copy to primary: nothing stops, but from now on it sends, writes and is protected itself."""
        with self.host.changed:
            self.generation, self.primary = generation, True
            self.host.changed.notify_all()
        for writer in self._sink_writers():
            writer.start()
        self.resumed_at = time.time()
        self.host.report("resumed", stage=self.name, unit=self.unit, generation=generation, epoch=self.committed)

    @property
    def begun(self) -> int:
        """The newest epoch that will come out, whatever is asked from now on; a drain of a source waits for it."""
        return self.granted

    def give_up(self, cause: str) -> None:
        """As a copy: this host cannot run the stage; if the primary waits for it, it must not."""
        print(f"{self.name}: this copy gives up: {cause}", flush=True)
        if self.since is not None:
            event = StandbyUnusable(self.unit, self.generation, self.host.name, self.since, cause)
            self.host.report_event(event)
        threading.Thread(target=self.stop, daemon=True).start()

    # -- Spark's side -----------------------------------------------------------------------------------------------

    def _run_query(self) -> None:
        starts, at = 0, self.committed
        while True:
            cause, whose = self._until_it_ends()
            starts, at = (starts + 1 if self.committed == at else 1), self.committed
            if self.stopping or starts == STARTS or WORKER_LATE not in cause:
                break
            self._query, self._asked = None, False  # it goes on from its own checkpoint
        if not self.stopping and not self.primary:
            self.give_up(cause)
        elif not self.stopping:
            self.error = cause
            about = {"generation": self.generation, "epoch": self.granted, "cause": cause, "whose": whose}
            self.host.report("threw", stage=self.name, unit=self.unit, **about)

    def _until_it_ends(self) -> tuple[str, str]:
        """Start the query, unless it was before, and let it run. Returns why it ended, and whose fault that is."""
        try:
            if self._query is None:
                plans = self.host.wait_for_plans()
                with self.host.starting:
                    if self.stopping:
                        return "stopped", CODE
                    self._query = plans.start(self.name, self.state, self.publish)
                    if self.stopping:  # and whoever said so found no query yet
                        self._query.stop()
                    self._wait_until_asked()
            self._query.awaitTermination()
            cause = "the query ended by itself"
            return cause, blame.whose(cause)
        except JobError as error:
            return str(error), CODE
        except Exception as error:
            if not self.stopping:
                traceback.print_exc()
                print(getattr(error, "_stackTrace", ""), flush=True)  # where in Spark, for the host's log
            return root_cause(str(error)), blame.whose(str(error))

    def _wait_until_asked(self) -> None:
        """Until the query's readers are made, and it goes on by itself. A source that Spark reads may wait for its
        broker first: it does not hold up others for that long."""
        limit = time.monotonic() + STARTING_S
        while self._query.isActive and time.monotonic() < limit:
            with self.host.changed:
                if self.host.changed.wait_for(lambda: self.stopping or self._asked, timeout=1.0):
                    return

    def arm(self) -> wire.Reply | dict[str, Any]:
        return {"session": RUN}

    def initial(self) -> dict[str, Any]:
        return {"epoch": self.base - 1}

    def grant(self, after: int) -> wire.Reply | dict[str, Any]:
        """Spark asks for the epoch after ``after``: everything up to it is committed. Answers when it may go on."""
        with self.host.changed:
            self._asked = True
            if after > self.committed:
                self.committed = after
                self._batch_done(time.monotonic())
                self.host.trace(self.name, "committed", after)
                for inlet in self.inlets.values():
                    self.host.payloads.drop(inlet.key, after)
                self._tell(base.Committed(self.name, after, self._needs(after)))
                if self.paused_by:
                    self._tell(base.Paused(self.name))
                self.host.changed.notify_all()
            if self.resumed_at is None:
                self.resumed_at = time.time()
                kind = "resumed" if self.primary else "armed"
                self.host.report(kind, stage=self.name, unit=self.unit, generation=self.generation, epoch=after)
            while not (self.stopping or self._may_run(after + 1)):
                self.host.changed.wait()
            while not self.stopping and (wait_s := self._wait_for_copies_s(after + 1)) > 0:
                self.host.changed.wait(wait_s)
            if self.stopping:
                return wire.refuse("stopped")
            self.host.trace(self.name, "granted", after + 1)
            self.granted = max(self.granted, after + 1)
            self._batch_at = time.monotonic()
            self.pace.started(after + 1, self._batch_at)
            self.host.changed.notify_all()
        return {"epoch": after + 1}

    def done_in_s(self) -> float:
        """When the query will want its next epoch, if the batch under way is one of the shorter ones: if it is not,
        rows are a little older, and else the query would stand still. 0 when it has nothing to do, or only has to
        commit. Call with ``host.changed`` held."""
        if self.granted == self.committed or self.output.queue.next > self.granted or self._batch_at is None:
            return 0.0
        short_s = sorted(self._batches_s)[len(self._batches_s) // 10] if self._batches_s else 0.0
        return max(0.0, self._batch_at + short_s - time.monotonic())

    def _batch_done(self, now: float) -> None:
        if self._batch_at is not None:
            self._batches_s.append(now - self._batch_at)

    def _wait_for_copies_s(self, epoch: int) -> float:
        # What is usual: the last one may have been held up, and would hold up the next twice as long.
        step_s = max(self.host.job.epoch_s, median(self._batches_s) if self._batches_s else 0.0)
        return self.pace.wait_s(epoch, time.monotonic(), step_s)

    def _may_run(self, epoch: int) -> bool:
        arrived = not self.paused_by and all(inlet.received >= epoch for inlet in self.inlets.values())
        return arrived and (not self.primary or self.output.queue.ahead < AHEAD_MAX)

    def parts(self, input: str, epoch: int) -> dict[str, Any]:
        table = self.host.payloads.get(self.inlets[input].key, epoch)
        rows, size = (0, 0) if table is None else (table.num_rows, table.nbytes)
        return {"parts": max(1, min(self.host.cores, -(-rows // PARTITION_ROWS))), "bytes": size}

    def input_slice(self, input: str, epoch: int, part: int, parts: int) -> pa.Table:
        table = self.host.payloads.get(self.inlets[input].key, epoch)
        if table is None:
            raise flight.FlightServerError(f"epoch {epoch} of {input} is not here")
        self.host.trace(self.name, "read", epoch)
        size = -(-table.num_rows // parts)
        return table.slice(part * size, size)

    def publish(self, frame: DataFrame, batch: int) -> None:
        self.host.trace(self.name, "planned", batch + self.base)
        table = collect(frame)
        self.host.trace(self.name, "computed", batch + self.base)
        if not self.stopping:
            self.output.append(batch + self.base, table)

    # -- protocol ---------------------------------------------------------------------------------------------------

    def _tell(self, event: base.Event) -> None:
        for keeper in self.keepers:
            keeper.handle(event)

    def on_progress(self) -> None:
        """Consumers have got further. Upstream backup passes that on."""
        for keeper in self.keepers:
            for level in range(keeper.machine.levels):
                keeper.handle(base.Acked(self.name, level, self.output.queue.bound(level)))

    def _needs(self, epoch: int) -> dict[str, int] | None:
        """What the state after ``epoch`` can be rebuilt from: without state from nothing, else from the oldest epoch
        that can be in an open window."""
        if not any(keeper.machine.levels for keeper in self.keepers):
            return None
        oldest = epoch + 1
        if windows := self._windows_of(epoch):
            oldest = windows.committed(epoch, next_watermark_ms(self.state, epoch - self.base))
        return dict.fromkeys(self.inputs, oldest)

    def _windows_of(self, epoch: int) -> Windows | None:
        """Made with the first epoch that is done: Spark has planned the stage by then."""
        found = self.host.wait_for_plans().operators(self.name)
        if self._windows is None and found is not None and found.window is not None:
            kept = self.state / "windows.json"
            history = json.loads(kept.read_text()) if kept.exists() else None
            self._windows = Windows(found.window, start=epoch, history=history)
        return self._windows

    def _window_file(self, epoch: int) -> dict[str, Path]:
        """What a state needs of its input, as a file for a checkpoint: it still does after a stop."""
        if self._windows is None:
            return {}
        path = self.folder / "windows.json"
        path.write_text(json.dumps(self._windows.history(epoch)))
        return {path.name: path}

    def on_trimmed(self, epoch: int) -> None:
        self._tell(base.Acked(self.name, FINAL, epoch))

    def copy_is_at(self, standby: str, epoch: int) -> dict[str, Any]:
        """A copy has processed ``epoch``. It is told what all consumers are done with."""
        with self.host.changed:
            self.pace.copy_is_at(standby, epoch)
            self.host.changed.notify_all()
            for keeper in self.keepers:
                keeper.handle(base.Pasted(self.name, standby, epoch))
            told = [keeper.machine.trimmed(self.name, standby) for keeper in self.keepers]
            return {"trimmed": max((epoch for epoch in told if epoch is not None), default=-1)}

    def trim(self, epoch: int) -> None:
        """As a copy: all consumers are done with ``epoch``."""
        for consumer in self.output.queue.progress:
            self.output.ack(consumer, min(epoch, self.output.queue.next - 1))

    def regenerate(self, epoch: int) -> pa.Table | None:
        """An epoch that this primary never had: lost without protection, under which policy it may be now; else never
        asked for."""
        if epoch >= self.gap:
            return None
        schema = self.output.schema or self.host.wait_for_plans().arrow_schema(self.name)
        return schema.empty_table()

    def acks(self, stream: str) -> dict[int, int]:
        """Level -> what may be acknowledged of an input: what everybody who protects this stage allows."""
        return keeping.allowed([keeper.machine.acks[self.name][stream] for keeper in self.keepers])

    def send_acks(self) -> None:
        """Tell every producer what will never be asked again. Lost acks ride along with the next request."""
        for stream in self.inputs:
            producer = self.host.directory.primary_of(stream)
            acks = list(self.acks(stream).items())
            if producer == self.host.name:
                local = self.host.stream(stream)
                if local and local.hears(self.name, self.generation, near=True):
                    for level, epoch in acks:
                        local.ack(self.name, epoch, level)
            elif producer is not None and acks:
                header = {
                    "stream": stream,
                    "consumer": self.name,
                    "host": self.host.name,
                    "unit": self.unit,
                    "generation": self.generation,
                    "acks": acks,
                }
                try:
                    reply = self.host.peer(producer).call("ack", header, category="ack", timeout_s=5)
                except (flight.FlightError, pa.ArrowException, OSError):
                    continue
                if reply.refused == "fenced":
                    self.fence()

    def fence(self) -> None:
        """A newer generation of this unit runs elsewhere: stop, add nothing."""
        if not self.stopping:
            if self.primary:
                self.host.report("fenced", stage=self.name, unit=self.unit, generation=self.generation)
            threading.Thread(target=self.stop, daemon=True).start()

    def queue_files(self, upto: int) -> dict[str, Path]:
        """The untrimmed output up to an epoch, as files for a checkpoint. Each is written once."""
        folder = self.folder / "queue"
        folder.mkdir(parents=True, exist_ok=True)
        with self.host.changed:
            first = self.output.queue.first
        files: dict[str, Path] = {}
        for epoch in range(first, upto + 1):
            path = folder / f"{epoch}.arrow"
            if not path.exists():
                table = self.host.payloads.get(self.output.key, epoch)
                if table is None:
                    files.clear()  # trimmed meanwhile, and so is everything before it
                    continue
                write_table(path, table)
            files[f"queue/{epoch}.arrow"] = path
        for path in folder.glob("*.arrow"):
            if int(path.stem) < first:
                path.unlink(missing_ok=True)
        return files

    def standby_is_known(self) -> None:
        """Not before: until the coordinator knows of a standby's version, this host's own is what to go back to."""
        own = self.folder / "self"
        with suppress(OSError):  # moved away first: a checkpoint may be on its way into it
            shutil.rmtree(own.rename(self.folder / f"dropped-{time.time_ns()}"))

    def drain(self, final: int) -> bool:
        """Stopping: take the last checkpoint. True once nothing is left to do."""
        with self.host.changed:
            if self.committed < final or (self.output.queue.trimmed < final and self.host.topology.is_last(self.name)):
                return False
            if self.policy.keeps_on_disk:
                return self.keepers[0].drained()
        if not (self.folder / "self" / "manifests" / f"{final}.json").exists():
            store = CheckpointStore(self.folder / "self", clear=True)
            # With the output: a consumer that is rebuilt by replay may need some of it after the stop.
            files = files_of_version(self.state, final - self.base)
            files |= self.queue_files(final) | self._window_file(final)
            for header, body in Shipped({}).parts(files, self.about(final)):
                store.paste(header, body)
        return True

    def about(self, epoch: int) -> dict[str, Any]:
        plans = self.host.wait_for_plans()
        return {
            "epoch": epoch,
            "base": self.base,
            "gap": self.gap,
            "generation": self.generation,
            "schema": plans.schema(self.name).simpleString(),
        }

    def stop(self) -> None:
        with self.host.changed:
            self.stopping = True
            for keeper in self.keepers:
                keeper.stop()  # a unit ends as a whole
            self.host.changed.notify_all()
        query = self._query
        if query is not None:
            try:
                query.stop()
            except Exception:
                traceback.print_exc()
        for inlet in self.inlets.values():
            self.host.payloads.drop_all(inlet.key)
        self.host.payloads.drop_all(self.output.key)

    def measured(self) -> dict[str, Any]:
        """What the stage takes and keeps. Looks at its files: not to be called with ``host.changed`` held."""
        with self.host.changed:
            batches_s = list(self._batches_s)
        found: dict[str, Any] = {"batch_s": median(batches_s)} if len(batches_s) == BATCHES else {}
        try:
            found["state_bytes"], found["delta_bytes"] = sizes_of_version(self.state, self.committed - self.base)
        except FileNotFoundError:
            pass  # Spark has cleaned up meanwhile
        return found

    def status(self) -> dict[str, Any]:
        queue = self.output.queue
        return {
            "role": "primary",
            "unit": self.unit,
            "generation": self.generation,
            "committed": self.committed,
            "produced": queue.next - 1,
            "trimmed": queue.trimmed,
            "started": self.resumed_at is not None,
            "checkpoint": max((k.newest[self.name] for k in self.keepers if self.name in k.newest), default=None),
            "error": self.error,
        }
