"""Who is alive: heartbeats with a deadline, and connections whose breaking counts at once.

Gu et al. 2009, Section 4: misses in a row are a failure, and a host that answers again is reported too. A watcher
that was itself held up (a starved or paused process) cannot tell who else was: when a tick comes late, the lateness
is taken off everybody's account.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GRACE = 0.5
"""A heartbeat is missed when it is this share of an interval late. Without it the network's jitter would be a miss now
and then; with much more, a failure takes that much longer to notice."""

# As in ``policies.base``, nobody changes an event or an effect; they are only not frozen because there are so many.


@dataclass(slots=True)
class Connected:
    host: str


@dataclass(slots=True)
class Beat:
    host: str


@dataclass(slots=True)
class Broken:
    """The connection to the host ended: a killed process, or a closed door."""

    host: str
    reason: str


@dataclass(slots=True)
class Tick:
    pass


Event = Connected | Beat | Broken | Tick


@dataclass(slots=True)
class Missed:
    """``misses`` heartbeats in a row did not come; not yet a failure."""

    host: str
    misses: int


@dataclass(slots=True)
class Failed:
    host: str
    reason: str


@dataclass(slots=True)
class Returned:
    host: str


Effect = Missed | Failed | Returned


@dataclass(frozen=True, slots=True)
class Trouble:
    """How a host stands with somebody who watches it and does not hear from it."""

    misses: int = 0
    failed: str | None = None
    """Why it was given up, if it was."""


View = Mapping[str, Trouble]
"""All that a watcher has to say: host -> its trouble. Whoever is not in it is well."""


@dataclass(slots=True)
class _Watch:
    last_beat: float
    misses: int = 0
    failed: str | None = None


class Detector:
    """``interval_s`` between heartbeats, ``misses`` in a row make a failure."""

    def __init__(self, *, interval_s: float, misses: int) -> None:
        if interval_s <= 0 or misses < 1:
            raise ValueError(f"heartbeat interval_s={interval_s}, misses={misses}: both must be positive")
        self.interval_s = interval_s
        self.misses = misses
        self._watches: dict[str, _Watch] = {}
        self._next_tick: float | None = None
        """When the driver was last told to come back; later than that is the driver's own delay."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Tick):
            due = self._next_tick
            if due is not None and now - due > self.interval_s / 2:
                for each in self._watches.values():
                    if each.last_beat < due:  # whoever was heard since was not held up
                        each.last_beat += now - due
            return self._overdue(now)
        watch = self._watches.get(event.host)
        if isinstance(event, Broken):
            if watch is None or watch.failed is not None:
                return []
            watch.failed = event.reason
            return [Failed(event.host, event.reason)]
        if watch is None:
            self._watches[event.host] = _Watch(last_beat=now)
            return []
        watch.last_beat = now
        if watch.failed is None and watch.misses == 0:
            return []
        watch.misses, watch.failed = 0, None
        return [Returned(event.host)]

    def _overdue(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for host, watch in self._watches.items():
            overdue = (now - watch.last_beat) / self.interval_s - GRACE + 1e-6  # a tick at the very deadline counts
            if overdue < watch.misses + 1 or watch.failed is not None:
                continue
            watch.misses = int(overdue)
            if watch.misses >= self.misses:
                watch.failed = f"{watch.misses} heartbeats of {self.interval_s * 1000:.0f} ms missed"
                effects.append(Failed(host, watch.failed))
            else:
                effects.append(Missed(host, watch.misses))
        return effects

    def heard_at(self, host: str) -> float:
        """When a host that is watched was heard last."""
        return self._watches[host].last_beat

    def forget(self, host: str) -> None:
        """Watch it no longer."""
        self._watches.pop(host, None)

    def view(self) -> View:
        """Who is in trouble, as things stand."""
        troubled = {h: w for h, w in self._watches.items() if w.misses or w.failed is not None}
        return {host: Trouble(w.misses, w.failed) for host, w in troubled.items()}

    def next_deadline(self) -> float | None:
        deadline: float | None = None
        for watch in self._watches.values():
            due = watch.last_beat + (watch.misses + 1 + GRACE) * self.interval_s
            if watch.failed is None and (deadline is None or due < deadline):
                deadline = due
        self._next_tick = deadline
        return deadline
