"""What one policy does for a unit that is led from a host in virtual time; as ``runtime.keeper``.

A unit has one keeper, and a second one while it changes its policy: each with its own machine, its own standbys, and
its own word on what may be acknowledged upstream. Only what all of them allow is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.core import failover
from understudy.core.acks import FINAL
from understudy.core.policies import Policy, base
from understudy.sim.disks import Version
from understudy.sim.members import Targets

if TYPE_CHECKING:
    from understudy.sim.copies import Acks, Copy
    from understudy.sim.units import Unit


class Keeper:
    """Drives one policy's machine: takes the checkpoints that it orders, and notes what it lets be acknowledged."""

    def __init__(self, unit: Unit, policy: Policy) -> None:
        """The machine begins where the unit's copies are."""
        self.unit, self.host, self.world, self.policy = unit, unit.host, unit.world, policy
        copies = unit.copies.values()
        role = self.world.topology.role
        self.machine = policy.protect([role(copy.name, copy.done, copy.output.queue.trimmed) for copy in copies])
        self.acks: dict[str, Acks] = {copy.name: {i: {} for i in copy.inputs} for copy in copies}
        """Stage -> input -> level -> what may be acknowledged as far as this policy goes."""
        self.levels = policy.levels if policy.recovery == "replay" else 0
        self.targets = Targets(unit)
        self.over = False
        self._begun = {copy.name: copy.done for copy in copies}
        self._serial: int | None = None
        self._turn: int | None = None
        """The turn that is done when the producers keep enough; others are when standbys are ready. None once that was
        reported."""
        self._captures: dict[tuple[str, str], float] = {}
        """Captures under way -> since when."""
        self._held_by: dict[str, set[str]] = {}
        """Standby -> the stages that it has."""
        self._timer_at = float("inf")

    # -- plans --------------------------------------------------------------------------------------------------------

    def serves(self, policy: Policy) -> bool:
        """This keeper can go on under ``policy``: it is the same, or differs in who asks whom only."""
        return self.policy == policy or (self.policy.standby_runs and policy.standby_runs)

    def agree(self, policy: Policy, standbys: failover.Standbys) -> None:
        """A new plan has come. Where the unit is checkpointed, and until the coordinator knows of a standby's version,
        this host's own disk is what to go back to."""
        self.policy = policy
        serial = standbys.serial if isinstance(standbys, failover.Turn) and self.levels else None
        if serial != self._serial:
            self._serial = self._turn = serial
            self._perhaps_turned()
        self.placed()
        counts = standbys.standbys if isinstance(standbys, failover.Turn) else standbys.ready
        if self.targets.aim(standbys, own=not counts and policy.recovery == "standby" and not policy.standby_runs):
            at = self.targets.at
            self._held_by = {key: self._held_by.get(key, set()) for key in at}
            self._captures = {pair: t for pair, t in self._captures.items() if pair[1] in at}
            self.note(base.StandbysChanged(tuple(at)))

    def placed(self) -> None:
        """Tell the machine which producers share this host's fate."""
        if self.levels:
            shares_fate, hosts = self.world.topology.shares_fate, self.host.primaries
            for copy in self.unit.copies.values():
                near = tuple(i for i in copy.inputs if shares_fate(copy.name, i, hosts, self.levels))
                self.note(base.Placed(copy.name, near))

    def stop(self) -> None:
        self.over = True
        for copy in self.unit.copies.values():
            copy.paused_by.discard(self)

    # -- the machine --------------------------------------------------------------------------------------------------

    def note(self, event: base.Event) -> None:
        if self.over:
            return
        now = self.world.engine.now
        for effect in self.machine.handle(event, now):
            self.host.carry_out(effect, self._carry_out)
            if self.over:
                return
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline < self._timer_at:
            self._timer_at = max(deadline, now)
            self.host.living.after(max(0.0, deadline - now), self._tick)

    def _tick(self) -> None:
        self._timer_at = float("inf")
        self.note(base.Tick())

    def _carry_out(self, effect: base.Effect) -> None:
        if isinstance(effect, base.AckUpstream):
            self._ack(self.unit.copies[effect.stage], effect)
        elif isinstance(effect, base.Capture):
            self._capture(effect)
        elif isinstance(effect, base.TrimStandby):
            target = self.targets.at.get(effect.standby)
            if target is not None:
                message = (self.unit.generation, effect.stage, effect.epoch)
                self.world.send(self.host, target[0], self.unit.name, "trim", message)
        else:
            copy = self.unit.copies[effect.stage]
            if isinstance(effect, base.Resume):
                copy.paused_by.discard(self)
                copy.try_run()
                return
            copy.paused_by.add(self)
            if not copy.busy:
                self.host.living.after(0.0, self.note, base.Paused(copy.name))

    # -- acknowledging ------------------------------------------------------------------------------------------------

    def _ack(self, copy: Copy, effect: base.AckUpstream) -> None:
        acks = self.acks[copy.name]
        for stream in copy.inputs if effect.input is None else (effect.input,):
            known = acks[stream]
            if effect.epoch > known.get(effect.level, -1):
                # Made anew, never changed: messages that are on their way carry what was said when they left.
                acks[stream] = {**known, effect.level: effect.epoch}
                if copy.acks is not acks:
                    self.unit.allow(copy)
            self.unit.send_ack(copy, stream)
        if self._turn is not None:
            self._perhaps_turned()

    def _perhaps_turned(self) -> None:
        if self._turn is not None and self._producers_keep_enough():
            turn, self._turn = self._turn, None
            self.host.report(failover.Turned(self.unit.name, self.unit.generation, turn))

    def _producers_keep_enough(self) -> bool:
        """Not even the first epoch that this protection saw is needed any more. What the state was made of before that,
        and may have been trimmed under the policy before, is not needed then either."""
        return all(
            acks.get(FINAL, -1) > self._begun[stage] for stage, inputs in self.acks.items() for acks in inputs.values()
        )

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _capture(self, order: base.Capture) -> None:
        unit, copy = self.unit, self.unit.copies[order.stage]
        first, output = order.epoch + 1, ()
        if order.queue:
            queue = copy.output
            first = min(queue.queue.first, order.epoch + 1)
            output = tuple(queue.values[e] for e in range(first, order.epoch + 1))
        version = Version(order.epoch, copy.history[order.epoch], first, output, gap=copy.output.gap)
        self._captures[order.stage, order.standby] = self.host.now
        host, _ = self.targets.at[order.standby]
        if host == self.host.name:
            self.host.living.after(self.world.conditions.disk_s, self._store_here, order.stage, order.standby, version)
            return
        unit.orders += 1
        message = (unit.generation, order.stage, order.standby, version, self.host.name, unit.orders)
        self.world.send(self.host, host, unit.name, "paste", message)

    def _store_here(self, stage: str, key: str, version: Version) -> None:
        if self.over or key not in self.targets.at:
            return
        if self.host.disk_full:
            self.pasted(stage, key, -1, "disk")
            return
        self.host.disk.paste(stage, version)
        self.pasted(stage, key, version.epoch, None)

    def pasted(self, stage: str, key: str, epoch: int, refusal: str | None) -> None:
        """A standby's answer to a checkpoint, or news of how far its copy is."""
        self._captures.pop((stage, key), None)
        if refusal is not None:
            full = refusal == "disk"
            if full:
                self.targets.report_unusable(key, "no space left on device")
            self.note(base.CaptureFailed(stage, key, lost_standby=full))
            return
        held = self._held_by[key]
        held.add(stage)
        self.note(base.Pasted(stage, key, epoch))
        if len(held) == len(self.unit.copies) and key in self.targets.at:
            self.targets.report_ready(key)

    def retry(self, before: float) -> None:
        """What has had no answer since ``before`` has failed."""
        for (stage, key), since in [*self._captures.items()]:
            if since <= before:
                del self._captures[stage, key]
                self.note(base.CaptureFailed(stage, key, lost_standby=False))
