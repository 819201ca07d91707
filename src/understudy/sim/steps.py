"""A crash at every step: the node that carries out an order of some machine dies right before or right after it.

One run without harm counts the steps; then the same story is told again and again, each time with a crash at another
step. With ``partners``, another host dies in the same instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations

from understudy.core.policies import Policy
from understudy.sim import fuzz
from understudy.sim.faults import Saboteur, Switching
from understudy.sim.fuzz import SAVING, SHAPES, Story, finish_and_judge, tolerance, uniform
from understudy.sim.model import SimJob
from understudy.sim.nodes import Conditions, Node, World

RESTART_S = 1.2
"""How long a dead process stays away: longer than its loss takes to be noticed and made up for."""


@dataclass(frozen=True)
class Step:
    """Where a crash is tried. ``partner`` is the host that dies as well, counted from the one that carries it out."""

    number: int
    when: str
    partner: int | None = None

    def __str__(self) -> str:
        also = "" if self.partner is None else f", with the {self.partner}. host after it"
        return f"{self.when} effect {self.number}{also}"


SHORT = Conditions(epochs=6, epoch_s=0.05)
SLOW = replace(SHORT, disk_s=0.08, delay_s=0.01)
"""State takes longer to move than an epoch, so that some go by in the middle of a switch."""
SWITCH_S = 0.2
"""When a story with a switch has it: some epochs have gone through, some are to come."""


POLICIES = {**fuzz.POLICIES, **SAVING}


@dataclass(frozen=True)
class Place:
    """One policy on one small shape, or a switch to ``then``: a story whose every step is tried."""

    policy: str
    shape: str
    then: str | None = None

    def __str__(self) -> str:
        return f"{self.policy}{f' to {self.then}' if self.then else ''} {self.shape}"

    @property
    def _policies(self) -> list[Policy]:
        return [POLICIES[name] for name in (self.policy, self.then) if name]

    @property
    def job(self) -> SimJob:
        replays = any(policy.recovery == "replay" for policy in self._policies)
        return uniform(SHAPES[self.shape], POLICIES[self.policy], span=3 if replays else 0)

    @property
    def hosts(self) -> int:
        return 3 + max(1, *(policy.backups for policy in self._policies))

    @property
    def conditions(self) -> Conditions:
        return SLOW if self.then else SHORT

    @property
    def switches(self) -> list[Switching]:
        """Of a stage in the middle of a chain, of the one that joins a diamond."""
        unit = "a" if self.shape == "chain" else "c"
        return [Switching(unit, POLICIES[self.then], SWITCH_S)] if self.then else []

    def story(self, step: Step | None = None, *, tell: bool = False) -> tuple[World, Story]:
        """With a crash at ``step``, if any."""
        world = World(self.job, hosts=self.hosts, conditions=self.conditions)
        story = Story(0, self.policy, self.shape, self.hosts)
        if tell:
            world.story = story.told
        if step is not None:
            world.crash_at[step.number, step.when] = _killer(world, step)
        finish_and_judge(world, Saboteur(world, [], self.switches), story)
        return world, story


PLACES = [Place(policy, shape) for policy in POLICIES for shape in SHAPES]
KEPT = ("sweeping", "individual", "synchronous", "active", "eager", "upstream", "hybrid", "checkpoint")
TURNS = [Place(a, shape, b) for shape in ("chain", "diamond") for a, b in permutations(KEPT, 2)]


def steps(place: Place, *, stride: int = 1, offset: int = 0) -> Iterator[Step]:
    """Every step, or every ``stride``-th; in pairs of hosts where the job promises to survive two."""
    world, story = place.story()
    if story.wrong:
        raise AssertionError(f"{place}: wrong without any harm: {story.wrong}")
    partners: list[int | None] = [None]
    if tolerance(place.job) > 1:
        partners += range(1, place.hosts)
    found = 0
    for number in range(1, world.effects + 1):
        for when in ("before", "after"):
            for partner in partners:
                if found % stride == offset % stride:
                    yield Step(number, when, partner)
                found += 1


def crash_everywhere(place: Place, *, stride: int = 1, offset: int = 0) -> tuple[Place, int, list[str]]:
    """Try every step of a story (or every ``stride``-th); returns how many, and what went wrong."""
    tried, wrong = 0, []
    for step in steps(place, stride=stride, offset=offset):
        _, story = place.story(step)
        tried += 1
        wrong += [f"{place}, crash {step}: {text}" for text in story.wrong[:1]]
    return place, tried, wrong


def _killer(world: World, step: Step) -> Callable[[Node], None]:
    def kill(node: Node) -> None:
        victims = [node]
        if step.partner is not None:
            hosts = list(world.hosts.values())
            begin = hosts.index(node) if node in hosts else 0
            victims.append(hosts[(begin + step.partner) % len(hosts)])
        for victim in dict.fromkeys(victims):
            victim.crash()
            world.engine.after(RESTART_S, victim.restart)

    return kill
