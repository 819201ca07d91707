"""Epochs and generations are plain numbers at run time, and what helps to count them gives such numbers."""

from __future__ import annotations

from understudy.core.numbers import FIRST_EPOCH, NO_EPOCH, Epoch, Generation, after, before, between


def test_after_and_before_are_each_others_opposite() -> None:
    assert after(NO_EPOCH) == FIRST_EPOCH and before(FIRST_EPOCH) == NO_EPOCH
    assert before(after(Epoch(7))) == 7


def test_between_has_the_first_and_not_the_end() -> None:
    assert list(between(Epoch(3), Epoch(6))) == [3, 4, 5]
    assert list(between(Epoch(3), Epoch(3))) == [] == list(between(Epoch(3), Epoch(2)))


def test_they_are_plain_numbers_for_whoever_stores_or_sends_them() -> None:
    assert type(Epoch(1)) is type(Generation(1)) is type(after(FIRST_EPOCH)) is int
