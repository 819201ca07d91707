"""Monitors in virtual time: on the other side of a partition, and with troubles of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy.core.topology import Topology
from understudy.sim.checks import judge
from understudy.sim.faults import Saboteur
from understudy.sim.fuzz import POLICIES, SHAPES, finish, uniform
from understudy.sim.nodes import Conditions, World

PROTECTED = {name: policy for name, policy in POLICIES.items() if policy.protected}


def world_of(policy: str, *, hosts: int = 6, epochs: int = 40, monitors: dict[str, str]) -> World:
    """A chain s, a, b on h1, h2, h3, each with its monitor."""
    job = uniform(SHAPES["chain"], POLICIES[policy])
    places = {"s": "h1", "a": "h2", "b": "h3"}
    shapes = job.topology.units.items()
    units = [replace(unit, primary=places[name], monitor=monitors.get(name)) for name, unit in shapes]
    job = replace(job, topology=Topology.build(job.topology.stages.values(), units))
    world = World(job, hosts=hosts, seed=1, conditions=Conditions(epochs=epochs))
    world.story = []
    return world


def said(world: World, text: str) -> list[float]:
    return [t for t, line in world.story or [] if text in line]


def cut(world: World, *pairs: tuple[str, str]) -> None:
    world.cut |= {frozenset(pair) for pair in pairs}


def primary(world: World, unit: str) -> str | None:
    return world.coordinator.failover.plan.units[unit].primary


def end(world: World) -> None:
    finish(world, Saboteur(world, []))
    assert judge(world) == []
    assert len(world.coordinator.failover.alive) == len(world.hosts), "everybody is back"


@pytest.mark.parametrize("policy", PROTECTED)
def test_a_primary_that_its_monitor_cannot_hear_is_replaced_and_comes_back(policy: str) -> None:
    """The coordinator hears it all the time, but the rest of the job does not: without its monitor, nobody would know,
    and the job would stand still for as long as that lasts."""
    world = world_of(policy, monitors={"a": "h6"})
    world.engine.run(1.5)
    cut(world, ("h2", "h6"), ("h2", "h1"), ("h2", "h3"))
    world.engine.run(3.0)
    assert said(world, "hears from h6: Missed(host='h2', misses=1)")
    assert said(world, "gives up h2: 3 heartbeats of 100 ms missed, says h6")
    assert primary(world, "a") not in ("h2", None)
    assert world.coordinator.evidence.health("h2").state == "failed"
    world.cut.clear()
    world.engine.run(3.5)
    assert said(world, "hears from h6: Returned(host='h2')")
    assert said(world, "hears from h2 again")
    assert world.coordinator.evidence.health("h2").failures == 1
    end(world)


def test_without_a_monitor_the_same_partition_holds_the_job_up() -> None:
    world = world_of("sweeping", monitors={})
    world.engine.run(1.5)
    before = max(world.sinks["sink:out-b"].values)
    cut(world, ("h2", "h1"), ("h2", "h3"))
    world.engine.run(5.0)
    assert max(world.sinks["sink:out-b"].values) <= before + 2
    assert primary(world, "a") == "h2"
    world.cut.clear()
    end(world)


def test_a_monitor_that_hears_nobody_costs_one_takeover() -> None:
    world = world_of("sweeping", monitors={"s": "h6", "a": "h6", "b": "h6"})
    world.engine.run(1.5)
    cut(world, *(("h6", f"h{i}") for i in range(1, 6)))
    world.engine.run(4.0)
    assert len(said(world, "gives up")) <= 1
    assert said(world, "doubts h6, which cannot hear")
    assert len(world.coordinator.failover.alive) == 6
    world.cut.clear()
    end(world)


def test_a_frozen_monitor_blames_nobody_when_it_thaws() -> None:
    world = world_of("sweeping", monitors={"s": "h6", "a": "h6", "b": "h6"})
    world.engine.run(1.5)
    world.hosts["h6"].pause()
    world.engine.run(3.0)
    world.hosts["h6"].resume()
    world.engine.run(4.5)
    assert {line for _, line in world.story or [] if "gives up" in line} == {
        "coordinator  gives up h6: 3 heartbeats of 100 ms missed"
    }
    end(world)


def test_a_new_coordinator_is_told_again() -> None:
    world = world_of("sweeping", monitors={"a": "h6"})
    world.engine.run(1.5)
    cut(world, ("h2", "h6"))
    world.engine.run(2.5)
    world.coordinator.crash()
    world.engine.run(2.6)
    world.coordinator.restart()
    world.engine.run(3.5)
    assert world.coordinator.evidence.health("h2").state == "failed"
    world.cut.clear()
    end(world)


def test_a_monitor_makes_a_hybrid_standby_rise() -> None:
    world = world_of("hybrid", monitors={"a": "h6"})
    world.engine.run(1.5)
    cut(world, ("h2", "h6"))
    world.engine.run(1.6)
    world.cut.clear()
    world.engine.run(2.5)
    assert said(world, "a: h") and said(world, "starts to run") and said(world, "stands down")
    assert primary(world, "a") == "h2"
    end(world)


def test_a_monitor_of_a_killed_primary_agrees_and_welcomes_the_next_process() -> None:
    world = world_of("active", monitors={"a": "h6"})
    world.engine.run(1.5)
    world.hosts["h2"].crash(quietly=True)
    world.engine.run(2.5)
    assert said(world, "hears from h6: Failed(host='h2'")
    world.hosts["h2"].restart()
    end(world)
    assert world.coordinator.evidence.health("h2").state == "well"
