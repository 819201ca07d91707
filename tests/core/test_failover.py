"""Who runs what: scripts with whole lists of effects and the words told to the user. Standbys have their own file,
every pair of state and event is in test_failover_table.py, random lives of hosts are in test_failover_lives.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from placements import PASSIVE, adopted, after, begun, held_by, lost, on, one_unit, plan, render

from understudy.core.failover import (
    Begin,
    Failover,
    HostJoined,
    HostLost,
    Publish,
    Say,
    StageThrew,
    StandbyReady,
    StopJob,
    Turned,
)
from understudy.core.plans import Plan, Turn, UnitPlan
from understudy.core.policies import ActiveStandby, PassiveStandby, Policy, UpstreamBackup, none, spell
from understudy.core.topology import StageShape, Topology, UnitShape


def chain(first: Policy = PASSIVE, second: Policy = PASSIVE, third: Policy = none) -> Topology:
    """Two protected units and an unprotected one, in a row."""
    stages = [StageShape("cars"), StageShape("means", ("cars",)), StageShape("alarms", ("means",), ("alarms",))]
    units = [
        UnitShape("cars", ("cars",), first),
        UnitShape("means", ("means",), second),
        UnitShape("alarms", ("alarms",), third),
    ]
    return Topology.build(stages, units)


# -- beginning and resuming -----------------------------------------------------------------------------------------


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
