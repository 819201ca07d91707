"""`make soak`: full speed against a slow sink; queues must stay within their budget and memory must not creep.

Samples every host every five seconds and writes ``out/soak.json``. Exit code 0 when the budget held throughout and
memory in the last quarter was no more than a tenth above that of the second.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from pathlib import Path

from rich.progress import Progress

from common import JOBS, console, save
from understudy.cli import interrupt_on_sigterm
from understudy.runtime.session import LocalRun

SAMPLE_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--queue-mb", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    interrupt_on_sigterm()
    budget = arguments.queue_mb << 20
    work = arguments.out / "soak"
    shutil.rmtree(work, ignore_errors=True)
    samples = []
    with LocalRun(JOBS / "slow_sink.py", work / "state", hosts=2, fresh=True, queue_bytes=budget) as run:
        run.coordinator.wait_until_running()
        begin = time.monotonic()
        with Progress(console=console) as progress:
            task = progress.add_task("soaking", total=arguments.minutes * 60)
            while (elapsed := time.monotonic() - begin) < arguments.minutes * 60:
                run.coordinator.wait(SAMPLE_S)
                status = run.coordinator.status()
                for host, about in status["hosts"].items():
                    sample = {"t": round(elapsed, 1), "host": host, "rss": about["rss"], **about["queues"]}
                    samples.append({**sample, "produced": {n: s.get("produced") for n, s in about["stages"].items()}})
                progress.update(task, completed=elapsed)
    quarter = arguments.minutes * 15

    def memory(first: float, last: float) -> float:
        return statistics.median(s["rss"] for s in samples if first <= s["t"] < last)

    growth = memory(3 * quarter, 4 * quarter + 60) / memory(quarter, 2 * quarter)
    result = {
        "minutes": arguments.minutes,
        "queue_budget_bytes": budget,
        "queue_bytes_peak": max(s["memory_peak"] for s in samples),
        "spilled_bytes": max(s["spilled"] for s in samples),
        "host_memory_bytes_max": max(s["rss"] for s in samples),
        "memory_growth": growth,
        "epochs": max(p for s in samples for p in s["produced"].values() if p is not None),
    }
    save("soak", result, arguments.out)
    console.print(
        f"queues peaked at {result['queue_bytes_peak'] / 2**20:.0f} of {arguments.queue_mb} MiB, hosts at "
        f"{result['host_memory_bytes_max'] / 2**20:.0f} MiB, memory grew {growth:.2f} times, {result['epochs']} epochs"
    )
    return 0 if result["queue_bytes_peak"] <= budget and growth < 1.1 else 1


if __name__ == "__main__":
    sys.exit(main())
