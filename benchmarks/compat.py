"""`make compat`: shapes of stages that people write, each killed in the middle, against plain Structured Streaming.

Every job file in ``benchmarks/compat`` has about a dozen shapes. All of them run on one host, which is killed with
SIGKILL when their state has grown; then the same functions are run by plain Structured Streaming over the same epochs,
and every sink must have the same rows in every epoch.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from common import HERE, console, save
from plain_job import reference
from understudy.cli import FAST_START, interrupt_on_sigterm
from understudy.drill import Drill
from understudy.verify import compare

FILES = {path.stem: path for path in sorted((HERE / "compat").glob("*.py")) if path.stem != "helpers"}
BEFORE, AFTER = 1, 4
"""Epochs that come out between the arming of the last standby and the kill, and after it."""


def shapes(job_file: Path, out: Path, *, victim: str = "h2") -> list[dict[str, Any]]:
    """Run a job file, kill a host, and judge each of its shapes."""
    with Drill(job_file, out, hosts=2, name=job_file.stem, settings=FAST_START) as drill:
        drill.coordinator.wait_until_running(armed=True)
        drill.epochs(BEFORE)
        moved = [n for n, u in drill.coordinator.failover.plan.units.items() if u.primary == victim]
        harmed_after = drill.newest()
        drill.signal(victim)
        drill.epochs(AFTER, timeout_s=300)
        upto = drill.newest()
        drill.coordinator.drain()
        entries, sinks = drill.entries(), drill.sinks()
    reference(job_file, {name: list_[: upto + 1] for name, list_ in entries.items()}, out / "plain")
    results = []
    for sink in sinks:
        found = compare.compare_sinks(out / "run" / sink, out / "plain" / sink, upto=upto)
        results.append({
            "name": f"{job_file.stem}/{sink}",
            "verdict": found.verdict,
            "lost": found.lost,
            "repeated": found.repeated,
            "different": found.different,
            "rows": found.rows_reference,
            "same_as_plain": found.verdict == "precise",
            "moved": sink in moved,
            "first_difference": found.first_difference,
            "killed_after": harmed_after,
            "epochs": upto + 1,
        })
    return results


def good(result: dict[str, Any]) -> bool:
    """Nothing lost, nothing repeated, the same as plain Spark; and the kill hit it, and there was something to lose."""
    return result["verdict"] == "precise" and result["same_as_plain"] and result["moved"] and result["rows"] > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="FILE", help=f"some of: {', '.join(FILES)}; default all")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    interrupt_on_sigterm()
    unknown = set(arguments.names) - set(FILES)
    if unknown:
        parser.error(f"unknown file {', '.join(sorted(unknown))}; choose from {', '.join(FILES)}")
    results: list[dict[str, Any]] = []
    for name in arguments.names or FILES:
        begin = time.monotonic()
        with console.status(f"{name}: running its shapes, killing their host, then plain Spark on the same epochs ..."):
            found = shapes(FILES[name], arguments.out / "compat" / name)
        results += found
        for result in found:
            text = f"  {result['name']}: {result['verdict']}, {result['rows']} rows"
            if not good(result):
                text += f"; {result}"
            console.print(text, style="green" if good(result) else "bold red", highlight=False, markup=False)
        console.print(f"  [{time.monotonic() - begin:.0f} s]", style="dim", markup=False)
        save("compat", results, arguments.out)
    passed = sum(map(good, results))
    console.print(f"{passed} of {len(results)} shapes precise and the same as plain Spark", style="bold")
    return 0 if all(map(good, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
