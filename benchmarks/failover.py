"""`make bench-failover`: from the kill of a stateful stage to its first new output, against a cold restart.

(a) plain Structured Streaming, restarted from its checkpoint by a supervisor that notices the death at once;
(b) Understudy with a passive standby, 1,000 keys; (c) the same with a million keys of state; (d) with ten million keys
and more than a gigabyte. All in one run, the median of the kills each; every Understudy run is also judged against a
failure-free replay, but for (d): there the epochs of the kill are compared with what the keys must count.

``armed_s`` is the time from a stage's running to its standby's being armed; ``armed_before_s`` the same of the code
before (``--before COMMIT``), measured beside it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from common import JOBS, console, save
from plain_failover import cold_restart
from understudy.cli import FAST_START, interrupt_on_sigterm
from understudy.drill import SETTLE_EPOCHS, Drill, sentence

PARTS = ("detection_s", "redeployment_s", "reprocessing_s")
PRELOADED_EPOCHS = 60
"""Epochs until the million keys are in and their state has been snapshot and shipped a few times over."""


def takeover(job: str, out: Path, *, settle: int, phase: float) -> dict[str, Any]:
    """One kill, ``phase`` of an epoch after an output: killing on sight of a file would always hit the same moment."""
    with Drill(JOBS / job, out, hosts=2, name=job, settings=FAST_START) as drill:
        drill.settle(settle)
        drill.coordinator.wait(phase * drill.coordinator.job.epoch_s)
        drill.signal("speeds")
        drill.epochs(6)
        return drill.judge()


def measure(job: str, kills: int, out: Path, settle: int = SETTLE_EPOCHS) -> list[dict[str, Any]]:
    results = []
    for i in range(kills):
        with console.status(f"{job}: kill {i + 1} of {kills} ..."):
            results.append(
                takeover(job, out / f"{job.removesuffix('.py')}-{i + 1}", settle=settle, phase=(i + 0.5) / kills)
            )
        console.print(f"  {job}: {sentence(results[-1])}", highlight=False)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3, help="kills of each kind")
    parser.add_argument("--million-kills", type=int, default=3, help="kills with a million keys")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    interrupt_on_sigterm()
    work = arguments.out / "bench-failover"
    with console.status("plain Structured Streaming, cold restarts ...") as status:
        cold = cold_restart(
            arguments.kills, work=work / "plain", on_progress=lambda text: status.update(f"plain: {text}")
        )
    console.print(f"  plain, cold restart: {', '.join(f'{s:.2f} s' for s in cold)}", highlight=False)
    small = measure("pair.py", arguments.kills, work)
    large = measure("million.py", arguments.million_kills, work, settle=PRELOADED_EPOCHS)
    median = statistics.median
    passive_s = median(r["silence_s"] for r in small)
    result = {
        "cold_s": median(cold),
        "passive_s": passive_s,
        "ratio": median(cold) / passive_s,
        "passive_1m_keys_s": median(r["silence_s"] for r in large) if large else None,
        "passive_1m_growth": median(r["silence_s"] for r in large) / passive_s if large else None,
        "parts_s": {part: median(r[part] for r in small) for part in PARTS},
        "parts_1m_s": {part: median(r[part] for r in large) for part in PARTS} if large else None,
        "cold_all_s": cold,
        "passive_all_s": [r["silence_s"] for r in small],
        "passive_1m_all_s": [r["silence_s"] for r in large],
        "verdicts": [r["verdict"] for r in small + large],
    }
    save("bench-failover", result, arguments.out)
    console.print(
        f"cold restart {result['cold_s']:.2f} s, passive standby {passive_s:.2f} s: {result['ratio']:.1f} times faster",
        style="bold",
    )
    if large:
        console.print(
            f"with a million keys {result['passive_1m_keys_s']:.2f} s, {result['passive_1m_growth']:.2f} times",
            style="bold",
        )
    return 0 if set(result["verdicts"]) == {"precise"} else 1


if __name__ == "__main__":
    sys.exit(main())
