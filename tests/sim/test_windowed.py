"""Windows of event time that are rebuilt by replay: producers keep what the open ones are made of, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy.core.landed import Landed
from understudy.core.operators import Window
from understudy.core.topology import Topology
from understudy.core.windows import Windows
from understudy.sim.checks import judge, undrained
from understudy.sim.copies import Copy
from understudy.sim.faults import STOP, Fault, Saboteur, Switching
from understudy.sim.fuzz import POLICIES, SHAPES, Story, finish, finish_and_judge, job_of, shape, uniform
from understudy.sim.model import SimJob, event_ms
from understudy.sim.nodes import Conditions, World

REPLAYED = ["upstream", "upstream-2", "upstream-paced"]
LONG = Window(length_s=0.5, delay_s=0.3)


def windowed(
    policy: str, *, shape: str = "chain", window: Window = LONG, units: dict[str, str] | None = None
) -> SimJob:
    job = uniform(SHAPES[shape], POLICIES[policy], units=units)
    return replace(job, windows={name: window for name, stage in job.topology.stages.items() if stage.inputs})


def played(job: SimJob, *faults: Fault, hosts: int = 5, seed: int = 0, switches: tuple[Switching, ...] = ()) -> Story:
    world = World(job, hosts=hosts, seed=seed, conditions=Conditions(epochs=40))
    story = Story(seed, "", "", hosts)
    finish_and_judge(world, Saboteur(world, list(faults), switches), story)
    assert not story.beyond
    return story


def complaints(job: SimJob, *faults: Fault, stories: int = 12) -> list[str]:
    moved = [[replace(f, at=f.at + 0.037 * seed, pick=f.pick + seed) for f in faults] for seed in range(stories)]
    return [text for seed in range(stories) for text in played(job, *moved[seed], seed=seed).wrong]


def test_rows_are_early_and_late() -> None:
    """Or a replay would find every row in its place, whatever it begins with."""
    times = [event_ms(1, epoch) for epoch in range(200)]
    assert times != sorted(times)
    expected = windowed("none").expected({"s": list(range(200))}, 199)
    assert len(set(expected["a"])) > 30, "windows come out now and then"


@pytest.mark.parametrize("window", [LONG, Window(0.1, 0.0), Window(0.2, 0.3)], ids=["long", "short", "patient"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", [*REPLAYED, "sweeping", "active"])
def test_windows_survive_a_death(policy: str, shape: str, window: Window) -> None:
    assert complaints(windowed(policy, shape=shape, window=window), Fault("kill", 1.5, 0.5, 0), stories=4) == []


@pytest.mark.parametrize("policy", REPLAYED)
def test_windows_of_one_unit_are_rebuilt_one_from_the_other(policy: str) -> None:
    job = windowed(policy, units={"a": "ab", "b": "ab"})
    assert complaints(job, Fault("kill", 1.5, 0.5, 0), stories=6) == []


def test_producers_keep_what_open_windows_need() -> None:
    world = World(windowed("upstream"), hosts=5, conditions=Conditions(epochs=60))
    world.engine.run(4.0)
    outputs = [unit.outputs() for host in world.hosts.values() for unit in host.units.values() if unit.primary]
    held = {name: out.queue.next - 1 - out.queue.trimmed for outs in outputs for name, out in outs.items()}
    assert held["s"] >= 8 and held["a"] >= 8, "what half a second and its delay are made of"
    assert undrained(world) == [], "and not much more"


@pytest.mark.parametrize("policy", REPLAYED)
def test_what_windows_are_made_of_is_known_after_a_stop(policy: str) -> None:
    """Stopped twice, the second time before a window has closed, and then a host dies."""
    harm = (Fault(STOP, 1.2, 0.2, 0), Fault(STOP, 1.6, 0.2, 0), Fault("kill", 1.8, 0.5, 0))
    assert complaints(windowed(policy), *harm) == []


@pytest.mark.parametrize("then", ["sweeping", "active", "none"])
def test_windows_come_under_upstream_backup_while_they_are_open(then: str) -> None:
    """And leave it again."""
    there, back = Switching("b", POLICIES["upstream"], 0.7), Switching("b", POLICIES[then], 2.5)
    for seed in range(6):
        harm = Fault("kill", 1.0 + 0.3 * seed, 0.5, seed)
        assert played(windowed("sweeping"), harm, seed=seed, switches=(there, back)).wrong == []


# -- broken on purpose ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shorter", [0.0, 0.3], ids=["no reach", "without the delay"])
def test_a_reach_that_is_too_short_is_caught(shorter: float, monkeypatch: pytest.MonkeyPatch) -> None:
    harm = Fault("kill", 1.5, 0.5, 0)
    assert complaints(windowed("upstream"), harm) == []
    begin = Windows.__init__

    def short(self: Windows, window: Window, *, start: int, history: list[list[int]] | None = None) -> None:
        begin(self, Window(shorter, 0.0), start=start, history=history)

    monkeypatch.setattr(Windows, "__init__", short)
    found = complaints(windowed("upstream"), harm)
    assert any("different" in text or "lost" in text for text in found)


def killed_after_a_stop() -> list[str]:
    """Some epochs after the job has begun again, the last stage's host dies."""
    found = []
    for ms in range(0, 1000, 100):
        world = World(windowed("upstream"), hosts=5, conditions=Conditions(epochs=60))
        world.story = []
        saboteur = Saboteur(world, [Fault(STOP, 1.5, 0.2, 0)])
        while not any("begins again" in line for _, line in world.story):
            world.engine.run(world.engine.now + 0.01)
        world.engine.run(world.engine.now + 0.05 + ms / 1000)
        host = world.coordinator.failover.plan.units["b"].primary
        assert host is not None
        world.hosts[host].crash()
        finish(world, saboteur)
        assert not saboteur.beyond
        found += judge(world)
    return found


def test_forgetting_over_a_stop_what_windows_are_made_of_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_after_a_stop() == []
    monkeypatch.setattr(Copy, "windows_until", lambda self, epoch: None)
    assert any("different" in text or "lost" in text for text in killed_after_a_stop())


def test_rows_of_windows_that_are_not_whole_yet_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that does not know what it has would be given them in the place of what it was given before."""
    harm = Fault("kill", 1.5, 0.5, 0)
    assert complaints(windowed("upstream"), harm) == []
    monkeypatch.setattr(Landed, "skip", lambda self, queue: None)
    assert any("and again as" in text for text in complaints(windowed("upstream"), harm))


@pytest.mark.parametrize("units", [None, {"a": "ab", "b": "ab"}], ids=["apart", "together"])
@pytest.mark.parametrize("producer", ["sweeping", "individual", "active", "eager", "upstream"])
def test_a_producer_that_took_over_knows_what_sinks_have(producer: str, units: dict[str, str] | None) -> None:
    """The windowed stage that it feeds dies with its predecessor."""
    stages = shape({"s": (), "p": ("s",), "a": ("p",), "b": ("a",)}, {"a": ("early",), "b": ("late",)})
    names = {"p": POLICIES[producer], "a": POLICIES["upstream"], "b": POLICIES["upstream"]}
    if units:
        names = {"p": POLICIES[producer], "ab": POLICIES["upstream"]}
    for seed in range(6):
        job = job_of(stages, names, span={"p": 1, "a": 1, "b": 1}, units=units)
        apart = {"s": {"primary": "h4", "standbys": ("h5",)}, "p": {"primary": "h1", "standbys": ("h2",)}}
        shapes = [replace(u, **apart.get(name, {"primary": "h1"})) for name, u in job.topology.units.items()]
        job = replace(job, topology=Topology.build(job.topology.stages.values(), shapes))
        job = replace(job, windows={"a": LONG, "b": LONG})
        world = World(job, hosts=5, seed=seed, conditions=Conditions(epochs=40))
        saboteur = Saboteur(world, [])
        world.engine.run(1.8 + 0.037 * seed)
        assert world.coordinator.journalled.units["p"].primary == "h1"
        world.hosts["h1"].crash()
        finish(world, saboteur)
        assert judge(world) == []


@pytest.mark.parametrize("source", ["logged", "preserved"])
@pytest.mark.parametrize("policy", REPLAYED)
def test_a_source_that_moved_knows_what_sinks_have(policy: str, source: str) -> None:
    """Long after the beginning, the host of the source and of what it feeds dies."""
    for seed in range(4):
        job = windowed(policy)
        shapes = [replace(u, primary="h1") for u in job.topology.units.values()]
        job = replace(job, topology=Topology.build(job.topology.stages.values(), shapes))
        job = replace(job, preserved=["s"] if source == "preserved" else [])
        world = World(job, hosts=5, seed=seed, conditions=Conditions(epochs=90))
        saboteur = Saboteur(world, [])
        world.engine.run(7.6 + 0.037 * seed)
        world.hosts["h1"].crash()
        finish(world, saboteur)
        assert judge(world) == []


@pytest.mark.parametrize("stage", ["a", "b"])
def test_after_a_stop_it_is_known_what_sinks_have(stage: str) -> None:
    """A host dies before the stage that it leads has said anything. By then the log of the source was shortened."""
    for ms in range(0, 40, 4):
        world = World(windowed("upstream"), hosts=5, conditions=Conditions(epochs=110))
        world.story = []
        saboteur = Saboteur(world, [Fault(STOP, 7.6, 0.2, 0)])
        while not any("begins again" in line for _, line in world.story):
            world.engine.run(world.engine.now + 0.002)
        world.engine.run(world.engine.now + ms / 1000)
        host = world.coordinator.failover.plan.units[stage].primary
        assert host is not None
        world.hosts[host].crash()
        finish(world, saboteur)
        assert not saboteur.beyond and judge(world) == []
