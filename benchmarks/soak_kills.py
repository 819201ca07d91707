"""`make soak-kills`: a thousand kills and hundreds of pauses of real host processes, each job judged as a drill is.

A seed chooses a job (its shape and policies), the hosts, and what is done to them: SIGKILL of as many hosts at once as
every policy promises to survive, pauses and partitions shorter and longer than detection, operators' processes killed
on living hosts, damaged files of checkpoints, full disks, and a coordinator that is killed, with or without a host
meanwhile. Most jobs are of operators, whose hosts need no JVM and start in a second; some are of queries on Spark. Each
harm waits until the job has settled, as in the simulator: more at once than a policy promises proves nothing. Then the
job's epochs are replayed without failure, and compared.

Jobs run side by side, each in a process of its own. One that goes wrong is told with its seed:
``make soak-kills ARGS="--seed 17 --jobs 1"`` plays it again. ``out/soak-kills.json`` has ``kills``, ``pauses``,
``jobs``, ``lost``, ``repeated``, ``violations``, ``seeds``, ``harms`` by name, the same by kind of job, and ``beyond``:
hosts that were given up unharmed, and jobs that stopped for it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psutil
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from common import console, save
from soak_harms import DOERS, Soak, choose
from soak_jobs import KINDS, write_job
from soak_stage import Stage, coordinate
from understudy import job_files
from understudy.cli import interrupt_on_sigterm
from understudy.drill import Drill

BEHIND_DOORS = 0.4
"""How many of the jobs of operators have a network that can be cut."""
TOO_MANY = "more hosts failed at once than the job was protected against"
LAST_EPOCHS = 5
"""That come out before a job is judged."""


# -- one seed ---------------------------------------------------------------------------------------------------------


def play(seed: int, out: Path, harms: int, tell: Callable[[Soak, str], None], kind: str = "operators") -> Soak:
    chance, soak, begin = random.Random(seed), Soak(seed, kind), time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    soak.policies = write_job(out / "job.py", kind, seed, chance)
    topology = job_files.load(out / "job.py").topology()
    hosts = 2 + max(unit.policy.backups for unit in topology.units.values())
    if not KINDS[kind].spark:
        hosts += chance.randint(0, 1)
    stage = Stage(out, out / "job.py", max(hosts, 3), KINDS[kind])
    harmed_at = time.time()
    try:
        if not KINDS[kind].spark and chance.random() < BEHIND_DOORS:
            stage.connect()
        stage.start()
        stage.settle()
        victims: set[str] = set()
        for _ in range(harms):
            harm = choose(stage, chance)
            tell(soak, harm)
            harmed_at, victims = time.time(), set()
            victims |= DOERS[harm](stage, chance, soak)
            soak.done[harm] += 1
            stage.settle()
            soak.beyond += unharmed(stage, harmed_at, victims)
        stage.kill_coordinator()
        tell(soak, "judging")
        judge(stage, soak)
    except Exception as error:
        (out / "harness.log").write_text(traceback.format_exc())
        text = f"{type(error).__name__}: {error}"
        if TOO_MANY in text and (lost := unharmed(stage, harmed_at, victims)):
            soak.beyond, soak.stopped = soak.beyond + lost, text
        else:
            soak.wrong = text
    finally:
        stage.end()
    if soak.wrong is None:
        shutil.rmtree(out, ignore_errors=True)
    soak.seconds = round(time.monotonic() - begin, 1)
    return soak


def unharmed(stage: Stage, since: float, victims: set[str]) -> int:
    """How many hosts were given up since a harm that was not done to them."""
    lost = [event["host"] for event in stage.events(since) if event["kind"] == "host-lost"]
    return len([host for host in lost if host not in victims])


def judge(stage: Stage, soak: Soak) -> None:
    with Drill(stage.job, stage.out, hosts=stage.hosts, adopt=True) as drill:
        drill.epochs(LAST_EPOCHS)
        result = drill.judge()
    soak.lost, soak.repeated = result["lost"], result["repeated"]
    if result["verdict"] != "precise" or result["disorder"]:
        soak.wrong = f"{result['verdict']}: {result['lost']} lost, {result['repeated']} repeated; {result['disorder']}"


def play_alone(kind: str, seed: int, harms: int, out: Path) -> NoReturn:
    """In a process of its own; what happens is told in lines of JSON. Ends when whoever started it is gone."""
    interrupt_on_sigterm()
    threading.Thread(target=lambda: (os.read(0, 1), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()

    def tell(soak: Soak, what: str) -> None:
        print(json.dumps({"at": what, "soak": vars(soak)}), flush=True)

    try:
        tell(play(seed, out, harms, tell, kind), "over")
    except KeyboardInterrupt:
        os._exit(130)
    os._exit(0)


# -- all of them ------------------------------------------------------------------------------------------------------


class Schedule:
    """Which job is next. At most one on Spark at a time: its JVMs take all there is when they start."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.asked = arguments
        self.soaks: list[Soak] = []
        self.under_way: dict[int, Soak] = {}
        self.lock = threading.Lock()
        self.over = False
        self._until = time.monotonic() + arguments.minutes * 60
        self._next = arguments.seed

    def count(self, kind: str, what: str, under_way: bool = False) -> int:
        known = [*self.soaks, *(self.under_way.values() if under_way else ())]
        return sum(getattr(soak, what) for soak in known if soak.kind == kind)

    def take(self) -> Soak | None:
        with self.lock:
            asked, begun = self.asked, len(self.soaks) + len(self.under_way)
            if self.over or time.monotonic() > self._until or (asked.jobs is not None and begun >= asked.jobs):
                return None
            kinds = []
            on_spark = any(soak.kind == "spark" for soak in self.under_way.values())
            if not on_spark and self.count("spark", "kills") < asked.spark_kills:
                kinds.append("spark")
            left = [self.count("operators", w, True) < n for w, n in (("kills", asked.kills), ("pauses", asked.pauses))]
            if any(left):
                kinds.append("operators")
            kinds = [kind for kind in kinds if asked.only in (None, kind)]
            if not kinds:
                return None
            soak = Soak(self._next, kinds[0])
            self.under_way[soak.seed] = soak
            self._next += 1
            return soak

    def harms_of(self, kind: str) -> int:
        found: int = self.asked.spark_harms if kind == "spark" else self.asked.harms
        return found


def work_off(schedule: Schedule, work: Path, show: Callable[[], None]) -> None:
    """One job after the other."""
    while (soak := schedule.take()) is not None:
        kind, seed, harms = soak.kind, soak.seed, schedule.harms_of(soak.kind)
        words = ["--play", kind, str(seed), str(harms), str(work / str(seed))]
        child = subprocess.Popen(
            [sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None and child.stdin is not None
        for line in child.stdout:
            if line.startswith('{"at"'):
                said = json.loads(line)
                soak = Soak(**{**said["soak"], "done": Counter(said["soak"]["done"])})
                with schedule.lock:
                    schedule.under_way[seed] = soak
                    if said["at"] == "over":
                        break
                show()
        else:
            soak.wrong = f"the harness itself ended with {child.wait()}"
        child.wait()
        child.stdin.close()
        with schedule.lock:
            del schedule.under_way[seed]
            if not schedule.over:
                schedule.soaks.append(soak)
        if soak.wrong is not None and not schedule.over:
            words = ["--seed", str(seed), "--jobs", "1", "--only", kind]
            words += ["--spark-harms" if kind == "spark" else "--harms", str(harms)]
            console.print(f"seed {seed} ({', '.join(soak.policies)}) went wrong: {soak.wrong}", style="red")
            console.print(f'  again: make soak-kills ARGS="{" ".join(words)}"; see {work / str(seed)}', highlight=False)
        show()


def summary(soaks: list[Soak], began: float) -> dict[str, Any]:
    minutes = (time.monotonic() - began) / 60
    kinds = {}
    for kind in KINDS:
        mine = [s for s in soaks if s.kind == kind]
        kinds[kind] = {
            "kills": sum(s.kills for s in mine),
            "pauses": sum(s.pauses for s in mine),
            "jobs": len(mine),
            "harms": dict(sum((s.done for s in mine), Counter())),
            "seeds": [s.seed for s in mine],
        }
    return {
        "kills": sum(s.kills for s in soaks),
        "pauses": sum(s.pauses for s in soaks),
        "jobs": len(soaks),
        "lost": sum(s.lost for s in soaks),
        "repeated": sum(s.repeated for s in soaks),
        "violations": [
            {"seed": s.seed, "kind": s.kind, "policies": s.policies, "what": s.wrong} for s in soaks if s.wrong
        ],
        "harms": dict(sum((s.done for s in soaks), Counter())),
        "beyond": {
            "hosts given up unharmed": sum(s.beyond for s in soaks),
            "stopped": [{"seed": s.seed, "what": s.stopped} for s in soaks if s.stopped],
        },
        "minutes": round(minutes, 1),
        "kills_per_minute": round(sum(s.kills for s in soaks) / minutes, 1),
        "kinds": kinds,
        "seeds": [s.seed for s in soaks],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="of jobs of operators: go on until there were so many")
    parser.add_argument("--pauses", type=int, default=200, help="and so many")
    parser.add_argument("--spark-kills", type=int, default=60, help="of jobs on Spark")
    parser.add_argument("--harms", type=int, default=20, help="to each job of operators")
    parser.add_argument("--spark-harms", type=int, default=15, help="to each job on Spark")
    parser.add_argument("--only", choices=list(KINDS), help="jobs of one kind")
    parser.add_argument("--beside", type=int, default=2, help="jobs at a time")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000, help="of the first job")
    parser.add_argument("--jobs", type=int, help="at most")
    parser.add_argument("--minutes", type=float, default=120.0, help="at most")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--coordinate", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--hosts", type=int, default=3, help=argparse.SUPPRESS)
    parser.add_argument("--play", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.coordinate:
        coordinate(*arguments.coordinate, arguments.hosts, spark=KINDS[arguments.only].spark)
        return 0
    if arguments.play:
        kind, seed, harms, out = arguments.play
        play_alone(kind, int(seed), int(harms), Path(out))
    interrupt_on_sigterm()
    schedule, began = Schedule(arguments), time.monotonic()
    work = (arguments.out / "soak-kills").resolve()
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} kills"),
                   TimeElapsedColumn(), console=console)  # fmt: skip
    with bar:
        task = bar.add_task("starting", total=arguments.kills + arguments.spark_kills)

        def show() -> None:
            with schedule.lock:
                known = [*schedule.soaks, *schedule.under_way.values()]
                text = "; ".join(f"{s.kind} {s.seed}" for s in schedule.under_way.values())
            bar.update(task, description=text, completed=sum(s.kills for s in known))

        lanes = [threading.Thread(target=work_off, args=(schedule, work, show)) for _ in range(arguments.beside)]
        try:
            for lane in lanes:
                lane.start()
            for lane in lanes:
                lane.join()
        except KeyboardInterrupt:
            schedule.over = True
            for child in psutil.Process().children():
                child.terminate()
            for lane in lanes:
                lane.join()
    result = summary(schedule.soaks, began)
    save("soak-kills", result, arguments.out)
    console.print({key: value for key, value in result.items() if key not in ("seeds", "kinds")})
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
