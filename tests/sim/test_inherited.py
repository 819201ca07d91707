"""What a source's new primary inherits: an epoch that nobody has seen yet must not be seen before it is safe again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy.core.topology import Topology
from understudy.sim.checks import judge
from understudy.sim.faults import Saboteur
from understudy.sim.fuzz import POLICIES, SHAPES, finish, uniform
from understudy.sim.nodes import Conditions, World


def world_of(policy: str, *, preserved: bool) -> World:
    """The source and its standbys are on hosts of their own."""
    job = uniform(SHAPES["chain"], POLICIES[policy])
    units = [replace(u, primary="h5" if u.name == "s" else "h1") for u in job.topology.units.values()]
    standbys = ("h4", "h3")[: POLICIES[policy].backups]
    units = [replace(u, standbys=standbys) if u.name == "s" else u for u in units]
    job = replace(job, topology=Topology.build(job.topology.stages.values(), units))
    job = replace(job, preserved=["s"] if preserved else [])
    return World(job, hosts=5, conditions=Conditions(epochs=40))


def newest(world: World, host: str) -> int:
    disk = world.hosts[host].disk
    if "s" in disk.logs:
        return disk.logs["s"].end - 1
    version = disk.newest("s")
    return -1 if version is None else version.epoch


def run_until_newest_differs(world: World, one: str, other: str) -> None:
    while newest(world, one) <= newest(world, other):
        world.engine.run(world.engine.now + 0.001)


@pytest.mark.parametrize("preserved", [False, True], ids=["logged", "preserved"])
def test_two_primaries_die_and_the_second_standby_never_had_the_epoch(preserved: bool) -> None:
    """The first one told one standby only, which shows nobody what the other still lacks."""
    world = world_of("sweeping-2", preserved=preserved)
    saboteur = Saboteur(world, [])
    world.engine.run(2.0)
    assert set(world.coordinator.journalled.units["s"].ready) == {"h3", "h4"}
    world.cut = {frozenset(("h5", "h3")), frozenset(("h4", "h3"))}
    run_until_newest_differs(world, "h4", "h3")
    world.hosts["h5"].crash()
    world.engine.run(world.engine.now + 0.05)
    assert world.coordinator.journalled.units["s"].primary == "h4"
    world.hosts["h4"].crash()
    world.cut = set()
    finish(world, saboteur)
    assert judge(world) == []


@pytest.mark.parametrize("preserved", [False, True], ids=["logged", "preserved"])
def test_a_fresh_standby_holds_up_no_takeover(preserved: bool) -> None:
    """It is cut off from the new primary, which nobody knows yet."""
    world = world_of("sweeping", preserved=preserved)
    world.engine.run(2.0)
    assert world.coordinator.journalled.units["s"].ready == ("h4",)
    world.cut = {frozenset(("h4", name)) for name in ("h2", "h3")}
    cuts = len(world.cuts["s"])
    while newest(world, "h4") < cuts:
        world.engine.run(world.engine.now + 0.001)
    world.hosts["h5"].crash()
    world.engine.run(world.engine.now + 0.01)
    assert world.coordinator.journalled.units["s"].primary == "h4"
    assert len(world.cuts["s"]) == cuts + 1, "what it inherited is seen at once"
