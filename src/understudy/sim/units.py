"""A unit of stages on a host in virtual time: as primary, or as one of its standbys.

The primary has a keeper for each policy that protects it; a standby keeps checkpoints on disk, or runs as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from understudy.core import agreement, beginning, failover, keeping
from understudy.core.acks import FINAL
from understudy.core.beginning import Place
from understudy.core.draining import Ending, ending
from understudy.core.landed import Known
from understudy.core.numbers import FIRST_EPOCH, NO_EPOCH, NO_GENERATION, Epoch, Generation, after, before
from understudy.core.plans import UnitPlan
from understudy.core.policies import Policy, base
from understudy.core.reach import numbered
from understudy.sim.copies import Copy, Output
from understudy.sim.disks import Version
from understudy.sim.keepers import Keeper
from understudy.sim.members import Member

if TYPE_CHECKING:
    from understudy.sim.hosts import Host


class Unit(Member):
    """A unit of stages."""

    def __init__(
        self, host: Host, name: str, generation: Generation, policy: Policy, *, primary: bool, since: int
    ) -> None:
        super().__init__(host, name, generation, policy, primary=primary, since=since)
        self.copies: dict[str, Copy] = {}
        self.keepers: tuple[Keeper, ...] = ()
        """What protects it as a primary: one keeper; a second one while it changes to another policy."""
        self.levels = 0
        """Of acknowledgements that the keepers want to hear of."""
        self.orders = 0
        """Checkpoints sent so far."""
        self._newest_order: dict[str, tuple[Generation, int]] = {}
        """As standby: stage -> generation and number of the newest checkpoint that came. One may overtake another."""
        self._begin_at: dict[tuple[str, str], Place] = {}
        self._beginning: str | None = None
        self.risen = False

    # -- life ---------------------------------------------------------------------------------------------------------

    def begin(self, start: str) -> None:
        """Start as primary."""
        if start in ("newest", "replay", "saved"):
            self._beginning = start
            self._ask_where()
            return
        for stage in self.shape.stages:
            self.copies[stage] = self._restored(stage) if start == "held" else self._fresh(stage)
        self._run()

    def promote(self, generation: Generation, *, saved: bool = False) -> None:
        """From standby to primary: with what runs already, else with what is on disk."""
        if saved:
            self.generation, self.primary, self.fenced = generation, True, False
            self.begin("saved")
            return
        if self.risen and not all(map(self._serves, self.copies.values())):
            self.stand_down()
        self.generation, self.primary, self.risen = generation, True, False
        self.copies = {stage: self.copies.get(stage) or self._restored(stage) for stage in self.shape.stages}
        self._run()

    def _serves(self, copy: Copy) -> bool:
        """A copy that rose can be promoted: it has not given up, and its input is still there."""
        held = self.host.disk.newest(copy.name)
        return not copy.stopped and agreement.copy_serves(copy.done, None if held is None else held.epoch)

    def _fresh(self, stage: str) -> Copy:
        return Copy(self, stage, done=NO_EPOCH, state=self.world.job.fresh(stage))

    def _restored(self, stage: str) -> Copy:
        version = self.host.disk.newest(stage)
        return self._fresh(stage) if version is None else self._from(stage, version)

    def _from(self, stage: str, version: Version) -> Copy:
        self.host.tell(f"restores {stage} at epoch {version.epoch}")
        done, state, first, output, gap = version.epoch, version.state, version.first, version.output, version.gap
        windows = version.windows
        self.host.landed.hears(version.landed)
        return Copy(self, stage, done=done, state=state, first=first, output=output, gap=gap, windows=windows)

    def _run(self) -> None:
        """As primary. Keepers come with the plan that made it one."""
        self.fenced, self.keepers, self.holdings = False, (), self._nothing_held()
        for copy in list(self.copies.values()):
            copy.stopped = False
            copy.go()

    def stop(self) -> None:
        for copy in self.copies.values():
            copy.stopped = True
        for keeper in self.keepers:
            keeper.stop()
        self.keepers = ()

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
                producer = self.host.directory.primaries[unit]
                if producer is not None:
                    newest = self._beginning == "newest"
                    message = (stream, stage, self.name, self.generation, self.host.name, newest)
                    self.world.send(self.host, producer, unit, "where", message)

    def begin_at(self, generation: Generation, stage: str, stream: str, place: Place) -> None:
        """A producer has answered."""
        if self._beginning is None or self.fenced or generation != self.generation:
            return
        self.host.landed.hears(place.landed)
        self._begin_at[stage, stream] = place
        stages = self.world.topology.stages
        outside = [(s, i) for s in self.shape.stages for i in stages[s].inputs if i not in self.shape.stages]
        if any(pair not in self._begin_at for pair in outside):
            return
        if self._beginning == "saved":
            self._resume_saved()
        else:
            self._begin_anew()
        self._begin_at = {}
        self._run()
        wanted = self.host.directory.units.get(self.name)
        if wanted is not None:
            self.agree(wanted)

    def _resume_saved(self) -> None:
        """With the states that were saved, at what producers have kept."""
        self._beginning = None
        valid: dict[str, Place] = {}
        for name in self.shape.stages:
            shape = self.world.topology.stages[name]
            places = [valid[i] if i in self.shape.stages else self._begin_at[name, i] for i in shape.inputs]
            found = beginning.start(places, None, 1, newest=False)
            copy = self._restored(name)
            if copy.done < self.world.saved.get((name, self.key), NO_EPOCH):
                self.world.violate(f"{name} on {self.host.name} has lost a state that was safe there")
            resumed = beginning.resumed(copy.done, found)
            # What was on its way between stages of one unit is lost with them.
            alone = not any(i in self.shape.stages for i in shape.inputs)
            if alone and not found.lost and resumed.epoch > max(copy.done, self.world.acknowledged.get(name, NO_EPOCH)):
                self.world.violate(f"{name} goes on after {resumed.epoch}, which nobody has acknowledged")
            if not shape.needs_all_input:
                at, first = resumed.epoch, after(resumed.epoch)
                state = copy.without_stale(at, {i: p.counted for i, p in zip(shape.inputs, places, strict=True)})
                copy = Copy(self, name, done=at, state=state, first=first, gap=first)
            elif resumed.skipped:
                self.world.violate(f"{name} needs all its input, and lacks {resumed.skipped} epochs after {copy.done}")
            self.copies[name] = copy
            valid[name] = Place(copy.output.queue.first, lost=False)
        self.host.tell(f"goes on with the saved states of {self.name}: {valid}")

    def _begin_anew(self) -> None:
        lossy, self._beginning = self._beginning == "newest", None
        stages = self.world.topology.stages
        lost_with = self.host.directory.lost_with.get(self.name)
        tolerates = self.host.directory.policies.of[self.name].tolerates
        valid: dict[str, Place] = {}
        for name in self.shape.stages:
            places = [valid[i] if i in self.shape.stages else self._begin_at[name, i] for i in stages[name].inputs]
            start = beginning.start(places, lost_with, tolerates, newest=lossy)
            if not start.promised:
                self.world.violate(f"{name} is rebuilt from what is being rebuilt itself: {start.row}")
            # With nothing in its state, a stage's output is right again once its whole span was read. When windows are
            # right again is not known, but no stage asks for their output before they are, and sinks are not given it.
            job, fresh = self.world.job, self.world.job.fresh(name)
            if name in job.pairs:
                epoch, totals = numbered(self.host.landed.known, name, len(places))
                if start.epoch > epoch:
                    self.world.violate(f"{name} begins at {start.epoch}, and knows its rows' numbers from {epoch} on")
                start, fresh = replace(start, epoch=epoch), job.numbered(totals)
            span = 1 if name in {**job.windows, **job.rows} or name in job.pairs else job.span_of(name)
            first = start.epoch if lossy or start.epoch == 0 else Epoch(start.epoch + span - 1)
            valid[name] = Place(first, start.lost, start.row)
            gap = first if start.lost else FIRST_EPOCH
            done = before(start.epoch)
            self.copies[name] = Copy(self, name, done=done, state=fresh, first=first, gap=gap, row=start.row)
            self.host.landed.skip(self.copies[name].output.queue)
        self.host.tell(f"begins {self.name} without state: {valid}")

    # -- protection ---------------------------------------------------------------------------------------------------

    def agree(self, wanted: UnitPlan) -> None:
        """As primary: have one keeper for each policy that counts. Those of policies that no longer do end, new ones
        begin where the copies are, and one that can go on does."""
        if self.fenced or not self.copies:
            return
        charges = keeping.charges(wanted, self.shape.policy, self.host.name)
        self.holdings.aim({key: at for charge in charges for key, at in charge.standbys.items()})
        self._keep(charges)
        if wanted.ready or not any(charge.policy.keeps_on_disk for charge in charges):
            # Only now: until the coordinator knows of the standby's version, this host's own is the one to go back to.
            self.host.disk.drop(self.shape.stages)
        running = [key for charge in charges if charge.policy.standby_runs for key in charge.standbys]
        for copy in self.copies.values():
            copy.pace.watch(running)
        for keeper, charge in zip(self.keepers, charges, strict=True):
            keeper.agree(charge)
            if not self.keepers:
                return

    def _keep(self, charges: list[keeping.Charge]) -> None:
        known = self.keepers
        going = zip(keeping.going_on(known, charges), charges, strict=True)
        self.keepers = tuple(keeper or Keeper(self, charge.policy) for keeper, charge in going)
        if self.keepers == known:
            return
        for keeper in known:
            if keeper not in self.keepers:
                keeper.stop()
        self.levels = max(keeper.machine.levels for keeper in self.keepers)
        for copy in self.copies.values():
            copy.told.clear()
            self.allow(copy)
            copy.try_run()

    def allow(self, copy: Copy) -> None:
        """What may be acknowledged of a copy's inputs: what all keepers allow."""
        said = [keeper.machine.acks[copy.name] for keeper in self.keepers]
        if len(said) == 1:
            copy.acks = said[0]  # the very same, so that all this is for turns only
        else:
            copy.acks = {stream: keeping.allowed([acks[stream] for acks in said]) for stream in copy.inputs}

    def note(self, event: base.Event) -> None:
        for keeper in self.keepers:
            keeper.note(event)

    def processed(self, copy: Copy, epoch: Epoch) -> None:
        """A copy has processed an epoch."""
        if self.primary:
            needs = None
            if self.levels:
                needs = dict.fromkeys(copy.inputs, copy.needs(epoch))
            self.note(base.Committed(copy.name, epoch, needs, epoch in copy.history))
        elif not self.risen:
            wanted = self.host.directory.units.get(self.name)
            if wanted is not None and wanted.primary is not None:
                message = (self.generation, copy.name, self.key, epoch, None)
                self.world.send(self.host, wanted.primary, self.name, "pasted", message)

    def pasted(self, generation: Generation, stage: str, key: str, epoch: Epoch, refusal: str | None) -> None:
        """A standby's answer to a checkpoint, or news of how far its copy is."""
        if not self.primary or generation != self.generation:
            return
        copy = self.copies.get(stage)
        if copy is not None and refusal is None:
            copy.pace.copy_is_at(key, epoch)
        for keeper in self.keepers:
            if key in keeper.machine.standbys:
                if refusal == "fenced":
                    self.fence()
                    return
                keeper.pasted(stage, key, epoch, refusal)
                trimmed = keeper.machine.trimmed(stage, key)
                if refusal is None and trimmed is not None and key in keeper.machine.standbys:
                    to = keeper.machine.standbys[key][0]
                    landed = self.host.landed.known
                    self.world.send(self.host, to, self.name, "trim", (self.generation, stage, trimmed, landed))
        if copy is not None and self.policy.standby_runs:
            copy.try_run()

    # -- as standby ---------------------------------------------------------------------------------------------------

    def paste(self, generation: Generation, stage: str, key: str, version: Version, sender: str, order: int) -> None:
        if self.host.directory.stale(self.name, generation):
            self._pasted(sender, generation, stage, key, NO_EPOCH, "fenced")
        elif self.primary or generation != self.generation or key != self.key or self._overtaken(stage, order):
            self._pasted(sender, generation, stage, key, NO_EPOCH, "elsewhere")
        elif self.host.disk_full:
            self._pasted(sender, generation, stage, key, NO_EPOCH, "disk")
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

    def _overtaken(self, stage: str, order: int) -> bool:
        newest = self._newest_order.get(stage, (NO_GENERATION, 0))
        self._newest_order[stage] = max(newest, (self.generation, order))
        return newest > (self.generation, order)

    def _store_paste(self, generation: Generation, stage: str, key: str, version: Version, sender: str) -> None:
        if self.primary or generation != self.generation or self.host.units.get(self.name) is not self:
            return
        self.host.disk.paste(stage, version)
        self._pasted(sender, generation, stage, key, version.epoch, None)

    def _pasted(
        self, sender: str, generation: Generation, stage: str, key: str, epoch: Epoch, refusal: str | None
    ) -> None:
        message = (generation, stage, key, epoch, refusal)
        self.world.send(self.host, sender, self.name, "pasted", message)

    def trim(self, generation: Generation, stage: str, epoch: Epoch, landed: Known) -> None:
        copy = self.copies.get(stage)
        if not self.primary and generation == self.generation and copy is not None:
            self.host.landed.hears(landed)
            for consumer in copy.output.queue.progress:
                copy.output.ack(consumer, epoch)
            copy.prune(copy.output.queue.trimmed)

    def _give_up(self, cause: str) -> None:
        """As a running standby: it cannot go on, and its primary must not wait for it."""
        self.stop()
        if self.policy.standby_runs:
            self.host.report(failover.StandbyUnusable(self.name, self.generation, self.host.name, self.since, cause))

    # -- the end ------------------------------------------------------------------------------------------------------

    def failed(self, stage: str, epoch: Epoch) -> None:
        """The code of a stage has thrown here."""
        if self.primary:
            self.threw(stage, epoch)
        else:
            self._give_up("its code throws")

    def drain(self, finals: Mapping[str, Epoch]) -> bool:
        whole = len(self.copies) == len(self.shape.stages) and bool(self.keepers)
        return whole and all([self._drained(copy, finals[copy.name]) for copy in self.copies.values()])

    def _drained(self, copy: Copy, final: Epoch) -> bool:
        policy, last = self.host.directory.policies.of[self.name], self.world.topology.is_last(copy.name)
        match ending(policy, committed=copy.done, trimmed=copy.output.queue.trimmed, final=final, last=last):
            case Ending.GOES_ON:
                return False
            case Ending.KEPT:
                return self.keepers[0].drained()
            case Ending.OWN:
                final = max(final, copy.done)  # begun without state, it may have left out what was never made
                held = self.host.disk.newest(copy.name)
                if held is not None and held.epoch == final:
                    return True
                if not self.host.disk_full:
                    version = copy.version(final, queue=True)
                    assert version is not None
                    version.windows = copy.windows_until(final)
                    self.host.disk.paste(copy.name, version)
        return False

    # -- streams ------------------------------------------------------------------------------------------------------

    def outputs(self) -> Mapping[str, Output]:
        return {name: copy.output for name, copy in self.copies.items()}

    def output(self, stream: str) -> Output | None:
        copy = self.copies.get(stream)
        return None if copy is None else copy.output

    def send_request(self, copy: Copy, stream: str, epoch: Epoch) -> None:
        copy.tell_numbers()
        acks = copy.acks[stream] if self.primary else {}
        if stream in copy.inside:
            self.host.living.after(0.0, self._request_inside, copy, stream, epoch, acks)
            return
        unit, landed = self.world.topology.unit_of[stream], self.host.landed.known
        message = (stream, copy.name, self.name, self.generation, epoch, acks, self.host.name, self.primary, landed)
        for producer in self.host.directory.producers(stream, self.name):
            self.world.send(self.host, producer, unit, "request", message)

    def _request_inside(self, copy: Copy, stream: str, epoch: Epoch, acks: dict[int, Epoch]) -> None:
        producer = self.copies.get(stream)
        if producer is None or copy.stopped:
            return
        if self.primary:
            producer.output.queue.hears(copy.name, self.generation, near=True)
            producer.output.queue.request(copy.name, epoch)
            self.acked(producer, copy.name, acks)
        reply = partial(self.host.living.after, 0.0, self.deliver, self.generation, copy.name, stream)
        producer.output.serve((copy.name, self.host.name), epoch, reply)

    def send_ack(self, copy: Copy, stream: str) -> None:
        copy.tell_numbers()
        acks = copy.acks[stream]
        if stream in copy.inside:
            self.host.living.after(0.0, self._ack_inside, stream, copy.name, acks)
            return
        unit = self.world.topology.unit_of[stream]
        message = (stream, copy.name, self.name, self.generation, acks, self.host.name, self.host.landed.known)
        for producer in self.host.directory.producers(stream, self.name):
            self.world.send(self.host, producer, unit, "ack", message)

    def _ack_inside(self, stream: str, consumer: str, acks: dict[int, Epoch]) -> None:
        producer = self.copies.get(stream)
        if producer is not None and not producer.stopped:
            producer.output.queue.hears(consumer, self.generation, near=True)
            self.acked(producer, consumer, acks)

    def acknowledged(self, stream: str, consumer: str, acks: Mapping[int, Epoch]) -> None:
        copy = self.copies[stream]
        if not copy.stopped:
            self.acked(copy, consumer, acks)

    def lifted(self, stream: str) -> None:
        self.copies[stream].try_run()

    def acked(self, copy: Copy, consumer: str, acks: Mapping[int, Epoch]) -> None:
        output, trimmed = copy.output, None
        if output.heard.get(consumer) is not acks:
            output.heard[consumer] = acks
            for level, epoch in acks.items():
                moved = output.ack(consumer, epoch, level)
                trimmed = moved if moved is not None else trimmed
        if self.primary:
            for level in range(self.levels):
                bound = output.queue.bound(level)
                if bound != copy.told.get(level):
                    copy.told[level] = bound
                    self.note(base.Acked(copy.name, level, bound))
            if trimmed is not None and not copy.stopped:
                self.world.trimmed(copy.name, before(output.queue.first))
                self.note(base.Acked(copy.name, FINAL, trimmed))
                copy.prune(trimmed)
        copy.try_run()

    def deliver(
        self, generation: Generation, stage: str, stream: str, epoch: Epoch, value: int, refusal: str | None
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
                self._give_up("its input is gone")
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
        for keeper in self.keepers:
            keeper.retry(before - self.world.conditions.retry_s)
