"""Where a stage goes on that is restored, and what it is told that it missed."""

from __future__ import annotations

from understudy.core.beginning import Start
from understudy.core.row_counts import Counted, Missed
from understudy.runtime.parts import About
from understudy.runtime.stage import FRESH, position

SAVED = About(40, usual={"a": 7.0})


def found(epoch: int, **counted: Counted) -> Start:
    return Start(epoch, False, None, counted)


def test_from_nothing_nothing_is_missed() -> None:
    assert position(None) == FRESH and FRESH["missed"] == Missed()


def test_a_state_from_some_while_ago_has_missed_what_its_producers_say() -> None:
    at = position(SAVED, found(44, a=Counted(42, (5, 6))))
    assert (at["start_epoch"], at["base"], at["missing"]) == (43, 3, 3)
    assert at["missed"] == Missed(3, {"a": 7 + 5 + 6})


def test_what_it_was_begun_from_had_missed_something_too() -> None:
    """It was not saved anew since: the manifest says what its predecessor was told."""
    before = About(40, usual={"a": 7.0}, missed=Missed(2, {"a": 9}))
    at = position(before, found(44, a=Counted(41, (1, 1, 1))))
    assert at["missing"] == 3 and at["missed"] == Missed(5, {"a": 12})
    assert position(before)["missed"] == Missed(2, {"a": 9}), "also where nothing is missing between the two"


def test_a_manifest_from_before_there_was_any_of_this() -> None:
    at = position(About(40), found(44, a=Counted()))
    assert at["missed"] == Missed(3, {"a": 0})
