"""Random stories by the hundred thousand: the seed chooses topology, policies, hosts and faults.

First harm is done, then everything heals and the job must finish: nothing lost, nothing repeated, in order, never two
generations at once, nothing trimmed too early, and all queues drained. A story that fails is told again, word by word,
by its seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise

from understudy.core.operators import Window
from understudy.core.policies import (
    ActiveStandby,
    Checkpoint,
    Hybrid,
    PassiveStandby,
    Policy,
    UpstreamBackup,
    none,
)
from understudy.core.topology import StageShape, Topology, UnitShape
from understudy.sim.checks import judge, undrained, unended, unturned, watch_trims
from understudy.sim.faults import ENDINGS, HARMLESS, KINDS, Fault, Saboteur, Switching
from understudy.sim.model import SimJob
from understudy.sim.nodes import Conditions, World

EVERY_S = 0.1
POLICIES: dict[str, Policy] = {
    "sweeping": PassiveStandby("sweeping", every=EVERY_S),
    "individual": PassiveStandby("individual", every=EVERY_S),
    "synchronous": PassiveStandby("synchronous", every=EVERY_S),
    "sweeping-2": PassiveStandby("sweeping", every=EVERY_S, standbys=2),
    "active": ActiveStandby(),
    "eager": ActiveStandby(delivery="eager"),
    "active-2": ActiveStandby(copies=3),
    "upstream": UpstreamBackup(),
    "upstream-2": UpstreamBackup(k=2),
    "upstream-paced": UpstreamBackup(ack_every=EVERY_S),
    "hybrid": Hybrid(every=EVERY_S),
    "none": none,
}
SAVING: dict[str, Policy] = {
    "checkpoint": Checkpoint(every=EVERY_S),
    "checkpoint-2": Checkpoint(every=3 * EVERY_S, standbys=2),
}
"""Chosen apart, so that no seed came to mean another story when these came."""
FLOW_EPOCHS = 12
"""Cut after everything has healed: a queue is trimmed by what comes after."""
SETTLE_S = 20.0
"""Given to a healed job to finish. Much longer than any timer, so that only a stuck job fails to."""


# -- what is run --------------------------------------------------------------------------------------------------


def shape(edges: dict[str, tuple[str, ...]], sinks: dict[str, tuple[str, ...]] | None = None) -> list[StageShape]:
    """Stages from their inputs; whoever is read by nobody gets a sink."""
    read = {i for inputs in edges.values() for i in inputs}
    return [
        StageShape(name, inputs, (sinks or {}).get(name, () if name in read else (f"out-{name}",)))
        for name, inputs in edges.items()
    ]


SHAPES = {
    "chain": shape({"s": (), "a": ("s",), "b": ("a",)}),
    "fork": shape({"s": (), "a": ("s",), "b": ("a",), "c": ("a",)}),
    "join": shape({"s": (), "t": (), "a": ("s", "t")}),
    "diamond": shape({"s": (), "a": ("s",), "b": ("s",), "c": ("a", "b")}),
}
"""The four small shapes that every crash is tried on."""


def job_of(
    stages: list[StageShape], policies: dict[str, Policy], *, span: dict[str, int], units: dict[str, str] | None = None
) -> SimJob:
    """A job in which ``units`` names the unit of stages that share one; sources keep their logs as in the runtime."""
    members: dict[str, list[str]] = {}
    for stage in stages:
        members.setdefault((units or {}).get(stage.name, stage.name), []).append(stage.name)
    inputs = {s.name: s.inputs for s in stages}
    shapes = []
    for name, mine in members.items():
        source = not inputs[mine[0]]
        several = max((p.tolerates for p in policies.values()), default=1)
        policy = PassiveStandby(standbys=max(1, several)) if source else policies[name]
        shapes.append(UnitShape(name, tuple(mine), policy))
    return SimJob(Topology.build(stages, shapes), span)


def uniform(
    stages: list[StageShape], policy: Policy, *, span: int | None = None, units: dict[str, str] | None = None
) -> SimJob:
    """Every unit under the same policy. Replay needs states that let go of old input: by default after three epochs."""
    names = {(units or {}).get(s.name, s.name) for s in stages if s.inputs}
    if span is None:
        span = 3 if policy.recovery == "replay" else 0
    spans = {s.name: span for s in stages if s.inputs}
    return job_of(stages, dict.fromkeys(names, policy), span=spans, units=units)


def tolerance(job: SimJob) -> int:
    return min(unit.policy.tolerates for unit in job.topology.units.values())


# -- one story ------------------------------------------------------------------------------------------------------


@dataclass
class Story:
    """What a seed chose, and how it ended."""

    seed: int
    policy: str
    shape: str
    hosts: int
    faults: Counter[str] = field(default_factory=Counter)
    beyond: bool = False
    """More failed at once than was promised to survive; nothing is then held against the protocols."""
    wrong: list[str] = field(default_factory=list)
    events: int = 0
    told: list[tuple[float, str]] = field(default_factory=list)


def _random_shape(chance: random.Random) -> tuple[str, list[StageShape]]:
    name = chance.choice([*SHAPES, "random"])
    if name != "random":
        return name, SHAPES[name]
    sources = ["s", "t"][: chance.randint(1, 2)]
    edges: dict[str, tuple[str, ...]] = {s: () for s in sources}
    for stage in "abcd"[: chance.randint(1, 4)]:
        count = chance.randint(1, min(2, len(edges)))
        edges[stage] = tuple(sorted(chance.sample(list(edges), count)))
    unread = [s for s in sources if not any(s in i for i in edges.values())]
    for source in unread:
        edges[f"r{source}"] = (source,)
    return name, shape(edges)


def _random_units(chance: random.Random, stages: list[StageShape]) -> dict[str, str]:
    """Now and then neighbours share a unit."""
    units: dict[str, str] = {}
    inner = [s for s in stages if s.inputs]
    for first, second in pairwise(inner):
        if first.name in second.inputs and first.name not in units and chance.random() < 0.2:
            units[first.name] = units[second.name] = f"{first.name}{second.name}"
    return units


def _with_monitors(job: SimJob, chance: random.Random, hosts: int) -> SimJob:
    """Some units get a monitor."""
    topology = job.topology
    units = [
        replace(unit, monitor=f"h{chance.randint(1, hosts)}") if chance.random() < 0.5 else unit
        for unit in topology.units.values()
    ]
    return replace(job, topology=Topology.build(topology.stages.values(), units))


def _that_need_all(
    chance: random.Random, stages: list[StageShape], chosen: dict[str, Policy], units: dict[str, str]
) -> list[StageShape]:
    """Some stages are not right without every row. None of them is behind a unit that may lose some."""
    lossy: set[str] = set()
    found: list[StageShape] = []
    for stage in stages:
        unit = units.get(stage.name, stage.name)
        behind = bool(lossy.intersection(stage.inputs))
        needs = bool(stage.inputs) and not behind and chance.random() < 0.5 and chosen[unit].recovery != "gap"
        found.append(replace(stage, needs_all_input=needs))
        if behind or (stage.inputs and not needs and not chosen[unit].protected):
            lossy.add(stage.name)
    return found


def _random_windows(chance: random.Random, job: SimJob) -> dict[str, Window]:
    """Some of the states that let go of old input do so by event time."""
    bounded = [name for name, stage in job.topology.stages.items() if stage.inputs and job.span_of(name)]
    return {
        name: Window(chance.choice([0.1, 0.2, 0.5]), chance.choice([0.0, 0.1, 0.3]))
        for name in bounded
        if chance.random() < 0.5
    }


def _random_faults(chance: random.Random, conditions: Conditions) -> list[Fault]:
    end = conditions.epoch_s * conditions.epochs
    faults = []
    for at in sorted(chance.uniform(0.3, end) for _ in range(chance.randint(0, 4))):
        kind = chance.choice(KINDS)
        longest = 3.0 if kind in HARMLESS else 1.5
        faults.append(Fault(kind, at, chance.uniform(0.02, longest), chance.getrandbits(30)))
    return faults


def _with_endings(chance: random.Random, conditions: Conditions, faults: list[Fault]) -> list[Fault]:
    """Code that throws, and the end of the whole job, now and then right before or after something else goes wrong."""
    end = conditions.epoch_s * conditions.epochs
    more = []
    for _ in range(chance.randint(1, 2)):
        at = chance.uniform(0.3, end)
        if faults and chance.random() < 0.5:
            at = max(0.3, chance.choice(faults).at + chance.uniform(-0.2, 0.2))
        more.append(Fault(chance.choice(ENDINGS), at, chance.uniform(0.02, 1.5), chance.getrandbits(30)))
    return sorted([*faults, *more], key=lambda fault: fault.at)


def _random_switches(
    chance: random.Random, job: SimJob, conditions: Conditions, faults: list[Fault], policies: dict[str, Policy]
) -> list[Switching]:
    """Some units come under other policies, now and then right before something goes wrong."""
    end = conditions.epoch_s * conditions.epochs
    inner = [u for u in job.topology.units.values() if job.topology.stages[u.stages[0]].inputs]
    switches = []
    for _ in range(chance.randint(1, 4)):
        unit = chance.choice(inner)
        rebuilds = all(job.span_of(stage) for stage in unit.stages)
        policy = policies[chance.choice([n for n, p in policies.items() if rebuilds or p.recovery != "replay"])]
        at = chance.uniform(0.3, end)
        if faults and chance.random() < 0.6:
            at = max(0.3, chance.choice(faults).at - chance.uniform(-0.1, 0.2))
        switches.append(Switching(unit.name, policy, at))
    return switches


def play(seed: int, *, tell: bool = False) -> Story:
    """The story of one seed."""
    chance = random.Random(seed)
    shape_name, stages = _random_shape(chance)
    units = _random_units(chance, stages)
    names = list(dict.fromkeys(units.get(s.name, s.name) for s in stages if s.inputs))
    label = chance.choice([*POLICIES, "mixed"])
    if label == "mixed":
        protected = [n for n in POLICIES if n != "none"]
        chosen = {n: POLICIES[chance.choice(protected)] for n in names}
    else:
        chosen = dict.fromkeys(names, POLICIES[label])
    span = {
        s.name: chance.randint(1, 3) if chosen[units.get(s.name, s.name)].recovery == "replay" else chance.randint(0, 2)
        for s in stages
        if s.inputs
    }
    saving, barriers = seed % 11 in (5, 8), False
    if saving:  # as with monitors
        apart = random.Random(f"checkpoints of {seed}")
        chosen |= {n: SAVING[apart.choice([*SAVING])] for n in names if apart.random() < 0.6}
        barriers = seed % 19 in (4, 11)
        if barriers or seed % 5 not in (1, 2):
            stages = _that_need_all(apart, stages, chosen, units)
    job = job_of(stages, chosen, span=span, units=units)
    conditions = Conditions(
        epochs=chance.randint(8, 25),
        jitter_s=chance.choice([0.0, 0.002, 0.01]),
        process_s=chance.choice([0.001, 0.01, 0.03]),
    )
    hosts = 2 + max(1, *(p.backups for p in chosen.values()), tolerance(job)) + chance.randint(0, 2)
    saved = any(policy in SAVING.values() for policy in chosen.values())
    story = Story(seed, "checkpoint" if saved else label, shape_name, hosts)
    if seed % 5 == 1:  # chosen apart from all else, so that no seed came to mean another story when monitors came
        job = _with_monitors(job, random.Random(f"monitors of {seed}"), hosts)
    if seed % 5 == 3:  # as with monitors
        apart = random.Random(f"objects of {seed}")
        job = replace(job, saves={s.name: apart.choice([1, 2, 4]) for s in stages if s.inputs})
    if seed % 7 == 0 or seed % 13 in (1, 3, 4, 11):  # as with monitors
        apart = random.Random(f"windows of {seed}")
        job = replace(job, windows=_random_windows(apart, job))
        job = replace(job, preserved=[s.name for s in stages if not s.inputs and apart.random() < 0.5])
    if seed % 17 == 2:  # as with monitors
        apart = random.Random(f"rows of {seed}")
        bounded = [s.name for s in stages if s.inputs and job.span_of(s.name) and s.name not in job.windows]
        job = replace(job, rows={name: apart.choice([1, 5, 16]) for name in bounded if apart.random() < 0.7})
    faults = _random_faults(chance, conditions)
    switches: list[Switching] = []
    if seed % 5 in (1, 2):  # as with monitors
        apart = random.Random(f"switches of {seed}")
        switches = _random_switches(apart, job, conditions, faults, {**POLICIES, **(SAVING if saving else {})})
        # Now and then state is so slow to move that epochs go by meanwhile.
        conditions = replace(conditions, disk_s=apart.choice([0.002, 0.05, 0.2]), delay_s=apart.choice([0.001, 0.02]))
    lossless = all(policy.protected for policy in [*chosen.values(), *(switch.policy for switch in switches)])
    if seed % 17 == 9 and lossless:  # nor did one when these came
        job = replace(job, pairs=[s.name for s in stages if s.inputs and s.name not in job.windows])
    if barriers:  # under us.Checkpoint too
        apart = random.Random(f"barriers of {seed}")
        free = [s.name for s in stages if s.needs_all_input and s.name not in {*job.windows, *job.rows}]
        job = replace(job, pairs=[name for name in free if apart.random() < 0.7])
    world_seed = chance.getrandbits(32)
    if seed % 13 in (4, 11):  # as with monitors
        apart = random.Random(f"pace of {seed}")
        conditions = replace(conditions, process_s=apart.choice([0.03, 0.09, 0.12]), asks_late=apart.random() < 0.7)
    if seed % 7 == 0 or seed % 13 in (1, 3):  # as with monitors
        faults = _with_endings(random.Random(f"endings of {seed}"), conditions, faults)
    world = World(job, hosts=hosts, seed=world_seed, conditions=conditions)
    if tell:
        world.story = story.told
    try:
        finish_and_judge(world, Saboteur(world, faults, switches), story)
    except Exception as error:  # one story that cannot be told to its end does not end all the others
        if tell:
            raise
        story.wrong = [f"{type(error).__name__}: {error or 'see its story'}"]
    return story


def finish_and_judge(world: World, saboteur: Saboteur, story: Story) -> None:
    """Let the story come to its end, and note in ``story`` how it ended."""
    watch_trims(world)
    finish(world, saboteur)
    story.faults, story.beyond, story.events = saboteur.done, saboteur.beyond, world.engine.events
    found = judge(world, saboteur.unprotected) or unended(world) or undrained(world) or unturned(world)
    story.wrong = [] if story.beyond else found


def finish(world: World, saboteur: Saboteur) -> None:
    """Until the harm is done and healed, and some more epochs have gone through; or until every chance was given."""
    engine = world.engine
    while saboteur.busy and not done(world):
        engine.run(engine.now + 0.5)
    engine.run(saboteur.healed_at + 0.1)
    saboteur.stop()
    for flow in (FLOW_EPOCHS, 4 * FLOW_EPOCHS):
        world.epochs += flow
        deadline = engine.now + SETTLE_S
        while engine.now < deadline and not done(world):
            engine.run(engine.now + 0.5)
        if done(world) and not undrained(world) and not unturned(world):
            return


def done(world: World) -> bool:
    return all(world.epochs - 1 in sink.values for sink in world.sinks.values())


# -- very many ------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What came of many stories."""

    schedules: int = 0
    beyond: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    failed: list[Story] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.beyond += other.beyond
        self.events += other.events
        self.faults += other.faults
        self.policies += other.policies
        self.failed += other.failed

    def to_dict(self) -> dict[str, object]:
        return {
            "schedules": self.schedules,
            "violations": len(self.failed),
            "beyond_promise": self.beyond,
            "faults": dict(self.faults),
            "policies": dict(self.policies),
            "events": self.events,
            "failed_seeds": [story.seed for story in self.failed],
        }


def play_many(seeds: range) -> Tally:
    tally = Tally()
    for seed in seeds:
        story = play(seed)
        tally.schedules += 1
        tally.beyond += story.beyond
        tally.events += story.events
        tally.faults += story.faults
        tally.policies[story.policy] += 1
        if story.wrong:
            tally.failed.append(story)
    return tally


def swarm(first: int, count: int, *, processes: int) -> Iterator[Tally]:
    """Tallies of ``count`` stories from seed ``first`` on, part by part, on all cores."""
    part = max(1, min(250, count // (4 * processes) or 1))
    parts = [range(begin, min(begin + part, first + count)) for begin in range(first, first + count, part)]
    if processes == 1:
        yield from map(play_many, parts)
        return
    with ProcessPoolExecutor(max_workers=processes) as pool:
        yield from pool.map(play_many, parts)
