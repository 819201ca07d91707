"""Replay from what ``Reach`` says is needed must hold what was held without the failure, against naive windows."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from protections import PATIENT

from understudy.core.landed import Landed
from understudy.core.reach import Numbers, Reach, Span, numbered

Rows = list[tuple[int, ...]]
"""Per epoch, the rows of one input."""


def span_of(seen: list[int], window: int) -> Span:
    return max(0, len(seen) - window), len(seen)


def run(inputs: list[Rows], windows: list[int], start: int) -> tuple[list[list[list[int]]], list[int]]:
    """What the windows hold after every epoch from ``start`` on, beginning with nothing, and what is needed for it."""
    reach, held, needs = Reach(), [], []
    seen: list[list[int]] = [[] for _ in inputs]
    for epoch in range(start, len(inputs[0])):
        for each, rows in zip(seen, inputs):
            each += rows[epoch]
        held.append([each[len(each) - min(window, len(each)) :] for each, window in zip(seen, windows)])
        needs.append(reach.committed(epoch, [span_of(each, window) for each, window in zip(seen, windows)]))
    return held, needs


COUNTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=25)
WINDOWS = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(list)


def inputs_of(counts: list[tuple[int, int]]) -> list[Rows]:
    """Every row another number, so that none is taken for another."""
    inputs: list[Rows] = []
    for number in (0, 1):
        rows = iter(range(1000 * number, 1000 * number + 1000))
        inputs.append([tuple(next(rows) for _ in range(count[number])) for count in counts])
    return inputs


@settings(PATIENT, max_examples=150)
@given(COUNTS, WINDOWS, st.data())
def test_a_replay_holds_what_its_predecessor_held(
    counts: list[tuple[int, int]], windows: list[int], data: st.DataObject
) -> None:
    inputs = inputs_of(counts)
    held, needs = run(inputs, windows, 0)
    had = data.draw(st.integers(0, len(counts) - 1), label="what consumers have")
    begin = data.draw(st.integers(0, min(needs[had], len(counts) - 1)), label="the oldest that is there")
    again, needed = run(inputs, windows, begin)
    if begin <= had:
        assert again[had - begin :] == held[had:]
        assert needed[had - begin :] == needs[had:], "it lets go of the same input as its predecessor"
        assert all(n <= needs[had] for n in needed[: had - begin]), "and of nothing more before it is as far"


@settings(PATIENT, max_examples=150)
@given(COUNTS, WINDOWS)
def test_it_is_the_epoch_of_the_oldest_row(counts: list[tuple[int, int]], windows: list[int]) -> None:
    inputs = inputs_of(counts)
    held, needs = run(inputs, windows, 0)
    assert needs == sorted(needs)
    for epoch, needed in enumerate(needs):
        oldest = [each[0] for each in held[epoch] if each]
        came = [e for rows in inputs for e, each in enumerate(rows) if set(each).intersection(oldest)]
        assert needed == min(came, default=epoch + 1)


@settings(PATIENT, max_examples=80)
@given(COUNTS, WINDOWS, st.integers(0, 24))
def test_a_stage_that_was_stopped_goes_on_with_its_history(
    counts: list[tuple[int, int]], windows: list[int], stop: int
) -> None:
    inputs = inputs_of(counts)
    _, needs = run(inputs, windows, 0)
    reach, found = Reach(), []
    seen: list[list[int]] = [[] for _ in inputs]
    for epoch in range(len(counts)):
        if epoch == stop:
            reach = Reach(json.loads(json.dumps(reach.history())))
        for each, rows in zip(seen, inputs):
            each += rows[epoch]
        found.append(reach.committed(epoch, [span_of(each, window) for each, window in zip(seen, windows)]))
    assert found == needs


def test_rows_that_it_did_not_see_come_are_needed_from_where_it_began() -> None:
    reach = Reach()
    assert reach.committed(7, [(90, 100)]) == 7
    assert reach.committed(8, [(95, 105)]) == 7
    assert reach.committed(9, [(100, 110)]) == 8, "those have left"


def test_rows_that_are_numbered_anew_are_new_rows() -> None:
    """As after a state whose head was damaged."""
    reach = Reach([{"next": 100, "came": [[4, 90]]}])
    assert reach.committed(9, [(0, 10)]) == 9


def test_without_rows_nothing_is_let_go_of_and_nothing_piles_up() -> None:
    reach = Reach()
    for epoch in range(20):
        reach.committed(epoch, [(max(0, 3 * epoch - 7), 3 * epoch + 3)])
    kept = reach.history()
    assert {reach.committed(epoch, [(50, 60)]) for epoch in range(20, 200)} == {16}
    assert reach.history() == kept


# -- numbers of a barrier's rows --------------------------------------------------------------------------------------


def paired(inputs: list[Rows], start: int, totals: tuple[int, ...]) -> list[list[tuple[int, ...]]]:
    """What a barrier makes of every epoch from ``start`` on, when so many rows of each input came before."""
    rows: list[dict[int, int]] = [{} for _ in inputs]
    ends, done, made = list(totals), min(totals), []
    for epoch in range(start, len(inputs[0])):
        for place, each in enumerate(inputs):
            for row in each[epoch]:
                rows[place][ends[place]] = row
                ends[place] += 1
        until = min(ends)
        whole = [n for n in range(done, until) if all(n in each for each in rows)]
        made.append([tuple(each[n] for each in rows) for n in whole])
        done = until
    return made


@settings(PATIENT, max_examples=150)
@given(COUNTS, st.data())
def test_a_barrier_is_rebuilt_with_the_numbers_that_were_told(
    counts: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Whatever was told besides, in whatever order: what is known is of the newest epoch that was told."""
    inputs = inputs_of(counts)
    expected = paired(inputs, 0, (0, 0))
    reach, numbers, landed, ends, told = Reach(), Numbers("both", -1, (0, 0)), Landed(), [0, 0], []
    had = data.draw(st.integers(0, len(counts) - 1), label="what consumers have")
    for epoch in range(had + 1):
        for place, each in enumerate(inputs):
            ends[place] += len(each[epoch])
        numbers.committed(epoch, ends)
        needed = reach.committed(epoch, [(min(ends), end) for end in ends])
        told.append(numbers.told(needed))
    for known in data.draw(st.permutations(told), label="as they come"):
        landed.hears(known)
    begin, totals = numbered(landed.known, "both", 2)
    again = paired(inputs, begin, totals)
    assert begin == needed and again[max(0, had + 1 - begin) :] == expected[had + 1 :]



def test_numbers_go_on_over_a_stop() -> None:
    first = Numbers("both", -1, (0, 0))
    for epoch in range(5):
        first.committed(epoch, (3 * epoch, 2 * epoch))
    first.told(3)
    second = Numbers("both", 4, (12, 8), json.loads(json.dumps(first.history())))
    assert numbered(second.told(3), "both", 2) == (3, (6, 4))
    second.committed(5, (20, 20))
    assert numbered(second.told(6), "both", 2) == (6, (20, 20))


def test_of_epochs_that_it_has_not_seen_it_says_nothing() -> None:
    numbers = Numbers("both", 6, (70, 60))
    assert numbers.told(6) == {} and numbered({}, "both", 2) == (0, (0, 0))
    assert numbered(numbers.told(7), "both", 2) == (7, (70, 60))
