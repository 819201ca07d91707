"""What keeps a running unit safe: its keeper, which drives the policy's machine and ships checkpoints, and for a copy
its reporter."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as flight

from understudy.core.acks import FINAL
from understudy.core.policies import Policy, base
from understudy.runtime.rehearsal import CALM_S
from understudy.runtime.shipping import CALM_BYTES, Shippers

if TYPE_CHECKING:
    from understudy.runtime.host import Host
    from understudy.runtime.stage import RunningStage


class Keeper(threading.Thread):
    """Drives one unit's protection: captures what it orders and acknowledges upstream."""

    def __init__(self, host: Host, unit: str, policy: Policy, stages: Iterable[RunningStage]) -> None:
        """Call with ``host.changed`` held: the machine begins where the stages are."""
        super().__init__(name=f"keeper {unit}", daemon=True)
        self.host, self.unit, self.policy = host, unit, policy
        self.stages = {stage.name: stage for stage in stages}
        role = host.topology.role
        self.machine = policy.protect(
            [role(name, s.committed, s.output.queue.trimmed) for name, s in self.stages.items()]
        )
        self.acks: dict[str, dict[str, dict[int, int]]] = {n: {i: {} for i in s.inputs} for n, s in self.stages.items()}
        """Stage -> input -> level -> what may be acknowledged as far as this protection goes."""
        self.newest: dict[str, int] = {}
        """Stage -> its newest checkpoint that is safe somewhere."""
        self.spent: Counter[str] = Counter()
        """What checkpoints have cost: how many, their bytes, and their seconds: from the order to capture until it is
        safe or, where the stage stands still for it, from the order to pause until it goes on."""
        self.over = False
        self._serial: int | None = None
        self._turn: int | None = None
        """The turn that is done when the producers keep enough; others are when standbys are ready. None once that was
        reported."""
        self._paused: dict[str, float] = {}
        """Stage -> since when, of those that were told to pause."""
        self._captured: set[str] = set()
        """Those of them that have been captured since."""
        self._begun = {name: stage.committed for name, stage in self.stages.items()}
        self._shippers = Shippers(self.stages.values())
        self._standbys: tuple[str, ...] | None = None
        self._captures = ThreadPoolExecutor(max_workers=8, thread_name_prefix=self.name)
        self._draining = False
        self._effects: list[base.Effect] = []

    def handle(self, event: base.Event) -> None:
        """Call with ``host.changed`` held."""
        self._effects += self.machine.handle(event, time.monotonic())
        self.host.changed.notify_all()

    def serves(self, policy: Policy) -> bool:
        """This keeper can go on under ``policy``: it is the same, or differs in who asks whom only."""
        return self.policy == policy or (self.policy.standby_runs and policy.standby_runs)

    def agree(self, policy: Policy, standbys: list[tuple[str, int]], turn: int | None) -> None:
        """A new plan has come. ``turn``: the unit is changing to this policy since that plan. A turn may have ended and
        begun again without this host having seen the plan in between."""
        self.policy = policy
        if policy.recovery == "replay":
            with self.host.changed:
                if turn != self._serial:
                    self._serial = self._turn = turn
            self._perhaps_turned()
            self._placed()
        self._set_standbys(standbys)

    def _set_standbys(self, standbys: list[tuple[str, int]]) -> None:
        """Host and since when, of each; this host itself where its own disk counts as well, if anything is kept on
        disks at all."""
        if self.policy.recovery != "standby" or self.policy.standby_runs:
            standbys = [standby for standby in standbys if standby[0] != self.host.name]
        with self.host.changed:
            keys = self._shippers.aim(standbys)
            if keys != self._standbys:
                self._standbys = keys
                self._effects = [e for e in self._effects if not isinstance(e, base.Capture) or e.standby in keys]
                self.handle(base.StandbysChanged(keys))

    def _placed(self) -> None:
        """Where everybody is may have changed: tell who shares whose fate."""
        topology, hosts = self.host.topology, self.host.primaries()
        with self.host.changed:
            for name, stage in self.stages.items():
                near = tuple(i for i in stage.inputs if topology.shares_fate(name, i, hosts, self.policy.levels))
                self.handle(base.Placed(name, near))

    def drained(self) -> bool:
        """Take the last checkpoints; true once they are safe. Call with ``host.changed`` held."""
        if not self._draining:
            self._draining = True
            self.handle(base.Drain())
        return not self._effects and self.machine.safe()

    def stop(self) -> None:
        """Call with ``host.changed`` held."""
        self.over = True
        self._shippers.aim([])
        self._captures.shutdown(wait=False, cancel_futures=True)
        for stage in self.stages.values():
            stage.paused_by.discard(self)
        self.host.changed.notify_all()

    def finish(self) -> None:
        """Wait for what was under way when it was stopped."""
        self._captures.shutdown(wait=True)

    def run(self) -> None:
        while True:
            with self.host.changed:
                while not self._effects and not self.over:
                    deadline = self.machine.next_deadline()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        self.handle(base.Tick())
                        continue
                    self.host.changed.wait(left)
                if self.over:
                    return
                effect = self._effects.pop(0)
                if isinstance(effect, base.Capture):
                    self._captures.submit(self._capture, effect)
            if isinstance(effect, base.AckUpstream):
                self._ack(self.stages[effect.stage], effect)
            elif isinstance(effect, (base.Pause, base.Resume)):
                self._pause(self.stages[effect.stage], isinstance(effect, base.Pause))

    def _ack(self, stage: RunningStage, effect: base.AckUpstream) -> None:
        known = self.acks[stage.name]
        for stream in stage.inputs if effect.input is None else (effect.input,):
            newest = max(effect.epoch, known[stream].get(effect.level, -1))
            known[stream] = {**known[stream], effect.level: newest}  # made anew, not changed: inlets read it meanwhile
        stage.send_acks()
        self._perhaps_turned()

    def _perhaps_turned(self) -> None:
        with self.host.changed:
            if self._turn is None or not self._producers_keep_enough():
                return
            turn, self._turn = self._turn, None
            generation = next(iter(self.stages.values())).generation
        self.host.report("turned", unit=self.unit, generation=generation, serial=turn)

    def _producers_keep_enough(self) -> bool:
        """Not even the first epoch that this protection saw is needed any more. What the state was made of before that,
        and may have been trimmed under the policy before, is not needed then either."""
        return all(
            acks.get(FINAL, -1) > self._begun[name] for name, inputs in self.acks.items() for acks in inputs.values()
        )

    def _pause(self, stage: RunningStage, pause: bool) -> None:
        """A stage is paused by not granting its next epoch; what it is at, it finishes."""
        with self.host.changed:
            if self.over:
                return  # nobody would let it go on
            if pause:
                stage.paused_by.add(self)
                self._paused[stage.name] = time.monotonic()
                if stage.granted == stage.committed:
                    self.handle(base.Paused(stage.name))
            else:
                stage.paused_by.discard(self)
                since = self._paused.pop(stage.name, None)
                if since is not None and stage.name in self._captured:
                    self._captured.remove(stage.name)
                    self.spent.update({"seconds": time.monotonic() - since})
            self.host.changed.notify_all()

    def _capture(self, order: base.Capture) -> None:
        stage, shipper = self.stages[order.stage], self._shippers.to(order.standby, order.stage)
        if shipper is None:
            return
        begin = time.monotonic()
        try:
            needed = shipper.files_of(order.epoch - stage.base)
            if order.queue:
                needed |= stage.queue_files(order.epoch)
            if shipper.lacks(needed) > CALM_BYTES:
                with self.host.changed:
                    calm = max(0.0, stage.started_at + CALM_S - time.monotonic())
                    self.host.changed.wait_for(lambda: self.over or self._draining, timeout=calm)
        except Exception as error:
            if not isinstance(error, FileNotFoundError):  # Spark has cleaned up meanwhile
                traceback.print_exc()
            failure: str | None = f"the version cannot be named: {error}"
        else:
            failure = shipper.ship(order.epoch, needed, lambda size: self.spent.update({"bytes": size}))
        if failure == "fenced":
            stage.fence()
        elif failure == "moved":
            return
        with self.host.changed:
            if failure is None:
                self.newest[stage.name] = max(order.epoch, self.newest.get(stage.name, -1))
                self.spent.update({"checkpoints": 1})
                if order.stage in self._paused:
                    self._captured.add(order.stage)
                else:
                    self.spent.update({"seconds": time.monotonic() - begin})
                self.handle(base.Pasted(order.stage, order.standby, order.epoch))
            else:
                lost = failure.startswith("disk")
                self.handle(base.CaptureFailed(order.stage, order.standby, lost_standby=lost))


class Reporter(threading.Thread):
    """Tells a copy's primary how far the copy is, as often as it moves; the answer says what may be trimmed."""

    def __init__(self, stage: RunningStage) -> None:
        super().__init__(name=f"reporter {stage.name}", daemon=True)
        self.stage, self.host = stage, stage.host

    def run(self) -> None:
        stage, host = self.stage, self.host
        told = stage.start_epoch - 1
        while True:
            with host.changed:
                host.changed.wait_for(lambda then=told: stage.stopping or stage.primary or stage.committed > then)
                if stage.stopping or stage.primary:
                    return
                epoch, primary = stage.committed, (host.plan.get(stage.unit) or {}).get("primary")
            header = {
                "unit": stage.unit, "stage": stage.name, "generation": stage.generation, "epoch": epoch,
                "standby": base.standby_key(host.name, stage.since),
            }  # fmt: skip
            try:
                if primary is None or primary == host.name:
                    raise OSError("nobody to tell")
                reply = host.peer(primary).call("copy-at", header, category="ack", timeout_s=5)
            except (flight.FlightError, pa.ArrowException, OSError):
                with host.changed:
                    host.changed.wait(0.2)
                continue
            told = epoch
            if not reply.refused:
                stage.trim(reply.header["trimmed"])
