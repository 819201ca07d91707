"""A source in virtual time: what it cuts is written to a log that every standby has before anybody sees the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from understudy.core import keeping
from understudy.core.acks import FINAL
from understudy.core.entries import Follower, Leader
from understudy.core.landed import Known
from understudy.core.numbers import Epoch, Generation, before, between
from understudy.core.plans import UnitPlan
from understudy.core.policies import Policy
from understudy.sim.copies import Output
from understudy.sim.disks import Log
from understudy.sim.members import Member

if TYPE_CHECKING:
    from understudy.sim.hosts import Host


class SourceUnit(Member):
    """A source: it cuts epochs, and lets nobody see one before every standby has it in its log."""

    def __init__(
        self, host: Host, name: str, generation: Generation, policy: Policy, *, primary: bool, since: int
    ) -> None:
        super().__init__(host, name, generation, policy, primary=primary, since=since)
        (self.stage,) = self.shape.stages
        self._standbys: dict[str, tuple[str, int]] | None = None
        """Standby, as ``standby_key`` names it -> (host, since). None until a plan has named them."""
        self.log = host.disk.logs.setdefault(self.stage, Log())
        self._leader = Leader(0)
        """As primary: up to where the logs of its standbys go."""
        self._follower = Follower()
        self.stopped = False
        self._output = self._from_log()

    def _from_log(self) -> Output:
        self.host.landed.hears(self.log.landed)
        return Output(self.world, self.stage, first=Epoch(self.log.base))

    def begin(self, start: str) -> None:
        self.log = self.host.disk.logs.setdefault(self.stage, Log())
        self._run()

    def promote(self, generation: Generation, *, saved: bool = False) -> None:
        assert not saved, "a source keeps its log, and loses nothing"
        self.generation, self.primary = generation, True
        self.holdings = self._nothing_held()
        self._run()

    def _run(self) -> None:
        # Whatever was seen downstream is in this log: it was shared before it was shown.
        self._output, self._leader = self._from_log(), Leader(self.log.end, certain=self.log.base)
        self._show()
        self.host.living.after(self.world.conditions.epoch_s, self._cut)

    def stop(self) -> None:
        self.stopped = True

    def rise(self) -> None:
        pass

    def stand_down(self) -> None:
        pass

    def outputs(self) -> Mapping[str, Output]:
        return {self.stage: self._output}

    def output(self, stream: str) -> Output | None:
        return self._output

    def acknowledged(self, stream: str, consumer: str, acks: Mapping[int, Epoch]) -> None:
        if FINAL in acks and self._output.ack(consumer, acks[FINAL]) is not None:
            trimmed = before(self._output.queue.first)
            self.log.forget(trimmed, self.host.landed.known)
            self.world.trimmed(self.stage, trimmed)

    def agree(self, wanted: UnitPlan) -> None:
        if self.fenced:
            return
        standbys = keeping.standing(wanted)
        self._leader.aim(standbys, keeping.counted(wanted))
        if standbys != self._standbys:
            self._standbys = standbys
            self.holdings.aim(standbys)
            self._share()
        self._show()

    def _at(self) -> dict[str, tuple[str, int]]:
        return self._standbys or {}

    @property
    def begun(self) -> Epoch:
        """The newest epoch that will come out, whatever is asked from now on."""
        return Epoch(self.log.end - 1)

    def drain(self, finals: Mapping[str, Epoch]) -> bool:
        return True  # all that it has cut is in its log

    # -- cutting and sharing ------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        if self.stopped:
            return
        shown, draining = self._output.queue.next, self.host.draining
        if self.log.end == shown < self.world.epochs and self._output.queue.ahead == 0 and not draining:
            if self.world.throws is not None and self.world.throws(self.host.name, self.stage, shown):
                self.threw(self.stage, shown)
                return
            self.log.entries.append(self.world.random.getrandbits(48))
            self._share()
            self._show()
        self.host.living.after(self.world.conditions.epoch_s, self._cut)

    def _share(self) -> None:
        for key, (host, _) in self._at().items():
            after = max(self._leader.at(key), self.log.base)
            news = (after, self.log.since(after), self.log.base, self.host.landed.known)
            message = (self.generation, key, *news, self.host.name)
            self.world.send(self.host, host, self.name, "entries", message)

    def entries(
        self,
        generation: Generation,
        key: str,
        after: int,
        values: tuple[int, ...],
        certain: int,
        landed: Known,
        sender: str,
    ) -> None:
        """As standby: the primary's log after its first ``after`` entries; nobody needs the ``certain`` ones."""
        if self.host.directory.stale(self.name, generation):
            self._shared(sender, generation, key, -1)
        elif not self.primary and generation == self.generation and key == self.key:
            self.host.landed.hears(landed)
            if self.log.end < certain:
                self.log.replace(certain, ())
            taken = self._follower.take(generation, self.log.end, certain=certain, after=after)
            if taken is None:
                return
            self.log.truncate(taken.keep)
            if taken.skip is not None:
                self.log.entries += values[taken.skip :]
            self.log.forget(certain, self.host.landed.known)
            self._shared(sender, generation, key, self.log.end)

    def _shared(self, sender: str, generation: Generation, key: str, has: int) -> None:
        self.world.send(self.host, sender, self.name, "shared", (generation, key, has))

    def shared(self, generation: Generation, key: str, has: int) -> None:
        if not self.primary or self.stopped or generation != self.generation or key not in self._at():
            return
        if has < 0:
            self.fence()
            return
        self._leader.has(key, has)
        if has >= self.log.end:
            for told in self.holdings.held(key, self.stage):
                self.host.report(told.event)
        self._show()

    def _show(self) -> None:
        """Publish what every standby has."""
        if self.stopped or not self.primary:
            return
        for epoch in between(self._output.queue.next, Epoch(self._leader.shows(self.log.end))):
            value = self.log.entries[epoch - self.log.base]
            self.world.shown(self.stage, epoch, value)
            self._output.append(epoch, value)

    def plan_changed(self) -> None:
        pass

    def retry(self) -> None:
        if self.primary and not self.stopped and any(self._leader.at(k) < self.log.end for k in self._at()):
            self._share()
