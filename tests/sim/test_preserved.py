"""Sources whose rows cannot be read again: what was seen once can always be sent again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy.core.landed import Known
from understudy.core.preserving import Preserving
from understudy.sim.disks import Version
from understudy.sim.faults import ALL_KILLED, POISON, STOP, THROW, Fault, Saboteur
from understudy.sim.fuzz import POLICIES, SHAPES, Story, finish_and_judge, uniform
from understudy.sim.model import SimJob
from understudy.sim.nodes import Conditions, World
from understudy.sim.preserved import PreservedSource

HARMS = ("kill", "power cut", "freeze", "isolation", "partition", "full disk", "several killed", THROW, STOP)


def preserved(policy: str = "sweeping", shape: str = "chain") -> SimJob:
    job = uniform(SHAPES[shape], POLICIES[policy])
    return replace(job, preserved=[name for name, stage in job.topology.stages.items() if not stage.inputs])


def complaints(
    job: SimJob, kind: str, *, stories: int = 12, hosts: int = 5, pick: int | None = None
) -> list[str]:
    found: list[str] = []
    for seed in range(stories):
        world = World(job, hosts=hosts, seed=seed, conditions=Conditions(epochs=25))
        story = Story(seed, "", "", hosts)
        fault = Fault(kind, 0.7 + 0.037 * seed, 0.9, seed if pick is None else pick)
        finish_and_judge(world, Saboteur(world, [fault]), story)
        found += story.wrong
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", POLICIES)
def test_without_harm_all_is_well(policy: str, shape: str) -> None:
    assert complaints(preserved(policy, shape), "slow host", stories=1) == []


@pytest.mark.parametrize("kind", HARMS)
@pytest.mark.parametrize("policy", ["sweeping", "sweeping-2", "active", "upstream"])
def test_nothing_that_was_seen_is_lost(policy: str, kind: str) -> None:
    assert complaints(preserved(policy), kind, stories=6) == []


@pytest.mark.parametrize("kind", [ALL_KILLED, POISON])
@pytest.mark.parametrize("policy", ["sweeping", "individual", "hybrid"])
def test_when_everything_dies_the_rows_are_on_disks(policy: str, kind: str) -> None:
    assert complaints(preserved(policy, "join"), kind, stories=6) == []


def test_rows_are_kept_only_as_long_as_somebody_may_want_them() -> None:
    world = World(preserved(), hosts=4, conditions=Conditions(epochs=60))
    world.engine.run(5.0)
    versions = [host.disk.newest("s") for host in world.hosts.values()]
    assert [len(version.output) < 8 for version in versions if version is not None] == [True]


def test_without_a_standby_rows_are_kept_on_the_primarys_own_disk() -> None:
    world = World(preserved(), hosts=1, conditions=Conditions(epochs=30))
    world.engine.run(2.0)
    newest = world.hosts["h1"].disk.newest("s")
    assert newest is not None and newest.epoch >= max(world.cuts["s"])


# -- broken on purpose ------------------------------------------------------------------------------------------------


def test_rows_that_are_seen_before_they_are_safe_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert complaints(preserved(), "kill", stories=20, pick=0) == []
    ship = PreservedSource._ship

    def show_first(self: PreservedSource) -> None:
        if self._cut_value is not None:
            value, self._cut_value = self._cut_value, None
            copy = self.copies[self.stage]
            self.world.shown(self.stage, copy.done + 1, value)
            self.host.living.after(0.05, setattr, self, "_cut_value", value)
            self.host.living.after(0.05, ship, self)

    monkeypatch.setattr(PreservedSource, "_ship", show_first)
    found = complaints(preserved(), "kill", stories=20, pick=0)
    assert any("again as" in text for text in found)


def test_one_standby_of_two_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    job = preserved("sweeping-2")
    assert complaints(job, "several killed", hosts=4, pick=3) == []
    monkeypatch.setattr(Preserving, "left", lambda self: [k for k in self._keepers[:1] if k not in self._safe])
    assert any("again as" in text for text in complaints(job, "several killed", hosts=4, pick=3))


def test_rows_that_are_not_kept_until_they_are_trimmed_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source dies together with a stage that has to go back."""

    def newest_only(
        epoch: int, state: tuple[int, ...], first: int, output: tuple[int, ...], landed: Known
    ) -> Version:
        return Version(epoch, state, epoch, output[-1:], landed=landed)

    job = preserved("sweeping-2")
    assert complaints(job, "several killed", stories=20, pick=0) == []
    monkeypatch.setattr("understudy.sim.preserved.Version", newest_only)
    found = complaints(job, "several killed", stories=20, pick=0)
    assert any("nobody has" in text or "lost" in text for text in found)


def test_a_preserved_source_is_one_here() -> None:
    world = World(preserved(), hosts=4, conditions=Conditions(epochs=5))
    world.engine.run(0.5)
    assert any(isinstance(unit, PreservedSource) for host in world.hosts.values() for unit in host.units.values())
