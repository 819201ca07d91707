"""How many epochs sources may cut: none until every stage runs, then as many as they like.

A drill opens with a few epochs, and goes on when every standby is armed, so that harm is done to a job at rest and not
to one that starts up. Some standbys can only be armed when later epochs let checkpoints sweep up to them, so it opens
one further epoch now and then.
"""

from __future__ import annotations

from understudy.core.numbers import Generation
from understudy.core.plans import Plan
from understudy.core.topology import Topology

UNLIMITED = 1 << 62
OPENING_S = 1.0
"""Time between further epochs while a drill waits for its standbys."""


class Opening:
    def __init__(self, epochs: int | None = None) -> None:
        """``epochs``: how many to open with, before every standby is armed; None: all."""
        self.go = 0
        self._epochs = UNLIMITED if epochs is None else epochs
        self._runs: dict[str, Generation] = {}
        """Stage -> generation that runs."""
        self._opened_at = 0.0

    def adopted(self, topology: Topology, plan: Plan) -> None:
        """The job ran already."""
        self.go = UNLIMITED
        self._runs = {stage: plan.units[unit].generation for stage, unit in topology.unit_of.items()}

    def runs(self, stage: str, generation: Generation) -> None:
        self._runs[stage] = generation

    def all_run(self, topology: Topology, plan: Plan, unit: str | None = None) -> bool:
        """Whether every stage (of a unit) that is no source runs in the generation of the plan."""
        return all(
            self._runs.get(stage) == plan.units[topology.unit_of[stage]].generation
            for stage, shape in topology.stages.items()
            if shape.inputs and unit in (None, topology.unit_of[stage])
        )

    def look(self, topology: Topology, plan: Plan, now: float, *, armed: bool, arms_late: bool = False) -> bool:
        """Something has changed, or time has passed. Returns whether more epochs may be cut. ``arms_late``: some
        standby cannot be armed by a few epochs, so all are let go."""
        before = self.go
        if self.go == 0:
            if self.all_run(topology, plan):
                self.go, self._opened_at = (UNLIMITED if arms_late else self._epochs), now
        elif self.go < UNLIMITED and armed:
            self.go = UNLIMITED
        elif self.go < UNLIMITED and now - self._opened_at >= OPENING_S:
            self.go, self._opened_at = self.go + 1, now
        return self.go != before
