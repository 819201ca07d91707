"""A unit of stages on a host in virtual time: as primary, or as one of its standbys.

The primary drives the policy's protection; a standby keeps checkpoints on disk, or runs as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from understudy.core import failover
from understudy.core.acks import FINAL
from understudy.core.failover import UnitPlan
from understudy.core.policies import base
from understudy.sim.copies import Copy, Output
from understudy.sim.disks import Version
from understudy.sim.members import Member

if TYPE_CHECKING:
    from understudy.sim.hosts import Host


class Unit(Member):
    """A unit of stages."""

    def __init__(self, host: Host, name: str, generation: int, *, primary: bool, since: int) -> None:
        super().__init__(host, name, generation, primary=primary, since=since)
        self.copies: dict[str, Copy] = {}
        self.protection: base.Protection | None = None
        self.wants_received = not self.policy.protected
        self.levels = self.policy.levels if self.policy.recovery == "replay" else 0
        self.own = f"{host.name}#self"
        """This host's own disk, which is the target of checkpoints while there is no standby."""
        self._captures: dict[tuple[str, str], float] = {}
        """Captures under way -> since when."""
        self._held_by: dict[str, set[str]] = {}
        """Standby -> the stages that it has."""
        self._begin_at: dict[tuple[str, str], int] = {}
        self._beginning: str | None = None
        self._timer_at = float("inf")
        self.risen = False

    # -- life ---------------------------------------------------------------------------------------------------------

    def begin(self, start: str) -> None:
        """Start as primary."""
        if start in ("newest", "replay"):
            self._beginning = start
            self._ask_where()
            return
        for stage in self.shape.stages:
            self.copies[stage] = self._restored(stage) if start == "held" else self._fresh(stage)
        self._protect()

    def promote(self, generation: int) -> None:
        """From standby to primary: with what runs already, else with what is on disk."""
        self.generation, self.primary, self.risen = generation, True, False
        self.copies = {stage: self.copies.get(stage) or self._restored(stage) for stage in self.shape.stages}
        self._protect()

    def _fresh(self, stage: str) -> Copy:
        return Copy(self, stage, done=-1, state=self.world.job.fresh(stage))

    def _restored(self, stage: str) -> Copy:
        version = self.host.disk.newest(stage)
        return self._fresh(stage) if version is None else self._from(stage, version)

    def _from(self, stage: str, version: Version) -> Copy:
        self.host.tell(f"restores {stage} at epoch {version.epoch}")
        return Copy(
            self, stage, done=version.epoch, state=version.state, first=version.first, output=version.output
        )

    def _protect(self) -> None:
        self.fenced = False
        roles = self.world.topology.roles(self.name, {stage: copy.done for stage, copy in self.copies.items()})
        self.protection = self.policy.protect(roles)
        self.targets, self._captures, self._held_by = {}, {}, {}
        self._reported = set()
        for copy in list(self.copies.values()):
            copy.stopped = False
            self._place(copy)
            copy.go()

    def _place(self, copy: Copy) -> None:
        """Tell the protection which producers share this host's fate."""
        if self.levels and self.protection is not None:
            hosts = self.host.primaries
            near = tuple(i for i in copy.inputs if self.world.topology.shares_fate(copy.name, i, hosts))
            self.note(base.Placed(copy.name, near))

    def stop(self) -> None:
        for copy in self.copies.values():
            copy.stopped = True
        self.protection = None

    def rise(self) -> None:
        """The primary is suspected: run from the last checkpoint, without sending."""
        if not self.risen and not self.copies:
            self.risen = True
            self.copies = {stage: self._restored(stage) for stage in self.shape.stages}
            for copy in self.copies.values():
                copy.go()

    def stand_down(self) -> None:
        if self.risen:
            self.risen = False
            self.stop()
            self.copies = {}

    # -- beginning without state --------------------------------------------------------------------------------------

    def _ask_where(self) -> None:
        for stage in self.shape.stages:
            for stream in self.world.topology.stages[stage].inputs:
                if stream in self.shape.stages or (stage, stream) in self._begin_at:
                    continue
                unit = self.world.topology.unit_of[stream]
                producer = self.host.plan[unit].primary
                if producer is not None:
                    newest = self._beginning == "newest"
                    message = (stream, stage, self.name, self.generation, self.host.name, newest)
                    self.world.send(self.host, producer, unit, "where", message)

    def begin_at(self, generation: int, stage: str, stream: str, epoch: int) -> None:
        if self._beginning is None or self.fenced or generation != self.generation:
            return
        self._begin_at[stage, stream] = epoch
        stages = self.world.topology.stages
        outside = [(s, i) for s in self.shape.stages for i in stages[s].inputs if i not in self.shape.stages]
        if any(pair not in self._begin_at for pair in outside):
            return
        lossy, self._beginning = self._beginning == "newest", None
        valid: dict[str, int] = {}
        for name in self.shape.stages:
            begin = max(valid[i] if i in self.shape.stages else self._begin_at[name, i] for i in stages[name].inputs)
            # With nothing in its state, a stage's output is right again once its whole window was read.
            span = self.world.job.span_of(name)
            valid[name] = begin if lossy or begin == 0 else begin + span - 1
            state = self.world.job.fresh(name)
            self.copies[name] = Copy(self, name, done=begin - 1, state=state, first=valid[name])
        self.host.tell(f"begins {self.name} without state: {valid}")
        self._begin_at = {}
        self._protect()
        wanted = self.host.plan.get(self.name)
        if wanted is not None:
            self.set_standbys(wanted)

    # -- protection ---------------------------------------------------------------------------------------------------

    def note(self, event: base.Event) -> None:
        protection = self.protection
        if protection is None:
            return
        now = self.world.engine.now
        for effect in protection.handle(event, now):
            self.host.carry_out(effect, self._carry_out)
            if self.protection is not protection:
                return
        deadline = protection.next_deadline()
        if deadline is not None and deadline < self._timer_at:
            self._timer_at = max(deadline, now)
            self.host.living.after(max(0.0, deadline - now), self._tick)

    def _tick(self) -> None:
        self._timer_at = float("inf")
        self.note(base.Tick())

    def _carry_out(self, effect: base.Effect) -> None:
        if isinstance(effect, base.AckUpstream):
            copy = self.copies[effect.stage]
            for stream in copy.inputs if effect.input is None else (effect.input,):
                known = copy.acks[stream]
                if effect.epoch > known.get(effect.level, -1):
                    # Made anew, never changed: messages that are on their way carry what was said when they left.
                    copy.acks[stream] = {**known, effect.level: effect.epoch}
                self._send_ack(copy, stream)
        elif isinstance(effect, base.Capture):
            self._capture(effect)
        elif isinstance(effect, base.TrimStandby):
            target = self.targets.get(effect.standby)
            if target is not None:
                message = (self.generation, effect.stage, effect.epoch)
                self.world.send(self.host, target[0], self.name, "trim", message)
        else:
            copy = self.copies[effect.stage]
            copy.paused = isinstance(effect, base.Pause)
            if not copy.paused:
                copy.try_run()
            elif not copy.busy:
                self.host.living.after(0.0, self.note, base.Paused(copy.name))

    def processed(self, copy: Copy, epoch: int) -> None:
        """A copy has processed an epoch."""
        if self.primary:
            needs = None
            if self.levels:
                oldest = self.world.job.needs_after(copy.name, epoch)
                needs = dict.fromkeys(copy.inputs, oldest)
            self.note(base.Committed(copy.name, epoch, needs))
        elif not self.risen:
            wanted = self.host.plan.get(self.name)
            if wanted is not None and wanted.primary is not None:
                message = (self.generation, copy.name, self.key, epoch, None)
                self.world.send(self.host, wanted.primary, self.name, "pasted", message)

    def set_standbys(self, wanted: UnitPlan) -> None:
        if self.fenced or self.protection is None:
            return
        changed = self._aim(wanted)
        keeps = bool(self.policy.backups) and not self.policy.standby_runs
        if keeps and not self.targets:
            self.targets = {self.own: (self.host.name, -1)}
        elif keeps and wanted.ready:
            # Only now: until the coordinator knows of the standby's version, this host's own is the one to go back to.
            self.host.disk.drop(self.shape.stages)
        if changed or not self._held_by:
            for key in self.targets:
                self._held_by.setdefault(key, set())
            self._captures = {pair: t for pair, t in self._captures.items() if pair[1] in self.targets}
            self.note(base.StandbysChanged(tuple(self.targets)))

    def _capture(self, order: base.Capture) -> None:
        copy = self.copies[order.stage]
        first, output = order.epoch + 1, ()
        if order.queue:
            queue = copy.output
            first = min(queue.queue.first, order.epoch + 1)
            output = tuple(queue.values[e] for e in range(first, order.epoch + 1))
        version = Version(order.epoch, copy.history[order.epoch], first, output)
        self._captures[order.stage, order.standby] = self.host.now
        host, _ = self.targets[order.standby]
        if host == self.host.name:
            self.host.living.after(self.world.conditions.disk_s, self._store_here, order.stage, order.standby, version)
            return
        message = (self.generation, order.stage, order.standby, version, self.host.name)
        self.world.send(self.host, host, self.name, "paste", message)

    def _store_here(self, stage: str, key: str, version: Version) -> None:
        if self.protection is None or key not in self.targets:
            return
        if self.host.disk_full:
            self.pasted(self.generation, stage, key, -1, "disk")
            return
        self.host.disk.paste(stage, version)
        self.pasted(self.generation, stage, key, version.epoch, None)

    def pasted(self, generation: int, stage: str, key: str, epoch: int, refusal: str | None) -> None:
        """A standby's answer to a checkpoint, or news of how far its copy is."""
        if not self.primary or generation != self.generation or self.protection is None or key not in self.targets:
            return
        if refusal == "fenced":
            self.fence()
            return
        self._captures.pop((stage, key), None)
        if refusal is not None:
            full = refusal == "disk"
            if full:
                host, since = self.targets[key]
                event = failover.StandbyUnusable(self.name, self.generation, host, since, "no space left on device")
                self.host.report(event)
            self.note(base.CaptureFailed(stage, key, lost_standby=full))
            return
        held = self._held_by.setdefault(key, set())
        held.add(stage)
        self.note(base.Pasted(stage, key, epoch))
        if len(held) == len(self.shape.stages) and key in self.targets:
            self._ready(key)

    # -- as standby ---------------------------------------------------------------------------------------------------

    def paste(self, generation: int, stage: str, key: str, version: Version, sender: str) -> None:
        if self.host.stale(self.name, generation):
            self._pasted(sender, generation, stage, key, -1, "fenced")
        elif self.primary or generation != self.generation or key != self.key:
            self._pasted(sender, generation, stage, key, -1, "elsewhere")
        elif self.host.disk_full:
            self._pasted(sender, generation, stage, key, -1, "disk")
        elif self.policy.standby_runs:
            copy = self.copies.get(stage)
            if copy is None or copy.done < version.epoch:
                if copy is not None:
                    copy.stopped = True
                copy = self.copies[stage] = self._from(stage, version)
                copy.go()
            self._pasted(sender, generation, stage, key, copy.done, None)
        else:
            self.host.living.after(
                self.world.conditions.disk_s, self._store_paste, generation, stage, key, version, sender
            )

    def _store_paste(self, generation: int, stage: str, key: str, version: Version, sender: str) -> None:
        if self.primary or generation != self.generation or self.host.units.get(self.name) is not self:
            return
        self.host.disk.paste(stage, version)
        self._pasted(sender, generation, stage, key, version.epoch, None)

    def _pasted(self, sender: str, generation: int, stage: str, key: str, epoch: int, refusal: str | None) -> None:
        message = (generation, stage, key, epoch, refusal)
        self.world.send(self.host, sender, self.name, "pasted", message)

    def trim(self, generation: int, stage: str, epoch: int) -> None:
        copy = self.copies.get(stage)
        if not self.primary and generation == self.generation and copy is not None:
            for consumer in copy.output.queue.progress:
                copy.output.ack(consumer, epoch)
            copy.prune(copy.output.queue.trimmed)

    def _give_up(self) -> None:
        """As a running standby: what it needs is gone, and its primary must not wait for it."""
        self.stop()
        if self.policy.standby_runs:
            cause = "its input is gone"
            self.host.report(failover.StandbyUnusable(self.name, self.generation, self.host.name, self.since, cause))

    # -- streams ------------------------------------------------------------------------------------------------------

    def outputs(self) -> Mapping[str, Output]:
        return {name: copy.output for name, copy in self.copies.items()}

    def output(self, stream: str) -> Output | None:
        copy = self.copies.get(stream)
        return None if copy is None else copy.output

    def send_request(self, copy: Copy, stream: str, epoch: int) -> None:
        acks = copy.acks[stream] if self.primary else {}
        if stream in copy.inside:
            self.host.living.after(0.0, self._request_inside, copy, stream, epoch, acks)
            return
        unit = self.world.topology.unit_of[stream]
        message = (stream, copy.name, self.name, self.generation, epoch, acks, self.host.name, self.primary)
        for producer in self.host.producers.get(unit, ()):
            self.world.send(self.host, producer, unit, "request", message)

    def _request_inside(self, copy: Copy, stream: str, epoch: int, acks: dict[int, int]) -> None:
        producer = self.copies.get(stream)
        if producer is None or copy.stopped:
            return
        if self.primary:
            producer.output.queue.hears(copy.name, self.generation, near=True)
            producer.output.queue.request(copy.name, epoch)
            self.acked(producer, copy.name, acks)
        reply = partial(self.host.living.after, 0.0, self.deliver, self.generation, copy.name, stream)
        producer.output.serve((copy.name, self.host.name), epoch, reply)

    def _send_ack(self, copy: Copy, stream: str) -> None:
        acks = copy.acks[stream]
        if stream in copy.inside:
            self.host.living.after(0.0, self._ack_inside, stream, copy.name, acks)
            return
        unit = self.world.topology.unit_of[stream]
        message = (stream, copy.name, self.name, self.generation, acks, self.host.name)
        for producer in self.host.producers.get(unit, ()):
            self.world.send(self.host, producer, unit, "ack", message)

    def _ack_inside(self, stream: str, consumer: str, acks: dict[int, int]) -> None:
        producer = self.copies.get(stream)
        if producer is not None and not producer.stopped:
            producer.output.queue.hears(consumer, self.generation, near=True)
            self.acked(producer, consumer, acks)

    def acknowledged(self, stream: str, consumer: str, acks: Mapping[int, int]) -> None:
        copy = self.copies[stream]
        if not copy.stopped:
            self.acked(copy, consumer, acks)

    def acked(self, copy: Copy, consumer: str, acks: Mapping[int, int]) -> None:
        output, trimmed = copy.output, None
        if output.heard.get(consumer) is not acks:
            output.heard[consumer] = acks
            for level, epoch in acks.items():
                moved = output.ack(consumer, epoch, level)
                trimmed = moved if moved is not None else trimmed
        if self.primary:
            for level in range(self.levels):
                self.note(base.Acked(copy.name, level, output.queue.bound(level)))
            if trimmed is not None and not copy.stopped:
                self.world.trimmed(copy.name, output.queue.first - 1)
                self.note(base.Acked(copy.name, FINAL, trimmed))
                copy.prune(trimmed)
        copy.try_run()

    def deliver(
        self, generation: int, stage: str, stream: str, epoch: int, value: int, refusal: str | None
    ) -> None:
        """An answer to what this unit asked when it was of ``generation``."""
        copy = self.copies.get(stage)
        if copy is None or copy.stopped:
            return
        if refusal == "fenced":
            if self.primary and generation == self.generation:
                self.fence()
        elif refusal == "gone":
            if epoch == copy.received[stream] + 1 and not self.primary:
                self._give_up()
            elif epoch == copy.received[stream] + 1:
                self.world.violate(f"{stage} on {self.host.name} needs epoch {epoch} of {stream}, which nobody has")
        else:
            copy.deliver(stream, epoch, value)

    # -- housekeeping -------------------------------------------------------------------------------------------------

    def plan_changed(self) -> None:
        """Producers may have moved: ask those that are there now."""
        if self._beginning is not None:
            self._ask_where()
        for copy in list(self.copies.values()):
            if not copy.stopped:
                self._place(copy)
                copy.retry(float("inf"))

    def retry(self) -> None:
        if self.fenced:
            return
        if self._beginning is not None:
            self._ask_where()
        before = self.host.now - self.world.conditions.retry_s
        for copy in self.copies.values():
            if not copy.stopped:
                copy.retry(before)
        for (stage, key), since in [*self._captures.items()]:
            if since <= before - self.world.conditions.retry_s:
                del self._captures[stage, key]
                self.note(base.CaptureFailed(stage, key, lost_standby=False))
