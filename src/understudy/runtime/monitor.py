"""A host as monitor: it follows the heartbeats of the hosts that run its units and tells the coordinator what it sees.

What counts as a miss, and whom to watch for how long, is decided by ``core.monitoring``."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pyarrow.flight as flight

from understudy.core.detection import Tick
from understudy.core.monitoring import Assigned, Heard, Monitor, Report, monitored
from understudy.runtime import messages, wire

if TYPE_CHECKING:
    from understudy.runtime.host import Host


class MonitorRole:
    def __init__(self, host: Host) -> None:
        self.host = host
        self._changed = threading.Condition()
        """Taken before ``host.changed``, never after it."""
        self._machine: Monitor | None = None
        self._interval_s = 0.0

    def agree(self) -> None:
        """Watch whom the newest plan says. Nothing is started on a host that is nobody's monitor."""
        with self._changed:
            with self.host.changed:
                taken = self.host.taken
                if taken is None:
                    return  # the plan of a job that was taken back meanwhile
                hosts = monitored(self.host.topology, self.host.directory.primaries, self.host.name)
                processes = dict(self.host.processes)
                self._interval_s, misses = taken.heartbeat_s, taken.heartbeat_misses
            if self._machine is None:
                if not hosts:
                    return
                self._machine = Monitor(interval_s=self._interval_s, misses=misses)
                self._start(self._tick, self._machine)
            before = dict(self._machine.watched)
            self._report(self._machine.handle(Assigned(hosts, processes), time.monotonic()))
            for host, process in self._machine.watched.items():
                if before.get(host) != process:
                    self._start(self._follow, self._machine, host, process)
            self._changed.notify_all()

    def forget(self) -> None:
        """The job is over: watch nobody."""
        with self._changed:
            self._machine = None
            self._changed.notify_all()

    def _start(self, work: object, *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, name="monitor", daemon=True).start()  # type: ignore[arg-type]

    def _tick(self, machine: Monitor) -> None:
        with self._changed:
            while machine is self._machine:
                self._report(machine.handle(Tick(), time.monotonic()))
                deadline = machine.next_deadline()
                self._changed.wait(self._interval_s if deadline is None else max(0.01, deadline - time.monotonic()))

    def _follow(self, machine: Monitor, host: str, process: str) -> None:
        """Hear one process of a host for as long as it is watched, by connections of its own."""

        def watched() -> bool:
            return machine is self._machine and machine.watched.get(host) == process

        while watched():
            config = self.host.config
            peer = wire.Peer(self.host.hosts[host], config.token, self.host.meter, config.tls)
            request = messages.Pulse(self._interval_s, process, monitor=self.host.name)
            try:
                for _ in peer.stream(request):
                    with self._changed:
                        if not watched():
                            return
                        self._report(machine.handle(Heard(host, process), time.monotonic()))
            except (flight.FlightError, OSError):
                pass  # then it is not heard, which will be noticed
            finally:
                peer.close()
            time.sleep(self._interval_s)

    def _report(self, reports: list[Report]) -> None:
        for report in reports:
            view = {h: (report.processes[h], t.misses, t.failed) for h, t in report.view.items()}
            self.host.report(messages.Seen(view))
