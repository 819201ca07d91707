"""What keeps a running stage safe: a primary's keeper, which ships its checkpoints, and a copy's reporter."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from understudy.core.policies import base
from understudy.runtime.checkpoints import CheckpointDamaged, CheckpointStore, Shipped, files_of_version
from understudy.runtime.spark import first_line

if TYPE_CHECKING:
    from understudy.runtime.stage import RunningStage


class Shipper:
    """Brings versions of one stage's state to its standby or, lacking one, to this host's own disk."""

    def __init__(self, stage: RunningStage) -> None:
        self.stage, self.host = stage, stage.host
        self.target: str | None = None
        self.since = -1
        self.held = False
        """The present target has a whole version."""
        self._shipped = Shipped({})
        self._own: CheckpointStore | None = None

    def aim(self, target: str, since: int) -> None:
        self.target, self.since, self.held, self._shipped = target, since, False, Shipped({})
        self._own = CheckpointStore(self.stage.folder / "self") if target == self.host.name else None

    def ship(self, epoch: int, needed: dict[str, Path]) -> str | None:
        """Returns None when the version is safe at the target, else why not: ``fenced``, ``moved`` (another target
        was chosen meanwhile), ``disk: ...`` or another text."""
        stage, target, since, shipped = self.stage, self.target, self.since, self._shipped
        assert target is not None
        failure: str | None = None
        try:
            for header, body in shipped.parts(needed, stage.about(epoch)):
                failure = self._send(target, header, body)
                if failure is not None:
                    break
            else:
                shipped.accepted()
        except (flight.FlightError, pa.ArrowException) as error:
            failure = f"unreachable: {first_line(error)}"
        except CheckpointDamaged as error:
            failure = f"damaged: {error}"
        except FileNotFoundError as error:
            failure = f"a file of the version is gone: {error}"
        except OSError as error:
            failure = f"disk: {error}"
        with self.host.changed:
            if shipped is not self._shipped:
                return "moved"
            if failure is not None:
                self._shipped = Shipped({})
            first = failure is None and not self.held
            self.held = self.held or first
        about = {
            "unit": stage.unit,
            "stage": stage.name,
            "generation": stage.generation,
            "standby": target,
            "since": since,
        }
        if first and target != self.host.name:
            self.host.report("standby-ready", **about)
        if failure is not None and failure.startswith("disk"):
            self.host.report("standby-unusable", cause=failure, **about)
        return failure

    def _send(self, target: str, header: dict[str, Any], body: bytes) -> str | None:
        stage = self.stage
        if self._own is not None:
            self._own.paste(header, body)
            return None
        header = {"unit": stage.unit, "stage": stage.name, "generation": stage.generation, **header}
        reply = self.host.peer(target).call("paste", header, body, category="checkpoint", timeout_s=15)
        return f"disk: {reply.header['text']}" if reply.refused == "disk" else reply.refused


class Keeper(threading.Thread):
    """Drives a stage's protection: captures what it orders and acknowledges upstream."""

    def __init__(self, stage: RunningStage) -> None:
        super().__init__(name=f"keeper {stage.name}", daemon=True)
        self.stage, self.host = stage, stage.host
        topology = stage.host.topology
        role = base.StageRole(stage.name, stage.committed, tuple(stage.inputs), last=topology.is_last(stage.name))
        self.machine = stage.policy.protect([role])
        self.newest: int | None = None
        """The newest checkpoint that is safe."""
        self._shipper = Shipper(stage)
        self._key = ""
        """The present target as the machine knows it. A host that began anew is another one."""
        self._draining = False
        self._effects: list[base.Effect] = []

    def handle(self, event: base.Event) -> None:
        """Call with ``host.changed`` held."""
        self._effects += self.machine.handle(event, time.monotonic())
        self.host.changed.notify_all()

    def set_target(self, target: str, since: int) -> None:
        key = f"{target}#{since}"
        with self.host.changed:
            if key != self._key:
                self._key = key
                self._shipper.aim(target, since)
                self._effects = [e for e in self._effects if not isinstance(e, base.Capture)]
                self.handle(base.StandbysChanged((key,)))

    def clear_target(self) -> None:
        """No standby, and nothing to keep instead."""
        with self.host.changed:
            if self._key:
                self._key = ""
                self._effects = [e for e in self._effects if not isinstance(e, base.Capture)]
            self.handle(base.StandbysChanged(()))

    def drained(self) -> bool:
        """Take the last checkpoint; true once it is safe. Call with ``host.changed`` held."""
        if not self._draining:
            self._draining = True
            self.handle(base.Drain())
        return not self._effects and self.machine.safe()

    def run(self) -> None:
        while True:
            with self.host.changed:
                while not self._effects and not self.stage.stopping:
                    deadline = self.machine.next_deadline()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        self.handle(base.Tick())
                        continue
                    self.host.changed.wait(left)
                if self.stage.stopping:
                    return
                effect = self._effects.pop(0)
            if isinstance(effect, base.AckUpstream):
                for stream in self.stage.inputs if effect.input is None else (effect.input,):
                    known = self.stage.acks[stream]
                    # Made anew, not changed: inlets read it meanwhile.
                    newest = max(effect.epoch, known.get(effect.level, -1))
                    self.stage.acks[stream] = {**known, effect.level: newest}
                self.stage.send_acks()
            elif isinstance(effect, base.Capture):
                self._capture(effect)
            elif isinstance(effect, (base.Pause, base.Resume)):
                self._pause(isinstance(effect, base.Pause))

    def _pause(self, pause: bool) -> None:
        """A stage is paused by not granting its next epoch; what it is at, it finishes."""
        stage = self.stage
        with self.host.changed:
            stage.paused = pause
            if pause and stage.granted == stage.committed:
                self.handle(base.Paused(stage.name))
            self.host.changed.notify_all()

    def _capture(self, order: base.Capture) -> None:
        needed = files_of_version(self.stage.state, order.epoch - self.stage.base)
        if order.queue:
            needed |= self.stage.queue_files(order.epoch)
        failure = self._shipper.ship(order.epoch, needed)
        if failure == "fenced":
            self.stage.fence()
        elif failure is None:
            self.newest = order.epoch
            with self.host.changed:
                self.handle(base.Pasted(order.stage, order.standby, order.epoch))
        elif failure != "moved":
            with self.host.changed:
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
                "standby": f"{host.name}#{stage.since}",
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
