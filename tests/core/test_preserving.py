"""Rows that cannot be read again: when an epoch of them may be seen."""

from __future__ import annotations

from understudy.core.preserving import Preserving


def keeping(*keepers: str) -> Preserving:
    machine = Preserving()
    machine.aim(keepers)
    machine.begin()
    return machine


def test_an_epoch_may_be_seen_when_everybody_has_it() -> None:
    machine = keeping("b#1", "c#1")
    machine.safe_at("b#1")
    assert machine.left() == ["c#1"] and not machine.done()
    machine.safe_at("c#1")
    assert machine.left() == [] and machine.done()


def test_the_next_epoch_nobody_has() -> None:
    machine = keeping("b#1")
    machine.safe_at("b#1")
    machine.begin()
    assert machine.left() == ["b#1"] and not machine.done()


def test_as_long_as_nobody_is_named_nothing_may_be_seen() -> None:
    assert not keeping().done()


def test_whoever_is_gone_is_not_waited_for_and_whoever_is_new_is() -> None:
    machine = keeping("b#1", "c#1")
    machine.safe_at("b#1")
    machine.aim(["b#1"])
    assert machine.done()
    machine.aim(["b#1", "d#4"])
    assert machine.left() == ["d#4"]


def test_a_host_that_began_anew_has_nothing_and_a_late_word_of_it_counts_nothing() -> None:
    machine = keeping("b#1")
    machine.safe_at("b#1")
    machine.aim(["b#5"])
    machine.safe_at("b#1")
    assert machine.left() == ["b#5"]
    machine.aim(["b#1"])
    assert machine.left() == ["b#1"], "it was let go of in between"


def test_what_is_inherited_waits_for_those_that_the_plan_counts_on() -> None:
    machine = Preserving()
    machine.begin(inherited=True)
    machine.aim(["b#1", "c#7"], ["b#1"])
    assert not machine.may_be_seen()
    machine.safe_at("b#1")
    assert machine.may_be_seen() and not machine.done(), "c has just come"
    machine.begin()
    machine.safe_at("b#1")
    assert not machine.may_be_seen(), "what is cut now is another matter"


def test_with_nobody_left_that_counts_what_is_inherited_may_be_seen_at_once() -> None:
    machine = Preserving()
    machine.begin(inherited=True)
    machine.aim(["c#7"])
    assert machine.may_be_seen() and machine.left() == ["c#7"]
