"""The system of Gu et al. 2009, Section 5: a chain of eight PEs in four subjobs, in virtual time.

Elements travel in small batches, and a batch is what ``core`` calls an epoch: the policies' protections, the output
queues and the failure detector are the very machines that jobs run with. Around them the model has what the paper had
machines for: processing and sending (``gu_pes``), storing a checkpoint (``gu_subjobs``), and here heartbeats and
deploying a secondary. A run is a pure function of its parameters (``gu_params``), of which the seed is one: it picks
the phases of timers and heartbeats.
"""

from __future__ import annotations

import random

from understudy.core import detection
from understudy.lab.gu_params import CHECKPOINTED, Params
from understudy.lab.gu_pes import Consumer, Host, Pe, Producer, Sink, Source
from understudy.lab.gu_subjobs import Checkpoint, Copy, Unit
from understudy.sim.engine import Engine


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
