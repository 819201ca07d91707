"""Mistakes in what the user writes: every one is a JobError that names where it was made and what to do about it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import understudy as us
from understudy.core.policies import Policy
from understudy.errors import JobError

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
        assert text.startswith(f"test_job_mistakes.py:{at}: "), text
    for word in words:
        assert word in text, text
    assert caught.value.exit_code == 2


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
    there = f"there is a stream 'cars' already (defined at test_job_mistakes.py:{first})"
    mistake(caught, at, there, "choose another name")
    with pytest.raises(JobError) as caught:
        at = line() + 1
        traffic.stage(cars, name="cars")(identity)
    mistake(caught, at, f"(defined at test_job_mistakes.py:{first})", "choose another name")


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
    with pytest.raises(JobError, match=r"^test_job_mistakes\.py:\d+: "):
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
