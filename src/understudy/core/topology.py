"""The shape of a job, as the protocol sees it: stages, the streams between them, and the units they form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from understudy.core.numbers import NO_EPOCH, Epoch
from understudy.core.policies.base import Policy, StageRole


@dataclass(frozen=True)
class StageShape:
    """One stage. Its output stream has the stage's own name. A source is a stage without inputs."""

    name: str
    inputs: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    """Names of the sinks fed by this stage's stream, unique in the job."""
    needs_all_input: bool = False
    """With a row missing, all that it makes afterwards would be wrong."""


@dataclass(frozen=True)
class UnitShape:
    """Stages that are placed, protected and recovered together."""

    name: str
    stages: tuple[str, ...]
    policy: Policy
    primary: str | None = None
    """Host asked for by the user, if any."""
    standbys: tuple[str, ...] = ()
    """Hosts asked for as standbys, the first choice first."""
    monitor: str | None = None
    """Host that watches the primary's, besides the coordinator."""

    @property
    def protected(self) -> bool:
        return self.policy.protected


class CycleError(ValueError):
    """The streams feed back into themselves; ``path`` is the loop."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(" -> ".join(path))
        self.path = path


@dataclass(frozen=True)
class Topology:
    """Stages in upstream-to-downstream order, with their units."""

    stages: Mapping[str, StageShape]
    units: Mapping[str, UnitShape]
    unit_of: Mapping[str, str] = field(default_factory=dict)

    def finals(self, produced: Mapping[str, Epoch]) -> dict[str, Epoch]:
        """The last epoch of every stage when sources end after those that they have ``produced``. Parts of a job that
        have nothing in common may end at different ones; a source that is not named ends as the first."""
        found: dict[str, Epoch] = {}
        for name, stage in self.stages.items():
            known = produced.get(name, min(produced.values(), default=NO_EPOCH))
            found[name] = min(found[i] for i in stage.inputs) if stage.inputs else known
        return found

    @classmethod
    def build(cls, stages: Iterable[StageShape], units: Iterable[UnitShape]) -> Topology:
        units = list(units)
        by_name = {s.name: s for s in stages}
        ordered = {name: by_name[name] for name in topological_order({n: s.inputs for n, s in by_name.items()})}
        unit_of = {stage: u.name for u in units for stage in u.stages}
        rank = {name: i for i, name in enumerate(ordered)}
        ordered_units = sorted(units, key=lambda u: min(rank[s] for s in u.stages))
        return cls(stages=ordered, units={u.name: u for u in ordered_units}, unit_of=unit_of)

    def under(self, policies: Mapping[str, Policy]) -> Topology:
        """This topology with some units under other policies."""
        changed = {name: replace(self.units[name], policy=policy) for name, policy in policies.items()}
        return replace(self, units={**self.units, **changed})

    def consumers(self, stream: str) -> tuple[str, ...]:
        """Everything that reads ``stream``: stages by name, sinks as ``sink:NAME``; never twice."""
        stages = tuple(s.name for s in self.stages.values() if stream in s.inputs)
        return stages + tuple(f"sink:{name}" for name in self.stages[stream].sinks)

    def fed_by(self, stages: Iterable[str]) -> set[str]:
        """These stages, and all that is below them."""
        found = set(stages)
        for name, shape in self.stages.items():
            if found.intersection(shape.inputs):
                found.add(name)
        return found

    def spoiled(self) -> list[tuple[str, str]]:
        """Stages that are not right without every row, each with a unit that may lose some before it, or its own."""
        lossy: dict[str, str] = {}
        found: list[tuple[str, str]] = []
        for name, stage in self.stages.items():
            before = next((lossy[i] for i in stage.inputs if i in lossy), None)
            policy, unit = self.units[self.unit_of[name]].policy, self.unit_of[name]
            saved = stage.needs_all_input and policy.recovery == "saved"
            if before is None and not (policy.protected or policy.is_goal or saved):
                before = unit
            if before is not None:
                lossy[name] = before
                if stage.needs_all_input:
                    found.append((name, before))
        return found

    def inner(self, unit: str) -> tuple[str, ...]:
        """The stages of a unit that read from others: all but sources."""
        return tuple(stage for stage in self.units[unit].stages if self.stages[stage].inputs)

    def waits_for_state(self, unit: str) -> bool:
        """Nobody may begin it without what was kept safe of it, however long that is away."""
        recovery = self.units[unit].policy.recovery
        needs_all = any(self.stages[stage].needs_all_input for stage in self.units[unit].stages)
        return recovery == "standby" or (recovery == "saved" and needs_all)

    def is_last(self, stage: str) -> bool:
        """True when only sinks (or nobody) read the stage's stream: its checkpoints go by timer and start a sweep."""
        return not any(stage in s.inputs for s in self.stages.values())

    def shares_fate(self, stage: str, stream: str, hosts: Mapping[str, str | None], k: int | None = None) -> bool:
        """Whether ``stage`` adds no host to those that may fail together with the producer of ``stream``: it is on the
        producer's own host, or on one further upstream with fewer than K others in between. Then a run of lost
        neighbours goes on through it at no extra failure, so that a level acknowledged to it is not raised.
        ``hosts`` names each unit's primary; ``k`` counts in place of the stage's own policy's."""
        mine = hosts.get(self.unit_of[stage])
        k = max(1, self.units[self.unit_of[stage]].policy.levels if k is None else k)
        seen: set[tuple[str, frozenset[str | None]]] = set()
        ahead: list[tuple[str, frozenset[str | None]]] = [(stream, frozenset())]
        while ahead:
            name, others = ahead.pop()
            host = hosts.get(self.unit_of[name])
            if host == mine:
                return True
            others |= {host}
            if len(others) < k and (name, others) not in seen:
                seen.add((name, others))
                ahead += [(upstream, others) for upstream in self.stages[name].inputs]
        return False

    def roles(self, unit: str, start: Mapping[str, Epoch]) -> list[StageRole]:
        """The stages of a unit as its protection sees them, each at the epoch that ``start`` names."""
        return [self.role(name, start[name]) for name in self.units[unit].stages]

    def role(self, stage: str, start: Epoch, trimmed: Epoch | None = None) -> StageRole:
        shape = self.stages[stage]
        return StageRole(stage, start, shape.inputs, self.is_last(stage), trimmed, shape.needs_all_input)


def topological_order(inputs: Mapping[str, Iterable[str]]) -> list[str]:
    """Names such that every input comes first; raises CycleError naming the loop."""
    order: list[str] = []
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        if name in path:
            raise CycleError([*path[path.index(name) :], name])
        path.append(name)
        for upstream in inputs[name]:
            visit(upstream)
        path.pop()
        done.add(name)
        order.append(name)

    for name in inputs:
        visit(name)
    return order
