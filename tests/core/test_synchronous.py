"""Passive standby, synchronous: pause all, capture all, go on when all is safe; and individual, which does so stage by
stage. The oracle is in test_passive_oracle.py."""

from __future__ import annotations

from itertools import product

import pytest
from protections import EVENTS, Table, at, check_pair, play, standbys, trimmed

from understudy.core.policies.base import (
    AckUpstream,
    Capture,
    CaptureFailed,
    Committed,
    Drain,
    Effect,
    Pasted,
    Pause,
    Paused,
    Resume,
    StageRole,
    Tick,
)
from understudy.core.policies.passive import RETRY_S, Individual, Synchronous

SOON = float("-inf")


def two_stages(start: int = -1) -> Synchronous:
    roles = [StageRole("a", start, ("in",), last=False), StageRole("z", start, ("a",), last=True)]
    return Synchronous(roles, every_s=10.0)


def pause() -> list[Effect]:
    return [Pause("a"), Pause("z")]


def resume() -> list[Effect]:
    return [Resume("a"), Resume("z")]


def capture(a: int, z: int, standby: str = "b") -> list[Effect]:
    return [Capture("a", standby, a, queue=True), Capture("z", standby, z, queue=True)]


# -- scripts ----------------------------------------------------------------------------------------------------


def test_a_round_pauses_all_captures_all_and_resumes_all() -> None:
    """Gu et al. 2009, Section 3.1: the checkpoint manager pauses all PEs of the subjob, checkpoints them together,
    and resumes them; checkpoints carry the output queues."""
    machine = two_stages()
    play(
        machine,
        (0, standbys("b"), pause()),  # a standby that holds nothing does not wait for a timer
        (1, Paused("z"), []),
        (1, Committed("a", 0), []),  # what it was at when it was asked to pause
        (2, Paused("a"), capture(0, -1)),
        (3, Committed("a", 0), []),
        (3, Pasted("z", "b", -1), []),
        (4, Pasted("a", "b", 0), [AckUpstream("a", 0), *resume()]),
    )
    assert machine.phase == "running"


def test_one_round_is_enough_for_an_ack() -> None:
    machine = two_stages()
    at(machine, 0, standbys("b"), Paused("a"), Paused("z"), Pasted("a", "b", -1), Pasted("z", "b", -1))
    play(machine, (1, Committed("a", 5), []), (1, Committed("z", 4), []))
    assert machine.next_deadline() == 10.0
    play(machine, (10, Tick(), pause()), (10, Paused("a"), []), (10, Paused("z"), capture(5, 4)))
    play(machine, (11, Pasted("z", "b", 4), [AckUpstream("z", 4)]))
    play(machine, (12, Pasted("a", "b", 5), [AckUpstream("a", 5), *resume()]))


def test_a_round_is_due_only_when_there_is_something_new() -> None:
    machine = two_stages()
    assert machine.next_deadline() is None, "no standby"
    at(machine, 0, standbys("b"))
    assert machine.next_deadline() is None, "one is under way"
    at(machine, 0, Paused("a"), Paused("z"), Pasted("a", "b", -1), Pasted("z", "b", -1))
    assert machine.next_deadline() is None, "nothing new"
    play(machine, (500, Tick(), []), (501, Committed("z", 0), pause()))


def test_only_what_changed_is_captured() -> None:
    machine = two_stages()
    at(machine, 0, standbys("b"), Paused("a"), Paused("z"), Pasted("a", "b", -1), Pasted("z", "b", -1))
    play(machine, (10, Committed("z", 3), pause()), (10, Paused("a"), []))
    done = [AckUpstream("z", 3), *resume()]
    play(machine, (10, Paused("z"), [Capture("z", "b", 3, queue=True)]), (11, Pasted("z", "b", 3), done))


def test_the_stages_are_resumed_even_when_a_capture_failed() -> None:
    machine = two_stages()
    play(machine, (0, standbys("b"), pause()), (0, Paused("a"), []), (0, Paused("z"), capture(-1, -1)))
    play(machine, (1, CaptureFailed("a", "b", False), []), (2, Pasted("z", "b", -1), resume()))
    assert machine.next_deadline() == 2 + RETRY_S
    play(machine, (2.5, Tick(), []), (3, Tick(), pause()), (3, Paused("z"), []))
    play(machine, (3, Paused("a"), [Capture("a", "b", -1, queue=True)]), (4, Pasted("a", "b", -1), resume()))
    assert machine.safe()


def test_a_standby_that_goes_while_stages_pause_lets_them_go_on() -> None:
    machine = two_stages()
    play(
        machine,
        (0, Committed("a", 2), []),
        (0, standbys("b"), pause()),
        (1, Paused("a"), []),
        (2, standbys(), []),
        (3, trimmed(1, "a"), [AckUpstream("a", 1)]),  # without a standby: the trim point
        (4, Paused("z"), resume()),
    )
    assert machine.next_deadline() is None


def test_a_standby_that_goes_while_it_is_sent_everything_lets_the_stages_go_on() -> None:
    machine = two_stages()
    play(machine, (0, standbys("b"), pause()), (0, Paused("a"), []), (0, Paused("z"), capture(-1, -1)))
    play(machine, (1, standbys("c"), resume()))
    assert machine.next_deadline() == SOON, "the new one holds nothing"
    play(machine, (1, Tick(), pause()), (1, Paused("a"), []), (1, Paused("z"), capture(-1, -1, "c")))


def test_two_standbys_are_both_waited_for() -> None:
    """Hwang et al. 2003, Section 4.4: K backups for each primary."""
    machine = two_stages()
    orders = [Capture(stage, standby, -1, queue=True) for stage in "az" for standby in "bc"]
    play(machine, (0, standbys("b", "c"), pause()), (0, Paused("a"), []), (0, Paused("z"), orders))
    for step, (stage, standby) in enumerate(product("az", "bc")):
        play(machine, (1, Pasted(stage, standby, -1), resume() if step == 3 else []))


def test_a_round_for_a_new_standby_is_one_for_all_of_them() -> None:
    """The stages stand still anyway: whoever lacks something is sent it, whatever the timer says."""
    machine = two_stages()
    at(machine, 0, standbys("b"), Paused("a"), Paused("z"), Pasted("a", "b", -1), Pasted("z", "b", -1))
    play(machine, (1, Committed("a", 3), []), (1, standbys("b", "c"), pause()), (1, Paused("a"), []))
    orders = [Capture("a", "b", 3, True), Capture("a", "c", 3, True), Capture("z", "c", -1, True)]
    play(machine, (1, Paused("z"), orders))


def test_a_drain_does_not_wait_for_the_timer() -> None:
    machine = two_stages()
    at(machine, 0, standbys("b"), Paused("a"), Paused("z"), Pasted("a", "b", -1), Pasted("z", "b", -1))
    play(machine, (1, Committed("a", 3), []), (1, Committed("z", 3), []))
    assert not machine.safe()
    play(machine, (2, Drain(), pause()), (2, Paused("a"), []), (2, Paused("z"), capture(3, 3)))
    assert not machine.safe(), "under way"
    play(machine, (3, Pasted("a", "b", 3), [AckUpstream("a", 3)]))
    play(machine, (3, Pasted("z", "b", 3), [AckUpstream("z", 3), *resume()]))
    assert machine.safe()


def test_a_drain_keeps_the_pause_after_a_failure() -> None:
    machine = two_stages()
    at(machine, 0, standbys("b"), Paused("a"), Paused("z"))
    play(machine, (0, CaptureFailed("a", "b", False), []), (0, CaptureFailed("z", "b", False), resume()))
    play(machine, (0.5, Drain(), []), (1, Tick(), pause()))


def test_an_unusable_empty_standby_is_no_reason_to_hurry() -> None:
    """Two standbys, of which one could never store anything: rounds for the other go by the timer."""
    machine = Synchronous([StageRole("s", -1)], every_s=10.0)
    at(machine, 0, standbys("b", "c"), Paused("s"), CaptureFailed("s", "b", True), Pasted("s", "c", -1))
    play(machine, (20, Committed("s", 0), [Pause("s")]), (20, Paused("s"), [Capture("s", "c", 0, True)]))
    play(machine, (21, Pasted("s", "c", 0), [Resume("s")]), (22, Committed("s", 1), []))
    assert machine.next_deadline() == 30.0, "the timer goes on while a round takes its time"


def test_a_failure_at_a_standby_that_is_gone_does_not_delay_the_new_one() -> None:
    machine = two_stages()
    at(machine, 0, standbys("b"), Paused("a"), Paused("z"))
    play(machine, (1, standbys("c"), resume()))
    machine.handle(CaptureFailed("a", "b", False), 1)
    assert machine.phase == "pausing" or machine.next_deadline() == SOON


# -- every stage by itself --------------------------------------------------------------------------------------------


def test_individual_checkpoints_pause_one_stage_at_a_time() -> None:
    """Gu et al. 2009, Sections 3.1 and 4.1: each PE is checkpointed independently by a timer, its output queue must be
    included, and it is paused from before it is captured until that is stored."""
    roles = [StageRole("a", -1, ("in",), last=False), StageRole("z", -1, ("a",), last=True)]
    machine = Individual(roles, every_s=10.0)
    play(
        machine,
        (0, standbys("b"), pause()),
        (1, Paused("z"), [Capture("z", "b", -1, queue=True)]),  # and does not wait for the other
        (2, Pasted("z", "b", -1), [Resume("z")]),
        (3, Committed("a", 0), []),
        (3, Paused("a"), [Capture("a", "b", 0, queue=True)]),
        (4, Pasted("a", "b", 0), [AckUpstream("a", 0), Resume("a")]),
        (5, Committed("z", 4), []),
        (5, Committed("a", 4), []),
    )
    assert machine.next_deadline() == 10.0
    play(machine, (9, trimmed(2, "a"), []), (10, Tick(), pause()))  # a trim is no reason for a checkpoint


def test_individual_stages_are_all_drained() -> None:
    roles = [StageRole("a", -1, ("in",), last=False), StageRole("z", -1, ("a",), last=True)]
    machine = Individual(roles, every_s=10.0)
    at(machine, 0, standbys("b"), Paused("a"), Paused("z"), Pasted("a", "b", -1), Pasted("z", "b", -1))
    at(machine, 0, Committed("z", 2))
    assert not machine.safe()
    play(machine, (1, Drain(), [Pause("z")]), (1, Paused("z"), [Capture("z", "b", 2, queue=True)]))
    play(machine, (2, Pasted("z", "b", 2), [AckUpstream("z", 2), Resume("z")]))
    assert machine.safe() and machine.next_deadline() is None


def test_individual_without_a_standby_acknowledges_the_trim_point_only() -> None:
    machine = Individual([StageRole("s", -1)], every_s=10.0)
    done = [AckUpstream("s", 3)], [AckUpstream("s", 5)]
    play(machine, (0, Committed("s", 5), []), (0, trimmed(3), done[0]), (0, trimmed(9), done[1]))


# -- every state against every event ----------------------------------------------------------------------------------
#
# The stage "s" starts at epoch 5 and has committed 7. Versions in brackets are those at standby b.


def one_stage() -> Synchronous:
    machine = Synchronous([StageRole("s", 5, ("in",))], every_s=10.0)
    machine.handle(Committed("s", 7), 90)
    return machine


def running(now: float = 100.0) -> Synchronous:
    machine = one_stage()
    at(machine, now, standbys("b"), Paused("s"), Pasted("s", "b", 7))
    return machine


TABLE: Table = {
    "alone [-]": (
        one_stage,
        {"trimmed": "ack 7", "standbys b": "pause", "standbys b c": "pause", "standbys c": "pause"},
    ),
    "pausing [-]": (
        lambda: at(one_stage(), 100, standbys("b")),
        {"paused": "b@7+queue", "pasted b@7": "ack 7"},
    ),
    "capturing [-], 7 under way": (
        lambda: at(one_stage(), 100, standbys("b"), Paused("s")),
        {
            "pasted b@5": "resume",
            "pasted b@7": "ack 7 | resume",
            "failed b": "resume",
            "lost b": "resume",
            "standbys -": "resume",
            "standbys c": "resume",
        },
    ),
    "running [7], nothing is due": (
        running,
        {"standbys b c": "pause", "standbys c": "pause"},
    ),
    "running [7], 9 is due": (
        lambda: at(running(), 100, Committed("s", 9)),
        {"standbys b c": "pause", "standbys c": "pause", "late tick": "pause", "drain": "pause"},
    ),
    "running [7], timer passed, nothing is due": (
        lambda: running(now=90),
        {"committed": "pause", "standbys b c": "pause", "standbys c": "pause"},
    ),
    "failed [-], 7 to be tried again": (
        lambda: at(one_stage(), 100, standbys("b"), Paused("s"), CaptureFailed("s", "b", False)),
        {"pasted b@7": "ack 7", "late tick": "pause"},
    ),
}


@pytest.mark.parametrize(("state", "event"), list(product(TABLE, EVENTS)))
def test_every_state_against_every_event(state: str, event: str) -> None:
    check_pair(TABLE, state, event)
