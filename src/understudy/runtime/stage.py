"""What a host runs: a stage, fed by inlets, computed by its engine, drained by consumers and sinks, kept safe by its
keeper.

A stage runs as primary or, under active standby, as a copy: on the same input, without sending, telling the primary how
far it is. A copy that is promoted simply goes on. Like the streams it lives under its host's one condition.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa
import pyarrow.flight as flight

from understudy import telling
from understudy.core import beginning, keeping
from understudy.core.acks import FINAL
from understudy.core.beginning import Start
from understudy.core.draining import Ending, ending
from understudy.core.failover import StageThrew, StandbyUnusable
from understudy.core.keeping import Charge, Holdings
from understudy.core.numbers import FIRST_EPOCH, NO_EPOCH, Epoch, Generation, after, before, between
from understudy.core.pacing import Pace
from understudy.core.plans import UnitPlan
from understudy.core.policies import Policy, base
from understudy.core.policies.upstream import Row
from understudy.core.queue import has_room
from understudy.core.row_counts import Missed, missed
from understudy.cut_times import newest, with_time, without_time
from understudy.runtime import messages
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.engine import EngineFailed
from understudy.runtime.keeper import Keeper, Reporter
from understudy.runtime.parts import About, Shipped
from understudy.runtime.role import Primary
from understudy.runtime.spark_files import Batch
from understudy.runtime.streams import Inlet, SinkWriter, Stream, write_table
from understudy.runtime.wire import Refusal, Reply

if TYPE_CHECKING:
    from understudy.runtime.host import Host

BATCHES = 20
"""How many batches tell how long one takes. The first ones of a query, still being compiled, must fall out of it."""


NOTHING_MISSED = Missed()


class Position(TypedDict):
    """Where a stage goes on that is restored from a checkpoint, as arguments of ``RunningStage``."""

    start_epoch: Epoch
    base: int
    gap: Epoch
    missing: int
    missed: Missed
    landed: dict[str, Epoch]
    usual: dict[str, float]


FRESH: Position = {
    "start_epoch": NO_EPOCH, "base": 0, "gap": FIRST_EPOCH, "missing": 0, "missed": Missed(), "landed": {},
    "usual": {},
}  # fmt: skip


def position(about: About | None, found: Start | None = None) -> Position:
    """After the version that this tells about; None: from nothing. With what producers have answered, of a state that
    was saved some while ago: it counts as being of the epoch before those that they still have, and what comes between
    is lost."""
    at = FRESH
    if about is not None:
        at = {
            "start_epoch": about.epoch, "base": about.base, "gap": about.gap, "missing": 0, "missed": about.missed,
            "landed": about.landed, "usual": about.usual,
        }  # fmt: skip
    if found is None:
        return at
    resumed = beginning.resumed(at["start_epoch"], found)
    lacks = at["missed"] + missed(at["start_epoch"], resumed.epoch, found.counted, at["usual"])
    return {
        "start_epoch": resumed.epoch,
        "base": at["base"] + resumed.skipped,
        "gap": after(resumed.epoch),
        "missing": resumed.skipped,
        "missed": lacks,
        "landed": at["landed"],
        "usual": at["usual"],
    }


class RunningStage(Primary):
    """One stage, running. What computes it is its engine. Its state is at ``start_epoch``; ``base`` maps Spark's batch
    ids to epochs (epoch = batch + base). Output that came with its state is in ``state/queue``."""

    def __init__(
        self,
        host: Host,
        name: str,
        *,
        unit: str,
        generation: Generation,
        folder: Path,
        state: Path,
        start_epoch: Epoch,
        base: int,
        landed: dict[str, Epoch],
        usual: dict[str, float],
        ready: Any = None,
        primary: bool = True,
        since: int | None = None,
        gap: Epoch = FIRST_EPOCH,
        missing: int = 0,
        missed: Missed = NOTHING_MISSED,
        row: Row | None = None,
    ) -> None:
        """``landed``: what sinks had when the state was captured; ``usual``: rows per epoch of its inputs then.
        ``ready``: what was made ready of its engine. Not ``primary``: runs as a copy. With ``since``, the plan that
        made this host a standby, its primary counts on it and is told how far it is. ``gap``: epochs before this one
        were lost while the unit had no protection. ``missing``: so many are not in its state; ``missed``: what came in
        them, and what its state lacked before that without having been told. ``row``: it is being rebuilt, and with
        whom."""
        self.host, self.name, self.unit, self.generation = host, name, unit, generation
        self.primary, self.since = primary, since
        self.folder, self.state = folder, state
        self.start_epoch, self.base, self.gap, self.row = start_epoch, base, gap, row
        self.missing, self.missed = missing, missed
        self._told_lost = False
        self.inputs = host.job.stages[name].inputs
        with host.changed:
            host.landed.hears(landed)
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
        self._batch_at: float | None = None
        self._batches_s: deque[float] = deque(maxlen=BATCHES)
        """When the batch under way was granted, and how long the last ones took."""
        self.output = self._restored_output()
        self.inlets = {s: Inlet(self, s, usual.get(s)) for s in self.inputs}
        self.engine = host.kind(name).engine(self, ready)
        self._threads = [*self.inlets.values(), *(self._sink_writers() if primary else [])]
        if since is not None:
            self._threads.append(Reporter(self, since))
        self._threads.append(threading.Thread(target=self._run, name=f"engine {name}", daemon=True))

    @property
    def policy(self) -> Policy:
        return self.host.topology.units[self.unit].policy

    def _sink_writers(self) -> list[SinkWriter]:
        return [SinkWriter(self, s) for s in self.host.job.stages[self.name].sinks]

    def _restored_output(self) -> Stream:
        """The output queue as it was when the state was captured, where the checkpoint carries it."""
        folder = self.state / "queue"
        kept = sorted(Epoch(int(p.stem)) for p in folder.glob("*.arrow"))
        rebuilt = self.row is not None
        output = Stream(self, start=kept[0] if kept else after(self.start_epoch), rebuilt=rebuilt)
        for epoch in kept:
            with pa.memory_map(str(folder / f"{epoch}.arrow")) as file:
                self.host.payloads.put(output.key, epoch, pa.ipc.open_file(file).read_all())
            if self.may_be_seen(epoch):
                output.queue.append(epoch)
        return output

    def may_be_seen(self, epoch: Epoch) -> bool:
        """An epoch that came with the state it begins with."""
        return True

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def promote(self, generation: Generation) -> None:
        """From copy to primary: nothing stops, but from now on it sends, writes and is protected itself."""
        with self.host.changed:
            self.generation, self.primary = generation, True
            self.host.changed.notify_all()
        for writer in self._sink_writers():
            writer.start()
        self.resumed_at = time.time()
        self.host.report(messages.Runs(self.unit, generation, self.name, self.committed))

    @property
    def running(self) -> RunningStage | None:
        return self

    @property
    def begun(self) -> Epoch:
        return self.granted

    def protect(self, wanted: UnitPlan, charges: list[Charge], holdings: Holdings) -> RunningStage | None:
        return self

    def give_up(self, cause: str) -> None:
        """As a copy: this host cannot run the stage; if the primary waits for it, it must not."""
        print(f"{self.name}: this copy gives up: {cause}", flush=True)
        if self.since is not None:
            self.host.report(StandbyUnusable(self.unit, self.generation, self.host.name, self.since, cause))
        threading.Thread(target=self.stop, daemon=True).start()

    def batch_of(self, epoch: Epoch) -> Batch:
        """Spark's batch that makes an epoch."""
        return Batch(epoch - self.base)

    def epoch_of(self, batch: Batch) -> Epoch:
        return Epoch(batch + self.base)

    # -- the engine's side --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self.fail(*self.engine.run())

    def fail(self, cause: str, whose: str) -> None:
        """The engine has ended, or cannot be protected; told once. Somebody else has to go on."""
        with self.host.changed:
            if self.stopping or self.error is not None:
                return
            self.error = cause
        if not self.primary:
            self.give_up(cause)
            return
        self.host.report(StageThrew(self.unit, self.generation, self.name, self.granted, cause, whose))

    def next_epoch(self, done: Epoch, *, version: bool = True) -> Epoch | None:
        """The engine asks for the epoch after ``done``: everything up to it is done, and with ``version`` the state
        after it can be had later. Returns when the next one may be started; None when the stage stops."""
        epoch = after(done)
        needs = self._needs(done) if done > self.committed else None  # reads files: not with the lock held
        with self.host.changed:
            if done > self.committed:
                self._commit(done, needs, version)
            if self.resumed_at is None:
                self.resumed_at = time.time()
                about = (self.unit, self.generation, self.name)
                runs = messages.Runs(*about, done, self.missing)
                self.host.report(runs if self.primary else messages.Armed(*about))
            # A query asks once for every input. When one of them was told to go on, so are the others, whatever has
            # happened since: told to pause in between, it would neither end its epoch nor ever say that it has paused.
            while not self.stopping and self.granted <= done:
                if not self._may_run(epoch):
                    self.host.changed.wait()
                elif (wait_s := self._wait_for_copies_s(epoch)) > 0:
                    self.host.changed.wait(wait_s)
                else:
                    self._grant(epoch)
            return None if self.stopping else epoch

    def _grant(self, epoch: Epoch) -> None:
        self.host.trace(self.name, "granted", epoch)
        self.granted = epoch
        self._batch_at = time.monotonic()
        self.pace.started(epoch, self._batch_at)
        self.host.changed.notify_all()

    def _commit(self, epoch: Epoch, needs: dict[str, Epoch] | None, version: bool) -> None:
        self.committed = epoch
        if self._batch_at is not None:
            self._batches_s.append(time.monotonic() - self._batch_at)
        self.host.trace(self.name, "committed", epoch)
        for inlet in self.inlets.values():
            self.host.payloads.drop(inlet.key, epoch)
        if needs is None:  # somebody may want to know by now
            needs = self._needs(epoch)
        self._tell(base.Committed(self.name, epoch, needs, version))
        if self.paused_by:
            self._tell(base.Paused(self.name))
        self.host.changed.notify_all()

    def wants(self) -> set[base.Want]:
        """Whether somebody may want the state after the epoch that was just made."""
        with self.host.changed:
            return {keeper.machine.wants(self.name, time.monotonic()) for keeper in self.keepers}

    def input_table(self, input: str, epoch: Epoch) -> pa.Table | None:
        return self.host.payloads.get(self.inlets[input].key, epoch)

    def publish(self, epoch: Epoch, table: pa.Table) -> None:
        if self.host.job.needs_cut_times:
            table = with_time(table, newest(self.input_table(stream, epoch) for stream in self.inputs))
        if not self.stopping:
            self.output.append(epoch, table)

    def done_in_s(self) -> float:
        """When the query will want its next epoch, if the batch under way is one of the shorter ones: if it is not,
        rows are a little older, and else the query would stand still. 0 when it has nothing to do, or only has to
        commit. Call with ``host.changed`` held."""
        if self.granted == self.committed or self.output.queue.next > self.granted or self._batch_at is None:
            return 0.0
        short_s = sorted(self._batches_s)[len(self._batches_s) // 10] if self._batches_s else 0.0
        return max(0.0, self._batch_at + short_s - time.monotonic())

    def _wait_for_copies_s(self, epoch: Epoch) -> float:
        # What is usual: the last one may have been held up, and would hold up the next twice as long.
        step_s = max(self.host.job.epoch_s, median(self._batches_s) if self._batches_s else 0.0)
        return self.pace.wait_s(epoch, time.monotonic(), step_s)

    def _may_run(self, epoch: Epoch) -> bool:
        arrived = not self.paused_by and all(inlet.received >= epoch for inlet in self.inlets.values())
        return arrived and (not self.primary or has_room(self.output.queue.ahead, draining=self.host.draining))

    # -- protocol ---------------------------------------------------------------------------------------------------

    def _tell(self, event: base.Event) -> None:
        for keeper in self.keepers:
            keeper.handle(event)

    def on_progress(self) -> None:
        """Consumers have got further. Upstream backup passes that on."""
        for keeper in self.keepers:
            for level in range(keeper.machine.levels):
                keeper.handle(base.Acked(self.name, level, self.output.queue.bound(level)))

    def _needs(self, epoch: Epoch) -> dict[str, Epoch] | None:
        """What the state after ``epoch`` can be rebuilt from, where somebody wants to know."""
        if not any(keeper.machine.levels for keeper in self.keepers):
            return None
        return dict.fromkeys(self.inputs, self.engine.needs(epoch))

    def on_trimmed(self, epoch: Epoch) -> None:
        self.host.later(self.engine.trimmed, epoch)
        self._tell(base.Acked(self.name, FINAL, epoch))

    def copy_is_at(self, standby: str, epoch: Epoch) -> messages.Trimmed | Reply[Any]:
        with self.host.changed:
            self.pace.copy_is_at(standby, epoch)
            self.host.changed.notify_all()
            for keeper in self.keepers:
                keeper.handle(base.Pasted(self.name, standby, epoch))
            told = [keeper.machine.trimmed(self.name, standby) for keeper in self.keepers]
            trimmed = max((epoch for epoch in told if epoch is not None), default=NO_EPOCH)
            return messages.Trimmed(trimmed, dict(self.host.landed.known))

    def trim(self, told: messages.Trimmed) -> None:
        """As a copy: this is what all consumers are done with."""
        with self.host.changed:
            self.host.landed.hears(told.landed)
        for consumer in self.output.queue.progress:
            self.output.ack(consumer, min(told.epoch, before(self.output.queue.next)))

    def regenerate(self, epoch: Epoch) -> pa.Table | None:
        """An epoch that this primary never had: lost without protection, under which policy it may be now; else never
        asked for."""
        if epoch >= self.gap:
            return None
        if not self._told_lost:
            self._told_lost = True  # of the first that is asked for, and so of those that follow
            self.host.report(messages.Notice("lost", self.unit, telling.lost(self.name, epoch, before(self.gap))))
        schema = self.output.schema or self.host.kind(self.name).arrow_schema(self.name)
        return without_time(schema.empty_table())  # that of its newest epoch is not that of this one

    def acks(self, stream: str) -> dict[int, Epoch]:
        """Level -> what may be acknowledged of an input: what everybody who protects this stage allows."""
        found = keeping.allowed([keeper.machine.acks[self.name][stream] for keeper in self.keepers])
        if FINAL in found:
            with self.host.changed:  # first: nobody lets go of input without knowing
                self.host.landed.hears(self.engine.told(after(found[FINAL])))
        return found

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
                about = (stream, self.name, self.host.name, self.unit, self.generation)
                call = messages.Ack(*about, tuple(acks), dict(self.host.landed.known))
                try:
                    reply = self.host.peer(producer).call(call, category="ack", timeout_s=5)
                except (flight.FlightError, pa.ArrowException, OSError):
                    continue
                if reply.refused == Refusal.FENCED:
                    self.fence()

    def fence(self) -> None:
        if not self.stopping:
            if self.primary:
                self.host.report(messages.Fenced(self.unit, self.generation, self.name))
            threading.Thread(target=self.stop, daemon=True).start()

    def queue_files(self, upto: Epoch) -> dict[str, Path]:
        """The untrimmed output up to an epoch, as files for a checkpoint. Each is written once."""
        folder = self.folder / "queue"
        folder.mkdir(parents=True, exist_ok=True)
        with self.host.changed:
            first = self.output.queue.first
        files: dict[str, Path] = {}
        for epoch in between(first, after(upto)):
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

    def drain(self, final: Epoch) -> bool:
        with self.host.changed:
            trimmed, last = self.output.queue.trimmed, self.host.topology.is_last(self.name)
            left = ending(self.policy, committed=self.committed, trimmed=trimmed, final=final, last=last)
            if left is Ending.GOES_ON:
                return False
            if left is Ending.KEPT:
                return self.keepers[0].drained()
            final = max(final, self.committed)  # begun without state, it may have left out what was never made
        if not (self.folder / "self" / "manifests" / f"{final}.json").exists():
            store = CheckpointStore(self.folder / "self", clear=True)
            try:
                # With the output: a consumer that is rebuilt by replay may need some of it after the stop.
                files = self.engine.last_files(final) | self.queue_files(final)
            except EngineFailed as error:
                self.fail(error.cause, error.whose)
                return False
            for part, body in Shipped({}).parts(files, self.about(final)):
                store.paste(part, body)
        return True

    def about(self, epoch: Epoch) -> About:
        return About(
            epoch,
            self.base,
            self.gap,
            self.generation,
            landed=dict(self.host.landed.known),
            usual={name: inlet.usual.rows for name, inlet in self.inlets.items() if inlet.usual.rows},
            missed=self.missed if epoch == self.start_epoch else NOTHING_MISSED,
            schema=self.host.kind(self.name).schema(self.name),
        )

    def stop(self) -> None:
        with self.host.changed:
            self.stopping = True
            for keeper in self.keepers:
                keeper.stop()  # a unit ends as a whole
            self.host.changed.notify_all()
        self.engine.stop()
        for inlet in self.inlets.values():
            self.host.payloads.drop_all(inlet.key)
        self.host.payloads.drop_all(self.output.key)

    def measured(self) -> dict[str, Any]:
        with self.host.changed:
            batches_s = list(self._batches_s)
        found: dict[str, Any] = {"batch_s": median(batches_s)} if len(batches_s) == BATCHES else {}
        try:
            found["state_bytes"], found["delta_bytes"] = self.engine.sizes(self.committed)
        except FileNotFoundError:
            pass  # it has been cleaned up meanwhile
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
