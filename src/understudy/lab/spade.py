"""``understudy lab spade``: Section 5 of Jacques-Silva et al. 2009, Figures 7 to 10 and Table 1, and some goals.

``run`` measures (``spade_deviation``, ``spade_join``, ``spade_captures``) and writes the folder: ``results.jsonl``,
``summary.json``, figures and ``index.html``. Nothing of it needs Spark or Java. What was measured on Spark elsewhere is
shown beside it where the folder has it (``SPARK``).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.lab import spade_captures, spade_deviation, spade_join
from understudy.lab.claims import Row
from understudy.lab.spade_captures import EPOCH_SHARE, Measuring
from understudy.lab.spade_claims import summarise
from understudy.lab.spade_page import write_page
from understudy.lab.spade_yield import LOT, SENSORS, TOOLS, WAFERS

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much."""

SPARK = "spark.jsonl"
"""In the folder, if somebody has measured the join per key on Spark: lines of ``results.jsonl`` with figure "10", how
"spark", as series the policy ("us.Checkpoint" or "us.none"), as x the period in seconds (0 without one), and as values
``rows_per_s`` and ``out_rows_per_s``; of us.Checkpoint also ``overhead``, the share of the input that it costs."""
_RATES = {"rows_per_s", "out_rows_per_s"}
_SPARK_VALUES = {"us.Checkpoint": {*_RATES, "overhead"}, "us.none": _RATES}

CHOICES: dict[str, str] = {
    "The model and its data": (
        f"FAB and its sensor data are IBM's. Here it is least squares over {SENSORS} sensors and {TOOLS} tools, older "
        "wafers counting less; two tools at a time are at work, for 250 wafers, so that what is known of a tool comes "
        f"from long ago. An output for every {LOT} wafers: 107. Quality is by how many points predicted yields were "
        "off, on average. Absolute errors depend on these data; which of two runs is nearer to the golden one does "
        "not."
    ),
    "Why checkpoints do better here than in the paper": (
        "With its state, our model only lacks the wafers of the outage and of the second before it, 15 to 30 of up to "
        "9,000, which least squares hardly notice. The paper's is a decision tree, which a few wafers can turn "
        "elsewhere."
    ),
    "Input while the operator is away": (
        "Discarded, as in the paper. Its producers do not keep it for this policy either."
    ),
    "Keys of the single-window join": (
        "As many different integers as make Table 1's output rate of its input rate: 1,500 to 4,500. The paper's table "
        "has 131,071 rows for the last window, its text 131,072."
    ),
    "Overhead": (
        "Time that a capture keeps the operator from its next epoch (its process is asked for its state, and what is "
        "new is written), per second of input at the paper's rates. The paper gives the loss of throughput under full "
        "load, which says the same of a join that is busy all the time; ours would be so at fifty to several hundred "
        "times these rates, where every window is new each second. What is deleted afterwards and what is sent to a "
        "standby keeps nobody from processing."
    ),
    "Processor time": (
        "Of the operator's process and of the thread that asks it. Wall time, in results.jsonl and on this page beside "
        "it, has what else the machine was doing in it as well. Nothing waits for a disk: files are not forced out."
    ),
    "Zipf keys": (
        "In S1, which is kept: the n-th key comes as often as 1/n. S2 asks for 600 keys uniformly in both cases. All "
        "windows are full from the beginning."
    ),
    "What is not here": (
        "No network file system: the paper's checkpoints went to NFS, which 200 nodes shared. So a file more costs "
        "little here, and a byte less too."
    ),
}
"""What the paper leaves open or has otherwise, what was taken, and why."""


@dataclass(frozen=True)
class Size:
    """How much of it is done."""

    crashes: int = 40
    wafers: int = WAFERS
    join_s: float = 2.0
    """Processor time for each window of Table 1."""
    captures: Measuring = spade_captures.FULL


FULL = Size()
QUICK = Size(2, 3000, 0.05, spade_captures.QUICK)


def scaling(size: Size) -> dict[str, str]:
    """What was done on a smaller scale than in the paper."""
    periods = ", ".join(f"{count * size.captures.rounds} every {every:g} s" for every, count in size.captures.captures)
    return {
        "The input's clock": (
            f"Virtual: an epoch is 1 s of sensor data (five wafers), and {EPOCH_SHARE:g} of a period of the join's "
            "streams; nobody waits for it to pass. The thirty minutes of FAB take a second or two."
        ),
        "Crashes": f"{size.crashes} for each scenario (paper: 40), in {size.wafers:,} wafers (paper: 9,000).",
        "Checkpoints measured at each point": (
            f"{periods} (paper: 30 runs of 200 s), after windows were full and {size.captures.warm} checkpoints taken. "
            "Points of one window are measured in turns. Their means leave out the smallest and the largest tenth."
        ),
        "Machines": "The operator's process and the one that feeds it on one machine, instead of four nodes.",
    }


def speed(size: Size, progress: Progress) -> list[Row]:
    """Table 1, and what Understudy is to reach besides."""
    rows: list[Row] = []
    windows = list(spade_join.TABLE_1)
    with spade_join.one_core():
        for number, window in enumerate(windows):
            progress("the join without checkpoints", number, len(windows) + 1)
            found = spade_join.join(window, 10_000, spade_join.keys_of(window), size.join_s)
            rows.append(_row("table-1", "join", window, found))
        progress("the join without checkpoints", len(windows), len(windows) + 1)
        for group in (512, 4096):
            rows.append(_row("speed", "save", group, spade_join.saves(131072, group, 5 if size is QUICK else 20)))
        rows.append(_row("speed", "count", 0, {"rows_per_s": spade_join.count(size.join_s / 4)}))
    progress("the join without checkpoints", len(windows) + 1, len(windows) + 1)
    return rows


def _row(figure: str, series: str, x: float, values: dict[str, Any]) -> Row:
    about = {"figure": figure, "how": "measured", "series": series, "x": x, "seed": spade_join.SEED}
    return {**about, "parameters": {}, "values": values}


def run(
    out: Path, *, quick: bool = False, size: Size | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """All experiments; ``out`` gets the folder described in ``understudy.lab``. ``size``: instead of ``quick``.

    Returns ``summary`` (what ``summary.json`` holds), ``runs``, ``seconds`` and ``page``.
    """
    begin = time.monotonic()
    told = progress or (lambda what, done, total: None)
    size = size or (QUICK if quick else FULL)
    states = out / "states"
    shutil.rmtree(states, ignore_errors=True)  # of a run that was killed: its states are nobody's
    states.mkdir(parents=True)
    try:
        rows = spade_deviation.measure(size.crashes, size.wafers, states / "yield", told)
        rows += speed(size, told)
        rows += spade_captures.measure(size.captures, states, told)
    finally:
        shutil.rmtree(states, ignore_errors=True)
    rows += on_spark(out)
    return {**write(out, rows, scaling(size)), "runs": len(rows), "seconds": time.monotonic() - begin}


def on_spark(out: Path) -> list[Row]:
    """What was measured on Spark, if there is any. Raises ValueError where it is not what ``SPARK`` says."""
    path = out / SPARK
    if not path.exists():
        return []
    rows: list[Row] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        about = (row.get("figure"), row.get("how")), row.get("series") in ("us.Checkpoint", "us.none"), "x" in row
        if (
            about != (("10", "spark"), True, True)
            or not _SPARK_VALUES[row["series"]] <= row.get("values", {}).keys()
        ):
            raise ValueError(f"{path} has a line that is none of a measurement on Spark: {row}")
    return rows


def write(out: Path, rows: list[Row], scaled: dict[str, str]) -> dict[str, Any]:
    """Everything that follows from the results."""
    out.mkdir(parents=True, exist_ok=True)
    summary = summarise(rows)
    (out / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (out / "summary.json").write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    page = write_page(out, rows, summary, CHOICES, scaled)
    return {"summary": summary, "page": str(page)}
