"""Who would take over at once, as the plan and the hosts' reports have it."""

from __future__ import annotations

from placements import PASSIVE, on

from understudy.core.failover import Begin, Failover, HostJoined, HostLost, StandbyReady
from understudy.core.policies import ActiveStandby, Policy, UpstreamBackup
from understudy.core.readiness import Readiness
from understudy.core.topology import StageShape, Topology, UnitShape


def pair(policy: Policy, *hosts: str) -> tuple[Failover, Readiness]:
    """A source and a stage that reads it, begun."""
    stages = [StageShape("cars"), StageShape("means", ("cars",), ("means",))]
    units = [UnitShape("cars", ("cars",), PASSIVE), UnitShape("means", ("means",), policy)]
    machine = on(Topology.build(stages, units), *hosts)
    machine.handle(Begin(), 0.0)
    return machine, Readiness(machine)


def test_a_source_is_armed_when_it_is_ready_and_a_stage_when_it_says_so() -> None:
    machine, readiness = pair(PASSIVE, "h1", "h2")
    (standby,) = machine.plan.units["means"].standbys
    assert readiness.armed_of("cars") == list(machine.plan.units["cars"].ready)
    assert readiness.armed_of("means") == [] and not readiness.all_armed()
    readiness.armed("means", standby, 0)
    assert readiness.armed_of("means") == [], "of another generation"
    readiness.armed("means", standby, 1)
    assert readiness.armed_of("means") == [standby] and readiness.all_armed() and not readiness.all_warm()
    readiness.warm("means", standby, 1)
    assert readiness.all_warm()


def test_another_process_has_to_arm_anew() -> None:
    machine, readiness = pair(PASSIVE, "h1", "h2")
    (standby,) = machine.plan.units["means"].standbys
    readiness.armed("means", standby, 1)
    readiness.warm("means", standby, 1)
    readiness.replaced(standby)
    assert not readiness.all_armed() and not readiness.all_warm()


def test_a_host_that_the_plan_does_not_count_on_is_forgotten() -> None:
    machine, readiness = pair(PASSIVE, "h1", "h2", "h3")
    (standby,) = machine.plan.units["means"].standbys
    readiness.armed("means", standby, 1)
    readiness.armed("unknown", standby, 1)
    machine.handle(HostLost(standby, "gone"), 1.0)
    readiness.planned()
    machine.handle(HostJoined(standby), 2.0)
    unit = machine.plan.units["means"]
    machine.handle(StandbyReady("means", unit.generation, unit.standbys[0], unit.since[0]), 3.0)
    readiness.planned()
    assert readiness.armed_of("means") == []


def test_a_spare_stays_armed_from_plan_to_plan() -> None:
    machine, readiness = pair(UpstreamBackup(), "h1", "h2", "h3")
    spare = machine.spares()["means"]
    assert not readiness.all_armed() and not readiness.all_warm()
    readiness.armed("means", spare, 1)
    readiness.warm("means", spare, 1)
    readiness.planned()
    assert readiness.all_armed() and readiness.all_warm()
    machine.handle(HostLost(spare, "gone"), 1.0)
    readiness.planned()
    assert machine.spares()["means"] != spare and not readiness.all_armed() and not readiness.all_warm()


def test_a_copy_that_runs_has_nothing_to_rehearse() -> None:
    _, readiness = pair(ActiveStandby(), "h1", "h2")
    assert readiness.all_warm() and not readiness.all_armed()
