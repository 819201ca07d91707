"""A clean stop: sources cut no more, every stage comes to its own last epoch, and the last checkpoints are taken.

The coordinator asks all hosts, round after round, and each answers for what it leads. Only a whole round counts: every
unit's leader by one and the same plan has said that its last checkpoint is safe. Whoever does not answer has said
nothing, and whoever led before may be gone with what it kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from understudy.core.numbers import Epoch, Generation
from understudy.core.plans import Plan
from understudy.core.policies import Policy
from understudy.core.topology import Topology


class Ending(Enum):
    """What is left to do for a stage that is to end."""

    GOES_ON = "goes on"
    """It has epochs to make, or a sink has some to take."""
    KEPT = "kept"
    """Its keeper takes the last checkpoint, where it takes all of them."""
    OWN = "own"
    """Its policy keeps nothing on disks: its state, and the output that somebody may want, go to this host's own."""


def ending(policy: Policy, *, committed: Epoch, trimmed: Epoch, final: Epoch, last: bool) -> Ending:
    """Of a stage whose last epoch is ``final``. ``last``: only sinks read it, and they take all before the end."""
    if committed < final or (last and trimmed < final):
        return Ending.GOES_ON
    return Ending.KEPT if policy.keeps_on_disk else Ending.OWN


@dataclass(frozen=True)
class Question:
    """What all hosts are asked in one round."""

    number: int
    finals: Mapping[str, Epoch] | None
    """Every stage's last epoch; None as long as some source's is not known."""


@dataclass(frozen=True)
class Answer:
    """What a host says of what it leads. From the first question on, its sources cut no more."""

    number: int
    serial: int
    """Of the plan that the host has."""
    ends: Mapping[str, tuple[Generation, Epoch]] = field(default_factory=dict)
    """Source -> the generation that leads it, and the newest epoch that will come out."""
    done: Mapping[str, Generation] = field(default_factory=dict)
    """Unit -> the generation that leads it, where the last checkpoints are safe."""


class Stop:
    """The coordinator's side: ``ask`` begins a round, ``answered`` takes what comes of it, ``over`` ends it."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._sources = [name for name, stage in topology.stages.items() if not stage.inputs]
        self._ends: dict[str, tuple[Generation, Epoch]] = {}
        self._done: dict[str, Generation] = {}
        self._question = Question(0, None)
        self._serial = -1

    def ask(self, plan: Plan) -> Question:
        """Another round. A source that has another leader by now is asked anew where it ends: what the one before had
        begun may be lost with it."""
        generations = {stage: plan.units[unit].generation for stage, unit in self._topology.unit_of.items()}
        known = {s: end for s, (generation, end) in self._ends.items() if generation == generations[s]}
        finals = self._topology.finals(known) if len(known) == len(self._sources) else None
        self._question, self._serial, self._done = Question(self._question.number + 1, finals), plan.serial, {}
        return self._question

    def answered(self, answer: Answer) -> None:
        """A host's answer, which may be late, or come again."""
        for source, (generation, end) in answer.ends.items():
            if generation >= self._ends.get(source, (generation, end))[0]:
                self._ends[source] = (generation, end)
        if answer.number == self._question.number and answer.serial == self._serial:
            self._done.update(answer.done)

    def over(self, plan: Plan) -> bool:
        """Everything is safe: the job may be called stopped."""
        if self._question.finals is None or plan.serial != self._serial:
            return False
        return all(self._done.get(name) == unit.generation for name, unit in plan.units.items())
