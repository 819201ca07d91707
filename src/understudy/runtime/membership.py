"""A host and its coordinator: joining it, beating for it, telling it what happens here."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from understudy.core.numbers import before
from understudy.runtime import messages, wire

if TYPE_CHECKING:
    from understudy.runtime.host import Host

ORPHAN_S = 600.0
"""A host that has not heard from any coordinator for this long ends itself, so that none is left behind for ever.
Shorter would end a job whose coordinator is being repaired."""
JOINING_S = 0.3
"""How often a host that nobody watches asks to be watched."""
AGAIN_S = 0.2
"""After how long a report that was not heard is sent again."""
REFUSALS = 3
"""How often a host may be refused before it ends: its token is wrong."""


class Membership:
    def __init__(self, host: Host) -> None:
        self.host = host
        config = host.config
        self._coordinator = wire.Peer(config.coordinator, config.token, host.meter, config.tls)
        self._reports: deque[messages.Report] = deque()
        self._watchers = 0
        self._watched_at = time.monotonic()

    def begin(self) -> None:
        for work in (self._join, self._send_reports):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    # -- joining -----------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Join the coordinator, and join again whenever nobody has been watching."""
        refused = 0
        while True:
            if self._watchers == 0 and not self.host.resetting:
                try:
                    self._coordinator.call(self._about(), timeout_s=5)
                except OSError as error:
                    print(f"did not join yet: {error}", flush=True)  # a plan is changing what this host holds
                except flight.FlightError as error:
                    refused += wire.is_refused(error)
                    if refused == REFUSALS:
                        address = self.host.config.coordinator
                        print(f"the coordinator at {address} refused this host: {error}", flush=True)
                        self.host.end(4)
                    self._coordinator.close()
            if self._watchers == 0 and time.monotonic() - self._watched_at > ORPHAN_S:
                print(f"no coordinator for {ORPHAN_S:.0f} s; ending", flush=True)
                self.host.end(6)
            time.sleep(JOINING_S)

    def _about(self) -> messages.Join:
        host = self.host
        address = host.config.advertise or host.address
        return messages.Join(host.name, address, os.getpid(), host.process, host.roles.holds())

    # -- beating -----------------------------------------------------------------------------------------------------

    def pulse(self, get: messages.Pulse) -> flight.FlightDataStream:
        schema = pa.schema([("beat", pa.int8())])
        empty = pa.record_batch([pa.array([], pa.int8())], schema=schema)
        if get.process != self.host.process:
            raise flight.FlightUnavailableError("this process took the place of the one that is asked for")
        # A host that watches this one does not make up for a coordinator.
        beats = self._beats(get.interval_s) if get.monitor is None else self._bare_beats(get.interval_s)
        return flight.GeneratorStream(schema, ((empty, beat) for beat in beats))

    def _beats(self, interval_s: float) -> Iterator[bytes]:
        self._watchers += 1
        try:
            while True:
                yield msgspec.json.encode(self._beat())
                time.sleep(interval_s)
        finally:
            self._watchers -= 1
            self._watched_at = time.monotonic()

    def _bare_beats(self, interval_s: float) -> Iterator[bytes]:
        while True:
            yield b"[]"
            time.sleep(interval_s)

    def _beat(self) -> messages.Beat:
        host = self.host
        with host.changed:
            produced = {primary.name: before(primary.output.queue.next) for primary in host.primaries()}
            return messages.Beat(produced, sum(host.rows.values()), host.serial)

    # -- telling -----------------------------------------------------------------------------------------------------

    def report(self, what: messages.Reported) -> None:
        """Tell the coordinator, now or as soon as there is one."""
        with self.host.changed:
            self._reports.append(messages.Report.of(self.host.name, time.time(), what))
            self.host.changed.notify_all()

    def forget_reports(self) -> None:
        """They are of a job that is being forgotten. Call with ``host.changed`` held."""
        self._reports.clear()

    def _send_reports(self) -> None:
        while True:
            with self.host.changed:
                self.host.changed.wait_for(lambda: bool(self._reports))
                report = self._reports[0]
            try:
                heard = not self._coordinator.call(report, timeout_s=5).refused
            except flight.FlightError as error:
                heard = False
                if isinstance(error, flight.FlightServerError):  # it fails at this one: others must not wait for that
                    print(f"the coordinator cannot deal with {report.kind}: {error}", flush=True)
                    self._put_last(report)
            if not heard:
                time.sleep(AGAIN_S)
                continue
            with self.host.changed:
                if self._reports and self._reports[0] is report:  # not forgotten meanwhile
                    self._reports.popleft()

    def _put_last(self, report: messages.Report) -> None:
        with self.host.changed:
            if self._reports and self._reports[0] is report:
                self._reports.rotate(-1)
