"""`make bench-operators`: a chain of three operators with passive standbys, on hosts without a JVM.

``latency_ms``: from a row's being there to its result being durable, median over rows, at an epoch of 10 ms; beside it
``plain_ms``, a query of plain Structured Streaming fed the same way, and ``ratio``. ``silence_s``: from SIGKILL of the
host of the stage with state to the next result, median over kills. ``rows_per_s``: at full speed. Goals are checked.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import latency
from common import JOBS, console, save
from understudy.cli import interrupt_on_sigterm
from understudy.drill import Drill, sentence
from understudy.runtime.session import LocalRun, wait_for
from understudy.verify import silence

JOB = JOBS / "operators.py"
LATENCY_MS_MAX, SILENCE_S_MAX = 50.0, 0.15


def chain_latency(work: Path, seconds: float) -> dict[str, Any]:
    shutil.rmtree(work, ignore_errors=True)
    feeder = latency.Feeder(work / "rows")
    out = work / "out"
    os.environ.update(OPERATORS_ROWS=str(feeder.folder), OPERATORS_OUT=str(out))
    feeder.start()
    try:
        with LocalRun(JOB, work / "state", hosts=2, fresh=True) as run:
            run.coordinator.wait_until_running(armed=True)
            run.wait(2.0)
            since = time.time()
            run.wait(seconds)
            return latency.judge(out, feeder.there_at, since)
    finally:
        feeder.over.set()
        del os.environ["OPERATORS_ROWS"], os.environ["OPERATORS_OUT"]


def silences(work: Path, kills: int) -> list[dict[str, Any]]:
    """The stage with state is alone on its host: what is measured is one takeover."""
    results = []
    os.environ["OPERATORS_LAST"] = "h3"
    for number in range(kills):
        with console.status(f"kill {number + 1} of {kills} ..."), Drill(JOB, work / str(number), hosts=3) as drill:
            drill.settle(50)
            drill.coordinator.wait(number / kills * 0.1)  # another moment between two checkpoints each time
            drill.signal("Counts")
            drill.epochs(30)
            results.append(drill.judge())
        console.print(f"  kill {number + 1}: {sentence(results[-1])}", highlight=False)
    del os.environ["OPERATORS_LAST"]
    return results


def flood(work: Path, rows: int, epochs: int, warm: int) -> float:
    """Rows per second through the chain."""
    shutil.rmtree(work, ignore_errors=True)
    os.environ.update(OPERATORS_FLOOD=str(rows), OPERATORS_EPOCH="1ms")
    sink = work / "run" / "counts"
    try:
        options = {"sink_root": str((work / "run").resolve())}
        with LocalRun(JOB, work / "state", hosts=2, fresh=True, options=options, queue_bytes=1 << 30) as run:
            run.coordinator.wait_until_running(armed=True)
            begin = len(list(sink.glob("epoch=*"))) + warm

            def done() -> bool:
                run.coordinator.wait(0)
                return any((sink / f"epoch={begin + epochs:012d}").glob("part-*"))

            wait_for(done, 300, f"epoch {begin + epochs}")
    finally:
        del os.environ["OPERATORS_FLOOD"], os.environ["OPERATORS_EPOCH"]
    times = {epoch: at for at, epoch, _ in silence.arrivals(sink)}
    return rows * epochs / (times[begin + epochs] - times[begin])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of measuring latency")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--rows", type=int, default=500_000, help="per epoch, at full speed")
    parser.add_argument("--epochs", type=int, default=40, help="at full speed")
    parser.add_argument("--no-plain", action="store_true", help="leave plain Structured Streaming out")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    interrupt_on_sigterm()
    work = (arguments.out / "bench-operators").resolve()
    plain: dict[str, Any] | None = None
    if not arguments.no_plain:
        with console.status("plain Structured Streaming ..."):
            plain = latency.measure(work / "plain", arguments.seconds, "--kind", "plain")
        console.print(f"  plain: {plain}", highlight=False)
    with console.status("latency of three operators ..."):
        found = chain_latency(work / "latency", arguments.seconds)
    console.print(f"  three operators: {found}", highlight=False)
    killed = silences(work / "kills", arguments.kills)
    with console.status("full speed ..."):
        rows_per_s = flood(work / "flood", arguments.rows, arguments.epochs, warm=10)
    result = {
        "latency_ms": found["latency_ms"],
        "plain_ms": plain and plain["latency_ms"],
        "ratio": plain and round(found["latency_ms"] / plain["latency_ms"], 3),
        "silence_s": median(r["silence_s"] for r in killed),
        "silences_s": [r["silence_s"] for r in killed],
        "lost": sum(r["lost"] for r in killed),
        "repeated": sum(r["repeated"] for r in killed),
        "rows_per_s": round(rows_per_s),
    }
    save("bench-operators", result, arguments.out)
    console.print(result)
    good = result["latency_ms"] <= LATENCY_MS_MAX and result["silence_s"] <= SILENCE_S_MAX
    return 0 if good and all(r["verdict"] == "precise" for r in killed) else 1


if __name__ == "__main__":
    sys.exit(main())
