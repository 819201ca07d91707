"""What the user writes, where it is right: stages, units, policies. Mistakes are in test_job_mistakes.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import understudy as us
from understudy.core.policies import Policy
from understudy.core.topology import StageShape, Topology, UnitShape
from understudy.stages import Stream

CARS = us.sources.rate(10)


def identity(df: Any) -> Any:
    return df


def job() -> us.Job:
    return us.Job("traffic")


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
