"""Where a job begins, and where it goes on after it was stopped or everything died."""

from __future__ import annotations

from dataclasses import replace

import pytest
from placements import PASSIVE, chain, held_by, lost, on, one_unit, plan, render

from understudy.core.failover import (
    Begin,
    Failover,
    HostJoined,
    Publish,
    Say,
    Turned,
)
from understudy.core.plans import Plan, Turn, UnitPlan
from understudy.core.policies import ActiveStandby, PassiveStandby, Policy, UpstreamBackup, none, spell


def test_a_job_begins_spread_over_its_hosts() -> None:
    machine = on(chain(), "h1", "h2", "h3")
    assert machine.handle(Begin(), 0.0) == [
        plan(
            1,
            cars=held_by(1, "h1", "h2", 1, ready=True),
            means=held_by(1, "h2", "h1", 1, ready=True),
            alarms=held_by(1, "h3"),
        )
    ]


def test_one_host_is_enough_but_the_user_is_told() -> None:
    """A unit that is rebuilt by replay has no standby to miss."""
    machine = on(chain(PASSIVE, ActiveStandby(), UpstreamBackup()), "h1")
    assert machine.handle(Begin(), 0.0) == [
        plan(1, cars=UnitPlan(1, "h1"), means=UnitPlan(1, "h1"), alarms=UnitPlan(1, "h1")),
        Say("unprotected", "cars is UNPROTECTED: no other living host can be its standby", "cars"),
        Say("unprotected", "means is UNPROTECTED: no other living host can be its standby", "means"),
    ]


def test_wishes_are_kept_while_the_wished_for_hosts_live() -> None:
    machine = one_unit(PASSIVE, "ABC", primary="C", standbys="A")
    assert render(machine.handle(Begin(), 0.0)) == "#1 1:C/A1+ fresh"
    assert render(machine.handle(lost("A"), 0.0)) == "#2 1:C/B2 fresh | host-lost A | new-standby B"
    assert render(machine.handle(lost("B"), 0.0)) == "#3 1:C/- fresh | host-lost B | unprotected"
    machine.handle(HostJoined("B"), 0.0)
    assert render(machine.handle(HostJoined("A"), 0.0)) == "#5 1:C/B4 fresh", "nobody is moved for a wish"


def test_several_wished_for_standbys_are_taken_in_their_order_and_the_rest_is_chosen() -> None:
    machine = one_unit(PassiveStandby(standbys=2), "ABCDE", primary="B", standbys="EXD")
    assert render(machine.handle(Begin(), 0.0)) == "#1 1:B/E1+D1+ fresh"
    assert render(machine.handle(lost("E"), 0.0)) == "#2 1:B/D1+A2 fresh | host-lost E | new-standby A"
    assert render(machine.handle(lost("D"), 0.0)) == "#3 1:B/A2C3 fresh | host-lost D | new-standby C"


def test_a_wish_beyond_what_the_policy_needs_is_the_next_standby() -> None:
    machine = one_unit(PASSIVE, "ABCD", primary="A", standbys="DC")
    assert render(machine.handle(Begin(), 0.0)) == "#1 1:A/D1+ fresh"
    assert render(machine.handle(lost("D"), 0.0)) == "#2 1:A/C2 fresh | host-lost D | new-standby C"


def test_a_wish_for_a_host_that_is_not_there_is_passed_over() -> None:
    machine = one_unit(PASSIVE, "AB", primary="X", standbys="Y")
    assert render(machine.handle(Begin(), 0.0)) == "#1 1:A/B1+ fresh"


def test_a_stopped_job_goes_on_where_the_newest_checkpoints_are() -> None:
    machine = Failover(chain())
    machine.handle(HostJoined("h1", {"cars": 7, "alarms": 9}), 0.0)
    machine.handle(HostJoined("h2", {"cars": 9, "means": 8}), 0.0)
    counted = {"cars": UnitPlan(4, "h1", ("h2",), ("h2",), since=(9,))}
    machine.adopt(Plan(20, {**counted, "means": UnitPlan(4, "h1"), "alarms": UnitPlan(4, "h1")}))
    assert machine.handle(Begin(resume=True, clean=True), 0.0) == [
        plan(
            21,
            cars=held_by(5, "h2", "h1", 21, start="held"),
            means=held_by(5, "h2", "h1", 21, start="held"),
            alarms=held_by(5, "h1", start="held"),
        )
    ]


@pytest.mark.parametrize(("policy", "start"), [(none, "newest"), (UpstreamBackup(), "replay")])
def test_after_a_crash_of_everything_a_unit_without_checkpoints_starts_anew(policy: Policy, start: str) -> None:
    machine = Failover(chain(third=policy))
    machine.handle(HostJoined("h1", {"cars": 7, "alarms": 9}), 0.0)
    machine.handle(HostJoined("h2", {"means": 8}), 0.0)
    machine.adopt(Plan(20, {name: UnitPlan(4, "h1") for name in ("cars", "means", "alarms")}))
    assert machine.handle(Begin(resume=True), 0.0) == [
        plan(
            21,
            cars=held_by(5, "h1", "h2", 21, start="held"),
            means=held_by(5, "h2", "h1", 21, start="held"),
            alarms=held_by(5, "h1", start=start),
        )
    ]


@pytest.mark.parametrize(
    ("policy", "clean", "lacking"),
    [
        (PASSIVE, False, ["u"]),
        (ActiveStandby(), False, ["u"]),
        (UpstreamBackup(), False, []),
        (none, False, []),
        (PASSIVE, True, ["u"]),
        (UpstreamBackup(), True, ["u"]),
        (none, True, ["u"]),
    ],
)
def test_what_a_job_cannot_be_resumed_without(policy: Policy, clean: bool, lacking: list[str]) -> None:
    machine = one_unit(policy, "AB")
    assert machine.lacking(clean=clean) == lacking
    machine.handle(HostJoined("C", {"u": 5}), 0.0)
    assert machine.lacking(clean=clean) == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_unit_that_left_upstream_backup_turns_back_to_it_when_it_is_resumed(clean: bool) -> None:
    """Its producers kept nothing for a replay meanwhile."""
    machine = one_unit(UpstreamBackup(), "B")
    machine.handle(HostJoined("A", {"u": 5}), 0.0)
    machine.adopt(Plan(7, {"u": UnitPlan(2, "B", ("A",), ("A",), since=(3,), policy=spell(PASSIVE))}))
    assert machine.lacking(clean=clean) == []
    machine.handle(Begin(resume=True, clean=clean), 0.0)
    unit = machine.plan.units["u"]
    assert (unit.primary, unit.start, unit.standbys, unit.ready) == ("A", "held", ("B",), ())
    assert (unit.policy, unit.turn) == (spell(PASSIVE), Turn(spell(UpstreamBackup()), 8))
    machine.handle(Turned("u", unit.generation, 8), 0.0)
    assert machine.plan.units["u"].policy == spell(UpstreamBackup())


@pytest.mark.parametrize(
    ("defined", "switched"), [(PASSIVE, UpstreamBackup()), (UpstreamBackup(), UpstreamBackup(k=2)), (none, PASSIVE)]
)
def test_other_units_begin_again_under_what_the_job_says(defined: Policy, switched: Policy) -> None:
    machine = one_unit(defined, "B")
    machine.handle(HostJoined("A", {"u": 5}), 0.0)
    machine.adopt(Plan(7, {"u": UnitPlan(2, "B", policy=spell(switched))}))
    machine.handle(Begin(resume=True, clean=True), 0.0)
    assert (machine.plan.units["u"].policy, machine.plan.units["u"].turn) == (None, None)


@pytest.mark.parametrize("clean", [True, False])
def test_a_unit_that_was_edited_to_upstream_backup_turns_to_it_when_it_is_resumed(clean: bool) -> None:
    """The journal says what the job said when it ran."""
    machine = one_unit(UpstreamBackup(), "B")
    machine.handle(HostJoined("A", {"u": 5}), 0.0)
    before = one_unit(PASSIVE, "").defined
    assert before == {"u": spell(PASSIVE)}
    machine.adopt(Plan(7, {"u": UnitPlan(2, "B", ("A",), ("A",), since=(3,))}), before)
    machine.handle(Begin(resume=True, clean=clean), 0.0)
    unit = machine.plan.units["u"]
    assert (unit.primary, unit.start, unit.standbys, unit.ready) == ("A", "held", ("B",), ())
    assert (unit.policy, unit.turn) == (spell(PASSIVE), Turn(spell(UpstreamBackup()), 8))


def test_producers_that_kept_enough_for_one_host_must_keep_more_for_two() -> None:
    machine = one_unit(UpstreamBackup(k=2), "AB")
    machine.adopt(Plan(7, {"u": UnitPlan(2, "B")}), {"u": spell(UpstreamBackup())})
    machine.handle(Begin(resume=True, clean=True), 0.0)
    unit = machine.plan.units["u"]
    assert (unit.policy, unit.turn) == (spell(UpstreamBackup()), Turn(spell(UpstreamBackup(k=2)), 8))


def test_what_a_journal_does_not_say_is_as_the_job_says_now() -> None:
    machine = one_unit(UpstreamBackup(), "AB")
    machine.adopt(Plan(7, {"u": UnitPlan(2, "B")}))
    machine.handle(Begin(resume=True, clean=True), 0.0)
    assert (machine.plan.units["u"].policy, machine.plan.units["u"].turn) == (None, None)


def test_what_was_switched_away_from_disks_is_lacking_when_everything_has_died() -> None:
    machine = one_unit(PASSIVE, "AB")
    machine.adopt(Plan(7, {"u": UnitPlan(2, "B", policy=spell(UpstreamBackup()))}))
    assert machine.lacking(clean=False) == ["u"]


def test_a_job_that_never_began_is_resumed_as_if_it_began() -> None:
    machine = on(chain(third=UpstreamBackup()), "h1", "h2")
    machine.handle(Begin(resume=True), 0.0)
    assert {unit.start for unit in machine.plan.units.values()} == {"fresh"}


def test_of_two_equal_holders_one_is_chosen_whatever_the_order_of_joining() -> None:
    chosen = set()
    for hosts in ("AB", "BA"):
        machine = one_unit(PASSIVE, "")
        for host in hosts:
            machine.handle(HostJoined(host, {"u": 5}), 0.0)
        machine.handle(Begin(resume=True), 0.0)
        chosen.add(machine.plan.units["u"].primary)
    assert chosen == {"B"}


@pytest.mark.parametrize("stale", [6, 7, 9])
def test_a_source_is_resumed_from_a_log_that_the_plan_counts_on(stale: int) -> None:
    """C led it once, and died with epochs that nobody saw; A and B have cut others since."""
    machine = one_unit(PASSIVE, "")
    for host, epoch in {"A": 7, "B": 7, "C": stale}.items():
        machine.handle(HostJoined(host, {"u": epoch}), 0.0)
    machine.adopt(Plan(7, {"u": UnitPlan(3, "A", ("B",), ("B",), since=(7,))}))
    machine.handle(Begin(resume=True), 0.0)
    assert machine.plan.units["u"].primary == "B"


def test_a_source_is_resumed_from_any_log_when_those_that_counted_are_gone() -> None:
    machine = one_unit(PASSIVE, "A")
    machine.handle(HostJoined("C", {"u": 6}), 0.0)
    machine.adopt(Plan(7, {"u": UnitPlan(3, "A", ("B",), ("B",), since=(7,))}))
    machine.handle(Begin(resume=True), 0.0)
    assert machine.plan.units["u"].primary == "C"


def test_a_restarted_coordinator_goes_on_from_its_journal() -> None:
    """It sends its last plan again with a higher serial, and what it decides next is higher still."""
    last = Plan(12, {"u": UnitPlan(3, "A", ("B",), ("B",), "held", (9,))})
    machine = one_unit(PASSIVE, "")
    machine.adopt(last)
    machine.alive.update({"A": {}, "B": {}})
    assert machine.handle(HostJoined("A", returned=True), 0.0) == [Publish(replace(last, serial=13))]
    assert render(machine.handle(lost("A"), 0.0)) == "#14 4:B/- held | host-lost A | promoted B | unprotected"
