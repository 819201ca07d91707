"""Replay from what ``Windows`` says is needed must give what would have come without the failure, against a naive model
of Spark's watermarks: late rows dropped, windows closed, outputs per epoch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protections import PATIENT

from understudy.core.operators import Window
from understudy.core.windows import Windows

ORIGIN_MS = 1_000_000


@dataclass
class Model:
    """A windowed count in Spark, row by row. ``slide`` divides time into overlapping windows; rows that come late are
    judged by the watermark of the batch before (since Spark 3.5) or by the batch's own."""

    length: int
    slide: int
    delay: int
    append: bool
    strict: bool
    watermark: int = 0
    before: int = 0
    state: Counter[int] = field(default_factory=Counter)
    """Start of a window -> rows in it."""

    def batch(self, rows: list[int]) -> dict[int, int]:
        """Process one epoch of event times; returns what is emitted."""
        late = self.watermark if self.strict else self.before
        touched = set()
        for at in rows:
            for start in self.windows(at):
                if start + self.length > late:
                    self.state[start] += 1
                    touched.add(start)
        closed = {start for start in self.state if start + self.length <= self.watermark}
        emitted = {start: self.state[start] for start in (closed if self.append else touched)}
        for start in closed:
            del self.state[start]
        self.before = self.watermark
        self.watermark = max([self.watermark, *(at - self.delay for at in rows)])
        return emitted

    def windows(self, at: int) -> list[int]:
        newest = at - at % self.slide
        return [start for start in range(newest, newest - self.length, -self.slide) if start + self.length > at]


MODELS = st.tuples(
    st.integers(1, 12), st.integers(1, 12), st.integers(0, 8), st.booleans(), st.booleans()
).map(lambda m: Model(max(m[0], min(m[1], m[0])), min(m[1], m[0]), *m[2:]))  # fmt: skip
DRIFTS = st.lists(st.lists(st.integers(-12, 9), max_size=4), min_size=1, max_size=25)
"""Per epoch the times of its rows, as distances from a clock that goes three ticks per epoch: some late, some early."""


def epochs(drifts: list[list[int]]) -> list[list[int]]:
    return [[ORIGIN_MS + 3 * epoch + drift for drift in rows] for epoch, rows in enumerate(drifts)]


def tracker(model: Model, start: int = 0, history: list[list[int]] | None = None) -> Windows:
    return Windows(Window(model.length / 1000, model.delay / 1000), start=start, history=history)


def run(model: Model, rows: list[list[int]], start: int) -> tuple[list[dict[int, int]], list[int]]:
    """Outputs and needs of every epoch from ``start`` on, beginning with nothing."""
    fresh = Model(model.length, model.slide, model.delay, model.append, model.strict)
    windows, outputs, needs = tracker(model, start), [], []
    for epoch in range(start, len(rows)):
        outputs.append(fresh.batch(rows[epoch]))
        needs.append(windows.committed(epoch, fresh.watermark))
    return outputs, needs


@settings(PATIENT, max_examples=600)
@given(MODELS, DRIFTS, st.data())
def test_a_replay_gives_what_would_have_come(model: Model, drifts: list[list[int]], data: st.DataObject) -> None:
    rows = epochs(drifts)
    outputs, needs = run(model, rows, 0)
    had = data.draw(st.integers(0, len(rows) - 1), label="what consumers have")
    begin = data.draw(st.integers(0, needs[had]), label="the oldest that is there")
    again, needed = run(model, rows, begin)
    assert again[had + 1 - begin :] == outputs[had + 1 :]
    assert needed[had - begin :] == needs[had:], "it lets go of the same input as its predecessor"
    assert all(n <= needs[had] for n in needed[: had - begin]), "and of nothing more before it is as far"


@settings(PATIENT, max_examples=300)
@given(MODELS, DRIFTS)
def test_it_is_the_first_epoch_with_a_row_that_an_open_window_may_hold(model: Model, drifts: list[list[int]]) -> None:
    rows = epochs(drifts)
    _, needs = run(model, rows, 0)
    assert needs == sorted(needs)
    for epoch, needed in enumerate(needs):
        watermark = max([0, *(at - model.delay for before in rows[:epoch] for at in before)])
        if watermark > model.length + model.delay:
            oldest = next(i for i in range(epoch + 1) if any(at >= watermark - model.length for at in rows[i]))
            assert needed == oldest
        else:
            assert needed == 0, "no watermark yet: everything is needed"


@settings(PATIENT, max_examples=200)
@given(MODELS, DRIFTS, st.integers(0, 24))
def test_a_stage_that_was_stopped_goes_on_with_its_history(model: Model, drifts: list[list[int]], stop: int) -> None:
    rows = epochs(drifts)
    _, needs = run(model, rows, 0)
    watermarks = [max([0, *(at - model.delay for r in rows[: e + 1] for at in r)]) for e in range(len(rows))]
    first, found = tracker(model), []
    for epoch in range(min(stop, len(rows))):
        found.append(first.committed(epoch, watermarks[epoch]))
    second = tracker(model, history=first.history(stop))
    for epoch in range(min(stop, len(rows)), len(rows)):
        found.append(second.committed(epoch, watermarks[epoch]))
    assert found == needs


def test_the_watermark_as_of_processing_counts_not_the_one_after() -> None:
    """One row a second; a window of one and a delay of none. The state after epoch 5 was made under the watermark of
    the rows before it."""
    windows = Windows(Window(1.0, 0.0), start=0)
    needs = [windows.committed(e, 10_000 + 1000 * e) for e in range(8)]
    assert needs == [0, 0, 0, 1, 2, 3, 4, 5]


def test_without_rows_nothing_is_let_go_of_and_nothing_piles_up() -> None:
    windows = Windows(Window(10.0, 5.0), start=0)
    for epoch in range(100):
        windows.committed(epoch, 100_000 + 1000 * epoch)
    kept = windows.history(99)
    assert {windows.committed(epoch, 199_000) for epoch in range(100, 1000)} == {kept[0][0] + 1}
    assert len(windows.history(999)) == len(kept) - 1


@pytest.mark.parametrize(("length_s", "reach_ms"), [(10.0, 15_000), (0.0005, 5001)])
def test_a_reach_is_never_rounded_down(length_s: float, reach_ms: int) -> None:
    assert Windows(Window(length_s, 5.0), start=0).reach_ms == reach_ms
