"""How epochs move: the producing end of a stream, the inlet that pulls it, and the writer that empties it into a sink.

Every object here lives under its host's one condition (``host.changed``): whoever changes something holds it and
notifies; whoever waits, waits on it. Slow work (network, disk, Spark) happens outside it.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from understudy.core.acks import FINAL
from understudy.core.failover import StageThrew
from understudy.core.numbers import Epoch, Generation, after
from understudy.core.pacing import Asking
from understudy.core.queue import OutputQueue, lead_for
from understudy.core.row_counts import RowCounts, Usual
from understudy.cut_times import without_time
from understudy.runtime import blame, messages
from understudy.runtime.spark import first_line
from understudy.runtime.wire import Refusal
from understudy.sinks import Fenced

if TYPE_CHECKING:
    from understudy.runtime.role import Primary
    from understudy.runtime.stage import RunningStage

LOCAL_S = 1.0
"""How long a request waits for a producer on this host that is just starting."""
POLL_S = 20.0
"""How long one request for an epoch waits at the producer before it is asked again."""


Answer = tuple[Refusal | None, pa.Table | None]
"""To a request for an epoch: a refusal, or the epoch's rows."""


class Stream:
    """The producing end of a stream: its queue, the payloads, and those who wait for them."""

    def __init__(self, producer: Primary, *, start: Epoch, first: Epoch | None = None, rebuilt: bool = False) -> None:
        self.producer, self.host, self.stage = producer, producer.host, producer.name
        host, stage = self.host, self.stage
        beat_s, misses = host.heartbeat
        lead = lead_for(beat_s * misses, host.job.epoch_s)
        self.queue = OutputQueue(host.topology.consumers(stage), start=start, first=first, rebuilt=rebuilt, lead=lead)
        self.counts = RowCounts()
        self.key = f"out:{stage}"
        self.schema: pa.Schema | None = None

    def append(self, epoch: Epoch, table: pa.Table) -> bool:
        """Publish an epoch. False when it was there already (Spark ran a batch again)."""
        with self.host.changed:
            if epoch < self.queue.next:
                return False
            self.schema = table.schema
        self.host.payloads.put(self.key, epoch, table)
        with self.host.changed:
            if not self.queue.append(epoch):
                self.host.payloads.drop(self.key, epoch)
            self.counts.came(epoch, table.num_rows)
            self.host.rows[self.stage] += table.num_rows
            self.host.published[self.stage] += table.nbytes
            self.host.changed.notify_all()
        return True

    def show(self, epoch: Epoch) -> None:
        """Publish an epoch whose rows are there, or made when they are wanted. Call with ``host.changed`` held."""
        self.queue.append(epoch)
        self.host.changed.notify_all()

    def take(self, consumer: str, epoch: Epoch, timeout_s: float, *, counts: bool = True) -> Answer:
        """Wait for ``epoch``. Returns (refusal, None) or (None, table). ``counts`` unless a copy of the consumer asks:
        only its primary's requests say how far it is. Where copies deliver as well, theirs lift back-pressure too."""
        deadline = time.monotonic() + timeout_s
        eager = not counts and self.host.delivers_eagerly(consumer)

        def request() -> bool:
            if counts:
                return self.queue.request(consumer, epoch)
            return self.queue.ask(consumer, epoch) if eager else epoch < self.queue.next

        with self.host.changed:
            served = request()
            if counts:
                self.producer.on_progress()
            self.host.changed.notify_all()  # that the consumer has come this far may lift back-pressure
            while not served:
                left = deadline - time.monotonic()
                if left <= 0 or self.host.output(self.stage) is not self:
                    return (Refusal.LATER if left <= 0 else Refusal.ELSEWHERE), None
                self.host.changed.wait(left)
                served = request()
            missing = epoch < self.queue.first
        table = None if missing else self.host.payloads.get(self.key, epoch)
        if table is None:
            table = self.producer.regenerate(epoch)
        if table is None:
            return (Refusal.ELSEWHERE if self.producer.stopping else Refusal.GONE), None
        return None, table

    cut_s = 0.0
    """How long it takes a source to cut an epoch that is due; a stage does not wait for being asked."""

    def hears(self, consumer: str, generation: Generation, *, near: bool) -> bool:
        """Somebody speaks for ``consumer``; False when a newer generation of it has spoken before."""
        with self.host.changed:
            return self.queue.hears(consumer, generation, near=near)

    def ack(self, consumer: str, epoch: Epoch, level: int = FINAL) -> None:
        with self.host.changed:
            trimmed = self.queue.ack(consumer, epoch, level)
            self.producer.on_progress()
            if trimmed is None:
                return
            self.host.payloads.drop(self.key, trimmed)
            self.producer.on_trimmed(trimmed)
            self.host.changed.notify_all()


class Inlet(threading.Thread):
    """Pulls one input stream, epoch by epoch, from wherever the plan says its producer is."""

    def __init__(self, stage: RunningStage, stream: str, usual: float | None = None) -> None:
        """``usual``: rows per epoch, as its predecessor knew."""
        super().__init__(name=f"inlet {stage.name}<{stream}", daemon=True)
        self.stage, self.stream, self.host = stage, stream, stage.host
        self.received = stage.start_epoch
        self.usual = Usual(usual)
        self.key = f"in:{stage.name}<{stream}"
        self._requests = ThreadPoolExecutor(max_workers=8, thread_name_prefix=self.name)
        self._asking = Asking()
        self._pending: dict[tuple[str, bool], tuple[Epoch, Future[Answer]]] = {}
        """Producer, and whether it was asked for a primary -> the epoch, and its answer to come."""

    def run(self) -> None:
        try:
            self._pull()
        finally:
            self._requests.shutdown(wait=False, cancel_futures=True)

    def _pull(self) -> None:
        stage, host = self.stage, self.host
        while True:
            with host.changed:
                while not stage.stopping and (wait_s := self._wanted_in_s()) > 0:
                    host.changed.wait(None if wait_s == math.inf else wait_s)
                if stage.stopping:
                    return
                producers, serial = host.directory.producers(self.stream, stage.unit), host.serial
            epoch = after(self.received)
            refusal, table = self._fetch_while_current(producers, epoch)
            if table is not None:
                host.payloads.put(self.key, epoch, table)
                with host.changed:
                    self.received = epoch
                    self.usual.came(table.num_rows)
                    host.changed.notify_all()
            elif refusal == Refusal.FENCED:
                stage.fence()
                return
            elif refusal == Refusal.GONE:
                if stage.primary:
                    about = (stage.unit, stage.generation, stage.name, epoch, self.stream)
                    host.report(messages.Gone(*about))
                else:
                    stage.give_up(f"epoch {epoch} of {self.stream} is gone")
                return
            elif refusal != Refusal.LATER:
                host.wait_for_newer_plan(serial, stage, 0.1)  # moved or unreachable: the next plan will tell

    def _wanted_in_s(self) -> float:
        """When the next epoch should be asked for. Call with ``host.changed`` held."""
        return self._asking.wait_s(self.received, self.stage.granted, self.stage.done_in_s())

    def _fetch_while_current(self, producers: tuple[str, ...], epoch: Epoch) -> Answer:
        """Ask all of them and take what comes first. One that has not answered an earlier request yet is not asked
        again, unless this is a copy that has become primary: what it asked before did not count. Do not wait for
        producers that the plan has given up: one may be paused and never answer."""
        stage, host = self.stage, self.host
        answers: dict[str, Answer] = {}
        while len(answers) < max(1, len(producers)):
            primary = stage.primary
            for producer in producers:
                if producer not in answers and (producer, primary) not in self._pending:
                    request = self._requests.submit(self._fetch, producer, epoch)
                    self._pending[producer, primary] = (epoch, request)
                    request.add_done_callback(lambda _: host.wake())
            with host.changed:
                host.changed.wait_for(
                    lambda primary=primary: any(r.done() for _, r in self._pending.values())  # type: ignore[misc]
                    or stage.stopping
                    or stage.primary != primary
                    or host.directory.producers(self.stream, stage.unit) != producers
                )
                if stage.stopping or host.directory.producers(self.stream, stage.unit) != producers or not producers:
                    return Refusal.ELSEWHERE, None
            for key, (asked, request) in list(self._pending.items()):
                if request.done():
                    del self._pending[key]
                    producer = key[0]
                    if asked == epoch and producer in producers:
                        answers[producer] = request.result()
            for answer in answers.values():
                if answer[1] is not None:
                    return answer
        return answers[producers[0]]  # what the primary says counts: a copy may be behind, or just be starting

    def _fetch(self, producer: str, epoch: Epoch) -> Answer:
        stage, host = self.stage, self.host
        with host.changed:
            primary, generation = stage.primary, stage.generation
        if producer == host.name:
            with host.changed:  # it may be just starting
                host.changed.wait_for(
                    lambda: stage.stopping
                    or host.output(self.stream) is not None
                    or host.name not in host.directory.producers(self.stream, stage.unit),
                    LOCAL_S,
                )
                stream = host.output(self.stream)
            if stream is None or (primary and not stream.hears(stage.name, generation, near=True)):
                return Refusal.ELSEWHERE, None
            answer = stream.take(stage.name, epoch, 1.0, counts=primary)
            if answer[1] is not None:
                self._asking.came(0.0, 0.0, stream.cut_s)
            return answer
        request = messages.Epoch(
            stream=self.stream,
            epoch=epoch,
            consumer=stage.name,
            host=host.name,
            unit=stage.unit,
            generation=generation,
            acks=tuple(stage.acks(self.stream).items()),
            landed=dict(host.landed.known),
            counts=primary,
        )
        wanted = primary and producer == host.directory.primary_of(self.stream)
        try:
            category, asked = "data" if wanted else "duplicate", time.monotonic()
            reply, table = host.peer(producer).get(request, category=category, timeout_s=POLL_S + 10)
        except (flight.FlightError, pa.ArrowException, OSError):
            return Refusal.UNREACHABLE, None
        if reply.refused == Refusal.FENCED and not (primary and generation == stage.generation):
            return Refusal.ELSEWHERE, None  # a plan is on its way that says what has become of this copy
        if not reply.refused:
            self._asking.came(time.monotonic() - asked, reply.answer.waited_s, reply.answer.cut_s)
        return reply.refused, (None if reply.refused else table)


class SinkWriter(threading.Thread):
    """Writes a stream's epochs to one sink, in order, and acknowledges each once it is durable."""

    def __init__(self, stage: RunningStage | Any, name: str) -> None:
        super().__init__(name=f"sink {name}", daemon=True)
        self.stage, self.sink_name, self.host = stage, name, stage.host

    def run(self) -> None:
        stage, host = self.stage, self.host
        consumer = f"sink:{self.sink_name}"
        queue = stage.output.queue
        epoch = max(queue.first, after(queue.progress[consumer].acked))
        try:
            writer = host.sink(self.sink_name).open(stage.generation, host.wait_for_spark)
            while not stage.stopping:
                refusal, table = stage.output.take(consumer, epoch, 1.0)
                if table is None:
                    if refusal == Refusal.LATER:
                        continue
                    return
                writer.write(epoch, without_time(table))
                host.trace(stage.name, "sunk", epoch)
                with host.changed:
                    if not stage.stopping:  # the host may have forgotten the job by then
                        host.landed.has(consumer, epoch)
                stage.output.ack(consumer, epoch)
                epoch = after(epoch)
        except Fenced:
            stage.fence()
        except Exception as error:
            if not stage.stopping:
                traceback.print_exc()
                cause = f"sink {self.sink_name!r}: {first_line(error)}"
                host.report(StageThrew(stage.unit, stage.generation, stage.name, epoch, cause, blame.of(error)))


def write_table(path: Path, table: pa.Table) -> None:
    """As a whole or not at all."""
    temporary = path.with_name(f".{path.name}.{threading.get_ident()}.tmp")  # two may want it at once
    with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    temporary.rename(path)
