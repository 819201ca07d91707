"""Plans as journals keep them and messages carry them."""

from __future__ import annotations

import json

from understudy.core.plans import Plan, Turn, UnitPlan
from understudy.core.policies import ActiveStandby, spell


def test_a_plan_comes_back_from_json_as_it_was() -> None:
    turn = Turn(spell(ActiveStandby()), serial=6, standbys=("d",), ready=("d",), since=(6,))
    units = {
        "fresh": UnitPlan(),
        "led": UnitPlan(3, "a", ("b", "c"), ("b",), "held", (2, 5), rising=True, policy=spell(ActiveStandby())),
        "turning": UnitPlan(4, "b", turn=turn),
    }
    plan = Plan(7, units)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
