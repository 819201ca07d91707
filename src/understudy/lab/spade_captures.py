"""What checkpoints of the join keep it from: Figures 8 to 10 of Jacques-Silva et al. 2009, at the paper's input rates.

The join is an operator in a process of its own, as on a host, and what it saves is written as a host writes it. When it
is saved, the policy's own scheduler says (``us.Checkpoint``). The clock is the input's: an epoch is a fifth of a period
of input at the paper's rate, nobody waits for it to pass, and what processing and saving take is added where it would
have made the stage fall behind. So a checkpoint that does not come in time comes late here too.

Times are processor time, of the operator's process and of the thread that asks it, because what a wall clock says on a
machine that does something else besides is mostly that; wall time is beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
import pyarrow as pa

from understudy.core.numbers import Epoch
from understudy.core.policies.base import Capture, Committed, Event, Pasted, StageRole, StandbysChanged, Want
from understudy.core.policies.checkpoint import Checkpoint, Scheduled
from understudy.lab import spade_join
from understudy.lab.claims import Row
from understudy.lab.spade_join import ASKED, KEYS, PER_KEY_IN, PER_KEY_WINDOW, SEED, TABLE_1
from understudy.operators import Operator
from understudy.runtime.operator_process import OperatorProcess
from understudy.runtime.operator_saves import Saves, State
from understudy.runtime.spark_files import Batch

EPOCH_SHARE = 0.2
"""Of a period, an epoch. A checkpoint may be early by a quarter of its period (``EARLY``), which must not be a whole
number of epochs: of two that are equally good, now the one and now the other would be taken."""
CUT = 0.1
"""Of the times of a point, the share that is left out at either end before the mean is taken: a processor that was
taken away in the middle costs several times what a capture takes."""
_POOL = 40_000
"""Rows of each stream that are made; they come again and again."""
_STANDBY = "standby"


@dataclass(frozen=True)
class Shape:
    """A join, and what comes in."""

    window: int
    group: int | Literal["auto"]
    rows_per_s: float
    """Of both streams together, half of it each."""
    keys: int
    asked: int
    """Keys of S2."""
    per_key: bool = False
    zipf: bool = False

    @property
    def figure(self) -> str:
        return "10" if self.per_key else "8-9"

    @property
    def series(self) -> str:
        kind = ("Zipf" if self.zipf else "uniform") if self.per_key else "join"
        return f"{kind} {self.group}"


def single(window: int, group: int) -> Shape:
    keys = spade_join.keys_of(window)
    return Shape(window, group, TABLE_1[window][0], keys, keys)


def per_key(group: int | Literal["auto"], *, zipf: bool) -> Shape:
    return Shape(PER_KEY_WINDOW, group, PER_KEY_IN, KEYS, ASKED, per_key=True, zipf=zipf)


@dataclass(frozen=True)
class Measuring:
    """Which points, and how long each is measured."""

    windows: tuple[int, ...] = tuple(TABLE_1)
    groups: tuple[int, ...] = (512, 1024, 2048, 4096)
    key_groups: tuple[int | Literal["auto"], ...] = (32, 64, 128, 256, "auto")
    captures: tuple[tuple[float, int], ...] = ((1.0, 20), (10.0, 3))
    """For each period, how many captures a round measures."""
    quiet_s: float = 10.0
    """Of a round, without captures."""
    rounds: int = 2
    warm: int = 20
    """Captures before anything is measured: a window per key is first saved in a few large bundles."""

    def shapes(self) -> list[list[Shape]]:
        """Those that are measured side by side."""
        found = [[single(window, group) for group in self.groups] for window in self.windows]
        return [*found, *([per_key(group, zipf=zipf) for group in self.key_groups] for zipf in (False, True))]


FULL = Measuring()
QUICK = Measuring((8192, 32768), (512, 4096), (64, "auto"), ((1.0, 8), (10.0, 1)), 2.0, 1, warm=3)


class Busy:
    """Seconds of processor time of a process and of this thread, and wall time, from one reading to the next."""

    def __init__(self, pid: int) -> None:
        self._clock = (~pid << 3) | 2  # what clock_getcpuclockid(3) makes of a process; Python has it for threads only
        self._last = self._now()

    def _now(self) -> tuple[float, float]:
        return time.clock_gettime(self._clock) + time.thread_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        now, last = self._now(), self._last
        self._last = now
        return now[0] - last[0], now[1] - last[1]


class _Feed:
    """Rows of a stream at an even pace, the same ones again when all have come."""

    def __init__(self, table: pa.Table, rows_per_s: float) -> None:
        self._table, self._rate = table, rows_per_s
        self._given = 0

    def until(self, seconds: float) -> pa.Table:
        """What has come since it was last asked."""
        count = int(seconds * self._rate) - self._given
        at = self._given % (self._table.num_rows - count)
        self._given += count
        return self._table.slice(at, count)


@dataclass
class _Captured:
    at: float
    busy_s: float
    wall_s: float
    bytes: int


class Lane:
    """One join in its process, and what came of its blocks: stretches with or without captures."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape, self._folder = shape, folder
        make = partial(spade_join.operator, shape.window, shape.group, "k" if shape.per_key else None)
        draw = np.random.default_rng(SEED)
        left = spade_join.first_stream(draw, _POOL, shape.keys, zipf=shape.zipf)
        right = spade_join.second_stream(draw, _POOL, shape.asked)
        self._empty = right.slice(0, 0)
        self._feeds = [_Feed(table, shape.rows_per_s / 2) for table in (left, right)]
        self.process = OperatorProcess("join", Operator(make, make().schema(left.schema, right.schema)), folder)
        self._saves = Saves(folder)
        self._arrived = self._now = 0.0
        self._epoch = 0
        self.captured: dict[float, list[_Captured]] = {}
        self.intervals: dict[float, list[float]] = {}
        """Between those, in the input's time."""
        self.late: dict[float, int] = {}
        self.working: dict[float, list[float]] = {}
        """Seconds that processing an epoch takes, by the period of the captures."""
        self.working_alone: dict[float, list[float]] = {}
        """The same without captures."""

    def fill(self, warm: int) -> None:
        """Every window, and its parts on disk as they are after a while."""
        draw, shape = np.random.default_rng(SEED), self.shape
        rows = spade_join.first_stream(draw, shape.window * (shape.keys if shape.per_key else 1), shape.keys)
        if shape.per_key:  # as many rows of each, mixed
            keys = draw.permutation(np.repeat(np.arange(shape.keys), shape.window))
            rows = rows.set_column(0, "k", pa.array(keys))
        self.process.process([rows, self._empty])
        self._busy = Busy(self.process.pid)
        self.block(1.0, warm)
        for each in (self.captured, self.intervals, self.late, self.working, self.working_alone):
            each.clear()

    def block(self, every_s: float, captures: int) -> None:
        """The first capture is none of those: it has what came since the block before."""
        unit = Checkpoint(every=every_s).protect([StageRole("join", Epoch(self._epoch))])
        assert isinstance(unit, Scheduled)
        self._tell(unit, StandbysChanged((_STANDBY,)))
        found: list[_Captured] = []
        working: list[float] = []
        while len(found) <= captures:
            working.append(self._process(every_s))
            if unit.wants("join", self._now) is Want.NOW:
                found.append(self._capture(unit))
            else:
                self._tell(unit, Committed("join", Epoch(self._epoch), version=False))
        self.captured.setdefault(every_s, []).extend(found[1:])
        self.intervals.setdefault(every_s, []).extend(b.at - a.at for a, b in pairwise(found))
        self.late[every_s] = self.late.get(every_s, 0) + unit.late
        self.working.setdefault(every_s, []).extend(working)

    def quiet(self, every_s: float, seconds: float) -> None:
        """Without captures."""
        epochs = max(1, round(seconds / (EPOCH_SHARE * every_s)))
        self.working_alone.setdefault(every_s, []).extend(self._process(every_s) for _ in range(epochs))

    def _process(self, every_s: float) -> float:
        """An epoch. Returns the seconds that it took."""
        self._epoch += 1
        self._arrived += EPOCH_SHARE * every_s
        tables = [feed.until(self._arrived) for feed in self._feeds]
        self._busy.read()
        self.process.process(tables)
        busy_s, _ = self._busy.read()
        self._now = max(self._now, self._arrived) + busy_s
        return busy_s

    def _capture(self, unit: Scheduled) -> _Captured:
        batch = Batch(self._epoch)
        begin = self._now
        self._busy.read()
        state: State = self.process.save()
        self._saves.add(batch, state)
        busy_s, wall_s = self._busy.read()
        self._now += busy_s
        assert isinstance(state, dict)
        self._tell(unit, Committed("join", Epoch(self._epoch)), begin)
        self._saves.trim(batch)
        return _Captured(begin, busy_s, wall_s, spade_join.written(state))

    def _tell(self, unit: Scheduled, event: Event, at: float | None = None) -> None:
        """Whatever is to be captured is at the standby at once: what sending takes keeps nobody from processing."""
        for effect in unit.handle(event, self._now if at is None else at):
            if isinstance(effect, Capture):
                self._tell(unit, Pasted("join", effect.standby, effect.epoch))

    def row(self, every_s: float) -> Row:
        """Of ``results.jsonl``."""
        shape, found = self.shape, self.captured[every_s]
        interval_s = fmean(self.intervals[every_s])
        capture_s, wall_s = (middle([getattr(each, name) for each in found]) for name in ("busy_s", "wall_s"))
        on_s, off_s = (middle(each[every_s]) / (EPOCH_SHARE * every_s) for each in (self.working, self.working_alone))
        values = {
            "overhead": capture_s / interval_s,
            "overhead_wall": wall_s / interval_s,
            "capture_ms": 1000 * capture_s,
            "capture_ms_wall": 1000 * wall_s,
            "bytes": fmean(each.bytes for each in found),
            "interval_s": interval_s,
            "interval_max_s": max(self.intervals[every_s]),
            "late": self.late[every_s],
            "captures": len(found),
            "working": on_s,
            "working_without": off_s,
        }
        if not shape.per_key:
            about = {"figure": "8" if every_s == 1 else "9", "series": f"{shape.group}", "x": shape.window}
        else:
            x = 0 if shape.group == "auto" else shape.group
            about = {"figure": "10", "series": f"{'Zipf' if shape.zipf else 'uniform'}, {every_s:g} s", "x": x}
        parameters = {**asdict(shape), "every_s": every_s, "epoch_s": EPOCH_SHARE * every_s}
        return {**about, "how": "measured", "seed": SEED, "parameters": parameters, "values": values}


def middle(times: Iterable[float]) -> float:
    """The mean without the smallest and the largest tenth."""
    ordered = np.sort(np.fromiter(times, float))
    cut = int(CUT * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def measure(measuring: Measuring, folder: Path, progress: Callable[[str, int, int], None]) -> list[Row]:
    """A row for every point. What is compared is measured in turns: a slow minute of the machine is everybody's."""
    rows: list[Row] = []
    sets = measuring.shapes()
    steps, done = len(sets) * (measuring.rounds + 1), 0
    for number, shapes in enumerate(sets):
        lanes: list[Lane] = []
        try:
            for place, shape in enumerate(shapes):
                lanes.append(Lane(shape, folder / f"{number}-{place}"))
            for lane in lanes:
                lane.fill(measuring.warm)
            for turn in range(measuring.rounds + 1):
                progress("checkpoints of joins", done, steps)
                done += 1
                if turn:
                    _round(lanes, measuring)
            rows += [lane.row(every_s) for lane in lanes for every_s, _ in measuring.captures]
        finally:
            for lane in lanes:
                lane.process.end()
    progress("checkpoints of joins", steps, steps)
    return rows


def _round(lanes: Sequence[Lane], measuring: Measuring) -> None:
    for every_s, captures in measuring.captures:
        for lane in lanes:
            lane.quiet(every_s, measuring.quiet_s / len(measuring.captures))
            lane.block(every_s, captures)
