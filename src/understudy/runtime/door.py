"""What a host answers to: calls of other hosts, of its own Spark, and of the coordinator.

Whatever speaks for a generation that was replaced is refused here, before it can change anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow.flight as flight

from understudy.core import beginning, draining
from understudy.core.numbers import Epoch
from understudy.core.row_counts import UNCOUNTED
from understudy.errors import UnderstudyError
from understudy.runtime import messages, wire
from understudy.runtime.role import Standby
from understudy.runtime.spark_engine import RUN
from understudy.runtime.streams import POLL_S
from understudy.runtime.wire import Refusal, Reply, refuse

if TYPE_CHECKING:
    from understudy.runtime.host import Host


class Door:
    def __init__(self, host: Host) -> None:
        self.host = host

    def service(self) -> wire.Service:
        return wire.Service(
            calls={
                messages.TakeJob: self._take_job,
                messages.TakePlan: self._take_plan,
                messages.CheckJob: self._check_job,
                messages.Ack: self._ack,
                messages.Paste: self._paste,
                messages.CopyAt: self._copy_at,
                messages.Entries: self._entries,
                messages.Position: self._position,
                messages.Arm: self._arm,
                messages.Initial: self._initial,
                messages.Grant: self._grant,
                messages.Parts: self._parts,
                messages.Drain: self._drain,
                messages.Status: self._status,
                messages.Reset: self._reset,
                messages.Exit: self._exit,
            },
            gets={
                messages.Epoch: self._epoch,
                messages.Peek: self._peek,
                messages.Input: self._input,
                messages.Pulse: self.host.membership.pulse,
            },
        )

    # -- calls from other hosts ------------------------------------------------------------------------------------

    def _stale(self, call: messages.Ack | messages.Epoch | messages.Position | _OfStage) -> bool:
        return self.host.directory.stale(call.unit, call.generation)

    def _near(self, call: messages.Ack | messages.Epoch | messages.Position) -> bool:
        return self.host.directory.near(call.stream, call.consumer, call.host)

    def _epoch(self, get: messages.Epoch) -> flight.FlightDataStream:
        if self._stale(get):
            return wire.refused_stream(Refusal.FENCED)
        stream = self.host.coming_stream(get.stream)
        if stream is None or get.consumer not in stream.queue.progress:
            return wire.refused_stream(Refusal.ELSEWHERE)
        if get.counts:
            if not stream.hears(get.consumer, get.generation, near=self._near(get)):
                return wire.refused_stream(Refusal.FENCED)
            self._hear_of_sinks(get.landed)
            for level, epoch in get.acks:
                stream.ack(get.consumer, epoch, level)
        asked = time.monotonic()
        refusal, table = stream.take(get.consumer, get.epoch, POLL_S, counts=get.counts)
        if table is None:
            return wire.refused_stream(refusal or Refusal.LATER)
        waited_s, cut_s = round(time.monotonic() - asked, 4), round(stream.cut_s, 4)
        return wire.table_stream(table, messages.EpochAbout(stream.producer.generation, waited_s, cut_s))

    def _peek(self, get: messages.Peek) -> flight.FlightDataStream:
        table = self.host.peek(get.stream)
        return wire.refused_stream(Refusal.NOTHING) if table is None else wire.table_stream(table)

    def _position(self, call: messages.Position, body: bytes) -> messages.Place | Reply[Any]:
        stream = self.host.stream(call.stream)
        if stream is None:
            return refuse(Refusal.ELSEWHERE)
        with self.host.changed:
            if self._stale(call):
                return refuse(Refusal.FENCED)
            if not stream.queue.hears(call.consumer, call.generation, near=self._near(call)):
                return refuse(Refusal.FENCED)
            led = stream.producer
            queue, landed = stream.queue, self.host.landed.known
            counted = stream.counts.newest() if call.counted else UNCOUNTED
            found = beginning.place(
                queue, call.consumer, newest=call.newest, gap=led.gap, row=led.row, landed=landed, counted=counted
            )
        hosts, k = (None, 0) if found.row is None else (tuple(found.row.hosts), found.row.k)
        return messages.Place(found.epoch, found.lost, dict(found.landed), hosts, k, counted.first, counted.rows)

    def _hear_of_sinks(self, landed: dict[str, Epoch]) -> None:
        """Before anything is let go of because of what they have."""
        with self.host.changed:
            self.host.landed.hears(landed)

    def _ack(self, call: messages.Ack, body: bytes) -> Reply[Any] | None:
        if self._stale(call):
            return refuse(Refusal.FENCED)
        stream = self.host.stream(call.stream)
        if stream is None:
            return refuse(Refusal.ELSEWHERE)
        if not stream.hears(call.consumer, call.generation, near=self._near(call)):
            return refuse(Refusal.FENCED)
        self._hear_of_sinks(call.landed)
        for level, epoch in call.acks:
            stream.ack(call.consumer, epoch, level)
        return None

    def _paste(self, call: messages.Paste, body: bytes) -> int | Reply[Any] | None:
        return self._to_standby(call, lambda standby: standby.paste(call.part, body))

    def _entries(self, call: messages.Entries, body: bytes) -> int | Reply[Any] | None:
        return self._to_standby(call, lambda standby: standby.add(call))

    def _to_standby(
        self, call: messages.Paste | messages.Entries, act: Callable[[Standby], int | Reply[Any] | None]
    ) -> int | Reply[Any] | None:
        if self._stale(call):
            return refuse(Refusal.FENCED)
        standby = self.host.standby(call.stage)
        if standby is None or standby.generation != call.generation:
            return refuse(Refusal.ELSEWHERE)
        return act(standby)

    def _copy_at(self, call: messages.CopyAt, body: bytes) -> messages.Trimmed | Reply[Any]:
        if self._stale(call):
            return refuse(Refusal.FENCED)
        primary = self.host.primary(call.stage)
        if primary is None or primary.generation != call.generation:
            return refuse(Refusal.ELSEWHERE)
        return primary.copy_is_at(call.standby, call.epoch)

    # -- calls from this host's Spark ------------------------------------------------------------------------------

    def _arm(self, call: messages.Arm, body: bytes) -> str | Reply[Any]:
        engine = self.host.spark_engine(call.stage)
        if engine is not None:
            return engine.arm()
        mine = self.host.stages.get(call.stage) or self.host.spares.get(call.stage)
        return refuse(Refusal.STOPPED) if mine is None else mine.arm()

    def _engine(self, call: messages.Initial | messages.Grant | messages.Parts | messages.Input) -> Any:
        """Whoever answers a reader: the engine of the running stage or a rehearsal; None when it is over."""
        if call.session != RUN:
            return self.host.rehearsals.get(call.session)
        return self.host.spark_engine(call.stage)

    def _initial(self, call: messages.Initial, body: bytes) -> Epoch | Reply[Any]:
        engine = self._engine(call)
        return engine.initial() if engine else refuse(Refusal.STOPPED)

    def _grant(self, call: messages.Grant, body: bytes) -> Epoch | Reply[Any]:
        engine = self._engine(call)
        return engine.grant(call.after) if engine else refuse(Refusal.STOPPED)

    def _parts(self, call: messages.Parts, body: bytes) -> messages.Partitioning | Reply[Any]:
        engine = self._engine(call)
        return engine.parts(call.input, call.epoch) if engine else refuse(Refusal.STOPPED)

    def _input(self, get: messages.Input) -> flight.FlightDataStream:
        engine = self._engine(get)
        if engine is None:
            raise flight.FlightServerError("stage has moved")
        return wire.table_stream(engine.input_slice(get.input, get.epoch, get.part, get.parts))

    # -- calls from the coordinator --------------------------------------------------------------------------------

    def _take_job(self, call: messages.TakeJob, body: bytes) -> Reply[Any] | None:
        try:
            self.host.take_job(call, body)
        except UnderstudyError as error:
            return refuse(Refusal.JOB, str(error))
        return None

    def _check_job(self, call: messages.CheckJob, body: bytes) -> messages.Checked | Reply[Any]:
        try:
            return self.host.check_job(call.policies)
        except UnderstudyError as error:
            return refuse(Refusal.JOB if error.exit_code != 3 else Refusal.SETUP, str(error))

    def _take_plan(self, call: messages.TakePlan, body: bytes) -> Reply[Any] | None:
        if call.process != self.host.process:
            return refuse(Refusal.STRANGER)  # made for an earlier process, which was in the middle of what it says
        return None if self.host.take_plan(call) else refuse(Refusal.STALE)

    def _drain(self, call: messages.Drain, body: bytes) -> draining.Answer:
        host, question = self.host, call.question
        with host.changed:
            host.draining = True
            host.changed.notify_all()
            serial, stages = host.serial, host.primaries()
            ends = {s.name: (s.generation, s.begun) for s in stages if not host.topology.stages[s.name].inputs}
        if question.finals is None:
            return draining.Answer(question.number, serial, ends)
        done = {s.name: s.drain(question.finals[s.name]) for s in stages}
        units = {s.unit: s.generation for s in stages}
        led = {u: g for u, g in units.items() if all(done.get(s) for s in host.topology.units[u].stages)}
        return draining.Answer(question.number, serial, ends, led)

    def _status(self, call: messages.Status, body: bytes) -> dict[str, Any]:
        host = self.host
        with host.changed:
            stages = {name: stage.status() for name, stage in host.stages.items()}
            spares = {name: spare.status() for name, spare in host.spares.items()}
            primaries = host.primaries()
            keepers = {k.unit: k for stage in primaries for k in stage.keepers}
            checkpoints = {unit: dict(keeper.spent) for unit, keeper in keepers.items()}
        for stage in primaries:
            stages[stage.name] |= stage.measured()
        return {
            "stages": stages,
            "spares": spares,
            "checkpoints": checkpoints,
            "bytes": host.meter.snapshot(),
            "rows": dict(host.rows),
            "published": dict(host.published),
            "spark": host.has_spark,
            "queues": {
                "memory": host.payloads.memory_bytes,
                "memory_peak": host.payloads.memory_bytes_peak,
                "spilled": host.payloads.spilled_bytes,
            },
            "rss": tree_memory(psutil.Process()),
        }

    def _reset(self, call: messages.Reset, body: bytes) -> None:
        self.host.reset()

    def _exit(self, call: messages.Exit, body: bytes) -> None:
        threading.Timer(0.1, self.host.end, args=(0,)).start()


_OfStage = messages.Paste | messages.Entries | messages.CopyAt


def tree_memory(process: psutil.Process) -> int:
    """Bytes of memory of a process and all below it, shared pages counted once (PSS)."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total
