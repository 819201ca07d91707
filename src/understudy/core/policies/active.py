"""Active standby: every standby runs the unit too.

A standby gets the primary's state once, with its output queue, and from then on takes the same input and processes it
without sending (Hwang et al. 2003, Section 4.3). The primary acknowledges upstream what every copy has processed, and
passes on what consumers acknowledged, so that the copies' queues stay as short as its own. Because two copies see the
same epochs, the paper's mapping of trim messages through indicators is the identity here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from understudy.core.acks import FINAL
from understudy.core.numbers import Epoch
from understudy.core.policies.base import (
    Acked,
    AckUpstream,
    Capture,
    CaptureFailed,
    Committed,
    Effect,
    Event,
    Pasted,
    Policy,
    Recovery,
    StageRole,
    StandbysChanged,
    TrimStandby,
    Want,
    positive,
)
from understudy.core.policies.passive import RETRY_S, sooner
from understudy.core.profile import ACK_BYTES, DELIVER_S, PROMOTE_S, Profile, size

Delivery = Literal["lazy", "eager"]


@dataclass(frozen=True)
class ActiveStandby(Policy):
    """A second host runs the same unit on the same input; a crash costs its detection, or with ``delivery="eager"``,
    where consumers take whichever copy is first, nothing at all. Costs the processing and the input once more for every
    further copy; ``copies`` counts the primary too."""

    kind: ClassVar[str] = "active standby"
    copies: int = 2
    delivery: Delivery = "lazy"

    def __post_init__(self) -> None:
        positive("copies", self.copies)
        if self.copies < 2:
            raise ValueError(f"copies={self.copies}: a standby needs at least 2; use us.none for a single one")
        if self.delivery not in get_args(Delivery):
            known = ", ".join(repr(d) for d in get_args(Delivery))
            raise ValueError(f"delivery={self.delivery!r} is not known; use one of {known}")

    @property
    def recovery(self) -> Recovery:
        return "standby"

    @property
    def backups(self) -> int:
        return self.copies - 1

    @property
    def standby_runs(self) -> bool:
        return True

    @property
    def eager(self) -> bool:
        return self.delivery == "eager"

    def describe(self) -> str:
        several = f", {self.copies} copies" if self.copies > 2 else ""
        return f"{self.kind}{', eager' if self.eager else ''}{several}"

    def with_backups(self, backups: int) -> ActiveStandby:
        return replace(self, copies=backups + 1)

    def protect(self, stages: Iterable[StageRole]) -> Active:
        return Active(stages)

    # -- what to expect -----------------------------------------------------------------------------------------------

    def silence_s(self, profile: Profile, *, reach_s: float, share: float) -> float:
        return DELIVER_S if self._delivers_twice(profile) else profile.detection_s + PROMOTE_S + DELIVER_S

    def spent(self, profile: Profile) -> tuple[float, float]:
        copied = profile.bytes_per_s + (2 * profile.output_bytes_per_s if self._delivers_twice(profile) else 0.0)
        sent_per_s = copied + 2 * ACK_BYTES / profile.step_s
        return self.backups * sent_per_s, self.backups * profile.batch_s / profile.step_s

    def _delivers_twice(self, profile: Profile) -> bool:
        """Sinks are written by the primary alone, so eager delivery needs other units to deliver to."""
        return self.eager and profile.heard_every_s is not None

    def kept(self, profile: Profile, inputs: Sequence[str], *, reach_s: float) -> str:
        several = f"{self.backups} running copies" if self.backups > 1 else "a running copy"
        return f"{several} with its state, {size(profile.state_bytes)}"


@dataclass(slots=True)
class _Copy:
    """Where one standby's copy of a stage is. None: it has not been given the state yet."""

    position: Epoch | None = None
    in_flight: bool = False
    retry_at: float | None = None


class _Stage:
    def __init__(self, role: StageRole) -> None:
        self.name = role.name
        self.committed = self.trimmed = self.acked = role.start
        self.version = role.start
        """The newest epoch after which the state can be captured."""
        self.copies: dict[str, _Copy] = {}


class Active:
    """Invariant, per stage: ``acked <= position of every copy`` and ``acked <= committed``."""

    def __init__(self, stages: Iterable[StageRole]) -> None:
        self.stages = {role.name: _Stage(role) for role in stages}

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Committed):
            stage = self.stages[event.stage]
            if event.epoch > stage.committed:
                stage.committed = event.epoch
                if event.version:
                    stage.version = event.epoch
        elif isinstance(event, Acked):
            stage = self.stages[event.stage]
            if event.level == FINAL and event.epoch > stage.trimmed:
                stage.trimmed = event.epoch
                effects += [TrimStandby(stage.name, s, event.epoch) for s in stage.copies]
        elif isinstance(event, Pasted):
            copy = self.stages[event.stage].copies.get(event.standby)
            if copy is not None:
                copy.in_flight = False
                if copy.position is None or event.epoch > copy.position:
                    copy.position = event.epoch
        elif isinstance(event, CaptureFailed):
            copy = self.stages[event.stage].copies.get(event.standby)
            if copy is not None:
                copy.in_flight, copy.position, copy.retry_at = False, None, now + RETRY_S
        elif isinstance(event, StandbysChanged):
            for stage in self.stages.values():
                stage.copies = {s: stage.copies.get(s) or _Copy() for s in event.standbys}
        for stage in self.stages.values():
            effects += self._ack(stage)
            effects += self._give(stage, now)
        return effects

    def _ack(self, stage: _Stage) -> list[Effect]:
        safe = stage.committed if stage.copies else min(stage.committed, stage.trimmed)
        for copy in stage.copies.values():
            if copy.position is None:
                return []
            safe = min(safe, copy.position)
        if safe <= stage.acked:
            return []
        stage.acked = safe
        return [AckUpstream(stage.name, safe)]

    def _give(self, stage: _Stage, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if stage.version < stage.acked:
            return effects  # a copy that began there would find its input gone; a newer state will be saved
        for standby, copy in stage.copies.items():
            if copy.position is None and not copy.in_flight and (copy.retry_at is None or now >= copy.retry_at):
                copy.in_flight = True
                effects.append(Capture(stage.name, standby, stage.version, queue=True))
        return effects

    def safe(self) -> bool:
        return all(c.position is not None for s in self.stages.values() for c in s.copies.values())

    def wants(self, stage: str, now: float) -> Want:
        """As long as somebody has yet to be given the state."""
        return Want.NOTHING if self.safe() else Want.AHEAD

    def next_deadline(self) -> float | None:
        deadline: float | None = None
        for stage in self.stages.values():
            for copy in stage.copies.values():
                if copy.position is None and not copy.in_flight:
                    deadline = sooner(deadline, copy.retry_at)
        return deadline
