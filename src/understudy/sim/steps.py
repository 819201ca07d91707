"""A crash at every step: the node that carries out an order of some machine dies right before or right after it.

One run without harm counts the steps; then the same story is told again and again, each time with a crash at another
step. With ``partners``, another host dies in the same instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from understudy.sim.faults import Saboteur
from understudy.sim.fuzz import POLICIES, SHAPES, Story, finish_and_judge, tolerance, uniform
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


def count(job: SimJob, *, hosts: int, conditions: Conditions) -> int:
    """How many steps the story has when nothing goes wrong."""
    world = World(job, hosts=hosts, conditions=conditions)
    story = Story(0, "", "", hosts)
    finish_and_judge(world, Saboteur(world, []), story)
    if story.wrong:
        raise AssertionError(f"wrong without any harm: {story.wrong}")
    return world.effects


def steps(job: SimJob, *, hosts: int, conditions: Conditions, stride: int = 1, offset: int = 0) -> Iterator[Step]:
    """Every step, or every ``stride``-th; in pairs of hosts where the job promises to survive two."""
    total = count(job, hosts=hosts, conditions=conditions)
    partners: list[int | None] = [None]
    if tolerance(job) > 1:
        partners += range(1, hosts)
    found = 0
    for number in range(1, total + 1):
        for when in ("before", "after"):
            for partner in partners:
                if found % stride == offset % stride:
                    yield Step(number, when, partner)
                found += 1


def crash_at(job: SimJob, step: Step, *, hosts: int, conditions: Conditions, tell: bool = False) -> Story:
    """The story with a crash at ``step``."""
    world = World(job, hosts=hosts, conditions=conditions)
    story = Story(0, "", "", hosts)
    if tell:
        world.story = story.told
    world.crash_at[step.number, step.when] = _killer(world, step)
    saboteur = Saboteur(world, [])
    finish_and_judge(world, saboteur, story)
    return story


# -- all of them ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """One policy on one small shape: a story whose every step is tried."""

    policy: str
    shape: str

    @property
    def job(self) -> SimJob:
        return uniform(SHAPES[self.shape], POLICIES[self.policy])

    @property
    def hosts(self) -> int:
        return 3 + max(1, POLICIES[self.policy].backups)


PLACES = [Place(policy, shape) for policy in POLICIES for shape in SHAPES]
SHORT = Conditions(epochs=6, epoch_s=0.05)


def crash_everywhere(place: Place, *, stride: int = 1, offset: int = 0) -> tuple[Place, int, list[str]]:
    """Try every step of a story (or every ``stride``-th); returns how many, and what went wrong."""
    tried, wrong = 0, []
    for step in steps(place.job, hosts=place.hosts, conditions=SHORT, stride=stride, offset=offset):
        story = crash_at(place.job, step, hosts=place.hosts, conditions=SHORT)
        tried += 1
        wrong += [f"{place.policy} on a {place.shape}, crash {step}: {text}" for text in story.wrong[:1]]
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
