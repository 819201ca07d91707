"""When a stage is checkpointed and what it may then acknowledge upstream.

Sweeping checkpoints (Gu et al. 2009, Section 3.1): the last stage by a timer, every other stage as soon as its
output queue was trimmed. Because a stage turns epoch *e* into epoch *e*, a checkpoint can be taken *at the trim
point itself*: the state after the newest epoch that all consumers have acknowledged. Such a checkpoint needs no
output queue at all, and a sweep carries one epoch number from sink to source.

The driver may lose any one stored version to a damaged disk, so a stage acknowledges upstream only what the
*older* of the last two pasted versions covers: whichever of the two is restored, its input is still there.

Events are facts: Committed (Spark committed an epoch), Trimmed (all consumers acknowledged), Received (an input
epoch arrived), Pasted (the standby has a version safely on disk), StandbyChanged, Tick. Effects are orders:
Capture (take and ship a checkpoint), AckUpstream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Committed:
    epoch: int


@dataclass(frozen=True)
class Trimmed:
    epoch: int


@dataclass(frozen=True)
class Received:
    """Every input has delivered ``epoch``."""

    epoch: int


@dataclass(frozen=True)
class Pasted:
    epoch: int


@dataclass(frozen=True)
class CaptureFailed:
    """The capture or its transport failed; ``lost_standby`` when the standby itself is unusable."""

    lost_standby: bool


@dataclass(frozen=True)
class StandbyChanged:
    """A standby is there (it holds nothing yet), or none is."""

    present: bool


@dataclass(frozen=True)
class Tick:
    pass


@dataclass(frozen=True)
class Drain:
    """The job is stopping: checkpoint whatever is left without waiting for the timer."""


Event = Committed | Trimmed | Received | Pasted | CaptureFailed | StandbyChanged | Tick | Drain


@dataclass(frozen=True)
class Capture:
    epoch: int


@dataclass(frozen=True)
class AckUpstream:
    epoch: int


Effect = Capture | AckUpstream


class Checkpointing(Protocol):
    """What a policy does for one running stage. Adding a policy means adding one such class."""

    def handle(self, event: Event, now: float) -> list[Effect]: ...

    def next_deadline(self) -> float | None: ...


class Unprotected:
    """Policy *none*: acknowledge on receipt, keep nothing."""

    def __init__(self, *, start: int) -> None:
        self.acked = start

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Received) and event.epoch > self.acked:
            self.acked = event.epoch
            return [AckUpstream(event.epoch)]
        return []

    def next_deadline(self) -> float | None:
        return None


class Sweeping:
    """Passive standby with sweeping checkpoints. ``start`` is the epoch the stage's state is at.

    Invariant: ``acked <= pasted <= captured <= min(committed, trimmed)``.
    """

    RETRY_S = 1.0
    """Pause after a failed capture. Shorter hammers a full disk; longer leaves the unit unprotected longer."""

    def __init__(self, *, start: int, every_s: float, last: bool) -> None:
        self.every_s = every_s
        self.last = last
        self.committed = start
        self.trimmed = start
        self.captured = start
        self.pasted = start
        self.acked = start
        self.standby = False
        self.holding = False
        """The present standby has at least one whole version."""
        self.in_flight = False
        self.draining = False
        self._timer_at: float | None = None
        self._retry_at: float | None = None

    @property
    def due(self) -> int:
        """The newest version that could be captured."""
        return min(self.committed, self.trimmed)

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Committed):
            self.committed = max(self.committed, event.epoch)
        elif isinstance(event, Trimmed):
            self.trimmed = max(self.trimmed, event.epoch)
        elif isinstance(event, StandbyChanged):
            self.standby = event.present
            self.holding = False
            self.in_flight = False
            self.captured = min(self.captured, self.pasted)
            self._timer_at = self._retry_at = None
        elif isinstance(event, Pasted):
            self.in_flight = False
            self.holding = True
            older, self.pasted = self.pasted, max(self.pasted, event.epoch)
            if older > self.acked:
                self.acked = older
                effects.append(AckUpstream(older))
        elif isinstance(event, CaptureFailed):
            self.in_flight = False
            self.captured = self.pasted
            if event.lost_standby:
                self.standby = self.holding = False
            self._timer_at, self._retry_at = None, now + self.RETRY_S
        elif isinstance(event, Drain):
            self.draining = True
        return effects + self._unprotected_ack() + self._capture(now)

    def _unprotected_ack(self) -> list[Effect]:
        """Without a standby nothing can be kept safe; going on unprotected beats filling every queue upstream."""
        if self.standby or self.due <= self.acked:
            return []
        self.acked = self.pasted = self.captured = self.due
        return [AckUpstream(self.due)]

    def _capture(self, now: float) -> list[Effect]:
        if not self._has_work():
            return []
        wait_until = self._wait_until()
        if wait_until is not None and now < wait_until:
            return []
        self.captured = self.due
        self.in_flight = True
        self._retry_at = None
        self._timer_at = now + self.every_s if self.last else None
        return [Capture(self.due)]

    def _has_work(self) -> bool:
        """A version could be captured that the standby lacks, or it has none at all."""
        return self.standby and not self.in_flight and (self.due > self.captured or not self.holding)

    def _wait_until(self) -> float | None:
        """The timer paces the last stage, except that a drain or an empty standby does not wait for it; after a
        failure everybody waits."""
        timer_at = None if self.draining or not self.holding else self._timer_at
        return max((t for t in (timer_at, self._retry_at) if t is not None), default=None)

    def next_deadline(self) -> float | None:
        return self._wait_until() if self._has_work() else None
