"""What is expected of a job before it runs, from its shape, its operators, and what was measured."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import understudy as us
from understudy import outlook as view
from understudy.core.operators import (
    Call,
    Key,
    Operator,
    OperatorClass,
    judge,
    of_barrier,
    of_keys,
    of_object,
    of_rows,
)
from understudy.core.policies import PassiveStandby, parse, spell
from understudy.errors import JobError, SetupError
from understudy.job import Job
from understudy.planning import Measured, Outlook, choices, outlook, profiles

INPUT = Operator("StreamingRelationV2")
MARK = Operator("EventTimeWatermark", children=(INPUT,))
STATELESS = judge(INPUT)
WINDOW = judge(Operator("Aggregate", children=(MARK,), keys=(Key("window", 5.0, window=True, window_s=10.0),)))
EVER = judge(Operator("Aggregate", children=(INPUT,), keys=(Key("road"),)))
RANDOM = judge(Operator("Project", children=(INPUT,), calls=(Call("rand", "random"),)))


def chain(ha: object = None, *, first: object = None) -> Job:
    """positions -> moving -> speeds -> a sink."""
    job = us.Job("chain", epoch="500ms")
    positions = job.source("positions", us.sources.rate(rows_per_second=2000))
    moving = job.stage(positions, name="moving", ha=first)(lambda positions: positions)  # type: ignore[arg-type]
    speeds = job.stage(moving, name="speeds", ha=ha)(lambda moving: moving)  # type: ignore[arg-type]
    job.sink(speeds, us.sinks.console())
    return job


def looked_at(job: Job, measured: Measured | None = None, **operators: OperatorClass) -> dict[str, Outlook]:
    known = {"moving": STATELESS, "speeds": EVER, **operators}
    return {found.unit: found for found in outlook(job, job.topology(), known, measured)}


MEASURED = Measured(
    streams={"moving": {"rows_per_s": 500.0, "bytes_per_s": 10_000.0}, "speeds": {"rows_per_s": 5, "bytes_per_s": 100}},
    stages={"speeds": {"batch_s": 0.1, "state_bytes": 5000.0, "delta_bytes": 300.0}},
    ha_ratio=0.05,
    seconds=60.0,
)


def test_a_profile_is_stated_until_it_is_measured() -> None:
    job = chain()
    stated = profiles(job, job.topology(), {"moving": STATELESS, "speeds": EVER}, None)
    assert stated["speeds"].rows_per_s == 2000.0
    assert stated["speeds"].bytes_per_s == 48_000.0
    assert stated["speeds"].delta_bytes == pytest.approx(0.1 * 48_000 * 0.5)
    assert (stated["moving"].state_bytes, stated["moving"].delta_bytes) == (0.0, 0.0)
    known = profiles(job, job.topology(), {"moving": STATELESS, "speeds": EVER}, MEASURED)
    assert (known["speeds"].rows_per_s, known["speeds"].bytes_per_s) == (500.0, 10_000.0)
    assert (known["speeds"].batch_s, known["speeds"].state_bytes, known["speeds"].delta_bytes) == (0.1, 5000.0, 300.0)
    assert known["moving"].rows_per_s == 2000.0, "what was not measured is as stated"
    assert known["moving"].output_bytes_per_s == 10_000.0


def test_a_unit_takes_in_what_comes_from_outside_of_it() -> None:
    job = us.Job("units")
    positions = job.source("positions", us.sources.rate(rows_per_second=100))
    with job.unit("both"):
        moving = job.stage(positions, name="moving")(lambda p: p)
        speeds = job.stage(positions, moving, name="speeds")(lambda p, m: m)
    job.sink(speeds, us.sinks.console())
    found = profiles(job, job.topology(), {"moving": STATELESS, "speeds": STATELESS}, None)["both"]
    assert found.rows_per_s == 200.0
    assert found.batch_s == 0.5, "one stage after the other"
    assert found.output_bytes_per_s == 4800.0, "only the last stage's stream leaves it"


def test_what_is_kept_and_what_to_expect() -> None:
    found = looked_at(chain(us.PassiveStandby()))
    assert found["positions"].kept == "what each epoch holds, on a standby"
    assert found["speeds"].kept == "state, 10 MB, on a standby; producers keep what came since"
    assert (found["speeds"].recovery, found["speeds"].measured) == ("precise", None)
    found = looked_at(chain(us.UpstreamBackup()), speeds=WINDOW)
    assert found["speeds"].kept == "nothing; moving keeps 15 s of input, 720 kB"
    assert found["speeds"].recovery == "precise"
    found = looked_at(chain(us.ActiveStandby(copies=3)), MEASURED)
    assert found["speeds"].kept == "2 running copies with its state, 5 kB"
    assert found["speeds"].measured is not None
    found = looked_at(chain(us.none))
    assert (found["speeds"].kept, found["speeds"].recovery) == ("nothing", "gap")
    found = looked_at(chain(us.PassiveStandby()), speeds=RANDOM)
    assert found["speeds"].recovery == "rollback"
    assert found["speeds"].recovery_cause.endswith("may differ: rand() is random")


def test_under_checkpoints_every_kind_of_state_has_its_own_loss() -> None:
    """Jacques-Silva et al. 2009, Section 4."""
    saved = "rows on their way may be lost, and its state lacks those of the last 2s: it is wrong "
    for found, has, missing in (
        (STATELESS, "nothing", "rows on their way may be lost, and nothing else is wrong"),
        (WINDOW, "what is in its open windows", saved + "until 15 s have passed: what was open then has closed"),
        (of_rows(32_768, 0), "the rows in its windows; stale ones are dropped",
         saved + "until 32,768 newer rows have come"),
        (of_keys(), "the newest rows of each key",
         saved + "until the window of each key has newer rows"),
        (EVER, "all that it remembers", saved + "for as long as what it remembers counts"),
        (of_object(stateless=False), "what its code keeps", saved + "for as long as what its code keeps counts"),
    ):  # fmt: skip
        unit = looked_at(chain(us.Checkpoint(every="2s")), speeds=found)["speeds"]
        assert (unit.recovery, unit.recovery_cause) == ("gap", missing)
        assert (unit.saved, unit.missing) == ({"speeds": has}, {"speeds": missing})
        assert unit.to_dict()["saved"] == {"speeds": has} and unit.to_dict()["missing"] == {"speeds": missing}


@pytest.mark.parametrize("pairs", [of_barrier(), of_object(stateless=False, needs_all_input=True)])
def test_what_needs_all_its_input_loses_nothing_under_checkpoints(pairs: OperatorClass) -> None:
    unit = looked_at(chain(us.Checkpoint(every="2s")), speeds=pairs)["speeds"]
    assert (unit.recovery, unit.missing) == ("precise", {})
    assert unit.saved == {"speeds": "what waits for partners; producers keep what came since"}


def test_without_protection_a_state_begins_anew() -> None:
    unit = looked_at(chain(us.none), speeds=of_rows(100))["speeds"]
    lost = "rows between the crash and the new start are lost"
    assert unit.recovery_cause == f"{lost}; the state begins anew, and is wrong until 100 newer rows have come"
    assert (unit.saved, looked_at(chain(us.none), speeds=STATELESS)["speeds"].recovery_cause) == ({}, lost)


def test_a_unit_of_several_stages_says_which_of_them_may_be_wrong() -> None:
    job = us.Job("units")
    positions = job.source("positions", us.sources.rate(rows_per_second=100))
    with job.unit("both", ha=us.Checkpoint(every="2s")):
        moving = job.stage(positions, name="moving")(lambda p: p)
        speeds = job.stage(moving, name="speeds")(lambda m: m)
    job.sink(speeds, us.sinks.console())
    unit = looked_at(job, speeds=of_rows(5))["both"]
    assert unit.recovery_cause.startswith("moving: rows on their way may be lost, and nothing else is wrong; speeds: ")


def test_goals_are_resolved_by_what_was_measured() -> None:
    job = chain(us.auto(recovery_time="20s"), first=us.auto(recovery_time="800ms"))
    found = looked_at(job, MEASURED, speeds=WINDOW)
    assert found["moving"].policy == us.ActiveStandby(), "the window below it acknowledges nothing for long"
    assert found["speeds"].policy == us.UpstreamBackup(ack_every="10s")
    assert found["speeds"].why[0].startswith("upstream backup, acks every 10s: back after about ")
    assert isinstance(job.policy("speeds"), type(us.auto())), "looking changes nothing"
    job.resolve({"speeds": found["speeds"].policy, "moving": found["moving"].policy})
    assert job.topology().units["speeds"].policy == us.UpstreamBackup(ack_every="10s")
    assert job.topology().units["moving"].policy == us.ActiveStandby()
    assert job.topology().units["positions"].policy == PassiveStandby()


def test_a_goal_that_allows_losses_allows_none_that_would_spoil_a_barrier() -> None:
    """Neither of its own rows nor of those before it; chosen, the job would be refused."""
    goal = us.auto(recovery_time="60s", loss="some")
    job = us.Job("paired", ha=goal)
    a, b = (job.source(name, us.sources.rate(rows_per_second=10)) for name in "ab")
    moving = job.stage(a, name="moving")(lambda a: a)  # type: ignore[arg-type]
    both = job.barrier(moving, b, name="both", schema="id long, road long, speed double")
    last = job.stage(both, name="last")(lambda both: both)  # type: ignore[arg-type]
    job.sink(last, us.sinks.console())
    chosen = choices(job, job.topology(), {"moving": STATELESS, "both": of_barrier(), "last": STATELESS}, None)
    assert chosen["last"].policy == us.none
    job.resolve({unit: choice.policy for unit, choice in chosen.items()})
    job.topology()


def test_a_stage_further_up_has_more_to_make_again() -> None:
    goal = us.auto(recovery_time="1s")
    found = looked_at(chain(goal, first=goal), MEASURED)
    assert found["speeds"].policy == PassiveStandby(every="2s")
    assert found["moving"].policy == us.ActiveStandby(), "a sweep would reach it one interval after the one below it"


def test_a_goal_for_the_whole_job_leaves_its_sources_as_they_are() -> None:
    job = us.Job("all", ha=us.auto(recovery_time="5s"))
    positions = job.source("positions", us.sources.rate())
    job.sink(job.stage(positions, name="moving")(lambda p: p), us.sinks.console())
    assert list(choices(job, job.topology(), {"moving": STATELESS}, None)) == ["moving"]


def test_a_goal_that_nothing_meets_names_line_unit_and_remedy() -> None:
    job = chain(us.auto(recovery_time="1ms"))
    with pytest.raises(
        JobError, match=r"test_planning.py:\d+: us.auto for unit 'speeds': no policy meets .*would allow"
    ):
        looked_at(job)


def test_policies_travel_as_words() -> None:
    for policy in (us.none, us.auto(overhead=0.5), us.Hybrid(every="1s"), us.UpstreamBackup(k=2, ack_every="1s")):
        assert parse(spell(policy)) == policy


def test_a_profile_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    assert Measured.read(path) is None
    path.write_text(json.dumps({"streams": {"a": {"rows_per_s": 1.0}}, "seconds": 3}))
    assert Measured.read(path) == Measured(streams={"a": {"rows_per_s": 1.0}}, seconds=3)
    for damage in (
        "{",
        "[]",
        '{"other": 1}',
        '{"streams": {"a": {"rows_per_s": "many"}}}',
        '{"stages": {"a": {"b": -1}}}',
    ):
        path.write_text(damage)
        with pytest.raises(SetupError, match=r"profile.json is damaged .*; delete it"):
            Measured.read(path)


@pytest.mark.parametrize("measured", [None, MEASURED])
def test_the_table_fits_and_tells(measured: Measured | None) -> None:
    job = chain(us.auto(recovery_time="30s"), first=us.PassiveStandby("individual", every="2s"))
    units = outlook(job, job.topology(), {"moving": RANDOM, "speeds": WINDOW}, measured)
    out = io.StringIO()
    found = {"job": "chain", "measured": measured, "units": units}
    view.show(found, Console(file=out, width=140))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    for told in (
        "us.auto for speeds",
        "the cheapest that meets the goal",
        "windowed,",
        "rollback",
        "precise",
        "bytes +",
    ):
        assert told in words
    assert ("stated:" in text) == (measured is not None)
    assert ("Nothing was measured yet" in words) == (measured is None)
    shown = json.loads(json.dumps(view.to_dict(found)))
    assert [u["unit"] for u in shown["units"]] == ["positions", "moving", "speeds"]
    assert shown["units"][2]["stages"]["speeds"]["window"] == {"length_s": 10.0, "delay_s": 5.0}
    assert shown["units"][2]["why"]
