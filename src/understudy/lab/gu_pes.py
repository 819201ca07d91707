"""The PEs of Gu et al. 2009, the streams between them and the hosts that they are on.

None of this knows how it is protected: what a PE did is told to the copy of the subjob that it belongs to
(``gu_subjobs``), which says when to pause and what to acknowledge.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from understudy.core.acks import FINAL
from understudy.core.numbers import NO_EPOCH, Epoch, after
from understudy.core.policies import base
from understudy.core.queue import OutputQueue

if TYPE_CHECKING:
    from understudy.lab.gu_model import World
    from understudy.lab.gu_subjobs import Copy

PACE_S = 0.05
"""Acknowledgements are cumulative, and a PE sends at most one in this time: without a pace, every batch would be
acknowledged where nothing is checkpointed; with one longer than the shortest checkpoint interval, sweeps would wait."""


class Host:
    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True


class Feed:
    """A producer's sending thread towards one copy of a consumer: in order, at its own speed."""

    def __init__(self, producer: Producer, consumer: Consumer, sent: Epoch) -> None:
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
            self.sent = after(self.sent)
            self.free_at = max(self.free_at, engine.now) + n * params.send_s
            arrival = self.free_at
            if self.remote:
                arrival += params.link_delay_s
                self.producer.unit_bytes["data"] += round(n * params.element_bytes)
            engine.at(arrival, self.consumer.deliver, self.sent)


class Consumer:
    """What takes a stream's epochs in order, each once."""

    def __init__(self, world: World, name: str, host: Host, received: Epoch = NO_EPOCH) -> None:
        self.world, self.name, self.host = world, name, host
        self.received = received
        self.stopped = False
        self.seen: list[tuple[float, int]] | None = None
        """When each epoch arrived for the first time, while somebody watches."""

    def deliver(self, epoch: Epoch) -> None:
        if self.stopped or epoch != self.received + 1:  # an eager producer's other copy was first
            return
        self.received = epoch
        if self.seen is not None:
            self.seen.append((self.world.engine.now, epoch))
        self.took(epoch)

    def took(self, epoch: Epoch) -> None:
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

    def acked(self, consumer: str, epoch: Epoch) -> None:
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

    def acked(self, consumer: str, epoch: Epoch) -> None:
        self.queue.ack(consumer, epoch)


class Sink(Consumer):
    """Acknowledges on receipt."""

    producer: Pe

    def took(self, epoch: Epoch) -> None:
        if not self.producer.stopped:
            self.producer.acked(self.name, epoch)


class Pe(Consumer, Producer):
    """One copy of a processing element."""

    def __init__(
        self, copy: Copy, name: str, consumer: str, *, done: Epoch = NO_EPOCH, first: Epoch | None = None
    ) -> None:
        """Its state is at ``done``; it has its output from ``first`` on."""
        Consumer.__init__(self, copy.world, name, copy.host, received=done)
        Producer.__init__(self)
        self.copy, self.done = copy, done
        self.queue = OutputQueue([consumer], start=after(done), first=first)
        self.unit_bytes = copy.unit.bytes
        self.busy = self.paused = False
        self.acks = NO_EPOCH
        """What was acknowledged upstream."""
        self._ack_at = float("-inf")
        self._ack_planned = False
        self.shipped = NO_EPOCH
        """The newest epoch of its output that the standby was sent."""

    def took(self, epoch: Epoch) -> None:
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
        self.done = after(self.done)
        self.queue.append(self.done)
        self.pump()
        self.copy.processed(self)
        if self.paused:
            self.copy.paused(self)
        else:
            self.try_run()

    # -- acknowledgements

    def acknowledge(self, epoch: Epoch) -> None:
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

    def acked(self, consumer: str, epoch: Epoch) -> None:
        if self.stopped:
            return
        trimmed = self.queue.ack(consumer, epoch)
        if trimmed is not None and self.copy.primary:
            self.copy.note(base.Acked(self.name, FINAL, trimmed))
