"""Several who watch, one who decides: monitors report what they see, the owner weighs it (Gu et al. 2009, Section 4).

A unit may name a **monitor**: a host that watches the unit's primary by heartbeats of its own, counts misses as the
coordinator does, and reports misses, failures and returns to it. A report is the monitor's whole **view**, never a
change of it, so that a lost or repeated one does no harm, and an owner that has forgotten everything is told again.

The owner acts on a monitor's word as on its own, as the paper's does, which has no other: a primary that answers the
coordinator but not the rest of the job would hold the job up for as long as that lasts. A false alarm is harmless,
because generations fence, and costs a takeover. Two rules keep it at one:

- The word of a monitor that was itself given up does not count until it is back.
- A monitor that gives up a second host that the coordinator hears well is *doubted*: that it hears nobody is its own
  trouble. Nothing that it says counts until it has taken all of that back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from understudy.core.detection import Beat, Connected, Detector, Failed, Missed, Returned, Tick, Trouble, View
from understudy.core.failover import HostCleared, HostJoined, HostLost, HostSuspected
from understudy.core.topology import Topology

Consequence = HostCleared | HostJoined | HostLost | HostSuspected

OWNER = "coordinator"
"""The watcher whom nobody has to name."""
DOUBT = 2
"""So many hosts that the owner hears well may a monitor not give up at once. With 1 a monitor would only ever repeat
what the owner knows; with more, one host with a broken network could take as many others out of the job."""


def monitored(topology: Topology, primaries: Mapping[str, str | None], monitor: str) -> tuple[str, ...]:
    """The hosts that ``monitor`` is to watch: those that run its units, but never itself."""
    hosts = [primaries.get(name) for name, unit in topology.units.items() if unit.monitor == monitor]
    return tuple(dict.fromkeys(h for h in hosts if h is not None and h != monitor))


# -- the one who watches --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assigned:
    """There is a new plan: watch these hosts. ``processes`` tells which process each host of the job is now."""

    hosts: tuple[str, ...]
    processes: Mapping[str, str]


@dataclass(frozen=True)
class Heard:
    """A heartbeat of this process of the host."""

    host: str
    process: str


@dataclass(frozen=True)
class Report:
    """Tell the owner: who is in trouble, and which process of each host was watched."""

    view: View
    processes: Mapping[str, str]


class Monitor:
    """What a host does for the units that name it as monitor. A broken connection is no failure here: the owner hears
    of a killed process at least as soon, and one connection may break for other reasons."""

    def __init__(self, *, interval_s: float, misses: int) -> None:
        self._detector = Detector(interval_s=interval_s, misses=misses)
        self._wanted: tuple[str, ...] = ()
        self._told: View = {}
        self.watched: dict[str, str] = {}
        """Host -> which process of it. One in trouble is watched until it answers or another process is there."""

    def handle(self, event: Assigned | Heard | Tick, now: float) -> list[Report]:
        if isinstance(event, Assigned):
            self._assign(event, now)
        elif isinstance(event, Tick):
            self._detector.handle(event, now)
        elif self.watched.get(event.host) == event.process:
            self._detector.handle(Beat(event.host), now)
            self._let_go()
        view = self._detector.view()
        again = isinstance(event, Assigned) and bool(view)  # the plan may come from an owner that has forgotten
        if view == self._told and not again:
            return []
        self._told = view
        return [Report(view, {host: self.watched[host] for host in view})]

    def _assign(self, event: Assigned, now: float) -> None:
        self._wanted = event.hosts
        for host, process in list(self.watched.items()):
            if event.processes.get(host) != process:
                self._forget(host)
        self._let_go()
        for host in event.hosts:
            if host not in self.watched and host in event.processes:
                self.watched[host] = event.processes[host]
                self._detector.handle(Connected(host), now)

    def _let_go(self) -> None:
        """Of those that are well and no longer ours."""
        troubled = self._detector.view()
        for host in list(self.watched):
            if host not in self._wanted and host not in troubled:
                self._forget(host)

    def _forget(self, host: str) -> None:
        del self.watched[host]
        self._detector.forget(host)

    def next_deadline(self) -> float | None:
        return self._detector.next_deadline()


# -- the one who decides --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What one watcher noticed, for people to see: the first miss, the failure, the return."""

    watcher: str
    what: Missed | Failed | Returned


@dataclass(frozen=True)
class Doubted:
    """A monitor's word no longer counts: the owner hears all of ``hosts``."""

    monitor: str
    hosts: tuple[str, ...]


Effect = Missed | Failed | Returned | Told | Doubted


@dataclass
class Health:
    """How a host stands, for people to see."""

    state: str = "well"
    """``well``, ``suspected`` or ``failed``."""
    misses: int = 0
    """In a row, by whoever counts most."""
    since: float | None = None
    """When the first of them, or the failure, was noticed."""
    failures: int = 0
    """How often it was given up."""
    returned: float | None = None
    """When it last came back."""
    by: dict[str, Trouble] = field(default_factory=dict)
    """Who says so."""


class Evidence:
    """The owner's judgement. ``Missed``, ``Failed`` and ``Returned`` among its effects are what to act on."""

    def __init__(self) -> None:
        self._views: dict[str, View] = {OWNER: {}}
        self._health: dict[str, Health] = {}
        self._doubted: set[str] = set()

    def hear(self, watcher: str, view: View, now: float) -> list[Effect]:
        """``watcher`` (a monitor, or OWNER) says how things stand."""
        if self.health(watcher).state == "failed":
            return []
        effects = _news(watcher, self._views.get(watcher, {}), view)
        self._views[watcher] = dict(view)
        for monitor in self._views:
            effects += self._doubt(monitor)
        return [*effects, *self._judge(now)]

    def joined(self, host: str, now: float) -> None:
        """Another process is there in its place: nothing that was said of the old one, or by it, counts any more."""
        self._views = {w: {h: t for h, t in view.items() if h != host} for w, view in self._views.items() if w != host}
        self._doubted.discard(host)
        before = self.health(host)
        returned = now if before.state == "failed" else before.returned
        self._health[host] = Health(failures=before.failures, returned=returned)

    def health(self, host: str) -> Health:
        return self._health.get(host, Health())

    def _doubt(self, monitor: str) -> list[Effect]:
        alone = tuple(
            host
            for host, trouble in self._views[monitor].items()
            if monitor != OWNER and trouble.failed is not None and host not in self._views[OWNER]
        )
        if not alone:
            self._doubted.discard(monitor)
        elif len(alone) >= DOUBT and monitor not in self._doubted:
            self._doubted.add(monitor)
            return [Doubted(monitor, alone)]
        return []

    def _judge(self, now: float) -> list[Effect]:
        """Put all views together. Giving up a monitor takes its word away, which may clear others; every round but
        the last takes away one view, so that there is a last."""
        effects: list[Effect] = []
        hosts = list(dict.fromkeys([*self._health, *(h for view in self._views.values() for h in view)]))
        settled = False
        while not settled:
            settled = True
            for host in hosts:
                said = self._judge_one(host, now)
                effects += said
                if any(isinstance(e, Failed) for e in said) and self._views.get(host):
                    del self._views[host]
                    settled = False
        return effects

    def _judge_one(self, host: str, now: float) -> list[Effect]:
        by = {w: v[host] for w, v in self._views.items() if host in v and w not in self._doubted}
        health = self._health.setdefault(host, Health())
        before, misses = health.state, max((t.misses for t in by.values()), default=0)
        reasons = [t.failed + ("" if w == OWNER else f", says {w}") for w, t in by.items() if t.failed is not None]
        grown = misses > health.misses
        health.by, health.misses = by, misses
        health.state = "failed" if reasons else "suspected" if by else "well"
        if before == "well" and by:
            health.since = now
        elif not by:
            health.since = None
        if health.state == "failed":
            if before == "failed":
                return []
            health.failures += 1
            return [Failed(host, reasons[0])]
        effects: list[Effect] = []
        if before == "failed" or (before == "suspected" and not by):
            health.returned = now if before == "failed" else health.returned
            effects.append(Returned(host))
        if by and (grown or effects):
            effects.append(Missed(host, misses))
        return effects


def _news(watcher: str, before: View, after: View) -> list[Effect]:
    """What is worth telling of the change from one view to the next."""
    news: list[Effect] = [Told(watcher, Returned(host)) for host in before if host not in after]
    for host, trouble in after.items():
        old = before.get(host)
        if trouble.failed is not None:
            if old is None or old.failed is None:
                news.append(Told(watcher, Failed(host, trouble.failed)))
        elif old is not None and old.failed is not None:
            news.append(Told(watcher, Returned(host)))
        elif old is None:
            news.append(Told(watcher, Missed(host, trouble.misses)))
    return news


def consequence(sight: Missed | Failed | Returned, alive: Collection[str]) -> Consequence:
    """What evidence about a host means for placement, while these hosts are counted on."""
    if isinstance(sight, Failed):
        return HostLost(sight.host, sight.reason)
    if isinstance(sight, Missed):
        return HostSuspected(sight.host)
    return HostCleared(sight.host) if sight.host in alive else HostJoined(sight.host, returned=True)
