"""What hosts tell a coordinator that is not ready for it, or that fails at it."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow.flight as flight
import pytest

from understudy.core.failover import StandbyReady
from understudy.runtime import messages, wire
from understudy.runtime.host import Host, HostConfig
from understudy.runtime.wire import Refusal, Reply, Server, Service

TOKEN = "t"


@pytest.fixture
def host(tmp_path: Path):
    """Whose coordinator is to listen at ``host.config.coordinator``."""
    probe = Server("127.0.0.1:0", TOKEN, Service())
    address = probe.address
    probe.shutdown()
    found = Host(HostConfig("h1", tmp_path / "h1", address, TOKEN, lazy_spark=True))
    yield found
    found.server.shutdown()


def ready(unit: str) -> StandbyReady:
    return StandbyReady(unit, 1, "h1", 1)


def told(host: Host, *units: str, handler) -> list[str]:
    """What a coordinator took of the reports on these units."""
    taken: list[str] = []

    def on_report(report: messages.Report, body: bytes):
        answer = handler(report.what().unit, taken)
        if answer is None:
            taken.append(report.what().unit)
        return answer

    calls = {messages.Report: on_report, messages.Join: lambda call, body: None}
    server = Server(host.config.coordinator, TOKEN, Service(calls))
    try:
        host.membership.begin()
        for unit in units:
            host.report(ready(unit))
        limit = time.monotonic() + 10
        while len(taken) < len(units) and time.monotonic() < limit:
            time.sleep(0.02)
        return taken
    finally:
        server.shutdown()


def test_a_coordinator_that_has_yet_to_read_its_journal_is_told_again(host: Host) -> None:
    tries: list[str] = []

    def handler(unit: str, taken: list[str]) -> Reply | None:
        tries.append(unit)
        return wire.refuse(Refusal.LATER) if len(tries) < 3 else None

    assert told(host, "a", "b", handler=handler) == ["a", "b"]


def test_a_report_that_a_coordinator_fails_at_does_not_hold_up_others(host: Host) -> None:
    """Arrow made a KeyError into one of its own, which ended the thread that tells reports: nobody heard of this host
    again, and everything that it led counted as unprotected for ever."""
    tries: list[str] = []

    def handler(unit: str, taken: list[str]) -> None:
        tries.append(unit)
        if unit == "a" and len(taken) < 1:
            raise KeyError(unit)

    assert told(host, "a", "b", handler=handler) == ["b", "a"]


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("x"), OSError("x"), NotImplementedError("x")])
def test_whatever_fails_in_a_handler_is_one_kind_of_error_to_whoever_asks(error: Exception) -> None:
    def on_exit(call: messages.Exit, body: bytes) -> None:
        raise error

    server = Server("127.0.0.1:0", TOKEN, Service({messages.Exit: on_exit}))
    peer = wire.Peer(server.address, TOKEN)
    try:
        with pytest.raises(flight.FlightServerError, match=f"Exit failed: {type(error).__name__}"):
            peer.call(messages.Exit())
    finally:
        peer.close()
        server.shutdown()
