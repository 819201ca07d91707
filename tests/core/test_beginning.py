"""Where a stage without state begins."""

from __future__ import annotations

import pytest

from understudy.core.agreement import copy_serves
from understudy.core.beginning import Place, Start, place, start
from understudy.core.policies.upstream import Row
from understudy.core.queue import OutputQueue


@pytest.fixture
def queue() -> OutputQueue:
    """Ten epochs, of which the consumer was given six and has acknowledged three."""
    made = OutputQueue(["c"])
    for epoch in range(10):
        made.append(epoch)
    made.request("c", 6)
    made.ack("c", 2)
    return made


def test_without_protection_it_begins_at_what_it_was_not_given_and_the_rest_is_lost(queue: OutputQueue) -> None:
    assert place(queue, "c", newest=True, gap=0, row=None, landed={}) == Place(6, lost=True)


def test_by_replay_it_begins_at_the_oldest_that_is_kept_for_it(queue: OutputQueue) -> None:
    assert place(queue, "c", newest=False, gap=0, row=None, landed={}) == Place(3, lost=False)


@pytest.mark.parametrize(("gap", "lost"), [(2, False), (3, True), (8, True)])
def test_what_the_producer_has_lost_is_lost_to_its_consumers_too(queue: OutputQueue, gap: int, lost: bool) -> None:
    assert place(queue, "c", newest=False, gap=gap, row=None, landed={}) == Place(3, lost)


def test_a_producer_that_is_being_rebuilt_says_so_as_long_as_it_may_lack_something() -> None:
    row = Row(frozenset(["h1"]), 1)
    rebuilt = OutputQueue(["c"], start=5, rebuilt=True)
    assert place(rebuilt, "c", newest=False, gap=0, row=row, landed={}).row == row
    kept = OutputQueue(["c"])
    assert place(kept, "c", newest=False, gap=0, row=row, landed={}).row is None


def test_it_is_told_what_sinks_have(queue: OutputQueue) -> None:
    assert place(queue, "c", newest=False, gap=0, row=None, landed={"sink:out": 4}).landed == {"sink:out": 4}


def test_the_latest_of_all_answers_counts() -> None:
    assert start([Place(3, False), Place(5, False)], "h1", 1, newest=False) == Start(
        5, False, Row(frozenset(["h1"]), 1)
    )
    assert start([Place(5, False), Place(5, True)], "h1", 1, newest=False) == Start(5, True, None)
    assert start([Place(7, True)], "h1", 0, newest=True) == Start(7, True, None)


@pytest.mark.parametrize(
    ("above", "k", "promised"), [("h1", 1, True), ("h2", 1, False), ("h2", 2, True), (None, 1, True)]
)
def test_neighbours_lost_with_more_hosts_than_promised_must_not_begin(
    above: str | None, k: int, promised: bool
) -> None:
    row = Row(frozenset([above]), k) if above else None
    assert start([Place(3, False, row)], "h1", k, newest=False).promised is promised


@pytest.mark.parametrize(("at", "held", "serves"), [(5, None, True), (5, 5, True), (6, 5, True), (4, 5, False)])
def test_a_copy_that_rose_serves_when_it_is_as_far_as_what_is_held(at: int, held: int | None, serves: bool) -> None:
    assert copy_serves(at, held) is serves
