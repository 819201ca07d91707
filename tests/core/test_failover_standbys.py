"""Standbys: their readiness, more than one of them, and those that rise when their primary is suspected."""

from __future__ import annotations

from dataclasses import replace

from placements import PASSIVE, after, begun, held_by, lost, on, plan, render

from understudy.core.failover import (
    Begin,
    HostCleared,
    HostJoined,
    HostSuspected,
    Say,
    StandbyReady,
    StandbyUnusable,
    Tick,
)
from understudy.core.failover.machine import AGAIN_S
from understudy.core.plans import UnitPlan
from understudy.core.policies import ActiveStandby, Hybrid, PassiveStandby
from understudy.core.topology import StageShape, Topology, UnitShape


def test_a_ready_standby_is_published_and_told() -> None:
    machine = after(begun(PASSIVE, "ABC"), lost("B"))
    assert machine.handle(StandbyReady("u", 1, "C", 2), 0.0) == [
        plan(3, u=held_by(1, "A", "C", 2, ready=True)),
        Say("standby-ready", "u: standby ready on C", "u", "C"),
    ]


def test_a_standby_with_a_full_disk_is_replaced_and_not_chosen_again_until_it_joins_anew() -> None:
    machine = begun(PASSIVE, "AB")
    assert machine.handle(StandbyUnusable("u", 1, "B", 1, "disk: full"), 0.0) == [
        plan(2, u=held_by(1, "A")),
        Say("unprotected", "u is UNPROTECTED: B cannot stand by (disk: full)", "u", "B"),
        Say("unprotected", "u is UNPROTECTED: no other living host can be its standby", "u"),
    ]
    assert render(machine.handle(HostJoined("C"), 0.0)) == "#3 1:A/C3 fresh | new-standby C"
    assert render(machine.handle(lost("C"), 0.0)) == "#4 1:A/- fresh | host-lost C | unprotected"
    assert render(machine.handle(HostJoined("B"), 0.0)) == "host-lost B | #5 1:A/B5 fresh | new-standby B"


def test_a_host_that_could_not_stand_by_is_tried_again_after_a_while() -> None:
    """A disk may have room again; a process that was killed can be started again."""
    machine = begun(PASSIVE, "AB")
    assert not machine.due(1e9)
    machine.handle(StandbyUnusable("u", 1, "B", 1, "disk: full"), 10.0)
    assert not machine.due(10.0 + AGAIN_S - 1) and machine.handle(Tick(), 10.0 + AGAIN_S - 1) == []
    assert machine.due(10.0 + AGAIN_S)
    assert render(machine.handle(Tick(), 10.0 + AGAIN_S)) == "#3 1:A/B3 fresh | new-standby B"
    assert not machine.due(1e9)


def test_the_second_standby_stays_ready_when_the_first_takes_over() -> None:
    """Hwang et al. 2003, Section 4.4: with K backups, K failures are survived, one after the other or at once."""
    machine = begun(PassiveStandby(standbys=2), "ABCD")
    assert machine.handle(lost("A"), 0.0) == [
        plan(2, u=UnitPlan(2, "B", ("C", "D"), ("C",), "held", (1, 2))),
        Say("host-lost", "A is lost: x", None, "A"),
        Say("promoted", "u: B takes over", "u", "B"),
        Say("new-standby", "u: D becomes its standby", "u", "D"),
    ]
    assert machine.handle(lost("B"), 0.0) == [
        plan(3, u=UnitPlan(3, "C", ("D",), (), "held", (2,))),
        Say("host-lost", "B is lost: x", None, "B"),
        Say("promoted", "u: C takes over", "u", "C"),
    ]


def test_of_two_standbys_the_first_that_is_ready_takes_over() -> None:
    machine = after(begun(ActiveStandby(copies=3), "ABC"), HostJoined("B"))
    assert machine.plan.units["u"] == UnitPlan(1, "A", ("C", "B"), ("C",), "fresh", (1, 3))
    assert render(machine.handle(lost("C"), 0.0)) == "#4 1:A/B3 fresh | host-lost C"
    assert render(machine.handle(HostJoined("C"), 0.0)) == "#5 1:A/B3C5 fresh | new-standby C"
    assert render(machine.handle(StandbyReady("u", 1, "C", 5), 0.0)) == "#6 1:A/B3C5+ fresh | standby-ready C"
    assert render(machine.handle(lost("A"), 0.0)) == "#7 2:C/B3 held | host-lost A | promoted C"
    assert render(machine.handle(StandbyReady("u", 2, "B", 3), 0.0)) == "#8 2:C/B3+ held | standby-ready B"


def test_a_unit_whose_primary_and_both_standbys_are_gone_waits_for_any_of_them() -> None:
    machine = after(begun(PassiveStandby(standbys=2), "ABC"), HostSuspected("A"))
    machine.adopt(replace(machine.plan, units={"u": replace(machine.plan.units["u"], start="held")}))
    machine.alive.clear()
    machine.alive["A"] = {}
    assert machine.handle(lost("A"), 0.0) == [
        Say("host-lost", "A is lost: x", None, "A"),
        Say("waiting", "u WAITS: nobody can take it over; it goes on when A or B or C returns", "u"),
    ]
    assert render(machine.handle(HostJoined("C", {"u": 3}), 0.0)) == "#2 2:C/- held | promoted C | unprotected"
    assert render(machine.handle(HostJoined("B"), 0.0)) == "#3 2:C/B3 held | new-standby B"


def test_an_unusable_standby_of_two_leaves_the_other_one() -> None:
    machine = begun(PassiveStandby(standbys=2), "ABC")
    effects = machine.handle(StandbyUnusable("u", 1, "B", 1, "full"), 0.0)
    assert effects[0] == plan(2, u=UnitPlan(1, "A", ("C",), ("C",), "fresh", (1,)))
    assert [e.host for e in effects[1:] if isinstance(e, Say)] == ["B"]


def test_an_unusable_standby_of_two_leaves_the_unit_protected() -> None:
    machine = begun(PassiveStandby(standbys=2), "ABC")
    effects = machine.handle(StandbyUnusable("u", 1, "B", 1, "full"), 0.0)
    assert not [e for e in effects if isinstance(e, Say) and "UNPROTECTED" in e.text]


# -- hybrid: rising and standing down --------------------------------------------------------------------------------


def test_a_standby_rises_when_its_primary_is_suspected_and_stands_down_when_it_answers() -> None:
    """Gu et al. 2009, Section 6 announces it: passive standby that turns active upon the first sign of trouble."""
    machine = begun(Hybrid(), "ABC")
    assert machine.handle(HostSuspected("A"), 0.0) == [
        plan(2, u=UnitPlan(1, "A", ("B",), ("B",), "fresh", (1,), rising=True)),
        Say("rising", "u: B starts to run", "u", "B"),
    ]
    assert machine.handle(HostSuspected("A"), 0.0) == [], "the second missed heartbeat changes nothing"
    assert machine.handle(HostCleared("A"), 0.0) == [
        plan(3, u=held_by(1, "A", "B", 1, ready=True)),
        Say("stood-down", "u: B stands down", "u", "B"),
    ]
    assert machine.handle(HostCleared("A"), 0.0) == []


def test_a_rising_standby_takes_over_when_the_failure_is_confirmed() -> None:
    machine = after(begun(Hybrid(), "ABC"), HostSuspected("A"))
    assert render(machine.handle(lost("A"), 0.0)) == "#3 2:B/C3 held | host-lost A | promoted B | new-standby C"
    assert machine.handle(HostCleared("A"), 0.0) == []


def test_only_hybrid_units_of_the_suspected_primary_rise() -> None:
    stages = [StageShape(name) for name in "abcd"]
    units = [
        UnitShape("a", ("a",), Hybrid(), "h1", ("h2",)),
        UnitShape("b", ("b",), PASSIVE, "h1", ("h2",)),
        UnitShape("c", ("c",), Hybrid(), "h2", ("h1",)),
        UnitShape("d", ("d",), Hybrid(standbys=2), "h1", ("h3",)),
    ]
    machine = on(Topology.build(stages, units), "h1", "h2", "h3")
    machine.handle(Begin(), 0.0)
    effects = machine.handle(HostSuspected("h1"), 0.0)
    assert effects[1:] == [
        Say("rising", "a: h2 starts to run", "a", "h2"),
        Say("rising", "d: h3 starts to run", "d", "h3"),
    ]
    assert {name: unit.rising for name, unit in machine.plan.units.items()} == {
        "a": True,
        "b": False,
        "c": False,
        "d": True,
    }


def test_when_the_rising_one_of_two_standbys_is_lost_the_other_one_rises() -> None:
    machine = after(begun(Hybrid(standbys=2), "ABC"), HostSuspected("A"))
    assert render(machine.handle(lost("B"), 0.0)) == "#3 1:A/C1+ fresh rising | host-lost B"
    assert machine.handle(HostCleared("A"), 0.0)[1:] == [Say("stood-down", "u: C stands down", "u", "C")]


def test_a_standby_that_becomes_ready_while_its_primary_is_suspected_rises() -> None:
    machine = after(begun(Hybrid(), "ABC"), HostSuspected("A"), lost("B"))
    assert render(machine.handle(StandbyReady("u", 1, "C", 3), 0.0)) == "#4 1:A/C3+ fresh rising | standby-ready C"


def test_a_primary_that_answers_while_no_standby_is_ready_is_no_longer_suspected() -> None:
    machine = after(begun(Hybrid(), "ABC"), HostSuspected("A"), lost("B"))
    assert machine.handle(HostCleared("A"), 0.0) == [plan(4, u=held_by(1, "A", "C", 3))], "nobody stands down"
    machine.handle(StandbyReady("u", 1, "C", 3), 0.0)
    assert machine.plan.units["u"] == held_by(1, "A", "C", 3, ready=True), "C has no reason to run"


def test_a_primary_that_returns_is_no_longer_suspected() -> None:
    machine = after(begun(Hybrid(), "AB"), HostSuspected("A"), lost("B"), lost("A"))
    assert render(machine.handle(HostJoined("A", returned=True), 0.0)) == "#4 1:A/- fresh | unprotected"
