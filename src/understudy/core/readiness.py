"""Who would take over at once: whose query waits at the door, and whose has rehearsed all there is.

Hosts report it stage by stage, for the generation that runs. It counts as long as the plan counts on that host for that
generation, and as long as the process that reported it lives.
"""

from __future__ import annotations

from collections.abc import Callable

from understudy.core.failover import Failover
from understudy.core.numbers import Generation

Reported = dict[tuple[str, str], Generation]
"""(stage, host) -> generation."""


class Readiness:
    """Reads the plan of ``failover``, and is told what hosts report."""

    def __init__(self, failover: Failover) -> None:
        self._failover = failover
        self._armed: Reported = {}
        self._warm: Reported = {}

    def armed(self, stage: str, host: str, generation: Generation) -> None:
        """A standby's query, or a spare one, waits at the door; or a copy runs."""
        self._armed[stage, host] = generation

    def warm(self, stage: str, host: str, generation: Generation) -> None:
        """It has rehearsed until it got no faster."""
        self._warm[stage, host] = generation

    def replaced(self, host: str) -> None:
        """Another process took the place of this host's."""
        self._keep(lambda stage, other: other != host)

    def planned(self) -> None:
        """There is a new plan: a host that it does not count on has to arm anew when a later one does again."""
        units, unit_of, spares = self._failover.plan.units, self._failover.topology.unit_of, self._failover.spares()

        def counts(stage: str, host: str) -> bool:
            name = unit_of.get(stage, "")
            return name in units and (host in units[name].all_standbys or spares.get(name) == host)

        self._keep(counts)

    def _keep(self, stays: Callable[[str, str], bool]) -> None:
        for reported in (self._armed, self._warm):
            for about in [about for about in reported if not stays(*about)]:
                del reported[about]

    def armed_of(self, name: str) -> list[str]:
        """The standbys of a unit that would go on at once: they hold what they need, and their queries wait. A source
        has none to wait."""
        plan = self._failover.plan.units[name]
        ready = (*plan.ready, *(plan.turn.ready if plan.turn else ()))
        return [host for host in ready if self._all_of(self._armed, name, host)]

    def all_armed(self) -> bool:
        """Every standby is, and every spare query."""
        spares = self._failover.spares()
        return all(
            set(plan.standbys) <= set(self.armed_of(name))
            and (name not in spares or self._all_of(self._armed, name, spares[name]))
            for name, plan in self._failover.plan.units.items()
        )

    def all_warm(self) -> bool:
        """Every standby that does not run, and every spare query."""
        units, spares = self._failover.topology.units, self._failover.spares()
        return all(
            self._all_of(self._warm, name, host)
            for name, plan in self._failover.plan.units.items()
            if not units[name].policy.standby_runs
            for host in (*plan.standbys, *([spares[name]] if name in spares else []))
        )

    def _all_of(self, reported: Reported, name: str, host: str) -> bool:
        generation = self._failover.plan.units[name].generation
        return all(reported.get((stage, host)) == generation for stage in self._failover.topology.inner(name))
