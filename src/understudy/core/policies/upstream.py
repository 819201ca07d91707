"""Upstream backup: no checkpoint at all; producers keep what is needed to rebuild a lost state by replay.

Hwang et al. 2003, Sections 4.2 and 4.4. When all consumers have acknowledged epoch *v* of a stage's stream at level
*n*, the stage acknowledges its inputs at level *n + 1*: everything that the state after *v* does not need. Producers
trim at level K, so that K neighbours in a row may fail at once and be rebuilt one after the other.

Epochs sharpen the paper's bound by one element: a header names what the state *after* an epoch needs, so a stage
without state needs nothing of the epochs that its consumers have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from understudy.core.acks import FINAL, Indicators
from understudy.core.policies.base import (
    Acked,
    AckUpstream,
    Committed,
    Effect,
    Event,
    Placed,
    Policy,
    Recovery,
    StageRole,
    positive,
)


@dataclass(frozen=True)
class UpstreamBackup(Policy):
    """Nothing is kept but what producers have sent; any host rebuilds a lost state by replay. Costs almost nothing
    while all is well. Only for stages whose state lets go of old input."""

    kind: ClassVar[str] = "upstream backup"
    k: int = 1

    def __post_init__(self) -> None:
        positive("k", self.k)

    @property
    def recovery(self) -> Recovery:
        return "replay"

    @property
    def tolerates(self) -> int:
        return self.k

    @property
    def levels(self) -> int:
        return self.k

    def describe(self) -> str:
        return f"{self.kind}{f', K={self.k}' if self.k > 1 else ''}"

    def protect(self, stages: Iterable[StageRole]) -> Replayable:
        return Replayable(stages, k=self.k)


class _Stage:
    def __init__(self, role: StageRole, k: int) -> None:
        self.name, self.inputs = role.name, role.inputs
        self.near: tuple[str, ...] = ()
        self.levels: tuple[int, ...] = tuple(range(k))
        """Those that are passed on: FINAL only to inputs that are near. What came from elsewhere was done with when
        level K was reached."""
        self.indicators = Indicators(role.inputs)
        self.committed = role.start
        self.bounds = {level: role.start for level in (*range(k), FINAL)}
        """By level: what all consumers have acknowledged."""
        self.acked: dict[tuple[str, int], int] = {}


class Replayable:
    """Turns its consumers' acknowledgements at level n into its own at level n + 1.

    What counts are hosts that fail on their own: to a producer on the same host, or below another stage of it, a level
    is passed on as it is. This composes indicators over all that is on one host, be it one unit or several.
    """

    def __init__(self, stages: Iterable[StageRole], *, k: int) -> None:
        self.k = k
        self.stages = {role.name: _Stage(role, k) for role in stages}

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Committed):
            stage = self.stages[event.stage]
            if event.epoch <= stage.committed:
                return []
            stage.committed = event.epoch
            stage.indicators.append(event.epoch, event.needs or {})
            effects: list[Effect] = []
            for level in stage.levels:
                effects += self._pass_on(stage, level)
            return effects
        if isinstance(event, Acked):
            stage = self.stages[event.stage]
            if event.epoch <= stage.bounds.get(event.level, event.epoch):
                return []
            stage.bounds[event.level] = event.epoch
            effects = self._pass_on(stage, event.level) if event.level in stage.levels else []
            stage.indicators.forget(min(stage.bounds.values()))
            return effects
        if isinstance(event, Placed):
            stage = self.stages[event.stage]
            stage.near = event.near
            stage.levels = (*range(self.k), FINAL) if event.near else tuple(range(self.k))
        return []

    def _pass_on(self, stage: _Stage, level: int) -> list[Effect]:
        """What consumers have and this copy has processed: the state after that is what must be rebuilt."""
        epoch = min(stage.bounds[level], stage.committed)
        effects: list[Effect] = []
        for name in stage.inputs:
            if name in stage.near:
                up = level
            elif level == FINAL:
                continue
            else:
                up = FINAL if level + 1 == self.k else level + 1
            oldest = stage.indicators.cause(epoch, name)
            if oldest is not None and oldest - 1 > stage.acked.get((name, up), -1):
                stage.acked[name, up] = oldest - 1
                effects.append(AckUpstream(stage.name, oldest - 1, up, name))
        return effects

    def safe(self) -> bool:
        return True

    def next_deadline(self) -> float | None:
        return None
