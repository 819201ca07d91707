"""How a coordinator watches hosts: they join, beat, fall silent and come back.

What that means is decided by ``core.detection`` and ``core.monitoring``; what follows from it, by ``core.failover``.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.flight as flight

from understudy.core import detection, failover, monitoring
from understudy.core.monitoring import OWNER
from understudy.core.numbers import Epoch
from understudy.errors import JobError
from understudy.runtime import messages, wire
from understudy.runtime.wire import Refusal

if TYPE_CHECKING:
    from understudy.runtime.coordinator import Coordinator

CONNECTIONS = 3
"""How often in a row a host's connection may break, without a beat in between, while the host still listens."""
RECONNECT_S = 0.05
"""Pause before a broken connection is made again, lest one that breaks for ever be made all the time."""


class Watch:
    """Lives under its coordinator's lock."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator, self.changed, self.fleet = coordinator, coordinator.changed, coordinator.fleet
        config = coordinator.config
        self.interval_s = config.heartbeat_s
        self.detector = detection.Detector(interval_s=config.heartbeat_s, misses=config.heartbeat_misses)
        self.evidence = monitoring.Evidence()
        self.beats: dict[str, messages.Beat] = {}
        """The last of every host."""
        self.accepting = False
        """Hosts are turned away until it is known whether they belong to a job that still runs."""
        self._holds: dict[str, dict[str, Epoch]] = {}
        self._late: dict[str, int] = {}
        """Hosts that have not said yet that they have the newest plan, and which that was."""
        self._watching: set[str] = set()

    def begin(self) -> None:
        threading.Thread(target=self._tick, name="detector", daemon=True).start()

    # -- joining ---------------------------------------------------------------------------------------------------

    def join(self, call: messages.Join, body: bytes) -> wire.Reply[Any] | None:
        host, fleet = call.host, self.fleet
        with self.changed:
            if not self.accepting:
                return wire.refuse(Refusal.LATER)
            known = fleet.processes.get(host) == call.process
            if host in self._watching and known:
                return None
            if host in self._watching and fleet.addresses.get(host) == call.address:
                return wire.refuse(Refusal.LATER)  # its predecessor's connection has not been seen to break yet
            if not known:
                self.coordinator.readiness.replaced(host)
            fleet.processes[host], fleet.addresses[host], fleet.pids[host] = call.process, call.address, call.pid
            self._holds[host] = call.holds
        self.watch(host, joined=not (known and self.coordinator.begun))
        return None

    def watch(self, host: str, *, joined: bool) -> None:
        """Follow a host. ``joined``: it is new, or another process than before."""
        with self.changed:
            self._watching.add(host)
            address, process = self.fleet.addresses[host], self.fleet.processes[host]
        arguments = (host, address, process, joined)
        threading.Thread(target=self._follow, args=arguments, name=f"watch {host}", daemon=True).start()

    def _unit_holds(self, host: str) -> dict[str, Epoch]:
        """A host holds a unit when it holds all of its stages; the unit is then as old as the oldest of them."""
        stages = self._holds.get(host, {})
        return {
            name: min(stages[s] for s in unit.stages)
            for name, unit in self.coordinator.topology.units.items()
            if all(s in stages for s in unit.stages)
        }

    # -- hearing ---------------------------------------------------------------------------------------------------

    def _follow(self, host: str, address: str, process: str, joined: bool) -> None:
        """Read a host's beats until its connection breaks. It is made again if the host still listens: a connection
        can be lost on the way, too, and perhaps a plan with it."""
        peer = self.fleet.at(address)
        reason, broken = "the connection broke", 0
        while not self.coordinator.closed and self.fleet.addresses.get(host) == address:
            first = True
            try:
                self._send_job(peer)
                for beat in peer.stream(messages.Pulse(self.interval_s, process)):
                    if self.coordinator.closed:
                        return
                    self._on_beat(host, msgspec.json.decode(beat, type=messages.Beat), first=first, joined=joined)
                    first, joined, broken = False, False, 0
            except msgspec.MsgspecError as error:
                reason = f"it sent nonsense ({error})"
                break
            except (flight.FlightError, OSError):
                pass
            finally:
                peer.close()
            broken += 1
            if broken == CONNECTIONS or not wire.listens(address):
                break
            time.sleep(RECONNECT_S)
        with self.changed:
            if self.coordinator.closed or self.fleet.addresses.get(host) != address:
                return
            self._watching.discard(host)
            if not self.detector.handle(detection.Broken(host, reason), time.monotonic()):
                self.detector.handle(detection.Connected(host), time.monotonic())  # it was never heard at all
                self.detector.handle(detection.Broken(host, reason), time.monotonic())
            self.weigh(OWNER, self.detector.view())

    def _send_job(self, peer: wire.Peer) -> None:
        # A file that needs a session to be read waits for the host's Spark.
        reply = peer.call(self.coordinator.job_message(), self.coordinator.packed, timeout_s=120)
        if reply.refused:
            self.coordinator.fail(JobError(reply.text))

    def _on_beat(self, host: str, beat: messages.Beat, *, first: bool, joined: bool) -> None:
        coordinator = self.coordinator
        with self.changed:
            self.beats[host] = beat
            event = detection.Connected(host) if first else detection.Beat(host)
            news = self.detector.handle(event, time.monotonic())
            if joined:
                self.evidence.joined(host, time.monotonic())
                coordinator.handle(failover.HostJoined(host, self._unit_holds(host)))
            elif host in coordinator.failover.alive and (first or self._missed_the_plan(host, beat.serial)):
                coordinator.publish(only=host)
            if news or first:
                self.weigh(OWNER, self.detector.view())
            self.changed.notify_all()

    def _missed_the_plan(self, host: str, serial: int) -> bool:
        """A host still names an older plan a whole heartbeat after it was sent the newest: that call was lost."""
        newest = self.coordinator.failover.plan.serial
        if not self.coordinator.begun or serial >= newest:
            self._late.pop(host, None)
            return False
        if self._late.get(host) == newest:
            return True
        self._late[host] = newest
        return False

    def _tick(self) -> None:
        while not self.coordinator.closed:
            with self.changed:
                if self.detector.handle(detection.Tick(), time.monotonic()):
                    self.weigh(OWNER, self.detector.view())
                if self.coordinator.failover.due(time.monotonic()):
                    self.coordinator.handle(failover.Tick())
                self.coordinator.open_further()
                deadline = self.detector.next_deadline()
                wait = self.interval_s if deadline is None else max(0.01, deadline - time.monotonic())
                self.changed.wait(wait)

    # -- judging ---------------------------------------------------------------------------------------------------

    def seen(self, monitor: str, seen: messages.Seen) -> None:
        """What a monitor sees of the processes that there are now."""
        known = self.fleet.processes
        current = {host: sight for host, sight in seen.view.items() if known.get(host) == sight[0]}
        self.weigh(monitor, {host: detection.Trouble(misses, why) for host, (_, misses, why) in current.items()})

    def weigh(self, watcher: str, view: detection.View) -> None:
        """Act on what the coordinator itself or a monitor sees."""
        say, alive = self.coordinator.say, self.coordinator.failover.alive
        for effect in self.evidence.hear(watcher, view, time.monotonic()):
            if isinstance(effect, monitoring.Told):
                self._tell_sight(effect)
            elif isinstance(effect, monitoring.Doubted):
                text = f"{effect.monitor} cannot hear {' and '.join(effect.hosts)}, which answer the coordinator"
                say("doubted", f"{text}; its word does not count", host=effect.monitor)
            else:
                if isinstance(effect, detection.Returned) and effect.host not in alive:
                    say("returned", f"{effect.host} answers again", host=effect.host)
                self.coordinator.handle(monitoring.consequence(effect, alive))

    def _tell_sight(self, told: monitoring.Told) -> None:
        what, host, say = told.what, told.what.host, self.coordinator.say
        mine = told.watcher == OWNER
        by = "" if mine else f", says {told.watcher}"
        about: dict[str, Any] = {"host": host, "by": told.watcher}
        if isinstance(what, detection.Missed):
            count = "a heartbeat" if what.misses == 1 else f"{what.misses} heartbeats"
            say("missed", f"{host} missed {count}{by}", **about)
        elif mine and (isinstance(what, detection.Failed) or host not in self.coordinator.failover.alive):
            pass  # told with what comes of it
        elif isinstance(what, detection.Failed):
            say("failed", f"{host} has failed: {what.reason}{by}", **about)
        else:
            say("answers", f"{host} answers again{by}", **about)
