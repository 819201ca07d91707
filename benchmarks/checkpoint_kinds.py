"""Every kind of stage under ``us.Checkpoint`` and every harm: what is lost is what was promised, and it is counted.

Not more than the epochs that came after the last save, as many as the job says itself; what has no state, and a
barrier, is right all the same, and a window is again as soon as its rows are new.
"""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as parquet

from understudy.core.numbers import Epoch
from understudy.drill import Drill, Leg
from understudy.verify.compare import Comparison, compare_sinks

JOB = Path(__file__).parent / "jobs" / "kinds.py"
PARTED = ("pairs", "means", "recent")
"""Saved part by part, and with rows to lose."""
COUNTERS = ("Counts", "Totals", "sums")
"""What they lack once they lack for ever."""
FULL_S = 3.0
HEALED_S = 5.0
"""By then every window has only rows that came after a takeover."""


def kill(drill: Drill) -> None:
    """Nothing else."""


def damaged_newest(drill: Drill) -> None:
    """A byte of the file that was written last, of every stage's checkpoint."""
    for stage in saved(drill):
        if files := held(drill, stage):  # what has no state has none
            flip(max(files, key=lambda path: path.stat().st_mtime_ns))


def damaged_group(drill: Drill) -> None:
    """A byte of a group of every window, and of its twin; and of all there is of an object's state."""
    for stage in saved(drill):
        files = held(drill, stage)
        if stage in PARTED:
            files = sorted((path for path in files if ".head" not in path.name and "-" in path.name), key=str)
            files = files[:1]
        elif stage == "Counts":
            files = [path for path in files if path.parent.name == "operator"]
        else:
            continue
        for path in files:
            flip(path)
            flip(twin_of(path))


def full_disk(drill: Drill) -> None:
    """The standby cannot write another byte for a while."""
    (standby,) = {standby_of(drill, stage) for stage in saved(drill)}
    process = drill.run.hosts.processes[standby]
    _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, most))
    try:
        drill.coordinator.wait(FULL_S)
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))


HARMS: dict[str, Callable[[Drill], None]] = {
    "full disk": full_disk,  # first, while all have their standby on one host, which leads nobody
    "kill": kill,
    "damaged newest file": damaged_newest,
    "damaged group": damaged_group,
}


def saved(drill: Drill) -> list[str]:
    return [name for name, stage in drill.coordinator.job.stages.items() if stage.inputs]


def standby_of(drill: Drill, stage: str) -> str:
    unit = drill.coordinator.topology.unit_of[stage]
    return str(drill.coordinator.failover.plan.units[unit].standby)


def held(drill: Drill, stage: str) -> list[Path]:
    """What a standby holds of a stage."""
    (store,) = (drill.out / "state" / "hosts" / standby_of(drill, stage) / "stages" / stage).glob("standby-*")
    return [path for path in (store / "state").rglob("*") if path.is_file() and path.stat().st_size]


def twin_of(path: Path) -> Path:
    (store,) = (parent for parent in path.parents if parent.name.startswith("standby-"))
    return store / "twins" / path.relative_to(store / "state")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 0xFF
    path.write_bytes(bytes(data))


def run(out: Path, name: str, *, harms: tuple[str, ...] = tuple(HARMS), **settings: Any) -> list[dict[str, Any]]:
    """One result for each harm: ``wrong`` has what was not as promised."""
    begun: list[tuple[Leg, dict[str, int], list[str]]] = []
    with Drill(JOB, out, name=name, **settings) as drill:
        every_s = drill.coordinator.topology.units["Counts"].policy.checkpoint_s or 0.0
        drill.settle()
        for harm in harms:
            drill.leg(f"{name}: {harm}", expected="gap")
            since = time.time()
            host = drill.run.hosts.processes[drill.run.host_of("pairs")]
            # Stopped first: while its standby's files are being damaged it sends no newer ones.
            if harm.startswith("damaged"):
                _stand_still(host)
            HARMS[harm](drill)
            drill.signal("pairs")
            drill.epochs(round(HEALED_S / drill.coordinator.job.epoch_s))
            said = [event for event in list(drill.coordinator.events) if event["t"] >= since]
            missing = {e["stage"]: e["missing"] for e in said if e["kind"] == "running" and e["missing"]}
            told = [e["text"] for e in said if e["kind"] in ("damaged", "restarted", "waiting")]
            begun.append((drill.legs[-1], missing, told))
            drill.restart()
        drill.epochs(round(HEALED_S / drill.coordinator.job.epoch_s))
        results = drill.judge_legs()
        for result, (leg, missing, told) in zip(results, begun, strict=True):
            later = [other.after for other in drill.legs if other.after > leg.after]
            upto = min(later, default=drill.newest())
            judged = {sink: compared(out, sink, Epoch(leg.after + 1), upto) for sink in saved(drill)}
            result["missing"], result["told"] = missing, told
            result["wrong"] = [*result["disorder"], *wrong(drill, leg, judged, missing, told, upto, every_s)]
    return results


def _stand_still(process: psutil.Process) -> None:
    for each in [process, *process.children(recursive=True)]:
        each.send_signal(signal.SIGSTOP)
    time.sleep(0.1)  # what it has sent arrives


def compared(out: Path, sink: str, since: Epoch, upto: Epoch) -> Comparison:
    return compare_sinks(out / "run" / sink, out / "reference" / sink, since=since, upto=upto)


def wrong(
    drill: Drill,
    leg: Leg,
    judged: dict[str, Comparison],
    missing: dict[str, int],
    told: list[str],
    upto: Epoch,
    every_s: float,
) -> list[str]:
    """What is not as ``us.Checkpoint`` promises."""
    found: list[str] = []
    job, harm = drill.coordinator.job, leg.name.rpartition(": ")[2]
    # Saved at most so long ago, with what the disk had no room for; saving takes a while, and so does finding out.
    most = round((1.5 * every_s + (FULL_S + every_s if harm == "full disk" else 0.0) + 3.0) / job.epoch_s)
    for sink, comparison in judged.items():
        new = sink in missing or any(sink in text for text in told)
        if len(comparison.lost_epochs) > most:
            found.append(f"{sink}: {len(comparison.lost_epochs)} epochs lost, {most} promised at most")
        if missing.get(sink, 0) > most:
            found.append(f"{sink}: lacks {missing[sink]} epochs, {most} promised at most")
        if sink == "both" and comparison.verdict != "precise":
            found.append(f"{sink}: a barrier is {comparison.verdict}")
        if sink in ("Fast", "slow") and (comparison.different or comparison.unexpected):
            found.append(f"{sink}: {comparison.different} rows are wrong, and there is no state")
        if not new and sink not in COUNTERS and comparison.verdict != "precise":
            found.append(f"{sink}: {comparison.verdict}, and nobody has said so")
    healed = Epoch(upto - round(1.0 / job.epoch_s))
    for sink in (sink for sink in judged if sink in ("Fast", "slow", "newest", *PARTED)):
        late = compared(drill.out, sink, healed, upto)
        if late.verdict != "precise":
            found.append(f"{sink}: still {late.verdict} after {HEALED_S} s")
    if harm == "damaged group":
        found += [f"{sink}: a damaged group was not told" for sink in PARTED if not any(sink in t for t in told)]
    for sink in ("Counts", "Totals"):
        lacks = counted(drill.out / "reference" / sink, upto) - counted(drill.out / "run" / sink, upto)
        lacked = counted(drill.out / "reference" / sink, leg.after) - counted(drill.out / "run" / sink, leg.after)
        anew = any("starts anew" in text for text in told if sink in text)
        if lacks - lacked != missing.get(sink, 0) and not anew:
            found.append(f"{sink}: lacks {lacks - lacked} epochs more, and said {missing.get(sink, 0)}")
    return found


def counted(sink: Path, epoch: Epoch) -> int:
    """How many epochs are in a counter after an epoch."""
    (row,) = parquet.read_table(sink / f"epoch={epoch:012d}" / "part-0.parquet").to_pylist()
    return int(row["epochs"])
