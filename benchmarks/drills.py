"""`make drills`: every harm that a job must survive, done for real, each judged against a failure-free replay.

Writes ``out/drills.json`` (one entry per drill) and a report page per drill below ``out/drills/``.
Exit code 0 when every verdict is the expected one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

import checkpoint_kinds
import understudy as us
from understudy.cli import FAST_START, interrupt_on_sigterm
from understudy.core.policies import parse
from understudy.drill import Drill, sentence
from understudy.errors import HostsUnavailable
from understudy.runtime.cluster import signal_tree
from understudy.runtime.session import LocalRun

HERE = Path(__file__).parent
JOBS = HERE / "jobs"
TRAFFIC = HERE.parent / "examples" / "traffic.py"
console = Console()


def _kill(job: Path, out: Path, name: str, *targets: str, hosts: int = 3, expected: str = "precise") -> dict[str, Any]:
    """SIGKILL of the hosts of these stages, all at once, of a job at rest."""
    with Drill(job, out, hosts=hosts, name=name, settings=FAST_START) as drill:
        drill.settle()
        drill.signal(*targets)
        drill.epochs(8)
        return drill.judge(expected=expected)


def stateful_host(out: Path, name: str) -> dict[str, Any]:
    """SIGKILL of the stateful stage's host."""
    return _kill(TRAFFIC, out, name, "speeds")


def middle_of_chain(out: Path, name: str) -> dict[str, Any]:
    """SIGKILL of the host of the stage in the middle of a chain of three."""
    return _kill(JOBS / "chain.py", out, name, "speeds")


def two_neighbours(out: Path, name: str) -> dict[str, Any]:
    """SIGKILL of two neighbouring units at the same moment."""
    return _kill(JOBS / "chain.py", out, name, "moving", "speeds")


def standby_then_primary(out: Path, name: str) -> dict[str, Any]:
    """SIGKILL of the standby, then of the primary after a new standby was made."""
    with Drill(TRAFFIC, out, name=name, settings=FAST_START) as drill:
        drill.settle()
        standby = drill.coordinator.failover.plan.units["speeds"].standby
        assert standby is not None
        drill.signal(standby)
        drill.wait_event("standby-ready", unit="speeds")
        drill.settle()
        drill.signal("speeds")
        drill.epochs(8)
        return drill.judge()


def paused_primary(out: Path, name: str) -> dict[str, Any]:
    """SIGSTOP of the primary for 5 s, promotion meanwhile, SIGCONT: fenced, adds nothing, rejoins as standby."""
    with Drill(JOBS / "pair.py", out, hosts=2, name=name, settings=FAST_START) as drill:
        drill.settle()
        drill.signal("speeds", number=signal.SIGSTOP)
        victim = drill.harmed[-1]
        drill.wait_event("promoted", unit="speeds")
        drill.coordinator.wait(5.0)
        drill.signal(victim, number=signal.SIGCONT)
        drill.wait_event("fenced", unit="speeds")
        drill.wait_event("standby-ready", unit="speeds", host=victim)
        drill.epochs(8)
        return drill.judge()


def coordinator_away(out: Path, name: str) -> dict[str, Any]:
    """The coordinator killed and restarted, with a host killed while it was away."""
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--coordinator-for", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    ready = child.stdout.readline()
    if not ready.startswith("ready"):
        child.kill()
        raise RuntimeError(f"the coordinator did not start: {ready}")
    child.kill()
    child.wait()
    journal = json.loads((out / "state" / "journal.json").read_text())
    victim = journal["plan"]["units"]["speeds"]["primary"]
    killed_at = signal_tree(psutil.Process(journal["pids"][victim]), signal.SIGKILL)
    time.sleep(2.0)
    with Drill(TRAFFIC, out, name=name, adopt=True) as drill:
        drill.legs[-1].killed_at, drill.legs[-1].harmed = killed_at, [victim]
        drill.coordinator.say("killed", f"{victim} killed while there was no coordinator", t=killed_at, host=victim)
        drill.wait_event("promoted", unit="speeds")
        drill.epochs(8)
        return drill.judge()


POLICIES = {
    "sweeping": "us.PassiveStandby()",
    "individual": "us.PassiveStandby('individual')",
    "synchronous": "us.PassiveStandby('synchronous')",
    "two-standbys": "us.PassiveStandby(standbys=2)",
    "active-lazy": "us.ActiveStandby()",
    "active-eager": "us.ActiveStandby(delivery='eager')",
    "three-copies": "us.ActiveStandby(copies=3)",
    "upstream": "us.UpstreamBackup()",
    "upstream-k2": "us.UpstreamBackup(k=2)",
    "hybrid": "us.Hybrid()",
    "none": "us.none",
}
PAUSE_S = 5.0


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """What a job file reads from the environment, here and on the hosts."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


def matrix(policy: str) -> Callable[[Path, str], list[dict[str, Any]]]:
    """One policy under every harm: both neighbours killed at once, the primary paused and returned, its standby killed,
    the primary killed. All in one run, unless the first is more than the policy promises, and ends it."""

    def run(out: Path, name: str) -> list[dict[str, Any]]:
        promised = eval(POLICIES[policy], {"us": us})
        within = "precise" if promised.protected else "gap"
        beyond = promised.recovery == "replay" and promised.tolerates == 1
        hosts = 4 if promised.tolerates > 1 else 3
        found: list[dict[str, Any]] = []
        with _environment(MATRIX_POLICY=POLICIES[policy]):
            if beyond:
                with Drill(JOBS / "matrix.py", out, hosts=hosts, name=name, settings=FAST_START) as drill:
                    drill.settle()
                    found = _too_many(drill, f"{policy}: both neighbours killed", promised.describe())
            with Drill(JOBS / "matrix.py", out, hosts=hosts, name=name, settings=FAST_START) as drill:
                drill.settle()
                if not beyond:  # first, while everybody is where the job says
                    drill.leg(f"{policy}: both neighbours killed", expected=within)
                    drill.signal("moving", "speeds")
                    drill.epochs(8)
                    drill.restart()
                drill.leg(f"{policy}: paused and returned", expected=within)
                _pause_and_return(drill, "speeds")
                if promised.backups:
                    drill.leg(f"{policy}: standby killed")
                    drill.signal(str(drill.coordinator.failover.plan.units["speeds"].standby))
                    drill.epochs(8)
                    drill.restart()
                drill.leg(f"{policy}: primary killed", expected=within)
                drill.signal("speeds")
                drill.epochs(8)
                return [*found, *drill.judge_legs()]

    run.__doc__ = f"{POLICIES[policy]} under every harm."
    return run


def _pause_and_return(drill: Drill, stage: str) -> None:
    drill.signal(stage, number=signal.SIGSTOP)
    victim = drill.harmed[-1]
    drill.coordinator.wait(PAUSE_S)
    drill.signal(victim, number=signal.SIGCONT)
    drill.harmed.remove(victim)  # it lives, and need not be started again
    drill.epochs(8)
    drill.restart()


def _too_many(drill: Drill, name: str, policy: str) -> list[dict[str, Any]]:
    """More hosts at once than were promised: the job must say so and stop, not go on with less."""
    drill.leg(name, expected="stopped")
    drill.signal("moving", "speeds")
    try:
        drill.epochs(8)
    except HostsUnavailable as error:
        stopped = {"verdict": "stopped", "lost": 0, "repeated": 0, "disorder": [], "silence_s": None}
        return [{"name": name, "policy": policy, "expected": "stopped", "text": str(error), **stopped}]
    return drill.judge_legs()


CHANGES = (
    "passive-standby individual", "active-standby", "upstream-backup", "active-standby delivery=eager", "hybrid",
    "none", "passive-standby synchronous", "upstream-backup k=2", "active-standby copies=3", "passive-standby",
)  # fmt: skip
"""What a unit goes through one after the other; its neighbour goes the other way round."""


def switching(out: Path, name: str) -> list[dict[str, Any]]:
    """Policies changed 20 times under load, with a SIGKILL in the middle of a change and one between two."""
    # The kills come where neither unit is under none: what is lost then is nobody's promise.
    walks = {"moving": CHANGES, "speeds": (*reversed(CHANGES[:-1]), CHANGES[-1])}
    changes = [(unit, parse(walk[number])) for number in range(len(CHANGES)) for unit, walk in walks.items()]
    with (
        _environment(MATRIX_ROWS_PER_S="30000"),
        Drill(JOBS / "matrix.py", out, hosts=4, name=name, settings=FAST_START) as drill,
    ):
        drill.settle()
        for number, (unit, policy) in enumerate(changes, 1):
            said = drill.coordinator.switch(unit, policy)
            console.print(f"  {number}: {said}", style="dim", highlight=False, markup=False)
            if number == 7:
                _kill_and_restart(drill, unit, f"{name}: killed in the middle of change 7")
            drill.turned(unit)
            drill.epochs(2)
            if number == 14:
                drill.settle(2)
                _kill_and_restart(drill, unit, f"{name}: killed after change 14")
        drill.epochs(8)
        return [{**result, "changes": len(changes)} for result in drill.judge_legs()]


def _kill_and_restart(drill: Drill, stage: str, leg: str) -> None:
    drill.leg(leg)
    drill.signal(stage)
    drill.epochs(2)
    drill.restart()


def kinds(out: Path, name: str) -> list[dict[str, Any]]:
    """Every kind of stage under us.Checkpoint: killed, with a damaged file, a damaged group, a full disk."""
    return checkpoint_kinds.run(out, name)


def kinds_on_spark(out: Path, name: str) -> list[dict[str, Any]]:
    """The same, queries and windows per key on Spark among them."""
    with _environment(KINDS_SPARK="1"):
        return checkpoint_kinds.run(out, name, settings=FAST_START)


DRILLS: dict[str, Callable[[Path, str], dict[str, Any] | list[dict[str, Any]]]] = {
    "stateful-host": stateful_host,
    "middle-of-chain": middle_of_chain,
    "two-neighbours": two_neighbours,
    "standby-then-primary": standby_then_primary,
    "paused-primary": paused_primary,
    "coordinator-away": coordinator_away,
    "switching": switching,
    "checkpoint-kinds": kinds,
    "checkpoint-kinds-spark": kinds_on_spark,
    **{policy: matrix(policy) for policy in POLICIES},
}


def coordinator_for(out: Path) -> None:
    """A coordinator in a process of its own, to be killed."""
    import shutil

    shutil.rmtree(out, ignore_errors=True)
    options = {
        "sink_root": str((out / "run").resolve()),
        "record": str((out / "recorded").resolve()),
        "opening_epochs": 4,
    }
    run = LocalRun(TRAFFIC, out / "state", fresh=True, options=options, settings=FAST_START)
    run.start()
    run.coordinator.wait_until_running(armed=True)
    run.coordinator.wait(4.0)
    print("ready", flush=True)
    run.coordinator.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="DRILL", help=f"some of: {', '.join(DRILLS)}; default all")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--coordinator-for", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.coordinator_for:
        coordinator_for(arguments.coordinator_for)
        return 0
    interrupt_on_sigterm()
    unknown = set(arguments.names) - set(DRILLS)
    if unknown:
        parser.error(f"unknown drill {', '.join(sorted(unknown))}; choose from {', '.join(DRILLS)}")
    results = []
    for name in arguments.names or DRILLS:
        console.print(f"[bold]{name}[/]: {DRILLS[name].__doc__}")
        with console.status("starting hosts, doing harm, replaying ..."):
            begin = time.monotonic()
            found = DRILLS[name](arguments.out / "drills" / name, name)
        for result in found if isinstance(found, list) else [found]:
            results.append(result)
            label = "" if result["name"] == name else result["name"] + ": "
            text = f"  {label}{sentence(result)}"
            console.print(text, style="green" if _good(result) else "bold red", highlight=False, markup=False)
            for wrong in result.get("wrong", ()):
                console.print(f"    {wrong}", style="red", highlight=False, markup=False)
        console.print(f"  [{time.monotonic() - begin:.0f} s]", style="dim", markup=False)
        arguments.out.mkdir(exist_ok=True)
        (arguments.out / "drills.json").write_text(json.dumps(results, indent=2))
    return 0 if all(map(_good, results)) else 1


def _good(result: dict[str, Any]) -> bool:
    if "wrong" in result:  # what was lost is judged against what was promised
        return not result["wrong"]
    return result["verdict"] == result["expected"] and not result["disorder"]


if __name__ == "__main__":
    sys.exit(main())
