"""How far a crash leads results astray: Section 5.1 and Figure 7 of Jacques-Silva et al. 2009.

Every crash is one: an operator's process is killed by SIGKILL in the middle of the input. Two others go on in its
place, one with the state that was saved last and read again from its files (S2), one with none (S3), and both at the
same place in the input, 2 to 5 s later; what came meanwhile is lost. The clock is the input's: an epoch is a second of
it, and nobody waits for it to pass.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.core.numbers import Epoch
from understudy.lab import spade_yield
from understudy.lab.claims import Row
from understudy.lab.spade_yield import LOT, WAFERS
from understudy.operators import Operator
from understudy.runtime.operator_process import Died, OperatorProcess
from understudy.runtime.operator_saves import Saves
from understudy.runtime.spark_files import Batch

RUNTIME_S = 1800.0
"""Of FAB, on average: thirty minutes. So five wafers come in a second."""
PER_S = round(WAFERS / RUNTIME_S)
OUTAGE_S = (2.0, 5.0)
"""From the crash until input is taken again."""
SEED = 11

Progress = Callable[[str, int, int], None]
Found = dict[int, float]
"""Lot -> its quality metric."""


@dataclass(frozen=True)
class Crash:
    at_s: float
    outage_s: float

    @property
    def during(self) -> int:
        """The epoch that is never done."""
        return int(self.at_s)

    @property
    def back(self) -> int:
        """The first epoch that is taken again."""
        return ceil(self.at_s + self.outage_s)


def crashes(count: int, seconds: float) -> list[Crash]:
    """At random times of the run. The first ones are the same, however many."""
    draws = np.random.default_rng(SEED).random((count, 2))
    last_s, (low_s, high_s) = seconds - 2 * OUTAGE_S[1], OUTAGE_S
    return [Crash(1 + at * (last_s - 1), low_s + outage * (high_s - low_s)) for at, outage in draws.tolist()]


class _Run:
    """A model in its process."""

    def __init__(self, data: pa.Table, folder: Path) -> None:
        self._data = data
        self.found: Found = {}
        self.process = OperatorProcess("yield", Operator(spade_yield.YieldModel, spade_yield.SCHEMA), folder)

    def epoch(self, number: int) -> None:
        made = self.process.process([self._data.slice(number * PER_S, PER_S)])
        self.found.update(zip(made["lot"].to_pylist(), made["qm"].to_pylist()))

    def epochs(self, begin: int, end: int) -> None:
        for number in range(begin, end):
            self.epoch(number)


def golden(data: pa.Table, folder: Path) -> Found:
    """Without any failure (S1)."""
    run = _Run(data, folder)
    try:
        run.epochs(0, data.num_rows // PER_S)
        return run.found
    finally:
        run.process.end()


def crashed(data: pa.Table, crash: Crash, folder: Path) -> dict[str, Found]:
    """The outputs with checkpoints every second, and without any: those from before the crash are of both."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    runs = [_Run(data, folder) for _ in range(3)]  # the two that take over start meanwhile
    first, restored, fresh = runs
    try:
        saves = Saves(folder)
        for number in range(crash.during):
            first.epoch(number)
            saves.add(Batch(number), first.process.save())
            saves.trim(Batch(number))
        os.kill(first.process.pid, signal.SIGKILL)
        try:
            first.epoch(crash.during)
        except Died:
            pass
        else:
            raise RuntimeError("the process was killed, and answered")
        # as whoever takes over finds it on disk
        saved = Saves(folder).read(Batch(crash.during - 1))
        if saved is None:
            raise RuntimeError(f"nothing was saved after epoch {Epoch(crash.during - 1)}")
        restored.process.restore(saved)
        end = data.num_rows // PER_S
        for run in (restored, fresh):
            run.epochs(crash.back, end)
        return {"with": restored.found, "without": fresh.found}
    finally:
        for run in runs:
            run.process.end()
        shutil.rmtree(folder, ignore_errors=True)


def errors(found: Found, golden_: Found, crash: Crash) -> tuple[list[float], int]:
    """By how much outputs differ from the failure on, and how many there are none of."""
    due = [lot for lot in golden_ if (lot + 1) * LOT > crash.at_s * PER_S]
    return [found[lot] - golden_[lot] for lot in due if lot in found], sum(lot not in found for lot in due)


def measure(count: int, wafers: int, folder: Path, progress: Progress) -> list[Row]:
    """``count`` crashes in a run of so many wafers."""
    data = spade_yield.wafers(SEED, wafers)
    steps = count + 2
    folder.mkdir(parents=True, exist_ok=True)
    golden_: list[Found] = []
    for number in range(2):
        progress("crashes of a yield model", number, steps)
        golden_.append(golden(data, folder))
    about: dict[str, Any] = {"figure": "7", "how": "measured", "seed": SEED}
    values: dict[str, Any] = {"same": golden_[0] == golden_[1], "outputs": len(golden_[0])}
    rows: list[Row] = [{**about, "series": "golden", "x": 0, "parameters": {"wafers": wafers}, "values": values}]
    for number, crash in enumerate(crashes(count, wafers / PER_S)):
        progress("crashes of a yield model", number + 2, steps)
        parameters = {"wafers": wafers, "at_s": round(crash.at_s, 3), "outage_s": round(crash.outage_s, 3)}
        for series, found in crashed(data, crash, folder / "state").items():
            off, missing = errors(found, golden_[0], crash)
            square = np.square(off)
            values = {
                "outputs": len(off),
                "missing": missing,
                "squares": float(square.sum()),
                "rmse": float(np.sqrt(square.mean())) if len(off) else 0.0,
                "worst": float(np.abs(off).max(initial=0.0)),
                "errors": [round(each, 6) for each in off],
            }
            rows.append({**about, "series": series, "x": number + 1, "parameters": parameters, "values": values})
    progress("crashes of a yield model", steps, steps)
    return rows
