"""Where a seed's story of `make soak-kills` is played: its folder, the coordinator's process and the hosts'."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow.flight as flight

from plain_failover import die_with_parent
from soak_jobs import Kind
from soak_network import COORDINATOR, HostsBehindDoors, Network
from understudy import job_files
from understudy.cli import FAST_START
from understudy.drill import newest_in
from understudy.runtime.cluster import token_of
from understudy.runtime.messages import Status
from understudy.runtime.session import LocalRun, wait_for
from understudy.runtime.wire import Peer

JOIN_S = 60.0
"""Given to a host to start and join."""


def options_of(out: Path) -> dict[str, Any]:
    """As ``Drill`` runs a job."""
    return {"sink_root": str((out / "run").resolve()), "record": str((out / "recorded").resolve())}


def coordinate(job: Path, out: Path, hosts: int, *, spark: bool) -> None:
    """In a process of its own, to be killed."""
    die_with_parent()
    settings = FAST_START if spark else None
    run = LocalRun(job, out / "state", hosts=hosts, options=options_of(out), settings=settings)
    run.hosts = hosts_of(out, run.coordinator.address, spark=spark)
    with run:
        run.coordinator.wait(None)


def hosts_of(out: Path, coordinator: str, *, spark: bool) -> HostsBehindDoors:
    settings, token = FAST_START if spark else None, token_of(out / "state")
    return HostsBehindDoors(out, coordinator=coordinator, token=token, lazy_spark=not spark, settings=settings)


class Stage:
    def __init__(self, out: Path, job: Path, hosts: int, kind: Kind) -> None:
        self.out, self.job, self.hosts, self.kind = out, job, hosts, kind
        self.names = [f"h{i + 1}" for i in range(hosts)]
        self.topology = job_files.load(job).topology()
        self.tolerates = min(unit.policy.tolerates for unit in self.topology.units.values())
        self.network: Network | None = None
        self._coordinator: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = open(self.out / "coordinator.log", "ab")  # noqa: SIM115 - the process's
        script = str(Path(__file__).with_name("soak_kills.py"))
        words = ["--coordinate", str(self.job), str(self.out), "--hosts", str(self.hosts), "--only", self.kind.name]
        with log:
            self._coordinator = subprocess.Popen(
                [sys.executable, script, *words], stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def connect(self) -> None:
        """Put the hosts, which are yet to be started, behind doors."""
        self.network = Network(self.out, self.names, self.pids)

    # -- what is --------------------------------------------------------------------------------------------------

    def journal(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "state" / "journal.json").read_text())
        return found

    def pids(self) -> dict[str, int]:
        owner = {} if self._coordinator is None else {COORDINATOR: self._coordinator.pid}
        try:
            return {**self.journal()["pids"], **owner}
        except (OSError, ValueError, KeyError):
            return owner

    def process(self, host: str) -> psutil.Process | None:
        try:
            found = psutil.Process(self.journal()["pids"][host])
            return found if host in found.cmdline() and found.status() != psutil.STATUS_ZOMBIE else None
        except (psutil.Error, KeyError, OSError, ValueError):
            return None

    def status(self) -> dict[str, Any] | None:
        """As ``understudy status`` has it; None when nobody says."""
        try:
            peer = Peer(self.journal()["address"], token_of(self.out / "state"))
            try:
                return peer.call(Status(), timeout_s=15).answer
            finally:
                peer.close()
        except (flight.FlightError, OSError, ValueError):
            return None

    def events(self, since: float) -> list[dict[str, Any]]:
        """What the coordinator has said since then."""
        try:
            lines = (self.out / "state" / "events.jsonl").read_text().splitlines()
        except OSError:
            return []
        found = []
        for line in reversed(lines):
            try:
                event = json.loads(line)
            except ValueError:
                continue  # being written
            if event["t"] < since - 60:
                break
            if event["t"] >= since:
                found.append(event)
        return found[::-1]

    def newest(self) -> dict[str, int]:
        """The newest epoch of every sink. Parts of a job that have nothing in common need not be equally far."""
        sinks = [sink for stage in self.topology.stages.values() for sink in stage.sinks]
        return {sink: newest_in(self.out / "run" / sink) for sink in sinks}

    def primary_of(self, unit: str) -> str | None:
        found: str | None = self.journal()["plan"]["units"][unit]["primary"]
        return found

    def is_placed(self) -> bool:
        """Every host's process lives, every unit has its primary, and as many standbys that are ready as its policy
        wants."""
        if self._coordinator is None or self._coordinator.poll() is not None:
            raise RuntimeError(f"the job has ended: {self.last_words()}")
        try:
            units = self.journal()["plan"]["units"]
        except (OSError, ValueError):
            return False
        shapes = self.topology.units
        filled = all(u["primary"] and len(u["ready"]) >= shapes[n].policy.backups for n, u in units.items())
        return filled and len(units) == len(shapes) and all(self.process(host) for host in self.names)

    def _queues(self) -> dict[str, tuple[int, int]] | None:
        """Stage -> what it has produced and what all have let go of; None unless everything runs where it should."""
        status = self.status() if self.is_placed() else None
        if status is None or not all(status["hosts"].get(h, {}).get("alive") for h in self.names):
            return None
        found = {}
        for name, shape in self.topology.unit_of.items():
            unit = status["units"][shape]
            here = status["hosts"][unit["primary"]].get("stages", {}).get(name)
            if here is None or here["role"] != "primary" or here["generation"] != unit["generation"]:
                return None
            found[name] = (here["produced"], here["trimmed"])
        return found

    def settle(self) -> None:
        """As the simulator has it: first everything must be in place, then what was in flight at that moment must be
        in the sinks and trimmed everywhere."""
        marks: dict[str, int] = {}

        def placed() -> bool:
            found = self._queues()
            marks.update({name: produced for name, (produced, _) in (found or {}).items()})
            return found is not None

        def over() -> bool:
            there = self.newest()
            found = self._queues() if all(there[sink] >= goal for sink, goal in goals.items()) else None
            return found is not None and all(trimmed >= marks[name] for name, (_, trimmed) in found.items())

        wait_for(self.is_placed, self.kind.whole_s, "everything to be whole again", every_s=0.05)
        wait_for(placed, self.kind.whole_s, "everything to run", every_s=0.1)
        stages, there = self.topology.stages, self.newest()
        goals = {sink: max(there[sink] + 1, marks[name]) for name in stages for sink in stages[name].sinks}
        wait_for(over, self.kind.whole_s, f"these epochs: {goals}", every_s=0.1)

    def last_words(self) -> str:
        lines = (self.out / "coordinator.log").read_text().strip().splitlines()
        told = [line for line in lines if line.startswith("understudy.errors.")]  # Python may complain after that
        return (told or lines or ["it said nothing"])[-1]

    # -- processes ------------------------------------------------------------------------------------------------

    def revive(self, *hosts: str) -> None:
        """Start hosts again. ``run`` would give one up that dies this often."""
        local = hosts_of(self.out, self.journal()["address"], spark=self.kind.spark)
        for host in hosts:
            local.start(host)
        pids = {host: process.pid for host, process in local.processes.items()}
        wait_for(
            lambda: all(self.pids().get(host) == pid for host, pid in pids.items()), JOIN_S, "hosts to join",
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
        if self.network is not None:
            self.network.end()
