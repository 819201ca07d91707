"""Durations as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.core.policies import PassiveStandby, Policy, none
from understudy.durations import seconds

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 0.5),
        ("10s", 10.0),
        ("2m", 120.0),
        ("1.5h", 5400.0),
        (" 0.25 s ", 0.25),
        ("007ms", 0.007),
        (3, 3.0),
        (0.5, 0.5),
    ],
)
def test_what_people_write(text: str | float, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)
    assert isinstance(seconds(text), float)


@pytest.mark.parametrize(
    "text", ["", "ms", "5", "5 sec", "-5s", "1e3s", "5s5", "1.s", ".5s", "5MS", "1,5s", None, True, [], b"5s"]
)
def test_nonsense_names_the_parameter_and_the_remedy(text: object) -> None:
    with pytest.raises(ValueError, match=r"every=.* is not a duration; write a number with a unit, such as '500ms'"):
        seconds(text, what="every")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0s", "0.000ms", 0, 0.0, -1, -0.5, -math.inf])
def test_nothing_and_less_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match=r"epoch=.* must be longer than nothing"):
        seconds(text, what="epoch")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_duration_is_finite(value: float) -> None:
    with pytest.raises(ValueError):
        seconds(value)


@settings(PATIENT)
@given(st.integers(1, 10**6), st.sampled_from(["ms", "s", "m", "h"]))
def test_units_multiply(number: int, unit: str) -> None:
    factor = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]
    assert seconds(f"{number}{unit}") == pytest.approx(number * factor)


def test_a_policy_reads_durations_when_it_is_made() -> None:
    policy = PassiveStandby(every="2s")
    assert (policy.every_s, policy.protected) == (2.0, True)
    assert policy.describe() == "passive standby, sweeping every 2s"
    with pytest.raises(ValueError, match="every='soon' is not a duration"):
        PassiveStandby(every="soon")
    with pytest.raises(ValueError, match="checkpoint='never' is not known; use one of 'sweeping', 'individual', 's"):
        PassiveStandby(checkpoint="never")  # type: ignore[arg-type]


def test_no_protection_is_a_policy_too() -> None:
    assert isinstance(none, Policy)
    assert not none.protected
    assert none.describe() == "none"
