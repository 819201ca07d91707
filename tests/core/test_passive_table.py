"""Passive standby, sweeping: every state of a stage against every event, for both ways in which one is due."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from protections import EVENTS, Table, at, check_pair, check_twice, standbys, trimmed

from understudy.core.policies.base import CaptureFailed, Committed, Drain, Pasted, StageRole
from understudy.core.policies.passive import Sweeping

FAILED = CaptureFailed("s", "b", lost_standby=False)

# The stage "s" starts at epoch 5; a sweeping one has committed 9 and waits for trims. Versions in brackets are those
# at standby b.


def inner() -> Sweeping:
    machine = Sweeping([StageRole("s", 5, ("in",), last=False)], every_s=10.0)
    at(machine, 0, Committed("s", 9))
    return machine


def last() -> Sweeping:
    machine = Sweeping([StageRole("s", 5, ("in",), last=True)], every_s=10.0)
    at(machine, 0, Committed("s", 9))
    return machine


def built(make: Callable[[], Sweeping], version: int, *, due: int | None = None, now: float = 100.0) -> Sweeping:
    """Standby b got this version at ``now``; then ``due`` was committed and trimmed."""
    machine = make()
    at(machine, now, Committed("s", version), trimmed(version), standbys("b"), Pasted("s", "b", version))
    if due is not None:
        at(machine, now, Committed("s", due), trimmed(due))
    return machine


INNER: Table = {
    "alone [-]": (
        inner,
        {"trimmed": "ack 8", "standbys b": "b@5", "standbys b c": "b@5 | c@5", "standbys c": "c@5"},
    ),
    "filling [-], 5 under way": (
        lambda: at(inner(), 100, standbys("b")),
        {"pasted b@7": "ack 7", "standbys b c": "c@5", "standbys c": "c@5"},
    ),
    "one version [6]": (
        lambda: built(inner, 6),
        {"trimmed": "b@8", "pasted b@7": "ack 7", "standbys b c": "c@6", "standbys c": "c@6"},
    ),
    "busy [6], 7 under way": (
        lambda: built(inner, 6, due=7),
        {
            "pasted b@7": "ack 7",
            "standbys -": "ack 7",
            "standbys b c": "c@7",
            "standbys c": "c@7",
        },
    ),
    "failed [6], 7 to be tried again": (
        lambda: at(built(inner, 6, due=7), 100, FAILED),
        {
            "pasted b@7": "ack 7",
            "standbys -": "ack 7",
            "standbys b c": "c@7",
            "standbys c": "c@7",
            "late tick": "b@7",
        },
    ),
    "failed [-], 5 to be tried again": (
        lambda: at(inner(), 100, standbys("b"), FAILED),
        {"pasted b@7": "ack 7", "standbys b c": "c@5", "standbys c": "c@5", "late tick": "b@5"},
    ),
    "unusable [6], 7 is due": (
        lambda: at(built(inner, 6, due=7), 100, CaptureFailed("s", "b", lost_standby=True)),
        {"pasted b@7": "ack 7", "standbys -": "ack 7", "standbys b c": "c@7", "standbys c": "c@7"},
    ),
    "two standbys [7] and [-], 6 under way": (
        lambda: at(built(inner, 6), 100, standbys("b", "c"), trimmed(7), Pasted("s", "b", 7)),
        {"trimmed": "b@8", "pasted c@6": "c@7", "standbys -": "ack 7", "standbys b": "ack 7"},
    ),
    "draining [6]": (
        lambda: at(built(inner, 6), 100, Drain()),
        {"trimmed": "b@8", "pasted b@7": "ack 7", "standbys b c": "c@6", "standbys c": "c@6"},
    ),
}

LAST: Table = {
    "waits for its timer [6], 7 is due": (
        lambda: built(last, 6, due=7),
        {
            "pasted b@7": "ack 7",
            "standbys -": "ack 7",
            "standbys b c": "c@7",
            "standbys c": "c@7",
            "late tick": "b@7",
            "drain": "b@7",
        },
    ),
    "timer passed [6], nothing is due": (
        lambda: built(last, 6, now=80),
        {"trimmed": "b@8", "pasted b@7": "ack 7", "standbys b c": "c@6", "standbys c": "c@6"},
    ),
    "draining [6]": (
        lambda: at(built(last, 6), 100, Drain()),
        {"trimmed": "b@8", "pasted b@7": "ack 7", "standbys b c": "c@6", "standbys c": "c@6"},
    ),
    "failed [6], 7 to be tried again": (
        lambda: at(built(last, 6, due=7, now=80), 100, FAILED),
        {
            "pasted b@7": "ack 7",
            "standbys -": "ack 7",
            "standbys b c": "c@7",
            "standbys c": "c@7",
            "late tick": "b@7",
        },
    ),
}


@pytest.mark.parametrize(("state", "event"), list(product(INNER, EVENTS)))
def test_every_state_of_an_inner_stage_against_every_event(state: str, event: str) -> None:
    check_pair(INNER, state, event)


@pytest.mark.parametrize(("state", "event"), list(product(LAST, EVENTS)))
def test_every_state_of_a_last_stage_against_every_event(state: str, event: str) -> None:
    check_pair(LAST, state, event)


@pytest.mark.parametrize(("state", "event"), [(s, e) for s, e in product(INNER, EVENTS) if "pasted" not in e])
def test_told_twice_is_told_once(state: str, event: str) -> None:
    check_twice(INNER, state, event)
