"""No protection: gap recovery."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from understudy.core.policies.base import AckUpstream, Committed, Effect, Event, Policy, StageRole, Want


@dataclass(frozen=True)
class NoProtection(Policy):
    """Gap recovery: nothing is kept. After a crash the unit starts anew at the newest epoch; rows in between are
    lost and their epochs become empty ones."""

    kind: ClassVar[str] = "none"

    def protect(self, stages: Iterable[StageRole]) -> Unprotected:
        return Unprotected(stages)


class Unprotected:
    """Keeps nothing, and acknowledges what it has processed. On receipt would do as well (Gu et al. 2009, Section 3.1);
    but what was let go of must not lie ahead of the state, or another policy could not begin from there."""

    def __init__(self, stages: Iterable[StageRole]) -> None:
        self.acked = {stage.name: stage.start for stage in stages}

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Committed) and event.epoch > self.acked[event.stage]:
            self.acked[event.stage] = event.epoch
            return [AckUpstream(event.stage, event.epoch)]
        return []

    def next_deadline(self) -> float | None:
        return None

    def safe(self) -> bool:
        return True

    def wants(self, stage: str, now: float) -> Want:
        return Want.NOTHING
