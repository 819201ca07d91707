"""A source whose rows cannot be read again, as one that Spark reads; as ``runtime.spark_source``.

Its epochs are drawn when they are cut, and are nowhere but in checkpoints, which have all rows that somebody may want:
one goes to every standby with every epoch, before anybody sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from understudy.core import keeping
from understudy.core.numbers import NO_EPOCH, Epoch, Generation, after, between
from understudy.core.plans import UnitPlan
from understudy.core.policies import Policy
from understudy.core.preserving import Preserving
from understudy.core.queue import AHEAD_MAX
from understudy.sim.copies import Copy
from understudy.sim.disks import Version
from understudy.sim.units import Unit

if TYPE_CHECKING:
    from understudy.sim.hosts import Host


class PreservedSource(Unit):
    """Stands where a unit of stages stands, but cuts its epochs, and lets nobody see one that can still be lost."""

    def __init__(
        self, host: Host, name: str, generation: Generation, policy: Policy, *, primary: bool, since: int
    ) -> None:
        super().__init__(host, name, generation, policy, primary=primary, since=since)
        (self.stage,) = self.shape.stages
        self._preserving = Preserving()
        self._at: Mapping[str, tuple[str, int]] = {}
        """Who keeps the rows, as ``keeping.standing`` names them."""
        self._cut_value: int | None = None
        """The epoch that is cut, and may not be seen yet."""
        self._inherited: int | None = None
        """The newest that an earlier primary cut, likewise."""
        self._brought: Version | None = None
        """What keepers have, or are being brought."""

    @property
    def begun(self) -> Epoch:
        """The newest epoch that will come out, whatever is asked from now on."""
        if not self.copies:
            return NO_EPOCH
        done = self.copies[self.stage].done
        return done if self._cut_value is None else after(done)

    def _from(self, stage: str, version: Version) -> Copy:
        if not version.output:
            return super()._from(stage, version)
        self._inherited = version.output[-1]
        return super()._from(stage, replace(version, output=version.output[:-1]))

    def _run(self) -> None:
        super()._run()
        self._cut_value = self._brought = None
        copy = self.copies[self.stage]
        for epoch, value in copy.output.values.items():
            self.world.shown(self.stage, epoch, value)
        self._preserving.begin(inherited=self._inherited is not None)
        if self._inherited is not None:
            self._brought = self._version(copy, self._inherited)
        self.host.living.after(self.world.conditions.epoch_s, self._cut, copy)

    def agree(self, wanted: UnitPlan) -> None:
        if self.fenced or not self.copies:
            return
        self._at = keeping.charges(wanted, self.shape.policy, self.host.name)[0].standbys
        self.holdings.aim(self._at)
        self._preserving.aim(self._at, keeping.counted(wanted))
        if wanted.ready:
            self.host.disk.drop(self.shape.stages)
        self._ship()
        self._perhaps_publish()

    def _cut(self, copy: Copy) -> None:
        if copy.stopped or self.copies.get(self.stage) is not copy:
            return
        epoch, room = after(copy.done), copy.output.queue.ahead < AHEAD_MAX
        free = self._cut_value is None and self._inherited is None
        if free and room and epoch < self.world.epochs and not self.host.draining:
            if self.world.throws is not None and self.world.throws(self.host.name, self.stage, epoch):
                self.threw(self.stage, epoch)
                return
            self._cut_value = self.world.random.getrandbits(48)
            self._preserving.begin()
            self._brought = self._version(copy, self._cut_value)
            self._ship()
        self.host.living.after(self.world.conditions.epoch_s, self._cut, copy)

    def _version(self, copy: Copy, *cut: int) -> Version:
        """All rows that somebody may want, and what is ``cut``, or was by an earlier primary."""
        seen = copy.output.queue.next
        first = min(copy.output.queue.first, seen)
        rows = [*(copy.output.values[e] for e in between(first, seen)), *cut]
        return Version(Epoch(seen + len(cut) - 1), copy.state, first, tuple(rows), landed=self.host.landed.known)

    def _ship(self) -> None:
        """Bring the epoch to those that lack it."""
        version = self._brought
        for key in [] if version is None else self._preserving.left():
            host, _ = self._at[key]
            if host == self.host.name:
                self.host.living.after(self.world.conditions.disk_s, self._store_here, key, version)
                continue
            self.orders += 1
            message = (self.generation, self.stage, key, version, self.host.name, self.orders)
            self.world.send(self.host, host, self.name, "paste", message)

    def _store_here(self, key: str, version: Version) -> None:
        if self.primary and not self.fenced and key in self._at:
            if not self.host.disk_full:
                self.host.disk.paste(self.stage, version)
            self.pasted(self.generation, self.stage, key, version.epoch, "disk" if self.host.disk_full else None)

    def pasted(self, generation: Generation, stage: str, key: str, epoch: Epoch, refusal: str | None) -> None:
        if not self.primary or self.fenced or generation != self.generation or not self.copies:
            return
        if refusal == "fenced":
            self.fence()
        elif refusal == "disk":
            for told in self.holdings.unusable(key, "no space left on device"):
                self.host.report(told.event)
        elif refusal is None and self._brought is not None and epoch == self._brought.epoch:
            self._preserving.safe_at(key)
            for told in self.holdings.held(key, stage):
                self.host.report(told.event)
            self._perhaps_publish()

    def _perhaps_publish(self) -> None:
        copy = self.copies[self.stage]
        if copy.stopped or not self._preserving.may_be_seen():
            return
        if self._inherited is not None:
            value, self._inherited = self._inherited, None
        elif self._cut_value is not None:
            value, self._cut_value = self._cut_value, None
            copy.done = after(copy.done)
        else:
            return
        self.world.shown(self.stage, copy.done, value)
        copy.output.append(copy.done, value)

    def rise(self) -> None:
        """Nothing runs before the primary is given up: two would cut different epochs."""

    def drain(self, finals: Mapping[str, Epoch]) -> bool:
        """Whoever came to keep the rows since the last epoch was cut has yet to be brought it."""
        if self._brought is None and self.copies:
            self._brought = self._version(self.copies[self.stage])  # of an epoch that has been seen
        self._ship()
        return self._preserving.done()

    def retry(self) -> None:
        if self.primary and not self.fenced and self.copies:
            self._ship()
