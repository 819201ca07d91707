"""Passive standby, sweeping: scripts. The table of all pairs and the oracle have files of their own, as have the two
timings with pauses."""

from __future__ import annotations

import pytest
from protections import at, play, standbys, trimmed

from understudy.core.policies import Hybrid, PassiveStandby
from understudy.core.policies.base import (
    Acked,
    AckUpstream,
    Capture,
    CaptureFailed,
    Committed,
    Drain,
    Effect,
    Pasted,
    StageRole,
    Tick,
)
from understudy.core.policies.passive import RETRY_S, Individual, Sweeping, Synchronous

PRESENT, ABSENT = standbys("b"), standbys()
LOST, FAILED = CaptureFailed("s", "b", lost_standby=True), CaptureFailed("s", "b", lost_standby=False)


def inner(start: int = -1, *, every_s: float = 10.0) -> Sweeping:
    return Sweeping([StageRole("s", start, ("in",), last=False)], every_s=every_s)


def last(start: int = -1, *, every_s: float = 10.0) -> Sweeping:
    return Sweeping([StageRole("s", start, ("in",), last=True)], every_s=every_s)


def committed(epoch: int) -> Committed:
    return Committed("s", epoch)


def pasted(epoch: int, standby: str = "b") -> Pasted:
    return Pasted("s", standby, epoch)


def capture(epoch: int, standby: str = "b") -> Capture:
    return Capture("s", standby, epoch, queue=False)


def ack(epoch: int) -> AckUpstream:
    return AckUpstream("s", epoch)


def done(machine: Sweeping, epoch: int, now: float = 0.0) -> list[Effect]:
    """The epoch is committed, acknowledged by every consumer, and known to be."""
    return machine.handle(committed(epoch), now) + machine.handle(trimmed(epoch), now)


# -- scripts ----------------------------------------------------------------------------------------------------


def test_a_stage_in_the_middle_from_its_first_epoch_to_its_third() -> None:
    play(
        inner(),
        (0, PRESENT, [capture(-1)]),  # a standby that holds nothing is of no use: even the empty state is shipped
        (0, pasted(-1), []),
        (1, committed(0), []),
        (1, trimmed(0), [capture(0)]),
        (1, committed(1), []),
        (1, trimmed(1), []),  # one at a time
        (2, pasted(0), [ack(0), capture(1)]),
        (3, pasted(1), [ack(1)]),
        (4, committed(2), []),
        (4, trimmed(2), [capture(2)]),
        (5, pasted(2), [ack(2)]),
        (99, Tick(), []),
    )


def test_the_first_version_is_acknowledged_as_soon_as_it_is_pasted_and_only_once() -> None:
    machine = inner()
    play(machine, (0, PRESENT, [capture(-1)]), (0, committed(4), []), (0, trimmed(4), []), (1, FAILED, []))
    play(machine, (2, Tick(), [capture(4)]), (3, pasted(4), [ack(4)]), (4, pasted(4), []))


def test_an_older_version_that_is_heard_of_late_is_not_the_newest() -> None:
    """The first transport to b was given up but arrived all the same, after the second: b has 4 still."""
    machine = inner()
    done(machine, 0)
    play(machine, (0, standbys("b", "c"), [capture(0), capture(0, "c")]), (1, FAILED, []), (1, pasted(0, "c"), []))
    assert done(machine, 4, now=1.5) == [capture(4, "c")]
    play(machine, (2, Tick(), [capture(4)]), (3, pasted(4), []), (3, pasted(0), []), (4, pasted(4, "c"), [ack(4)]))


def test_a_last_stage_waits_for_its_timer() -> None:
    machine = last()
    play(
        machine,
        (0, PRESENT, [capture(-1)]),
        (1, pasted(-1), []),
        (2, committed(0), []),
        (2, trimmed(0), []),
        (7.4, Tick(), []),
    )
    assert machine.next_deadline() == 7.5, "a quarter of the period early"
    play(
        machine,
        (7.5, Tick(), [capture(0)]),
        (8, pasted(0), [ack(0)]),
        (12, committed(1), []),
        (12, trimmed(1), []),
        (17.4, Tick(), []),
        (17.5, Tick(), [capture(1)]),
        (18, pasted(1), [ack(1)]),
    )
    assert machine.next_deadline() is None, "nothing new: nothing to wait for"


def test_an_epoch_that_is_done_a_little_before_the_timer_does_not_wait_for_it() -> None:
    machine = last()
    play(machine, (0, PRESENT, [capture(-1)]), (1, pasted(-1), []))
    for epoch, now in enumerate((8.0, 20.5, 29.0, 40.0)):
        play(machine, (now, committed(epoch), []), (now, trimmed(epoch), [capture(epoch)]))
        play(machine, (now, pasted(epoch), [ack(epoch)]))


def test_checkpoints_that_come_early_are_not_more() -> None:
    """However often epochs come, there is one checkpoint in ten seconds."""
    machine = last()
    play(machine, (0, PRESENT, [capture(-1)]), (0, pasted(-1), []))
    captured = 0
    for epoch in range(1000):
        for event in (committed(epoch), trimmed(epoch)):
            for effect in machine.handle(event, 0.37 * epoch):
                if isinstance(effect, Capture):
                    captured += 1
                    machine.handle(pasted(effect.epoch), 0.37 * epoch)
    assert captured == 37


def test_a_late_timer_does_not_hold_back_an_epoch() -> None:
    machine = last()
    play(machine, (0, PRESENT, [capture(-1)]), (1, pasted(-1), []))
    play(machine, (15, committed(0), []), (15, trimmed(0), [capture(0)]))


def test_only_what_is_both_committed_and_trimmed_is_captured() -> None:
    play(
        inner(),
        (0, PRESENT, [capture(-1)]),
        (0, pasted(-1), []),
        (1, trimmed(5), []),  # consumers were ahead of a stage that begins again
        (2, committed(0), [capture(0)]),
        (3, pasted(0), [ack(0)]),
        (4, committed(3), [capture(3)]),
        (5, pasted(3), [ack(3)]),
        (6, committed(9), [capture(5)]),
    )


def test_old_news_moves_nothing() -> None:
    machine = inner(start=7)
    play(
        machine,
        (0, PRESENT, [capture(7)]),
        (0, pasted(7), []),
        (0, committed(3), []),
        (0, trimmed(4), []),
        (0, Acked("s", 0, 9), []),
        (0, Acked("s", 1, 9), []),
        (0, Tick(), []),
    )
    stage = machine.stages["s"]
    assert (stage.committed, stage.trimmed, stage.at["b"].captured, stage.at["b"].newest, stage.acked) == (7,) * 5


def test_without_a_standby_the_stage_acknowledges_its_trim_point() -> None:
    play(
        inner(),
        (0, committed(0), []),
        (0, trimmed(0), [ack(0)]),
        (0, trimmed(3), []),
        (0, committed(2), [ack(2)]),
        (0, Tick(), []),
    )


def test_a_new_standby_is_brought_up_to_date_at_once_and_acks_wait_for_it() -> None:
    play(
        last(start=4),
        (0, committed(5), []),
        (0, trimmed(5), [ack(5)]),
        (0, PRESENT, [capture(5)]),
        (1, committed(6), []),
        (1, trimmed(6), []),
        (2, pasted(5), []),  # acknowledged before there was a standby
        (10, Tick(), [capture(6)]),
        (11, pasted(6), [ack(6)]),
    )


def test_another_standby_begins_from_nothing() -> None:
    machine = inner()
    play(
        machine,
        (0, standbys("b#1"), [capture(-1, "b#1")]),
        (0, committed(0), []),
        (0, trimmed(0), []),
        (1, standbys("b#2"), [capture(0, "b#2")]),
        (2, pasted(-1, "b#1"), []),  # news of one that is gone
        (2, pasted(0, "b#2"), [ack(0)]),
        (3, standbys("b#3"), [capture(0, "b#3")]),  # nothing new, but this one holds nothing
    )
    assert not machine.safe()


def test_another_standby_does_not_wait_for_the_timer_of_the_one_before() -> None:
    play(last(), (0, PRESENT, [capture(-1)]), (1, pasted(-1), []), (2, standbys("c"), [capture(-1, "c")]))
    play(last(), (0, PRESENT, [capture(-1)]), (1, FAILED, []), (1.5, standbys("c"), [capture(-1, "c")]))


def test_a_lost_standby_frees_what_was_held_for_it() -> None:
    machine = inner()
    play(
        machine,
        (0, PRESENT, [capture(-1)]),
        (0, pasted(-1), []),
        (0, committed(0), []),
        (0, trimmed(0), [capture(0)]),
        (1, ABSENT, [ack(0)]),
        (1, committed(1), []),
        (1, trimmed(1), [ack(1)]),
    )
    assert machine.next_deadline() is None


def test_an_unusable_standby_is_sent_nothing_and_still_counts_until_the_plan_names_another() -> None:
    """Nothing may be acknowledged that somebody might yet be told to go back to."""
    machine = inner()
    play(machine, (0, PRESENT, [capture(-1)]), (0, pasted(-1), []))
    assert done(machine, 0) == [capture(0)]
    play(machine, (1, LOST, []), (5, Tick(), []), (5, PRESENT, []))
    assert done(machine, 1, now=6.0) == []
    assert machine.next_deadline() is None
    play(machine, (7, standbys("b", "c"), [capture(1, "c")]), (8, ABSENT, [ack(1)]), (9, PRESENT, [capture(1)]))


def test_a_drain_does_not_wait_for_an_unusable_standby() -> None:
    machine = inner()
    play(machine, (0, PRESENT, [capture(-1)]), (1, Drain(), []))
    assert not machine.safe()
    play(machine, (2, LOST, []))
    assert machine.safe(), "there is nothing left that could be done"


def test_a_failed_capture_is_tried_again_after_a_pause_while_the_standby_holds_nothing() -> None:
    machine = inner()
    play(machine, (0, PRESENT, [capture(-1)]), (3, FAILED, []), (3.5, committed(0), []), (3.5, trimmed(0), []))
    assert machine.next_deadline() == 3 + RETRY_S
    play(machine, (4, Tick(), [capture(0)]), (5, pasted(0), [ack(0)]))


def test_a_failed_capture_of_the_last_stage_is_tried_again_after_a_pause() -> None:
    machine = last()
    play(machine, (0, PRESENT, [capture(-1)]), (1, pasted(-1), []))
    assert done(machine, 0, now=10.0) == [capture(0)]
    play(machine, (11, FAILED, []))
    assert done(machine, 1, now=11.5) == []
    assert machine.next_deadline() == 11 + RETRY_S
    play(machine, (12, Tick(), [capture(1)]))


@pytest.mark.parametrize("make", [inner, last])
def test_a_failed_capture_is_tried_again_without_a_newer_epoch(make: type[Sweeping]) -> None:
    machine = make(every_s=0.5)
    play(machine, (0, PRESENT, [capture(-1)]), (0, pasted(-1), []))
    assert done(machine, 0, now=1.0) == [capture(0)]
    play(machine, (1, FAILED, []), (9, Tick(), [capture(0)]))


def test_draining_tries_a_failed_capture_again_after_its_pause() -> None:
    machine = inner()
    play(machine, (0, PRESENT, [capture(-1)]), (0, pasted(-1), []))
    assert done(machine, 0) == [capture(0)]
    play(machine, (1, FAILED, []), (1.5, Drain(), []), (2, Tick(), [capture(0)]))


def test_draining_does_not_wait_for_the_timer() -> None:
    machine = last()
    play(machine, (0, PRESENT, [capture(-1)]), (1, pasted(-1), []))
    done(machine, 0, now=2.0)
    assert not machine.safe()
    play(machine, (3, Drain(), [capture(0)]), (3, committed(1), []), (3, trimmed(1), []))
    play(machine, (4, pasted(0), [ack(0), capture(1)]))
    assert not machine.safe(), "under way"
    play(machine, (5, pasted(1), [ack(1)]))
    assert machine.safe()


def test_without_a_capture_to_wait_for_there_is_no_deadline() -> None:
    machine = last()
    assert machine.next_deadline() is None, "no standby"
    machine.handle(PRESENT, 0)
    assert machine.next_deadline() is None, "in flight"
    machine.handle(pasted(-1), 1)
    assert machine.next_deadline() is None, "nothing new"
    done(machine, 0, now=2)
    assert machine.next_deadline() == 7.5


# -- more than one standby, more than one stage, the other timing ---------------------------------------------------


def test_with_two_standbys_the_slower_one_decides() -> None:
    """Hwang et al. 2003, Section 4.4: for K-safety each of K backups must receive the checkpoints."""
    machine = inner()
    play(machine, (0, standbys("b", "c"), [capture(-1), capture(-1, "c")]), (0, pasted(-1), []))
    play(machine, (0, pasted(-1, "c"), []))
    assert done(machine, 0) == [capture(0), capture(0, "c")]
    play(machine, (1, pasted(0), []), (1, pasted(0, "c"), [ack(0)]))
    assert done(machine, 1, 2.0) == [capture(1), capture(1, "c")]
    play(machine, (3, pasted(1), []))
    assert done(machine, 2, 4.0) == [capture(2)], "each at its own pace"
    play(machine, (5, pasted(2), []), (6, pasted(1, "c"), [ack(1), capture(2, "c")]), (7, pasted(2, "c"), [ack(2)]))


def test_when_the_slower_of_two_standbys_goes_the_other_one_decides() -> None:
    machine = inner()
    at(machine, 0, standbys("b", "c"), pasted(-1), pasted(-1, "c"))
    done(machine, 0)
    play(machine, (0, pasted(0), []))
    play(machine, (1, CaptureFailed("s", "c", lost_standby=True), []), (2, standbys("b"), [ack(0)]))


def test_one_more_standby_holds_back_acks_until_it_has_a_version() -> None:
    machine = inner()
    at(machine, 0, PRESENT, pasted(-1))
    assert done(machine, 0) == [capture(0)]
    play(machine, (1, standbys("b", "c"), [capture(0, "c")]), (2, pasted(0), []), (3, pasted(0, "c"), [ack(0)]))


def test_stages_of_a_unit_are_captured_each_on_its_own() -> None:
    roles = [StageRole("a", 3, ("in",), last=False), StageRole("z", 3, ("a",), last=True)]
    machine = Sweeping(roles, every_s=10.0)
    play(
        machine,
        (0, standbys("b"), [Capture("a", "b", 3, False), Capture("z", "b", 3, False)]),
        (0, Pasted("a", "b", 3), []),
        (0, Pasted("z", "b", 3), []),
        (1, Committed("a", 5), []),
        (1, Committed("z", 4), []),
        (1, trimmed(4, "z"), []),
        (2, trimmed(4, "a"), [Capture("a", "b", 4, False)]),
        (3, CaptureFailed("a", "b", False), []),
        (3.5, Tick(), []),
    )
    assert machine.next_deadline() == 4.0
    play(machine, (4, Tick(), [Capture("a", "b", 4, False)]), (5, Drain(), [Capture("z", "b", 4, False)]))
    play(machine, (6, standbys(), [AckUpstream("a", 4), AckUpstream("z", 4)]))


def test_the_policy_chooses_the_machine() -> None:
    roles = [StageRole("s", 3)]
    sweeping = PassiveStandby(every="2s").protect(roles)
    assert isinstance(sweeping, Sweeping) and (sweeping.stages["s"].sweeping, sweeping.stages["s"].every_s) == (True, 2)
    alone = PassiveStandby(checkpoint="individual").protect(roles)
    assert isinstance(alone, Individual) and alone.each["s"].every_s == 0.5
    together = PassiveStandby(checkpoint="synchronous", every="3s").protect(roles)
    assert isinstance(together, Synchronous) and together.every_s == 3
    assert isinstance(Hybrid().protect(roles), Sweeping), "hybrid is passive until somebody is suspected"


def test_sweeping_that_begins_in_the_middle_takes_the_output_along_once() -> None:
    """The stage ran before, and its consumers are done with epoch 4 only."""
    play(
        PassiveStandby(every="10s").protect([StageRole("s", 7, trimmed=4)]),
        (0, standbys("b"), [Capture("s", "b", 7, queue=True)]),
        (1, Pasted("s", "b", 7), []),
        (2, Committed("s", 9), []),
        (3, trimmed(6), []),
        (4, trimmed(8), []),
        (10, Tick(), [Capture("s", "b", 8, queue=False)]),
        (11, Pasted("s", "b", 8), [ack(8)]),
    )
