"""The hosts of a job as its coordinator reaches them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow.flight as flight

from understudy.runtime import wire

A = TypeVar("A")


class Fleet:
    def __init__(self, token: str, tls: wire.Tls | None) -> None:
        self.addresses: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        self.processes: dict[str, str] = {}
        """Host -> which process of it this is. A plan is for one process: another would have to begin anew."""
        self.meter = wire.Meter()
        self._token, self._tls = token, tls
        self._lock = threading.Lock()
        self._peers: dict[str, wire.Peer] = {}
        self._pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="coordinator")

    def at(self, address: str) -> wire.Peer:
        with self._lock:
            if address not in self._peers:
                self._peers[address] = wire.Peer(address, self._token, self.meter, self._tls)
            return self._peers[address]

    def send(self, host: str, call: wire.Call[None]) -> None:
        """In the background. A host that does not hear it is watched, and told again what it needs to know."""
        self._pool.submit(self._send, self.at(self.addresses[host]), call)

    def _send(self, peer: wire.Peer, call: wire.Call[None]) -> None:
        try:
            peer.call(call, timeout_s=10)
        except flight.FlightError:
            pass

    def ask(self, hosts: Iterable[str], call: wire.Call[A], *, timeout_s: float = 10.0) -> dict[str, A]:
        """Ask several at once. Those that do not answer are left out."""
        peers = {host: self.at(self.addresses[host]) for host in hosts}

        def one(peer: wire.Peer) -> wire.Reply[A] | None:
            try:
                return peer.call(call, timeout_s=timeout_s)
            except flight.FlightError:
                return None

        with ThreadPoolExecutor(max_workers=max(1, len(peers))) as pool:
            replies = dict(zip(peers, pool.map(one, peers.values()), strict=True))
        return {host: reply.answer for host, reply in replies.items() if reply is not None and not reply.refused}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
