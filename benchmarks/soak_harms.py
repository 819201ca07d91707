"""What `make soak-kills` does to a job, each by a seed's chance. A harm returns the hosts that it may have cost."""

from __future__ import annotations

import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from soak_network import COORDINATOR
from soak_stage import Stage
from understudy.runtime.cluster import signal_tree

DETECTION_S = 2.5
HARMS = {
    "kill": 7, "several": 4, "short pause": 1, "long pause": 2, "process": 1, "damage": 1, "coordinator": 1, "disk": 1
}  # fmt: skip
"""What is done to jobs of operators, and how often beside the others."""
CUTS = {"short partition": 2, "long partition": 3}
"""As well where there is a network."""
SPARK_HARMS = {"kill": 9, "long pause": 1, "coordinator": 1}
"""To jobs on Spark, where whatever costs a host costs the start of a JVM."""


class Broken(Exception):
    """A check of the harness's own has failed."""


@dataclass
class Soak:
    """One seed's job, and how it ended."""

    seed: int
    kind: str = "operators"
    policies: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    pauses: int = 0
    lost: int = 0
    repeated: int = 0
    beyond: int = 0
    """Hosts that were given up although nobody had harmed them: on a machine that is busier than the heartbeats allow
    for. Together with a harm that is more than a policy promises."""
    stopped: str | None = None
    """What the job said when it stopped because of that. No fault: it must not go on with less."""
    wrong: str | None = None
    seconds: float = 0.0


def chosen(stage: Stage, chance: random.Random) -> str:
    """The host of some unit's primary: what happens there matters most."""
    return stage.primary_of(chance.choice(list(stage.topology.units))) or stage.names[0]


def kill(stage: Stage, chance: random.Random, soak: Soak, *, several: bool = False) -> set[str]:
    count = chance.randint(1, stage.tolerates) if several else 1
    first = chosen(stage, chance)
    hosts = [first, *chance.sample([h for h in stage.names if h != first], k=count - 1)]
    victims = [process for host in hosts if (process := stage.process(host)) is not None]
    for process in victims:
        signal_tree(process, signal.SIGKILL)
    soak.kills += len(victims)
    time.sleep(chance.choice([0.0, 0.3, 1.0]))
    stage.revive(*hosts)
    return set(hosts)


def pause(stage: Stage, chance: random.Random, soak: Soak, *, long: bool) -> set[str]:
    host = chosen(stage, chance)
    process = stage.process(host)
    if process is not None:
        signal_tree(process, signal.SIGSTOP)
        time.sleep(lasting(chance, long))
        signal_tree(process, signal.SIGCONT)
        soak.pauses += 1
    return {host}


def lasting(chance: random.Random, long: bool) -> float:
    return DETECTION_S + chance.uniform(0.5, 1.5) if long else chance.uniform(0.1, 1.0)


def kill_process(stage: Stage, chance: random.Random, soak: Soak) -> set[str]:
    """An operator's process, on a host that lives."""
    hosts = [process for host in stage.names if (process := stage.process(host)) is not None]
    found = [child for host in hosts for child in host.children() if _is_operator(child)]
    if found:
        chance.choice(found).kill()
        soak.kills += 1
        time.sleep(0.5)
    return set()


def _is_operator(process: psutil.Process) -> bool:
    try:
        return "understudy.runtime.operator_child" in process.cmdline()
    except psutil.Error:
        return False  # it has ended meanwhile


def damage(stage: Stage, chance: random.Random, soak: Soak) -> set[str]:
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
            pass  # it was replaced by a newer one meanwhile
    return set()


def kill_coordinator(stage: Stage, chance: random.Random, soak: Soak) -> set[str]:
    stage.kill_coordinator()
    soak.kills += 1
    victim = chance.choice(stage.names) if chance.random() < 0.5 else None
    process = stage.process(victim) if victim else None
    if process is not None:
        signal_tree(process, signal.SIGKILL)
        soak.kills += 1
    time.sleep(chance.choice([0.2, 1.0]))
    stage.start()
    if victim is None:
        return set()
    stage.revive(victim)
    return {victim}


def partition(stage: Stage, chance: random.Random, soak: Soak, *, long: bool) -> set[str]:
    """A host that others cannot reach, that cannot reach others, or both: all others, the coordinator, or all hosts."""
    assert stage.network is not None
    host = chosen(stage, chance)
    hosts = [name for name in stage.names if name != host]
    others = chance.choice([[COORDINATOR, *hosts], [COORDINATOR, *hosts], [COORDINATOR], hosts])
    into, out = chance.choice([(True, True), (True, True), (True, False), (False, True)])
    stage.network.cut(host, others, into=into, out=out)
    try:
        time.sleep(lasting(chance, long))
    finally:
        stage.network.heal(broken=chance.random() < 0.3)
    return {host}


def fill_disk(stage: Stage, chance: random.Random, soak: Soak) -> set[str]:
    """A host that cannot write another byte for a while, not even to its log."""
    host, lasts_s = chance.choice(stage.names), chance.choice([0.3, 1.0, 4.0])
    process = stage.process(host)
    if process is None:
        return set()
    since, plan = time.time(), stage.journal()["plan"]["units"]
    _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, most))
    try:
        time.sleep(lasts_s)
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
    units = stage.topology.units
    writes = any(
        host in (unit["primary"], *unit["ready"])
        for name, unit in plan.items()
        if any(not stage.topology.stages[s].inputs for s in units[name].stages)  # a source's entries, with every epoch
    )
    told = {"threw", "standby-lost", "unprotected"}
    if writes and lasts_s > DETECTION_S and not any(event["kind"] in told for event in stage.events(since)):
        raise Broken(f"the disk of {host} was full for {lasts_s} s, and nobody was told")
    return {host}


DOERS: dict[str, Callable[[Stage, random.Random, Soak], set[str]]] = {
    "kill": kill,
    "several": lambda *about: kill(*about, several=True),
    "short pause": lambda *about: pause(*about, long=False),
    "long pause": lambda *about: pause(*about, long=True),
    "process": kill_process,
    "damage": damage,
    "coordinator": kill_coordinator,
    "short partition": lambda *about: partition(*about, long=False),
    "long partition": lambda *about: partition(*about, long=True),
    "disk": fill_disk,
}


def choose(stage: Stage, chance: random.Random) -> str:
    weights = SPARK_HARMS if stage.kind.spark else {**HARMS, **(CUTS if stage.network else {})}
    return chance.choices(list(weights), weights=list(weights.values()))[0]
