"""The system of Gu et al. 2009, Section 5: a chain of eight PEs in four subjobs, in virtual time.

Elements travel in small batches, and a batch is what ``core`` calls an epoch: the policies' protections, the output
queues and the failure detector are the very machines that jobs run with. Around them this module models what the paper
had machines for: processing, sending, storing a checkpoint, heartbeats, deploying a secondary. A run is a pure function
of its parameters, of which the seed is one: it picks the phases of timers and heartbeats.

Two *protocols* can be told to the same machines, because the two differ in what a checkpoint is:

- ``paper``: a checkpoint is the newest state and the whole output queue, and its PE is paused meanwhile (Section 3.1).
- ``understudy``: a sweeping checkpoint is taken at the trim point, where the queue is empty; the other two methods ship
  each element of a queue once; and sweeping checkpoints pause nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from understudy.core import detection
from understudy.core.acks import FINAL
from understudy.core.policies import ActiveStandby, NoProtection, PassiveStandby, base, passive
from understudy.core.queue import OutputQueue
from understudy.sim.engine import Engine

Method = Literal["none", "sweeping", "individual", "synchronous", "lazy", "eager"]
Protocol = Literal["paper", "understudy"]
CHECKPOINTED = ("sweeping", "individual", "synchronous")

PACE_S = 0.05
"""Acknowledgements are cumulative, and a PE sends at most one in this time: without a pace, every batch would be
acknowledged where nothing is checkpointed; with one longer than the shortest checkpoint interval, sweeps would wait."""


@dataclass(frozen=True)
class Params:
    """One run. Defaults are Section 5's; what the paper does not print is explained in ``gu.CHOICES``."""

    methods: tuple[Method, ...] = ("sweeping",) * 4
    """Of each subjob, from source to sink."""
    protocol: Protocol = "understudy"
    rate_per_s: int = 3000
    interval_s: float = 0.5
    """Between checkpoints."""
    heartbeat_s: float = 0.1
    misses: int = 3
    fail: int | None = None
    """The subjob whose machine dies, counted from 0."""
    failure_phase: float = 0.5
    """When it dies, as a share of the checkpoint interval since the last PE's checkpoint; a sweep over it in even steps
    gives the mean that random failures only scatter around."""
    warmup_s: float = 5.0
    measure_s: float = 9.0
    seed: int = 1

    pes_per_unit: int = 2
    state_elements: int = 20
    element_bytes: int = 100
    ack_bytes: int = 8
    batch_s: float = 0.004
    element_s: float = 20e-6
    """Processing."""
    send_s: float = 30e-6
    """Sending an element from queue to queue."""
    link_delay_s: float = 0.0001
    call_s: float = 1 / 700
    calls: int = 5
    """Remote calls per checkpoint: pause, paused, checkpoint, store, resume (Section 4.1)."""
    store_s: float = 20e-6
    """Serialising and storing one element of a checkpoint."""
    redeploy_s: float = 0.5

    def __post_init__(self) -> None:
        for name, allowed in (("methods", get_args(Method)), ("protocol", get_args(Protocol))):
            given = getattr(self, name)
            for value in given if isinstance(given, (tuple, list)) else (given,):
                if value not in allowed:
                    raise ValueError(f"{name}={value!r} is none of {', '.join(allowed)}")
        if not self.methods:
            raise ValueError("methods=() must name a method for each subjob")
        positive = ("rate_per_s", "interval_s", "heartbeat_s", "misses", "warmup_s", "measure_s", "pes_per_unit")
        for name in (*positive, "batch_s", "element_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be more than 0")
        times = ("element_s", "send_s", "link_delay_s", "call_s", "store_s", "redeploy_s")
        for name in ("state_elements", "ack_bytes", *times):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must not be negative")
        if max(self.element_s, self.send_s) * self.rate_per_s >= 1:
            raise ValueError(f"rate_per_s={self.rate_per_s} is more than a PE can process or send")
        if self.fail is not None and not 0 <= self.fail < len(self.methods) - 1:
            raise ValueError(f"fail={self.fail} must name a subjob that has another one downstream")
        if not 0 <= self.failure_phase < 1:
            raise ValueError(f"failure_phase={self.failure_phase!r} must be at least 0 and less than 1")

    @property
    def batch(self) -> float:
        """Elements in an epoch."""
        return self.rate_per_s * self.batch_s


# -- the machines --------------------------------------------------------------------------------------------------


class PaperVersions(passive.StageVersions):
    """Section 3.1 to the letter: a sweeping version is the newest state at the time of the trim."""

    def advance(self, *, committed: int | None = None, trimmed: int | None = None, version: bool = True) -> None:
        before, moved = self.due, trimmed is not None and trimmed > self.trimmed
        super().advance(committed=committed, trimmed=trimmed, version=version)
        if self.sweeping:
            self.due = self.committed if self.timed or moved else before


def protect(method: Method, roles: list[base.StageRole], params: Params) -> base.Protection:
    """The machine that protects these PEs."""
    if method == "none":
        return NoProtection().protect(roles)
    if method in ("lazy", "eager"):
        return ActiveStandby(delivery=method).protect(roles)
    machine = PassiveStandby(method, every=params.interval_s).protect(roles)  # type: ignore[arg-type]
    if params.protocol == "paper":
        versions: dict[str, passive.StageVersions]
        versions = {r.name: PaperVersions(r, every_s=params.interval_s, sweeping=method == "sweeping") for r in roles}
        if isinstance(machine, passive.Individual):
            for name, each in machine.each.items():
                each.stages = {name: versions[name]}
        else:
            assert isinstance(machine, (passive.Sweeping, passive.Synchronous))
            machine.stages = versions
    return machine


# -- PEs and the streams between them ------------------------------------------------------------------------------


class Host:
    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True


class Feed:
    """A producer's sending thread towards one copy of a consumer: in order, at its own speed."""

    def __init__(self, producer: Producer, consumer: Consumer, sent: int) -> None:
        self.producer, self.consumer, self.sent = producer, consumer, sent
        self.free_at = 0.0
        self.remote = producer.host is not consumer.host

    def pump(self) -> None:
        """Send everything that is there and was not sent yet."""
        world, queue, n = self.producer.world, self.producer.queue, self.producer.world.batch
        params, engine = world.params, world.engine
        if self.sent + 1 < queue.first:
            raise RuntimeError(f"{self.consumer.name} needs epoch {self.sent + 1} of {self.producer.name}: trimmed")
        while self.sent + 1 < queue.next:
            self.sent += 1
            self.free_at = max(self.free_at, engine.now) + n * params.send_s
            arrival = self.free_at
            if self.remote:
                arrival += params.link_delay_s
                self.producer.unit_bytes["data"] += round(n * params.element_bytes)
            engine.at(arrival, self.consumer.deliver, self.sent)


class Consumer:
    """What takes a stream's epochs in order, each once."""

    def __init__(self, world: World, name: str, host: Host, received: int = -1) -> None:
        self.world, self.name, self.host = world, name, host
        self.received = received
        self.stopped = False
        self.seen: list[tuple[float, int]] | None = None
        """When each epoch arrived for the first time, while somebody watches."""

    def deliver(self, epoch: int) -> None:
        if self.stopped or epoch != self.received + 1:  # an eager producer's other copy was first
            return
        self.received = epoch
        if self.seen is not None:
            self.seen.append((self.world.engine.now, epoch))
        self.took(epoch)

    def took(self, epoch: int) -> None:
        raise NotImplementedError


class Producer:
    """What has an output queue."""

    world: World
    name: str
    host: Host
    queue: OutputQueue
    unit_bytes: Counter[str]

    def __init__(self) -> None:
        self.feeds: list[Feed] = []

    def connect(self, consumer: Consumer) -> None:
        """Send to this copy of the consumer, from where it is."""
        self.feeds = [f for f in self.feeds if not f.consumer.stopped]
        self.feeds.append(Feed(self, consumer, consumer.received))
        self.feeds[-1].pump()

    def pump(self) -> None:
        for feed in self.feeds:
            feed.pump()

    def acked(self, consumer: str, epoch: int) -> None:
        raise NotImplementedError


class Source(Producer):
    """Cuts an epoch every ``batch_s`` and never fails: the paper leaves sources out."""

    def __init__(self, world: World, first_consumer: str) -> None:
        super().__init__()
        self.world, self.name, self.host = world, "source", Host("source")
        self.queue = OutputQueue([first_consumer])
        self.unit_bytes = Counter()
        world.engine.after(world.params.batch_s, self.cut)

    def cut(self) -> None:
        self.queue.append(self.queue.next)
        self.pump()
        self.world.engine.after(self.world.params.batch_s, self.cut)

    def acked(self, consumer: str, epoch: int) -> None:
        self.queue.ack(consumer, epoch)


class Sink(Consumer):
    """Acknowledges on receipt."""

    producer: Pe

    def took(self, epoch: int) -> None:
        if not self.producer.stopped:
            self.producer.acked(self.name, epoch)


class Pe(Consumer, Producer):
    """One copy of a processing element."""

    def __init__(self, copy: Copy, name: str, consumer: str, *, done: int = -1, first: int | None = None) -> None:
        """Its state is at ``done``; it has its output from ``first`` on."""
        Consumer.__init__(self, copy.world, name, copy.host, received=done)
        Producer.__init__(self)
        self.copy, self.done = copy, done
        self.queue = OutputQueue([consumer], start=done + 1, first=first)
        self.unit_bytes = copy.unit.bytes
        self.busy = self.paused = False
        self.acks = -1
        """What was acknowledged upstream."""
        self._ack_at = float("-inf")
        self._ack_planned = False
        self.shipped = -1
        """The newest epoch of its output that the standby was sent."""

    def took(self, epoch: int) -> None:
        self.try_run()

    def try_run(self) -> None:
        if self.busy or self.paused or self.stopped or self.received == self.done:
            return
        self.busy = True
        world = self.world
        world.engine.after(world.batch * world.params.element_s, self.finish)

    def finish(self) -> None:
        if self.stopped:
            return
        self.busy = False
        self.done += 1
        self.queue.append(self.done)
        self.pump()
        self.copy.processed(self)
        if self.paused:
            self.copy.paused(self)
        else:
            self.try_run()

    # -- acknowledgements

    def acknowledge(self, epoch: int) -> None:
        """Tell the producer, now or when the last time is ``PACE_S`` ago."""
        self.acks = max(self.acks, epoch)
        if not self._ack_planned:
            self._ack_planned = True
            self.world.engine.at(self._ack_at + PACE_S, self._send_ack)

    def _send_ack(self) -> None:
        self._ack_planned = False
        if self.stopped:
            return
        self._ack_at = self.world.engine.now
        for producer in self.world.producers_of(self.copy, self.name):
            delay = 0.0
            if producer.host is not self.host:
                delay = self.world.params.link_delay_s
                self.unit_bytes["ack"] += self.world.params.ack_bytes
            self.world.engine.after(delay, producer.acked, self.name, self.acks)

    def acked(self, consumer: str, epoch: int) -> None:
        if self.stopped:
            return
        trimmed = self.queue.ack(consumer, epoch)
        if trimmed is not None and self.copy.primary:
            self.copy.note(base.Acked(self.name, FINAL, trimmed))


# -- subjobs -------------------------------------------------------------------------------------------------------


class Copy:
    """A subjob on one host: the primary with its protection, or an active standby that runs beside it."""

    def __init__(self, unit: Unit, host: Host, *, primary: bool) -> None:
        self.unit, self.world, self.host, self.primary = unit, unit.world, host, primary
        self.pes: dict[str, Pe] = {}
        self.machines: dict[str, base.Protection] = {}
        """PE -> what protects it; all the same one when checkpoints are synchronous."""
        self._group: dict[str, tuple[str, ...]] = {}
        """PE -> those that are checkpointed together with it."""
        self._rounds: dict[tuple[str, ...], tuple[float, float]] = {}
        """Those that were told to pause for a checkpoint -> since when, and its elements so far."""

    def stop(self) -> None:
        for pe in self.pes.values():
            pe.stopped = True

    def protect(self, standbys: Callable[[str], tuple[tuple[str, ...], float]]) -> None:
        """``standbys`` tells each PE's, and when its timer begins."""
        last = self.world.last_pe
        roles = [base.StageRole(pe.name, pe.done, last=pe.name == last) for pe in self.pes.values()]
        groups = [roles] if self.unit.method == "synchronous" else [[role] for role in roles]
        for group in groups:
            machine = protect(self.unit.method, group, self.world.params)
            for role in group:
                self.machines[role.name] = machine
                self._group[role.name] = tuple(each.name for each in group)
            names, begin_s = standbys(group[0].name)
            if names:
                self.world.engine.after(begin_s, self._told, group[0].name, base.StandbysChanged(names))

    def _told(self, pe: str, event: base.Event) -> None:
        """Somebody tells the protection of ``pe``, or time does."""
        if self.host.alive and pe in self.machines:
            self._carry_out(self.machines[pe].handle(event, self.world.engine.now))
            self._plan_tick(pe)

    def note(self, event: Any) -> None:
        self._told(event.stage, event)

    def _plan_tick(self, pe: str) -> None:
        deadline = self.machines[pe].next_deadline()
        timers = self.unit.timers
        if deadline is not None and timers.get(pe, float("inf")) > max(deadline, self.world.engine.now):
            timers[pe] = max(deadline, self.world.engine.now)
            self.world.engine.at(deadline, self._tick, pe, timers[pe])

    def _tick(self, pe: str, planned: float) -> None:
        if self.unit.timers.get(pe) == planned:
            del self.unit.timers[pe]
            self._told(pe, base.Tick())

    def processed(self, pe: Pe) -> None:
        if self.primary:
            self.note(base.Committed(pe.name, pe.done))
        elif pe.done % self.world.report_every == 0:
            self.unit.bytes["ack"] += self.world.params.ack_bytes
            event = base.Pasted(pe.name, self.host.name, pe.done)
            self.world.engine.after(self.world.params.link_delay_s, self.unit.primary.note, event)

    def paused(self, pe: Pe) -> None:
        """The PE was called to suspend itself, has done so, and says so with another call."""
        if self._group.get(pe.name) in self._rounds:
            self.world.engine.after(2 * self.world.params.call_s, self.note, base.Paused(pe.name))

    # -- orders

    def _carry_out(self, effects: Iterable[base.Effect]) -> None:
        for effect in effects:
            pe = self.pes[effect.stage]
            if isinstance(effect, base.AckUpstream):
                pe.acknowledge(effect.epoch)
            elif isinstance(effect, base.Capture):
                self._capture(pe, effect)
            elif isinstance(effect, base.TrimStandby):
                copy = self.unit.copies.get(effect.standby)
                if copy is not None:
                    self.unit.bytes["ack"] += self.world.params.ack_bytes
                    for consumer in copy.pes[pe.name].queue.progress:
                        copy.pes[pe.name].acked(consumer, effect.epoch)
            elif isinstance(effect, base.Pause):
                self._rounds.setdefault(self._group[pe.name], (self.world.engine.now, 0.0))
                pe.paused = True
                if not pe.busy:
                    self.paused(pe)
            else:
                if (pes := self._group[pe.name]) in self._rounds:
                    begin, elements = self._rounds.pop(pes)
                    self.world.checkpoints.append(Checkpoint(pes, begin, self.world.engine.now, elements))
                pe.paused = False
                pe.try_run()

    def _capture(self, pe: Pe, order: base.Capture) -> None:
        world, params, now = self.world, self.world.params, self.world.engine.now
        if self.unit.method in ("lazy", "eager"):  # both copies began together: there is nothing to give
            world.engine.after(0.0, self.note, base.Pasted(pe.name, order.standby, order.epoch))
            return
        whole = params.protocol == "paper"
        first = min(pe.queue.first, order.epoch + 1) if order.queue or whole else order.epoch + 1
        begin = first if whole else max(first, pe.shipped + 1)
        pe.shipped = max(pe.shipped, order.epoch)
        elements = params.state_elements + max(0, order.epoch + 1 - begin) * world.batch
        group = self._group[pe.name]
        begun = self._rounds.get(group)
        if begun is None:
            calls = params.calls
            pe.paused = pe.paused or whole
        else:
            calls = params.calls - 2  # pause and paused were made before
            self._rounds[group] = (begun[0], begun[1] + elements)
        stored = now + calls * params.call_s + elements * params.store_s + params.link_delay_s
        self.unit.bytes["checkpoint"] += round(elements * params.element_bytes)
        world.engine.at(stored, self._stored, pe, order, first, now, elements)

    def _stored(self, pe: Pe, order: base.Capture, first: int, begin: float, elements: float) -> None:
        if not self.host.alive:
            return
        self.unit.stored[pe.name] = (order.epoch, first)
        if self._group[pe.name] not in self._rounds:
            self.world.checkpoints.append(Checkpoint((pe.name,), begin, self.world.engine.now, elements))
            pe.paused = False
            pe.try_run()
        self.note(base.Pasted(pe.name, order.standby, order.epoch))


class Unit:
    """A subjob: who runs it, and what its standby has."""

    def __init__(self, world: World, number: int, method: Method, pes: list[str]) -> None:
        self.world, self.name, self.method, self.pes = world, f"subjob {number + 1}", method, pes
        self.bytes: Counter[str] = Counter()
        """What all its copies sent to other hosts."""
        self.timers: dict[str, float] = {}
        self.stored: dict[str, tuple[int, int]] = {}
        """PE -> the epoch of its newest checkpoint, and the first epoch of the output queue in it."""
        self.copies: dict[str, Copy] = {}
        self.primary = self.deploy(f"machine {number + 1}", primary=True)
        if method in ("lazy", "eager"):
            self.deploy(f"standby {number + 1}", primary=False)

    def deploy(self, host: str, *, primary: bool) -> Copy:
        copy = self.copies[host] = Copy(self, Host(host), primary=primary)
        for name in self.pes:
            done, first = self.stored.get(name, (-1, None))
            copy.pes[name] = Pe(copy, name, self.world.consumer_of[name], done=done, first=first)
        return copy

    def running(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.host.alive]

    def senders(self) -> list[Copy]:
        """Copies that send downstream: under lazy delivery, the primary only."""
        return [c for c in self.running() if c.primary or self.method == "eager"]


# -- the whole -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint: of a PE, or of a whole subjob when synchronous."""

    pes: tuple[str, ...]
    begin: float
    end: float
    elements: float


class World:
    def __init__(self, params: Params) -> None:
        self.params, self.engine = params, Engine()
        self.rng = random.Random(params.seed)
        self.batch = params.batch
        self.report_every = max(1, round(0.1 / params.batch_s))
        """An active standby tells how far it is ten times a second."""
        names = [f"pe{i + 1}" for i in range(len(params.methods) * params.pes_per_unit)]
        self.last_pe = names[-1]
        self.consumer_of = dict(zip(names, [*names[1:], "sink"], strict=True))
        self.checkpoints: list[Checkpoint] = []
        each = params.pes_per_unit
        self.units = [Unit(self, i, m, names[i * each : (i + 1) * each]) for i, m in enumerate(params.methods)]
        self.unit_of = {name: unit for unit in self.units for name in unit.pes}
        self.source = Source(self, names[0])
        self.sink = Sink(self, "sink", Host("application"))
        self.failed_at = self.detected_at = self.resumed_at = 0.0
        for unit in self.units:
            for copy in unit.running():
                for pe in copy.pes.values():
                    self._connect_downstream(copy, pe)
        for consumer in self._copies_of(names[0]):
            self.source.connect(consumer)
        for unit in self.units:
            copies = tuple(name for name, copy in unit.copies.items() if not copy.primary)
            standbys = ("standby",) if unit.method in CHECKPOINTED else copies
            unit.primary.protect(lambda pe, s=standbys: (s, self.rng.random() * params.interval_s))  # type: ignore[misc]

    def _copies_of(self, name: str) -> list[Consumer]:
        if name == "sink":
            return [self.sink]
        return [copy.pes[name] for copy in self.unit_of[name].running()]

    def _connect_downstream(self, copy: Copy, pe: Pe) -> None:
        name = self.consumer_of[pe.name]
        if name in copy.pes:
            pe.connect(copy.pes[name])
        elif copy in copy.unit.senders():
            for consumer in self._copies_of(name):
                pe.connect(consumer)
            if name == "sink":
                self.sink.producer = pe

    def producers_of(self, copy: Copy, name: str) -> list[Producer]:
        """Who is sent the acknowledgements of a PE: the copies that it is fed by."""
        before = next((p for p, consumer in self.consumer_of.items() if consumer == name), None)
        if before is None:
            return [self.source]
        if before in copy.pes:
            return [copy.pes[before]]
        return [sender.pes[before] for sender in self.unit_of[before].senders()]

    # -- failure

    def watch(self, number: int) -> None:
        """Heartbeats of a subjob's machine to its monitor."""
        params = self.params
        self.detector = detection.Detector(interval_s=params.heartbeat_s, misses=params.misses)
        host = self.units[number].primary.host
        self.detector.handle(detection.Connected(host.name), self.engine.now)
        self.engine.after(self.rng.random() * params.heartbeat_s, self._beat, number, host)

    def _beat(self, number: int, host: Host) -> None:
        if not host.alive:
            return
        self.detector.handle(detection.Beat(host.name), self.engine.now)
        self.engine.after(self.params.heartbeat_s, self._beat, number, host)
        deadline = self.detector.next_deadline()
        if deadline is not None:
            self.engine.at(deadline, self._tick, number)

    def _tick(self, number: int) -> None:
        for effect in self.detector.handle(detection.Tick(), self.engine.now):
            if isinstance(effect, detection.Failed):
                self.detected_at = self.engine.now
                active = self.units[number].method in ("lazy", "eager")
                self.engine.after(0.0 if active else self.params.redeploy_s, self._take_over, number)
        deadline = self.detector.next_deadline()
        if deadline is not None:
            self.engine.at(deadline, self._tick, number)

    def fail(self, number: int) -> None:
        self.failed_at = self.engine.now
        copy = self.units[number].primary
        copy.host.alive = False
        copy.stop()

    def _take_over(self, number: int) -> None:
        """The standby goes on: with what runs already, or restored from the last checkpoints (Section 4.2)."""
        unit = self.units[number]
        self.resumed_at = self.engine.now
        unit.timers.clear()
        running = unit.running()
        copy = unit.primary = running[0] if running else unit.deploy("standby", primary=True)
        copy.primary = True
        for pe in copy.pes.values():
            if not running:
                consumer = self._copies_of(self.consumer_of[pe.name])[0]
                if isinstance(consumer, Pe):
                    pe.queue.ack(consumer.name, consumer.acks)
            if not running or unit.method == "lazy":
                self._connect_downstream(copy, pe)
        if not running:
            for producer in self.producers_of(copy, unit.pes[0]):
                producer.connect(copy.pes[unit.pes[0]])
        copy.protect(lambda pe: ((), 0.0))
