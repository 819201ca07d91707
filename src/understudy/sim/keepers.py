"""What carries out, in virtual time, what keeps a unit safe (``core.keeping``); as ``runtime.keeper``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.core import keeping
from understudy.core.numbers import NO_EPOCH, Epoch
from understudy.core.policies import Policy, base
from understudy.sim.disks import Version

if TYPE_CHECKING:
    from understudy.sim.copies import Copy
    from understudy.sim.units import Unit


class Keeper:
    """Takes the checkpoints that its machine orders, acknowledges, and reports."""

    def __init__(self, unit: Unit, policy: Policy) -> None:
        """The machine begins where the unit's copies are."""
        self.unit, self.host, self.world = unit, unit.host, unit.world
        role = self.world.topology.role
        roles = [role(copy.name, copy.done, copy.output.queue.trimmed) for copy in unit.copies.values()]
        self.machine = keeping.Keeper(unit.holdings, policy, roles)
        self.over = False
        self._captures: dict[tuple[str, str], float] = {}
        """Captures under way -> since when."""
        self._timer_at = float("inf")
        self._draining = False

    def serves(self, policy: Policy) -> bool:
        return self.machine.serves(policy)

    def agree(self, charge: keeping.Charge) -> None:
        """A new plan has come."""
        self._captures = {pair: t for pair, t in self._captures.items() if pair[1] in charge.standbys}
        self._do(self.machine.agree(charge, self.world.topology, self.host.directory.primaries, self.host.now))

    def stop(self) -> None:
        self.over = True
        for copy in self.unit.copies.values():
            copy.paused_by.discard(self)

    def drained(self) -> bool:
        """Take the last checkpoints; true once they are safe."""
        if not self._draining:
            self._draining = True
            self.note(base.Drain())
        return self.machine.safe()

    # -- the machine --------------------------------------------------------------------------------------------------

    def note(self, event: base.Event) -> None:
        if not self.over:
            self._do(self.machine.handle(event, self.world.engine.now))

    def _do(self, effects: list[keeping.Effect]) -> None:
        for effect in effects:
            self.host.carry_out(effect, self._carry_out)
            if self.over:
                return
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline < self._timer_at:
            now = self.world.engine.now
            self._timer_at = max(deadline, now)
            self.host.living.after(max(0.0, deadline - now), self._tick)

    def _tick(self) -> None:
        self._timer_at = float("inf")
        self.note(base.Tick())

    def _carry_out(self, effect: keeping.Effect) -> None:
        match effect:
            case base.AckUpstream():
                self._ack(self.unit.copies[effect.stage], effect)
            case base.Capture():
                self._capture(effect)
            case base.Pause():
                copy = self.unit.copies[effect.stage]
                copy.paused_by.add(self)
                if not copy.busy:
                    self.host.living.after(0.0, self.note, base.Paused(copy.name))
            case base.Resume():
                copy = self.unit.copies[effect.stage]
                copy.paused_by.discard(self)
                copy.try_run()
            case base.Late():
                self.host.tell(f"is {effect.late_s:.3f} s late to save {effect.stage}")
            case keeping.Report():
                self.host.report(effect.event)
            case _:
                raise TypeError(f"nobody can carry out {effect}")

    def _ack(self, copy: Copy, effect: base.AckUpstream) -> None:
        known = self.world.acknowledged
        known[copy.name] = max(effect.epoch, known.get(copy.name, NO_EPOCH))
        if copy.acks is not self.machine.acks[copy.name]:
            self.unit.allow(copy)
        for stream in copy.inputs if effect.input is None else (effect.input,):
            self.unit.send_ack(copy, stream)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _capture(self, order: base.Capture) -> None:
        unit, copy = self.unit, self.unit.copies[order.stage]
        version = copy.version(order.epoch, queue=order.queue)
        if version is None:
            self.host.living.after(0.0, self.pasted, order.stage, order.standby, NO_EPOCH, "passed")
            return
        self._captures[order.stage, order.standby] = self.host.now
        host, _ = self.machine.standbys[order.standby]
        if host == self.host.name:
            self.host.living.after(self.world.conditions.disk_s, self._store_here, order.stage, order.standby, version)
            return
        unit.orders += 1
        message = (unit.generation, order.stage, order.standby, version, self.host.name, unit.orders)
        self.world.send(self.host, host, unit.name, "paste", message)

    def _store_here(self, stage: str, key: str, version: Version) -> None:
        if self.over or key not in self.machine.standbys:
            return
        if self.host.disk_full:
            self.pasted(stage, key, NO_EPOCH, "disk")
            return
        self.host.disk.paste(stage, version)
        self.pasted(stage, key, version.epoch, None)

    def pasted(self, stage: str, key: str, epoch: Epoch, refusal: str | None) -> None:
        """A standby's answer to a checkpoint, or news of how far its copy is."""
        self._captures.pop((stage, key), None)
        if self.over:
            return
        if refusal == "disk":
            self._do(self.machine.unusable(stage, key, "no space left on device", self.host.now))
        elif refusal is not None:
            self.note(base.CaptureFailed(stage, key, lost_standby=False))
        else:
            self.world.saved[stage, key] = max(epoch, self.world.saved.get((stage, key), NO_EPOCH))
            self.note(base.Pasted(stage, key, epoch))

    def retry(self, before: float) -> None:
        """What has had no answer since ``before`` has failed."""
        for (stage, key), since in [*self._captures.items()]:
            if since <= before:
                del self._captures[stage, key]
                self.note(base.CaptureFailed(stage, key, lost_standby=False))
