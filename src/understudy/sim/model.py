"""What a simulated job computes: numbers in, numbers out, so that any lost, repeated or altered epoch shows.

A source's epoch is a number drawn when it is cut, and thus known to nobody who lost its log. A stage mixes what it
reads with its state: everything it ever read (``span`` 0), the last ``span`` epochs, windows of event time that a
watermark closes, as Spark does it, or the newest rows, of which an epoch has some or none. ``expected`` computes the
same without hosts, queues or failures.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from understudy.core.numbers import FIRST_EPOCH, Epoch
from understudy.core.operators import Window
from understudy.core.reach import Span
from understudy.core.topology import Topology

_PRIME = (1 << 61) - 1
EMPTY = 0
"""The value of an epoch without rows: what a unit without protection leaves in place of epochs that it lost."""

State = tuple[int, ...]
"""Of windows: the watermark of the next epoch, then the start of every open one and what is in it. Of windows by rows:
the number of the next row, then the rows. Of pairs: the number of the next row of each input, then what waits of
each."""
_ORIGIN_MS, _STEP_MS, _EARLY_MS, _LATE_MS = 1_000_000, 100, 150, 250
"""Event times follow the epochs by so much each; a row may be early or late by so much."""


def mix(numbers: Iterable[int]) -> int:
    """One number from several; order matters."""
    result = 1469598103934665603
    for number in numbers:
        result = (result ^ number) * 1099511628211 % _PRIME
    return result


def event_ms(number: int, epoch: Epoch) -> int:
    """When what a stage reads in an epoch happened; no other than in a replay, whatever is in it."""
    drift = mix((number, epoch)) % (_EARLY_MS + _LATE_MS) - _LATE_MS
    return _ORIGIN_MS + _STEP_MS * epoch + drift


def kept_for(window: Window) -> int:
    """Epochs that producers keep for open windows, at most."""
    return math.ceil((1000 * window.reach_s + _EARLY_MS + _LATE_MS) / _STEP_MS) + 2


ROWS_USUAL = 1.5
"""Rows that an epoch of a stream has on average."""
LOST_ROW = -1
"""In a window by rows: one that came while nobody was there."""


def rows_of(number: int, epoch: Epoch) -> int:
    """How many rows an epoch of a stream has: none to three, in any four epochs six."""
    return (number + 3 * epoch + epoch // 4) % 4


def kept_for_rows(count: int) -> int:
    """Epochs that producers keep for so many rows, at most."""
    return 4 * math.ceil(count / 6) + 8


@dataclass(frozen=True)
class SimJob:
    """A topology and what its stages remember."""

    topology: Topology
    span: Mapping[str, int] = field(default_factory=dict)
    """How many epochs of input a stage's output depends on; 0 for all there ever were; 1 where not named."""
    saves: Mapping[str, int] = field(default_factory=dict)
    """Stages that are objects: the state is saved after every so many epochs, and else lost with the next. Others keep
    the state after every epoch, as Spark does."""
    preserved: Collection[str] = ()
    """Sources whose rows cannot be read again."""
    windows: Mapping[str, Window] = field(default_factory=dict)
    """Stages whose state is windows of event time; their ``span`` does not count."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Stages whose state is so many of the newest rows; nor does theirs."""
    pairs: Collection[str] = ()
    """Stages that pair the rows of their inputs, whose state is what waits; nor does theirs."""

    def span_of(self, stage: str) -> int:
        return self.span.get(stage, 1)

    def fresh(self, stage: str) -> State:
        if stage in self.pairs:
            return (0,) * len(self.topology.stages[stage].inputs)
        return (0,) if self.span_of(stage) == 0 or stage in self.windows or stage in self.rows else ()

    def numbered(self, totals: Sequence[int]) -> State:
        """Of pairs: nothing, where so many rows of each input have come before. What one has had more of than another
        waits, and is lost."""
        return (*totals, *[LOST_ROW] * sum(total - min(totals) for total in totals))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.topology.stages)}

    def rows_read(self, stage: str, epoch: Epoch) -> int:
        """Rows that a stage reads in an epoch, of all its inputs."""
        return sum(rows_of(self._numbers[name], epoch) for name in self.topology.stages[stage].inputs)

    def without_stale(self, stage: str, state: State, missed: int) -> State:
        """A window by rows that so many rows have passed by."""
        kept = [*state[1:], *[LOST_ROW] * missed]
        return (state[0] + missed, *kept[max(0, len(kept) - self.rows[stage]) :])

    def step(self, stage: str, number: int, epoch: Epoch, state: State, values: Sequence[int]) -> tuple[State, int]:
        """One epoch: the state after it and what comes out. ``number`` tells stages apart."""
        if stage in self.windows:
            return _windowed(self.windows[stage], number, event_ms(number, epoch), state, mix(values))
        span = self.span_of(stage)
        read = mix(values)
        if stage in self.pairs:
            return self._paired(stage, number, epoch, state, values)
        if stage in self.rows:
            new = [mix((read, row)) for row in range(self.rows_read(stage, epoch))]
            rows = [*state[1:], *new]
            kept = rows[max(0, len(rows) - self.rows[stage]) :]
            return (state[0] + len(new), *kept), mix((number, *kept))
        if span == 0:
            after: State = (mix((state[0], read)),)
            return after, mix((number, after[0]))
        window = (*state, read)
        return window[-(span - 1) :] if span > 1 else (), mix((number, *window))

    def rows_in(self, stage: str, state: State) -> list[Span]:
        """Of windows by rows, and of pairs, input by input."""
        if stage in self.rows:
            return [(state[0] - len(state) + 1, state[0])]
        totals = self.totals(stage, state)
        return [(min(totals), total) for total in totals]

    def totals(self, stage: str, state: State) -> State:
        """Of pairs."""
        return state[: len(self.topology.stages[stage].inputs)]

    def _paired(self, stage: str, number: int, epoch: Epoch, state: State, values: Sequence[int]) -> tuple[State, int]:
        before, at = self.totals(stage, state), len(values)
        totals, waiting = [], []
        for stream, value, total in zip(self.topology.stages[stage].inputs, values, before, strict=True):
            new = [mix((value, row)) for row in range(rows_of(self._numbers[stream], epoch))]
            waiting.append([*state[at : at + total - min(before)], *new])
            totals.append(total + len(new))
            at += total - min(before)
        done = min(totals) - min(before)
        out = [row for pair in zip(*(rows[:done] for rows in waiting), strict=True) for row in pair]
        return (*totals, *[row for rows in waiting for row in rows[done:]]), mix((number, *out))

    def needs_after(self, stage: str, epoch: Epoch) -> Epoch:
        """The oldest input epoch from which the state after ``epoch`` can be rebuilt. Of windows, ``Windows`` and
        ``Reach`` know."""
        span = self.span_of(stage)
        return FIRST_EPOCH if span == 0 else Epoch(max(0, epoch - span + 2))

    def expected(self, sources: Mapping[str, Sequence[int]], upto: Epoch) -> dict[str, list[int]]:
        """Every stream's epochs 0..``upto`` as they must be."""
        streams: dict[str, list[int]] = {name: list(log[: upto + 1]) for name, log in sources.items()}
        for number, (name, shape) in enumerate(self.topology.stages.items()):
            if not shape.inputs:
                continue
            state, out = self.fresh(name), []
            for epoch in map(Epoch, range(upto + 1)):
                state, value = self.step(name, number, epoch, state, [streams[i][epoch] for i in shape.inputs])
                out.append(value)
            streams[name] = out
        return streams


def _windowed(window: Window, number: int, at_ms: int, state: State, read: int) -> tuple[State, int]:
    """What is late is dropped, and a window comes out when the watermark has passed its end: both by the watermark that
    the epochs before have set."""
    watermark, length = state[0], round(window.length_s * 1000)
    found = dict(zip(state[1::2], state[2::2], strict=True))
    start = at_ms - at_ms % length
    if start + length > watermark:
        found[start] = mix((found.get(start, 0), read))
    out: list[int] = []
    for begin in sorted(begin for begin in found if begin + length <= watermark):
        out += (begin, found.pop(begin))
    left = [number for pair in sorted(found.items()) for number in pair]
    return (max(watermark, at_ms - round(window.delay_s * 1000)), *left), mix((number, *out))
