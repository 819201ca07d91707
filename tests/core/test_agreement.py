"""What a host makes of a plan: every part that it can have against every part that it can be given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.core.agreement import (
    MOVES,
    Begin,
    Follow,
    Forget,
    IllegalMove,
    Order,
    Part,
    Promote,
    Rise,
    StandBy,
    StandDown,
    Standing,
    TellFenced,
    orders,
    wanted_of,
)
from understudy.core.plans import Turn, UnitPlan
from understudy.core.policies import ActiveStandby, PassiveStandby, UpstreamBackup, spell

PASSIVE = PassiveStandby()
LED = UnitPlan(generation=3, primary="a", standbys=("b", "c"), since=(5, 7), ready=("b",))
NOTHING = Standing()


def primary(generation: int, *, over: bool = False) -> Standing:
    return Standing(Part.PRIMARY, generation, over=over)


def standby(generation: int, since: int) -> Standing:
    return Standing(Part.STANDBY, generation, since)


@pytest.mark.parametrize(
    ("host", "mine", "expected"),
    [
        # is to be primary
        ("a", NOTHING, [Begin(3, "fresh")]),
        ("a", primary(3), []),
        ("a", primary(3, over=True), []),
        ("a", primary(2), [TellFenced(2), Begin(3, "fresh")]),
        ("a", primary(2, over=True), [Begin(3, "fresh")]),
        ("a", standby(2, 5), [Begin(3, "fresh")]),
        # is to be the standby since plan 5, or 7
        ("b", NOTHING, [StandBy(3, 5, PASSIVE), StandDown()]),
        ("c", NOTHING, [StandBy(3, 7, PASSIVE), StandDown()]),
        ("b", standby(3, 5), [StandDown()]),
        ("b", standby(2, 5), [Follow(3), StandDown()]),
        ("b", standby(3, 4), [StandBy(3, 5, PASSIVE), StandDown()]),
        ("b", primary(2), [TellFenced(2), StandBy(3, 5, PASSIVE), StandDown()]),
        ("b", primary(2, over=True), [StandBy(3, 5, PASSIVE), StandDown()]),
        # is to be nothing
        ("d", NOTHING, []),
        ("d", standby(3, 4), [Forget()]),
        ("d", primary(2), [TellFenced(2), Forget()]),
        ("d", primary(2, over=True), [Forget()]),
    ],
)
def test_every_part_against_every_part(host: str, mine: Standing, expected: list[Order]) -> None:
    assert orders(host, mine, LED, PASSIVE) == expected


def test_a_standby_that_counts_is_promoted_and_one_that_does_not_begins() -> None:
    held = replace(LED, primary="b", standbys=("c",), since=(7,), start="held")
    assert orders("b", standby(2, 5), held, PASSIVE) == [Promote(3)]
    assert orders("b", NOTHING, held, PASSIVE) == [Begin(3, "held")], "from an earlier run"
    assert orders("b", primary(2), held, PASSIVE) == [TellFenced(2), Begin(3, "held")], "its own next generation"
    for start in ("fresh", "newest", "replay"):
        assert orders("b", standby(2, 5), replace(held, start=start), PASSIVE) == [Begin(3, start)]


def test_the_first_that_is_ready_rises() -> None:
    rising = replace(LED, rising=True)
    assert orders("b", standby(3, 5), rising, PASSIVE) == [Rise()]
    assert orders("c", standby(3, 7), rising, PASSIVE) == [StandDown()]
    assert orders("b", standby(2, 5), rising, PASSIVE) == [Follow(3), Rise()]


def test_without_a_primary_what_a_standby_holds_may_be_all_that_is_left() -> None:
    waiting = replace(LED, primary=None)
    assert orders("b", standby(3, 4), waiting, PASSIVE) == []
    assert orders("b", NOTHING, waiting, PASSIVE) == []
    assert orders("b", standby(3, 5), waiting, PASSIVE) == [StandDown()]


def test_a_standby_to_come_is_one_under_the_policy_to_come() -> None:
    active = ActiveStandby()
    turning = replace(LED, turn=Turn(spell(active), 9, standbys=("d",), since=(9,)))
    assert wanted_of("b", turning, PASSIVE) == (Part.STANDBY, 5, PASSIVE)
    assert wanted_of("d", turning, PASSIVE) == (Part.STANDBY, 9, active)
    assert orders("d", NOTHING, turning, PASSIVE) == [StandBy(3, 9, active), StandDown()]
    changed = replace(LED, policy=spell(active))
    assert wanted_of("c", changed, PASSIVE) == (Part.STANDBY, 7, active)


def test_a_generation_never_falls() -> None:
    with pytest.raises(IllegalMove, match="a is to be primary of generation 3, but it is standby of generation 4"):
        orders("a", standby(4, 5), LED, PASSIVE)


STANDINGS = st.one_of(
    st.just(NOTHING),
    st.builds(primary, st.integers(0, 3), over=st.booleans()),
    st.builds(standby, st.integers(0, 3), st.integers(0, 9)),
)
HOSTS = st.sampled_from("abcd")


@st.composite
def plans(draw: st.DrawFn) -> UnitPlan:
    others = draw(st.lists(HOSTS, unique=True, max_size=4))
    leader = draw(st.none() | HOSTS.filter(lambda host: host not in others))
    names, later = others[: len(others) // 2], others[len(others) // 2 :]
    since = tuple(draw(st.integers(0, 9)) for _ in names)
    turn = Turn(spell(UpstreamBackup()), 9, tuple(later), since=(9,) * len(later)) if draw(st.booleans()) else None
    start = draw(st.sampled_from(["fresh", "held", "newest", "replay"]))
    ready = tuple(name for name in names if draw(st.booleans()))
    return UnitPlan(3, leader, tuple(names), ready, start, since, draw(st.booleans()), turn=turn)


def after(mine: Standing, found: list[Order]) -> Standing:
    """What a host is when it has carried them out."""
    for order in found:
        match order:
            case Begin(generation, _) | Promote(generation):
                mine = primary(generation)
            case StandBy(generation, since, _):
                mine = standby(generation, since)
            case Follow(generation):
                mine = standby(generation, mine.since)
            case Forget():
                mine = NOTHING
    return mine


@given(HOSTS, STANDINGS, plans())
def test_a_host_that_has_carried_out_its_orders_is_what_the_plan_wants(
    host: str, mine: Standing, wanted: UnitPlan
) -> None:
    found = orders(host, mine, wanted, PASSIVE)
    part, since, _ = wanted_of(host, wanted, PASSIVE)
    assert {type(order) for order in found} <= MOVES[mine.part, part]
    then = after(mine, found)
    if part is not Part.STANDBY or wanted.primary is not None:
        assert then.part is part
        assert part is Part.NOTHING or then.generation == 3
        assert part is not Part.STANDBY or then.since == since
    again = orders(host, then, wanted, PASSIVE)
    assert all(isinstance(order, (Rise, StandDown)) for order in again), "a plan that comes twice does no harm"
