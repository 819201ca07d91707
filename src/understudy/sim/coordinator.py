"""The coordinator in virtual time: the same detector and failover machines as the runtime's, and a journal on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from understudy.core import detection, draining, failover, monitoring
from understudy.core.failover import Failover
from understudy.core.monitoring import OWNER
from understudy.core.numbers import Epoch
from understudy.core.plans import Plan
from understudy.core.policies import Policy
from understudy.sim.nodes import Node

if TYPE_CHECKING:
    from understudy.sim.nodes import World


RUNNING, STOPPING, STOPPED = "running", "stopping", "stopped"
ASK_S = 0.1
"""Between two rounds of a clean stop."""


@dataclass(frozen=True)
class Journal:
    """On disk: the last plan, which life of each host it was made for, and what the job is at."""

    plan: Plan
    defined: dict[str, str]
    """Unit -> what protects it as the job said then."""
    lives: dict[str, int]
    state: str = RUNNING


class Coordinator(Node):
    def __init__(self, world: World) -> None:
        super().__init__("coordinator", world)
        self.journal: Journal | None = None
        self.nothing_runs = False
        """The whole job has died. A real coordinator asks the hosts in its journal, and none runs anything."""
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
        self._stop: draining.Stop | None = None

    @property
    def journalled(self) -> Plan:
        """The last plan that was decided, also while the coordinator is dead."""
        return self.failover.plan if self.journal is None else self.journal.plan

    def start(self) -> None:
        journal = self.journal
        if journal is not None and journal.state != STOPPED and not self.nothing_runs:
            self.failover.adopt(journal.plan, journal.defined)
            self.lives = dict(journal.lives)
            for host in journal.lives:
                self.failover.alive[host] = {}
                self.detector.handle(detection.Connected(host), self.now)
            self.tell(f"takes over plan {journal.plan.serial}")
            if journal.state == STOPPING:
                self._begin_to_stop()
        self._rest()

    # -- the whole job ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """All hosts are there. A job that has run before goes on from what they hold."""
        journal = self.journal
        if journal is None:
            self._handle(failover.Begin())
            return
        clean = journal.state == STOPPED
        self.failover.adopt(journal.plan, journal.defined)
        lacking = self.failover.lacking(clean=clean)
        if lacking:
            self.world.violate(f"nobody holds a checkpoint of {', '.join(lacking)}")
            self.failover.adopt(Plan())
            return
        self.tell(f"begins again after {'a clean stop' if clean else 'everything died'}")
        self._handle(failover.Begin(resume=True, clean=clean))

    def stop(self) -> bool:
        """The user asks for a clean stop. False when nobody hears it, or there is nothing to stop."""
        if not self.alive or not self.failover.plan.units or self._stop is not None:
            return False
        self.living.after(0.0, self._begin_to_stop)
        return True

    def _begin_to_stop(self) -> None:
        self.tell("stops the job")
        self._stop = draining.Stop(self.world.topology)
        self._write(self.failover.plan)
        self._ask()

    def _ask(self) -> None:
        if self._stop is not None:
            question = self._stop.ask(self.failover.plan)
            for host in self.failover.alive:
                self._send(host, "drain", (question,))
            self.living.after(ASK_S, self._ask)

    def drained(self, answer: draining.Answer) -> None:
        """A host says how far it has come with the stop."""
        if self._stop is None:
            return
        self._stop.answered(answer)
        if self._stop.over(self.failover.plan):
            self.tell("has stopped the job")
            self._stop = None
            self.journal = Journal(self.failover.plan, self.failover.defined, dict(self.lives), STOPPED)
            self.world.stopped()

    # -- hosts --------------------------------------------------------------------------------------------------------

    def beat(self, host: str, life: int, serial: int) -> None:
        if self.lives.get(host) != life:
            self._send(host, "introduce", ())
            return
        self._sense(detection.Beat(host))
        if serial < self.failover.plan.serial:
            self._send_plan(host, self.failover.plan)
        # A beat only puts the next deadline off; the tick that is planned will see.

    def join(self, host: str, life: int, holds: dict[str, Epoch]) -> None:
        if self.lives.get(host, -1) >= life:
            return
        self.tell(f"hears that {host} is there")
        self.lives[host] = life
        self.detector.handle(detection.Connected(host), self.now)
        self.evidence.joined(host, self.now)
        self._handle(failover.HostJoined(host, holds))
        if not self.failover.plan.units and len(self.failover.alive) == len(self.world.hosts):
            self._begin()
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
        if self.failover.due(self.now):
            self._handle(failover.Tick())
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
            self._write(effect.plan)
            for host in self.failover.alive:
                self._send_plan(host, effect.plan)
        elif isinstance(effect, failover.Say):
            self.tell(effect.text)
        else:
            self.world.gave_up(effect)

    def _write(self, plan: Plan) -> None:
        self.nothing_runs = False
        state = RUNNING if self._stop is None else STOPPING
        self.journal = Journal(plan, self.failover.defined, dict(self.lives), state)

    def _send_plan(self, host: str, plan: Plan) -> None:
        self._send(host, "take_plan", (plan, self.lives[host], dict(self.lives)))

    def _send(self, host: str, method: str, arguments: tuple[object, ...]) -> None:
        self.world.send(self, host, None, method, arguments)
