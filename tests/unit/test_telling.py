"""Health and standbys in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from understudy.core.detection import Trouble
from understudy.core.monitoring import OWNER, Health
from understudy.core.plans import Turn, UnitPlan
from understudy.core.policies import parse
from understudy.telling import health, standbys

BROKE, SLOW = Trouble(0, "the connection broke"), Trouble(5, "5 heartbeats of 500 ms missed")


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (Health(), "well"),
        (Health(failures=1, returned=88.0), "well; failed once, back for 12 s"),
        (Health(failures=4, returned=-80.0), "well; failed 4 times, back for 3 min"),
        (
            Health("suspected", misses=2, since=98.8, by={"h3": Trouble(2)}),
            "suspected: 2 heartbeats missed, silent for 1.2 s (h3 says so)",
        ),
        (
            Health("suspected", 1, 99.5, 2, 40.0, {OWNER: Trouble(1), "h3": Trouble(1)}),
            "suspected: 1 heartbeat missed, silent for 0.5 s (the coordinator and h3 say so); "
            "failed twice, back for 60 s",
        ),
        (
            Health("failed", since=72.0, failures=1, by={OWNER: BROKE}),
            "dead for 28 s: the connection broke (the coordinator says so)",
        ),
        (
            Health("failed", 5, 72.0, 2, 10.0, {OWNER: Trouble(1), "h3": SLOW}),
            "dead for 28 s: 5 heartbeats of 500 ms missed (h3 says so); failed once before",
        ),
        (
            Health("failed", 5, -10_000.0, 1, None, {OWNER: SLOW, "h3": SLOW}),
            "dead for 3 h: 5 heartbeats of 500 ms missed (the coordinator and h3 say so)",
        ),
    ],
)
def test_health(about: Health, words: str) -> None:
    assert health(asdict(about), 100.0) == words


def unit(standbys: str = "", ready: str = "", armed: str = "", turn: Turn | None = None) -> dict[str, Any]:
    plan = UnitPlan(1, "h0", tuple(standbys.split()), tuple(ready.split()), turn=turn)
    return asdict(plan) | {"armed": armed.split()}


@pytest.mark.parametrize(
    ("policy", "about", "words"),
    [
        ("passive-standby", unit("h1", "h1", "h1"), "h1 (armed)"),
        ("passive-standby", unit("h1", "h1"), "h1 (arming)"),
        ("passive-standby", unit("h1"), "UNPROTECTED: h1 (no state yet)"),
        ("passive-standby", unit(), "UNPROTECTED"),
        ("passive-standby standbys=2", unit("h1 h2", "h2", "h2"), "h1 (no state yet), h2 (armed)"),
        ("upstream-backup", unit(), "none: rebuilt by replay"),
        ("none", unit(), "UNPROTECTED, as its policy says"),
        (
            "passive-standby",
            unit("h1", "h1", "h1", Turn("active-standby", 3, ("h2",))),
            "h1 (armed), h2 (no state yet, for active-standby)",
        ),
        (
            "passive-standby",
            unit(turn=Turn("active-standby", 3, ("h2",))),
            "UNPROTECTED: h2 (no state yet, for active-standby)",
        ),
    ],
)
def test_standbys(policy: str, about: dict[str, Any], words: str) -> None:
    assert standbys(about, parse(policy)) == words
