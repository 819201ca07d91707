"""A clean stop: who must have said what before a job is called stopped."""

from __future__ import annotations

import pytest

from understudy.core.draining import Answer, Ending, Question, Stop, ending
from understudy.core.plans import Plan, UnitPlan
from understudy.core.policies import ActiveStandby, Hybrid, PassiveStandby, Policy, UpstreamBackup, none
from understudy.core.topology import StageShape, Topology, UnitShape

PASSIVE = PassiveStandby()


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (PASSIVE, Ending.KEPT),
        (PassiveStandby("individual"), Ending.KEPT),
        (Hybrid(), Ending.KEPT),
        (ActiveStandby(), Ending.OWN),
        (UpstreamBackup(), Ending.OWN),
        (none, Ending.OWN),
    ],
)
def test_who_takes_the_last_checkpoint(policy: Policy, found: Ending) -> None:
    assert ending(policy, committed=9, trimmed=9, final=9, last=True) is found


@pytest.mark.parametrize("policy", [PASSIVE, none])
def test_a_stage_goes_on_until_its_last_epoch_is_done_and_its_sinks_have_it(policy: Policy) -> None:
    assert ending(policy, committed=8, trimmed=8, final=9, last=True) is Ending.GOES_ON
    assert ending(policy, committed=9, trimmed=8, final=9, last=True) is Ending.GOES_ON
    assert ending(policy, committed=9, trimmed=3, final=9, last=False) is not Ending.GOES_ON, "its output is kept too"


def job() -> Topology:
    """Two parts that have nothing in common: s, a; and t alone."""
    stages = [StageShape("s"), StageShape("a", ("s",)), StageShape("t")]
    return Topology.build(stages, [UnitShape(name, (name,), PASSIVE) for name in ("s", "a", "t")])


def plan(serial: int = 1, **generations: int) -> Plan:
    return Plan(serial, {name: UnitPlan(generations.get(name, 1), "h1") for name in ("s", "a", "t")})


ENDS = {"s": (1, 7), "t": (1, 4)}
DONE = {"s": 1, "a": 1, "t": 1}


def asked() -> Stop:
    """Where the sources end is known, and the second round has begun."""
    stop = Stop(job())
    assert stop.ask(plan()) == Question(1, None)
    stop.answered(Answer(1, 1, ENDS))
    assert stop.ask(plan()) == Question(2, {"s": 7, "a": 7, "t": 4})
    return stop


def test_every_stage_has_a_last_epoch_of_its_own_once_all_sources_have_said_where_they_end() -> None:
    stop = Stop(job())
    stop.ask(plan())
    stop.answered(Answer(1, 1, {"s": (1, 7)}))
    assert stop.ask(plan()).finals is None, "t has said nothing"
    assert not stop.over(plan())
    asked()


def test_it_is_over_when_all_leaders_have_said_so_in_one_round() -> None:
    stop = asked()
    stop.answered(Answer(2, 1, ENDS, {"s": 1, "a": 1}))
    assert not stop.over(plan()), "nobody has spoken for t"
    stop.answered(Answer(2, 1, ENDS, {"t": 1}))
    assert stop.over(plan())


def test_a_host_that_does_not_answer_has_not_said_that_it_is_done() -> None:
    stop = asked()
    stop.answered(Answer(2, 1, ENDS, {"s": 1, "t": 1}))
    stop.ask(plan())
    stop.answered(Answer(3, 1, ENDS, {"a": 1}))
    assert not stop.over(plan()), "what was said in another round may no longer be so"


@pytest.mark.parametrize(
    "late",
    [Answer(1, 1, ENDS, DONE), Answer(2, 0, ENDS, DONE), Answer(2, 1, ENDS, {**DONE, "a": 0})],
    ids=["of another round", "by another plan", "of another generation"],
)
def test_what_is_said_of_something_else_does_not_count(late: Answer) -> None:
    stop = asked()
    stop.answered(late)
    assert not stop.over(plan())


def test_a_takeover_begins_the_round_again() -> None:
    stop = asked()
    stop.answered(Answer(2, 1, ENDS, DONE))
    moved = plan(2, a=2)
    assert not stop.over(moved)
    stop.ask(moved)
    stop.answered(Answer(3, 2, ENDS, {**DONE, "a": 2}))
    assert stop.over(moved)


def test_a_source_that_moved_is_asked_anew_where_it_ends() -> None:
    """What its leader before had begun, and nobody else has, will not come out."""
    stop, moved = asked(), plan(2, s=2)
    assert stop.ask(moved).finals is None
    stop.answered(Answer(3, 2, {"s": (2, 6)}))
    stop.answered(Answer(2, 1, ENDS))
    assert stop.ask(moved).finals == {"s": 6, "a": 6, "t": 4}, "the late word of the one before does not count"
