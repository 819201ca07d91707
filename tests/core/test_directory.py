"""What a host knows of the others from the newest plan."""

from __future__ import annotations

from dataclasses import replace

from understudy.core.directory import Directory, Policies
from understudy.core.plans import Plan, Turn, UnitPlan
from understudy.core.policies import ActiveStandby, PassiveStandby, UpstreamBackup, spell
from understudy.core.topology import StageShape, Topology, UnitShape

EAGER, REPLAY = ActiveStandby(delivery="eager"), UpstreamBackup(k=2)
TOPOLOGY = Topology.build(
    [StageShape("in"), StageShape("x", ("in",)), StageShape("y", ("x",)), StageShape("z", ("y",), ("out",))],
    [
        UnitShape("in", ("in",), PassiveStandby()),
        UnitShape("x", ("x",), EAGER),
        UnitShape("u", ("y",), PassiveStandby()),
        UnitShape("z", ("z",), REPLAY),
    ],
)
UNITS = {
    "in": UnitPlan(1, "a", ("b",), ("b",), since=(1,)),
    "x": UnitPlan(2, "b", ("c", "d"), ("d",), since=(1, 1)),
    "u": UnitPlan(3, "c"),
    "z": UnitPlan(4, "d"),
}


def directory(host: str = "b", **changed: UnitPlan) -> Directory:
    made = Directory(host)
    made.define(TOPOLOGY)
    made.take(Plan(7, {**UNITS, **changed}))
    return made


def test_whom_to_ask() -> None:
    some = directory()
    assert some.serial == 7 and some.primary_of("in") == "a"
    assert some.producers("in", "x") == ("a",)
    assert some.producers("x", "u") == ("b", "d"), "of eager copies those that are ready"
    assert some.producers("y", "u") == ("b",), "within a unit a copy keeps to itself"
    assert directory(x=UnitPlan(2)).producers("x", "u") == ()


def test_before_there_is_a_plan_nobody_is_asked() -> None:
    some = Directory("b")
    some.define(TOPOLOGY)
    assert some.producers("in", "x") == () and some.primary_of("in") is None and not some.stale("x", 0)


def test_a_generation_that_was_replaced_is_stale() -> None:
    some = directory()
    assert some.stale("u", 2) and not some.stale("u", 3) and not some.stale("u", 4)


def test_who_led_a_unit_before() -> None:
    some = directory()
    some.take(Plan(8, {**UNITS, "x": UnitPlan(3, "c"), "u": UnitPlan(3)}))
    assert some.lost_with == {"x": "b", "u": "c"}
    some.take(Plan(9, {**UNITS, "x": UnitPlan(3, "c"), "u": UnitPlan(4, "d")}))
    assert some.lost_with == {"x": "b", "u": "c"}, "while nobody led it, nobody was lost"
    some.forget()
    assert some.lost_with == {} and some.producers("in", "x") == () and some.serial == 9


def test_what_keeps_nothing_safe() -> None:
    some = directory("a")
    assert some.near("in", "x", "a"), "on the producer's own host"
    assert some.near("in", "x", "b"), "its copies may lag"
    three = directory("c")
    assert not three.near("y", "z", "d")
    assert three.near("y", "z", "b"), "the producer's own producer is there: with two lost, both are"
    assert not directory("b").near("x", "y", "c")


def test_policies_that_were_changed_and_those_to_come() -> None:
    defined = Policies(TOPOLOGY)
    assert defined.now(Plan(1, UNITS)) is defined
    assert defined.copied == {"x"} and defined.layered == {"z": 2}
    turn = Turn(spell(EAGER), serial=3)
    units = {**UNITS, "u": replace(UNITS["u"], turn=turn), "z": replace(UNITS["z"], policy=spell(PassiveStandby()))}
    now = defined.now(Plan(3, units))
    assert now.of["u"] == PassiveStandby() and now.of["z"] == PassiveStandby()
    assert now.copied == {"x", "y"} and now.layered == {}
