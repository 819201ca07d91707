"""A host in virtual time: it is sent plans, makes itself agree with the newest, and runs copies of units.

This mirrors ``runtime.host``; the decisions are those of the same machines in ``core``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.core import detection, failover
from understudy.core.failover import Plan, UnitPlan
from understudy.core.monitoring import Assigned, Heard, Monitor, Report, monitored
from understudy.core.policies import Policy, parse
from understudy.sim.disks import Disk
from understudy.sim.nodes import Node
from understudy.sim.sources import SourceUnit
from understudy.sim.units import Unit

if TYPE_CHECKING:
    from understudy.sim.nodes import World


class Host(Node):
    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self.disk = Disk()
        self.disk_full = False
        self.forget()

    def forget(self) -> None:
        self.serial = -1
        self.plan: dict[str, UnitPlan] = {}
        self.lost_with: dict[str, str] = {}
        """Unit -> the host that led it before the one that leads it now."""
        self.primaries: dict[str, str | None] = {}
        self.producers: dict[str, tuple[str, ...]] = {}
        """Unit -> the hosts that are asked for its streams."""
        self.units: dict[str, Unit | SourceUnit] = {}
        self.policies = self.world.policies
        self._reports: dict[int, failover.Event] = {}
        self._reported = 0
        conditions = self.world.conditions
        self.monitor = Monitor(interval_s=conditions.heartbeat_s, misses=conditions.misses)
        self._sight: Report | None = None
        self._sights = 0
        self._look_at = float("inf")

    def start(self) -> None:
        self.introduce()
        self._beat()
        self.living.after(self.world.conditions.retry_s, self._retry)

    # -- the coordinator ----------------------------------------------------------------------------------------------

    def introduce(self) -> None:
        self.world.send(self, "coordinator", None, "join", (self.name, self.life, self._holds()))

    def _holds(self) -> dict[str, int]:
        holds: dict[str, int] = {}
        for name, shape in self.world.topology.units.items():
            epochs = [self._held(stage) for stage in shape.stages]
            if all(e is not None for e in epochs):
                holds[name] = min(e for e in epochs if e is not None)
        return holds

    def _held(self, stage: str) -> int | None:
        if stage in self.disk.logs:
            return self.disk.logs[stage].end - 1
        version = self.disk.newest(stage)
        return None if version is None else version.epoch

    def _beat(self) -> None:
        world = self.world
        world.send(self, "coordinator", None, "beat", (self.name, self.life, self.serial))
        for name in world.monitors:
            if name != self.name:
                world.send(self, name, None, "hear", (self.name, self.life))
        self.living.after(world.conditions.heartbeat_s, self._beat)

    # -- as a monitor -------------------------------------------------------------------------------------------------

    def hear(self, host: str, life: int) -> None:
        self._watch(Heard(host, str(life)))

    def _watch(self, event: Assigned | Heard | detection.Tick) -> None:
        for report in self.monitor.handle(event, self.now):
            self._sight = report
            self._sights += 1
            self._send_sight()
        deadline = self.monitor.next_deadline()
        if deadline is not None and deadline < self._look_at:
            self._look_at = deadline
            self.living.after(max(0.0, deadline - self.now), self._look)

    def _look(self) -> None:
        self._look_at = float("inf")
        self._watch(detection.Tick())

    def _send_sight(self) -> None:
        number = (self.life, self._sights)
        self.world.send(self, "coordinator", None, "seen", (self.name, number, self._sight))

    # -- what the coordinator is told ---------------------------------------------------------------------------------

    def report(self, event: failover.Event) -> None:
        """Tell the coordinator, again and again until it has heard."""
        self._reported += 1
        self._reports[self._reported] = event
        self._send_report(self._reported)

    def _send_report(self, number: int) -> None:
        event = self._reports[number]
        self.world.send(self, "coordinator", None, "report", (self.name, number, event))

    def heard(self, number: int) -> None:
        self._reports.pop(number, None)

    def _retry(self) -> None:
        """What got no answer is said again."""
        for number in self._reports:
            self._send_report(number)
        if self._sight is not None:
            self._send_sight()
        for unit in self.units.values():
            unit.retry()
        self.living.after(self.world.conditions.retry_s, self._retry)

    # -- plans --------------------------------------------------------------------------------------------------------

    def take_plan(self, plan: Plan, life: int, lives: dict[str, int]) -> None:
        """``life``: for which process the plan was made. One that was meant for an earlier process of this host would
        have this one begin what that one was in the middle of. ``lives``: which process every host is."""
        if life != self.life:
            self.introduce()
            return
        if plan.serial <= self.serial:
            return
        for name, known in self.plan.items():
            if known.primary is not None and known.primary != plan.units[name].primary:
                self.lost_with[name] = known.primary
        self.serial, self.plan = plan.serial, dict(plan.units)
        self.policies = self.world.policies.now(plan)
        self.primaries = {name: unit.primary for name, unit in plan.units.items()}
        self.producers = {name: self._producers(name, unit) for name, unit in plan.units.items()}
        for name, wanted in plan.units.items():
            self._agree(name, wanted)
        for unit in list(self.units.values()):
            unit.plan_changed()
        if self.name in self.world.monitors:
            mine = monitored(self.world.topology, self.primaries, self.name)
            self._watch(Assigned(mine, {host: str(n) for host, n in lives.items()}))

    def _producers(self, name: str, unit: UnitPlan) -> tuple[str, ...]:
        if unit.primary is None:
            return ()
        eager = self.policies.of[name].eager
        return (unit.primary, *unit.standbys) if eager else (unit.primary,)

    def _agree(self, name: str, wanted: UnitPlan) -> None:
        mine = self.units.get(name)
        if wanted.primary == self.name:
            if mine is None or not mine.primary or mine.generation < wanted.generation:
                mine = self._become_primary(name, mine, wanted)
            mine.policy = self.policies.of[name]
            mine.agree(wanted)
        elif (role := self._standby_role(name, wanted)) is not None:
            since, policy = role
            if mine is None or mine.primary or mine.since != since:
                if mine is not None:
                    mine.stop()
                self.disk.drop(self.world.topology.units[name].stages)
                mine = self.units[name] = self._new(name, wanted.generation, policy, primary=False, since=since)
            mine.generation, mine.policy = wanted.generation, policy
            rise = wanted.rising and wanted.ready[:1] == (self.name,)
            mine.rise() if rise else mine.stand_down()
        elif mine is not None:
            mine.stop()
            del self.units[name]
            self.disk.drop(self.world.topology.units[name].stages)

    def _standby_role(self, name: str, wanted: UnitPlan) -> tuple[int, Policy] | None:
        """Since when this host is a standby of the unit, and under which policy; None when it is not."""
        if self.name in wanted.standbys:
            return wanted.since[wanted.standbys.index(self.name)], self.policies.of[name]
        turn = wanted.turn
        if turn is not None and self.name in turn.standbys:
            return turn.since[turn.standbys.index(self.name)], parse(turn.policy)
        return None

    def _new(
        self, name: str, generation: int, policy: Policy, *, primary: bool, since: int = -1
    ) -> Unit | SourceUnit:
        stages = self.world.topology.units[name].stages
        kind = Unit if self.world.topology.stages[stages[0]].inputs else SourceUnit
        return kind(self, name, generation, policy, primary=primary, since=since)

    def _become_primary(self, name: str, mine: Unit | SourceUnit | None, wanted: UnitPlan) -> Unit | SourceUnit:
        self.tell(f"becomes primary {wanted.generation} of {name} from {wanted.start}")
        if mine is not None and not mine.primary and wanted.start == "held":
            unit = mine
            unit.promote(wanted.generation)
        else:
            if mine is not None:
                mine.stop()
            unit = self._new(name, wanted.generation, self.policies.of[name], primary=True)
            if wanted.start != "held":
                self.disk.drop(self.world.topology.units[name].stages)
            self.units[name] = unit
            unit.begin(wanted.start)
        return unit

    def stale(self, unit: str, generation: int) -> bool:
        """True when whoever says this speaks for a generation that has been replaced."""
        known = self.plan.get(unit)
        return known is not None and generation < known.generation
