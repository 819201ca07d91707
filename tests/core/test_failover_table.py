"""Who runs what: every state of a unit against every event. How it is written is said in placements.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from placements import PASSIVE, adopted, after, begun, lost, one_unit, render, shown

from understudy.core.failover import (
    Begin,
    Event,
    Failover,
    HostCleared,
    HostJoined,
    HostSuspected,
    Publish,
    StageThrew,
    StandbyReady,
    StandbyUnusable,
)
from understudy.core.plans import UnitPlan
from understudy.core.policies import Hybrid, PassiveStandby, UpstreamBackup, none

BOTH_GONE = UnitPlan(3, "A", ("B",), ("B",), "held", (5,))
STATES: dict[str, tuple[str, Callable[[], Failover]]] = {
    "unplaced": ("nothing, ABC", lambda: one_unit(PASSIVE, "ABC")),
    "ready": ("#1 1:A/B1+ fresh, ABC", lambda: begun(PASSIVE, "ABC")),
    "not ready": ("#2 1:A/C2 fresh, AC", lambda: after(begun(PASSIVE, "ABC"), lost("B"))),
    "alone": ("#1 1:A/- fresh, A", lambda: begun(PASSIVE, "A")),
    "both gone": ("#7 3:A/B5+ held, C", lambda: adopted(PASSIVE, "C", BOTH_GONE)),
    "waits": ("#2 1:A/C2 fresh, C", lambda: after(begun(PASSIVE, "ABC"), lost("B"), lost("A"))),
    "unprotected": ("#1 1:A/- fresh, ABC", lambda: begun(none, "ABC")),
    "stranded": ("#1 1:A/- fresh, ", lambda: after(begun(none, "A"), lost("A"))),
    "replayed": ("#1 1:A/- fresh, ABC", lambda: begun(UpstreamBackup(), "ABC")),
    "replayed, stranded": ("#1 1:A/- fresh, ", lambda: after(begun(UpstreamBackup(), "A"), lost("A"))),
    "two ready": ("#1 1:A/B1+C1+ fresh, ABC", lambda: begun(PassiveStandby(standbys=2), "ABC")),
    "one of two": ("#2 1:A/C1+ fresh, AC", lambda: after(begun(PassiveStandby(standbys=2), "ABC"), lost("B"))),
    "two, one ready": (
        "#3 1:A/C1+B3 fresh, ACB",
        lambda: after(begun(PassiveStandby(standbys=2), "ABC"), lost("B"), HostJoined("B")),
    ),
    "hybrid": ("#1 1:A/B1+ fresh, ABC", lambda: begun(Hybrid(), "ABC")),
    "hybrid, not ready": ("#2 1:A/C2 fresh, AC", lambda: after(begun(Hybrid(), "ABC"), lost("B"))),
    "rising": ("#2 1:A/B1+ fresh rising, ABC", lambda: after(begun(Hybrid(), "ABC"), HostSuspected("A"))),
}


def unit(machine: Failover) -> UnitPlan:
    return machine.plan.units.get("u", UnitPlan(0, None, ("B",), (), since=(0,)))


def ready(machine: Failover, *, generation: int = 0, since: int = 0) -> StandbyReady:
    """The last standby is ready; the numbers say by how much this news is old."""
    name, number = next(reversed([*zip(unit(machine).standbys, unit(machine).since)]), ("B", 1))
    return StandbyReady("u", unit(machine).generation - generation, name, number - since)


def unusable(machine: Failover, *, generation: int = 0) -> StandbyUnusable:
    """The first standby cannot store."""
    name, number = next(zip(unit(machine).standbys, unit(machine).since), ("B", 1))
    return StandbyUnusable("u", unit(machine).generation - generation, name, number, "full")


EVENTS: dict[str, Callable[[Failover], Event]] = {
    "D joins": lambda m: HostJoined("D"),
    "A joins": lambda m: HostJoined("A", {"u": 9}),
    "B joins": lambda m: HostJoined("B", {"u": 4}),
    "A joins empty": lambda m: HostJoined("A"),
    "B joins empty": lambda m: HostJoined("B"),
    "A returns": lambda m: HostJoined("A", returned=True),
    "B returns": lambda m: HostJoined("B", returned=True),
    "A is lost": lambda m: lost("A"),
    "B is lost": lambda m: lost("B"),
    "C is lost": lambda m: lost("C"),
    "stranger is lost": lambda m: lost("Z"),
    "A is suspected": lambda m: HostSuspected("A"),
    "B is suspected": lambda m: HostSuspected("B"),
    "stranger is suspected": lambda m: HostSuspected("Z"),
    "A is cleared": lambda m: HostCleared("A"),
    "B is cleared": lambda m: HostCleared("B"),
    "standby is ready": lambda m: ready(m),
    "fenced ready": lambda m: ready(m, generation=1),
    "replaced process was ready": lambda m: ready(m, since=1),
    "stranger is ready": lambda m: StandbyReady("u", unit(m).generation, "Z", 1),
    "standby is unusable": lambda m: unusable(m),
    "fenced unusable": lambda m: unusable(m, generation=1),
    "stranger is unusable": lambda m: StandbyUnusable("u", unit(m).generation, "Z", 1, "full"),
    "threw": lambda m: StageThrew("u", unit(m).generation, "s", 5, "boom"),
    "fenced threw": lambda m: StageThrew("u", unit(m).generation - 1, "s", 5, "boom"),
    "unknown unit": lambda m: StandbyReady("zz", unit(m).generation, "B", 1),
    "begin": lambda m: Begin(),
    "resume": lambda m: Begin(resume=True),
    "resume clean": lambda m: Begin(resume=True, clean=True),
}

TABLE: dict[str, dict[str, str]] = {
    "unplaced": {
        "A joins": "host-lost A",
        "B joins": "host-lost B",
        "A is lost": "host-lost A",
        "B is lost": "host-lost B",
        "C is lost": "host-lost C",
        "begin": "#1 1:A/B1+ fresh",
        "resume": "#1 1:A/B1+ fresh",
        "resume clean": "#1 1:A/B1+ fresh",
    },
    "ready": {
        "D joins": "#2 1:A/B1+ fresh",
        "A joins": "host-lost A | promoted B | new-standby C | #3 2:B/C2 held",
        "B joins": "host-lost B | new-standby C | #3 1:A/C2 fresh",
        "A returns": "#2 1:A/B1+ fresh",
        "B returns": "#2 1:A/B1+ fresh",
        "A is lost": "#2 2:B/C2 held | host-lost A | promoted B | new-standby C",
        "B is lost": "#2 1:A/C2 fresh | host-lost B | new-standby C",
        "C is lost": "host-lost C",
        "standby is unusable": "#2 1:A/C2 fresh | unprotected B | new-standby C",
        "threw": "#2 2:B/A2 held | threw | new-standby A",
        "begin": "#2 2:A/B2+ fresh",
        "resume": "#2 2:A/B2+ fresh",
        "resume clean": "#2 2:A/B2+ fresh",
    },
    "not ready": {
        "D joins": "#3 1:A/C2 fresh",
        "A joins": "host-lost A | waiting | #3 2:A/C3 held | restored A | new-standby C",
        "B joins": "#3 1:A/C2 fresh",
        "A returns": "#3 1:A/C2 fresh",
        "B returns": "#3 1:A/C2 fresh",
        "A is lost": "host-lost A | waiting",
        "C is lost": "#3 1:A/- fresh | host-lost C | unprotected",
        "standby is ready": "#3 1:A/C2+ fresh | standby-ready C",
        "standby is unusable": "#3 1:A/- fresh | unprotected C | unprotected",
        "threw": "STOP s@5 boom",
        "begin": "#3 2:A/C3+ fresh",
        "resume": "#3 2:A/C3+ fresh",
        "resume clean": "#3 2:A/C3+ fresh",
    },
    "alone": {
        "D joins": "#2 1:A/D2 fresh | new-standby D",
        "A joins": "host-lost A | waiting | #2 2:A/- held | restored A | unprotected",
        "B joins": "#2 1:A/B2 fresh | new-standby B",
        "A returns": "#2 1:A/- fresh",
        "B returns": "#2 1:A/B2 fresh | new-standby B",
        "A is lost": "host-lost A | waiting",
        "threw": "STOP s@5 boom",
        "begin": "#2 2:A/- fresh | unprotected",
        "resume": "#2 2:A/- fresh | unprotected",
        "resume clean": "#2 2:A/- fresh | unprotected",
    },
    "both gone": {
        "D joins": "#8 3:A/B5+ held",
        "A joins": "#8 4:A/C8 held | restored A | new-standby C",
        "B joins": "#8 4:B/C8 held | promoted B | new-standby C",
        "A returns": "#8 3:A/C8 held | new-standby C",
        "B returns": "#8 4:B/C8 held | promoted B | new-standby C",
        "C is lost": "host-lost C",
        "standby is unusable": "#8 3:A/- held | unprotected B",
        "threw": "STOP s@5 boom",
        "begin": "#8 4:C/- fresh | unprotected",
        "resume": "#8 4:C/- fresh | unprotected",
        "resume clean": "#8 4:C/- fresh | unprotected",
    },
    "waits": {
        "D joins": "#3 1:A/C2 fresh",
        "A joins": "#3 2:A/C3 held | restored A | new-standby C",
        "B joins": "#3 1:A/C2 fresh",
        "A returns": "#3 1:A/C2 fresh",
        "B returns": "#3 1:A/C2 fresh",
        "C is lost": "host-lost C",
        "standby is ready": "#3 2:C/- held | promoted C | unprotected",
        "standby is unusable": "#3 1:A/- fresh | unprotected C",
        "threw": "STOP s@5 boom",
        "begin": "#3 2:C/- fresh | unprotected",
        "resume": "#3 2:C/- fresh | unprotected",
        "resume clean": "#3 2:C/- fresh | unprotected",
    },
    "unprotected": {
        "D joins": "#2 1:A/- fresh",
        "A joins": "host-lost A | restarted B | #3 2:B/- newest",
        "B joins": "host-lost B | #2 1:A/- fresh",
        "A returns": "#2 1:A/- fresh",
        "B returns": "#2 1:A/- fresh",
        "A is lost": "#2 2:B/- newest | host-lost A | restarted B",
        "B is lost": "host-lost B",
        "C is lost": "host-lost C",
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
        "threw": "STOP s@5 boom",
        "begin": "#2 2:-/- fresh",
        "resume": "#2 2:-/- newest",
        "resume clean": "#2 2:-/- fresh",
    },
    "replayed": {
        "D joins": "#2 1:A/- fresh",
        "A joins": "host-lost A | restarted B | #3 2:B/- replay",
        "B joins": "host-lost B | #3 1:A/- fresh",
        "A returns": "#2 1:A/- fresh",
        "B returns": "#2 1:A/- fresh",
        "A is lost": "#2 2:B/- replay | host-lost A | restarted B",
        "B is lost": "#2 1:A/- fresh | host-lost B",  # it was the spare, and C is told to be
        "C is lost": "host-lost C",
        "threw": "#2 2:B/- replay | threw",
        "begin": "#2 2:A/- fresh",
        "resume": "#2 2:A/- replay",
        "resume clean": "#2 2:A/- fresh",
    },
    "replayed, stranded": {
        "D joins": "#2 2:D/- replay | restarted D",
        "A joins": "#2 2:A/- replay | restored A",
        "B joins": "#2 2:B/- replay | restarted B",
        "A returns": "#2 1:A/- fresh",
        "B returns": "#2 2:B/- replay | restarted B",
        "threw": "STOP s@5 boom",
        "begin": "#2 2:-/- fresh",
        "resume": "#2 2:-/- replay",
        "resume clean": "#2 2:-/- fresh",
    },
    "two ready": {
        "D joins": "#2 1:A/B1+C1+ fresh",
        "A joins": "host-lost A | promoted B | #3 2:B/C1+A3 held | new-standby A",
        "B joins": "host-lost B | #3 1:A/C1+B3 fresh | new-standby B",
        "A returns": "#2 1:A/B1+C1+ fresh",
        "B returns": "#2 1:A/B1+C1+ fresh",
        "A is lost": "#2 2:B/C1+ held | host-lost A | promoted B",
        "B is lost": "#2 1:A/C1+ fresh | host-lost B",
        "C is lost": "#2 1:A/B1+ fresh | host-lost C",
        "threw": "#2 2:B/C1+A2 held | threw | new-standby A",
        "begin": "#2 2:A/B2+C2+ fresh",
        "resume": "#2 2:A/B2+C2+ fresh",
        "resume clean": "#2 2:A/B2+C2+ fresh",
    },
    "one of two": {
        "D joins": "#3 1:A/C1+D3 fresh | new-standby D",
        "A joins": "host-lost A | promoted C | unprotected | #4 2:C/A4 held | new-standby A",
        "B joins": "#3 1:A/C1+B3 fresh | new-standby B",
        "A returns": "#3 1:A/C1+ fresh",
        "B returns": "#3 1:A/C1+B3 fresh | new-standby B",
        "A is lost": "#3 2:C/- held | host-lost A | promoted C | unprotected",
        "C is lost": "#3 1:A/- fresh | host-lost C | unprotected",
        "standby is unusable": "#3 1:A/- fresh | unprotected C | unprotected",
        "threw": "#3 2:C/A3 held | threw | new-standby A",
        "begin": "#3 2:A/C3+ fresh",
        "resume": "#3 2:A/C3+ fresh",
        "resume clean": "#3 2:A/C3+ fresh",
    },
    "two, one ready": {
        "D joins": "#4 1:A/C1+B3 fresh",
        "A joins": "host-lost A | promoted C | #5 2:C/B3A5 held | new-standby A",
        "B joins": "host-lost B | #5 1:A/C1+B5 fresh | new-standby B",
        "A returns": "#4 1:A/C1+B3 fresh",
        "B returns": "#4 1:A/C1+B3 fresh",
        "A is lost": "#4 2:C/B3 held | host-lost A | promoted C",
        "B is lost": "#4 1:A/C1+ fresh | host-lost B",
        "C is lost": "#4 1:A/B3 fresh | host-lost C",
        "standby is ready": "#4 1:A/C1+B3+ fresh | standby-ready B",
        "standby is unusable": "#4 1:A/B3 fresh | unprotected C",
        "threw": "#4 2:C/B3A4 held | threw | new-standby A",
        "begin": "#4 2:A/B4+C4+ fresh",
        "resume": "#4 2:A/B4+C4+ fresh",
        "resume clean": "#4 2:A/B4+C4+ fresh",
    },
    "hybrid": {
        "D joins": "#2 1:A/B1+ fresh",
        "A joins": "host-lost A | promoted B | new-standby C | #3 2:B/C2 held",
        "B joins": "host-lost B | new-standby C | #3 1:A/C2 fresh",
        "A returns": "#2 1:A/B1+ fresh",
        "B returns": "#2 1:A/B1+ fresh",
        "A is lost": "#2 2:B/C2 held | host-lost A | promoted B | new-standby C",
        "B is lost": "#2 1:A/C2 fresh | host-lost B | new-standby C",
        "C is lost": "host-lost C",
        "A is suspected": "#2 1:A/B1+ fresh rising | rising B",
        "standby is unusable": "#2 1:A/C2 fresh | unprotected B | new-standby C",
        "threw": "#2 2:B/A2 held | threw | new-standby A",
        "begin": "#2 2:A/B2+ fresh",
        "resume": "#2 2:A/B2+ fresh",
        "resume clean": "#2 2:A/B2+ fresh",
    },
    "hybrid, not ready": {
        "D joins": "#3 1:A/C2 fresh",
        "A joins": "host-lost A | waiting | #3 2:A/C3 held | restored A | new-standby C",
        "B joins": "#3 1:A/C2 fresh",
        "A returns": "#3 1:A/C2 fresh",
        "B returns": "#3 1:A/C2 fresh",
        "A is lost": "host-lost A | waiting",
        "C is lost": "#3 1:A/- fresh | host-lost C | unprotected",
        "standby is ready": "#3 1:A/C2+ fresh | standby-ready C",
        "standby is unusable": "#3 1:A/- fresh | unprotected C | unprotected",
        "threw": "STOP s@5 boom",
        "begin": "#3 2:A/C3+ fresh",
        "resume": "#3 2:A/C3+ fresh",
        "resume clean": "#3 2:A/C3+ fresh",
    },
    "rising": {
        "D joins": "#3 1:A/B1+ fresh rising",
        "A joins": "host-lost A | promoted B | new-standby C | #4 2:B/C3 held",
        "B joins": "host-lost B | new-standby C | #4 1:A/C3 fresh rising",
        "A returns": "#3 1:A/B1+ fresh",
        "B returns": "#3 1:A/B1+ fresh rising",
        "A is lost": "#3 2:B/C3 held | host-lost A | promoted B | new-standby C",
        "B is lost": "#3 1:A/C3 fresh rising | host-lost B | new-standby C",
        "C is lost": "host-lost C",
        "A is cleared": "#3 1:A/B1+ fresh | stood-down B",
        "standby is unusable": "#3 1:A/C3 fresh rising | unprotected B | new-standby C",
        "threw": "#3 2:B/A3 held | threw | new-standby A",
        "begin": "#3 2:A/B3+ fresh",
        "resume": "#3 2:A/B3+ fresh",
        "resume clean": "#3 2:A/B3+ fresh",
    },
}
"""State -> event -> effects. Absent: nothing happens."""

for _state, _row in TABLE.items():
    # That a host has lost its disk matters only where it was needed.
    _row |= {f"{host} joins empty": _row[f"{host} joins"] for host in "AB" if f"{host} joins" in _row}
TABLE["both gone"]["B joins empty"] = "#8 3:A/- held"

ELSEWHERE = {("two ready", "standby is unusable"), ("both gone", "A joins empty")}
"""See test_an_unusable_standby_of_two_leaves_the_unit_protected and test_a_primary_that_lost_its_disk_gives_way."""


def test_the_table_has_every_state_and_no_others_than_known_events() -> None:
    assert set(TABLE) == set(STATES)
    for row in TABLE.values():
        assert set(row) <= set(EVENTS)


@pytest.mark.parametrize("state", STATES)
def test_the_states_are_what_they_are_called(state: str) -> None:
    picture, build = STATES[state]
    machine = build()
    assert picture == f"{shown(machine.plan) if machine.plan.units else 'nothing'}, {''.join(machine.alive)}"


@pytest.mark.parametrize(("state", "event"), [p for p in product(STATES, EVENTS) if p not in ELSEWHERE])
def test_every_state_against_every_event(state: str, event: str) -> None:
    machine = STATES[state][1]()
    before = machine.plan
    effects = machine.handle(EVENTS[event](machine), 0.0)
    assert render(effects) == TABLE[state].get(event, "")
    published = [e.plan for e in effects if isinstance(e, Publish)]
    assert machine.plan == (published[-1] if published else before)
