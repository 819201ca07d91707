"""The subjobs of Gu et al. 2009: who runs one, how it is protected, and what its standby has.

The policies' protections are the very machines that jobs run with. A ``Copy`` tells them what its PEs did and carries
out their orders, each of which takes its time here: calls, pauses, serialising, storing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from understudy.core.numbers import NO_EPOCH, Epoch, after
from understudy.core.policies import ActiveStandby, NoProtection, PassiveStandby, base, passive
from understudy.lab.gu_params import Method, Params
from understudy.lab.gu_pes import Host, Pe

if TYPE_CHECKING:
    from understudy.lab.gu_model import World


class PaperVersions(passive.StageVersions):
    """Section 3.1 to the letter: a sweeping version is the newest state at the time of the trim."""

    def advance(self, *, committed: Epoch | None = None, trimmed: Epoch | None = None, version: bool = True) -> None:
        before, moved = self.due, trimmed is not None and trimmed > self.trimmed
        super().advance(committed=committed, trimmed=trimmed, version=version)
        if self.sweeping:
            self.due = self.committed if self.timed or moved else before


def protect(method: Method, roles: list[base.StageRole], params: Params) -> base.Protection:
    """The machine that protects these PEs."""
    if method == "none":
        return NoProtection().protect(roles)
    if method in ("lazy", "eager"):
        return ActiveStandby(delivery=method).protect(roles)
    machine = PassiveStandby(method, every=params.interval_s).protect(roles)  # type: ignore[arg-type]
    if params.protocol == "paper":
        versions: dict[str, passive.StageVersions]
        versions = {r.name: PaperVersions(r, every_s=params.interval_s, sweeping=method == "sweeping") for r in roles}
        if isinstance(machine, passive.Individual):
            for name, each in machine.each.items():
                each.stages = {name: versions[name]}
        else:
            assert isinstance(machine, (passive.Sweeping, passive.Synchronous))
            machine.stages = versions
    return machine


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint: of a PE, or of a whole subjob when synchronous."""

    pes: tuple[str, ...]
    begin: float
    end: float
    elements: float


class Copy:
    """A subjob on one host: the primary with its protection, or an active standby that runs beside it."""

    def __init__(self, unit: Unit, host: Host, *, primary: bool) -> None:
        self.unit, self.world, self.host, self.primary = unit, unit.world, host, primary
        self.pes: dict[str, Pe] = {}
        self.machines: dict[str, base.Protection] = {}
        """PE -> what protects it; all the same one when checkpoints are synchronous."""
        self._group: dict[str, tuple[str, ...]] = {}
        """PE -> those that are checkpointed together with it."""
        self._rounds: dict[tuple[str, ...], tuple[float, float]] = {}
        """Those that were told to pause for a checkpoint -> since when, and its elements so far."""

    def stop(self) -> None:
        for pe in self.pes.values():
            pe.stopped = True

    def protect(self, standbys: Callable[[str], tuple[tuple[str, ...], float]]) -> None:
        """``standbys`` tells each PE's, and when its timer begins."""
        last = self.world.last_pe
        roles = [base.StageRole(pe.name, pe.done, last=pe.name == last) for pe in self.pes.values()]
        groups = [roles] if self.unit.method == "synchronous" else [[role] for role in roles]
        for group in groups:
            machine = protect(self.unit.method, group, self.world.params)
            for role in group:
                self.machines[role.name] = machine
                self._group[role.name] = tuple(each.name for each in group)
            names, begin_s = standbys(group[0].name)
            if names:
                self.world.engine.after(begin_s, self._told, group[0].name, base.StandbysChanged(names))

    def _told(self, pe: str, event: base.Event) -> None:
        """Somebody tells the protection of ``pe``, or time does."""
        if self.host.alive and pe in self.machines:
            self._carry_out(self.machines[pe].handle(event, self.world.engine.now))
            self._plan_tick(pe)

    def note(self, event: Any) -> None:
        self._told(event.stage, event)

    def _plan_tick(self, pe: str) -> None:
        deadline = self.machines[pe].next_deadline()
        timers = self.unit.timers
        if deadline is not None and timers.get(pe, float("inf")) > max(deadline, self.world.engine.now):
            timers[pe] = max(deadline, self.world.engine.now)
            self.world.engine.at(deadline, self._tick, pe, timers[pe])

    def _tick(self, pe: str, planned: float) -> None:
        if self.unit.timers.get(pe) == planned:
            del self.unit.timers[pe]
            self._told(pe, base.Tick())

    def processed(self, pe: Pe) -> None:
        if self.primary:
            self.note(base.Committed(pe.name, pe.done))
        elif pe.done % self.world.report_every == 0:
            self.unit.bytes["ack"] += self.world.params.ack_bytes
            event = base.Pasted(pe.name, self.host.name, pe.done)
            self.world.engine.after(self.world.params.link_delay_s, self.unit.primary.note, event)

    def paused(self, pe: Pe) -> None:
        """The PE was called to suspend itself, has done so, and says so with another call."""
        if self._group.get(pe.name) in self._rounds:
            self.world.engine.after(2 * self.world.params.call_s, self.note, base.Paused(pe.name))

    # -- orders

    def _carry_out(self, effects: Iterable[base.Effect]) -> None:
        for effect in effects:
            pe = self.pes[effect.stage]
            if isinstance(effect, base.AckUpstream):
                pe.acknowledge(effect.epoch)
            elif isinstance(effect, base.Capture):
                self._capture(pe, effect)
            elif isinstance(effect, base.TrimStandby):
                copy = self.unit.copies.get(effect.standby)
                if copy is not None:
                    self.unit.bytes["ack"] += self.world.params.ack_bytes
                    for consumer in copy.pes[pe.name].queue.progress:
                        copy.pes[pe.name].acked(consumer, effect.epoch)
            elif isinstance(effect, base.Pause):
                self._rounds.setdefault(self._group[pe.name], (self.world.engine.now, 0.0))
                pe.paused = True
                if not pe.busy:
                    self.paused(pe)
            else:
                if (pes := self._group[pe.name]) in self._rounds:
                    begin, elements = self._rounds.pop(pes)
                    self.world.checkpoints.append(Checkpoint(pes, begin, self.world.engine.now, elements))
                pe.paused = False
                pe.try_run()

    def _capture(self, pe: Pe, order: base.Capture) -> None:
        world, params, now = self.world, self.world.params, self.world.engine.now
        if self.unit.method in ("lazy", "eager"):  # both copies began together: there is nothing to give
            world.engine.after(0.0, self.note, base.Pasted(pe.name, order.standby, order.epoch))
            return
        whole = params.protocol == "paper"
        first = min(pe.queue.first, after(order.epoch)) if order.queue or whole else after(order.epoch)
        begin = first if whole else max(first, pe.shipped + 1)
        pe.shipped = max(pe.shipped, order.epoch)
        elements = params.state_elements + max(0, order.epoch + 1 - begin) * world.batch
        group = self._group[pe.name]
        begun = self._rounds.get(group)
        if begun is None:
            calls = params.calls
            pe.paused = pe.paused or whole
        else:
            calls = params.calls - 2  # pause and paused were made before
            self._rounds[group] = (begun[0], begun[1] + elements)
        stored = now + calls * params.call_s + elements * params.store_s + params.link_delay_s
        self.unit.bytes["checkpoint"] += round(elements * params.element_bytes)
        world.engine.at(stored, self._stored, pe, order, first, now, elements)

    def _stored(self, pe: Pe, order: base.Capture, first: Epoch, begin: float, elements: float) -> None:
        if not self.host.alive:
            return
        self.unit.stored[pe.name] = (order.epoch, first)
        if self._group[pe.name] not in self._rounds:
            self.world.checkpoints.append(Checkpoint((pe.name,), begin, self.world.engine.now, elements))
            pe.paused = False
            pe.try_run()
        self.note(base.Pasted(pe.name, order.standby, order.epoch))


class Unit:
    """A subjob: who runs it, and what its standby has."""

    def __init__(self, world: World, number: int, method: Method, pes: list[str]) -> None:
        self.world, self.name, self.method, self.pes = world, f"subjob {number + 1}", method, pes
        self.bytes: Counter[str] = Counter()
        """What all its copies sent to other hosts."""
        self.timers: dict[str, float] = {}
        self.stored: dict[str, tuple[Epoch, Epoch]] = {}
        """PE -> the epoch of its newest checkpoint, and the first epoch of the output queue in it."""
        self.copies: dict[str, Copy] = {}
        self.primary = self.deploy(f"machine {number + 1}", primary=True)
        if method in ("lazy", "eager"):
            self.deploy(f"standby {number + 1}", primary=False)

    def deploy(self, host: str, *, primary: bool) -> Copy:
        copy = self.copies[host] = Copy(self, Host(host), primary=primary)
        for name in self.pes:
            done, first = self.stored.get(name, (NO_EPOCH, None))
            copy.pes[name] = Pe(copy, name, self.world.consumer_of[name], done=done, first=first)
        return copy

    def running(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.host.alive]

    def senders(self) -> list[Copy]:
        """Copies that send downstream: under lazy delivery, the primary only."""
        return [c for c in self.running() if c.primary or self.method == "eager"]
