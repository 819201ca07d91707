"""What a unit and a source on a host have in common: a role, a generation, standbys, and consumers to answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from understudy.core import failover
from understudy.core.policies import Policy
from understudy.core.policies.base import standby_key
from understudy.sim.copies import Output

if TYPE_CHECKING:
    from understudy.sim.hosts import Host


class Targets:
    """The standbys that a primary counts on."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.at: dict[str, tuple[str, int]] = {}
        """Standby, as ``standby_key`` names it -> (host, since)."""
        self._aimed = False
        self._reported: set[str] = set()

    def aim(self, some: failover.Standbys, *, own: bool = False) -> bool:
        """Take over the plan's standbys and, if ``own``, this host's own disk. True when they changed since the last
        time, or there was none."""
        found = {standby_key(h, s): (h, s) for h, s in zip(some.standbys, some.since, strict=True)}
        if own:
            found[standby_key(self.member.host.name, -1)] = (self.member.host.name, -1)
        changed, self.at, self._aimed = not self._aimed or found != self.at, found, True
        return changed

    def report_ready(self, key: str) -> None:
        (host, since), member = self.at[key], self.member
        if key not in self._reported and host != member.host.name:
            self._reported.add(key)
            member.host.report(failover.StandbyReady(member.name, member.generation, host, since))

    def report_unusable(self, key: str, cause: str) -> None:
        (host, since), member = self.at[key], self.member
        member.host.report(failover.StandbyUnusable(member.name, member.generation, host, since, cause))


class Member:
    """What both kinds of unit share: a role, a generation, and being one consumer's producer."""

    def __init__(
        self, host: Host, name: str, generation: int, policy: Policy, *, primary: bool, since: int
    ) -> None:
        self.host, self.world, self.name = host, host.world, name
        self.shape = self.world.topology.units[name]
        self.policy = policy
        """Of this role: a standby to come is one under the policy to come."""
        self.generation, self.primary, self.since = generation, primary, since
        self.key = standby_key(host.name, since)
        """What this is called as a standby."""
        self.fenced = False

    def fence(self) -> None:
        """A newer generation runs elsewhere: stop, add nothing, and wait for the plan that says so."""
        if not self.fenced:
            self.host.tell(f"finds itself fenced as primary {self.generation} of {self.name}")
            self.fenced = True
            self.stop()

    def stop(self) -> None:
        raise NotImplementedError

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
        generation: int,
        epoch: int,
        acks: dict[int, int],
        sender: str,
        counts: bool,
    ) -> None:
        """A copy of ``consumer`` on ``sender`` asks for an epoch; ``counts`` when it is the primary's."""
        if self.fenced or not (self.primary or self.policy.eager):
            return
        if self.host.stale(unit, generation):
            self._answer(sender, unit, generation, consumer, stream, epoch, 0, "fenced")
            return
        output = self.output(stream)
        if output is None:
            return
        if counts:
            if not output.queue.hears(consumer, generation, near=self._near(stream, consumer, sender)):
                return
            output.queue.request(consumer, epoch)
            self.acknowledged(stream, consumer, acks)
        elif self.host.policies.of[unit].eager:
            output.queue.ask(consumer, epoch)
            self.lifted(stream)
        output.serve((consumer, sender), epoch, partial(self._answer, sender, unit, generation, consumer, stream))

    def _answer(
        self,
        sender: str,
        unit: str,
        generation: int,
        consumer: str,
        stream: str,
        epoch: int,
        value: int,
        refusal: str | None,
    ) -> None:
        if refusal == "gone" and not self.primary:
            return  # what the primary says counts: a copy may have heard of progress that the primary has not
        message = (generation, consumer, stream, epoch, value, refusal)
        self.world.send(self.host, sender, unit, "deliver", message)

    def ack(self, stream: str, consumer: str, unit: str, generation: int, acks: dict[int, int], sender: str) -> None:
        output = self.output(stream)
        if self.fenced or output is None or self.host.stale(unit, generation):
            return
        if output.queue.hears(consumer, generation, near=self._near(stream, consumer, sender)):
            self.acknowledged(stream, consumer, acks)

    def _near(self, stream: str, consumer: str, sender: str) -> bool:
        """That this consumer has an epoch keeps nothing safe: it shares the producer's fate, or has copies that lag."""
        host, topology = self.host, self.world.topology
        if sender == host.name or consumer in host.policies.copied:
            return True
        k = host.policies.layered.get(consumer)
        if k is None:
            return False
        return topology.shares_fate(consumer, stream, {**host.primaries, topology.unit_of[consumer]: sender}, k)

    def acknowledged(self, stream: str, consumer: str, acks: Mapping[int, int]) -> None:
        raise NotImplementedError

    def lifted(self, stream: str) -> None:
        """Back-pressure may have been. A source sees it when it cuts its next epoch."""

    def where(self, stream: str, consumer: str, unit: str, generation: int, sender: str, newest: bool) -> None:
        """Where can a copy of ``consumer`` without state begin? At the oldest epoch that is kept for it, or at the
        newest that it has not been given."""
        output = self.output(stream)
        if output is None or self.fenced or not self.primary:
            return
        queue = output.queue
        if not queue.hears(consumer, generation, near=self._near(stream, consumer, sender)):
            return
        progress = queue.progress[consumer]
        epoch = progress.given + 1 if newest else max(queue.first, progress.acked + 1)
        row = output.row if queue.owes(consumer) else None
        message = (generation, consumer, stream, epoch, newest or epoch <= output.gap, row)
        self.world.send(self.host, sender, unit, "begin_at", message)
