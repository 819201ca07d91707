"""Whose turn it is to rehearse."""

from __future__ import annotations

import threading
import time

import pytest

from understudy.runtime.rehearsal import CALM_S, Turns


def test_those_that_are_not_armed_come_first() -> None:
    turns, order = Turns(), []
    entered = threading.Event()

    def rehearse(name: str, armed: bool) -> None:
        with turns.turn(armed, timeout_s=10):
            order.append(name)

    with turns.turn(False, timeout_s=1):
        threads = []
        for name, armed in (("armed", True), ("first", False), ("second", False)):
            threads.append(threading.Thread(target=rehearse, args=(name, armed)))
            threads[-1].start()
            deadline = time.monotonic() + 5
            while len(turns._waiting) < len(threads) and time.monotonic() < deadline:
                entered.wait(0.005)
    for thread in threads:
        thread.join(10)
    assert order == ["first", "second", "armed"]


def test_one_that_does_not_end_does_not_hold_up_others_for_ever() -> None:
    turns = Turns()
    with turns.turn(False, timeout_s=1):
        with pytest.raises(TimeoutError, match="does not end"):
            with turns.turn(False, timeout_s=0.05):
                pass
    with turns.turn(False, timeout_s=0.05):
        pass
    with pytest.raises(ValueError, match="as it is"):
        with turns.turn(False, timeout_s=0.05):
            raise ValueError("as it is")
    with turns.turn(False, timeout_s=0.05):
        pass


def test_after_a_takeover_nobody_rehearses_for_a_while() -> None:
    turns = Turns()
    assert turns.held_s() == 0
    turns.hold()
    assert 0 < turns.held_s() <= CALM_S
