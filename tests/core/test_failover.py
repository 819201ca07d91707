"""Who runs what: every state against every event, the words told to the user, and random lives of hosts."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.core.failover import (
    Begin,
    Effect,
    Event,
    Failover,
    HostJoined,
    HostLost,
    Plan,
    Publish,
    Say,
    StageThrew,
    StandbyReady,
    StandbyUnusable,
    StopJob,
    UnitPlan,
)
from understudy.core.topology import StageShape, Topology, UnitShape

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines

# -- every state against every event ------------------------------------------------------------------------------
#
# One unit "u" of one stage "s"; hosts A, B, C. A unit is written generation:primary/standby, with + when the standby
# is ready, then what the primary starts from; #n is the serial of the published plan.


def one_unit(*, protected: bool, hosts: str) -> Failover:
    topology = Topology.build([StageShape("s")], [UnitShape("u", ("s",), protected)])
    machine = Failover(topology)
    for host in hosts:
        assert machine.handle(HostJoined(host), 0.0) == []
    return machine


def begun(*, protected: bool, hosts: str) -> Failover:
    machine = one_unit(protected=protected, hosts=hosts)
    machine.handle(Begin(), 0.0)
    return machine


def after(machine: Failover, *events: Event) -> Failover:
    for event in events:
        machine.handle(event, 0.0)
    return machine


def lost(host: str) -> HostLost:
    return HostLost(host, "x")


def adopted(*, hosts: str, unit: UnitPlan) -> Failover:
    machine = one_unit(protected=True, hosts=hosts)
    machine.adopt(Plan(7, {"u": unit}))
    return machine


STATES: dict[str, tuple[str, Callable[[], Failover]]] = {
    "unplaced": ("nothing, ABC", lambda: one_unit(protected=True, hosts="ABC")),
    "ready": ("#1 1:A/B+ fresh, ABC", lambda: begun(protected=True, hosts="ABC")),
    "not ready": ("#2 1:A/C fresh, AC", lambda: after(begun(protected=True, hosts="ABC"), lost("B"))),
    "alone": ("#1 1:A/- fresh, A", lambda: begun(protected=True, hosts="A")),
    "both gone": ("#7 3:A/B+ held, C", lambda: adopted(hosts="C", unit=UnitPlan(3, "A", "B", True, "held"))),
    "waits": ("#2 1:A/C fresh, C", lambda: after(begun(protected=True, hosts="ABC"), lost("B"), lost("A"))),
    "unprotected": ("#1 1:A/- fresh, ABC", lambda: begun(protected=False, hosts="ABC")),
    "stranded": ("#1 1:A/- fresh, ", lambda: after(begun(protected=False, hosts="A"), lost("A"))),
}


def generation(machine: Failover) -> int:
    return machine.plan.units["u"].generation if machine.plan.units else 0


def standby(machine: Failover) -> str:
    return (machine.plan.units["u"].standby if machine.plan.units else None) or "B"


EVENTS: dict[str, Callable[[Failover], Event]] = {
    "D joins": lambda m: HostJoined("D"),
    "A joins": lambda m: HostJoined("A", {"u": 9}),
    "B joins": lambda m: HostJoined("B", {"u": 4}),
    "A returns": lambda m: HostJoined("A", returned=True),
    "B returns": lambda m: HostJoined("B", returned=True),
    "A is lost": lambda m: lost("A"),
    "B is lost": lambda m: lost("B"),
    "C is lost": lambda m: lost("C"),
    "stranger is lost": lambda m: lost("Z"),
    "standby is ready": lambda m: StandbyReady("u", generation(m), standby(m)),
    "stale ready": lambda m: StandbyReady("u", generation(m) - 1, standby(m)),
    "stranger is ready": lambda m: StandbyReady("u", generation(m), "Z"),
    "standby is unusable": lambda m: StandbyUnusable("u", generation(m), standby(m), "full"),
    "stale unusable": lambda m: StandbyUnusable("u", generation(m) - 1, standby(m), "full"),
    "stranger is unusable": lambda m: StandbyUnusable("u", generation(m), "Z", "full"),
    "threw": lambda m: StageThrew("u", generation(m), "s", 5, "boom"),
    "stale threw": lambda m: StageThrew("u", generation(m) - 1, "s", 5, "boom"),
    "unknown unit": lambda m: StandbyReady("zz", generation(m), "B"),
    "begin": lambda m: Begin(),
    "resume": lambda m: Begin(resume=True),
    "resume clean": lambda m: Begin(resume=True, clean=True),
}
NEVER_HEARD = ("stranger is lost", "stale ready", "stale unusable", "stale threw", "unknown unit")
"""In every state: nothing happens."""

TABLE: dict[str, dict[str, str]] = {
    "unplaced": {
        "D joins": "",
        "A joins": "host-lost A",
        "B joins": "host-lost B",
        "A returns": "",
        "B returns": "",
        "A is lost": "host-lost A",
        "B is lost": "host-lost B",
        "C is lost": "host-lost C",
        "standby is ready": "",
        "stranger is ready": "",
        "standby is unusable": "",
        "stranger is unusable": "",
        "threw": "",
        "begin": "#1 1:A/B+ fresh",
        "resume": "#1 1:A/B+ fresh",
        "resume clean": "#1 1:A/B+ fresh",
    },
    "ready": {
        "D joins": "#2 1:A/B+ fresh",
        "A joins": "#2 2:B/C held | host-lost A | promoted B | new-standby C | #3 2:B/C held",
        "B joins": "#2 1:A/C fresh | host-lost B | new-standby C | #3 1:A/C fresh",
        "A returns": "#2 1:A/B+ fresh",
        "B returns": "#2 1:A/B+ fresh",
        "A is lost": "#2 2:B/C held | host-lost A | promoted B | new-standby C",
        "B is lost": "#2 1:A/C fresh | host-lost B | new-standby C",
        "C is lost": "host-lost C",
        "standby is ready": "",
        "stranger is ready": "",
        "standby is unusable": "#2 1:A/C fresh | unprotected B | new-standby C",
        "stranger is unusable": "",
        "threw": "#2 2:B/A held | threw | new-standby A",
        "begin": "#2 2:A/B+ fresh",
        "resume": "#2 2:A/B+ fresh",
        "resume clean": "#2 2:A/B+ fresh",
    },
    "not ready": {
        "D joins": "#3 1:A/C fresh",
        "A joins": "host-lost A | waiting | #3 2:A/C held | restored A | new-standby C",
        "B joins": "#3 1:A/C fresh",
        "A returns": "#3 1:A/C fresh",
        "B returns": "#3 1:A/C fresh",
        "A is lost": "host-lost A | waiting",
        "B is lost": "",
        "C is lost": "#3 1:A/- fresh | host-lost C | unprotected",
        "standby is ready": "#3 1:A/C+ fresh | standby-ready C",
        "stranger is ready": "",
        "standby is unusable": "#3 1:A/- fresh | unprotected C | unprotected",
        "stranger is unusable": "",
        "threw": "STOP s@5 boom",
        "begin": "#3 2:A/C+ fresh",
        "resume": "#3 2:A/C+ fresh",
        "resume clean": "#3 2:A/C+ fresh",
    },
    "alone": {
        "D joins": "#2 1:A/D fresh | new-standby D",
        "A joins": "host-lost A | waiting | #2 2:A/- held | restored A | unprotected",
        "B joins": "#2 1:A/B fresh | new-standby B",
        "A returns": "#2 1:A/- fresh",
        "B returns": "#2 1:A/B fresh | new-standby B",
        "A is lost": "host-lost A | waiting",
        "B is lost": "",
        "C is lost": "",
        "standby is ready": "",
        "stranger is ready": "",
        "standby is unusable": "",
        "stranger is unusable": "",
        "threw": "STOP s@5 boom",
        "begin": "#2 2:A/- fresh | unprotected",
        "resume": "#2 2:A/- fresh | unprotected",
        "resume clean": "#2 2:A/- fresh | unprotected",
    },
    "both gone": {
        "D joins": "#8 3:A/B+ held",
        "A joins": "#8 4:A/C held | restored A | new-standby C",
        "B joins": "#8 4:B/C held | promoted B | new-standby C",
        "A returns": "#8 3:A/C held | new-standby C",
        "B returns": "#8 4:B/C held | promoted B | new-standby C",
        "A is lost": "",
        "B is lost": "",
        "C is lost": "host-lost C",
        "standby is ready": "",
        "stranger is ready": "",
        "standby is unusable": "#8 3:A/- held | unprotected B",
        "stranger is unusable": "",
        "threw": "STOP s@5 boom",
        "begin": "#8 4:C/- fresh | unprotected",
        "resume": "#8 4:C/- fresh | unprotected",
        "resume clean": "#8 4:C/- fresh | unprotected",
    },
    "waits": {
        "D joins": "#3 1:A/C fresh",
        "A joins": "#3 2:A/C held | restored A | new-standby C",
        "B joins": "#3 1:A/C fresh",
        "A returns": "#3 1:A/C fresh",
        "B returns": "#3 1:A/C fresh",
        "A is lost": "",
        "B is lost": "",
        "C is lost": "host-lost C",
        "standby is ready": "#3 2:C/- held | promoted C | unprotected",
        "stranger is ready": "",
        "standby is unusable": "#3 1:A/- fresh | unprotected C",
        "stranger is unusable": "",
        "threw": "STOP s@5 boom",
        "begin": "#3 2:C/- fresh | unprotected",
        "resume": "#3 2:C/- fresh | unprotected",
        "resume clean": "#3 2:C/- fresh | unprotected",
    },
    "unprotected": {
        "D joins": "#2 1:A/- fresh",
        "A joins": "#2 2:B/- newest | host-lost A | restarted B | #3 2:B/- newest",
        "B joins": "host-lost B | #2 1:A/- fresh",
        "A returns": "#2 1:A/- fresh",
        "B returns": "#2 1:A/- fresh",
        "A is lost": "#2 2:B/- newest | host-lost A | restarted B",
        "B is lost": "host-lost B",
        "C is lost": "host-lost C",
        "standby is ready": "",
        "stranger is ready": "",
        "standby is unusable": "",
        "stranger is unusable": "",
        "threw": "STOP s@5 boom",
        "begin": "#2 2:A/- fresh",
        "resume": "#2 2:A/- newest",
        "resume clean": "#2 2:A/- fresh",
    },
    "stranded": {
        "D joins": "#2 2:D/- newest | restarted D",
        "A joins": "#2 2:A/- newest | restored A",
        "B joins": "#2 2:B/- newest | restarted B",
        "A returns": "#2 1:A/- fresh",
        "B returns": "#2 2:B/- newest | restarted B",
        "A is lost": "",
        "B is lost": "",
        "C is lost": "",
        "standby is ready": "",
        "stranger is ready": "",
        "standby is unusable": "",
        "stranger is unusable": "",
        "threw": "STOP s@5 boom",
        "begin": "#2 2:-/- fresh",
        "resume": "#2 2:-/- newest",
        "resume clean": "#2 2:-/- fresh",
    },
}


def shown(plan: Plan) -> str:
    unit = plan.units["u"]
    where = f"{unit.generation}:{unit.primary or '-'}/{unit.standby or '-'}{'+' if unit.ready else ''}"
    return f"#{plan.serial} {where} {unit.start}"


def render(effects: list[Effect]) -> str:
    """All of the effects but the text for people."""
    words = []
    for effect in effects:
        if isinstance(effect, Publish):
            words.append(shown(effect.plan))
        elif isinstance(effect, StopJob):
            words.append(f"STOP {effect.stage}@{effect.epoch} {effect.cause}")
        else:
            assert effect.unit == (None if effect.kind == "host-lost" else "u")
            words.append(effect.kind + (f" {effect.host}" if effect.host else ""))
    return " | ".join(words)


def test_the_table_has_every_pair() -> None:
    assert set(TABLE) == set(STATES)
    for row in TABLE.values():
        assert set(row) | set(NEVER_HEARD) == set(EVENTS)


@pytest.mark.parametrize("state", STATES)
def test_the_states_are_what_they_are_called(state: str) -> None:
    picture, build = STATES[state]
    machine = build()
    assert picture == f"{shown(machine.plan) if machine.plan.units else 'nothing'}, {''.join(machine.alive)}"


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_every_state_against_every_event(state: str, event: str) -> None:
    expected = "" if event in NEVER_HEARD else TABLE[state][event]
    machine = STATES[state][1]()
    before = machine.plan
    effects = machine.handle(EVENTS[event](machine), 0.0)
    assert render(effects) == expected
    published = [e.plan for e in effects if isinstance(e, Publish)]
    assert machine.plan == (published[-1] if published else before)


def test_a_standby_whose_readiness_is_heard_after_the_primarys_death_takes_over() -> None:
    machine = STATES["waits"][1]()
    machine.handle(StandbyReady("u", 1, "C"), 0.0)
    assert machine.plan.units["u"].primary == "C"


def test_a_primary_restarted_unnoticed_gives_way_to_its_ready_standby() -> None:
    machine = STATES["ready"][1]()
    machine.handle(HostJoined("A", holds={}), 0.0)
    assert machine.plan.units["u"].primary == "B"


def test_a_standby_restarted_unnoticed_is_no_longer_ready() -> None:
    machine = STATES["ready"][1]()
    machine.handle(HostJoined("B", holds={}), 0.0)
    assert not machine.plan.units["u"].ready or machine.plan.units["u"].standby != "B"


def test_a_primary_that_returns_gets_a_living_standby() -> None:
    machine = after(begun(protected=True, hosts="ABC"), lost("B"), lost("A"), lost("C"))
    machine.handle(HostJoined("A", returned=True), 0.0)
    assert machine.plan.units["u"].standby is None
    machine.handle(HostJoined("B"), 0.0)
    assert machine.plan.units["u"].standby == "B"


# -- scripts: whole lists, with the words ---------------------------------------------------------------------------


def chain() -> Topology:
    """Two protected units and an unprotected one, in a row."""
    stages = [StageShape("cars"), StageShape("means", ("cars",)), StageShape("alarms", ("means",), ("alarms",))]
    units = [
        UnitShape("cars", ("cars",), True),
        UnitShape("means", ("means",), True),
        UnitShape("alarms", ("alarms",), False),
    ]
    return Topology.build(stages, units)


def on(topology: Topology, *hosts: str) -> Failover:
    machine = Failover(topology)
    for host in hosts:
        assert machine.handle(HostJoined(host), 0.0) == []
    return machine


def test_a_job_begins_spread_over_its_hosts() -> None:
    machine = on(chain(), "h1", "h2", "h3")
    assert machine.handle(Begin(), 0.0) == [
        Publish(
            Plan(
                1,
                {
                    "cars": UnitPlan(1, "h1", "h2", True, "fresh"),
                    "means": UnitPlan(1, "h2", "h1", True, "fresh"),
                    "alarms": UnitPlan(1, "h3", None, False, "fresh"),
                },
            )
        )
    ]


def test_one_host_is_enough_but_the_user_is_told() -> None:
    machine = on(chain(), "h1")
    assert machine.handle(Begin(), 0.0) == [
        Publish(
            Plan(
                1,
                {
                    "cars": UnitPlan(1, "h1"),
                    "means": UnitPlan(1, "h1"),
                    "alarms": UnitPlan(1, "h1"),
                },
            )
        ),
        Say("unprotected", "cars is UNPROTECTED: no other living host can be its standby", "cars"),
        Say("unprotected", "means is UNPROTECTED: no other living host can be its standby", "means"),
    ]


def test_a_lost_host_is_replaced_in_all_its_roles() -> None:
    machine = on(chain(), "h1", "h2", "h3")
    machine.handle(Begin(), 0.0)
    assert machine.handle(HostLost("h2", "the connection broke"), 0.0) == [
        Publish(
            Plan(
                2,
                {
                    "cars": UnitPlan(1, "h1", "h3", False, "fresh"),
                    "means": UnitPlan(2, "h1", "h3", False, "held"),
                    "alarms": UnitPlan(1, "h3", None, False, "fresh"),
                },
            )
        ),
        Say("host-lost", "h2 is lost: the connection broke", None, "h2"),
        Say("promoted", "means: h1 takes over", "means", "h1"),
        Say("new-standby", "cars: h3 becomes its standby", "cars", "h3"),
        Say("new-standby", "means: h3 becomes its standby", "means", "h3"),
    ]


def test_an_unprotected_unit_starts_anew_where_there_is_least_to_do() -> None:
    machine = on(chain(), "h1", "h2", "h3", "h4")
    machine.handle(Begin(), 0.0)
    assert machine.handle(HostLost("h3", "4 heartbeats of 250 ms missed"), 0.0) == [
        Publish(
            Plan(
                2,
                {
                    "cars": UnitPlan(1, "h1", "h4", True, "fresh"),
                    "means": UnitPlan(1, "h2", "h4", True, "fresh"),
                    "alarms": UnitPlan(2, "h1", None, False, "newest"),
                },
            )
        ),
        Say("host-lost", "h3 is lost: 4 heartbeats of 250 ms missed", None, "h3"),
        Say("restarted", "alarms: unprotected, starts anew on h1; rows in between are lost", "alarms", "h1"),
    ]


def test_a_host_whose_process_was_replaced_is_lost_first_and_then_joins() -> None:
    machine = begun(protected=True, hosts="AB")
    assert machine.handle(HostJoined("A", {"u": 3}), 0.0) == [
        Publish(Plan(2, {"u": UnitPlan(2, "B", None, False, "held")})),
        Say("host-lost", "A is lost: its process was replaced", None, "A"),
        Say("promoted", "u: B takes over", "u", "B"),
        Say("unprotected", "u is UNPROTECTED: no other living host can be its standby", "u"),
        Publish(Plan(3, {"u": UnitPlan(2, "B", "A", False, "held")})),
        Say("new-standby", "u: A becomes its standby", "u", "A"),
    ]
    assert machine.alive["A"] == {"u": 3}


def test_a_standby_whose_readiness_is_heard_when_both_are_gone_takes_over_on_its_return() -> None:
    machine = after(STATES["waits"][1](), lost("C"))
    assert machine.handle(StandbyReady("u", 1, "C"), 0.0) == [
        Publish(Plan(3, {"u": UnitPlan(1, "A", "C", True, "fresh")})),
        Say("waiting", "u WAITS: nobody can take it over; it goes on when A or C returns", "u"),
    ]
    assert render(machine.handle(HostJoined("C", {"u": 4}), 0.0)) == "#4 2:C/- held | promoted C | unprotected"


def test_a_unit_that_nobody_can_take_over_says_whom_it_waits_for() -> None:
    machine = begun(protected=True, hosts="AB")
    machine.handle(lost("A"), 0.0)
    assert machine.handle(lost("B"), 0.0) == [
        Say("host-lost", "B is lost: x", None, "B"),
        Say("waiting", "u WAITS: nobody can take it over; it goes on when B returns", "u"),
    ]
    assert machine.handle(HostJoined("A"), 0.0) == [Publish(Plan(3, {"u": UnitPlan(2, "B", None, False, "held")}))]
    assert machine.handle(HostJoined("B"), 0.0) == [
        Publish(Plan(4, {"u": UnitPlan(3, "B", "A", False, "held")})),
        Say("restored", "u: goes on on B, which has returned", "u", "B"),
        Say("new-standby", "u: A becomes its standby", "u", "A"),
    ]


def test_an_unprotected_unit_waits_for_any_host() -> None:
    machine = begun(protected=False, hosts="A")
    assert machine.handle(lost("A"), 0.0) == [
        Say("host-lost", "A is lost: x", None, "A"),
        Say("waiting", "u WAITS: nobody can take it over; it goes on when A returns", "u"),
    ]
    assert machine.handle(HostJoined("B"), 0.0) == [
        Publish(Plan(2, {"u": UnitPlan(2, "B", None, False, "newest")})),
        Say("restarted", "u: unprotected, starts anew on B; rows in between are lost", "u", "B"),
    ]


def test_a_ready_standby_is_published_and_told() -> None:
    machine = STATES["not ready"][1]()
    assert machine.handle(StandbyReady("u", 1, "C"), 0.0) == [
        Publish(Plan(3, {"u": UnitPlan(1, "A", "C", True, "fresh")})),
        Say("standby-ready", "u: standby ready on C", "u", "C"),
    ]


def test_a_standby_with_a_full_disk_is_replaced_and_not_chosen_again_until_it_joins_anew() -> None:
    machine = begun(protected=True, hosts="AB")
    assert machine.handle(StandbyUnusable("u", 1, "B", "disk: full"), 0.0) == [
        Publish(Plan(2, {"u": UnitPlan(1, "A", None, False, "fresh")})),
        Say("unprotected", "u is UNPROTECTED: B cannot store its checkpoints (disk: full)", "u", "B"),
        Say("unprotected", "u is UNPROTECTED: no other living host can be its standby", "u"),
    ]
    assert render(machine.handle(HostJoined("C"), 0.0)) == "#3 1:A/C fresh | new-standby C"
    assert render(machine.handle(lost("C"), 0.0)) == "#4 1:A/- fresh | host-lost C | unprotected"
    assert render(machine.handle(HostJoined("B"), 0.0)) == "host-lost B | #5 1:A/B fresh | new-standby B"


def test_code_that_throws_is_tried_once_more_on_the_other_host_and_then_stops_the_job() -> None:
    machine = begun(protected=True, hosts="AB")
    assert machine.handle(StageThrew("u", 1, "s", 5, "boom"), 0.0) == [
        Publish(Plan(2, {"u": UnitPlan(2, "B", "A", False, "held")})),
        Say("threw", "s threw at epoch 5; trying once more on B", "u"),
        Say("new-standby", "u: A becomes its standby", "u", "A"),
    ]
    machine.handle(StandbyReady("u", 2, "A"), 0.0)
    assert machine.handle(StageThrew("u", 2, "s", 5, "boom"), 0.0) == [StopJob("s", 5, "boom")]


def test_code_that_throws_at_another_epoch_is_tried_again() -> None:
    machine = begun(protected=True, hosts="AB")
    machine.handle(StageThrew("u", 1, "s", 5, "boom"), 0.0)
    machine.handle(StandbyReady("u", 2, "A"), 0.0)
    assert render(machine.handle(StageThrew("u", 2, "s", 9, "boom"), 0.0)) == "#4 3:A/B held | threw | new-standby B"


def test_wishes_are_kept_while_the_wished_for_hosts_live() -> None:
    topology = Topology.build([StageShape("s")], [UnitShape("u", ("s",), True, primary="C", standby="A")])
    machine = on(topology, "A", "B", "C")
    assert render(machine.handle(Begin(), 0.0)) == "#1 1:C/A+ fresh"
    assert render(machine.handle(lost("A"), 0.0)) == "#2 1:C/B fresh | host-lost A | new-standby B"
    assert render(machine.handle(lost("B"), 0.0)) == "#3 1:C/- fresh | host-lost B | unprotected"
    machine.handle(HostJoined("B"), 0.0)
    assert render(machine.handle(HostJoined("A"), 0.0)) == "#5 1:C/B fresh", "nobody is moved for a wish"


def test_a_wish_for_a_host_that_is_not_there_is_passed_over() -> None:
    topology = Topology.build([StageShape("s")], [UnitShape("u", ("s",), True, primary="X", standby="Y")])
    assert render(on(topology, "A", "B").handle(Begin(), 0.0)) == "#1 1:A/B+ fresh"


def test_a_stopped_job_goes_on_where_the_newest_checkpoints_are() -> None:
    machine = Failover(chain())
    machine.handle(HostJoined("h1", {"cars": 7, "alarms": 9}), 0.0)
    machine.handle(HostJoined("h2", {"cars": 9, "means": 8}), 0.0)
    machine.adopt(Plan(20, {name: UnitPlan(4) for name in ("cars", "means", "alarms")}))
    assert machine.handle(Begin(resume=True, clean=True), 0.0) == [
        Publish(
            Plan(
                21,
                {
                    "cars": UnitPlan(5, "h2", "h1", False, "held"),
                    "means": UnitPlan(5, "h2", "h1", False, "held"),
                    "alarms": UnitPlan(5, "h1", None, False, "held"),
                },
            )
        )
    ]


def test_after_a_crash_of_everything_an_unprotected_unit_starts_anew() -> None:
    machine = Failover(chain())
    machine.handle(HostJoined("h1", {"cars": 7, "alarms": 9}), 0.0)
    machine.handle(HostJoined("h2", {"means": 8}), 0.0)
    machine.adopt(Plan(20, {name: UnitPlan(4) for name in ("cars", "means", "alarms")}))
    assert machine.handle(Begin(resume=True), 0.0) == [
        Publish(
            Plan(
                21,
                {
                    "cars": UnitPlan(5, "h1", "h2", False, "held"),
                    "means": UnitPlan(5, "h2", "h1", False, "held"),
                    "alarms": UnitPlan(5, "h1", None, False, "newest"),
                },
            )
        )
    ]


def test_of_two_equal_holders_one_is_chosen_whatever_the_order_of_joining() -> None:
    chosen = set()
    for hosts in ("AB", "BA"):
        machine = on(Topology.build([StageShape("s")], [UnitShape("u", ("s",), True)]))
        for host in hosts:
            machine.handle(HostJoined(host, {"u": 5}), 0.0)
        machine.handle(Begin(resume=True), 0.0)
        chosen.add(machine.plan.units["u"].primary)
    assert chosen == {"B"}


def test_a_restarted_coordinator_goes_on_from_its_journal() -> None:
    """It sends its last plan again with a higher serial, and what it decides next is higher still."""
    plan = Plan(12, {"u": UnitPlan(3, "A", "B", True, "held")})
    machine = one_unit(protected=True, hosts="")
    machine.adopt(plan)
    machine.alive.update({"A": {}, "B": {}})
    assert machine.handle(HostJoined("A", returned=True), 0.0) == [Publish(replace(plan, serial=13))]
    assert render(machine.handle(lost("A"), 0.0)) == "#14 4:B/- held | host-lost A | promoted B | unprotected"


def test_neighbours_that_fail_together_are_each_taken_over_at_once() -> None:
    """Gu et al. 2009, Theorem 3.2: consecutive failed PEs start recovery individually; the order from upstream to
    downstream comes from waiting for input and needs no decision here."""
    topology = Topology.build(
        [StageShape("a"), StageShape("b", ("a",))],
        [UnitShape("a", ("a",), True, "h1", "h2"), UnitShape("b", ("b",), True, "h1", "h3")],
    )
    machine = on(topology, "h1", "h2", "h3")
    machine.handle(Begin(), 0.0)
    machine.handle(lost("h1"), 0.0)
    assert {n: (u.generation, u.primary) for n, u in machine.plan.units.items()} == {"a": (2, "h2"), "b": (2, "h3")}


# -- random lives -----------------------------------------------------------------------------------------------

HOSTS = [f"h{i}" for i in range(4)]


class World:
    """A careful driver around the machine: it tells facts that can be facts, and checks every plan that comes out.

    It keeps its own account of who has what on disk: a standby once it is ready, and a primary as long as it lives
    or comes back."""

    def __init__(self, protections: list[bool], wishes: list[tuple[str | None, str | None]]) -> None:
        names = [f"u{i}" for i in range(len(protections))]
        stages = [StageShape(n, (names[i - 1],) if i else ()) for i, n in enumerate(names)]
        units = [UnitShape(n, (n,), p, *w) for n, p, w in zip(names, protections, wishes)]
        self.machine = Failover(Topology.build(stages, units))
        self.protected = dict(zip(names, protections))
        self.alive: set[str] = set()
        self.stopped = False

    def feed(self, event: Event) -> list[Effect]:
        if isinstance(event, HostJoined) and not event.returned and event.host in self.alive:
            return self.replace_process(event)
        before, was_alive = self.machine.plan, set(self.alive)
        if isinstance(event, HostJoined):
            self.alive.add(event.host)
        elif isinstance(event, HostLost):
            self.alive.discard(event.host)
        effects = self.machine.handle(event, 0.0)
        self.check(event, before, was_alive, effects)
        return effects

    def replace_process(self, event: HostJoined) -> list[Effect]:
        """A new process of a host not known to be lost is that host's loss, and then its joining."""
        twin = deepcopy(self.machine)
        effects = self.feed(HostLost(event.host, "its process was replaced")) + self.feed(event)
        assert twin.handle(event, 0.0) == effects
        assert vars(twin) | {"topology": None} == vars(self.machine) | {"topology": None}
        return effects

    def check(self, event: Event, before: Plan, was_alive: set[str], effects: list[Effect]) -> None:
        plan = self.machine.plan
        published = [e.plan for e in effects if isinstance(e, Publish)]
        assert len(published) <= 1
        if published:
            assert published == [plan] and plan.serial > before.serial
        else:
            assert plan == before, "a decision that nobody is told"
        self.stopped = self.stopped or any(isinstance(e, StopJob) for e in effects)
        for name, unit in plan.units.items():
            old = before.units.get(name, UnitPlan())
            protected = self.protected[name]
            armed = old.ready or event == StandbyReady(name, old.generation, old.standby or "")
            assert unit.generation >= old.generation
            if unit.primary != old.primary or unit.start != old.start:
                assert unit.generation > old.generation, "another primary, or another beginning, needs a new fence"
            assert unit.standby is None or unit.standby != unit.primary
            assert protected or unit.standby is None
            assert not unit.ready or unit.standby is not None
            if unit.primary in self.alive:
                assert unit.standby is None or unit.standby in self.alive
                spare = self.alive - {unit.primary} - {h for n, h in self.machine._unusable if n == name}
                assert unit.standby is not None or not protected or not spare, "a host could have been its standby"
            elif protected:
                assert not (unit.standby in self.alive and unit.ready), "waits though it could be taken over"
                assert unit == replace(old, ready=armed), "a waiting unit is left alone"
            else:
                assert not self.alive, "an unprotected unit waits only when nobody is there"
            if unit.generation > old.generation and not isinstance(event, Begin):
                if protected:
                    promoted = unit.primary == old.standby and armed
                    restored = unit.primary == old.primary and unit.primary not in was_alive
                    assert promoted or restored, "only a ready standby, or the returned primary, has the state"
                    assert unit.start == "held"
                else:
                    assert unit.start == "newest"

    def report(self, kind: str, unit: str, epoch: int) -> None:
        """A report that a living primary may send. That its standby is ready may be heard after its death."""
        plan = self.machine.plan.units.get(unit)
        if plan is None or (plan.primary not in self.alive and kind != "ready"):
            return
        if kind == "threw":
            self.feed(StageThrew(unit, plan.generation, unit, epoch, "boom"))
        elif plan.standby is not None and kind == "ready":
            self.feed(StandbyReady(unit, plan.generation, plan.standby))
        elif plan.standby is not None:
            self.feed(StandbyUnusable(unit, plan.generation, plan.standby, "full"))

    def stale(self, unit: str, host: str, epoch: int) -> None:
        """Anything that a fenced generation still says is not heard."""
        plan = self.machine.plan.units.get(unit)
        generation = (plan.generation if plan else 1) - 1
        for event in (
            StandbyReady(unit, generation, host),
            StandbyUnusable(unit, generation, host, "full"),
            StageThrew(unit, generation, unit, epoch, "boom"),
        ):
            assert self.feed(event) == []


WISH = st.one_of(st.none(), st.sampled_from([*HOSTS, "h9"]))
HOST = st.sampled_from(HOSTS)
UNIT = st.sampled_from(["u0", "u1", "u2"])
LIVES = st.one_of(
    st.tuples(st.just("join"), HOST, st.booleans()),
    st.tuples(st.just("lose"), HOST),
    st.tuples(st.sampled_from(["ready", "unusable"]), UNIT, st.just(0)),
    st.tuples(st.just("ready"), UNIT, st.just(0)),
    st.tuples(st.just("threw"), UNIT, st.integers(0, 1)),
    st.tuples(st.just("stale"), UNIT, HOST),
)


@settings(PATIENT, max_examples=400)
@given(
    st.lists(st.booleans(), min_size=1, max_size=3),
    st.lists(st.tuples(WISH, WISH), min_size=3, max_size=3),
    st.lists(HOST, unique=True, min_size=1),
    st.tuples(st.booleans(), st.booleans()),
    st.dictionaries(HOST, st.dictionaries(UNIT, st.integers(0, 9))),
    st.lists(LIVES, max_size=40),
)
def test_whatever_becomes_of_the_hosts_the_plan_is_sound(
    protections: list[bool],
    wishes: list[tuple[str | None, str | None]],
    first: list[str],
    begin: tuple[bool, bool],
    holds: dict[str, dict[str, int]],
    lives: list[tuple],
) -> None:
    world = World(protections, wishes)
    for host in first:
        assert world.feed(HostJoined(host, holds.get(host, {}))) == []
    world.feed(Begin(*begin))
    assert all(unit.primary in world.alive for unit in world.machine.plan.units.values())
    for kind, who, *about in lives:
        if kind == "join":
            world.feed(HostJoined(who, returned=about[0]))
        elif kind == "lose":
            known = who in world.alive
            effects = world.feed(HostLost(who, "x"))
            assert bool(effects) == known
        elif kind == "stale":
            world.stale(who, about[0], 0)
        else:
            world.report(kind, who, about[0])

    # Heal: when everybody is back, everything runs again and everything protected has a standby.
    for host in HOSTS:
        if host not in world.alive:
            world.feed(HostJoined(host))
    for name, unit in world.machine.plan.units.items():
        assert unit.primary in world.alive, f"{name} waits for ever"


@settings(PATIENT, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["join", "lose"]), HOST), max_size=20))
def test_before_the_beginning_only_losses_are_told(lives: list[tuple[str, str]]) -> None:
    machine = on(chain())
    alive: set[str] = set()
    for kind, host in lives:
        if kind == "join":
            told = [Say("host-lost", f"{host} is lost: its process was replaced", None, host)] if host in alive else []
            assert machine.handle(HostJoined(host), 0.0) == told
            alive.add(host)
        else:
            told = [Say("host-lost", f"{host} is lost: x", None, host)] if host in alive else []
            assert machine.handle(HostLost(host, "x"), 0.0) == told
            alive.discard(host)
    assert machine.plan == Plan()
    assert set(machine.alive) == alive


@settings(PATIENT)
@given(st.permutations(HOSTS))
def test_the_order_of_joining_does_not_change_the_placement(order: list[str]) -> None:
    machine = on(chain(), *order)
    machine.handle(Begin(), 0.0)
    assert machine.plan == Plan(
        1,
        {
            "cars": UnitPlan(1, "h0", "h3", True),
            "means": UnitPlan(1, "h1", "h3", True),
            "alarms": UnitPlan(1, "h2"),
        },
    )
