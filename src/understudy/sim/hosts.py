"""A host in virtual time: it is sent plans, makes itself agree with the newest, and runs copies of units.

This mirrors ``runtime.host``; the decisions are those of the same machines in ``core``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from understudy.core import agreement, detection, draining, failover
from understudy.core.directory import Directory
from understudy.core.landed import Landed
from understudy.core.monitoring import Assigned, Heard, Monitor, Report, monitored
from understudy.core.numbers import Epoch, Generation
from understudy.core.plans import Plan, UnitPlan
from understudy.core.policies import Policy
from understudy.sim.disks import Disk
from understudy.sim.nodes import Node
from understudy.sim.preserved import PreservedSource
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
        self.directory = Directory(self.name)
        self.directory.define(self.world.topology, self.world.policies)
        self.units: dict[str, Unit | SourceUnit] = {}
        self._reports: dict[int, failover.Event] = {}
        self._reported = 0
        self.landed = Landed()
        self.draining = False
        """The job is being stopped: sources cut no more."""
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

    def _holds(self) -> dict[str, Epoch]:
        holds: dict[str, Epoch] = {}
        for name, shape in self.world.topology.units.items():
            epochs = [self._held(stage) for stage in shape.stages]
            if all(e is not None for e in epochs):
                holds[name] = min(e for e in epochs if e is not None)
        return holds

    def _held(self, stage: str) -> Epoch | None:
        if stage in self.disk.logs:
            return Epoch(self.disk.logs[stage].end - 1)
        version = self.disk.newest(stage)
        return None if version is None else version.epoch

    def _beat(self) -> None:
        world = self.world
        world.send(self, "coordinator", None, "beat", (self.name, self.life, self.directory.serial))
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

    def drain(self, question: draining.Question) -> None:
        """The job is being stopped: how far are those that this host leads?"""
        if not self.draining:
            self.draining = True
            for unit in self.units.values():
                for copy in unit.copies.values() if isinstance(unit, Unit) else ():
                    copy.try_run()  # what waited for room need not any more
        led = [unit for unit in self.units.values() if unit.primary and not unit.fenced]
        sources = [unit for unit in led if isinstance(unit, SourceUnit | PreservedSource)]
        ends = {unit.stage: (unit.generation, unit.begun) for unit in sources}
        finals = question.finals
        done = {} if finals is None else {unit.name: unit.generation for unit in led if unit.drain(finals)}
        answer = draining.Answer(question.number, self.directory.serial, ends, done)
        self.world.send(self, "coordinator", None, "drained", (answer,))

    # -- plans --------------------------------------------------------------------------------------------------------

    def take_plan(self, plan: Plan, life: int, lives: dict[str, int]) -> None:
        """``life``: for which process the plan was made. One that was meant for an earlier process of this host would
        have this one begin what that one was in the middle of. ``lives``: which process every host is."""
        if life != self.life:
            self.introduce()
            return
        if plan.serial <= self.directory.serial:
            return
        self.directory.take(plan)
        for name, wanted in plan.units.items():
            self._agree(name, wanted)
        for unit in list(self.units.values()):
            unit.plan_changed()
        if self.name in self.world.monitors:
            mine = monitored(self.world.topology, self.directory.primaries, self.name)
            self._watch(Assigned(mine, {host: str(n) for host, n in lives.items()}))

    def _agree(self, name: str, wanted: UnitPlan) -> None:
        shape, mine = self.world.topology.units[name], self.units.get(name)
        standing = agreement.Standing() if mine is None else mine.standing
        for order in agreement.orders(self.name, standing, wanted, shape.policy):
            self.carry_out(order, partial(self._carry_out, name))
        mine = self.units.get(name)
        if mine is not None:
            mine.policy = agreement.wanted_of(self.name, wanted, shape.policy)[2]
            if mine.primary:
                mine.agree(wanted)

    def _carry_out(self, name: str, order: agreement.Order) -> None:
        mine = self.units.get(name)
        match order:
            case agreement.TellFenced(generation):
                self.tell(f"has been replaced as primary {generation} of {name}")
            case agreement.Begin(generation, start):
                self.tell(f"becomes primary {generation} of {name} from {start}")
                self._drop(name, disk=start not in ("held", "saved"))
                unit = self.units[name] = self._new(name, generation, self.directory.policies.of[name], primary=True)
                unit.begin(start)
            case agreement.Promote(generation, saved):
                self.tell(f"becomes primary {generation} of {name} from what it holds as standby")
                assert mine is not None
                mine.promote(generation, saved=saved)
            case agreement.StandBy(generation, since, policy):
                self._drop(name)
                self.units[name] = self._new(name, generation, policy, primary=False, since=since)
            case agreement.Follow(generation):
                assert mine is not None
                mine.generation = generation
            case agreement.Rise():
                assert mine is not None
                mine.rise()
            case agreement.StandDown():
                assert mine is not None
                mine.stand_down()
            case agreement.Forget():
                self._drop(name)
            case _:
                raise TypeError(f"nobody can carry out {order}")

    def _drop(self, name: str, *, disk: bool = True) -> None:
        """Be nothing of a unit."""
        mine = self.units.pop(name, None)
        if mine is not None:
            mine.stop()
        if disk:
            self.disk.drop(self.world.topology.units[name].stages)

    def _new(
        self, name: str, generation: Generation, policy: Policy, *, primary: bool, since: int = -1
    ) -> Unit | SourceUnit:
        stages = self.world.topology.units[name].stages
        source = PreservedSource if stages[0] in self.world.job.preserved else SourceUnit
        kind = Unit if self.world.topology.stages[stages[0]].inputs else source
        return kind(self, name, generation, policy, primary=primary, since=since)
