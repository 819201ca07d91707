"""``us.auto``: the cheapest policy that meets a goal, and what is said when there is none."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest

from understudy.core.choice import EVERY, NoPolicy, choose
from understudy.core.costs import estimate, reach_s
from understudy.core.operators import Key, Operator, OperatorClass, judge
from understudy.core.policies import ActiveStandby, Auto, Checkpoint, PassiveStandby, Policy, UpstreamBackup, auto, none
from understudy.core.profile import Profile

INPUT = Operator("StreamingRelationV2")
MARK = Operator("EventTimeWatermark", children=(INPUT,))
STATELESS = judge(INPUT)
WINDOW = judge(Operator("Aggregate", children=(MARK,), keys=(Key("window", 5.0, window=True, window_s=10.0),)))
EVER = judge(Operator("Aggregate", children=(INPUT,), keys=(Key("road"),)))
SMALL = Profile(delta_bytes=1000, state_bytes=100_000)
INNER = replace(SMALL, heard_every_s=0.5)
"""Another unit reads what it makes, and acknowledges it at once."""
HEAVY = Profile(rows_per_s=50_000, bytes_per_s=2e6, output_bytes_per_s=2e6, delta_bytes=1.5e6, state_bytes=1e9)
"""It changes three quarters of a byte of state for every byte that comes in."""


@pytest.mark.parametrize(
    ("goal", "profile", "operators", "policy"),
    [
        (auto(recovery_time="20s"), SMALL, STATELESS, UpstreamBackup(ack_every="10s")),
        (auto(recovery_time="4s"), SMALL, STATELESS, UpstreamBackup(ack_every="5s")),
        (auto(recovery_time="2s"), SMALL, STATELESS, UpstreamBackup(ack_every="2s")),
        (auto(recovery_time="1s"), SMALL, STATELESS, PassiveStandby(every="1s")),
        (auto(recovery_time="2s"), SMALL, EVER, PassiveStandby(every="2s")),
        (auto(recovery_time="10s"), SMALL, EVER, PassiveStandby(every="10s")),
        (auto(recovery_time="800ms"), SMALL, EVER, PassiveStandby(every="500ms")),
        (auto(recovery_time="200ms"), SMALL, EVER, ActiveStandby()),
        (auto(recovery_time="100ms"), INNER, EVER, ActiveStandby(delivery="eager")),
        (auto(recovery_time="1s"), INNER, EVER, PassiveStandby(every="500ms")),
        (auto(recovery_time="1s"), replace(INNER, behind_s=5.0), EVER, ActiveStandby()),
        (auto(recovery_time="30s"), SMALL, WINDOW, UpstreamBackup(ack_every="10s")),
        (auto(recovery_time="5s"), SMALL, WINDOW, PassiveStandby(every="5s")),
        (auto(recovery_time="10s", loss="some"), SMALL, EVER, none),
        (auto(recovery_time="2s", loss="some"), SMALL, EVER, Checkpoint(every="10s")),
        (auto(recovery_time="30s", overhead=0.2), HEAVY, WINDOW, UpstreamBackup(ack_every="10s")),
    ],
)
def test_the_cheapest_that_meets_the_goal(
    goal: Auto, profile: Profile, operators: OperatorClass, policy: Policy
) -> None:
    found = choose(goal, profile, [operators])
    assert found.policy == policy
    assert found.estimate == estimate(policy, profile, reach_s=reach_s([operators]))
    assert found.why[0].startswith(policy.describe())
    assert found.why[0].endswith("the cheapest that meets the goal")


def test_no_policy_that_meets_the_goal_is_cheaper() -> None:
    goals = [Auto(t, loss, o) for t, loss, o in product((0.1, 0.2, 1, 3, 20), ("none", "some"), (None, 0.05, 1.5))]
    for goal, profile, found in product(goals, (SMALL, INNER, HEAVY), (STATELESS, WINDOW, EVER)):
        everything: list[Policy] = [PassiveStandby(every=every) for every in EVERY]
        everything += [ActiveStandby(), *([ActiveStandby(delivery="eager")] if profile is INNER else [])]
        paced = [UpstreamBackup(), *(UpstreamBackup(ack_every=every) for every in EVERY)]
        everything += paced if not found.refusal else []
        lossy = [none, *(Checkpoint(every=every) for every in EVERY)]
        everything += lossy if goal.loss == "some" else []
        estimates = [estimate(policy, profile, reach_s=reach_s([found])) for policy in everything]
        good = [e for e in estimates if e.worst_s <= goal.recovery_s and e.overhead <= (goal.overhead or 1e9)]
        if not good:
            with pytest.raises(NoPolicy):
                choose(goal, profile, [found])
        else:
            assert choose(goal, profile, [found]).estimate.overhead == min(e.overhead for e in good)


def test_a_unit_is_rebuilt_by_replay_only_if_all_its_stages_can_be() -> None:
    goal = auto(recovery_time="20s")
    assert choose(goal, SMALL, [STATELESS, STATELESS]).policy == UpstreamBackup(ack_every="10s")
    found = choose(goal, SMALL, [STATELESS, EVER])
    assert found.policy == PassiveStandby(every="10s")
    assert f"upstream backup: cannot rebuild it by replay: {EVER.refusal}" in found.why


def test_it_says_why_not_the_others() -> None:
    why = choose(auto(recovery_time="1s", overhead=0.2), SMALL, [STATELESS]).why
    assert any(line.startswith("upstream backup: ") and line.endswith("later than 1s") for line in why)
    assert any(line.startswith("active standby: ") and line.endswith("more than 20%") for line in why)
    assert "none: would lose rows" in why
    why = choose(auto(recovery_time="2s"), SMALL, [STATELESS]).why
    assert any(line.startswith("active standby: ") and line.endswith("costs more") for line in why)
    why = choose(auto(recovery_time="100ms"), INNER, [STATELESS]).why
    assert any(line.startswith("active standby: ") and line.endswith("later than 100ms") for line in why)


@pytest.mark.parametrize(
    "goal",
    [
        auto(recovery_time="200ms", overhead=0.2),
        auto(recovery_time="10ms"),
        auto(recovery_time="1ms", overhead=0),
        auto(recovery_time="2s", overhead=0.001),
    ],
)
@pytest.mark.parametrize("profile", [SMALL, HEAVY])
def test_a_goal_that_no_policy_meets_names_one_that_would_do(goal: Auto, profile: Profile) -> None:
    with pytest.raises(NoPolicy, match="no policy meets it") as error:
        choose(goal, profile, [EVER])
    text = str(error.value)
    overhead, time = re.search(r"overhead=([\d.]+) would", text), re.search(r"recovery_time='(\w[\w.]*)' would", text)
    both = re.search(r"recovery_time='([\w.]+)', overhead=([\d.]+) would", text)
    assert overhead or time or both
    if both:
        choose(Auto(both[1], goal.loss, float(both[2])), profile, [EVER])
        return
    if overhead:
        choose(replace(goal, overhead=float(overhead[1])), profile, [EVER])
    if time:
        choose(replace(goal, recovery_time=time[1]), profile, [EVER])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"recovery_time": "-2s"}, "recovery_time='-2s' is not a duration"),
        ({"recovery_time": -2}, "recovery_time=-2 must be longer than nothing"),
        ({"recovery_time": "soon"}, "recovery_time='soon' is not a duration"),
        ({"overhead": -0.1}, "overhead=-0.1 must be a number and not negative"),
        ({"overhead": "20%"}, "overhead='20%' must be a number"),
        ({"loss": "all"}, "loss='all' is not known; use one of 'none', 'some'"),
    ],
)
def test_goals_that_make_no_sense(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        auto(**wrong)  # type: ignore[arg-type]


def test_a_goal_protects_nothing_by_itself() -> None:
    assert auto().protected
    with pytest.raises(TypeError, match="a goal"):
        auto().protect([])
