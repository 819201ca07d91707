"""What breaks in a data centre, how often, how much at once and for how long: Meteor Shower (2012), Section II-B1.
``Floor`` lets it come over the hosts and reports what a coordinator would notice of it.

Table I of the paper counts *node failures a year per 100 nodes* (AFN100) by cause, in a Google data centre of 2,400
nodes in 30 racks of 80, and in the Abe cluster. The counts are kept here to the letter; one event of most causes takes
many nodes at once, and the paper's own arithmetic says which:

- **network** (>300; 7,640 / 2,400 nodes = 318): 1 rewiring of 5 % of the nodes, 20 rack failures and 5 unsteady racks
  of 80 nodes, 15 router failures or reloads and 8 maintenances of 10 % of the nodes each.
- **environment** (100-150; 125 here): the paper gives no arithmetic. Its source [8] (Dean's keynote, "typical first
  year of a cluster") lists one failed power distribution unit and one move of racks a year, 500-1,000 machines each:
  62 per 100 nodes, as bursts over adjacent racks. The rest are single machines that overheat. The same list has the
  whole room overheating every other year, for a day or two: left out, as it would silence every policy alike for
  longer than all the rest together, and hide what is to be compared.
- **ooops** (100), **disk** (1.7-8.6; 5 here), **memory** (1.3): one node each.
- **Abe** (network 250, ooops 40, disk 2-6: 4 here; no figures for the others): the paper does not say what its
  network events were; they have Google's mixture here, scaled down.

*About 10 % of failures are part of a burst*, the paper says after [11], and Table I says otherwise: all of its network
and half of its environment, 381 of 550 (69 %), come in bursts. Both can be true, for they count different things.
Counted as events, bursts are 1 % of Table I (51 of some 4,100 a year); and [11] counts every disappearance of a node,
restarts and upgrades included, of which there are many more single ones than Table I has failures. The table is what
is modelled: its bursts are what the paper is about, and they are the harder case for every policy.

How long things last is not in Table I, but for racks (1-6 hours, in the text). Where [8] says something it is taken;
where nobody does, the choice is marked as such beside the number. Spans that cover orders of magnitude are drawn evenly
on a logarithmic scale, the others evenly.

One seed is one story on any machine: only ``Random.random()`` is drawn from, which Python promises to keep, each kind
of event from a stream of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from understudy.core.failover import Event, HostCleared, HostJoined, HostLost, HostSuspected
from understudy.sim.engine import Engine

YEAR_S = 365 * 86400.0
REFERENCE_HOSTS, REFERENCE_RACKS = 2400, 30
"""The paper's data centre, by which its events a year are turned into failures per 100 nodes."""
CAUSES = ("network", "environment", "ooops", "disk", "memory")
_HOUR, _MINUTE = 3600.0, 60.0


@dataclass(frozen=True)
class Failure:
    """One event: these hosts are gone from ``at_s`` on, for ``duration_s``."""

    at_s: float
    hosts: tuple[int, ...]
    """Numbers of hosts as they stand on the floor: a rack's are consecutive, and racks follow each other."""
    duration_s: float
    cause: str
    kind: str = ""
    """Which of its cause's events this is, such as ``rack failure``."""
    process_survives: bool = False
    """The host was only cut off: it returns with all that it was running."""
    disk_survives: bool = True
    """The host returns with the checkpoints it held. Without its disk no process survives."""
    announced: bool = False
    """Only the process died: its broken connections tell within milliseconds. Else heartbeats must be missed."""


@dataclass(frozen=True)
class Kind:
    """One kind of event. It is rare or frequent such that ``afn100`` nodes fail by it per year and 100 nodes, however
    large the data centre is."""

    name: str
    cause: str
    afn100: float
    reach: Literal["host", "rack"] | float
    """What one event takes: a host, a rack, or a share of the nodes: those of adjacent racks, as what fails is a
    router or a power line above them."""
    lasts_s: tuple[float, float]
    """The shortest and the longest duration."""
    logarithmic: bool = False
    process_survives: bool = False
    disk_survives: bool = True
    announced: bool = False

    def size(self, hosts: int, racks: int) -> float:
        """Hosts taken by one event, on average. A share is one of at most 2,400 nodes: a larger data centre has more
        routers, not larger ones."""
        if self.reach == "host":
            return 1.0
        if self.reach == "rack":
            return hosts / racks
        return float(max(1, round(self.reach * min(hosts, REFERENCE_HOSTS))))

    def events(self, hosts: int, racks: int, days: float) -> float:
        """Events expected."""
        return self.afn100 / 100 * hosts * (days * 86400 / YEAR_S) / self.size(hosts, racks)

    def story(self, hosts: int, racks: int, days: float, seed: int) -> Iterator[Failure]:
        """The events of one life, in order of time: independent of each other, at a steady rate (Poisson)."""
        expected = self.events(hosts, racks, days)
        if expected <= 0:
            return
        random = Random(f"{seed}/{self.name}").random
        gap_s = days * 86400 / expected
        at_s = -gap_s * math.log(1.0 - random())
        while at_s < days * 86400:
            if self.reach == "host":
                taken: tuple[int, ...] = (int(random() * hosts),)
            else:
                rack = int(random() * racks)
                first = rack_begin(rack, hosts, racks)
                if self.reach == "rack":
                    taken = tuple(range(first, rack_begin(rack + 1, hosts, racks)))
                else:
                    taken = tuple((first + i) % hosts for i in range(int(self.size(hosts, racks))))
            shortest, longest = self.lasts_s
            part = random()
            if self.logarithmic:
                duration_s = shortest * (longest / shortest) ** part
            else:
                duration_s = shortest + (longest - shortest) * part
            yield Failure(
                at_s=at_s,
                hosts=taken,
                duration_s=duration_s,
                cause=self.cause,
                kind=self.name,
                process_survives=self.process_survives,
                disk_survives=self.disk_survives,
                announced=self.announced,
            )
            at_s -= gap_s * math.log(1.0 - random())


@dataclass(frozen=True)
class FailureModel:
    """A data centre's ways to fail, by name."""

    name: str
    kinds: tuple[Kind, ...] = ()

    def afn100(self) -> dict[str, float]:
        """Node failures a year per 100 nodes, by cause: the paper's Table I."""
        return {cause: sum(k.afn100 for k in self.kinds if k.cause == cause) for cause in CAUSES}

    def story(self, *, hosts: int, racks: int, days: float, seed: int) -> list[Failure]:
        """Everything that fails in ``days`` days, in order of time."""
        events = [failure for kind in self.kinds for failure in kind.story(hosts, racks, days, seed)]
        return sorted(events, key=lambda failure: failure.at_s)


def rack_begin(rack: int, hosts: int, racks: int) -> int:
    """The first host of a rack. Racks differ by at most one host where they do not come out even."""
    return -(-rack * hosts // racks)


def host_names(hosts: int, racks: int, *, packed: bool) -> list[str]:
    """A name for each host on the floor. In the order of names hosts come from one rack after the other by turns, or
    with ``packed`` rack by rack."""
    names = []
    for host in range(hosts):
        rack = host * racks // hosts
        slot = host - rack_begin(rack, hosts, racks)
        names.append(f"r{rack:05}-n{slot:05}" if packed else f"n{slot:05}-r{rack:05}")
    return names


def _afn100(events_a_year: float, nodes_each: float) -> float:
    """The paper's arithmetic: so many events a year in its data centre, of so many nodes each."""
    return events_a_year * nodes_each / REFERENCE_HOSTS * 100


_RACK_NODES = REFERENCE_HOSTS / REFERENCE_RACKS
_TENTH = REFERENCE_HOSTS * 0.1
_POWER_NODES = 750.0  # [8]: 500-1,000

_NETWORK = (
    # [8] has the 5 % down by turns over two days; the paper counts them as one event. How long: chosen, as a rack.
    Kind("rewiring", "network", _afn100(1, REFERENCE_HOSTS * 0.05), 0.05, (_HOUR, 6 * _HOUR), process_survives=True),
    Kind("rack failure", "network", _afn100(20, _RACK_NODES), "rack", (_HOUR, 6 * _HOUR), process_survives=True),
    # Half the packets lost: the paper counts it as down. How long: chosen, until somebody sees to it.
    Kind("rack unsteady", "network", _afn100(5, _RACK_NODES), "rack", (10 * _MINUTE, _HOUR), process_survives=True),
    # The paper's 15 are 12 reloads of "a couple of minutes" and 3 failures of "an hour" in [8].
    Kind("router reload", "network", _afn100(12, _TENTH), 0.1, (_MINUTE, 5 * _MINUTE), process_survives=True),
    Kind("router failure", "network", _afn100(3, _TENTH), 0.1, (0.5 * _HOUR, 1.5 * _HOUR), process_survives=True),
    # [8]: about 30 minutes.
    Kind("maintenance", "network", _afn100(8, _TENTH), 0.1, (15 * _MINUTE, 45 * _MINUTE), process_survives=True),
)
_POWER_AFN100 = _afn100(2, _POWER_NODES)
_ENVIRONMENT = (
    # [8]: about 6 hours. Moved racks come "with plenty of warning" there, which is not made use of here.
    Kind("power failure", "environment", _POWER_AFN100, _POWER_NODES / REFERENCE_HOSTS, (4 * _HOUR, 8 * _HOUR)),
    # How long: chosen, until it has cooled down or somebody has cleared its fan.
    Kind("overheated", "environment", 125 - _POWER_AFN100, "host", (20 * _MINUTE, 4 * _HOUR), logarithmic=True),
)
# A process that is started again, by its supervisor at once or by a person later: chosen.
_OOOPS = Kind("ooops", "ooops", 100, "host", (20.0, 15 * _MINUTE), logarithmic=True, announced=True)
# Until the part is replaced: chosen. The paper counts uncorrectable errors only.
_DISK = Kind("disk", "disk", 5, "host", (4 * _HOUR, 48 * _HOUR), logarithmic=True, disk_survives=False)
_MEMORY = Kind("memory", "memory", 1.3, "host", (_HOUR, 24 * _HOUR), logarithmic=True)

_NETWORK_AFN100 = sum(kind.afn100 for kind in _NETWORK)
_ABE = (
    *(replace(kind, afn100=kind.afn100 * 250 / _NETWORK_AFN100) for kind in _NETWORK),
    replace(_OOOPS, afn100=40),
    replace(_DISK, afn100=4),
)

MODELS: Mapping[str, FailureModel] = {
    "google": FailureModel("google", (*_NETWORK, *_ENVIRONMENT, _OOOPS, _DISK, _MEMORY)),
    "abe": FailureModel("abe", _ABE),
    "none": FailureModel("none"),
}


def failure_model(failures: str | FailureModel) -> FailureModel:
    """A model by its name, or one of the caller's own as it is."""
    if isinstance(failures, FailureModel):
        return failures
    if failures not in MODELS:
        known = ", ".join(repr(name) for name in MODELS)
        raise ValueError(f"failures={failures!r} is not a known failure model; use one of {known}")
    return MODELS[failures]


# -- over hosts ---------------------------------------------------------------------------------------------------


class Host:
    """One machine. ``incarnation`` and ``disk`` are raised with every lost process and disk."""

    __slots__ = ("beat_phase_s", "died", "disk", "episode", "hits", "incarnation", "lost", "name", "suspected")

    def __init__(self, name: str, beat_phase_s: float) -> None:
        self.name, self.beat_phase_s = name, beat_phase_s
        self.incarnation = self.disk = 0
        self.hits = 0  # failures that keep it down
        self.episode = 0  # raised whenever it goes down or comes back: older news of it is stale
        self.died = self.suspected = self.lost = False

    @property
    def up(self) -> bool:
        return self.hits == 0


class Floor:
    """The hosts, as a story of failures comes over them.

    ``tell`` is given what a coordinator learns: a host is suspected with its first missed heartbeat and lost with the
    last (as ``core.detection`` counts them), or is known to be lost at once where its connections break; it joins anew,
    or answers again. ``on_down`` and ``on_back`` are given the hosts that a failure took, at once, and released.
    """

    def __init__(
        self,
        engine: Engine,
        names: Sequence[str],
        *,
        heartbeat_s: float,
        misses: int,
        broken_s: float,
        tell: Callable[[Event], None],
        on_down: Callable[[Failure, frozenset[str]], None],
        on_back: Callable[[frozenset[str]], None],
    ) -> None:
        self.engine, self.heartbeat_s, self.misses, self.broken_s = engine, heartbeat_s, misses, broken_s
        self.tell, self.on_down, self.on_back = tell, on_down, on_back
        # Heartbeats are out of step with each other: the golden section keeps those of any few hosts apart.
        self.hosts = [Host(name, i * 0.6180339887 % 1 * heartbeat_s) for i, name in enumerate(names)]
        self.named = {host.name: host for host in self.hosts}

    def strike(self, failure: Failure) -> None:
        for index in failure.hosts:
            host = self.hosts[index]
            host.hits += 1
            if not (failure.process_survives and failure.disk_survives):
                host.incarnation, host.died = host.incarnation + 1, True
            if not failure.disk_survives:
                host.disk += 1
            if host.hits == 1:
                host.episode += 1
                self._watch(host, failure.announced)
        self.engine.after(failure.duration_s, self._repair, failure)
        self.on_down(failure, frozenset(self.hosts[i].name for i in failure.hosts))

    def _watch(self, host: Host, announced: bool) -> None:
        if announced:
            self.engine.after(self.broken_s, self._lose, host, host.episode)
            return
        beats = math.floor((self.engine.now - host.beat_phase_s) / self.heartbeat_s)
        last_beat_s = host.beat_phase_s + beats * self.heartbeat_s
        if self.misses > 1:
            self.engine.at(last_beat_s + self.heartbeat_s, self._suspect, host, host.episode)
        self.engine.at(last_beat_s + self.misses * self.heartbeat_s, self._lose, host, host.episode)

    def _suspect(self, host: Host, episode: int) -> None:
        if host.episode == episode:
            host.suspected = True
            self.tell(HostSuspected(host.name))

    def _lose(self, host: Host, episode: int) -> None:
        if host.episode == episode:
            host.lost = True
            self.tell(HostLost(host.name, "it does not answer"))

    def _repair(self, failure: Failure) -> None:
        back = []
        for index in failure.hosts:
            host = self.hosts[index]
            host.hits -= 1
            if host.up:
                host.episode += 1
                back.append(host)
        for host in back:
            if host.died:  # anew, also when nobody had noticed; what it holds is asked for at the job's begin only
                self.tell(HostJoined(host.name))
            elif host.lost:
                self.tell(HostJoined(host.name, returned=True))
            elif host.suspected:
                self.tell(HostCleared(host.name))
            host.died = host.suspected = host.lost = False
        self.on_back(frozenset(host.name for host in back))
