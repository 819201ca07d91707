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

from understudy import telling
from understudy.core import keeping
from understudy.core.numbers import NO_EPOCH, Epoch, before
from understudy.core.policies import Policy, base
from understudy.runtime import blame, messages
from understudy.runtime.engine import EngineFailed
from understudy.runtime.rehearsal import CALM_S
from understudy.runtime.shipping import CALM_BYTES, Shipper, Shippers

if TYPE_CHECKING:
    from understudy.runtime.host import Host
    from understudy.runtime.stage import RunningStage


class Keeper(threading.Thread):
    """Carries out what one policy's machine (``core.keeping``) orders for a unit: captures and acknowledges."""

    def __init__(
        self, host: Host, unit: str, policy: Policy, stages: Iterable[RunningStage], holdings: keeping.Holdings
    ) -> None:
        """Call with ``host.changed`` held: the machine begins where the stages are."""
        super().__init__(name=f"keeper {unit}", daemon=True)
        self.host, self.unit = host, unit
        self.stages = {stage.name: stage for stage in stages}
        role = host.topology.role
        roles = [role(name, s.committed, s.output.queue.trimmed) for name, s in self.stages.items()]
        self.machine = keeping.Keeper(holdings, policy, roles)
        self.newest: dict[str, Epoch] = {}
        """Stage -> its newest checkpoint that is safe somewhere."""
        self.spent: Counter[str] = Counter()
        """What checkpoints have cost: how many, their bytes, and their seconds: from the order to capture until it is
        safe or, where the stage stands still for it, from the order to pause until it goes on."""
        self.over = False
        self._paused: dict[str, float] = {}
        """Stage -> since when, of those that were told to pause."""
        self._captured: set[str] = set()
        """Those of them that have been captured since."""
        self._shippers = Shippers(self.stages.values())
        self._captures = ThreadPoolExecutor(max_workers=8, thread_name_prefix=self.name)
        self._draining = False
        self._effects: list[keeping.Effect] = []

    @property
    def policy(self) -> Policy:
        return self.machine.policy

    def serves(self, policy: Policy) -> bool:
        return self.machine.serves(policy)

    def handle(self, event: base.Event) -> None:
        """Call with ``host.changed`` held."""
        self._do(self.machine.handle(event, time.monotonic()))

    def _do(self, effects: list[keeping.Effect]) -> None:
        self._effects += effects
        self.host.changed.notify_all()

    def agree(self, charge: keeping.Charge) -> None:
        """A new plan has come."""
        with self.host.changed:
            self._shippers.aim(charge.standbys)
            kept = [e for e in self._effects if not isinstance(e, base.Capture) or e.standby in charge.standbys]
            self._effects = kept
            self._do(self.machine.agree(charge, self.host.topology, self.host.directory.primaries, time.monotonic()))

    def drained(self) -> bool:
        """Take the last checkpoints; true once they are safe. Call with ``host.changed`` held."""
        if not self._draining:
            self._draining = True
            self.handle(base.Drain())
        return not self._effects and self.machine.safe()

    def stop(self) -> None:
        """Call with ``host.changed`` held."""
        self.over = True
        self._shippers.aim({})
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
                    continue
            self._carry_out(effect)

    def _carry_out(self, effect: keeping.Effect) -> None:
        match effect:
            case base.AckUpstream():
                self.stages[effect.stage].send_acks()
            case base.Pause() | base.Resume():
                self._pause(self.stages[effect.stage], isinstance(effect, base.Pause))
            case base.Late():
                self.spent.update({"late": 1})
                if effect.often:
                    text = telling.late(effect.stage, effect.late_s, self.policy)
                    self.host.report(messages.Notice("late", self.unit, text))
            case keeping.Report():
                self.host.report(effect.event)
            case _:
                raise TypeError(f"nobody can carry out {effect}")

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
            failure = self._ship(stage, shipper, order)
        except Exception as error:  # nobody else would hear of it, and the machine would wait for ever
            traceback.print_exc()
            failure = f"the capture failed: {error}"
        if failure == "fenced":
            stage.fence()
        elif failure == "moved":
            return
        with self.host.changed:
            if failure is None:
                self.newest[stage.name] = max(order.epoch, self.newest.get(stage.name, NO_EPOCH))
                self.spent.update({"checkpoints": 1})
                if order.stage in self._paused:
                    self._captured.add(order.stage)
                else:
                    self.spent.update({"seconds": time.monotonic() - begin})
                self.handle(base.Pasted(order.stage, order.standby, order.epoch))
            else:
                self._failed(order, failure)

    def _ship(self, stage: RunningStage, shipper: Shipper, order: base.Capture) -> str | None:
        """Bring what is ordered to its standby. Returns None, or why not, as ``Shipper.ship`` does."""
        with stage.engine.lent(order.epoch):
            return self._ship_lent(stage, shipper, order)

    def _ship_lent(self, stage: RunningStage, shipper: Shipper, order: base.Capture) -> str | None:
        try:
            needed = stage.engine.files_for(shipper, order.epoch)
            if order.queue:
                needed |= stage.queue_files(order.epoch)
            if shipper.lacks(needed) > CALM_BYTES:
                with self.host.changed:
                    calm = max(0.0, stage.started_at + CALM_S - time.monotonic())
                    self.host.changed.wait_for(lambda: self.over or self._draining, timeout=calm)
        except Exception as error:
            if isinstance(error, EngineFailed):
                stage.fail(error.cause, error.whose)
            elif not isinstance(error, FileNotFoundError):  # it has been cleaned up meanwhile
                traceback.print_exc()
                if isinstance(error, OSError):  # this host's disk refuses: whoever takes over has another
                    stage.fail(f"its state cannot be written: {error}", blame.of(error))
            return f"the version cannot be named: {error}"
        return shipper.ship(order.epoch, needed, lambda size: self.spent.update({"bytes": size}))

    def _failed(self, order: base.Capture, failure: str) -> None:
        if failure.startswith("disk"):
            self._do(self.machine.unusable(order.stage, order.standby, failure, time.monotonic()))
        else:
            self.handle(base.CaptureFailed(order.stage, order.standby, lost_standby=False))


class Reporter(threading.Thread):
    """Tells a copy's primary how far the copy is, as often as it moves; the answer says what may be trimmed."""

    def __init__(self, stage: RunningStage, since: int) -> None:
        super().__init__(name=f"reporter {stage.name}", daemon=True)
        self.stage, self.host, self._since = stage, stage.host, since

    def run(self) -> None:
        stage, host = self.stage, self.host
        told = before(stage.start_epoch)
        while True:
            with host.changed:
                host.changed.wait_for(lambda: stage.stopping or stage.primary or stage.committed > told)  # noqa: B023
                if stage.stopping or stage.primary:
                    return
                epoch, primary = stage.committed, host.directory.primaries.get(stage.unit)
            standby = base.standby_key(host.name, self._since)
            call = messages.CopyAt(stage.unit, stage.name, stage.generation, standby, epoch)
            try:
                if primary is None or primary == host.name:
                    raise OSError("nobody to tell")
                reply = host.peer(primary).call(call, category="ack", timeout_s=5)
            except (flight.FlightError, pa.ArrowException, OSError):
                with host.changed:
                    host.changed.wait(0.2)
                continue
            told = epoch
            if not reply.refused:
                stage.trim(reply.answer)
