"""Positions of one output queue: what was produced, what each consumer took and acknowledged, what may go.

The queue holds epoch numbers only; the driver keeps the payloads and drops those the queue has trimmed.
Consumers pull: a request for epoch *e* says that everything before *e* has arrived, so an epoch can neither be
delivered twice nor out of order. Acks say that the consumer will never ask for an epoch again, whatever single
thing fails (Gu et al. 2009, Section 3.1: received, processed and checkpointed).

Invariant: ``trimmed == min(acked) <= min(received)`` and ``first <= next``. After a takeover consumers may have
acknowledged epochs that are only being produced again, so ``trimmed`` may lie beyond ``next``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Progress:
    """How far one consumer is."""

    received: int
    acked: int


class OutputQueue:
    """Call ``append`` once per epoch in order, ``request`` when a consumer asks, ``ack`` when it acknowledges."""

    def __init__(self, consumers: Iterable[str], *, start: int = 0) -> None:
        self.next = start
        """The number that the next appended epoch must have."""
        self.first = start
        """The oldest epoch this queue can serve. Below it lie epochs that were trimmed, or that a predecessor
        without protection took with it."""
        self.progress = {name: Progress(received=start - 1, acked=start - 1) for name in consumers}

    def append(self, epoch: int) -> bool:
        """Note that ``epoch`` was produced. True when somebody may still want it; False when every consumer has
        acknowledged it already (it was regenerated after a takeover) and it need not be kept."""
        if epoch != self.next:
            raise ValueError(f"epoch {epoch} appended where {self.next} was due")
        self.next = epoch + 1
        if epoch <= self.trimmed:
            self.first = epoch + 1
            return False
        return True

    def request(self, consumer: str, epoch: int) -> bool:
        """A consumer wants ``epoch`` and has everything before it. True when it can be served now."""
        progress = self.progress[consumer]
        progress.received = max(progress.received, epoch - 1)
        return epoch < self.next

    def ack(self, consumer: str, epoch: int) -> int | None:
        """A consumer will never need epochs up to ``epoch`` again. Returns the new trim point when it moved."""
        before = self.trimmed
        progress = self.progress[consumer]
        progress.acked = max(progress.acked, epoch)
        progress.received = max(progress.received, epoch)
        after = self.trimmed
        if after == before:
            return None
        self.first = max(self.first, min(after + 1, self.next))
        return after

    @property
    def trimmed(self) -> int:
        """The newest epoch that nobody needs any more. A stream without consumers needs nothing kept."""
        return min((p.acked for p in self.progress.values()), default=self.next - 1)

    @property
    def ahead(self) -> int:
        """Epochs produced that the slowest consumer has not taken yet: the measure of back-pressure."""
        return self.next - 1 - min((p.received for p in self.progress.values()), default=self.next - 1)
