"""`make bench-auto`: what `us.auto` chooses for three jobs, against what is measured to be the cheapest.

Each job runs once. It begins without protection, which gives its profile; then its unit is changed to one policy after
the other, each at the setting that `us.auto` would use it with, and for each is measured: bytes sent for protection per
byte of data, processor time against no protection, and the silence after a SIGKILL. The cheapest is the one with the
smallest overhead (the larger of both) of those that were back within the goal. Exit code 0 when `us.auto` chooses a
policy of that kind for every job. Writes ``out/bench-auto.json``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from common import JOBS, console, save, window
from understudy import planning
from understudy.cli import FAST_START, interrupt_on_sigterm
from understudy.core.choice import best_of_each_kind, candidates
from understudy.core.policies import Auto, Policy, none
from understudy.drill import Drill
from understudy.job_files import load
from understudy.runtime import profile
from understudy.runtime.wire import HA_CATEGORIES

JOB, UNIT = JOBS / "auto.py", "work"
CASES = ("small state", "windows", "large changes")


def chosen(drill: Drill) -> tuple[Auto, planning.Choice, dict[str, Policy]]:
    """The goal, what ``us.auto`` makes of the profile that was measured, and of each kind the policy it looked at."""
    job = load(JOB)
    topology = job.topology()
    measured = planning.Measured.read(drill.run.config.folder / profile.FILE)
    assert measured is not None, "the job ran for less than a profile takes"
    operators = drill.coordinator.operators
    choice = planning.choices(job, topology, operators, measured)[UNIT]
    goal = topology.units[UNIT].policy
    assert isinstance(goal, Auto)
    known = planning.profiles(job, topology, operators, measured)[UNIT]
    best = best_of_each_kind(goal, candidates(goal, known, [operators[UNIT]]))
    return goal, choice, {**{c.policy.kind: c.policy for c in best}, choice.policy.kind: choice.policy}


def measure(case: str, out: Path, window_s: float, progress: Progress) -> dict[str, Any]:
    os.environ["AUTO_CASE"] = case
    os.environ["AUTO_POLICY"] = "us.none"
    task = progress.add_task(case, total=None)
    with Drill(JOB, out, name=case, settings=FAST_START) as drill:
        del os.environ["AUTO_POLICY"]
        drill.settle(60)  # warm: else any policy would seem to save time
        drill.coordinator.inspect()
        _, unprotected_s = window(drill, max(window_s, 2.5 * profile.EVERY_S))
        goal, choice, policies = chosen(drill)
        progress.update(task, total=len(policies) + 1, completed=1)
        found: dict[str, dict[str, Any]] = {}
        for kind, policy in policies.items():
            drill.switch(UNIT, policy)
            drill.settle(4)
            costs, processor_s = window(drill, window_s)
            found[kind] = {
                "policy": policy.describe(),
                "ha_ratio": sum(costs[c] for c in HA_CATEGORIES) / costs["data"],
                "cpu_ratio": processor_s / unprotected_s - 1,
            }
            drill.leg(kind)
            drill.signal(UNIT)
            drill.epochs(6)
            drill.restart()
            progress.advance(task)
        drill.switch(UNIT, none)  # what follows until the end is nobody's
        for result in drill.judge_legs():
            found[result["name"]] |= {"silence_s": result["silence_s"], "verdict": result["verdict"]}
    for each in found.values():
        each["overhead"] = max(each["ha_ratio"], each["cpu_ratio"])
    fitting = {kind: each for kind, each in found.items() if each["silence_s"] <= goal.recovery_s}
    cheapest = min(fitting, key=lambda kind: fitting[kind]["overhead"], default=None)
    return {
        "job": case,
        "goal": goal.describe(),
        "chosen": choice.policy.kind,
        "cheapest": cheapest,
        "right": choice.policy.kind == cheapest and all(each["verdict"] == "precise" for each in found.values()),
        "why": list(choice.why),
        "measured": found,
    }


def show(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['job']}: {result['goal']}", title_justify="left")
    for column in ("policy", "HA/data", "CPU", "silence", "verdict", ""):
        table.add_column(column, justify="left" if column in ("policy", "verdict", "") else "right")
    for kind, each in result["measured"].items():
        marks = [name for name in ("chosen", "cheapest") if result[name] == kind]
        figures = f"{each['ha_ratio']:.1%}", f"{each['cpu_ratio']:+.0%}", f"{each['silence_s']:.2f} s"
        table.add_row(each["policy"], *figures, each["verdict"], ", ".join(marks))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="JOB", help=f"some of: {', '.join(CASES)}; default all")
    parser.add_argument("--window", type=float, default=15.0, help="seconds measured of each policy")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(CASES):
        parser.error(f"unknown job {', '.join(sorted(unknown))}; choose from {', '.join(CASES)}")
    interrupt_on_sigterm()
    begin = time.monotonic()
    results = []
    with Progress(console=console) as progress:
        for number, case in enumerate(arguments.names or CASES):
            results.append(measure(case, arguments.out / "bench-auto" / str(number), arguments.window, progress))
            save("bench-auto", results, arguments.out)
    for result in results:
        show(result)
        text = f"{'right' if result['right'] else 'WRONG'}: chosen {result['chosen']}, cheapest {result['cheapest']}"
        console.print(text, style="green" if result["right"] else "bold red")
    console.print(f"{time.monotonic() - begin:.0f} s", style="dim")
    return 0 if all(r["right"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
