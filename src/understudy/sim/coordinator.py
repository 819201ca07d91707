"""The coordinator in virtual time: the same detector and failover machines as the runtime's, and a journal on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.core import detection, failover, monitoring
from understudy.core.failover import Failover
from understudy.core.monitoring import OWNER
from understudy.core.plans import Plan
from understudy.core.policies import Policy
from understudy.sim.nodes import Node

if TYPE_CHECKING:
    from understudy.sim.nodes import World


class Coordinator(Node):
    def __init__(self, world: World) -> None:
        super().__init__("coordinator", world)
        self._journal: tuple[Plan, dict[str, int]] | None = None
        """On disk: the last plan, and which life of each host it was made for."""
        self.forget()

    def forget(self) -> None:
        self.failover = Failover(self.world.topology)
        conditions = self.world.conditions
        self.detector = detection.Detector(interval_s=conditions.heartbeat_s, misses=conditions.misses)
        self.evidence = monitoring.Evidence()
        self._sights: dict[str, tuple[int, int]] = {}
        """Monitor -> its life and the number of its newest report: they may overtake each other."""
        self.lives: dict[str, int] = {}
        self._tick_at = float("inf")

    @property
    def journalled(self) -> Plan:
        """The last plan that was decided, also while the coordinator is dead."""
        return self.failover.plan if self._journal is None else self._journal[0]

    def start(self) -> None:
        if self._journal is not None:
            plan, lives = self._journal
            self.failover.adopt(plan)
            self.lives = dict(lives)
            for host in lives:
                self.failover.alive[host] = {}
                self.detector.handle(detection.Connected(host), self.now)
            self.tell(f"takes over plan {plan.serial}")
        self._rest()

    # -- hosts --------------------------------------------------------------------------------------------------------

    def beat(self, host: str, life: int, serial: int) -> None:
        if self.lives.get(host) != life:
            self._send(host, "introduce", ())
            return
        self._sense(detection.Beat(host))
        if serial < self.failover.plan.serial:
            self._send_plan(host, self.failover.plan)
        # A beat only puts the next deadline off; the tick that is planned will see.

    def join(self, host: str, life: int, holds: dict[str, int]) -> None:
        if self.lives.get(host, -1) >= life:
            return
        self.tell(f"hears that {host} is there")
        self.lives[host] = life
        self.detector.handle(detection.Connected(host), self.now)
        self.evidence.joined(host, self.now)
        self._handle(failover.HostJoined(host, holds))
        if not self.failover.plan.units and len(self.failover.alive) == len(self.world.hosts):
            self._handle(failover.Begin())
        self._rest()

    def hear_of_death(self, host: str, life: int) -> None:
        """A connection broke. Called by the world, whoever died."""
        if host != self.name and self.alive:
            self.living.after(self.world.conditions.delay_s, self._broken, host, life)

    def _broken(self, host: str, life: int) -> None:
        if self.lives.get(host) == life:
            self._sense(detection.Broken(host, "the connection broke"))

    def seen(self, monitor: str, number: tuple[int, int], report: monitoring.Report) -> None:
        """What a monitor sees. ``number``: of its life, and of the report."""
        if self.lives.get(monitor) == number[0] and number >= self._sights.get(monitor, number):
            self._sights[monitor] = number
            known = {h: t for h, t in report.view.items() if str(self.lives.get(h)) == report.processes[h]}
            self._weigh(monitor, known)

    def report(self, host: str, number: int, event: failover.Event) -> None:
        self._handle(event)
        self._send(host, "heard", (number,))

    def _rest(self) -> None:
        deadline = self.detector.next_deadline()
        if deadline is not None and deadline < self._tick_at:
            self._tick_at = deadline
            self.living.after(max(0.0, deadline - self.now), self._tick)

    def _tick(self) -> None:
        self._tick_at = float("inf")
        self._sense(detection.Tick())
        self._rest()

    def _sense(self, event: detection.Event) -> None:
        if self.detector.handle(event, self.now):
            self._weigh(OWNER, self.detector.view())

    def _weigh(self, watcher: str, view: detection.View) -> None:
        for effect in self.evidence.hear(watcher, view, self.now):
            if isinstance(effect, monitoring.Told):
                if effect.watcher != OWNER:
                    self.tell(f"hears from {effect.watcher}: {effect.what}")
            elif isinstance(effect, monitoring.Doubted):
                self.tell(f"doubts {effect.monitor}, which cannot hear {', '.join(effect.hosts)}")
            else:
                self.carry_out(effect, self._note)

    def _note(self, effect: detection.Effect) -> None:
        if isinstance(effect, detection.Failed):
            self.tell(f"gives up {effect.host}: {effect.reason}")
        elif isinstance(effect, detection.Returned) and effect.host not in self.failover.alive:
            self.tell(f"hears from {effect.host} again")
        self._handle(monitoring.consequence(effect, self.failover.alive))

    def switch(self, unit: str, policy: Policy) -> None:
        """The user asks for another policy; nobody hears it while there is no coordinator, or nothing runs yet."""
        if self.alive and self.failover.plan.units:
            self.tell(f"is asked to have {unit} under {policy.describe()}")
            self.living.after(0.0, self._handle, failover.Switch(unit, policy))

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _handle(self, event: failover.Event) -> None:
        if self.world.on_decision is not None:
            self.world.on_decision(event)
        for effect in self.failover.handle(event, self.now):
            self.carry_out(effect, self._carry_out)

    def _carry_out(self, effect: failover.Effect) -> None:
        if isinstance(effect, failover.Publish):
            self._journal = (effect.plan, dict(self.lives))
            for host in self.failover.alive:
                self._send_plan(host, effect.plan)
        elif isinstance(effect, failover.Say):
            self.tell(effect.text)
        else:
            self.world.violate(f"stage {effect.stage} stopped the job: {effect.cause}")

    def _send_plan(self, host: str, plan: Plan) -> None:
        self._send(host, "take_plan", (plan, self.lives[host], dict(self.lives)))

    def _send(self, host: str, method: str, arguments: tuple[object, ...]) -> None:
        self.world.send(self, host, None, method, arguments)
