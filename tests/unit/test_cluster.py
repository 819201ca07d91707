"""Hosts as processes of this machine: real processes, which do nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from understudy.runtime import cluster, messages, wire
from understudy.runtime.cluster import LocalHosts, Reviver
from understudy.runtime.session import LocalRun, wait_for

BEAT = pa.schema([("beat", pa.int8())])
JOB = """
import understudy as us

job = us.Job("one", epoch="500ms")
rows = job.source("rows", us.sources.rate(10))
job.sink(rows, us.sinks.console())
"""
SLEEP = "import time; time.sleep(100)"


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host only sleeps. Its command line is that of a host."""
    true = LocalHosts.command

    def command(self: LocalHosts, name: str) -> list[str]:
        _, _, *arguments = true(self, name)
        return [sys.executable, "-c", SLEEP, *arguments]

    monkeypatch.setattr(LocalHosts, "command", command)
    monkeypatch.setattr(cluster, "CALM_S", 0.1)


class Story:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def say(self, kind: str, text: str, *, host: str) -> None:
        self.said.append((kind, host))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[LocalHosts]:
    found = LocalHosts(tmp_path, coordinator="127.0.0.1:1", token="t")
    yield found
    found.end(timeout_s=0)


def pid_of(hosts: LocalHosts, name: str) -> int | None:
    return hosts.processes[name].pid if name in hosts.alive() else None


def test_a_host_that_dies_is_started_again_until_it_has_died_too_often(hosts: LocalHosts) -> None:
    hosts.start("h1")
    story = Story()
    reviver = Reviver(hosts, story.say)
    reviver.watch()
    for times in range(1, cluster.DEATHS_MAX + 1):
        hosts.signal("h1", signal.SIGKILL)
        wait_for(lambda times=times: len(story.said) == times, 10, "its death to be noticed")  # type: ignore[misc]
        if times < cluster.DEATHS_MAX:
            wait_for(lambda: bool(hosts.alive()), 10, "its return")
    assert story.said == [("restarting", "h1")] * (cluster.DEATHS_MAX - 1) + [("given-up", "h1")]
    reviver.end()


def test_hosts_that_died_while_nobody_watched_are_started_too(hosts: LocalHosts) -> None:
    """h2 was started here by an earlier run; h9 is known, but was started elsewhere."""
    hosts.start("h1")
    hosts.home("h2").mkdir(parents=True)
    story = Story()
    reviver = Reviver(hosts, story.say)
    reviver.watch(["h1", "h2", "h9"])
    wait_for(lambda: hosts.alive() == ["h1", "h2"], 10, "h2")
    time.sleep(0.3)
    assert story.said == [("restarting", "h2")]
    hosts.signal("h2", signal.SIGKILL)
    wait_for(lambda: len(story.said) == 2 and "h2" in hosts.alive(), 10, "h2 again")
    reviver.end()


def test_a_host_that_an_earlier_run_has_just_started_is_not_started_twice(hosts: LocalHosts) -> None:
    hosts.start("h1")
    earlier = hosts.processes.pop("h1")
    story = Story()
    reviver = Reviver(hosts, story.say)
    reviver.watch(["h1"])
    wait_for(lambda: pid_of(hosts, "h1") == earlier.pid, 10, "its adoption")
    assert story.said == []
    earlier.kill()
    wait_for(lambda: pid_of(hosts, "h1") not in (None, earlier.pid), 10, "its return")
    assert story.said == [("restarting", "h1")]
    reviver.end()


def test_nothing_is_started_after_the_end(hosts: LocalHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CALM_S", 0.5)
    hosts.home("h1").mkdir(parents=True)
    reviver = Reviver(hosts, Story().say)
    reviver.watch(["h1"])
    reviver.end()
    time.sleep(0.8)
    assert hosts.processes == {}


# -- adoption -------------------------------------------------------------------------------------------------------


class Running:
    """The host of a running job, as far as a coordinator sees it."""

    def __init__(self) -> None:
        self.over = threading.Event()
        calls = {
            messages.TakeJob: lambda call, body: None,
            messages.TakePlan: lambda call, body: None,
            messages.Exit: lambda call, body: None,
            messages.Status: lambda call, body: {
                "stages": {"rows": {"role": "primary"}},
                "bytes": dict.fromkeys(wire.CATEGORIES, 0),
            },
        }
        self.server = wire.Server("127.0.0.1:0", "token", wire.Service(calls=calls, gets={messages.Pulse: self.pulse}))

    def pulse(self, get: messages.Pulse) -> flight.FlightDataStream:
        empty = pa.record_batch([pa.array([], pa.int8())], schema=BEAT)

        def beats() -> Iterator[Any]:
            while not self.over.wait(0.05):
                yield empty, b"[{},0,0]"

        return flight.GeneratorStream(BEAT, beats())


def test_an_adopted_job_gets_its_dead_hosts_back(tmp_path: Path) -> None:
    """A host was killed, then the coordinator. The next one gives the host up, and starts it again."""
    (tmp_path / "job.py").write_text(JOB)
    state = tmp_path / "state"
    (state / "hosts" / "h2").mkdir(parents=True)
    (state / "token").write_text("token")
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    host = Running()
    unit = {
        "generation": 1, "primary": "h1", "standbys": ["h2"], "ready": ["h2"], "since": [1], "start": "fresh",
        "rising": False, "policy": None, "turn": None,
    }  # fmt: skip
    journal = {
        "plan": {"serial": 1, "units": {"rows": unit}},
        "hosts": {"h1": host.server.address, "h2": "127.0.0.1:1"},
        "pids": {"h1": dead.pid, "h2": dead.pid},
        "processes": {"h1": "p1", "h2": "p2"},
        "state": "running",
        "policies": {},
        "ident": "i",
        "address": "127.0.0.1:0",
    }
    (state / "journal.json").write_text(json.dumps(journal))
    run = LocalRun(tmp_path / "job.py", state, hosts=2, revive=True)
    try:
        run.start()
        wait_for(lambda: run.hosts.alive() == ["h2"], 20, "the host's return")
        process = run.hosts.processes["h2"]
        kinds = [(e["kind"], e.get("host")) for e in run.coordinator.events]
        assert ("host-lost", "h2") in kinds and ("restarting", "h2") in kinds
        assert ("restarting", "h1") not in kinds, "it was not started here"
    finally:
        host.over.set()
        run.stop(drain=False)
        host.server.shutdown()
    assert not psutil.pid_exists(process.pid)
