"""`make bench-policies`: every policy on one job, in one table, against the same job without protection.

Of each: bytes for high availability as a share of the data, processor time against no protection, what checkpoints
cost (about ten epochs apart, as the paper's comparison has them), then a SIGKILL of the last unit's host and how long
its output was silent. Writes ``out/bench-policies.json``. Exit code 0 when the goals in GOALS hold.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.progress import track
from rich.table import Table

import understudy as us
from common import JOBS, console, save, window
from understudy.cli import FAST_START, interrupt_on_sigterm
from understudy.drill import Drill
from understudy.runtime.wire import HA_CATEGORIES

EPOCH_S = 0.5
FIRST_EVERY, EVERY = "7s", "5s"
"""Of the first unit and of the last, which is killed. With a checkpoint of the first goes the output that the last has
not acknowledged, and it does so with its own checkpoints. So how much that is depends on how long ago the last one was:
from nothing to all of a period's output. With one period for both it would be the same every time, and something else
in the next run; with these two every second of the period has its turn, in 35 s."""
WARM_EPOCHS = 60
"""Not measured. A job without standbys is ready earlier, and would be measured while Spark still compiles."""
POLICIES = {
    "none": "us.none",
    "sweeping": "us.PassiveStandby('sweeping', every='{every}')",
    "individual": "us.PassiveStandby('individual', every='{every}')",
    "synchronous": "us.PassiveStandby('synchronous', every='{every}')",
    "hybrid": "us.Hybrid(every='{every}')",
    "active-lazy": "us.ActiveStandby()",
    "active-eager": "us.ActiveStandby(delivery='eager')",
    "upstream": "us.UpstreamBackup()",
}


def measure(name: str, out: Path, window_s: float) -> dict[str, Any]:
    os.environ["FIRST_POLICY"] = POLICIES[name].format(every=FIRST_EVERY)
    os.environ["POLICY"] = spelled = POLICIES[name].format(every=EVERY)
    policy = eval(spelled, {"us": us})
    try:
        with Drill(JOBS / "policies.py", out, hosts=4, name=name, settings=FAST_START) as drill:
            drill.settle(12)
            drill.epochs(max(0, WARM_EPOCHS - drill.newest()))
            costs, processor_s = window(drill, window_s)
            drill.signal("windows")
            drill.epochs(10)
            result = drill.judge(expected="precise" if policy.protected else "gap")
    finally:
        del os.environ["FIRST_POLICY"], os.environ["POLICY"]
    count = costs["checkpoint checkpoints"]
    return {
        "policy": name,
        "spelled": policy.describe(),
        "verdict": result["verdict"],
        "expected": result["expected"],
        "silence_s": result["silence_s"],
        "silence_epochs": result["silence_s"] / EPOCH_S,
        "full_recovery_s": result["full_recovery_s"],
        "ha_ratio": sum(costs[c] for c in HA_CATEGORIES) / costs["data"],
        "cpu_s_per_epoch": processor_s,
        "checkpoints": count,
        "checkpoint_bytes": costs["checkpoint bytes"] / count if count else 0.0,
        "checkpoint_s": costs["checkpoint seconds"] / count if count else 0.0,
    }


def goals(by: dict[str, dict[str, Any]]) -> list[tuple[str, bool, str]]:
    """(what, whether it holds, the figure), of those policies that were measured."""
    found: list[tuple[str, bool, str]] = []

    def goal(what: str, value: float, holds: bool) -> None:
        found.append((what, holds, f"{value:.3f}"))

    for name in by.keys() & {"active-lazy", "active-eager"}:
        value = by[name]["silence_epochs"]
        goal(f"{name}: silence of at most 1.5 epochs", value, value <= 1.5)
    if "upstream" in by:
        value = by["upstream"]["silence_s"]
        goal("upstream: silence of at most 4 s", value, value <= 4)
    for other in ("individual", "synchronous"):
        if {"sweeping", other} <= by.keys():
            value = by["sweeping"]["checkpoint_bytes"] / by[other]["checkpoint_bytes"]
            goal(f"sweeping's checkpoints at most 1/10 of {other}'s bytes", value, value <= 0.1)
            value = by["sweeping"]["checkpoint_s"] / by[other]["checkpoint_s"]
            goal(f"sweeping's checkpoints at most 1/3 of {other}'s time", value, value <= 1 / 3)
    for name, limit in (("sweeping", 0.10), ("upstream", 0.06)):
        if name in by:
            goal(f"{name}: at most {limit:.0%} extra bytes", by[name]["ha_ratio"], by[name]["ha_ratio"] <= limit)
    if "active-lazy" in by:
        value = by["active-lazy"]["ha_ratio"]
        goal("active-lazy: 100 % extra bytes, give or take 10", value, 0.9 <= value <= 1.1)
    if {"active-eager", "none"} <= by.keys():
        value = (1 + by["active-eager"]["ha_ratio"]) / (1 + by["none"]["ha_ratio"])
        goal("active-eager: about four times the bytes of none", value, 3.4 <= value <= 4.6)
    found += [(f"{n}: {r['expected']}", r["verdict"] == r["expected"], r["verdict"]) for n, r in by.items()]
    return found


def show(by: dict[str, dict[str, Any]]) -> None:
    table = Table(title="policies", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    columns = ("policy", "silence", "epochs", "in full", "HA/data", "CPU", "saved", "in", "verdict")
    for column in columns:
        left = column in ("policy", "verdict")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    for name, r in by.items():
        full = r["full_recovery_s"]
        table.add_row(
            name,
            f"{r['silence_s']:.2f} s",
            f"{r['silence_epochs']:.1f}",
            "-" if full is None else f"{full:.2f} s",
            f"{r['ha_ratio']:.1%}",
            f"{r['cpu_ratio']:.2f}" if "cpu_ratio" in r else "-",
            f"{r['checkpoint_bytes'] / 1e3:.0f} kB" if r["checkpoints"] else "-",
            f"{r['checkpoint_s'] * 1e3:.0f} ms" if r["checkpoints"] else "-",
            r["verdict"],
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="POLICY", help=f"some of: {', '.join(POLICIES)}; default all")
    parser.add_argument("--window", type=float, default=35.0, help="seconds measured before the kill")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(POLICIES):
        parser.error(f"unknown policy {', '.join(sorted(unknown))}; choose from {', '.join(POLICIES)}")
    interrupt_on_sigterm()
    by: dict[str, dict[str, Any]] = {}
    begin = time.monotonic()
    for name in track(arguments.names or POLICIES, "measuring", console=console):
        by[name] = measure(name, arguments.out / "bench-policies" / name, arguments.window)
        if "none" in by:
            by[name]["cpu_ratio"] = by[name]["cpu_s_per_epoch"] / by["none"]["cpu_s_per_epoch"]
        save("bench-policies", list(by.values()), arguments.out)
    show(by)
    held = goals(by)
    for what, holds, figure in held:
        console.print(f"{'holds' if holds else 'MISSED'}: {what} ({figure})", style="green" if holds else "bold red")
    console.print(f"{time.monotonic() - begin:.0f} s", style="dim")
    return 0 if all(holds for _, holds, _ in held) else 1


if __name__ == "__main__":
    sys.exit(main())
