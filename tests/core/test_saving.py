"""States that cannot be had afterwards: when they are saved, and what policies make of those that were not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from protections import at, play, standbys, trimmed

from understudy.core.policies import ActiveStandby, PassiveStandby, UpstreamBackup, none
from understudy.core.policies.active import Active
from understudy.core.policies.base import AckUpstream, Capture, Committed, Drain, Pasted, StageRole, Want
from understudy.core.policies.passive import Sweeping
from understudy.core.saving import SHARE, Saving


def saved(*, save_s: float, epoch_s: float, within_s: float | None = None, epochs: int = 200) -> list[int]:
    """The epochs after which a state was saved."""
    saving, now, found = Saving(within_s), 0.0, []
    for epoch in range(epochs):
        now += epoch_s
        if saving.due(epoch, now):
            now += save_s
            saving.took(save_s)
            found.append(epoch)
    return found


def passed(epoch: int) -> Committed:
    """Done, and its state is not kept."""
    return Committed("s", epoch, None, version=False)


def kept(epoch: int) -> Committed:
    return Committed("s", epoch)


def test_what_costs_little_is_saved_after_every_epoch() -> None:
    assert saved(save_s=0.0001, epoch_s=0.01) == list(range(200))


@pytest.mark.parametrize("save_s", [0.002, 0.01, 0.1, 1.0])
def test_saving_takes_its_share_of_the_time_and_no_more(save_s: float) -> None:
    late = [epoch for epoch in saved(save_s=save_s, epoch_s=0.01, epochs=20_000) if epoch > 4_000]
    share = len(late) * save_s / (16_000 * 0.01)
    assert SHARE / 4 < share <= SHARE * 1.1


def test_stages_that_save_at_different_paces_save_at_the_same_epochs() -> None:
    often, seldom = set(saved(save_s=0.002, epoch_s=0.01)), set(saved(save_s=0.02, epoch_s=0.01))
    assert len(seldom) < len(often) / 2
    assert {epoch for epoch in seldom if epoch > 50} <= often


def test_a_state_is_saved_once_in_every_period_whatever_it_takes() -> None:
    found = saved(save_s=0.3, epoch_s=0.1, within_s=0.5)
    assert max(b - a for a, b in pairwise(found[5:])) <= 4


def test_that_saving_takes_longer_than_its_period_is_said_once() -> None:
    saving, took = Saving(0.5), (0.6, 0.4, 0.6, 0.6, 0.6, 0.6, 0.4, 0.6)
    assert [number for number, save_s in enumerate(took) if saving.took(save_s)] == [4]
    assert not any(Saving(None).took(10.0) for _ in range(5)), "nobody has said how long it may take"


def test_a_sweep_captures_the_newest_state_that_was_kept() -> None:
    machine = Sweeping([StageRole("s", -1, ("in",), last=False)], every_s=10.0)
    at(machine, 0, standbys("b"), Pasted("s", "b", -1))
    play(
        machine,
        (0, kept(0), []),
        (0, passed(1), []),
        (0, passed(2), []),
        (0, trimmed(2), [Capture("s", "b", 0, queue=False)]),
        (0, Pasted("s", "b", 0), [AckUpstream("s", 0)]),
        (0, trimmed(2), []),
        (0, passed(3), []),
        (0, kept(4), []),
        (0, trimmed(3), []),
        (0, trimmed(5), [Capture("s", "b", 4, queue=False)]),
    )
    assert machine.wants("s", 0) is Want.AHEAD


def test_when_the_job_stops_the_state_that_a_stage_is_at_is_captured() -> None:
    machine = Sweeping([StageRole("s", -1, ("in",), last=False)], every_s=10.0)
    at(machine, 0, standbys("b"), Pasted("s", "b", -1), kept(0), trimmed(0), Pasted("s", "b", 0))
    play(
        machine,
        (0, passed(1), []),
        (0, passed(2), []),
        (0, trimmed(1), []),
        (0, Drain(), []),
        (0, trimmed(2), [Capture("s", "b", 2, queue=False)]),
    )


def test_without_a_standby_nothing_is_let_go_of_that_the_next_one_would_need() -> None:
    machine = Sweeping([StageRole("s", -1, ("in",), last=False)], every_s=10.0)
    at(machine, 0, standbys())
    play(
        machine,
        (0, kept(0), []),
        (0, passed(1), []),
        (0, trimmed(1), [AckUpstream("s", 0)]),
        (0, standbys("b"), [Capture("s", "b", 0, queue=False)]),
    )


def test_a_new_copy_waits_for_a_state_whose_input_is_still_there() -> None:
    """Found by the simulator: a copy was lost after input had been acknowledged, and the next one was given a state
    from before it."""
    machine = Active([StageRole("s", -1, ("in",))])
    at(machine, 0, standbys("b"), kept(0), Pasted("s", "b", 0), passed(1), passed(2), Pasted("s", "b", 2))
    assert machine.wants("s", 0) is Want.NOTHING, "everybody has the state"
    play(
        machine,
        (0, standbys("c"), []),
        (0, passed(3), []),
        (0, kept(4), [Capture("s", "c", 4, queue=True)]),
        (0, Pasted("s", "c", 4), [AckUpstream("s", 4)]),
    )


@pytest.mark.parametrize(
    "policy", [none, UpstreamBackup(), PassiveStandby("individual"), PassiveStandby("synchronous"), ActiveStandby()]
)
def test_who_wants_no_states_of_a_stage_that_goes_on(policy: object) -> None:
    machine = policy.protect([StageRole("s", -1, ("in",))])  # type: ignore[attr-defined]
    at(machine, 0, standbys())
    assert machine.wants("s", 0) is Want.NOTHING
