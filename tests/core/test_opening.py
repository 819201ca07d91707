"""How many epochs sources may cut, and when."""

from __future__ import annotations

from understudy.core.opening import OPENING_S, UNLIMITED, Opening
from understudy.core.plans import Plan, UnitPlan
from understudy.core.policies import PassiveStandby
from understudy.core.topology import StageShape, Topology, UnitShape

TOPOLOGY = Topology.build(
    [StageShape("rows", ()), StageShape("a", ("rows",)), StageShape("b", ("a",))],
    [UnitShape(name, (name,), PassiveStandby()) for name in ("rows", "a", "b")],
)
PLAN = Plan(1, {name: UnitPlan(generation=2, primary="h1") for name in ("rows", "a", "b")})


def look(opening: Opening, now: float = 0.0, *, armed: bool = False, late: bool = False) -> bool:
    return opening.look(TOPOLOGY, PLAN, now, armed=armed, arms_late=late)


def test_nothing_is_cut_before_every_stage_runs_in_its_newest_generation() -> None:
    opening = Opening()
    assert not look(opening, armed=True)
    opening.runs("a", 2)
    opening.runs("b", 1)
    assert not look(opening, armed=True) and opening.go == 0
    assert opening.all_run(TOPOLOGY, PLAN, "a") and not opening.all_run(TOPOLOGY, PLAN, "b")
    opening.runs("b", 2)
    assert look(opening) and opening.go == UNLIMITED
    assert not look(opening, armed=True), "told once"


def drilled() -> Opening:
    opening = Opening(4)
    opening.runs("a", 2)
    opening.runs("b", 2)
    return opening


def test_a_drill_opens_with_a_few_epochs_and_goes_on_when_all_are_armed() -> None:
    opening = drilled()
    assert look(opening, 10.0) and opening.go == 4
    assert not look(opening, 10.0 + 0.9 * OPENING_S)
    assert look(opening, 10.0 + OPENING_S) and opening.go == 5
    assert not look(opening, 10.0 + 1.9 * OPENING_S)
    assert look(opening, 10.0 + 1.9 * OPENING_S, armed=True) and opening.go == UNLIMITED


def test_what_is_armed_late_is_not_waited_for() -> None:
    opening = drilled()
    assert look(opening, late=True) and opening.go == UNLIMITED


def test_a_job_that_ran_before_goes_on() -> None:
    opening = Opening(4)
    opening.adopted(TOPOLOGY, PLAN)
    assert opening.go == UNLIMITED and opening.all_run(TOPOLOGY, PLAN)
