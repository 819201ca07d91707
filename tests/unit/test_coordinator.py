"""A coordinator and what it hears of hosts, over real connections; hosts here do nothing but answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from understudy.runtime.coordinator import CONNECTIONS, Coordinator, CoordinatorConfig
from understudy.runtime.session import wait_for
from understudy.runtime.wire import Peer, Server, Service, listens

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
        self.plans = 0
        calls = {"job": lambda header, body: {}, "plan": self.plan}
        service = Service(calls=calls, gets={"pulse": self.pulse})
        self.server = Server("127.0.0.1:0", "token", service)

    def plan(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        self.plans += 1
        return {}

    def pulse(self, request: dict[str, Any]) -> flight.FlightDataStream:
        if self.process not in (None, request["process"]):
            raise flight.FlightUnavailableError("another process")
        life = self.lives[self.connections] if self.connections < len(self.lives) else 1 << 30
        self.connections += 1
        empty = pa.record_batch([pa.array([], pa.int8())], schema=BEAT)

        def beats() -> Iterator[Any]:
            for _ in range(life):
                if self.over:
                    break
                yield empty, b"[{},0]"
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


def join(coordinator: Coordinator, host: Answering, process: str = "p1") -> None:
    about = {"host": "h1", "address": host.server.address, "process": process, "pid": 1, "holds": {}}
    assert not Peer(coordinator.address, "token").call("join", about).refused
    wait_for(lambda: "h1" in coordinator.failover.alive, 10, "a host")


def test_a_connection_that_is_lost_is_made_again(coordinator: Coordinator) -> None:
    host = Answering([3, 1, 0, 5])
    join(coordinator, host)
    wait_for(lambda: host.connections == 5, 10, "the last connection")
    time.sleep(0.2)
    assert "h1" in coordinator.failover.alive
    assert not any(event["kind"] in ("host-lost", "missed") for event in coordinator.events)
    assert host.plans >= 3, "what was said meanwhile may have been lost: everybody is told again"
    host.stop()


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


def test_a_host_that_no_longer_listens_is_lost_at_once(coordinator: Coordinator) -> None:
    host = Answering([])
    join(coordinator, host)
    assert listens(host.server.address)
    host.stop()
    wait_for(lambda: "h1" not in coordinator.failover.alive, 0.4, "its loss, sooner than by heartbeats")
    assert not listens(host.server.address)
