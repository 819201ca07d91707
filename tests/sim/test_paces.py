"""How fast a job goes: primaries let their copies keep up, and nobody asks for an epoch long before it is wanted."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

import pytest

from understudy.core.pacing import IN_STEP, Asking, Pace
from understudy.sim.faults import Fault, Saboteur
from understudy.sim.fuzz import POLICIES, SHAPES, Story, finish_and_judge, uniform
from understudy.sim.nodes import Conditions, World
from understudy.sim.units import Unit

BUSY = Conditions(epochs=400, process_s=0.11, heartbeat_s=2.0)
"""An epoch takes longer than the interval: whoever is behind has no time to catch up."""


def lags(policy: str) -> list[int]:
    """How far a copy of the stage in the middle is behind, second by second, after it stood still for two."""
    world = World(uniform(SHAPES["chain"], POLICIES[policy]), hosts=6, seed=1, conditions=BUSY)
    world.engine.run(4.0)
    plan = world.coordinator.failover.plan.units["a"]
    leads, stands_by = world.hosts[plan.primary or ""], world.hosts[plan.standbys[0]]
    stands_by.pause()
    world.engine.run(6.0)
    stands_by.resume()
    found = []
    for second in range(7, 20):
        world.engine.run(second)
        first, second_copy = leads.units["a"], stands_by.units["a"]
        assert isinstance(first, Unit) and isinstance(second_copy, Unit)
        found.append(first.copies["a"].done - second_copy.copies["a"].done)
    return found


def test_a_copy_catches_up_with_a_primary_that_is_always_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lags("active")
    assert found[0] > IN_STEP + 1 >= found[-1]
    monkeypatch.setattr(Pace, "wait_s", lambda self, epoch, now, step_s: 0.0)
    assert lags("active")[-1] > 10, "for ever"


def wrong(*, policy: str = "active", conditions: Conditions) -> list[str]:
    found: list[str] = []
    for seed in range(6):
        world = World(uniform(SHAPES["chain"], POLICIES[policy]), hosts=4, seed=seed, conditions=conditions)
        story = Story(seed, policy, "chain", 4)
        finish_and_judge(world, Saboteur(world, [Fault("kill", 0.5 + 0.07 * seed, 0.5, seed)]), story)
        found += story.wrong
    return found


def test_a_pace_that_never_lets_go_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = Conditions(epochs=20)
    assert wrong(conditions=conditions) == []
    monkeypatch.setattr(Pace, "wait_s", lambda self, epoch, now, step_s: 1e9 if epoch > 7 else 0.0)
    assert any("no progress" in text for text in wrong(conditions=conditions))


def ages(*, asks_late: bool) -> list[float]:
    """From an epoch's being cut to its being in the sink, where stages take longer than the interval."""
    conditions = Conditions(epochs=60, process_s=0.2, asks_late=asks_late)
    world = World(uniform(SHAPES["chain"], POLICIES["sweeping"]), hosts=4, conditions=conditions)
    cut: dict[int, float] = {}
    shown = world.shown

    def note(source: str, epoch: int, value: int) -> None:
        cut.setdefault(epoch, world.engine.now)
        shown(source, epoch, value)

    world.shown = note  # type: ignore[method-assign]
    world.engine.run(30.0)
    written = world.sinks["sink:out-b"].written
    assert [b.epoch - a.epoch for a, b in pairwise(written)] == [1] * (len(written) - 1)
    return [w.t - cut[w.epoch] for w in written]


def test_an_epoch_that_is_asked_for_when_it_is_wanted_is_newer_when_it_is_done() -> None:
    late, early = ages(asks_late=True), ages(asks_late=False)
    assert mean(late[5:]) < mean(early[5:]) - 0.05
    assert len(late) == len(early), "and none comes later for it"


def test_a_consumer_that_never_asks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = Conditions(epochs=20, asks_late=True)
    assert wrong(policy="sweeping", conditions=conditions) == []
    waits = Asking.wait_s

    def never(self: Asking, received: int, begun: int, done_in_s: float) -> float:
        return waits(self, received, begun, done_in_s) if received < 7 else float("inf")

    monkeypatch.setattr(Asking, "wait_s", never)
    assert any("no progress" in text for text in wrong(policy="sweeping", conditions=conditions))
