"""A primary and its copies: whoever is behind catches up, and nobody waits for ever."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from understudy.core.pacing import IN_STEP, LEAD_SPARE_S, Asking, Pace


def test_without_copies_nothing_waits() -> None:
    pace = Pace()
    pace.copy_is_at("b#1", 0)
    pace.started(50, 0.0)
    assert pace.wait_s(51, 0.1, 1.0) == 0.0


def test_a_copy_in_step_holds_nothing_up() -> None:
    pace = Pace()
    pace.watch(["b#1"])
    assert pace.wait_s(7, 0.0, 1.0) == 0.0, "it has not said yet where it is"
    pace.copy_is_at("b#1", 6 - IN_STEP)
    pace.started(6, 0.0)
    assert pace.wait_s(7, 0.0, 1.0) == 0.0
    assert pace.wait_s(8, 0.5, 1.0) == 1.5


def test_a_copy_that_gains_is_not_waited_for() -> None:
    pace = Pace()
    pace.watch(["b#1"])
    pace.copy_is_at("b#1", 10)
    pace.started(31, 0.0)
    pace.copy_is_at("b#1", 11)
    assert pace.wait_s(32, 0.25, 0.5) == 0.75, "as far behind as before"
    pace.copy_is_at("b#1", 12)
    assert pace.wait_s(32, 0.25, 0.5) == 0.0


def test_the_slowest_copy_counts_while_it_is_one() -> None:
    pace = Pace()
    pace.watch(["b#1", "c#2"])
    pace.copy_is_at("b#1", 30)
    pace.copy_is_at("c#2", 10)
    pace.started(31, 0.0)
    assert pace.wait_s(32, 0.0, 1.0) == 2.0
    pace.watch(["b#1"])
    assert pace.wait_s(32, 0.0, 1.0) == 0.0
    pace.watch(["b#1", "c#2"])
    assert pace.wait_s(32, 0.0, 1.0) == 0.0, "a copy that began anew says where it is"


@given(
    behind=st.integers(0, 60), primary_s=st.floats(0.1, 3.0), copy_s=st.floats(0.1, 3.0), epoch_s=st.floats(0.1, 1.0)
)
def test_a_copy_as_fast_as_its_primary_catches_up(
    behind: int, primary_s: float, copy_s: float, epoch_s: float
) -> None:
    """Both always busy, in small steps of time. A copy that is twice as slow or slower cannot."""
    pace, now, tick = Pace(), 0.0, 0.01
    pace.watch(["b#1"])
    primary, copy = behind, 0
    pace.copy_is_at("b#1", copy)
    primary_done = copy_done = 0.0
    lasted, longest, began = True, 0.0, 0.0
    for _ in range(int(400 * max(primary_s, copy_s) / tick)):
        now += tick
        if copy < primary and now >= copy_done:
            copy, copy_done = copy + 1, now + copy_s
            pace.copy_is_at("b#1", copy)
        if now >= primary_done and pace.wait_s(primary + 1, now, max(epoch_s, primary_s)) == 0.0:
            longest, began = max(longest, now - began), now
            primary, primary_done = primary + 1, now + primary_s
            pace.started(primary, now)
        lasted = primary - copy > IN_STEP + 1
        if not lasted:
            break
    assert longest <= 2 * max(epoch_s, primary_s) + 2 * tick
    assert not lasted or copy_s > 0.9 * max(epoch_s, primary_s)


def test_nothing_is_asked_for_while_there_is_an_epoch_to_begin_with() -> None:
    asking = Asking()
    assert asking.wait_s(6, 5, 0.0) == math.inf
    assert asking.wait_s(5, 5, 0.0) <= 0.0, "the stage is at it, or waits for the next"
    assert asking.wait_s(4, 5, 0.0) <= 0.0


def test_an_epoch_is_asked_for_just_before_it_is_wanted() -> None:
    asking = Asking()
    assert asking.wait_s(5, 5, 1.0) == 1.0 - LEAD_SPARE_S
    for _ in range(60):
        asking.came(0.5, 0.2, 0.1)
    assert abs(asking.wait_s(5, 5, 1.0) - (1.0 - 0.4 - LEAD_SPARE_S)) < 1e-4, "on its way for 0.3 s, cut in 0.1 s"


def test_what_took_longer_to_come_is_asked_for_earlier() -> None:
    asking = Asking()
    asking.came(0.1, 0.0, 0.0)
    before = asking.wait_s(5, 5, 1.0)
    asking.came(0.4, 0.0, 0.0)
    assert asking.wait_s(5, 5, 1.0) < before
    asking.came(0.1, 0.4, 0.0)
    assert asking.wait_s(5, 5, 1.0) > before - 0.08, "waiting at the producer is not being on the way"
