"""What a host knows of the others from the newest plan. Asked with every message, so worked out once for every plan."""

from __future__ import annotations

from collections.abc import Mapping

from understudy.core.numbers import Generation
from understudy.core.plans import Plan, UnitPlan
from understudy.core.policies import Policy, parse
from understudy.core.topology import Topology


class Policies:
    """What protects each unit: the job's policies, those that were changed, and those to come."""

    def __init__(self, topology: Topology, changed: Mapping[str, UnitPlan] | None = None) -> None:
        """``changed``: the units whose policy is another than the job's, or will be."""
        self._topology, changed = topology, changed or {}
        self.of: dict[str, Policy] = {
            name: changed.get(name, UnitPlan()).protected_by(shape.policy) for name, shape in topology.units.items()
        }
        """Unit -> what protects it now."""
        counting = {name: [policy] for name, policy in self.of.items()}
        for name, unit in changed.items():
            if unit.turn is not None:
                counting[name].append(parse(unit.turn.policy))
        stages = [(s, counting[unit.name]) for unit in topology.units.values() for s in unit.stages]
        self.copied = {stage for stage, policies in stages if any(p.standby_runs for p in policies)}
        """Stages of which standbys run as well, or begin to."""
        self.layered = {stage: k for stage, policies in stages if (k := max(p.levels for p in policies)) > 1}
        """Stages that acknowledge at several levels -> how many."""

    def now(self, plan: Plan) -> Policies:
        """These, as the job's own, with what ``plan`` has changed."""
        changed = {name: unit for name, unit in plan.units.items() if unit.policy is not None or unit.turn is not None}
        return Policies(self._topology, changed) if changed else self


class Directory:
    """Who leads what, whom to ask for which stream, and who speaks for a generation that has been replaced."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.define(Topology({}, {}))
        self.serial = -1
        self.units: Mapping[str, UnitPlan] = {}
        self.lost_with: dict[str, str] = {}
        """Unit -> the host that led it before the one that leads it now, and was lost or given up."""
        self.primaries: dict[str, str | None] = {}
        self._producers: dict[str, tuple[str, ...]] = {}

    def define(self, topology: Topology, policies: Policies | None = None) -> None:
        """The job is of this shape. ``policies``: as it defines them, where somebody has worked them out already."""
        self._topology = topology
        self._defined = self.policies = policies or Policies(topology)

    def take(self, plan: Plan) -> None:
        """A newer plan has come."""
        for name, known in self.units.items():
            if known.primary is not None and known.primary != plan.units[name].primary:
                self.lost_with[name] = known.primary
        self.serial, self.units = plan.serial, plan.units
        self.policies = self._defined.now(plan)
        self.primaries = {name: unit.primary for name, unit in plan.units.items()}
        self._producers = {name: self._who_sends(name, unit) for name, unit in plan.units.items()}

    def forget(self) -> None:
        """Nobody is where he was. What still runs may ask; a plan that comes late is known to be an old one."""
        self.units, self.lost_with, self.primaries, self._producers = {}, {}, {}, {}

    def _who_sends(self, name: str, unit: UnitPlan) -> tuple[str, ...]:
        if unit.primary is None:
            return ()
        return (unit.primary, *(unit.ready if self.policies.of[name].eager else ()))

    def primary_of(self, stream: str) -> str | None:
        return self.primaries.get(self._topology.unit_of[stream])

    def producers(self, stream: str, reader: str) -> tuple[str, ...]:
        """Whom a stage of unit ``reader`` asks for a stream: its primary first; under eager delivery every copy that is
        ready too. Within a unit every copy keeps to itself."""
        unit = self._topology.unit_of[stream]
        return (self.host,) if unit == reader else self._producers.get(unit, ())

    def stale(self, unit: str, generation: Generation) -> bool:
        """Whoever says this speaks for a generation that has been replaced."""
        known = self.units.get(unit)
        return known is not None and generation < known.generation

    def near(self, stream: str, consumer: str, sender: str) -> bool:
        """That this consumer of a stream which is sent from here has an epoch keeps nothing safe: it shares the
        producer's fate, or has copies that may lag behind what its primary has asked for."""
        if sender == self.host or consumer in self.policies.copied:
            return True
        k = self.policies.layered.get(consumer)
        if k is None:
            return False
        hosts = {**self.primaries, self._topology.unit_of[consumer]: sender}
        return self._topology.shares_fate(consumer, stream, hosts, k)
