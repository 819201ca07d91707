"""Who runs what: placement, promotion, fencing by generation, and the choice of new standbys.

The machine's whole decision is one **plan**: for every unit its generation, primary and standby. Each change
makes a new plan with a higher serial; hosts are sent whole plans and make themselves agree with them, so a lost,
repeated or late message does no harm, and a restarted coordinator only has to send its last plan again.

Order of recovery needs no message: a recovering stage pulls its input from whoever the plan names, and waits
there until that one has recovered, so neighbours that failed together recover upstream first (Gu et al. 2009,
Theorem 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from understudy.core.topology import Topology


@dataclass(frozen=True)
class UnitPlan:
    """Where one unit runs. While a unit waits for a host to return, it goes on naming those that are gone."""

    generation: int = 0
    primary: str | None = None
    standby: str | None = None
    ready: bool = False
    """The standby holds a whole checkpoint, or none is needed because nothing was acknowledged upstream yet."""
    start: str = "fresh"
    """What the primary of this generation starts from: ``fresh`` (nothing), ``held`` (the checkpoint that it holds
    as standby or from an earlier run; fresh where none was ever taken) or ``newest`` (empty state at the newest
    input epoch: policy none)."""


@dataclass(frozen=True)
class Plan:
    serial: int = 0
    units: Mapping[str, UnitPlan] = field(default_factory=dict)


@dataclass(frozen=True)
class HostJoined:
    """A host is there. ``holds`` maps units to the newest epoch of a whole checkpoint found in its folder.
    ``returned``: it is the same process as before, with all that it was running, and was only out of touch."""

    host: str
    holds: Mapping[str, int] = field(default_factory=dict)
    returned: bool = False


@dataclass(frozen=True)
class HostLost:
    host: str
    reason: str


@dataclass(frozen=True)
class StandbyReady:
    """The primary reports that its standby has a whole checkpoint."""

    unit: str
    generation: int
    host: str


@dataclass(frozen=True)
class StandbyUnusable:
    """The primary could not store a checkpoint at its standby (disk full, say)."""

    unit: str
    generation: int
    host: str
    cause: str


@dataclass(frozen=True)
class StageThrew:
    """The user's code threw. It is tried once more on the other host, then the job stops."""

    unit: str
    generation: int
    stage: str
    epoch: int
    cause: str


@dataclass(frozen=True)
class Begin:
    """Enough hosts are there: place everything. ``resume`` takes up held checkpoints; without ``clean`` the units
    without protection start anew, as after a crash."""

    resume: bool = False
    clean: bool = False


Event = HostJoined | HostLost | StandbyReady | StandbyUnusable | StageThrew | Begin


@dataclass(frozen=True)
class Publish:
    """Journal the plan, then send it to every living host."""

    plan: Plan


@dataclass(frozen=True)
class Say:
    """Something the user should see. ``kind`` is machine-readable."""

    kind: str
    text: str
    unit: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class StopJob:
    stage: str
    epoch: int
    cause: str


Effect = Publish | Say | StopJob


class Failover:
    """One job's placement. ``unit_generation`` never falls: restore it from the journal with ``adopt``."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.plan = Plan()
        self.alive: dict[str, Mapping[str, int]] = {}
        self._unusable: set[tuple[str, str]] = set()
        """(unit, host) pairs that failed to store a checkpoint; not chosen again until the host joins anew."""
        self._threw: dict[str, int] = {}
        """Unit -> epoch at which its code threw once already."""

    def adopt(self, plan: Plan) -> None:
        """Go on from a journalled plan: of a running job after the coordinator's own crash, or of a stopped one."""
        self.plan = plan

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, HostJoined):
            return self._joined(event)
        if isinstance(event, HostLost):
            return self._lost(event)
        if isinstance(event, Begin):
            return self._begin(event)
        unit = self.plan.units.get(event.unit)
        if unit is None or unit.generation != event.generation:
            return []  # news from a fenced generation
        if isinstance(event, StandbyReady):
            if unit.standby != event.host or unit.ready:
                return []
            ready = replace(unit, ready=True)
            if unit.primary not in self.alive:  # the news overtook the loss of the primary
                successor, promoted = self._succeed(event.unit, ready, {})
                changes = {event.unit: successor or ready}
                says = self._fill_standbys(changes)
                return [*self._publish(changes), promoted, *says]
            text = f"{event.unit}: standby ready on {event.host}"
            return [
                *self._publish({event.unit: replace(unit, ready=True)}),
                Say("standby-ready", text, unit=event.unit, host=event.host),
            ]
        if isinstance(event, StandbyUnusable):
            return self._unusable_standby(event, unit)
        return self._stage_threw(event, unit)

    # -- events ---------------------------------------------------------------------------------------------------

    def _begin(self, event: Begin) -> list[Effect]:
        units: dict[str, UnitPlan] = {}
        for name, shape in self.topology.units.items():
            old = self.plan.units.get(name, UnitPlan())
            holder = self._holder(name) if event.resume and (shape.protected or event.clean) else None
            others = {k: v for k, v in units.items() if k != name}
            primary = holder or self._choose(name, others, wish=shape.primary, avoid=())
            lost_state = event.resume and holder is None and not shape.protected and not event.clean
            start = "held" if holder else ("newest" if lost_state else "fresh")
            units[name] = UnitPlan(generation=old.generation + 1, primary=primary, start=start)
        for name, shape in self.topology.units.items():
            if shape.protected:
                standby = self._choose(name, units, wish=shape.standby, avoid=(units[name].primary,))
                # Nothing acknowledged yet: a fresh unit can be begun anew from its sources by any standby.
                fresh = units[name].start == "fresh" and standby is not None
                units[name] = replace(units[name], standby=standby, ready=fresh)
        return [*self._publish(units), *self._say_unprotected(units)]

    def _joined(self, event: HostJoined) -> list[Effect]:
        before: list[Effect] = []
        if event.host in self.alive and not event.returned:
            before = self._lost(HostLost(event.host, "its process was replaced"))
        self.alive[event.host] = dict(event.holds)
        self._unusable = {pair for pair in self._unusable if pair[1] != event.host}
        if not self.plan.units:
            return before
        changes: dict[str, UnitPlan] = {}
        says: list[Effect] = []
        for name, unit in self.plan.units.items():
            if unit.primary in self.alive and unit.primary != event.host:
                continue
            if unit.primary == event.host:
                if event.returned:  # nobody took over meanwhile: it simply goes on
                    if unit.standby is not None and unit.standby not in self.alive:
                        changes[name] = replace(unit, standby=None, ready=False)
                    continue
                start = "held" if self.topology.units[name].protected else "newest"
                changes[name] = UnitPlan(generation=unit.generation + 1, primary=event.host, start=start)
                says.append(Say("restored", f"{name}: goes on on {event.host}, which has returned", name, event.host))
            else:
                successor, say = self._succeed(name, unit, changes)
                if successor is not None:
                    changes[name] = successor
                    says.append(say)
        says += self._fill_standbys(changes)
        # Even without a change the newcomer needs the plan, and peers its address.
        return [*before, *self._publish(changes), *says]

    def _lost(self, event: HostLost) -> list[Effect]:
        if event.host not in self.alive:
            return []
        del self.alive[event.host]
        says: list[Effect] = [Say("host-lost", f"{event.host} is lost: {event.reason}", host=event.host)]
        if not self.plan.units:
            return says
        changes: dict[str, UnitPlan] = {}
        for name, unit in self.plan.units.items():
            if unit.primary == event.host:
                successor, say = self._succeed(name, unit, changes)
                if successor is not None:
                    changes[name] = successor
                says.append(say)
            elif unit.standby == event.host and unit.primary in self.alive:
                changes[name] = replace(unit, standby=None, ready=False)
        says += self._fill_standbys(changes)
        if not changes:
            return says
        return [*self._publish(changes), *says]

    def _unusable_standby(self, event: StandbyUnusable, unit: UnitPlan) -> list[Effect]:
        if unit.standby != event.host:
            return []
        self._unusable.add((event.unit, event.host))
        changes = {event.unit: replace(unit, standby=None, ready=False)}
        text = f"{event.unit} is UNPROTECTED: {event.host} cannot store its checkpoints ({event.cause})"
        says: list[Effect] = [Say("unprotected", text, event.unit, event.host)]
        says += self._fill_standbys(changes)
        return [*self._publish(changes), *says]

    def _stage_threw(self, event: StageThrew, unit: UnitPlan) -> list[Effect]:
        again = self._threw.get(event.unit) == event.epoch
        if again or unit.standby is None or not unit.ready:
            return [StopJob(event.stage, event.epoch, event.cause)]
        self._threw[event.unit] = event.epoch
        successor, _ = self._succeed(event.unit, unit, {})
        if successor is None:
            return [StopJob(event.stage, event.epoch, event.cause)]
        changes = {event.unit: successor}
        says = self._fill_standbys(changes)
        text = f"{event.stage} threw at epoch {event.epoch}; trying once more on {successor.primary}"
        return [*self._publish(changes), Say("threw", text, event.unit), *says]

    # -- decisions ------------------------------------------------------------------------------------------------

    def _succeed(self, name: str, unit: UnitPlan, changes: Mapping[str, UnitPlan]) -> tuple[UnitPlan | None, Say]:
        """The successor of a unit whose primary is gone; its generation fences everything the old one still does.
        None when nobody can take over: the unit then waits for whoever returns first."""
        generation = unit.generation + 1
        if not self.topology.units[name].protected:
            heir = self._choose(name, {**self.plan.units, **changes}, wish=None, avoid=())
            if heir is not None:
                text = f"{name}: unprotected, starts anew on {heir}; rows in between are lost"
                return UnitPlan(generation=generation, primary=heir, start="newest"), Say("restarted", text, name, heir)
        elif unit.standby in self.alive and unit.ready:
            say = Say("promoted", f"{name}: {unit.standby} takes over", name, unit.standby)
            return UnitPlan(generation=generation, primary=unit.standby, start="held"), say
        hosts = " or ".join(h for h in (unit.primary, unit.standby if unit.ready else None) if h) or "any host"
        return None, Say("waiting", f"{name} WAITS: nobody can take it over; it goes on when {hosts} returns", name)

    def _fill_standbys(self, changes: dict[str, UnitPlan]) -> list[Effect]:
        """Give every protected unit without a standby a new one, where a host is free to hold it."""
        says: list[Effect] = []
        for name, shape in self.topology.units.items():
            unit = changes.get(name, self.plan.units[name])
            if not shape.protected or unit.primary not in self.alive or unit.standby is not None:
                continue
            merged = {**self.plan.units, **changes}
            standby = self._choose(name, merged, wish=shape.standby, avoid=(unit.primary,))
            if standby is not None:
                changes[name] = replace(unit, standby=standby, ready=False)
                says.append(Say("new-standby", f"{name}: {standby} becomes its standby", name, standby))
            elif name in changes:
                says += self._say_unprotected({name: changes[name]})
        return says

    def _say_unprotected(self, units: Mapping[str, UnitPlan]) -> list[Effect]:
        return [
            Say("unprotected", f"{name} is UNPROTECTED: no other living host can be its standby", name)
            for name, unit in units.items()
            if self.topology.units[name].protected and unit.primary in self.alive and unit.standby is None
        ]

    def _holder(self, unit: str) -> str | None:
        """The living host with the newest whole checkpoint of ``unit``."""
        held = [(epochs[unit], host) for host, epochs in self.alive.items() if unit in epochs]
        return max(held, key=lambda pair: (pair[0], pair[1]))[1] if held else None

    def _choose(
        self, name: str, units: Mapping[str, UnitPlan], *, wish: str | None, avoid: tuple[str | None, ...]
    ) -> str | None:
        """The wished-for host if it lives, else the living one with least to do (primaries weigh double)."""
        free = [h for h in self.alive if h not in avoid and (name, h) not in self._unusable]
        if wish in free:
            return wish

        def load(host: str) -> tuple[int, list[str]]:
            work = sum(2 * (u.primary == host) + (u.standby == host) for k, u in units.items() if k != name)
            return work, [host]

        return min(free, key=load, default=None)

    def _publish(self, changes: Mapping[str, UnitPlan]) -> list[Effect]:
        order = self.topology.units
        merged = {**self.plan.units, **changes}
        self.plan = Plan(serial=self.plan.serial + 1, units={name: merged[name] for name in order if name in merged})
        return [Publish(self.plan)]
