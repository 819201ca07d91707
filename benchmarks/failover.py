"""`make bench-failover`: from the kill of a stateful stage to its first new output, against a cold restart.

(a) plain Structured Streaming, restarted from its checkpoint by a supervisor that notices the death at once;
(b) Understudy with a passive standby, 1,000 keys; (c) the same with a million keys of state; (d) with ten million keys
and more than a gigabyte. All in one run, the median of the kills each; every Understudy run is also judged against a
failure-free replay.

``armed_s`` is the time from a stage's running to its standby's being armed; ``armed_before_s`` the same of the code
before (``--before COMMIT``), measured beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from common import BEFORE, HERE, JOBS, code_of, console, save
from plain_failover import Child, cold_restart, die_with_parent
from understudy.cli import FAST_START, interrupt_on_sigterm
from understudy.core.costs import estimate
from understudy.core.policies import PassiveStandby
from understudy.core.profile import Profile
from understudy.drill import SETTLE_EPOCHS, Drill, sentence
from understudy.runtime.session import wait_for

PARTS = ("detection_s", "redeployment_s", "reprocessing_s")
PRELOADED_EPOCHS = 60
"""Epochs until the million keys are in and their state has been snapshot and shipped a few times over."""
LOADING_EPOCHS, LOADING_S = 120, 900.0
"""The same for ten million, of which twenty load them, and how long that may take."""
NEAR, NEAR_EPOCHS = ("checkpoint", "open"), 5
"""How far a standby's newest version, and its open state, are behind its primary, when all is well."""


def takeover(job: str, out: Path, *, settle: int, phase: float, settle_s: float = 120.0) -> dict[str, Any]:
    """One kill, ``phase`` of an epoch after an output: killing on sight of a file would always hit the same moment."""
    with Drill(JOBS / job, out, hosts=2, name=job, settings=FAST_START) as drill:
        drill.settle(0)
        drill.epochs(settle, timeout_s=settle_s)
        wait_for(lambda: is_near(drill), settle_s, "the standby to have the newest state open", every_s=0.5)
        profile = drill.coordinator.status()
        drill.coordinator.wait(phase * drill.coordinator.job.epoch_s)
        drill.signal("speeds")
        drill.epochs(6)
        events = list(drill.coordinator.events)
        measured = next(h["stages"]["speeds"] for h in profile["hosts"].values() if "batch_s" in h["stages"]["speeds"])
        about = {key: measured[key] for key in ("batch_s", "state_bytes", "delta_bytes")}
        return {**drill.judge(), **about, "armed_s": armed_s(events)}


def is_near(drill: Drill) -> bool:
    """The standby of the stage with state is as near as it ever is, and has it open: a large state takes a while when
    it is new."""
    drill.coordinator.wait(0)
    stages = [host["stages"]["speeds"] for host in drill.coordinator.status()["hosts"].values()]
    at = {stage["role"]: stage for stage in stages}
    behind = at["primary"]["committed"] - min(-1 if at["standby"][k] is None else at["standby"][k] for k in NEAR)
    return behind <= NEAR_EPOCHS


def armed_s(events: list[dict[str, Any]]) -> float:
    """From "runs" to "armed", of the stage with state."""
    first = {e["kind"]: e["t"] for e in reversed(events) if e.get("unit") == "speeds"}
    return round(first["armed"] - first["running"], 2)


def arming(out: Path) -> float:
    """Start a job, and return ``armed_s``."""
    from understudy.runtime.session import LocalRun

    options = {"sink_root": str((out / "run").resolve())}
    run = LocalRun(JOBS / "pair.py", out / "state", hosts=2, fresh=True, settings=FAST_START, options=options)
    with run:
        run.coordinator.wait_until_running(armed=True)
        return armed_s(run.coordinator.events)


def child(out: str) -> None:
    die_with_parent()
    print("armed", arming(Path(out)), flush=True)
    os._exit(0)


def arming_before(commit: str, work: Path, times: int) -> list[float]:
    """The same with the code of an earlier commit, in processes of its own."""
    source = code_of(commit, work / "code-before")
    script = f"import sys; sys.path.insert(0, {str(HERE)!r}); from failover import child;"
    found = []
    for number in range(times):
        out = (work / f"arming-before-{number}").resolve()
        out.mkdir(parents=True, exist_ok=True)
        child = Child(["-c", f"{script} child({str(out)!r})"], work=out, log=out / "log", python_path=[str(source)])
        try:
            if child.process.wait(300) != 0:
                raise RuntimeError(f"the code of {commit} did not arm:\n{child.log_tail()}")
        finally:
            child.end()
        found.append(float(child.log.read_text().rpartition("armed ")[2].split()[0]))
    return found


def measure(
    job: str, kills: int, out: Path, settle: int = SETTLE_EPOCHS, settle_s: float = 120.0
) -> list[dict[str, Any]]:
    results = []
    for i in range(kills):
        with console.status(f"{job}: kill {i + 1} of {kills} ..."):
            where, phase = out / f"{job.removesuffix('.py')}-{i + 1}", (i + 0.5) / kills
            results.append(takeover(job, where, settle=settle, phase=phase, settle_s=settle_s))
        console.print(f"  {job}: {sentence(results[-1])}", highlight=False)
    return results


def expected_s(result: dict[str, Any]) -> float:
    """What `understudy plan` says of such a stage."""
    profile = Profile(
        epoch_s=0.5, batch_s=result["batch_s"], state_bytes=result["state_bytes"], delta_bytes=result["delta_bytes"]
    )
    return estimate(PassiveStandby(), profile).silence_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3, help="kills of each kind")
    parser.add_argument("--million-kills", type=int, default=3, help="kills with a million keys")
    parser.add_argument("--ten-million-kills", type=int, default=2, help="kills with ten million keys")
    parser.add_argument("--before", default=BEFORE, help="commit to compare arming with; 'none' leaves that out")
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
    huge = measure("ten_million.py", arguments.ten_million_kills, work, settle=LOADING_EPOCHS, settle_s=LOADING_S)
    before: list[float] = []
    if arguments.before != "none":
        with console.status("arming, with the code before ..."):
            before = arming_before(arguments.before, work, arguments.kills)
    median = statistics.median
    passive_s = median(r["silence_s"] for r in small)
    huge_s = median(r["silence_s"] for r in huge) if huge else None
    result = {
        "cold_s": median(cold),
        "passive_s": passive_s,
        "ratio": median(cold) / passive_s,
        "passive_1m_keys_s": median(r["silence_s"] for r in large) if large else None,
        "passive_1m_growth": median(r["silence_s"] for r in large) / passive_s if large else None,
        "passive_10m_keys_s": huge_s,
        "passive_10m_growth": huge_s / passive_s if huge_s else None,
        "passive_10m_expected_s": median(map(expected_s, huge)) if huge else None,
        "state_10m_bytes": huge[0]["state_bytes"] if huge else None,
        "armed_s": median(r["armed_s"] for r in small),
        "armed_before_s": median(before) if before else None,
        "parts_s": {part: median(r[part] for r in small) for part in PARTS},
        "parts_1m_s": {part: median(r[part] for r in large) for part in PARTS} if large else None,
        "parts_10m_s": {part: median(r[part] for r in huge) for part in PARTS} if huge else None,
        "cold_all_s": cold,
        "passive_all_s": [r["silence_s"] for r in small],
        "passive_1m_all_s": [r["silence_s"] for r in large],
        "armed_all_s": [r["armed_s"] for r in small],
        "armed_before_all_s": before,
        "verdicts": [r["verdict"] for r in small + large + huge],
    }
    save("bench-failover", result, arguments.out)
    console.print(
        f"cold restart {result['cold_s']:.2f} s, passive standby {passive_s:.2f} s: {result['ratio']:.1f} times faster",
        style="bold",
    )
    for keys, key in (("a million", "1m"), ("ten million", "10m")):
        if result[f"passive_{key}_keys_s"] is not None:
            silence_s, growth = result[f"passive_{key}_keys_s"], result[f"passive_{key}_growth"]
            console.print(f"with {keys} keys {silence_s:.2f} s, {growth:.2f} times", style="bold")
    console.print(f"armed after {result['armed_s']} s; with the code before {result['armed_before_s']} s", style="bold")
    return 0 if set(result["verdicts"]) == {"precise"} else 1


if __name__ == "__main__":
    sys.exit(main())
