"""`make soak-kills`: a thousand kills and hundreds of pauses of real host processes, each job judged as a drill is.

A seed chooses a job of operators (its shape and policies), the hosts, and what is done to them: SIGKILL of as many
hosts at once as every policy promises to survive, pauses shorter and longer than detection, operators' processes killed
on living hosts, damaged files of checkpoints, and a coordinator that is killed, with or without a host meanwhile. Hosts
of operators need no JVM and start in a second. Each harm waits until the job has settled, as in the simulator: more at
once than a policy promises proves nothing. Then the job's epochs are replayed without failure, and compared.

A job that goes wrong is told with its seed: ``make soak-kills ARGS="--seed 17 --jobs 1"`` plays it again.
``out/soak-kills.json`` has ``kills``, ``pauses``, ``jobs``, ``lost``, ``repeated``, ``violations`` and ``seeds``.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from common import console, save
from plain_failover import die_with_parent
from understudy import job_files
from understudy.cli import interrupt_on_sigterm
from understudy.drill import Drill
from understudy.runtime.cluster import LocalHosts, signal_tree, token_of
from understudy.runtime.session import LocalRun, wait_for

POLICIES = {
    "sweeping": 'us.PassiveStandby(every="100ms")',
    "individual": 'us.PassiveStandby("individual", every="150ms")',
    "synchronous": 'us.PassiveStandby("synchronous", every="150ms")',
    "sweeping-2": 'us.PassiveStandby(every="100ms", standbys=2)',
    "active": "us.ActiveStandby()",
    "eager": 'us.ActiveStandby(delivery="eager")',
    "active-2": "us.ActiveStandby(copies=3)",
    "hybrid": 'us.Hybrid(every="100ms")',
    "upstream": "us.UpstreamBackup()",
    "upstream-2": "us.UpstreamBackup(k=2)",
}
HARMS = {"kill": 6, "several": 3, "short pause": 1, "long pause": 2, "process": 1, "damage": 1, "coordinator": 1}
"""What is done, and how often beside the others."""
FLOW = 20
"""Epochs that must have come out since the last harm, when everything is whole again."""
WHOLE_S = 60.0
"""Given to a job to become whole again. Much longer than it takes."""
DETECTION_S = 2.5

HEAD = '''"""Seed {seed}."""
import time
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import understudy as us

job = us.Job("soak-{seed}", epoch={epoch!r})


class Totals:
    """Remembers everything: a lost, repeated or altered epoch shows for ever."""

    def __init__(self):
        self.totals, self.epochs = {{}}, 0

    def process(self, *inputs):
        self.epochs += 1
        time.sleep({work_s})
        for number, rows in enumerate(inputs):
            sums = rows.group_by("road").aggregate([("speed", "sum"), ("id", "max")])
            for road, speed, newest in zip(*(sums[c].to_pylist() for c in ("road", "speed_sum", "id_max"))):
                before, mark = self.totals.get(road, (0.0, 0))
                self.totals[road] = (before + speed, (mark * 31 + newest + number) % (1 << 40))
        roads = sorted(self.totals)
        speeds = [self.totals[road][0] for road in roads]
        return pa.table({{"id": [self.totals[r][1] + self.epochs for r in roads], "road": roads, "speed": speeds}})


class Fast:
    """Remembers nothing."""

    def process(self, *inputs):
        rows = pa.concat_tables(inputs)
        return rows.filter(pc.greater(rows["speed"], 10))


SCHEMA = "id long, road long, speed double"
'''


@dataclass
class Soak:
    """One seed's job, and how it ended."""

    seed: int
    policies: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    pauses: int = 0
    lost: int = 0
    repeated: int = 0
    wrong: str | None = None


def write_job(path: Path, seed: int, chance: random.Random, soak: Soak) -> None:
    """One or two sources, two to four operators, each reading something before it."""
    text = HEAD.format(seed=seed, epoch=chance.choice(["20ms", "50ms", "100ms"]), work_s=chance.choice([0, 0, 0.002]))
    streams, read = [], set()
    for name in ["left", "right"][: chance.choice([1, 1, 2])]:
        text += f'{name} = job.source("{name}", us.sources.rate(rows_per_second=1000, keys=10, seed={seed}))\n'
        streams.append(name)
    for number in range(chance.randint(2, 4)):
        label = chance.choice(list(POLICIES))
        unread = [s for s in streams if s not in read]
        inputs = chance.sample(streams, k=chance.choice([1, 1, 2]) if len(streams) > 1 else 1)
        if unread and not set(unread) & set(inputs):
            inputs[0] = chance.choice(unread)
        replayed = label.startswith("upstream")
        kind = "Fast" if replayed or chance.random() < 0.2 else "Totals"
        about = f'schema=SCHEMA, name="s{number}", ha={POLICIES[label]}, stateless={kind == "Fast"}'
        text += f"s{number} = job.operator({', '.join(dict.fromkeys(inputs))}, {about})({kind})\n"
        read.update(inputs)
        streams.append(f"s{number}")
        soak.policies.append(label)
    for name in [s for s in streams if s not in read]:
        text += f'job.sink({name}, us.sinks.parquet("out/{name}"))\n'
    path.write_text(text)


# -- the coordinator, in a process of its own, to be killed -----------------------------------------------------------


def options_of(out: Path) -> dict[str, Any]:
    """As ``Drill`` runs a job."""
    return {"sink_root": str((out / "run").resolve()), "record": str((out / "recorded").resolve())}


def coordinate(job: Path, out: Path, hosts: int) -> None:
    die_with_parent()
    with LocalRun(job, out / "state", hosts=hosts, options=options_of(out)) as run:
        run.coordinator.wait(None)


class Stage:
    """Where a seed's story is played: the folder, the coordinator's process and the hosts'."""

    def __init__(self, out: Path, job: Path, hosts: int) -> None:
        self.out, self.job, self.hosts = out, job, hosts
        self.names = [f"h{i + 1}" for i in range(hosts)]
        self.topology = job_files.load(job).topology()
        self.tolerates = min(unit.policy.tolerates for unit in self.topology.units.values())
        self._coordinator: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = open(self.out / "coordinator.log", "ab")  # noqa: SIM115 - the process's
        words = ["--coordinate", str(self.job), str(self.out), "--hosts", str(self.hosts)]
        self._coordinator = subprocess.Popen(
            [sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=log, stderr=log
        )

    def journal(self) -> dict[str, Any]:
        return json.loads((self.out / "state" / "journal.json").read_text())

    def process(self, host: str) -> psutil.Process | None:
        try:
            found = psutil.Process(self.journal()["pids"][host])
            return found if host in found.cmdline() and found.status() != psutil.STATUS_ZOMBIE else None
        except (psutil.Error, KeyError, OSError, ValueError):
            return None

    def newest(self) -> int:
        """The newest epoch that every sink has."""
        found = []
        for stage in self.topology.stages.values():
            for sink in stage.sinks:
                names = [p.parent.name for p in (self.out / "run" / sink).glob("epoch=*/part-*")]
                found.append(max((int(name.partition("=")[2]) for name in names), default=-1))
        return min(found, default=-1)

    def is_whole(self) -> bool:
        """Every host lives, every unit runs, and has as many standbys that are ready as its policy wants."""
        if self._coordinator is None or self._coordinator.poll() is not None:
            raise RuntimeError(f"the job has ended: {self.last_words()}")
        try:
            units = self.journal()["plan"]["units"]
        except (OSError, ValueError):
            return False
        shapes = self.topology.units
        filled = all(u["primary"] and len(u["ready"]) >= shapes[n].policy.backups for n, u in units.items())
        return filled and len(units) == len(shapes) and all(self.process(host) for host in self.names)

    def settle(self) -> None:
        wait_for(self.is_whole, WHOLE_S, "everything to be whole again", every_s=0.1)
        goal = self.newest() + FLOW
        wait_for(lambda: self.newest() >= goal and self.is_whole(), WHOLE_S, f"epoch {goal}", every_s=0.1)

    def last_words(self) -> str:
        lines = (self.out / "coordinator.log").read_text().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def primary_of(self, unit: str) -> str | None:
        found: str | None = self.journal()["plan"]["units"][unit]["primary"]
        return found

    def revive(self, *hosts: str) -> None:
        """Start hosts again. ``run`` would give one up that dies this often."""
        journal = self.journal()
        local = LocalHosts(
            self.out / "state", coordinator=journal["address"], token=token_of(self.out / "state"), lazy_spark=True
        )
        for host in hosts:
            local.start(host)
        pids = {host: process.pid for host, process in local.processes.items()}
        wait_for(
            lambda: all(self.journal()["pids"].get(host) == pid for host, pid in pids.items()), 30, "hosts to join",
            every_s=0.05,
        )  # fmt: skip

    def kill_coordinator(self) -> None:
        if self._coordinator is not None:
            self._coordinator.kill()
            self._coordinator.wait()

    def end(self) -> None:
        """Leave no process."""
        self.kill_coordinator()
        for host in self.names:
            process = self.process(host)
            if process is not None:
                for each in [*process.children(recursive=True), process]:
                    try:
                        each.kill()
                    except psutil.NoSuchProcess:
                        continue


# -- harms ------------------------------------------------------------------------------------------------------------


def kill(stage: Stage, chance: random.Random, soak: Soak, *, several: bool = False) -> None:
    count = chance.randint(1, stage.tolerates) if several else 1
    first = stage.primary_of(chance.choice(list(stage.topology.units))) or stage.names[0]
    others = chance.sample([h for h in stage.names if h != first], k=count - 1)
    victims = [process for host in (first, *others) if (process := stage.process(host)) is not None]
    for process in victims:
        signal_tree(process, signal.SIGKILL)
    soak.kills += len(victims)
    time.sleep(chance.choice([0.0, 0.3, 1.0]))
    stage.revive(first, *others)


def pause(stage: Stage, chance: random.Random, soak: Soak, *, long: bool) -> None:
    host = stage.primary_of(chance.choice(list(stage.topology.units))) or stage.names[0]
    process = stage.process(host)
    if process is not None:
        signal_tree(process, signal.SIGSTOP)
        time.sleep(DETECTION_S + chance.uniform(0.5, 1.5) if long else chance.uniform(0.1, 1.0))
        signal_tree(process, signal.SIGCONT)
        soak.pauses += 1


def kill_process(stage: Stage, chance: random.Random, soak: Soak) -> None:
    """An operator's process, on a host that lives."""
    hosts = [process for host in stage.names if (process := stage.process(host)) is not None]
    found = [c for p in hosts for c in p.children() if "understudy.runtime.operator_child" in c.cmdline()]
    if found:
        chance.choice(found).kill()
        soak.kills += 1
        time.sleep(0.5)


def damage(stage: Stage, chance: random.Random, soak: Soak) -> None:
    """A byte of a file that a standby holds; its twin has the right one."""
    files = [
        path
        for path in sorted((stage.out / "state" / "hosts").glob("*/stages/*/standby-*/state/**/*"))
        if path.is_file() and path.stat().st_size > 0
    ]
    if files:
        path = chance.choice(files)
        try:
            data = bytearray(path.read_bytes())
            data[chance.randrange(len(data))] ^= 0xFF
            path.write_bytes(bytes(data))
        except (OSError, ValueError):
            return  # it was replaced by a newer one meanwhile


def kill_coordinator(stage: Stage, chance: random.Random, soak: Soak) -> None:
    stage.kill_coordinator()
    soak.kills += 1
    victim = chance.choice(stage.names) if chance.random() < 0.5 else None
    process = stage.process(victim) if victim else None
    if process is not None:
        signal_tree(process, signal.SIGKILL)
        soak.kills += 1
    time.sleep(chance.choice([0.2, 1.0]))
    stage.start()
    if victim is not None:
        stage.revive(victim)


DOERS: dict[str, Callable[[Stage, random.Random, Soak], None]] = {
    "kill": kill,
    "several": lambda *about: kill(*about, several=True),
    "short pause": lambda *about: pause(*about, long=False),
    "long pause": lambda *about: pause(*about, long=True),
    "process": kill_process,
    "damage": damage,
    "coordinator": kill_coordinator,
}


# -- one seed ---------------------------------------------------------------------------------------------------------


def play(seed: int, out: Path, harms: int, tell: Callable[[str], None]) -> Soak:
    chance, soak = random.Random(seed), Soak(seed)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    write_job(out / "job.py", seed, chance, soak)
    topology = job_files.load(out / "job.py").topology()
    hosts = 2 + max(unit.policy.backups for unit in topology.units.values()) + chance.randint(0, 1)
    stage = Stage(out, out / "job.py", max(hosts, 3))
    try:
        stage.start()
        stage.settle()
        for _ in range(harms):
            harm = chance.choices(list(HARMS), weights=list(HARMS.values()))[0]
            tell(f"seed {seed}: {', '.join(soak.policies)}: {harm}")
            DOERS[harm](stage, chance, soak)
            soak.done[harm] += 1
            stage.settle()
        stage.kill_coordinator()
        tell(f"seed {seed}: judging")
        judge(stage, soak)
    except Exception as error:
        (out / "harness.log").write_text(traceback.format_exc())
        soak.wrong = f"{type(error).__name__}: {error}"
    finally:
        stage.end()
    if soak.wrong is None:
        shutil.rmtree(out, ignore_errors=True)
    return soak


def judge(stage: Stage, soak: Soak) -> None:
    with Drill(stage.job, stage.out, hosts=stage.hosts, adopt=True) as drill:
        drill.epochs(FLOW)
        result = drill.judge()
    soak.lost, soak.repeated = result["lost"], result["repeated"]
    if result["verdict"] != "precise" or result["disorder"]:
        soak.wrong = f"{result['verdict']}: {result['lost']} lost, {result['repeated']} repeated; {result['disorder']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="go on until there were so many")
    parser.add_argument("--pauses", type=int, default=200, help="and so many")
    parser.add_argument("--harms", type=int, default=20, help="to each job")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000, help="of the first job")
    parser.add_argument("--jobs", type=int, help="at most")
    parser.add_argument("--minutes", type=float, default=120.0, help="at most")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--coordinate", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--hosts", type=int, default=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.coordinate:
        coordinate(*arguments.coordinate, arguments.hosts)
        return 0
    interrupt_on_sigterm()
    soaks: list[Soak] = []
    work, until = (arguments.out / "soak-kills").resolve(), time.monotonic() + arguments.minutes * 60
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} kills"),
                   TimeElapsedColumn(), console=console)  # fmt: skip
    with bar:
        task = bar.add_task("starting", total=arguments.kills)
        while (
            (sum(s.kills for s in soaks) < arguments.kills or sum(s.pauses for s in soaks) < arguments.pauses)
            and (arguments.jobs is None or len(soaks) < arguments.jobs)
            and time.monotonic() < until
        ):
            seed = arguments.seed + len(soaks)
            soak = play(seed, work / str(seed), arguments.harms, lambda text: bar.update(task, description=text))
            soaks.append(soak)
            bar.update(task, completed=sum(s.kills for s in soaks))
            if soak.wrong is not None:
                again = f'make soak-kills ARGS="--seed {seed} --jobs 1 --harms {arguments.harms}"'
                console.print(f"seed {seed} ({', '.join(soak.policies)}) went wrong: {soak.wrong}", style="red")
                console.print(f"  again: {again}; its folders are in {work / str(seed)}", highlight=False)
    result = {
        "kills": sum(s.kills for s in soaks),
        "pauses": sum(s.pauses for s in soaks),
        "jobs": len(soaks),
        "lost": sum(s.lost for s in soaks),
        "repeated": sum(s.repeated for s in soaks),
        "violations": [{"seed": s.seed, "policies": s.policies, "what": s.wrong} for s in soaks if s.wrong],
        "harms": dict(sum((s.done for s in soaks), Counter())),
        "seeds": [s.seed for s in soaks],
    }
    save("soak-kills", result, arguments.out)
    console.print({key: value for key, value in result.items() if key != "seeds"})
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
