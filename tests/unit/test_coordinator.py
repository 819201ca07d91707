"""A coordinator and what it hears of hosts, over real connections; hosts here do nothing but answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from rich.console import Console

from understudy.core.failover import StageThrew, StandbyReady
from understudy.core.readiness import Readiness
from understudy.errors import UnderstudyError
from understudy.live import View
from understudy.runtime import messages
from understudy.runtime.coordinator import Coordinator, CoordinatorConfig
from understudy.runtime.session import wait_for
from understudy.runtime.watching import CONNECTIONS
from understudy.runtime.wire import CATEGORIES, Peer, Server, Service, listens

BEAT = pa.schema([("beat", pa.int8())])
JOB = """
import understudy as us

job = us.Job("one", epoch="500ms")
rows = job.source("rows", us.sources.rate(10))
job.sink(rows, us.sinks.console())
"""


class Answering:
    """Sends pulses. Every connection in ``lives`` breaks after that many; the ones after them last. It is whatever
    process is asked for until ``process`` is set."""

    def __init__(self, lives: list[int]) -> None:
        self.lives, self.connections, self.over = lives, 0, False
        self.process: str | None = None
        self.plans, self.deaf, self.serial = 0, 0, -1
        """How many plans have come, how many of the next ones get lost, and the newest of the others."""
        self.nonsense: bytes | None = None
        """What it sends instead of pulses."""
        self.stages: dict[str, Any] = {}
        """As it tells them when asked how it stands."""
        calls = {
            messages.TakeJob: lambda call, body: None,
            messages.TakePlan: self.plan,
            messages.Status: self.status,
        }
        service = Service(calls=calls, gets={messages.Pulse: self.pulse})
        self.server = Server("127.0.0.1:0", "token", service)

    def plan(self, call: messages.TakePlan, body: bytes) -> None:
        self.plans += 1
        if self.deaf > 0:
            self.deaf -= 1
        else:
            self.serial = max(self.serial, call.plan.serial)

    def status(self, call: messages.Status, body: bytes) -> dict[str, Any]:
        return {"stages": self.stages, "bytes": dict.fromkeys(CATEGORIES, 0)}

    def pulse(self, get: messages.Pulse) -> flight.FlightDataStream:
        if self.process not in (None, get.process):
            raise flight.FlightUnavailableError("another process")
        life = self.lives[self.connections] if self.connections < len(self.lives) else 1 << 30
        self.connections += 1
        empty = pa.record_batch([pa.array([], pa.int8())], schema=BEAT)

        def beats() -> Iterator[Any]:
            for _ in range(life):
                if self.over:
                    break
                yield empty, self.nonsense or f"[{{}},0,{self.serial}]".encode()
                time.sleep(0.02)
            raise flight.FlightUnavailableError("the connection is lost")

        return flight.GeneratorStream(BEAT, beats())

    def stop(self) -> None:
        self.over = True
        self.server.shutdown()


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    (tmp_path / "job.py").write_text(JOB)
    found = Coordinator(CoordinatorConfig(tmp_path / "job.py", tmp_path / "state", "token", heartbeat_s=0.5))
    found.wait_for_hosts(0)
    yield found
    found.close(exit_hosts=False)


def join(coordinator: Coordinator, host: Answering, process: str = "p1", name: str = "h1") -> None:
    about = messages.Join(name, host.server.address, pid=1, process=process, holds={})
    assert not Peer(coordinator.address, "token").call(about).refused
    wait_for(lambda: name in coordinator.failover.alive, 10, "a host")


def tell(coordinator: Coordinator, host: str, what: messages.Reported) -> None:
    Peer(coordinator.address, "token").call(messages.Report.of(host, 0.0, what))


def test_a_connection_that_is_lost_is_made_again(coordinator: Coordinator) -> None:
    host = Answering([3, 1, 0, 5])
    join(coordinator, host)
    wait_for(lambda: host.connections == 5, 10, "the last connection")
    time.sleep(0.2)
    assert "h1" in coordinator.failover.alive
    assert not any(event["kind"] in ("host-lost", "missed") for event in coordinator.events)
    assert host.plans >= 3, "what was said meanwhile may have been lost: everybody is told again"
    host.stop()


def test_a_plan_that_got_lost_is_sent_again(coordinator: Coordinator) -> None:
    host, other = Answering([]), Answering([])
    join(coordinator, host)
    coordinator.begin()
    wait_for(lambda: host.serial >= 0, 10, "the first plan")
    host.deaf = 2
    known = host.serial
    join(coordinator, other, "p2", "h2")  # a new standby: a new plan
    wait_for(lambda: host.serial > known, 10, "the plan that got lost")
    wait_for(lambda: other.serial == host.serial, 10, "all to agree")
    sent = host.plans
    time.sleep(0.3)
    assert host.plans == sent, "who has the plan is not sent it again"
    host.stop()
    other.stop()


def test_a_host_that_cannot_be_spoken_to_is_lost(coordinator: Coordinator) -> None:
    host = Answering([1] + [0] * 100)
    join(coordinator, host)
    wait_for(lambda: "h1" not in coordinator.failover.alive, 10, "its loss")
    assert host.connections == CONNECTIONS, "the one that broke after a pulse is the first of them"
    host.stop()


def test_another_process_at_the_same_address_is_another_host(coordinator: Coordinator) -> None:
    """One that was restarted while the network was down must not be taken for its predecessor."""
    host = Answering([20])
    join(coordinator, host)
    host.process = "p2"
    wait_for(lambda: "h1" not in coordinator.failover.alive, 10, "the loss of the first")
    join(coordinator, host, "p2")
    assert coordinator.processes["h1"] == "p2"
    host.stop()


@pytest.mark.parametrize("nonsense", [b"{}", b"[]", b"[{}, 0]", b'[{}, 0, "1"]', b"not even json"])
def test_a_host_that_sends_nonsense_is_given_up(coordinator: Coordinator, nonsense: bytes) -> None:
    host = Answering([])
    join(coordinator, host)
    host.nonsense = nonsense
    wait_for(lambda: "h1" not in coordinator.failover.alive, 10, "its loss")
    assert any("it sent nonsense" in event["text"] for event in coordinator.events)
    host.stop()


def test_a_host_that_no_longer_listens_is_lost_at_once(coordinator: Coordinator) -> None:
    host = Answering([])
    join(coordinator, host)
    assert listens(host.server.address)
    host.stop()
    wait_for(lambda: "h1" not in coordinator.failover.alive, 0.4, "its loss, sooner than by heartbeats")
    assert not listens(host.server.address)


TWO = """
import understudy as us

job = us.Job("two", epoch="500ms")
rows = job.source("rows", us.sources.rate(10))
@job.stage(rows, host="h1")
def copy(rows):
    return rows
job.sink(copy, us.sinks.console())
"""


def test_who_is_armed_is_told_and_forgotten_with_the_process(tmp_path: Path) -> None:
    """Sources when they are ready, stages when their standby says so: to this coordinator, or to an earlier one."""
    (tmp_path / "job.py").write_text(TWO)
    coordinator = Coordinator(CoordinatorConfig(tmp_path / "job.py", tmp_path / "state", "token", heartbeat_s=0.5))
    coordinator.wait_for_hosts(0)
    hosts = {name: Answering([]) for name in ("h1", "h2")}
    try:
        for name, host in hosts.items():
            join(coordinator, host, name=name)
        coordinator.begin()
        units = coordinator.status()["units"]
        assert {n: (u["standbys"], u["armed"]) for n, u in units.items()} == {
            "rows": (("h2",), ["h2"]),
            "copy": (("h2",), []),
        }
        assert (coordinator.standbys("rows"), coordinator.standbys("copy")) == ("h2 (armed)", "h2 (arming)")
        tell(coordinator, "h2", messages.Armed("copy", 1, "copy"))
        assert coordinator.status()["units"]["copy"]["armed"] == ["h2"]
        assert coordinator.standbys("copy") == "h2 (armed)"
        coordinator.readiness = Readiness(coordinator.failover)  # as after its own crash
        hosts["h2"].stages["copy"] = {"role": "standby", "armed": True, "generation": 1}
        assert coordinator.status()["units"]["copy"]["armed"] == ["h2"]

        hosts["h2"].stages.clear()
        hosts["h2"].stop()
        wait_for(lambda: "h2" not in coordinator.failover.alive, 10, "its loss")
        assert coordinator.standbys("copy") == "UNPROTECTED"
        live = Console(file=StringIO(), width=120)
        live.print(View(coordinator, title="t")._draw())
        rows = [row for row in live.file.getvalue().splitlines() if "UNPROTECTED" in row]  # type: ignore[attr-defined]
        assert [row.split()[1:7:2] for row in rows[:2]] == [[unit, "h1", "UNPROTECTED"] for unit in ("rows", "copy")]
        hosts["h2"] = Answering([])
        join(coordinator, hosts["h2"], "p2", "h2")
        assert coordinator.failover.plan.units["copy"].generation == 1
        assert coordinator.standbys("copy") == "UNPROTECTED: h2 (no state yet)"
        since = coordinator.failover.plan.units["copy"].since[0]
        tell(coordinator, "h1", StandbyReady("copy", 1, "h2", since))
        assert coordinator.standbys("copy") == "h2 (arming)"
    finally:
        coordinator.close(exit_hosts=False)
        for host in hosts.values():
            host.stop()


@pytest.mark.parametrize(
    ("whose", "code", "text"),
    [
        (
            "code",
            5,
            "stage 'copy' threw at epoch 7: boom. The job stopped there; fix the code and run it again: it goes on "
            "with nothing lost.",
        ),
        (
            "understudy",
            1,
            "Understudy itself failed in stage 'copy' at epoch 7: boom; this is a fault of Understudy, please report "
            "it with {log}; run it again: it goes on with nothing lost",
        ),
        (
            "machine",
            3,
            "the machine of h1 failed stage 'copy' at epoch 7: boom; see to its memory, disk and load ({log}), and "
            "run it again: it goes on with nothing lost",
        ),
    ],
)
@pytest.mark.parametrize("local", [True, False])
def test_a_job_that_stops_says_whose_failure_it_was(
    tmp_path: Path, whose: str, code: int, text: str, local: bool
) -> None:
    (tmp_path / "job.py").write_text(TWO)
    coordinator = Coordinator(CoordinatorConfig(tmp_path / "job.py", tmp_path / "state", "token", heartbeat_s=0.5))
    coordinator.wait_for_hosts(0)
    host, log = Answering([]), tmp_path / "state" / "hosts" / "h1" / "host.log"
    if local:
        log.parent.mkdir(parents=True)
        log.touch()
    try:
        join(coordinator, host)
        coordinator.begin()
        tell(coordinator, "h1", StageThrew("copy", 1, "copy", 7, "boom", whose))
        with pytest.raises(UnderstudyError) as failure:
            coordinator.wait(10)
    finally:
        coordinator.close(exit_hosts=False)
        host.stop()
    assert str(failure.value) == text.format(log=log if local else "the log of host h1")
    assert failure.value.exit_code == code
