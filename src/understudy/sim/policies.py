"""What protects each unit, as a plan has it: the job's policies, those that were changed, and those to come."""

from __future__ import annotations

from collections.abc import Mapping

from understudy.core.failover import Plan, UnitPlan
from understudy.core.policies import parse
from understudy.core.topology import Topology


class Policies:
    """Looked up with every message, so worked out once for every plan that changes something."""

    def __init__(self, topology: Topology, changed: Mapping[str, UnitPlan] | None = None) -> None:
        """``changed``: the units whose policy is another than the job's, or will be."""
        self._topology, changed = topology, changed or {}
        self.of = {n: changed.get(n, UnitPlan()).protected_by(shape.policy) for n, shape in topology.units.items()}
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
