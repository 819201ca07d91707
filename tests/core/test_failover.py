"""Who runs what: scripts with whole lists of effects and the words told to the user. How a job begins,
and standbys, have files of their own, every pair of state and event is in test_failover_table.py, random lives of hosts
are in test_failover_lives.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from placements import PASSIVE, adopted, after, begun, chain, held_by, lost, on, one_unit, plan, render

from understudy.core.failover import (
    Begin,
    HostJoined,
    HostLost,
    Say,
    StageThrew,
    StandbyReady,
    StopJob,
)
from understudy.core.plans import Plan, UnitPlan
from understudy.core.policies import PassiveStandby, Policy, UpstreamBackup, none
from understudy.core.topology import StageShape, Topology, UnitShape

# -- hosts that go and come -----------------------------------------------------------------------------------------


def test_a_lost_host_is_replaced_in_all_its_roles() -> None:
    machine = on(chain(), "h1", "h2", "h3")
    machine.handle(Begin(), 0.0)
    assert machine.handle(HostLost("h2", "the connection broke"), 0.0) == [
        plan(
            2,
            cars=held_by(1, "h1", "h3", 2),
            means=held_by(2, "h1", "h3", 2, start="held"),
            alarms=held_by(1, "h3"),
        ),
        Say("host-lost", "h2 is lost: the connection broke", None, "h2"),
        Say("promoted", "means: h1 takes over", "means", "h1"),
        Say("new-standby", "cars: h3 becomes its standby", "cars", "h3"),
        Say("new-standby", "means: h3 becomes its standby", "means", "h3"),
    ]


@pytest.mark.parametrize(
    ("policy", "start", "words"),
    [
        (none, "newest", "alarms: unprotected, starts anew on h1; rows in between are lost"),
        (UpstreamBackup(), "replay", "alarms: rebuilt on h1 by replay"),
    ],
)
def test_a_unit_without_standby_starts_anew_where_there_is_least_to_do(policy: Policy, start: str, words: str) -> None:
    """Hwang et al. 2003, Section 4.2, of upstream backup: any other node can recreate a lost node's state."""
    machine = on(chain(third=policy), "h1", "h2", "h3", "h4")
    machine.handle(Begin(), 0.0)
    assert machine.handle(HostLost("h3", "4 heartbeats of 250 ms missed"), 0.0) == [
        plan(
            2,
            cars=held_by(1, "h1", "h4", 1, ready=True),
            means=held_by(1, "h2", "h4", 1, ready=True),
            alarms=held_by(2, "h1", start=start),
        ),
        Say("host-lost", "h3 is lost: 4 heartbeats of 250 ms missed", None, "h3"),
        Say("restarted", words, "alarms", "h1"),
    ]


def test_two_units_that_start_anew_are_not_both_put_where_the_first_one_went() -> None:
    stages = [StageShape(n) for n in "abc"]
    units = [UnitShape(n, (n,), UpstreamBackup(), "h1" if n != "c" else "h2") for n in "abc"]
    machine = on(Topology.build(stages, units), "h1", "h2", "h3", "h4")
    after(machine, Begin(), lost("h1"))
    assert {n: u.primary for n, u in machine.plan.units.items()} == {"a": "h3", "b": "h4", "c": "h2"}


def test_a_host_whose_process_was_replaced_is_lost_first_and_then_joins() -> None:
    """One plan for both: the one in between would have the new process begin what the old one was in the middle of."""
    machine = begun(PASSIVE, "AB")
    assert machine.handle(HostJoined("A", {"u": 3}), 0.0) == [
        Say("host-lost", "A is lost: its process was replaced", None, "A"),
        Say("promoted", "u: B takes over", "u", "B"),
        Say("unprotected", "u is UNPROTECTED: no other living host can be its standby", "u"),
        plan(3, u=held_by(2, "B", "A", 3, start="held")),
        Say("new-standby", "u: A becomes its standby", "u", "A"),
    ]
    assert machine.alive["A"] == {"u": 3}


def test_a_primary_restarted_unnoticed_gives_way_to_its_ready_standby() -> None:
    machine = after(begun(PASSIVE, "ABC"), HostJoined("A", holds={}))
    assert machine.plan.units["u"].primary == "B"


def test_a_standby_restarted_unnoticed_is_no_longer_ready() -> None:
    machine = after(begun(PASSIVE, "AB"), HostJoined("B", holds={}))
    assert machine.plan.units["u"] == held_by(1, "A", "B", 3)


def test_what_a_replaced_process_had_made_ready_says_nothing_about_the_new_one() -> None:
    """Same unit, generation and host: only the serial of the plan that made it a standby tells them apart."""
    machine = after(begun(PASSIVE, "ABC"), lost("B"))
    assert machine.plan.units["u"].standbys == ("C",) and machine.plan.units["u"].since == (2,)
    assert render(machine.handle(HostJoined("C"), 0.0)) == (
        "host-lost C | unprotected | #4 1:A/C4 fresh | new-standby C"
    )
    assert machine.handle(StandbyReady("u", 1, "C", since=2), 0.0) == []
    assert render(machine.handle(StandbyReady("u", 1, "C", since=4), 0.0)) == "#5 1:A/C4+ fresh | standby-ready C"


def test_a_standby_that_is_given_the_unit_anew_in_another_plan_must_report_anew() -> None:
    machine = begun(PASSIVE, "ABC")
    after(machine, lost("B"), StandbyReady("u", 1, "C", 2), lost("C"), HostJoined("C"))
    assert machine.plan.units["u"] == held_by(1, "A", "C", 5)
    assert machine.handle(StandbyReady("u", 1, "C", 2), 0.0) == []


def test_a_primary_that_returns_gets_a_living_standby() -> None:
    machine = after(begun(PASSIVE, "ABC"), lost("B"), lost("A"), lost("C"))
    machine.handle(HostJoined("A", returned=True), 0.0)
    assert machine.plan.units["u"] == held_by(1, "A")
    machine.handle(HostJoined("B"), 0.0)
    assert machine.plan.units["u"].standby == "B"


def test_neighbours_that_fail_together_are_each_taken_over_at_once() -> None:
    """Gu et al. 2009, Theorem 3.2: consecutive failed PEs start recovery individually; the order from upstream to
    downstream comes from waiting for input and needs no decision here."""
    topology = Topology.build(
        [StageShape("a"), StageShape("b", ("a",))],
        [UnitShape("a", ("a",), PASSIVE, "h1", ("h2",)), UnitShape("b", ("b",), PASSIVE, "h1", ("h3",))],
    )
    machine = on(topology, "h1", "h2", "h3")
    machine.handle(Begin(), 0.0)
    machine.handle(lost("h1"), 0.0)
    assert {n: (u.generation, u.primary) for n, u in machine.plan.units.items()} == {"a": (2, "h2"), "b": (2, "h3")}


# -- nobody there -----------------------------------------------------------------------------------------------------


def test_a_standby_whose_readiness_is_heard_after_the_primarys_death_takes_over() -> None:
    machine = after(begun(PASSIVE, "ABC"), lost("B"), lost("A"))
    assert render(machine.handle(StandbyReady("u", 1, "C", 2), 0.0)) == "#3 2:C/- held | promoted C | unprotected"


def test_a_standby_whose_readiness_is_heard_when_both_are_gone_takes_over_on_its_return() -> None:
    machine = after(begun(PASSIVE, "ABC"), lost("B"), lost("A"), lost("C"))
    assert machine.handle(StandbyReady("u", 1, "C", 2), 0.0) == [
        plan(3, u=held_by(1, "A", "C", 2, ready=True)),
        Say("waiting", "u WAITS: nobody can take it over; it goes on when A or C returns", "u"),
    ]
    assert render(machine.handle(HostJoined("C", {"u": 4}), 0.0)) == "#4 2:C/- held | promoted C | unprotected"


def test_a_ready_standby_that_lost_its_disk_is_no_more_than_any_other_host() -> None:
    """Both are gone; the first to come back has an empty disk, so that the unit goes on waiting for the other."""
    machine = adopted(PASSIVE, "", UnitPlan(3, "A", ("B",), ("B",), "held", (5,)))
    assert machine.handle(HostJoined("B", {"other": 4}), 0.0) == [plan(8, u=held_by(3, "A", start="held"))]
    assert render(machine.handle(HostJoined("A", {"u": 4}), 0.0)) == "#9 4:A/B9 held | restored A | new-standby B"


def test_when_everybody_who_could_know_lost_its_disk_the_primary_goes_on() -> None:
    machine = adopted(PASSIVE, "", UnitPlan(3, "A", ("B",), (), "held", (5,)))
    assert render(machine.handle(HostJoined("A"), 0.0)) == "#8 4:A/- held | restored A | unprotected"


def test_a_primary_that_lost_its_disk_gives_way() -> None:
    """Both are gone; the primary's new process has an empty disk; the standby, which has everything, comes back."""
    machine = adopted(PASSIVE, "", UnitPlan(3, "A", ("B",), ("B",), "held", (5,)))
    after(machine, HostJoined("A"), HostJoined("B", {"u": 4}))
    unit = machine.plan.units["u"]
    assert (unit.generation, unit.primary, unit.start) == (4, "B", "held")


def test_a_unit_that_nobody_can_take_over_says_whom_it_waits_for() -> None:
    machine = begun(PASSIVE, "AB")
    machine.handle(lost("A"), 0.0)
    assert machine.handle(lost("B"), 0.0) == [
        Say("host-lost", "B is lost: x", None, "B"),
        Say("waiting", "u WAITS: nobody can take it over; it goes on when B returns", "u"),
    ]
    assert machine.handle(HostJoined("A"), 0.0) == [plan(3, u=held_by(2, "B", start="held"))]
    assert machine.handle(HostJoined("B"), 0.0) == [
        plan(4, u=held_by(3, "B", "A", 4, start="held")),
        Say("restored", "u: goes on on B, which has returned", "u", "B"),
        Say("new-standby", "u: A becomes its standby", "u", "A"),
    ]


@pytest.mark.parametrize(
    ("policy", "start", "words"),
    [
        (none, "newest", "u: unprotected, starts anew on B; rows in between are lost"),
        (UpstreamBackup(k=2), "replay", "u: rebuilt on B by replay"),
    ],
)
def test_a_unit_without_standby_waits_for_any_host(policy: Policy, start: str, words: str) -> None:
    machine = begun(policy, "A")
    assert machine.handle(lost("A"), 0.0) == [
        Say("host-lost", "A is lost: x", None, "A"),
        Say("waiting", "u WAITS: nobody can take it over; it goes on when any host returns", "u"),
    ]
    assert machine.handle(HostJoined("B"), 0.0) == [
        plan(2, u=held_by(2, "B", start=start)),
        Say("restarted", words, "u", "B"),
    ]


# -- code that throws -------------------------------------------------------------------------------------------------


def test_code_that_throws_is_tried_once_more_on_the_other_host_and_then_stops_the_job() -> None:
    machine = begun(PASSIVE, "AB")
    assert machine.handle(StageThrew("u", 1, "s", 5, "boom"), 0.0) == [
        plan(2, u=replace(held_by(2, "B", "A", 2, start="held"), threw=5)),
        Say("threw", "s threw at epoch 5; trying once more on B", "u"),
        Say("new-standby", "u: A becomes its standby", "u", "A"),
    ]
    machine.handle(StandbyReady("u", 2, "A", 2), 0.0)
    assert machine.handle(StageThrew("u", 2, "s", 5, "boom"), 0.0) == [StopJob("s", 5, "boom")]


@pytest.mark.parametrize(
    ("whose", "text"),
    [
        ("code", "s threw at epoch 5; trying once more on B"),
        ("understudy", "Understudy itself failed in s at epoch 5; trying once more on B"),
        ("machine", "the machine failed s at epoch 5; trying once more on B"),
    ],
)
def test_whose_failure_it_was_is_told_when_the_job_stops(whose: str, text: str) -> None:
    machine = begun(PASSIVE, "AB")
    assert machine.handle(StageThrew("u", 1, "s", 5, "boom", whose), 0.0)[1] == Say("threw", text, "u")
    machine.handle(StandbyReady("u", 2, "A", 2), 0.0)
    assert machine.handle(StageThrew("u", 2, "s", 5, "boom", whose), 0.0) == [StopJob("s", 5, "boom", whose)]


def test_code_that_throws_at_another_epoch_is_tried_again() -> None:
    machine = begun(PASSIVE, "AB")
    machine.handle(StageThrew("u", 1, "s", 5, "boom"), 0.0)
    machine.handle(StandbyReady("u", 2, "A", 2), 0.0)
    assert render(machine.handle(StageThrew("u", 2, "s", 9, "boom"), 0.0)) == "#4 3:A/B4 held | threw | new-standby B"


def test_code_that_throws_twice_stops_the_job_whatever_the_number_of_standbys() -> None:
    machine = begun(PassiveStandby(standbys=2), "ABC")
    assert render(machine.handle(StageThrew("u", 1, "s", 5, "x"), 0.0)) == "#2 2:B/C1+A2 held | threw | new-standby A"
    assert render(machine.handle(StageThrew("u", 2, "s", 5, "x"), 0.0)) == "STOP s@5 x"


@pytest.mark.parametrize("policy", [PassiveStandby(standbys=2), UpstreamBackup()])
def test_a_coordinator_that_is_started_again_knows_that_the_code_threw(policy: Policy) -> None:
    """Also when another host has led the unit meanwhile. A job that is resumed was mended."""
    machine = begun(policy, "ABC")
    machine.handle(StageThrew("u", 1, "s", 5, "boom"), 0.0)
    machine.handle(lost(machine.plan.units["u"].primary or ""), 0.0)
    again = one_unit(policy, "ABC")
    again.adopt(machine.plan)
    assert again.handle(StageThrew("u", 3, "s", 5, "boom"), 0.0) == [StopJob("s", 5, "boom")]
    again.handle(Begin(resume=True), 0.0)
    assert again.plan.units["u"].threw is None


def test_code_that_throws_under_upstream_backup_is_rebuilt_once_on_another_host() -> None:
    machine = begun(UpstreamBackup(), "AB")
    assert machine.handle(StageThrew("u", 1, "s", 5, "boom"), 0.0) == [
        plan(2, u=replace(held_by(2, "B", start="replay"), threw=5)),
        Say("threw", "s threw at epoch 5; trying once more on B", "u"),
    ]
    assert render(machine.handle(StageThrew("u", 2, "s", 5, "boom"), 0.0)) == "STOP s@5 boom"


@pytest.mark.parametrize(("policy", "hosts"), [(none, "AB"), (UpstreamBackup(), "A"), (PASSIVE, "A")])
def test_code_that_throws_stops_the_job_where_nobody_else_can_try_it(policy: Policy, hosts: str) -> None:
    machine = begun(policy, hosts)
    assert render(machine.handle(StageThrew("u", 1, "s", 5, "boom"), 0.0)) == "STOP s@5 boom"


def test_code_that_throws_while_its_ready_standby_is_gone_stops_the_job() -> None:
    machine = one_unit(PASSIVE, "A")
    machine.adopt(Plan(7, {"u": UnitPlan(3, "A", ("B",), ("B",), "held", (5,))}))
    assert machine.handle(StageThrew("u", 3, "s", 5, "boom"), 0.0) == [StopJob("s", 5, "boom")]


# -- spares ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [("h1", "h2"), ("h1", "h2", "h3"), ("h1", "h2", "h3", "h4")])
def test_a_spare_is_the_host_that_rebuilds_the_unit(hosts: tuple[str, ...]) -> None:
    """For every unit and host: whoever is named before the loss is who is chosen after it."""
    machine = on(chain(PASSIVE, UpstreamBackup(), UpstreamBackup()), *hosts)
    machine.handle(Begin(), 0.0)
    spares = machine.spares()
    assert set(spares) == {"means", "alarms"}
    for name, spare in spares.items():
        primary = machine.plan.units[name].primary
        assert primary is not None and spare != primary
        others = [n for n in spares if n != name and machine.plan.units[n].primary == primary]
        if not others:
            later = on(chain(PASSIVE, UpstreamBackup(), UpstreamBackup()), *hosts)
            later.handle(Begin(), 0.0)
            later.handle(HostLost(primary, "gone"), 1.0)
            assert later.plan.units[name].primary == spare


def test_there_is_no_spare_without_another_host_or_for_other_policies() -> None:
    machine = on(chain(PASSIVE, UpstreamBackup(), none), "h1")
    machine.handle(Begin(), 0.0)
    assert machine.spares() == {}
    machine = on(chain(), "h1", "h2")
    machine.handle(Begin(), 0.0)
    assert machine.spares() == {}
