"""What a unit and a source on a host have in common: a role, a generation, standbys, and consumers to answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from understudy.core import beginning, failover, keeping
from understudy.core.agreement import Part, Standing
from understudy.core.landed import Known
from understudy.core.numbers import Epoch, Generation
from understudy.core.policies import Policy
from understudy.core.policies.base import standby_key
from understudy.sim.copies import Output

if TYPE_CHECKING:
    from understudy.sim.hosts import Host


class Member:
    """What both kinds of unit share: a role, a generation, and being one consumer's producer."""

    def __init__(
        self, host: Host, name: str, generation: Generation, policy: Policy, *, primary: bool, since: int
    ) -> None:
        self.host, self.world, self.name = host, host.world, name
        self.shape = self.world.topology.units[name]
        self.policy = policy
        """Of this role: a standby to come is one under the policy to come."""
        self.generation, self.primary, self.since = generation, primary, since
        self.key = standby_key(host.name, since)
        """What this is called as a standby."""
        self.fenced = False
        self.holdings = self._nothing_held()
        """As primary: what its standbys hold of it."""

    def _nothing_held(self) -> keeping.Holdings:
        return keeping.Holdings(self.host.name, self.name, self.generation, self.shape.stages)

    @property
    def standing(self) -> Standing:
        return Standing(Part.PRIMARY if self.primary else Part.STANDBY, self.generation, self.since, over=self.fenced)

    def fence(self) -> None:
        """A newer generation runs elsewhere: stop, add nothing, and wait for the plan that says so."""
        if not self.fenced:
            self.host.tell(f"finds itself fenced as primary {self.generation} of {self.name}")
            self.fenced = True
            self.stop()

    def stop(self) -> None:
        raise NotImplementedError

    def drain(self, finals: Mapping[str, Epoch]) -> bool:
        """As primary: the job is being stopped, after these epochs. True once nothing is left to do."""
        raise NotImplementedError

    def threw(self, stage: str, epoch: Epoch) -> None:
        """As primary: the code of a stage has thrown. Somebody else has to go on."""
        self.host.tell(f"throws in {stage} at epoch {epoch}")
        self.host.report(failover.StageThrew(self.name, self.generation, stage, epoch, "it was told to throw"))

    def outputs(self) -> Mapping[str, Output]:
        raise NotImplementedError

    def output(self, stream: str) -> Output | None:
        raise NotImplementedError

    # -- consumers ----------------------------------------------------------------------------------------------------

    def request(
        self,
        stream: str,
        consumer: str,
        unit: str,
        generation: Generation,
        epoch: Epoch,
        acks: dict[int, Epoch],
        sender: str,
        counts: bool,
        landed: Known,
    ) -> None:
        """A copy of ``consumer`` on ``sender`` asks for an epoch; ``counts`` when it is the primary's."""
        if self.fenced or not (self.primary or self.policy.eager):
            return
        if self.host.directory.stale(unit, generation):
            self._answer(sender, unit, generation, consumer, stream, epoch, 0, "fenced")
            return
        output = self.output(stream)
        if output is None:
            return
        if counts:
            if not output.queue.hears(consumer, generation, near=self.host.directory.near(stream, consumer, sender)):
                self._answer(sender, unit, generation, consumer, stream, epoch, 0, "fenced")
                return
            self.host.landed.hears(landed)
            output.queue.request(consumer, epoch)
            self.acknowledged(stream, consumer, acks)
        elif self.host.directory.policies.of[unit].eager:
            output.queue.ask(consumer, epoch)
            self.lifted(stream)
        output.serve((consumer, sender), epoch, partial(self._answer, sender, unit, generation, consumer, stream))

    def _answer(
        self,
        sender: str,
        unit: str,
        generation: Generation,
        consumer: str,
        stream: str,
        epoch: Epoch,
        value: int,
        refusal: str | None,
    ) -> None:
        if refusal == "gone" and not self.primary:
            return  # what the primary says counts: a copy may have heard of progress that the primary has not
        message = (generation, consumer, stream, epoch, value, refusal)
        self.world.send(self.host, sender, unit, "deliver", message)

    def ack(
        self,
        stream: str,
        consumer: str,
        unit: str,
        generation: Generation,
        acks: dict[int, Epoch],
        sender: str,
        landed: Known,
    ) -> None:
        output = self.output(stream)
        if self.fenced or output is None or self.host.directory.stale(unit, generation):
            return
        if output.queue.hears(consumer, generation, near=self.host.directory.near(stream, consumer, sender)):
            self.host.landed.hears(landed)
            self.acknowledged(stream, consumer, acks)

    def acknowledged(self, stream: str, consumer: str, acks: Mapping[int, Epoch]) -> None:
        raise NotImplementedError

    def lifted(self, stream: str) -> None:
        """Back-pressure may have been. A source sees it when it cuts its next epoch."""

    def where(self, stream: str, consumer: str, unit: str, generation: Generation, sender: str, newest: bool) -> None:
        """Where can a copy of ``consumer`` without state begin? At the oldest epoch that is kept for it, or at the
        newest that it has not been given."""
        output = self.output(stream)
        if output is None or self.fenced or not self.primary:
            return
        queue = output.queue
        if not queue.hears(consumer, generation, near=self.host.directory.near(stream, consumer, sender)):
            return
        landed = self.host.landed.known
        place = beginning.place(
            queue, consumer, newest=newest, gap=output.gap, row=output.row, landed=landed,
            counted=output.counts.newest(),
        )  # fmt: skip
        self.world.send(self.host, sender, unit, "begin_at", (generation, consumer, stream, place))
