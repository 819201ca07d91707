"""The failover machine: it answers an event with the plan that follows from it, and with what the user should see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from understudy.core.failover.events import (
    MACHINE,
    UNDERSTUDY,
    Begin,
    Effect,
    Event,
    HostCleared,
    HostJoined,
    HostLost,
    HostSuspected,
    Publish,
    Say,
    StageThrew,
    StandbyReady,
    StandbyUnusable,
    StopJob,
    Switch,
    Tick,
    Turned,
)
from understudy.core.failover.placement import best_host, newest_holder
from understudy.core.numbers import Epoch, Generation
from understudy.core.plans import Plan, Standbys, Turn, UnitPlan
from understudy.core.policies import Policy, parse, spell
from understudy.core.topology import Topology, UnitShape

_FAILED = {UNDERSTUDY: "Understudy itself failed in {stage}", MACHINE: "the machine failed {stage}"}

AGAIN_S = 60.0
"""After how long a host is tried again that could not stand by for a unit. Shorter hammers a full disk."""
S = TypeVar("S", bound=Standbys)


class Failover:
    """One job's placement. A unit's generation never falls: restore it from the journal with ``adopt``."""

    def __init__(self, topology: Topology) -> None:
        self.topology = self._defined = topology
        """With the policies that count now; and as the job defines it."""
        self.plan = Plan()
        self._before: dict[str, Policy] = {}
        """As the job defined them when the plan was made that was adopted."""
        self.alive: dict[str, Mapping[str, Epoch]] = {}
        self._unusable: dict[tuple[str, str], float] = {}
        """(unit, host) pairs where the host could not stand by -> when it may be tried again; a new process of it may
        at once."""

    def define(self, topology: Topology) -> None:
        """The job is of another shape than it seemed: goals have been replaced by policies. Before anything begins."""
        self.topology = self._defined = topology

    @property
    def defined(self) -> dict[str, str]:
        """Unit -> its policy as the job defines it, to be journalled beside the plan: the job may be edited."""
        return {name: spell(shape.policy) for name, shape in self._defined.units.items()}

    def adopt(self, plan: Plan, defined: Mapping[str, str] | None = None) -> None:
        """Go on from a journalled plan: of a running job after the coordinator's own crash, or of a stopped one.
        ``defined``: the policies that the job defined then, where it may define others now."""
        self.plan = plan
        self._before = {name: parse(policy) for name, policy in (defined or {}).items()}
        self.topology = self.topology.under({n: parse(u.policy) for n, u in plan.units.items() if u.policy})

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, HostJoined):
            return self._joined(event)
        if isinstance(event, HostLost):
            return self._lost(event)
        if isinstance(event, HostSuspected):
            return self._rise(event.host, rising=True)
        if isinstance(event, HostCleared):
            return self._rise(event.host, rising=False)
        if isinstance(event, Begin):
            return self._begin(event)
        if isinstance(event, Switch):
            return self._switch(event)
        if isinstance(event, Tick):
            return self._try_again(now)
        unit = self.plan.units.get(event.unit)
        if unit is None or unit.generation != event.generation:
            return []  # news from a fenced generation
        if isinstance(event, StandbyReady):
            return self._ready_standby(event, unit)
        if isinstance(event, StandbyUnusable):
            return self._unusable_standby(event, unit, now)
        if isinstance(event, Turned):
            return self._turned(event, unit)
        return self._stage_threw(event, unit)

    # -- events ---------------------------------------------------------------------------------------------------

    def _begin(self, event: Begin) -> list[Effect]:
        turning = self._turning() if event.resume else {}
        self.topology = self._defined.under(turning)
        units: dict[str, UnitPlan] = {}
        for name, shape in self.topology.units.items():
            old = self.plan.units.get(name, UnitPlan())
            holds = shape.policy.recovery in ("saved", "standby") or event.clean
            holder = self._holder(name) if event.resume and holds else None
            primary = holder or self._choose(name, units, wishes=(shape.primary,), avoid=())
            begun_before = event.resume and not event.clean and old.primary is not None
            if holder:
                start = "saved" if shape.policy.recovery == "saved" and not event.clean else "held"
            elif begun_before and not self.topology.waits_for_state(name):
                start = _without_state(shape)
            else:
                start = "fresh"
            units[name] = UnitPlan(generation=Generation(old.generation + 1), primary=primary, start=start)
            if name in turning:
                turn = Turn(policy=spell(self._defined.units[name].policy), serial=self.plan.serial + 1)
                units[name] = replace(units[name], policy=spell(turning[name]), turn=turn)
        for name in self.topology.units:
            unit = units[name]
            filled = self._add_standbys(name, units, unit)
            # Nothing acknowledged yet: a fresh unit can be begun anew from its sources by any standby.
            units[name] = replace(filled, ready=filled.standbys if unit.start == "fresh" else ())
        return [*self._publish(units), *self._say_unprotected(units)]

    def _turning(self) -> dict[str, Policy]:
        """When a job is resumed, its units are under the policies that it defines. One that is to be rebuilt by replay,
        and was under another policy, because it was switched or the job was edited since, must turn first: its
        producers have let go of what its state was made of. Unit -> what it was under."""
        turning = {}
        for name, unit in self.plan.units.items():
            now = self._defined.units[name].policy
            was = unit.protected_by(self._before.get(name, now))
            if now.recovery == "replay" and (was.recovery != "replay" or was.levels < now.levels):
                turning[name] = was
        return turning

    def _joined(self, event: HostJoined) -> list[Effect]:
        before: list[Effect] = []
        if event.host in self.alive and not event.returned:
            lost = self._lost(HostLost(event.host, "its process was replaced"))
            # No plan goes out in between: it would have the new process begin what the old one was in the middle of.
            before = [effect for effect in lost if not isinstance(effect, Publish)]
        self.alive[event.host] = dict(event.holds)
        self._unusable = {pair: at for pair, at in self._unusable.items() if pair[1] != event.host}
        if not self.plan.units:
            return before
        changes: dict[str, UnitPlan] = {}
        says: list[Effect] = []
        for name, unit in self.plan.units.items():
            if unit.primary in self.alive and unit.primary != event.host:
                continue
            empty = not event.returned and name not in event.holds
            if not event.returned and event.host in unit.all_standbys and (empty or event.host not in unit.ready):
                unit = changes[name] = unit.without(event.host)  # another process: no more than any other host
            if unit.primary == event.host:
                if event.returned:  # nobody took over meanwhile: it simply goes on
                    here = replace(unit.only(self.alive), rising=False)
                    if here != unit:
                        changes[name] = here
                    continue
                shape = self.topology.units[name]
                waits = self.topology.waits_for_state(name)
                if empty and unit.ready and waits:
                    changes[name] = replace(unit, primary=None)  # somebody who is away has what this one lost
                    continue
                if shape.policy.recovery == "saved":
                    start = _without_state(shape) if empty and not waits else "saved"
                else:
                    start = "held" if waits else _without_state(shape)
                changes[name] = self._begin_on(unit, event.host, start)
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
        spares = self.spares()
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
            elif event.host in unit.all_standbys and unit.primary in self.alive:
                changes[name] = unit.without(event.host)
        says += self._fill_standbys(changes)
        if not changes and event.host not in spares.values():
            return says
        return [*self._publish(changes), *says]

    def _rise(self, host: str, *, rising: bool) -> list[Effect]:
        changes = {
            name: replace(unit, rising=rising)
            for name, unit in self.plan.units.items()
            if unit.primary == host and unit.rising != rising and self._may_rise(name, unit, rising)
        }
        kind, does = ("rising", "starts to run") if rising else ("stood-down", "stands down")
        says = [Say(kind, f"{n}: {s} {does}", n, s) for n, u in changes.items() for s in u.ready[:1]]
        return [*self._publish(changes), *says] if changes else []

    def _may_rise(self, name: str, unit: UnitPlan, rising: bool) -> bool:
        return not rising or (bool(unit.ready) and self.topology.units[name].policy.rises)

    def _ready_standby(self, event: StandbyReady, unit: UnitPlan) -> list[Effect]:
        if unit.turn is not None and unit.turn.has(event.host, event.since):
            ready = replace(unit, turn=unit.turn.with_ready(event.host))
        elif unit.has(event.host, event.since) and event.host not in unit.ready:
            ready = unit.with_ready(event.host)
        else:
            return []
        if unit.primary not in self.alive:  # the news overtook the loss of the primary
            successor, promoted = self._succeed(event.unit, ready, {})
            changes = {event.unit: successor or ready}
            says = self._fill_standbys(changes)
            return [*self._publish(changes), promoted, *says]
        text = f"{event.unit}: standby ready on {event.host}"
        say = Say("standby-ready", text, unit=event.unit, host=event.host)
        changes = {event.unit: ready}
        says = self._fill_standbys(changes)
        return [*self._publish(changes), say, *says]

    def _turned(self, event: Turned, unit: UnitPlan) -> list[Effect]:
        if unit.turn is None or unit.turn.serial != event.serial:
            return []
        changes = {event.unit: self._finish_turn(event.unit, unit)}
        says: list[Effect] = [self._say_switched(event.unit)]
        if unit.primary not in self.alive:  # the news overtook the loss of the primary
            successor, restarted = self._succeed(event.unit, changes[event.unit], {})
            changes[event.unit] = successor or changes[event.unit]
            says.append(restarted)
        return [*self._publish(changes), *says]

    def _switch(self, event: Switch) -> list[Effect]:
        unit, new = self.plan.units[event.unit], event.policy
        now = self.topology.units[event.unit].policy
        if unit.primary not in self.alive:
            text = f"{event.unit}: cannot change its policy while it waits for a host; try again when it runs"
            return [Say("not-switched", text, event.unit)]
        if new == now:
            if unit.turn is None:
                return [self._say_switched(event.unit)]
            changes = {event.unit: replace(unit, turn=None)}
            says = self._fill_standbys(changes)  # where the old one had made room
            return [*self._publish(changes), self._say_switched(event.unit), *says]
        turn = Turn(policy=spell(new), serial=self.plan.serial + 1)
        if unit.turn is not None and unit.turn.policy == turn.policy:
            return [Say("switching", f"{event.unit}: is changing to {new.describe()} already", event.unit)]
        if _alike(now, new):  # who stands by now can go on doing so
            unit = unit.only([*unit.ready, *(s for s in unit.standbys if s not in unit.ready)][: new.backups])
            turn = turn.held_by(unit.standbys, unit.since, unit.ready)
        changes = {event.unit: replace(unit, turn=turn)}
        if _alike(now, new) or new.recovery == "gap":
            changes[event.unit] = self._finish_turn(event.unit, changes[event.unit])
            says = [self._say_switched(event.unit), *self._fill_standbys(changes)]
        else:
            say = Say("switching", f"{event.unit}: changes from {now.describe()} to {new.describe()}", event.unit)
            says = [say, *self._fill_standbys(changes)]
        return [*self._publish(changes), *says]

    def _finish_turn(self, name: str, unit: UnitPlan) -> UnitPlan:
        done = unit.turned()
        assert done.policy is not None
        self.topology = self.topology.under({name: parse(done.policy)})
        return done

    def _say_switched(self, name: str) -> Say:
        return Say("switched", f"{name}: now under {self.topology.units[name].policy.describe()}", name)

    def _unusable_standby(self, event: StandbyUnusable, unit: UnitPlan, now: float) -> list[Effect]:
        if not unit.has(event.host, event.since) and not (unit.turn and unit.turn.has(event.host, event.since)):
            return []
        self._unusable[event.unit, event.host] = now + AGAIN_S
        left = unit.without(event.host)
        changes = {event.unit: left}
        text = f"{event.host} cannot stand by ({event.cause})"
        if left.ready:
            say = Say("standby-lost", f"{event.unit}: {text}", event.unit, event.host)
        else:
            say = Say("unprotected", f"{event.unit} is UNPROTECTED: {text}", event.unit, event.host)
        filled = self._fill_standbys(changes)
        return [*self._publish(changes), say, *filled]

    def due(self, now: float) -> bool:
        """Some host may be tried again: a ``Tick`` is wanted."""
        return any(at <= now for at in self._unusable.values())

    def _try_again(self, now: float) -> list[Effect]:
        """A disk may have room by now, and a process that was killed can be started again."""
        self._unusable = {pair: at for pair, at in self._unusable.items() if at > now}
        changes: dict[str, UnitPlan] = {}
        filled = self._fill_standbys(changes)
        return [*self._publish(changes), *filled] if changes else []

    def _stage_threw(self, event: StageThrew, unit: UnitPlan) -> list[Effect]:
        successor, how = None, None
        if unit.threw != event.epoch and self.topology.units[event.unit].policy.recovery != "gap":
            successor, how = self._succeed(event.unit, unit, {})
        if successor is None:
            return [StopJob(event.stage, event.epoch, event.cause, event.whose)]
        changes = {event.unit: replace(successor, threw=event.epoch)}
        says = self._fill_standbys(changes)
        text = _FAILED.get(event.whose, "{stage} threw").format(stage=event.stage)
        text += f" at epoch {event.epoch}; trying once more on {successor.primary}"
        begun = [how] if how is not None and successor.start == "newest" else []  # its state is lost as well
        return [*self._publish(changes), Say("threw", text, event.unit), *begun, *says]

    # -- decisions ------------------------------------------------------------------------------------------------

    def _succeed(self, name: str, unit: UnitPlan, changes: Mapping[str, UnitPlan]) -> tuple[UnitPlan | None, Say]:
        """The successor of a unit whose primary is gone or fails; its generation fences everything that one still does.
        None when nobody can take over: the unit then waits for whoever returns first."""
        if unit.heir(self.alive) is None and unit.turn is not None and unit.turn.heir(self.alive) is not None:
            unit = self._finish_turn(name, unit)  # both protect it, and only the one to come has somebody left
        shape = self.topology.units[name]
        hosts: list[str] = []
        recovery = shape.policy.recovery
        heir = unit.heir(self.alive) if recovery in ("saved", "standby") else None
        if heir is not None:
            # What the other standbys hold stays good: nothing was acknowledged that they would need. Of a state from
            # some while ago, whoever takes over next has a newer one soon.
            rest = replace(unit.without(heir).only(self.alive), turn=self._again(unit.turn))
            start = "held" if recovery == "standby" else "saved"
            text = f"{name}: {heir} takes over" + ("" if recovery == "standby" else ", from its last saved state")
            generation = Generation(unit.generation + 1)
            successor = replace(rest, generation=generation, primary=heir, start=start, rising=False)
            return successor, Say("promoted", text, name, heir)
        if self.topology.waits_for_state(name):
            hosts = [h for h in (unit.primary, *unit.ready) if h]
        else:
            known = {**self.plan.units, **changes}
            heir = self._choose(name, known, wishes=(), avoid=(unit.primary,), any_host=True)
            if heir is not None:
                if recovery == "saved":
                    text = f"{name}: no saved state is left, starts anew on {heir}; rows in between are lost"
                elif recovery == "gap":
                    text = f"{name}: unprotected, starts anew on {heir}; rows in between are lost"
                else:
                    text = f"{name}: rebuilt on {heir} by replay"
                say = Say("restarted", text, name, heir)
                return self._begin_on(unit, heir, _without_state(shape)), say
        wanted = " or ".join(hosts) or "any host"
        return None, Say("waiting", f"{name} WAITS: nobody can take it over; it goes on when {wanted} returns", name)

    def spares(self) -> dict[str, str]:
        """For every unit that would be rebuilt by replay, the host that would do it: it can get ready."""
        chosen = {}
        for name, unit in self.plan.units.items():
            if self.topology.units[name].policy.recovery == "replay" and unit.primary in self.alive:
                host = self._choose(name, self.plan.units, wishes=(), avoid=(unit.primary, *unit.all_standbys))
                if host is not None:
                    chosen[name] = host
        return chosen

    def _begin_on(self, unit: UnitPlan, host: str, start: str) -> UnitPlan:
        """The unit's next generation, which begins on ``host`` and has nobody yet."""
        return UnitPlan(
            generation=Generation(unit.generation + 1),
            primary=host,
            start=start,
            policy=unit.policy,
            turn=self._again(unit.turn),
            threw=unit.threw,
        )

    def _again(self, turn: Turn | None) -> Turn | None:
        """A turn has to begin again with a new primary."""
        return turn and Turn(policy=turn.policy, serial=self.plan.serial + 1)

    def _fill_standbys(self, changes: dict[str, UnitPlan]) -> list[Effect]:
        """Give every protected unit that lacks standbys new ones, where hosts are free to hold it."""
        says: list[Effect] = []
        for name, shape in self.topology.units.items():
            unit = changes.get(name, self.plan.units[name])
            if unit.primary not in self.alive:
                continue
            if unit.turn is not None:
                changes[name], more = self._advance_turn(name, {**self.plan.units, **changes}, unit)
                says += more
                unit, shape = changes[name], self.topology.units[name]
            if unit.turn is not None and parse(unit.turn.policy).backups:
                continue  # those to come are near
            if len(unit.standbys) >= shape.policy.backups:
                continue
            filled = self._add_standbys(name, {**self.plan.units, **changes}, unit)
            for standby in filled.standbys[len(unit.standbys) :]:
                says.append(Say("new-standby", f"{name}: {standby} becomes its standby", name, standby))
            if filled != unit:
                changes[name] = filled
            elif not filled.standbys and name in changes:
                says += self._say_unprotected({name: changes[name]})
        return says

    def _add_standbys(self, name: str, units: Mapping[str, UnitPlan], unit: UnitPlan) -> UnitPlan:
        """The unit with its standbys filled up to as many as its policy asks for and there are hosts."""
        return self._fill(name, units, unit, self.topology.units[name].policy.backups, avoid=(unit.primary,))

    def _fill(
        self, name: str, units: Mapping[str, UnitPlan], some: S, count: int, *, avoid: tuple[str | None, ...]
    ) -> S:
        while len(some.standbys) < count:
            wishes = self.topology.units[name].standbys
            chosen = self._choose(name, units, wishes=wishes, avoid=(*avoid, *some.standbys))
            if chosen is None:
                break
            some = some.with_standby(chosen, self.plan.serial + 1)
        return some

    def _advance_turn(self, name: str, units: Mapping[str, UnitPlan], unit: UnitPlan) -> tuple[UnitPlan, list[Effect]]:
        """Choose who will protect the unit under its next policy; when all of them are ready, that one counts."""
        turn, says = unit.turn, list[Effect]()
        assert turn is not None
        count = parse(turn.policy).backups
        if not count:
            return unit, says  # the primary will report when its producers keep enough
        turn = self._fill(name, units, turn, count, avoid=(unit.primary, *unit.standbys))
        if not turn.standbys and unit.standbys:
            # A host holds one thing for a unit, so that the old must make room.
            unit = unit.held_by((), (), ())
            turn = self._fill(name, units, turn, count, avoid=(unit.primary,))
            text = f"{name} is UNPROTECTED while it changes its policy: there is no further host to prepare it on"
            says.append(Say("unprotected", text, name))
        unit = replace(unit, turn=turn)
        if turn.standbys and turn.ready == turn.standbys:
            unit = self._finish_turn(name, unit)
            says.append(self._say_switched(name))
        return unit, says

    def _say_unprotected(self, units: Mapping[str, UnitPlan]) -> list[Effect]:
        return [
            Say("unprotected", f"{name} is UNPROTECTED: no other living host can be its standby", name)
            for name, unit in units.items()
            if self.topology.units[name].policy.backups and unit.primary in self.alive and not unit.standbys
        ]

    def lacking(self, *, clean: bool) -> list[str]:
        """The units that a job cannot be resumed without, and that nobody holds a checkpoint of. ``clean``: as in
        ``Begin``."""
        return [
            name
            for name, shape in self._defined.under(self._turning()).units.items()
            if (shape.policy.recovery == "standby" or clean) and self._holder(name) is None
        ]

    def _holder(self, unit: str) -> str | None:
        """The living host with the newest whole checkpoint of ``unit``. Of a source, one that the plan counts on comes
        first: another may have led it once, and died with an epoch in its log that its successor cut otherwise. States
        are the same wherever they were made."""
        counted: tuple[str | None, ...] = ()
        if unit in self.plan.units and len(self.topology.inner(unit)) < len(self.topology.units[unit].stages):
            counted = (self.plan.units[unit].primary, *self.plan.units[unit].ready)
        return newest_holder(unit, self.alive, first=counted)

    def _choose(
        self,
        name: str,
        units: Mapping[str, UnitPlan],
        *,
        wishes: tuple[str | None, ...],
        avoid: tuple[str | None, ...],
        any_host: bool = False,
    ) -> str | None:
        """The best of the living hosts that can hold the unit. ``any_host``: else one that could not hold its state,
        which is better than nobody where it begins without any."""
        free = [h for h in self.alive if h not in avoid and (name, h) not in self._unusable]
        if not free and any_host:
            free = [h for h in self.alive if h not in avoid]
        return best_host(name, free, wishes=wishes, topology=self.topology, units=units)

    def _publish(self, changes: Mapping[str, UnitPlan]) -> list[Effect]:
        order = self.topology.units
        merged = {**self.plan.units, **changes}
        self.plan = Plan(serial=self.plan.serial + 1, units={name: merged[name] for name in order if name in merged})
        return [Publish(self.plan)]


def _alike(now: Policy, new: Policy) -> bool:
    """Standbys of the one can serve the other."""
    return now.recovery == new.recovery == "standby" and now.standby_runs == new.standby_runs


def _without_state(shape: UnitShape) -> str:
    """What a copy without any state starts from."""
    return "replay" if shape.policy.recovery == "replay" else "newest"
