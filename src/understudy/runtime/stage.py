"""What a host runs: a stage, fed by inlets, drained by consumers and sinks, kept safe by its keeper.

A stage runs as primary or, under active standby, as a copy: on the same input, without sending, telling the primary how
far it is. A copy that is promoted simply goes on.

Every object here lives under its host's one condition (``host.changed``): whoever changes something holds it and
notifies; whoever waits, waits on it. Slow work (network, disk, Spark) happens outside it.
"""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from understudy.core.acks import FINAL
from understudy.core.policies import base
from understudy.core.queue import OutputQueue
from understudy.errors import JobError
from understudy.runtime import wire
from understudy.runtime.checkpoints import CheckpointDamaged, CheckpointStore, Shipped, files_of_version
from understudy.runtime.spark import first_line, root_cause
from understudy.sinks import Fenced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from understudy.runtime.host import Host

AHEAD_MAX = 2
"""Epochs a producer may be ahead of its slowest consumer. One would make producer and consumer take turns; many
would let an outage pile up small epochs that are slow to catch up with."""
PREFETCH_MAX = 2
"""Epochs an inlet holds that Spark has not started on."""
PARTITION_ROWS = 50_000
"""Rows per Spark partition of an input epoch. Below, a second task costs more than it gains."""
RUN = "run"
"""Session of the readers of a running stage, as against those of a rehearsal."""
POLL_S = 20.0
"""How long one request for an epoch waits at the producer before it is asked again."""


class Stream:
    """The producing end of a stream: its queue, the payloads, and those who wait for them."""

    def __init__(self, host: Host, stage: str, *, start: int, first: int | None = None) -> None:
        self.host = host
        self.stage = stage
        self.queue = OutputQueue(host.topology.consumers(stage), start=start, first=first)
        self.key = f"out:{stage}"
        self.schema: pa.Schema | None = None

    def append(self, epoch: int, table: pa.Table) -> bool:
        """Publish an epoch. False when it was there already (Spark ran a batch again)."""
        with self.host.changed:
            if epoch < self.queue.next:
                return False
            self.schema = table.schema
        self.host.payloads.put(self.key, epoch, table)
        with self.host.changed:
            if not self.queue.append(epoch):
                self.host.payloads.drop(self.key, epoch)
            self.host.rows[self.stage] += table.num_rows
            self.host.changed.notify_all()
        return True

    def take(
        self, consumer: str, epoch: int, timeout_s: float, *, counts: bool = True
    ) -> tuple[str | None, pa.Table | None]:
        """Wait for ``epoch``. Returns (refusal, None) or (None, table). ``counts`` unless a copy of the consumer asks:
        only its primary's requests say how far it is."""
        deadline = time.monotonic() + timeout_s

        def request() -> bool:
            return self.queue.request(consumer, epoch) if counts else epoch < self.queue.next

        with self.host.changed:
            served = request()
            if counts:
                self.owner.on_progress()
            self.host.changed.notify_all()  # that the consumer has come this far may lift back-pressure
            while not served:
                left = deadline - time.monotonic()
                if left <= 0 or self.host.stages.get(self.stage) is not self.owner:
                    return ("later" if left <= 0 else "elsewhere"), None
                self.host.changed.wait(left)
                served = request()
            missing = epoch < self.queue.first
        table = None if missing else self.host.payloads.get(self.key, epoch)
        if table is None:
            table = self.owner.regenerate(epoch)
        return ("gone", None) if table is None else (None, table)

    owner: Any = None

    def hears(self, consumer: str, generation: int, *, near: bool) -> bool:
        """Somebody speaks for ``consumer``; False when a newer generation of it has spoken before."""
        with self.host.changed:
            return self.queue.hears(consumer, generation, near=near)

    def ack(self, consumer: str, epoch: int, level: int = FINAL) -> None:
        with self.host.changed:
            trimmed = self.queue.ack(consumer, epoch, level)
            self.owner.on_progress()
            if trimmed is None:
                return
            self.host.payloads.drop(self.key, trimmed)
            self.owner.on_trimmed(trimmed)
            self.host.changed.notify_all()


class Inlet(threading.Thread):
    """Pulls one input stream, epoch by epoch, from wherever the plan says its producer is."""

    def __init__(self, stage: RunningStage, stream: str) -> None:
        super().__init__(name=f"inlet {stage.name}<{stream}", daemon=True)
        self.stage, self.stream, self.host = stage, stream, stage.host
        self.received = stage.start_epoch
        self.key = f"in:{stage.name}<{stream}"
        self._requests = ThreadPoolExecutor(max_workers=4, thread_name_prefix=self.name)

    def run(self) -> None:
        stage, host = self.stage, self.host
        while True:
            with host.changed:
                host.changed.wait_for(lambda: stage.stopping or self.received < stage.granted + PREFETCH_MAX)
                if stage.stopping:
                    return
                producer = host.primary_of_stream(self.stream)
                serial = host.serial
            refusal, table = self._fetch_while_current(producer, self.received + 1)
            if table is not None:
                host.payloads.put(self.key, self.received + 1, table)
                with host.changed:
                    self.received += 1
                    stage.on_received()
                    host.changed.notify_all()
            elif refusal == "fenced":
                stage.fence()
                return
            elif refusal == "gone":
                if stage.primary:
                    host.report("gone", stage=stage.name, unit=stage.unit, epoch=self.received + 1, stream=self.stream)
                else:
                    stage.give_up(f"epoch {self.received + 1} of {self.stream} is gone")
                return
            elif refusal != "later":
                with host.changed:  # moved or unreachable: the next plan will tell
                    host.changed.wait_for(lambda then=serial: stage.stopping or host.serial != then, timeout=0.1)

    def _fetch_while_current(self, producer: str | None, epoch: int) -> tuple[str | None, pa.Table | None]:
        """Fetch, but do not wait for a producer that the plan has given up: it may be paused and never answer."""
        stage, host = self.stage, self.host
        request = self._requests.submit(self._fetch, producer, epoch)
        request.add_done_callback(lambda _: host.wake())
        with host.changed:
            host.changed.wait_for(
                lambda: request.done() or stage.stopping or host.primary_of_stream(self.stream) != producer
            )
        return request.result() if request.done() else ("elsewhere", None)

    def _fetch(self, producer: str | None, epoch: int) -> tuple[str | None, pa.Table | None]:
        stage, host = self.stage, self.host
        if producer is None:
            return "elsewhere", None
        if producer == host.name:
            stream = host.stream(self.stream)
            if stream is None or (stage.primary and not stream.hears(stage.name, stage.generation, near=True)):
                return "elsewhere", None
            return stream.take(stage.name, epoch, 1.0, counts=stage.primary)
        request = {
            "get": "epoch",
            "stream": self.stream,
            "epoch": epoch,
            "consumer": stage.name,
            "unit": stage.unit,
            "generation": stage.generation,
            "acks": list(stage.acks[self.stream].items()),
            "counts": stage.primary,
        }
        try:
            category = "data" if stage.primary else "duplicate"
            reply, table = host.peer(producer).get(request, category=category, timeout_s=POLL_S + 10)
        except (flight.FlightError, pa.ArrowException, OSError):
            return "unreachable", None
        return reply.refused, (None if reply.refused else table)


class SinkWriter(threading.Thread):
    """Writes a stream's epochs to one sink, in order, and acknowledges each once it is durable."""

    def __init__(self, stage: RunningStage | Any, name: str) -> None:
        super().__init__(name=f"sink {name}", daemon=True)
        self.stage, self.sink_name, self.host = stage, name, stage.host

    def run(self) -> None:
        stage, host = self.stage, self.host
        consumer = f"sink:{self.sink_name}"
        epoch = stage.output.queue.first
        try:
            writer = host.sink(self.sink_name).open(stage.generation, host.wait_for_spark)
            while not stage.stopping:
                refusal, table = stage.output.take(consumer, epoch, 1.0)
                if table is None:
                    if refusal == "later":
                        continue
                    return
                writer.write(epoch, table)
                host.trace(stage.name, "sunk", epoch)
                stage.output.ack(consumer, epoch)
                epoch += 1
        except Fenced:
            stage.fence()
        except Exception as error:
            if not stage.stopping:
                traceback.print_exc()
                cause = f"sink {self.sink_name!r}: {first_line(error)}"
                host.report(
                    "threw", stage=stage.name, unit=stage.unit, generation=stage.generation, epoch=epoch, cause=cause
                )


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
        copy_since: int | None = None,
    ) -> None:
        """``copy_since``: runs as a copy, on a host that is standby since that plan."""
        self.host, self.name, self.unit, self.generation = host, name, unit, generation
        self.primary, self.since = copy_since is None, copy_since
        self.folder, self.state = folder, state
        self.start_epoch, self.base = start_epoch, base
        self.inputs = host.job.stages[name].inputs
        self.granted = self.committed = start_epoch
        self.acks: dict[str, dict[int, int]] = {stream: {} for stream in self.inputs}
        """Input -> level -> what was acknowledged of it."""
        self.resumed_at: float | None = None
        self.stopping = self.paused = False
        self.error: str | None = None
        self.output = self._restored_output()
        self.policy = host.topology.units[unit].policy
        self.protected = self.policy.protected
        self.keeper = self._make_keeper()
        self.inlets = {s: Inlet(self, s) for s in self.inputs}
        self._query = query
        self._threads = [*self.inlets.values(), *(self._primary_threads() if self.primary else [Reporter(self)])]
        self._threads.append(threading.Thread(target=self._run_query, name=f"query {name}", daemon=True))

    def _make_keeper(self) -> Keeper:
        return Keeper(self)

    def _primary_threads(self) -> list[Any]:
        return [self.keeper, *(SinkWriter(self, s) for s in self.host.job.stages[self.name].sinks)]

    def _restored_output(self) -> Stream:
        """The output queue as it was when the state was captured, where the checkpoint carries it."""
        folder = self.state / "queue"
        kept = sorted(int(p.stem) for p in folder.glob("*.arrow"))
        output = Stream(self.host, self.name, start=kept[0] if kept else self.start_epoch + 1)
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
            self.keeper = self._make_keeper()
            threads = self._primary_threads()
            self.host.changed.notify_all()
        for thread in threads:
            thread.start()
        self.resumed_at = time.time()
        self.host.report(
            "resumed", stage=self.name, unit=self.unit, generation=generation, epoch=self.committed
        )

    def give_up(self, cause: str) -> None:
        """As a copy: this host cannot be the standby; the primary must not wait for it."""
        self.host.report(
            "standby-unusable", stage=self.name, unit=self.unit, generation=self.generation, standby=self.host.name,
            since=self.since, cause=cause,
        )  # fmt: skip
        threading.Thread(target=self.stop, daemon=True).start()

    # -- Spark's side -----------------------------------------------------------------------------------------------

    def _run_query(self) -> None:
        try:
            if self._query is None:
                plans = self.host.wait_for_plans()
                if self.stopping:
                    return
                self._query = plans.start(self.name, self.state, self.publish)
            self._query.awaitTermination()
            cause = "the query ended by itself"
        except JobError as error:
            cause = str(error)
        except Exception as error:
            cause = root_cause(str(error))
            if not self.stopping:
                traceback.print_exc()
                print(getattr(error, "_stackTrace", ""), flush=True)  # where in Spark, for the host's log
        if not self.stopping and not self.primary:
            self.give_up(cause)
        elif not self.stopping:
            self.error = cause
            self.host.report(
                "threw", stage=self.name, unit=self.unit, generation=self.generation, epoch=self.granted, cause=cause
            )

    def arm(self) -> wire.Reply | dict[str, Any]:
        return {"session": RUN}

    def initial(self) -> dict[str, Any]:
        return {"epoch": self.base - 1}

    def grant(self, after: int) -> wire.Reply | dict[str, Any]:
        """Spark asks for the epoch after ``after``: everything up to it is committed. Answers when it may go on."""
        with self.host.changed:
            if after > self.committed:
                self.committed = after
                self.host.trace(self.name, "committed", after)
                for inlet in self.inlets.values():
                    self.host.payloads.drop(inlet.key, after)
                if self.primary:
                    self.keeper.handle(base.Committed(self.name, after, self._needs(after)))
                    if self.paused:
                        self.keeper.handle(base.Paused(self.name))
                self.host.changed.notify_all()
            if self.resumed_at is None:
                self.resumed_at = time.time()
                kind = "resumed" if self.primary else "armed"
                self.host.report(kind, stage=self.name, unit=self.unit, generation=self.generation, epoch=after)
            self.host.changed.wait_for(lambda: self.stopping or self._may_run(after + 1))
            if self.stopping:
                return wire.refuse("stopped")
            self.host.trace(self.name, "granted", after + 1)
            self.granted = max(self.granted, after + 1)
            self.host.changed.notify_all()
        return {"epoch": after + 1}

    def _may_run(self, epoch: int) -> bool:
        arrived = not self.paused and all(inlet.received >= epoch for inlet in self.inlets.values())
        return arrived and (not self.primary or self.output.queue.ahead < AHEAD_MAX)

    def parts(self, input: str, epoch: int) -> dict[str, Any]:
        table = self.host.payloads.get(self.inlets[input].key, epoch)
        rows = 0 if table is None else table.num_rows
        return {"parts": max(1, min(self.host.cores, -(-rows // PARTITION_ROWS)))}

    def input_slice(self, input: str, epoch: int, part: int, parts: int) -> pa.Table:
        table = self.host.payloads.get(self.inlets[input].key, epoch)
        if table is None:
            raise flight.FlightServerError(f"epoch {epoch} of {input} is not here")
        self.host.trace(self.name, "read", epoch)
        size = -(-table.num_rows // parts)
        return table.slice(part * size, size)

    def publish(self, frame: DataFrame, batch: int) -> None:
        self.host.trace(self.name, "planned", batch + self.base)
        table = frame.toArrow()
        self.host.trace(self.name, "computed", batch + self.base)
        if not self.stopping:
            self.output.append(batch + self.base, table)

    # -- protocol ---------------------------------------------------------------------------------------------------

    def on_received(self) -> None:
        if self.primary:
            self.keeper.handle(base.Received(self.name, min(inlet.received for inlet in self.inlets.values())))

    def on_progress(self) -> None:
        """Consumers have got further. Upstream backup passes that on."""
        if self.primary and self.policy.recovery == "replay":
            for level in range(self.policy.levels):
                self.keeper.handle(base.Acked(self.name, level, self.output.queue.bound(level)))

    def _needs(self, epoch: int) -> dict[str, int] | None:
        """What the state after ``epoch`` can be rebuilt from. Only stages without state are rebuilt: from nothing."""
        return dict.fromkeys(self.inputs, epoch + 1) if self.policy.recovery == "replay" else None

    def on_trimmed(self, epoch: int) -> None:
        if self.primary:
            self.keeper.handle(base.Acked(self.name, FINAL, epoch))

    def copy_is_at(self, standby: str, epoch: int) -> dict[str, Any]:
        """A copy has processed ``epoch``. It is told what all consumers are done with."""
        with self.host.changed:
            if self.primary:
                self.keeper.handle(base.Pasted(self.name, standby, epoch))
            return {"trimmed": self.output.queue.trimmed}

    def trim(self, epoch: int) -> None:
        """As a copy: all consumers are done with ``epoch``."""
        for consumer in self.output.queue.progress:
            self.output.ack(consumer, min(epoch, self.output.queue.next - 1))

    def regenerate(self, epoch: int) -> pa.Table | None:
        """An epoch that this primary never had: lost, for a unit without protection; else never asked for."""
        if self.protected:
            return None
        schema = self.output.schema or self.host.wait_for_plans().arrow_schema(self.name)
        return schema.empty_table()

    def send_acks(self) -> None:
        """Tell every producer what will never be asked again. Lost acks ride along with the next request."""
        for stream in self.inputs:
            producer = self.host.primary_of_stream(stream)
            acks = list(self.acks[stream].items())
            if producer == self.host.name:
                local = self.host.stream(stream)
                if local and local.hears(self.name, self.generation, near=True):
                    for level, epoch in acks:
                        local.ack(self.name, epoch, level)
            elif producer is not None and acks:
                header = {
                    "stream": stream,
                    "consumer": self.name,
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
                    continue  # trimmed meanwhile
                write_table(path, table)
            files[f"queue/{epoch}.arrow"] = path
        for path in folder.glob("*.arrow"):
            if int(path.stem) < first:
                path.unlink(missing_ok=True)
        return files

    def set_standby(self, standby: str | None, since: int, *, ready: bool) -> None:
        if self.policy.recovery == "replay":
            near = tuple(i for i in self.inputs if self.host.primary_of_stream(i) == self.host.name)
            with self.host.changed:
                self.keeper.handle(base.Placed(self.name, near))
            return
        if not self.protected:
            return
        if standby is None and self.policy.standby_runs:
            self.keeper.clear_target()
            return
        self.keeper.set_target(standby or self.host.name, since)
        if ready:
            # Not before: until the coordinator knows of the standby's version, this host's own is what to go back to.
            shutil.rmtree(self.folder / "self", ignore_errors=True)

    def drain(self, final: int) -> bool:
        """Stopping: take the last checkpoint. True once nothing is left to do."""
        with self.host.changed:
            if self.committed < final or (self.output.queue.trimmed < final and self.host.topology.is_last(self.name)):
                return False
            if self.policy.recovery == "standby" and not self.policy.standby_runs:
                return self.keeper.drained()
        if not (self.folder / "self" / "manifests" / f"{final}.json").exists():
            store = CheckpointStore(self.folder / "self", clear=True)
            for header, body in Shipped({}).parts(files_of_version(self.state, final - self.base), self.about(final)):
                store.paste(header, body)
        return True

    def about(self, epoch: int) -> dict[str, Any]:
        plans = self.host.wait_for_plans()
        return {
            "epoch": epoch,
            "base": self.base,
            "generation": self.generation,
            "schema": plans.schema(self.name).simpleString(),
        }

    def stop(self) -> None:
        with self.host.changed:
            self.stopping = True
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
            "checkpoint": self.keeper.newest,
            "error": self.error,
        }


def write_table(path: Path, table: pa.Table) -> None:
    """As a whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    temporary.rename(path)


class Reporter(threading.Thread):
    """Tells a copy's primary how far the copy is, as often as it moves; the answer says what may be trimmed."""

    def __init__(self, stage: RunningStage) -> None:
        super().__init__(name=f"reporter {stage.name}", daemon=True)
        self.stage, self.host = stage, stage.host

    def run(self) -> None:
        stage, host = self.stage, self.host
        told = stage.start_epoch - 1
        while True:
            with host.changed:
                host.changed.wait_for(lambda then=told: stage.stopping or stage.primary or stage.committed > then)
                if stage.stopping or stage.primary:
                    return
                epoch, primary = stage.committed, (host.plan.get(stage.unit) or {}).get("primary")
            header = {
                "unit": stage.unit, "stage": stage.name, "generation": stage.generation, "epoch": epoch,
                "standby": f"{host.name}#{stage.since}",
            }  # fmt: skip
            try:
                if primary is None or primary == host.name:
                    raise OSError("nobody to tell")
                reply = host.peer(primary).call("copy-at", header, category="ack", timeout_s=5)
            except (flight.FlightError, pa.ArrowException, OSError):
                with host.changed:
                    host.changed.wait(0.2)
                continue
            told = epoch
            if not reply.refused:
                stage.trim(reply.header["trimmed"])


class Shipper:
    """Brings versions of one stage's state to its standby or, lacking one, to this host's own disk."""

    def __init__(self, stage: RunningStage) -> None:
        self.stage, self.host = stage, stage.host
        self.target: str | None = None
        self.since = -1
        self.held = False
        """The present target has a whole version."""
        self._shipped = Shipped({})
        self._own: CheckpointStore | None = None

    def aim(self, target: str, since: int) -> None:
        self.target, self.since, self.held, self._shipped = target, since, False, Shipped({})
        self._own = CheckpointStore(self.stage.folder / "self") if target == self.host.name else None

    def ship(self, epoch: int, needed: dict[str, Path]) -> str | None:
        """Returns None when the version is safe at the target, else why not: ``fenced``, ``moved`` (another target
        was chosen meanwhile), ``disk: ...`` or another text."""
        stage, target, since, shipped = self.stage, self.target, self.since, self._shipped
        assert target is not None
        failure: str | None = None
        try:
            for header, body in shipped.parts(needed, stage.about(epoch)):
                failure = self._send(target, header, body)
                if failure is not None:
                    break
            else:
                shipped.accepted()
        except (flight.FlightError, pa.ArrowException) as error:
            failure = f"unreachable: {first_line(error)}"
        except CheckpointDamaged as error:
            failure = f"damaged: {error}"
        except FileNotFoundError as error:
            failure = f"a file of the version is gone: {error}"
        except OSError as error:
            failure = f"disk: {error}"
        with self.host.changed:
            if shipped is not self._shipped:
                return "moved"
            if failure is not None:
                self._shipped = Shipped({})
            first = failure is None and not self.held
            self.held = self.held or first
        about = {
            "unit": stage.unit,
            "stage": stage.name,
            "generation": stage.generation,
            "standby": target,
            "since": since,
        }
        if first and target != self.host.name:
            self.host.report("standby-ready", **about)
        if failure is not None and failure.startswith("disk"):
            self.host.report("standby-unusable", cause=failure, **about)
        return failure

    def _send(self, target: str, header: dict[str, Any], body: bytes) -> str | None:
        stage = self.stage
        if self._own is not None:
            self._own.paste(header, body)
            return None
        header = {"unit": stage.unit, "stage": stage.name, "generation": stage.generation, **header}
        reply = self.host.peer(target).call("paste", header, body, category="checkpoint", timeout_s=15)
        return f"disk: {reply.header['text']}" if reply.refused == "disk" else reply.refused


class Keeper(threading.Thread):
    """Drives a stage's protection: captures what it orders and acknowledges upstream."""

    def __init__(self, stage: RunningStage) -> None:
        super().__init__(name=f"keeper {stage.name}", daemon=True)
        self.stage, self.host = stage, stage.host
        topology = stage.host.topology
        role = base.StageRole(stage.name, stage.committed, tuple(stage.inputs), last=topology.is_last(stage.name))
        self.machine = stage.policy.protect([role])
        self.newest: int | None = None
        """The newest checkpoint that is safe."""
        self._shipper = Shipper(stage)
        self._key = ""
        """The present target as the machine knows it. A host that began anew is another one."""
        self._draining = False
        self._effects: list[base.Effect] = []

    def handle(self, event: base.Event) -> None:
        """Call with ``host.changed`` held."""
        self._effects += self.machine.handle(event, time.monotonic())
        self.host.changed.notify_all()

    def set_target(self, target: str, since: int) -> None:
        key = f"{target}#{since}"
        with self.host.changed:
            if key != self._key:
                self._key = key
                self._shipper.aim(target, since)
                self._effects = [e for e in self._effects if not isinstance(e, base.Capture)]
                self.handle(base.StandbysChanged((key,)))

    def clear_target(self) -> None:
        """No standby, and nothing to keep instead."""
        with self.host.changed:
            if self._key:
                self._key = ""
                self._effects = [e for e in self._effects if not isinstance(e, base.Capture)]
            self.handle(base.StandbysChanged(()))

    def drained(self) -> bool:
        """Take the last checkpoint; true once it is safe. Call with ``host.changed`` held."""
        if not self._draining:
            self._draining = True
            self.handle(base.Drain())
        return not self._effects and self.machine.safe()

    def run(self) -> None:
        while True:
            with self.host.changed:
                while not self._effects and not self.stage.stopping:
                    deadline = self.machine.next_deadline()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        self.handle(base.Tick())
                        continue
                    self.host.changed.wait(left)
                if self.stage.stopping:
                    return
                effect = self._effects.pop(0)
            if isinstance(effect, base.AckUpstream):
                for stream in self.stage.inputs if effect.input is None else (effect.input,):
                    acks = self.stage.acks[stream]
                    acks[effect.level] = max(effect.epoch, acks.get(effect.level, -1))
                self.stage.send_acks()
            elif isinstance(effect, base.Capture):
                self._capture(effect)
            elif isinstance(effect, (base.Pause, base.Resume)):
                self._pause(isinstance(effect, base.Pause))

    def _pause(self, pause: bool) -> None:
        """A stage is paused by not granting its next epoch; what it is at, it finishes."""
        stage = self.stage
        with self.host.changed:
            stage.paused = pause
            if pause and stage.granted == stage.committed:
                self.handle(base.Paused(stage.name))
            self.host.changed.notify_all()

    def _capture(self, order: base.Capture) -> None:
        needed = files_of_version(self.stage.state, order.epoch - self.stage.base)
        if order.queue:
            needed |= self.stage.queue_files(order.epoch)
        failure = self._shipper.ship(order.epoch, needed)
        if failure == "fenced":
            self.stage.fence()
        elif failure is None:
            self.newest = order.epoch
            with self.host.changed:
                self.handle(base.Pasted(order.stage, order.standby, order.epoch))
        elif failure != "moved":
            with self.host.changed:
                lost = failure.startswith("disk")
                self.handle(base.CaptureFailed(order.stage, order.standby, lost_standby=lost))
