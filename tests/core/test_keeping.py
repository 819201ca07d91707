"""What keeps a led unit safe: who is charged with it, what may be acknowledged, and what the coordinator is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy.core.acks import FINAL
from understudy.core.failover import StandbyReady, StandbyUnusable, Turned
from understudy.core.keeping import Charge, Holdings, Keeper, Report, allowed, charges, going_on, standing
from understudy.core.plans import Turn, UnitPlan
from understudy.core.policies import ActiveStandby, NoProtection, PassiveStandby, Policy, UpstreamBackup, spell
from understudy.core.policies.base import (
    Acked,
    AckUpstream,
    Capture,
    CaptureFailed,
    Committed,
    Drain,
    Pasted,
    Placed,
    StageRole,
    Tick,
)
from understudy.core.policies.passive import RETRY_S
from understudy.core.topology import StageShape, Topology, UnitShape

PASSIVE, ACTIVE, UPSTREAM = PassiveStandby(), ActiveStandby(), UpstreamBackup()
LED = UnitPlan(generation=3, primary="a", standbys=("b", "c"), since=(5, 7), ready=("b",))
OWN = {"a#-1": ("a", -1)}
BOTH = {"b#5": ("b", 5), "c#7": ("c", 7)}
ROLES = [StageRole("x", 3, ("in",)), StageRole("y", 3, ("x", "in"))]
TOPOLOGY = Topology.build(
    [StageShape("in"), StageShape("x", ("in",)), StageShape("y", ("x", "in"), ("out",))],
    [UnitShape("in", ("in",), PASSIVE), UnitShape("u", ("x", "y"), PASSIVE)],
)
HOSTS = {"in": "d", "u": "a"}


# -- charges ----------------------------------------------------------------------------------------------------------


def test_standbys_are_named_by_host_and_since_when() -> None:
    assert standing(LED) == BOTH
    assert standing(LED, "a") == {**BOTH, **OWN}


@pytest.mark.parametrize("policy", [PASSIVE, ACTIVE, UPSTREAM, NoProtection()])
def test_the_own_disk_counts_until_a_standby_does_where_disks_count_at_all(policy: Policy) -> None:
    (charge,) = charges(LED, policy, "a")
    assert charge == Charge(policy, BOTH)
    (alone,) = charges(replace(LED, ready=()), policy, "a")
    assert alone == Charge(policy, {**BOTH, **OWN} if policy == PASSIVE else BOTH)


def test_a_turn_is_a_second_charge() -> None:
    turning = replace(LED, turn=Turn(spell(UPSTREAM), serial=9))
    assert charges(turning, PASSIVE, "a") == [Charge(PASSIVE, BOTH), Charge(UPSTREAM, {}, turn=9)]
    back = replace(LED, policy=spell(UPSTREAM), standbys=(), since=(), ready=(), turn=Turn(spell(PASSIVE), serial=9))
    assert charges(back, ACTIVE, "a") == [Charge(UPSTREAM, {}), Charge(PASSIVE, OWN, turn=9)]
    found = replace(back, turn=Turn(spell(PASSIVE), 9, standbys=("b",), since=(9,)))
    assert charges(found, ACTIVE, "a")[1] == Charge(PASSIVE, {"b#9": ("b", 9)}, turn=9), "that one will be ready first"


def holdings(*stages: str) -> Holdings:
    held = Holdings("a", "u", 3, stages or ("x", "y"))
    held.aim({**BOTH, **OWN})
    return held


def keeper(policy: Policy, held: Holdings | None = None) -> Keeper:
    return Keeper(held or holdings(), policy, ROLES)


def test_a_keeper_goes_on_where_only_who_asks_whom_changes() -> None:
    passive, active = keeper(PASSIVE), keeper(ACTIVE)
    eager = ActiveStandby(delivery="eager")
    assert going_on([passive], [Charge(PASSIVE, {})]) == [passive]
    assert going_on([passive], [Charge(PassiveStandby(every="9s"), {})]) == [None]
    assert going_on([active], [Charge(eager, {})]) == [active]
    assert going_on([passive, active], [Charge(eager, {})]) == [active]
    assert going_on([passive], [Charge(PASSIVE, {}), Charge(UPSTREAM, {}, turn=9)]) == [passive, None]


def test_only_what_all_allow_is_acknowledged() -> None:
    assert allowed([]) == {}
    only = {FINAL: 4}
    assert allowed([only]) is only
    assert allowed([{FINAL: 4, 1: 7}, {FINAL: 6}]) == {FINAL: 4}
    assert allowed([{FINAL: 4}, {}]) == {}


# -- holdings ---------------------------------------------------------------------------------------------------------


def ready(host: str, since: int) -> list[Report]:
    return [Report(StandbyReady("u", 3, host, since))]


def test_a_standby_is_ready_with_the_last_of_the_units_stages() -> None:
    held = holdings()
    assert held.held("b#5", "x") == [] and held.held("c#7", "y") == []
    assert held.held("b#5", "y") == ready("b", 5)
    assert held.held("b#5", "y") == [], "told once"
    assert held.held("z#1", "x") == [], "not a standby"
    held.aim({"c#7": ("c", 7), "b#8": ("b", 8)})
    assert held.held("c#7", "x") == ready("c", 7), "what it holds stays"
    assert held.held("b#8", "x") == [], "a host that began anew holds nothing"
    held.aim({})
    held.aim({"c#7": ("c", 7)})
    assert held.held("c#7", "x") == []


def test_of_the_own_disk_nothing_is_reported() -> None:
    held = holdings()
    assert held.held("a#-1", "x") + held.held("a#-1", "y") == []
    assert held.unusable("a#-1", "full") == [] and held.unusable("z#1", "full") == []
    assert held.unusable("b#5", "full") == [Report(StandbyUnusable("u", 3, "b", 5, "full"))]


# -- one keeper -------------------------------------------------------------------------------------------------------


def test_what_a_policy_allows_is_noted_and_reported() -> None:
    one = keeper(PASSIVE)
    found = one.agree(Charge(PASSIVE, {"b#5": ("b", 5)}), TOPOLOGY, HOSTS, 0.0)
    assert found == [Capture("x", "b#5", 3, False), Capture("y", "b#5", 3, False)]
    assert one.agree(Charge(PASSIVE, {"b#5": ("b", 5)}), TOPOLOGY, HOSTS, 0.0) == [], "nothing is new"
    one.handle(Committed("y", 5), 1.0), one.handle(Acked("y", FINAL, 5), 1.0), one.handle(Drain(), 1.0)
    before = one.acks["y"]["x"]
    assert one.handle(Pasted("x", "b#5", 3), 2.0) == []
    assert one.handle(Pasted("y", "b#5", 5), 2.0)[-1:] == ready("b", 5)
    assert one.acks["y"] == {"x": {FINAL: 5}, "in": {FINAL: 5}}
    assert before == {}, "made anew: messages on their way carry what was said when they left"
    assert one.acks["x"] == {"in": {}}


def test_an_ack_of_one_input_is_noted_for_that_one() -> None:
    one = keeper(PASSIVE)
    assert one._note(AckUpstream("y", 4, input="in")) and not one._note(AckUpstream("y", 3, input="in"))
    assert one.acks["y"] == {"x": {}, "in": {FINAL: 4}}


def test_whoever_is_no_standby_any_more_is_not_heard() -> None:
    one = keeper(PASSIVE)
    one.agree(Charge(PASSIVE, {"b#5": ("b", 5)}), TOPOLOGY, HOSTS, 0.0)
    for late in (Pasted("x", "c#7", 3), CaptureFailed("x", "c#7", lost_standby=False)):
        assert one.handle(late, 1.0) == []
    assert one.unusable("x", "c#7", "full", 1.0) == []
    assert one.unusable("x", "b#5", "full", 1.0)[:1] == [Report(StandbyUnusable("u", 3, "b", 5, "full"))]


def test_the_own_disk_may_have_room_again() -> None:
    """Nobody names another one in its place, as of a standby's."""
    one = keeper(PASSIVE)
    one.agree(Charge(PASSIVE, OWN), TOPOLOGY, HOSTS, 0.0)
    assert one.unusable("x", "a#-1", "full", 1.0) == []
    assert Capture("x", "a#-1", 3, False) in one.handle(Tick(), 1.0 + RETRY_S)


def test_a_running_standby_is_answered_what_may_be_trimmed() -> None:
    one = keeper(ACTIVE)
    one.agree(Charge(ACTIVE, {"b#5": ("b", 5)}), TOPOLOGY, HOSTS, 0.0)
    assert one.trimmed("x", "b#5") is None
    one.handle(Committed("x", 6), 1.0)
    assert one.handle(Acked("x", FINAL, 6), 1.0) == [], "no message is spent on it"
    assert one.trimmed("x", "b#5") == 6 and one.trimmed("y", "b#5") is None


def test_replay_protects_once_producers_keep_what_it_saw() -> None:
    one = keeper(UPSTREAM)
    one.agree(Charge(UPSTREAM, {}, turn=9), TOPOLOGY, HOSTS, 0.0)

    def go_on(upto: int) -> list[object]:
        found: list[object] = []
        for stage in ("x", "y"):
            needs = dict.fromkeys(TOPOLOGY.stages[stage].inputs, upto + 1)
            found += one.handle(Committed(stage, upto, needs), 1.0)
            found += one.handle(Acked(stage, 0, upto), 1.0) + one.handle(Acked(stage, FINAL, upto), 1.0)
        return [effect for effect in found if isinstance(effect, Report)]

    assert go_on(3) == [], "that is where it began"
    assert go_on(4) == [Report(Turned("u", 3, 9))]
    assert go_on(5) == [], "told once"
    assert one.agree(Charge(UPSTREAM, {}, turn=12), TOPOLOGY, HOSTS, 2.0) == [Report(Turned("u", 3, 12))], "again"
    assert one.agree(Charge(UPSTREAM, {}), TOPOLOGY, HOSTS, 2.0) == []


def test_the_machine_is_told_who_shares_whose_fate() -> None:
    told: list[object] = []
    one = keeper(UPSTREAM)
    handle = one.machine.handle
    one.machine.handle = lambda event, now: told.append(event) or handle(event, now)  # type: ignore[method-assign]
    one.agree(Charge(UPSTREAM, {}), TOPOLOGY, {"in": "a", "u": "a"}, 0.0)
    assert [e for e in told if isinstance(e, Placed)] == [Placed("x", ("in",)), Placed("y", ("x", "in"))]
    told.clear()
    one.agree(Charge(UPSTREAM, {}), TOPOLOGY, HOSTS, 0.0)
    assert [e for e in told if isinstance(e, Placed)] == [Placed("x", ()), Placed("y", ("x",))]


def test_deadlines_and_safety_are_those_of_the_policy() -> None:
    one = keeper(PASSIVE)
    one.agree(Charge(PASSIVE, {"b#5": ("b", 5)}), TOPOLOGY, HOSTS, 0.0)
    assert one.next_deadline() == one.machine.next_deadline() and one.safe() == one.machine.safe()
