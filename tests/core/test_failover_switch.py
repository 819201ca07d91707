"""A unit changes its policy while the job runs: who protects it before, during and after, whatever fails meanwhile."""

from __future__ import annotations

import pytest
from placements import PASSIVE, after, begun, lost, render

from understudy.core.failover import (
    Failover,
    HostJoined,
    HostSuspected,
    StandbyReady,
    StandbyUnusable,
    Switch,
    Turned,
)
from understudy.core.plans import Plan
from understudy.core.policies import ActiveStandby, Hybrid, PassiveStandby, Policy, UpstreamBackup, none

TO_ACTIVE = Switch("u", ActiveStandby())
TO_REPLAY = Switch("u", UpstreamBackup())


def done(machine: Failover, *events: object) -> str:
    """What came of the last event."""
    *before, last = events
    return render(after(machine, *before).handle(last, 0.0))  # type: ignore[arg-type]


def test_the_new_standby_is_made_beside_the_old_one_and_replaces_it_when_ready() -> None:
    machine = begun(PASSIVE, "ABC")
    assert done(machine, TO_ACTIVE) == "#2 1:A/B1+ fresh => active-standby/C2 | switching"
    assert done(machine, StandbyReady("u", 1, "C", 2)) == (
        "#3 1:A/C2+ fresh under active-standby | standby-ready C | switched"
    )
    assert machine.topology.units["u"].policy == ActiveStandby()


def test_what_protects_it_until_then_takes_over_and_the_turn_begins_again() -> None:
    machine = begun(PASSIVE, "ABCD")
    assert done(machine, TO_ACTIVE, lost("A")) == "#3 2:B/- held => active-standby/C3 | host-lost A | promoted B"
    assert done(machine, StandbyReady("u", 1, "C", 2)) == "", "of the turn before"
    assert done(machine, StandbyReady("u", 2, "C", 3)).startswith("#4 2:B/C3+ held under active-standby")


def test_the_one_to_come_takes_over_when_it_is_all_that_is_left() -> None:
    machine = begun(PassiveStandby(standbys=2), "ABCDE")
    switched = done(machine, Switch("u", ActiveStandby(copies=3)))
    assert switched == "#2 1:A/B1+C1+ fresh => active-standby copies=3/D2E2 | switching"
    after(machine, StandbyReady("u", 1, "D", 2), lost("B"), lost("C"))
    assert done(machine, lost("A")) == (
        "#6 2:D/E2 held under active-standby copies=3 | host-lost A | promoted D"
    )


def test_an_unprotected_unit_is_saved_by_the_standby_that_was_being_made() -> None:
    machine = after(begun(none, "ABC"), Switch("u", PASSIVE))
    assert done(machine, StandbyReady("u", 1, "B", 2)).startswith("#3 1:A/B2+ fresh under passive-standby")
    machine = after(begun(none, "ABC"), Switch("u", PASSIVE))
    assert done(machine, lost("A")) == "#3 2:B/- newest => passive-standby/C3 | host-lost A | restarted B"


def test_a_lost_or_unusable_newcomer_is_replaced() -> None:
    machine = after(begun(PASSIVE, "ABCD"), TO_ACTIVE)
    assert done(machine, lost("C")) == "#3 1:A/B1+ fresh => active-standby/D3 | host-lost C"
    assert done(machine, StandbyUnusable("u", 1, "D", 3, "x")) == (
        "#4 1:A/- fresh => active-standby/B4 | standby-lost D | unprotected"
    ), "nobody but the old one is left"


def test_without_a_further_host_the_old_standby_makes_room_and_that_is_said() -> None:
    machine = begun(PASSIVE, "AB")
    assert done(machine, TO_ACTIVE) == "#2 1:A/- fresh => active-standby/B2 | switching | unprotected"
    assert done(machine, StandbyReady("u", 1, "B", 2)).startswith("#3 1:A/B2+ fresh under active-standby")


def test_without_any_other_host_the_turn_waits_for_one() -> None:
    machine = begun(PASSIVE, "A")
    assert done(machine, TO_ACTIVE) == "#2 1:A/- fresh => active-standby/- | switching"
    assert done(machine, HostJoined("B")) == "#3 1:A/- fresh => active-standby/B3"


@pytest.mark.parametrize(
    ("now", "new", "then"),
    [
        (PASSIVE, PassiveStandby("individual"), "B1+ fresh under passive-standby checkpoint=individual | switched"),
        (PASSIVE, Hybrid(), "B1+ fresh under hybrid | switched"),
        (PASSIVE, PassiveStandby(standbys=2), "B1+C2 fresh under passive-standby standbys=2 | switched | new-standby C"),  # noqa: E501
        (ActiveStandby(copies=3), ActiveStandby(), "B1+ fresh under active-standby | switched"),
        (ActiveStandby(), ActiveStandby(delivery="eager"), "B1+ fresh under active-standby delivery=eager | switched"),
        (PASSIVE, none, "- fresh under none | switched"),
    ],
    ids=lambda value: value.describe() if isinstance(value, Policy) else "",
)
def test_what_serves_both_policies_or_needs_nobody_is_changed_at_once(now: Policy, new: Policy, then: str) -> None:
    assert done(begun(now, "ABC"), Switch("u", new)) == f"#2 1:A/{then}"


def test_upstream_backup_counts_when_the_producers_keep_enough() -> None:
    machine = begun(PASSIVE, "AB")
    assert done(machine, TO_REPLAY) == "#2 1:A/B1+ fresh => upstream-backup/- | switching"
    assert done(machine, Turned("u", 1, 1)) == "", "of another turn"
    assert done(machine, Turned("u", 1, 2)) == "#3 1:A/- fresh under upstream-backup | switched"
    assert done(machine, Turned("u", 1, 2)) == ""
    assert done(machine, lost("A")) == "#4 2:B/- replay under upstream-backup | host-lost A | restarted B"


def test_until_then_its_standby_takes_over() -> None:
    machine = after(begun(PASSIVE, "AB"), TO_REPLAY)
    assert done(machine, lost("A")) == "#3 2:B/- held => upstream-backup/- | host-lost A | promoted B | unprotected"
    assert done(machine, Turned("u", 2, 3)).startswith("#4 2:B/- held under upstream-backup")


def test_away_from_upstream_backup_a_loss_before_the_standby_is_ready_is_replayed() -> None:
    machine = after(begun(UpstreamBackup(), "ABC"), Switch("u", PASSIVE))
    assert done(machine, lost("A")) == "#3 2:B/- replay => passive-standby/C3 | host-lost A | restarted B"


def test_the_policy_that_it_has_already_ends_a_turn() -> None:
    machine = begun(PASSIVE, "ABC")
    assert done(machine, Switch("u", PASSIVE)) == "switched"
    assert done(machine, TO_ACTIVE, Switch("u", PASSIVE)) == "#3 1:A/B1+ fresh | switched"


def test_the_policy_that_it_is_changing_to_already_changes_nothing() -> None:
    machine = after(begun(PASSIVE, "AB"), TO_REPLAY)
    assert done(machine, TO_REPLAY) == "switching"
    assert done(machine, Turned("u", 1, 2)) == "#3 1:A/- fresh under upstream-backup | switched", "it still counts"


def test_a_change_of_mind_fills_the_room_that_was_made() -> None:
    machine = after(begun(PASSIVE, "AB"), TO_ACTIVE)
    assert done(machine, Switch("u", PASSIVE)) == "#3 1:A/B3 fresh | switched | new-standby B"


def test_while_producers_are_waited_for_a_lost_standby_is_replaced() -> None:
    machine = after(begun(PASSIVE, "ABC"), TO_REPLAY)
    assert done(machine, lost("B")) == "#3 1:A/C3 fresh => upstream-backup/- | host-lost B | new-standby C"


def test_the_news_that_producers_keep_enough_may_overtake_the_loss_of_the_primary() -> None:
    machine = after(begun(PASSIVE, "AB"), TO_REPLAY, lost("B"), HostJoined("C"), lost("A"))
    assert done(machine, Turned("u", 1, 2)) == "#5 2:C/- replay under upstream-backup | switched | restarted C"


def test_a_unit_that_waits_cannot_be_switched() -> None:
    machine = after(begun(PASSIVE, "AB"), lost("B"), lost("A"))
    assert done(machine, TO_ACTIVE) == "not-switched"


def test_a_primary_that_comes_back_empty_goes_on_with_its_turn() -> None:
    machine = after(begun(none, "AB"), TO_ACTIVE, lost("B"), lost("A"))
    assert done(machine, HostJoined("A")) == "#4 2:A/- newest => active-standby/- | restored A"


def test_a_switched_policy_is_what_a_coordinator_that_was_killed_goes_on_with() -> None:
    machine = after(begun(PASSIVE, "ABC"), Switch("u", Hybrid()))
    again = begun(PASSIVE, "ABC")
    again.adopt(Plan(machine.plan.serial, machine.plan.units))
    assert again.topology.units["u"].policy == Hybrid()
    assert done(again, HostSuspected("A")).startswith("#3 1:A/B1+ fresh rising under hybrid")
