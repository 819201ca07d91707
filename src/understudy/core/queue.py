"""Positions of one output queue: what was produced, what each consumer took and acknowledged, what may go.

The queue holds epoch numbers only; the driver keeps the payloads and drops those the queue has trimmed.
Consumers pull: a request for epoch *e* says that everything before *e* has arrived (a level-0 acknowledgement), so an
epoch can neither be delivered twice nor out of order. A final ack says that the consumer will never ask for an epoch
again, whatever fails that it is protected against (Gu et al. 2009, Section 3.1: received, processed and checkpointed).

Invariant: ``trimmed == min(acked) <= min(received)`` and ``first <= next``. After a takeover consumers may have
acknowledged epochs that are only being produced again, so ``trimmed`` may lie beyond ``next``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from understudy.core.acks import FINAL
from understudy.core.numbers import FIRST_EPOCH, FIRST_GENERATION, NO_EPOCH, Epoch, Generation, after, before

AHEAD_MAX = 2
"""Epochs a stage may be ahead of its slowest consumer. One would make producer and consumer take turns; many would let
an outage pile up small epochs that are slow to catch up with. A source cuts an epoch in no time, so it is never ahead:
rows that wait for the next epoch wait no longer than they must."""
READ_AHEAD = 1
"""Epochs that a consumer takes ahead of the one that it is at. None would make it wait for the way; more would be older
than they need be when it comes to them."""
LEAD = 8
"""Epochs by which a copy of a consumer may be ahead of its primary, as far as back-pressure goes, unless ``lead_for``
knows better. Fewer, and a primary that hangs would hold up its copies before it is found out; more, and one that is
always a little slower would in the long run be that far behind."""
LEAD_SPARE = 4
"""Beyond what detection takes: what was ahead before, and the takeover."""


def lead_for(detection_s: float, epoch_s: float) -> int:
    """The lead that a primary which hangs must leave to its copies until it is found out."""
    return math.ceil(detection_s / epoch_s) + LEAD_SPARE


def has_room(ahead: int, *, draining: bool) -> bool:
    """Whether a stage that is so many epochs ahead of its slowest consumer may make one more. While the job is being
    stopped it may in any case: its consumer may have come to its own end, which another of its inputs has set, and will
    never ask again. There are no more epochs to come than there are."""
    return draining or ahead < AHEAD_MAX


@dataclass(slots=True)
class Progress:
    """How far one consumer is."""

    received: Epoch
    acked: Epoch
    levels: dict[int, Epoch] = field(default_factory=dict)
    """What it acknowledged at levels below the final one."""
    near: bool = False
    """That it has an epoch keeps nothing safe, only what it passes on does: it shares the producer's fate, or has
    copies that may lag behind."""
    generation: Generation = FIRST_GENERATION
    """The newest generation of the consumer that has spoken. Where it begins depends on what the queue held then, so
    nothing that an older one still says may change that."""
    _given: Epoch = NO_EPOCH
    _copies: Epoch = NO_EPOCH

    def taken(self, lead: int) -> int:
        """What it has of the stream as far as back-pressure goes: also what its copies have, up to ``lead`` more."""
        return max(self.received, min(self._copies, self.received + lead))

    @property
    def given(self) -> Epoch:
        """The newest epoch that any generation of it was given."""
        return max(self._given, self.received)

    def at(self, level: int) -> Epoch:
        """What it has acknowledged at ``level``. A consumer that does not speak a level needs all that it has not
        finally acknowledged."""
        if level == FINAL:
            return self.acked
        known = self.levels.get(level)
        if known is None and level == 0 and not self.near:
            known = self.received
        return self.acked if known is None or known < self.acked else known


class OutputQueue:
    """Call ``append`` once per epoch in order, ``request`` when a consumer asks, ``ack`` when it acknowledges."""

    __slots__ = ("_lead", "_lost", "_owed", "_trimmed", "first", "next", "progress")

    def __init__(
        self,
        consumers: Iterable[str],
        *,
        start: Epoch = FIRST_EPOCH,
        first: Epoch | None = None,
        rebuilt: bool = False,
        lead: int = LEAD,
    ) -> None:
        """``start`` is the epoch that is appended next; ``first`` the oldest that is there already, if any is.
        ``rebuilt``: what was before that is gone, whether anybody needed it or not. ``lead``: see ``lead_for``."""
        self._lead = lead
        self.next = start
        """The number that the next appended epoch must have."""
        self.first = start if first is None else first
        """The oldest epoch this queue can serve. Below it lie epochs that were trimmed, or that a predecessor
        without protection took with it."""
        self._trimmed = before(self.first)
        self.progress = {name: Progress(received=self._trimmed, acked=self._trimmed) for name in consumers}
        self._lost = self._trimmed if rebuilt else NO_EPOCH
        self._owed = set(self.progress) if self._lost >= 0 else set()

    def append(self, epoch: Epoch) -> bool:
        """Note that ``epoch`` was produced. True when somebody may still want it; False when every consumer has
        acknowledged it already (it was regenerated after a takeover) and it need not be kept."""
        if epoch != self.next:
            raise ValueError(f"epoch {epoch} appended where {self.next} was due")
        self.next = epoch + 1  # type: ignore[assignment]  # no call: it is asked often
        if epoch <= self._trimmed or not self.progress:
            self.first = self.next
            return False
        return True

    def hears(self, consumer: str, generation: Generation, *, near: bool) -> bool:
        """Somebody speaks for ``consumer``, which may share the producer's fate. False when a newer generation of it
        has spoken before: then nothing of what this one says counts."""
        progress = self.progress[consumer]
        if generation < progress.generation:
            return False
        if generation > progress.generation:
            # What its predecessor had, and passed on, is gone with it.
            progress._given = progress.given
            progress.generation, progress.received, progress.levels = generation, progress.acked, {}
            progress._copies = NO_EPOCH
        progress.near = near
        return True

    def request(self, consumer: str, epoch: Epoch) -> bool:
        """A consumer wants ``epoch`` and has everything before it. True when it can be served now."""
        progress = self.progress[consumer]
        if epoch - 1 > progress.received:
            progress.received = epoch - 1  # type: ignore[assignment]
        return epoch < self.next

    def ask(self, consumer: str, epoch: Epoch) -> bool:
        """A copy of a consumer wants ``epoch``, and what it makes of it is as good as what the primary makes. True when
        it can be served now."""
        progress = self.progress[consumer]
        if epoch - 1 > progress._copies:
            progress._copies = before(epoch)
        return epoch < self.next

    def ack(self, consumer: str, epoch: Epoch, level: int = FINAL) -> Epoch | None:
        """A consumer acknowledges ``epoch``; finally, that is, unless another level is given. Returns the new trim
        point when it moved."""
        progress = self.progress[consumer]
        if level != FINAL:
            progress.levels[level] = max(progress.levels.get(level, NO_EPOCH), epoch)
            return None
        if epoch >= self._lost:
            self._owed.discard(consumer)
        if epoch <= progress.acked:
            return None
        progress.acked = epoch
        if epoch > progress.received:
            progress.received = epoch
        trimmed = epoch
        for other in self.progress.values():
            if other.acked < trimmed:
                trimmed = other.acked
        if trimmed == self._trimmed:
            return None
        self._trimmed = trimmed
        self.first = max(self.first, min(after(trimmed), self.next))
        return trimmed

    def owes(self, consumer: str) -> bool:
        """Whether the consumer may need what is gone, should it have to be rebuilt. It alone knows, and tells by what
        it acknowledges while it lives."""
        return consumer in self._owed

    def bound(self, level: int) -> Epoch:
        """The newest epoch that every consumer has acknowledged at ``level``."""
        lowest: Epoch | None = None
        for progress in self.progress.values():
            known = progress.at(level)
            if lowest is None or known < lowest:
                lowest = known
        return before(self.next) if lowest is None else lowest

    @property
    def trimmed(self) -> Epoch:
        """The newest epoch that nobody needs any more. A stream without consumers needs nothing kept."""
        return self._trimmed if self.progress else before(self.next)

    @property
    def ahead(self) -> int:
        """Epochs produced that the slowest consumer has not taken yet: the measure of back-pressure."""
        slowest = self.next - 1
        for progress in self.progress.values():
            taken = progress.taken(self._lead)
            if taken < slowest:
                slowest = taken
        return self.next - 1 - slowest
