"""A network between the hosts of one job that can be cut: every host is reached through a door of its own.

A door is a port of this process, behind which the host listens. Hosts announce it in their own place (``--advertise``)
and reach the coordinator through one, too. What a cut keeps back arrives when it is healed, as TCP brings what was lost
on the way; or the connections are broken then, as by a firewall that has forgotten them. Needs no rights.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from understudy.runtime.cluster import LocalHosts, coordinator_of

COORDINATOR = "coordinator"
FILE = "doors.json"


@dataclass(eq=False)
class Link:
    """One connection through a door."""

    door: str
    """Who is behind it."""
    port: int
    """Where whoever called calls from."""
    caller: str | None
    writers: list[asyncio.StreamWriter] = field(default_factory=list)


class Network:
    """``pids``: the processes by name, to tell who calls."""

    def __init__(self, out: Path, names: Iterable[str], pids: Callable[[], dict[str, int]]) -> None:
        self._out, self._pids = out, pids
        self._loop = asyncio.new_event_loop()
        self._links: set[Link] = set()
        self._cut: set[tuple[str, str]] = set()
        """(From, to) between whom nothing passes."""
        self._healed = asyncio.Event()
        self._behind: dict[str, str] = {}
        threading.Thread(target=self._loop.run_forever, name="network", daemon=True).start()
        doors = {name: self._await(self._open(name)) for name in names}
        (out / FILE).write_text(json.dumps(doors))

    def _await(self, work):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _open(self, host: str) -> dict[str, str]:
        self._behind[host] = f"127.0.0.1:{free_port()}"
        front = await asyncio.start_server(lambda r, w: self._serve(host, None, r, w), "127.0.0.1", 0)
        back = await asyncio.start_server(lambda r, w: self._serve(COORDINATOR, host, r, w), "127.0.0.1", 0)
        ports = [server.sockets[0].getsockname()[1] for server in (front, back)]
        return {
            "listen": self._behind[host],
            "advertise": f"127.0.0.1:{ports[0]}",
            "coordinator": f"127.0.0.1:{ports[1]}",
        }

    # -- what passes ----------------------------------------------------------------------------------------------

    async def _serve(
        self, door: str, caller: str | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        link = Link(door, writer.get_extra_info("peername")[1], caller, [writer])
        self._links.add(link)
        try:
            while self._held(link, to_door=True) or self._held(link, to_door=False):
                await self._healed.wait()  # it takes words both ways to make a connection
            address = self._behind.get(door) or coordinator_of(self._out / "state") or ""
            host, _, port = address.rpartition(":")
            there, onward = await asyncio.open_connection(host, int(port))
            link.writers.append(onward)
            await asyncio.gather(
                self._pass(link, reader, onward, to_door=True), self._pass(link, there, writer, to_door=False)
            )
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # nobody listens there, or the network itself is at its end
        finally:
            for each in link.writers:
                each.transport.abort()
            self._links.discard(link)

    async def _pass(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_door: bool
    ) -> None:
        while True:
            data = await reader.read(1 << 16)
            while self._held(link, to_door=to_door):
                await self._healed.wait()
            if not data:
                raise ConnectionError("its end has come")
            writer.write(data)
            await writer.drain()

    def _held(self, link: Link, *, to_door: bool) -> bool:
        if not self._cut:
            return False
        caller = self._caller(link)
        return ((caller, link.door) if to_door else (link.door, caller)) in self._cut

    def _caller(self, link: Link) -> str:
        """By the process that has the other end. Looked up only when it matters."""
        if link.caller is None:
            for name, pid in self._pids().items():
                try:
                    ports = {c.laddr.port for c in psutil.Process(pid).net_connections("tcp") if c.raddr}
                except psutil.Error:
                    continue
                if link.port in ports:
                    link.caller = name
        return link.caller or "somebody"

    # -- harm -----------------------------------------------------------------------------------------------------

    def cut(self, host: str, others: Iterable[str], *, into: bool, out: bool) -> None:
        """From now on nothing comes from ``others`` into the host, nothing out of it to them, or neither."""
        pairs = {(other, host) for other in others if into} | {(host, other) for other in others if out}

        async def do() -> None:
            self._healed.clear()
            self._cut = pairs

        self._await(do())

    def heal(self, *, broken: bool) -> None:
        """``broken``: connections between those who were cut off do not survive it."""

        async def do() -> None:
            apart = {frozenset(pair) for pair in self._cut}
            victims = [k for k in self._links if frozenset((self._caller(k), k.door)) in apart] if broken else []
            self._cut = set()
            for link in victims:
                for writer in link.writers:
                    writer.transport.abort()
            self._healed.set()

        self._await(do())

    def end(self) -> None:
        async def do() -> None:
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._await(do())
        self._loop.call_soon_threadsafe(self._loop.stop)


class HostsBehindDoors(LocalHosts):
    """As ``LocalHosts``, where ``out`` has the doors of a network; without, the same."""

    def __init__(self, out: Path, **about: object) -> None:
        super().__init__(out / "state", **about)  # type: ignore[arg-type]
        path = out / FILE
        self._doors = json.loads(path.read_text()) if path.exists() else {}

    def command(self, name: str) -> list[str]:
        words, door = super().command(name), self._doors.get(name)
        if door is None:
            return words
        words[words.index("--coordinator") + 1] = door["coordinator"]
        return [*words, "--listen", door["listen"], "--advertise", door["advertise"]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
