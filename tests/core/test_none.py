"""No protection: acknowledge what was processed, keep nothing."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protections import EVENTS, PATIENT, Table, at, check_pair, play

from understudy.core.policies import none
from understudy.core.policies.base import AckUpstream, Committed, Effect, StageRole
from understudy.core.policies.none import Unprotected


def stage(start: int) -> Unprotected:
    return none.protect([StageRole("s", start)])


def test_input_is_acknowledged_when_it_was_processed() -> None:
    """Gu et al. 2009, Section 3.1: a PE without HA protection may acknowledge upon receipt of data. Here it does not
    let go of more than its state has, so that another policy can begin from there at any time."""
    play(
        stage(3),
        (0, Committed("s", 3), []),
        (0, Committed("s", 4), [AckUpstream("s", 4)]),
        (0, Committed("s", 4), []),
        (0, Committed("s", 9), [AckUpstream("s", 9)]),
        (0, Committed("s", 5), []),
    )


TABLE: Table = {
    "behind": (lambda: stage(6), {"committed": "ack 10"}),
    "has processed it": (lambda: stage(10), {}),
    "has acknowledged it": (lambda: at(stage(5), 0, Committed("s", 10)), {}),
    "ahead": (lambda: at(stage(5), 0, Committed("s", 12)), {}),
}


@pytest.mark.parametrize(("state", "event"), list(product(TABLE, EVENTS)))
def test_every_state_against_every_event(state: str, event: str) -> None:
    check_pair(TABLE, state, event)


@pytest.mark.parametrize("state", TABLE)
def test_there_is_never_anything_to_wait_for(state: str) -> None:
    machine = TABLE[state][0]()
    for now, event in EVENTS.values():
        machine.handle(event, now)
        assert machine.next_deadline() is None
        assert machine.safe()


@settings(PATIENT)
@given(
    st.integers(-1, 5),
    st.integers(-1, 5),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-1, 20))),
)
def test_each_stage_acks_each_new_high_once(a: int, b: int, received: list[tuple[str, int]]) -> None:
    machine = none.protect([StageRole("a", a), StageRole("b", b)])
    heard = {"a": [a], "b": [b]}
    for name, epoch in received:
        expected: list[Effect] = [AckUpstream(name, epoch)] if epoch > max(heard[name]) else []
        assert machine.handle(Committed(name, epoch), 0.0) == expected
        heard[name].append(epoch)
