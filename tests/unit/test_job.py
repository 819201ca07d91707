"""What the user writes. Every mistake is a JobError that names where it was made and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import understudy as us
from understudy.core.policies import Policy
from understudy.core.topology import StageShape, Topology, UnitShape
from understudy.errors import JobError
from understudy.stages import Stream

CARS = us.sources.rate(10)


def identity(df: Any) -> Any:
    return df


def job() -> us.Job:
    return us.Job("traffic")


def line() -> int:
    return sys._getframe(1).f_lineno


def mistake(caught: pytest.ExceptionInfo[JobError], at: int | None, *words: str) -> None:
    """The message begins with the place and contains the words; words end with the remedy."""
    text = str(caught.value)
    if at is not None:
        assert text.startswith(f"test_job.py:{at}: "), text
    for word in words:
        assert word in text, text
    assert caught.value.exit_code == 2


# -- a job that is right ----------------------------------------------------------------------------------------


def test_a_whole_job(tmp_path: Path) -> None:
    traffic = us.Job("traffic", epoch="250ms", ha=us.PassiveStandby(every="1s"))
    cars = traffic.source("cars", CARS, host="h1", standbys=["h2"])
    with traffic.unit("middle", ha=us.none):

        @traffic.stage(cars)
        def fast(df: Any) -> Any:
            return df

        slow = traffic.stage("cars", name="slow", output_mode="update")(identity)
    both = traffic.stage(fast, slow, name="both", ha=us.none, host="h3")(identity)
    traffic.sink(both, us.sinks.parquet(tmp_path))
    traffic.sink("both", us.sinks.console(), name="screen")
    traffic.sink(both, us.sinks.console())
    traffic.sink(cars, us.sinks.foreach_epoch(print))

    assert traffic.epoch_s == 0.25
    assert isinstance(fast, Stream) and fast == Stream("fast", traffic)
    assert "job" not in repr(fast)
    assert traffic.topology() == Topology.build(
        [
            StageShape("cars", (), ("cars",)),
            StageShape("fast", ("cars",)),
            StageShape("slow", ("cars",)),
            StageShape("both", ("fast", "slow"), ("both", "screen", "both-1")),
        ],
        [
            UnitShape("cars", ("cars",), us.PassiveStandby(every="1s"), "h1", ("h2",)),
            UnitShape("middle", ("fast", "slow"), us.none),
            UnitShape("both", ("both",), us.none, "h3"),
        ],
    )
    assert traffic.stages["slow"].output_mode == "update"
    assert traffic.stages["slow"].function is identity


def test_a_stages_own_policy_comes_before_its_units_and_the_jobs() -> None:
    traffic = us.Job("traffic", ha=us.PassiveStandby(every="1s"))
    cars = traffic.source("cars", CARS)
    with traffic.unit("u", ha=us.PassiveStandby(every="2s")):
        traffic.stage(cars, name="a")(identity)
        traffic.stage(cars, name="b", ha=us.PassiveStandby(every="3s"))(identity)
    with traffic.unit("v"):
        traffic.stage(cars, name="c")(identity)
    traffic.stage(cars, name="d", ha=us.none)(identity)
    assert {s: getattr(traffic.policy(s), "every_s", None) for s in traffic.stages} == {
        "cars": 1.0,
        "a": 2.0,
        "b": 3.0,
        "c": 1.0,
        "d": None,
    }


def test_a_source_is_always_protected() -> None:
    traffic = us.Job("traffic", ha=us.none)
    cars = traffic.source("cars", CARS)
    traffic.stage(cars, name="a")(identity)
    assert traffic.policy("cars") == us.PassiveStandby()
    assert traffic.policy("a") == us.none


@pytest.mark.parametrize(
    "chosen", [us.none, us.ActiveStandby(), us.ActiveStandby(copies=3), us.UpstreamBackup(), us.Hybrid(every="1s")]
)
def test_a_source_is_a_passive_standby_whatever_the_job_says(chosen: Policy) -> None:
    """All that is kept of a source is its entries: there is nothing to run twice or to replay."""
    traffic = us.Job("traffic", ha=chosen)
    cars = traffic.source("cars", CARS)
    traffic.stage(cars, name="a")(identity)
    assert traffic.policy("cars") == us.PassiveStandby(standbys=max(1, chosen.tolerates))
    assert traffic.policy("a") == chosen
    if chosen.protected:
        traffic.source("bikes", CARS, ha=chosen)
        assert traffic.policy("bikes") == us.PassiveStandby(standbys=chosen.tolerates)


def test_a_source_keeps_a_passive_standby_of_its_own_making() -> None:
    traffic = us.Job("traffic", ha=us.PassiveStandby(every="2s", standbys=2))
    traffic.source("cars", CARS)
    traffic.source("bikes", CARS, ha=us.PassiveStandby(every="3s"))
    assert traffic.policy("cars") == us.PassiveStandby(every="2s", standbys=2)
    assert traffic.policy("bikes") == us.PassiveStandby(every="3s")


@pytest.mark.parametrize(
    "chosen",
    [
        us.PassiveStandby(checkpoint="individual", every="1s", standbys=2),
        us.PassiveStandby(checkpoint="synchronous"),
        us.ActiveStandby(delivery="eager"),
        us.UpstreamBackup(k=3),
        us.Hybrid(),
        us.none,
    ],
    ids=lambda p: p.describe(),
)
def test_a_units_policy_reaches_the_shape(chosen: Policy) -> None:
    traffic = job()
    cars = traffic.source("cars", CARS)
    with traffic.unit("u", ha=chosen):
        traffic.stage(cars, name="a")(identity)
        traffic.stage("a", name="b")(identity)
    units = traffic.topology().units
    assert units["u"] == UnitShape("u", ("a", "b"), chosen)
    assert units["cars"] == UnitShape("cars", ("cars",), us.PassiveStandby())


def test_a_job_is_protected_unless_it_says_otherwise() -> None:
    assert us.Job("traffic").ha == us.PassiveStandby()
    assert us.Job("traffic").epoch_s == 0.5
    assert us.Job("traffic", epoch=2).epoch_s == 2.0


def test_the_reference_run_has_no_protection_and_reads_what_was_recorded(tmp_path: Path) -> None:
    traffic = job()
    cars = traffic.source("cars", CARS, ha=us.PassiveStandby(), host="h1", standbys=["h2"])
    bikes = traffic.source("bikes", CARS)
    with traffic.unit("u", ha=us.PassiveStandby()):
        traffic.stage(cars, bikes, name="a", ha=us.PassiveStandby())(identity)
    recorded = tmp_path / "cars"
    recorded.mkdir()
    traffic.as_reference(tmp_path)
    shape = traffic.topology()
    assert shape.units["a"] == UnitShape("a", ("a",), us.none)
    assert (shape.units["cars"].primary, shape.units["cars"].standbys) == (None, ())
    assert traffic.stages["bikes"].source == CARS
    assert traffic.stages["cars"].source == us.sources.RecordedSource(str(recorded))


# -- mistakes in a job ------------------------------------------------------------------------------------------


def test_a_cycle() -> None:
    traffic = job()
    cars = traffic.source("cars", CARS)
    at = line() + 1
    traffic.stage(cars, "b", name="a")(identity)
    traffic.stage("a", name="b")(identity)
    with pytest.raises(JobError) as caught:
        traffic.topology()
    mistake(caught, at, "the job has a cycle: a -> b -> a", "Remove one of these inputs")


def test_a_stage_that_reads_itself() -> None:
    traffic = job()
    at = line() + 1
    traffic.stage("a", name="a")(identity)
    with pytest.raises(JobError) as caught:
        traffic.topology()
    mistake(caught, at, "the job has a cycle: a -> a")


def test_a_duplicate_name() -> None:
    traffic = job()
    first = line() + 1
    cars = traffic.source("cars", CARS)
    with pytest.raises(JobError) as caught:
        at = line() + 1
        traffic.source("cars", CARS)
    mistake(caught, at, f"there is a stream 'cars' already (defined at test_job.py:{first})", "choose another name")
    with pytest.raises(JobError) as caught:
        at = line() + 1
        traffic.stage(cars, name="cars")(identity)
    mistake(caught, at, f"(defined at test_job.py:{first})", "choose another name")


def test_an_unknown_input() -> None:
    traffic = job()
    traffic.source("cars", CARS)
    at = line() + 1
    traffic.stage("bikes", name="a")(identity)
    with pytest.raises(JobError) as caught:
        traffic.topology()
    mistake(caught, at, "stage 'a' reads unknown stream 'bikes'", "streams are: cars, a")


def test_no_inputs() -> None:
    with pytest.raises(JobError) as caught:
        at = line() + 1
        job().stage()
    mistake(caught, at, "a stage needs an input; write @job.stage(some_stream)")


def test_a_decorator_without_parentheses() -> None:
    """The function itself arrives as the only input; the mistake shows as soon as somebody decorates with it."""
    with pytest.raises(JobError) as caught:
        at = line() + 1
        job().stage(identity)(identity)  # type: ignore[arg-type]
    mistake(caught, at, "is not a stream; pass what job.source or @job.stage returned, or its name")


@pytest.mark.parametrize("stranger", [7, None, CARS])
def test_an_input_that_is_no_stream(stranger: Any) -> None:
    with pytest.raises(JobError) as caught:
        at = line() + 1
        job().stage(stranger)(identity)
    mistake(caught, at, f"{stranger!r} is not a stream", "pass what job.source or @job.stage returned")


def test_a_stream_of_another_job() -> None:
    cars = us.Job("other").source("cars", CARS)
    with pytest.raises(JobError) as caught:
        at = line() + 1
        job().stage(cars, name="a")(identity)
    mistake(caught, at, "stream 'cars' belongs to job 'other', not 'traffic'")
    with pytest.raises(JobError) as caught:
        at = line() + 1
        job().sink(cars, us.sinks.console())
    mistake(caught, at, "stream 'cars' belongs to job 'other', not 'traffic'")


def test_a_wrong_output_mode() -> None:
    traffic = job()
    cars = traffic.source("cars", CARS)
    with pytest.raises(JobError) as caught:
        at = line() + 1
        traffic.stage(cars, output_mode="all")
    mistake(caught, at, "output_mode='all'; use 'append', 'update' or 'complete'")


@pytest.mark.parametrize("policy", ["active", 5, us.PassiveStandby, object()])
def test_a_wrong_policy(policy: Any) -> None:
    remedy = "is not a policy; use us.PassiveStandby(...) or us.none"
    traffic = job()
    with pytest.raises(JobError) as caught:
        at = line() + 1
        traffic.source("cars", CARS, ha=policy)
    mistake(caught, at, f"ha={policy!r} {remedy}")
    with pytest.raises(JobError) as caught:
        at = line() + 1
        traffic.stage("cars", name="a", ha=policy)(identity)
    mistake(caught, at, f"ha={policy!r} {remedy}")
    with pytest.raises(JobError) as caught:
        at = line() + 1
        with traffic.unit("u", ha=policy):
            pass
    mistake(caught, at, f"ha={policy!r} {remedy}")
    with pytest.raises(JobError) as caught:
        us.Job("traffic", ha=policy)
    mistake(caught, None, "job 'traffic'", f"ha={policy!r} {remedy}")


def test_a_source_without_protection() -> None:
    with pytest.raises(JobError) as caught:
        at = line() + 1
        job().source("cars", CARS, ha=us.none)
    mistake(caught, at, "source 'cars' cannot have ha=us.none", "everything downstream is recovered from it")


def test_something_that_is_no_source() -> None:
    with pytest.raises(JobError) as caught:
        at = line() + 1
        job().source("cars", us.sinks.console())  # type: ignore[arg-type]
    mistake(caught, at, "source 'cars' got ConsoleSink(rows=10); use us.sources.rate, .folder or .spark")


def test_something_that_is_no_sink() -> None:
    traffic = job()
    cars = traffic.source("cars", CARS)
    with pytest.raises(JobError) as caught:
        at = line() + 1
        traffic.sink(cars, "out/")  # type: ignore[arg-type]
    mistake(caught, at, "'out/' is not a sink; use us.sinks.parquet, .json_lines, .console, .foreach_epoch")


def test_a_sink_on_an_unknown_stream() -> None:
    traffic = job()
    with pytest.raises(JobError) as caught:
        at = line() + 1
        traffic.sink("cars", us.sinks.console())
    mistake(caught, at, "sink on unknown stream 'cars'; streams so far: none")


def test_two_sinks_of_one_name() -> None:
    traffic = job()
    cars = traffic.source("cars", CARS)
    traffic.sink(cars, us.sinks.console(), name="out")
    with pytest.raises(JobError) as caught:
        at = line() + 1
        traffic.sink(cars, us.sinks.console(), name="out")
    mistake(caught, at, "there is a sink 'out' already; give this one another name=")


NAMES = ["", "1st", "a b", "a.b", "a/b", "ä", "-a", "x" * 65, "a\n", 5, ("a",)]
REMEDY = "use a letter, then up to 63 letters, digits, '_' or '-'"


@pytest.mark.parametrize("name", NAMES)
def test_wrong_names_of_streams(name: Any) -> None:
    with pytest.raises(JobError) as caught:
        at = line() + 1
        job().source(name, CARS)
    mistake(caught, at, f"name {name!r}", REMEDY)
    if name:  # an empty name is none: the function's is taken
        with pytest.raises(JobError) as caught:
            at = line() + 1
            job().stage("cars", name=name)(identity)
        mistake(caught, at, f"name {name!r}", REMEDY)


def test_a_function_without_a_name_of_its_own() -> None:
    with pytest.raises(JobError) as caught:
        at = line() + 1
        job().stage("cars")(lambda df: df)
    mistake(caught, at, "name '<lambda>'", REMEDY)


@pytest.mark.parametrize("name", ["a", "A", "x" * 64, "a-b_c9"])
def test_right_names(name: str) -> None:
    assert us.Job(name).source(name, CARS).name == name


@pytest.mark.parametrize("name", NAMES)
def test_wrong_names_of_jobs_units_and_sinks(name: Any) -> None:
    with pytest.raises(JobError) as caught:
        us.Job(name)
    mistake(caught, None, f"job name {name!r}", REMEDY)
    if isinstance(name, str):
        with pytest.raises(JobError) as caught:
            with job().unit(name):
                pass
        mistake(caught, None, f"unit name {name!r}", REMEDY)
    if name:
        traffic = job()
        with pytest.raises(JobError) as caught:
            traffic.sink(traffic.source("cars", CARS), us.sinks.console(), name=name)
        mistake(caught, None, f"sink name {name!r}", REMEDY)


def test_a_wrong_epoch() -> None:
    with pytest.raises(JobError) as caught:
        us.Job("traffic", epoch="often")
    mistake(caught, None, "job 'traffic': epoch='often' is not a duration", "such as '500ms'")


def test_nested_units() -> None:
    traffic = job()
    with pytest.raises(JobError) as caught:
        with traffic.unit("outer"):
            at = line() + 1
            with traffic.unit("inner"):
                pass
    mistake(caught, at, "unit 'inner' inside unit 'outer'; units cannot be nested")
    with traffic.unit("next"):
        pass  # the outer unit was left properly


def test_two_units_of_one_name() -> None:
    traffic = job()
    with traffic.unit("u"):
        pass
    with pytest.raises(JobError) as caught:
        at = line() + 1
        with traffic.unit("u"):
            pass
    mistake(caught, at, "there is a unit 'u' already; choose another name")


def test_a_unit_that_mixes_protection() -> None:
    traffic = job()
    cars = traffic.source("cars", CARS)
    with traffic.unit("u"):
        traffic.stage(cars, name="a")(identity)
        traffic.stage(cars, name="b", ha=us.none)(identity)
    with pytest.raises(JobError) as caught:
        traffic.topology()
    mistake(
        caught,
        None,
        "unit 'u' mixes policies (a: passive standby, sweeping every 500ms, b: none)",
        "a unit is recovered together: give it one ha=",
    )


def test_a_unit_that_mixes_two_kinds_of_protection() -> None:
    traffic = job()
    cars = traffic.source("cars", CARS)
    with traffic.unit("u", ha=us.ActiveStandby()):
        at = line() + 1
        traffic.stage(cars, name="a")(identity)
        traffic.stage(cars, name="b", ha=us.Hybrid(every="1s"))(identity)
    with pytest.raises(JobError) as caught:
        traffic.topology()
    mistake(caught, at, "unit 'u' mixes policies (a: active standby, b: hybrid, sweeping every 1s)", "give it one ha=")


def test_a_unit_that_mixes_two_settings_of_one_policy() -> None:
    traffic = job()
    cars = traffic.source("cars", CARS)
    with traffic.unit("u"):
        traffic.stage(cars, name="a", ha=us.PassiveStandby(standbys=2))(identity)
        traffic.stage(cars, name="b", ha=us.PassiveStandby(standbys=2))(identity)
        traffic.stage(cars, name="c")(identity)
    with pytest.raises(JobError) as caught:
        traffic.topology()
    several = "passive standby, sweeping every 500ms on 2 hosts"
    mistake(caught, None, f"(a: {several}, b: {several}, c: passive standby, sweeping every 500ms)")


def test_host_and_standby_are_one() -> None:
    traffic = job()
    with pytest.raises(JobError) as caught:
        at = line() + 1
        traffic.source("cars", CARS, host="h1", standbys=["h1"])
    mistake(caught, at, "source 'cars' names 'h1' twice; its host and its standbys are different hosts")
    with pytest.raises(JobError) as caught:
        at = line() + 1
        traffic.stage("cars", name="a", host="h1", standbys=["h1"])(identity)
    mistake(caught, at, "stage 'a' names 'h1' twice; its host and its standbys are different hosts")


def test_an_empty_job() -> None:
    with pytest.raises(JobError) as caught:
        job().topology()
    mistake(caught, None, "job 'traffic' is empty; add job.source(...), @job.stage(...) and job.sink(...)")


def test_a_refused_stage_leaves_no_trace() -> None:
    traffic = job()
    cars = traffic.source("cars", CARS)
    with pytest.raises(JobError):
        traffic.stage(cars, name="a", host="h", standbys=["h"])(identity)
    traffic.stage(cars, name="a")(identity)
    assert list(traffic.topology().stages) == ["cars", "a"]


# -- mistakes whose message does not say where, or that are not noticed ---------------------------------------------


def wrong_job_name() -> None:
    us.Job("1st")


def wrong_epoch() -> None:
    us.Job("traffic", epoch="often")


def wrong_job_policy() -> None:
    us.Job("traffic", ha="active")  # type: ignore[arg-type]


def wrong_unit_name() -> None:
    with job().unit("a b"):
        pass


def wrong_sink_name() -> None:
    traffic = job()
    traffic.sink(traffic.source("cars", CARS), us.sinks.console(), name="a b")


def mixed_unit() -> None:
    traffic = job()
    cars = traffic.source("cars", CARS)
    with traffic.unit("u"):
        traffic.stage(cars, name="a")(identity)
        traffic.stage(cars, name="b", ha=us.none)(identity)
    traffic.topology()


def empty_job() -> None:
    job().topology()


@pytest.mark.parametrize(
    "wrong",
    [wrong_job_name, wrong_epoch, wrong_job_policy, wrong_unit_name, wrong_sink_name, mixed_unit, empty_job],
    ids=lambda f: f.__name__,
)
def test_every_mistake_says_where(wrong: Any) -> None:
    with pytest.raises(JobError, match=r"^test_job\.py:\d+: "):
        wrong()


def test_a_unit_and_a_stage_outside_it_of_the_same_name() -> None:
    traffic = job()
    with traffic.unit("cars"):
        traffic.stage("cars", name="means")(identity)
    traffic.source("cars", CARS)
    at = line() - 1
    with pytest.raises(JobError) as caught:
        traffic.topology()
    mistake(caught, at, "stage 'cars' has the name of a unit; rename one of them")


def test_host_and_standby_of_one_unit_are_one() -> None:
    traffic = job()
    with traffic.unit("u"):
        cars = traffic.source("cars", CARS, host="h1")
        at = line() - 1
        traffic.stage(cars, name="a", standbys=["h1"])(identity)
    with pytest.raises(JobError) as caught:
        traffic.topology()
    mistake(caught, at, "unit 'u' names 'h1' twice; its host and its standbys are different hosts")


def test_stages_of_one_unit_ask_for_different_hosts() -> None:
    traffic = job()
    with traffic.unit("u"):
        cars = traffic.source("cars", CARS, host="h1")
        at = line() - 1
        traffic.stage(cars, name="a", host="h2")(identity)
    with pytest.raises(JobError) as caught:
        traffic.topology()
    mistake(caught, at, "unit 'u' is asked for host='h1' and host='h2'; a unit is placed as one")


def test_every_policy_is_a_policy() -> None:
    for policy in (us.none, us.PassiveStandby(), us.ActiveStandby(), us.UpstreamBackup(), us.Hybrid()):
        assert isinstance(policy, Policy)
        assert us.Job("traffic", ha=policy).ha is policy
