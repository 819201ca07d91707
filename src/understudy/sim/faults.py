"""What can go wrong, done to a world: each fault is injected at an instant and undone at another.

A host's failure is *permitted* while the job is settled: everything placed, every standby ready, and every queue
trimmed past what was produced before the last failure. More failures than what protects the units at that time promises
to survive, before it has settled again, are *beyond* the promise; a story that contains them is not held against the
protocols. A unit without protection promises to go on, but not with all its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from understudy.core import failover
from understudy.core.numbers import Epoch, after
from understudy.core.plans import UnitPlan
from understudy.core.policies import Policy, parse
from understudy.sim.units import Unit

if TYPE_CHECKING:
    from understudy.sim.copies import Output
    from understudy.sim.nodes import Node, World

KINDS = (
    "kill", "power cut", "freeze", "partition", "isolation", "coordinator killed", "message loss", "late messages",
    "slow host", "full disk", "damaged checkpoint", "several killed",
)  # fmt: skip
HARMLESS = ("coordinator killed", "message loss", "late messages", "slow host")
"""These cost no host, and may come at any time."""
SWITCH = "switch"
"""No fault, but counted with them: a unit is to come under another policy."""
THROW, POISON = "throw", "poison"
"""A stage's code throws once, as if its host were to blame; or wherever it runs, until the user mends it."""
STOP, ALL_KILLED = "stop", "all killed"
"""The whole job ends, cleanly or not, and begins again from what is on disks."""
ENDINGS = (THROW, POISON, STOP, ALL_KILLED)
ANY_TIME = (*HARMLESS, STOP, ALL_KILLED)


@dataclass(frozen=True)
class Fault:
    kind: str
    at: float
    lasts_s: float
    pick: int
    """Chooses the victim: the protocol's state at that instant decides who is there to choose from."""


@dataclass(frozen=True)
class Switching:
    """The user asks for another policy."""

    unit: str
    policy: Policy
    at: float


class Saboteur:
    """Injects faults into one world, each at its time or, when it would cost a host, once the job has settled. Switches
    of policies come at their time, whatever else goes on."""

    PATIENCE_S = 60.0
    """A job that has not settled after so much time without harm is stuck, which liveness will say; no more harm."""

    def __init__(self, world: World, faults: list[Fault], switches: Sequence[Switching] = ()) -> None:
        self.world = world
        self.done: Counter[str] = Counter()
        self.beyond = False
        self.unprotected: set[str] = set()
        """Units that were lost while nothing protected them: what comes from them may lack rows."""
        self._promised: dict[str, int] = {}
        """What each unit could lose when the job was last settled."""
        self._counted_at: dict[str, float] = {}
        """Host -> when its loss was last counted."""
        self._unsettled = 0
        """Hosts given up since the job was last settled."""
        self._mark: Epoch | None = None
        self._waiting = list(faults)
        self._wait_began = 0.0
        self._stopped = False
        self._traps: set[tuple[str, str]] = set()
        """(host, stage) pairs whose code will throw."""
        self._sprung: set[str] = set()
        """Stages that have thrown, which nobody has decided on."""
        self._poison: tuple[str, Epoch] | None = None
        """Stage, and the epoch at which it throws wherever it runs."""
        self._tries = 0
        self._ending = False
        """The job has been told to end, and has not begun again."""
        self._ending_at = 0.0
        self._opening = False
        """It has begun again, and not everything is in place."""
        self.healed_at = max((s.at for s in switches), default=0.0)
        world.on_decision = self._before
        for switching in switches:
            world.engine.at(switching.at, self._switch, switching)
        if faults:
            world.engine.at(faults[0].at, self._next)

    @property
    def busy(self) -> bool:
        ending = self._ending and self.world.engine.now < self._ending_at + self.PATIENCE_S
        return bool(self._waiting) or ending

    def stop(self) -> None:
        """No more harm."""
        self._waiting.clear()
        self._stopped = True

    # -- counting failures against the promise ------------------------------------------------------------------------

    def _before(self, event: failover.Event) -> None:
        """The coordinator is about to decide what to do about ``event``."""
        if isinstance(event, (failover.HostLost, failover.HostJoined)) and self._is_loss(event):
            self._lost(event.host)
        elif isinstance(event, failover.StageThrew):
            self._threw(event)

    def _threw(self, event: failover.StageThrew) -> None:
        """A unit loses its primary, and no other does. The second time at the same epoch costs nothing more: the job
        stops."""
        self._sprung.discard(event.stage)
        unit = self.world.coordinator.failover.plan.units.get(event.unit)
        if unit is None or unit.generation != event.generation:
            return
        if (event.stage, event.epoch) == self._poison:
            self._tries += 1
            if self._tries > 2:
                self.world.violate(f"{event.stage} is tried again and again at epoch {event.epoch}")
            return
        self._one_more()
        if self._unsettled > self._promise(event.unit, unit):
            self.beyond = True

    def _is_loss(self, event: failover.HostLost | failover.HostJoined) -> bool:
        """A host is given up, or turns out to have been replaced since. One whose last words came after its death was
        noticed is heard of twice, but died once."""
        if event.host not in self.world.coordinator.failover.alive:
            return False
        host = self.world.hosts[event.host]
        known = self._counted_at.get(event.host, -1.0) >= host.died_at
        if isinstance(event, failover.HostJoined):
            if event.returned or known:
                return False
        elif known and not host.alive:
            return False
        self._counted_at[event.host] = self.world.engine.now
        return True

    def _lost(self, host: str) -> None:
        plan = self.world.coordinator.journalled.units
        self._one_more()
        for name, unit in plan.items():
            promise = self._promise(name, unit)
            if self._unsettled <= promise or (promise == 0 and unit.primary != host):
                continue
            if promise > 0 or self._keeps_all(name, unit):
                self.beyond = True
            else:
                self.unprotected.add(name)

    def _one_more(self) -> None:
        """Something was lost that somebody has to make up for."""
        if self.settled():
            self._unsettled = 0
            plan = self.world.coordinator.journalled.units
            self._promised = {name: self._has(name, unit) for name, unit in plan.items()}
        self._unsettled += 1
        self._mark = None

    def _promise(self, name: str, unit: UnitPlan) -> int:
        return min(self._promised.get(name, 0), self._asks_for(name, unit))

    def _policy(self, name: str, unit: UnitPlan) -> Policy:
        return unit.protected_by(self.world.topology.units[name].policy)

    def _keeps_all(self, name: str, unit: UnitPlan) -> bool:
        """Nothing of the unit may be lost: by its policy, or because none of its stages would be right without."""
        stages = self.world.topology.stages
        needs = all(stages[stage].needs_all_input for stage in self.world.topology.units[name].stages)
        policy = self._policy(name, unit)
        return policy.protected or (policy.recovery == "saved" and needs)

    def _asks_for(self, name: str, unit: UnitPlan) -> int:
        """How many hosts may fail at once by what protects the unit: its policy, or the one to come where there is
        none, or its standbys have made room."""
        policy = self._policy(name, unit)
        if policy.recovery == "saved" and unit.standbys:
            return policy.backups if self._keeps_all(name, unit) else 0
        if policy.recovery == "replay" or unit.standbys:
            return policy.tolerates
        return len(unit.turn.ready) if unit.turn and parse(unit.turn.policy).protected else 0

    def _has(self, name: str, unit: UnitPlan) -> int:
        """How many of them as things stand: not every standby need be ready."""
        asked = self._asks_for(name, unit)
        return min(asked, len(unit.ready)) if unit.standbys else asked

    @property
    def _tolerated(self) -> int:
        """How many hosts may fail at once as far as those go that are protected."""
        plan = self.world.coordinator.journalled.units
        return min((n for name, unit in plan.items() if (n := self._has(name, unit))), default=1)

    def settled(self) -> bool:
        """Nothing is left of the last failure. First everything must be in place; then what was in flight at that
        moment must have been trimmed everywhere."""
        if self._unsettled == 0:
            return True
        outputs = self._in_place()
        if outputs is None:
            return False
        if self._mark is None:
            self._mark = max(output.queue.next for output in outputs)
        if all(output.queue.trimmed >= self._mark for output in outputs):
            self._unsettled, self._mark = 0, None
            return True
        return False

    def _in_place(self) -> list[Output] | None:
        """All streams, when every unit is where it should be, with every standby ready; else None."""
        world = self.world
        plan = world.coordinator.journalled.units
        outputs: list[Output] = []
        for name, shape in world.topology.units.items():
            unit = plan.get(name)
            if unit is None or unit.primary is None or len(unit.ready) < self._policy(name, unit).backups:
                return None
            host = world.hosts[unit.primary]
            here = host.units.get(name)
            if not host.alive or host.paused or here is None or not here.primary or here.fenced:
                return None
            if isinstance(here, Unit) and len(here.copies) < len(shape.stages):
                return None
            outputs += here.outputs().values()
        return outputs

    # -- doing harm ---------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        engine = self.world.engine
        if not self._waiting:
            return
        fault = self._waiting[0]
        if fault.kind not in ANY_TIME and not (self.settled() and self._calm() and self._begun_again()):
            if self._wait_began == 0.0:
                self._wait_began = engine.now
            if engine.now - self._wait_began < self.PATIENCE_S:
                engine.after(0.05, self._next)
                return
        self._wait_began = 0.0
        self._waiting.pop(0)
        undo = self._inject(fault)
        if undo is not None:
            self.done[fault.kind] += 1
            engine.after(fault.lasts_s, undo)
            self.healed_at = max(self.healed_at, engine.now + fault.lasts_s)
        if self._waiting:
            engine.after(max(self._waiting[0].at - engine.now, 0.01), self._next)

    def _switch(self, switching: Switching) -> None:
        wanted = self.world.coordinator.failover.topology.under({switching.unit: switching.policy})
        if not self._stopped and not wanted.spoiled():  # else the user is refused
            self.done[SWITCH] += 1
            self.world.coordinator.switch(switching.unit, switching.policy)

    def _begun_again(self) -> bool:
        """Whatever stands by for a job that has begun again is ready. Settled it is from the start after a clean stop:
        what those that are rebuilt by replay would need is there already."""
        self._opening = self._opening and self._in_place() is None
        return not self._opening

    def _calm(self) -> bool:
        """No host is ill at the moment, so that one more is one; nor is the code, so that the job is about to stop."""
        world = self.world
        ill = any(not h.alive or h.paused or h.disk_full for h in world.hosts.values())
        ill = ill or bool(world.cut or self._traps or self._sprung or self._poison)
        return not ill and len(world.coordinator.failover.alive) == len(world.hosts)

    def _inject(self, fault: Fault) -> Callable[[], None] | None:
        world = self.world
        hosts = list(world.hosts.values())
        host = hosts[fault.pick % len(hosts)]
        other = hosts[(fault.pick // 7 + 1 + hosts.index(host)) % len(hosts)]
        if fault.kind in ("kill", "power cut"):
            host.crash(quietly=fault.kind == "power cut")
            return host.restart
        if fault.kind == "several killed":
            victims = [hosts[(fault.pick + i) % len(hosts)] for i in range(min(self._tolerated, len(hosts) - 1))]
            for victim in victims:
                victim.crash()
            return partial(_restart, victims)
        if fault.kind == "freeze":
            host.pause()
            return host.resume
        if fault.kind in ("partition", "isolation"):
            if fault.kind == "partition" and other is host:
                return None
            against = [other.name] if fault.kind == "partition" else ["coordinator"]
            cuts = {frozenset((host.name, name)) for name in against}
            world.tell("NETWORK", f"cut between {host.name} and {against[0]}")
            world.cut |= cuts
            return lambda: world.cut.difference_update(cuts)
        if fault.kind == "coordinator killed":
            world.coordinator.crash()
            return world.coordinator.restart
        if fault.kind == "message loss":
            world.loss = 0.05
            return lambda: setattr(world, "loss", 0.0)
        if fault.kind == "late messages":
            world.late = 0.05
            return lambda: setattr(world, "late", 0.0)
        if fault.kind == "slow host":
            host.lag_s = 0.03
            return lambda: setattr(host, "lag_s", 0.0)
        if fault.kind in ENDINGS:
            return self._end(fault)
        if fault.kind == "full disk":
            host.disk_full = True
            self._unsettled, self._mark = max(self._unsettled, 1), None
            return lambda: setattr(host, "disk_full", False)
        return self._damage(fault)

    # -- the end of the whole job -------------------------------------------------------------------------------------

    def _end(self, fault: Fault) -> Callable[[], None] | None:
        world, plan = self.world, self.world.coordinator.journalled.units
        if self._ending or self._poison is not None:
            return None
        self._ending_at = world.engine.now
        if fault.kind == STOP:
            if not world.coordinator.stop():
                return None
            self._ending, world.on_stopped = True, partial(self._close, fault.lasts_s)
            return _nothing
        if fault.kind == THROW:
            return self._trap(fault)
        if not self._on_disks(plan) or not self._held(plan):
            return None
        if fault.kind == ALL_KILLED:
            self._kill_all(fault.lasts_s)
            return _nothing
        return self._poisoned(fault)

    def _on_disks(self, plan: Mapping[str, UnitPlan]) -> bool:
        """When everything dies, what was protected is on disks. Other policies do not promise that; and a unit that has
        left its own policy for another begins again under its own."""
        policies = [self._policy(name, unit) for name, unit in plan.items()]
        at_home = all(unit.policy is None and unit.turn is None for unit in plan.values())
        return at_home and all(policy.keeps_on_disk or not policy.protected for policy in policies)

    def _held(self, plan: Mapping[str, UnitPlan]) -> bool:
        """A checkpoint was taken of everything that is protected: else the user is told to start over."""
        disks = [host.disk for host in self.world.hosts.values()]
        stages = [self.world.topology.units[name].stages for name, u in plan.items() if self._keeps_all(name, u)]
        return all(any(disk.has_all(mine) for disk in disks) for mine in stages)

    def _trap(self, fault: Fault) -> Callable[[], None] | None:
        led = [
            (unit.primary, stage)
            for name, unit in self.world.coordinator.journalled.units.items()
            for stage in self.world.topology.units[name].stages
            if unit.primary is not None and self._keeps_all(name, unit)
        ]
        if not led:
            return None
        trap = led[fault.pick % len(led)]
        self._traps.add(trap)
        self.world.throws = self._throws
        return partial(self._untrap, trap)

    def _untrap(self, trap: tuple[str, str]) -> None:
        self._traps.discard(trap)
        self._sprung.discard(trap[1])

    def _poisoned(self, fault: Fault) -> Callable[[], None] | None:
        """An epoch of some stage, which nobody has begun, cannot be made before the code was mended."""
        protected = [n for n, u in self.world.coordinator.journalled.units.items() if self._keeps_all(n, u)]
        stages = [stage for name in protected for stage in self.world.topology.units[name].stages]
        if not stages:
            return None
        units = [unit for host in self.world.hosts.values() for unit in host.units.values()]
        newest = max(output.queue.next for unit in units for output in unit.outputs().values())
        self._poison = (stages[fault.pick % len(stages)], after(newest))
        self._ending, self._tries, self.world.throws = True, 0, self._throws
        self.world.on_giving_up = partial(self._given_up, fault.lasts_s)
        return _nothing

    def _throws(self, host: str, stage: str, epoch: Epoch) -> bool:
        if (host, stage) in self._traps:
            self._traps.discard((host, stage))
            self._sprung.add(stage)
            return True
        return (stage, epoch) == self._poison

    def _given_up(self, lasts_s: float, stop: failover.StopJob) -> bool:
        """The job stops. The user mends the code, and begins again."""
        if (stop.stage, stop.epoch) != self._poison:
            return self.beyond
        self._poison = None
        self.world.engine.after(0.0, self._kill_all, lasts_s)
        return True

    def _kill_all(self, lasts_s: float) -> None:
        plan = self.world.coordinator.journalled.units
        self.beyond |= not self._on_disks(plan)
        self.unprotected.update(name for name, unit in plan.items() if not self._keeps_all(name, unit))
        self.world.coordinator.nothing_runs = True
        self._close(lasts_s)

    def _close(self, lasts_s: float) -> None:
        self._ending = True
        self.world.on_stopped = None
        self.world.end()
        self.world.engine.after(lasts_s, self._open)

    def _open(self) -> None:
        self.world.begin_again()
        self._ending, self._opening, self._mark = False, True, None
        self._unsettled = int(self.world.coordinator.nothing_runs)
        self.healed_at = max(self.healed_at, self.world.engine.now)

    def _damage(self, fault: Fault) -> Callable[[], None] | None:
        """A stage's version rots on a standby's disk, where it is kept twice, and then its primary dies."""
        world = self.world
        plan = world.coordinator.journalled.units
        found = [
            (unit.primary, host, stage)
            for name, unit in plan.items()
            for host in unit.ready
            for stage in world.topology.units[name].stages
            if len(world.hosts[host].disk.versions.get(stage, [])) > 1 and unit.primary is not None
        ]
        if not found:
            return None
        primary, host, stage = found[fault.pick % len(found)]
        world.hosts[host].disk.damage(stage)
        world.tell("DISK", f"a checkpoint of {stage} on {host} is damaged")
        victim = world.hosts[primary]
        victim.crash()
        return victim.restart


def _nothing() -> None:
    """There is nothing to undo."""


def _restart(nodes: Sequence[Node]) -> None:
    for node in nodes:
        node.restart()
