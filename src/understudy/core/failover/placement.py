"""Which host is best for a unit: the one that holds its newest checkpoint, or the one with least to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from understudy.core.numbers import Epoch
from understudy.core.plans import UnitPlan
from understudy.core.topology import Topology

TOGETHER = 1000
"""What sharing a host with a neighbour weighs against other work, for a unit that is rebuilt from its neighbours."""


def newest_holder(
    unit: str, alive: Mapping[str, Mapping[str, Epoch]], *, first: Sequence[str | None] = ()
) -> str | None:
    """The living host with the newest whole checkpoint of ``unit``; one of ``first``, if there is one."""
    held = [(epochs[unit], host) for host, epochs in alive.items() if unit in epochs]
    held = [pair for pair in held if pair[1] in first] or held
    return max(held, key=lambda pair: (pair[0], pair[1]))[1] if held else None


def best_host(
    name: str,
    free: Sequence[str],
    *,
    wishes: Sequence[str | None],
    topology: Topology,
    units: Mapping[str, UnitPlan],
) -> str | None:
    """The first wished-for host among those that are ``free`` to take the unit, else the one with least to do when
    ``units`` are placed like this (primaries weigh double)."""
    for wish in wishes:
        if wish in free:
            return wish

    work = dict.fromkeys(free, 0)
    near = _neighbours(name, topology) if topology.units[name].policy.recovery == "replay" else ()
    for other, unit in units.items():
        if other == name:
            continue
        if other in near and unit.primary in work:
            # Neighbours on one host fail together, and each counts on the other's queue.
            work[unit.primary] += TOGETHER
        for host, weight in ((unit.primary, 2), *((s, 1) for s in unit.standbys)):
            if host in work:
                work[host] += weight
    return min(free, key=lambda host: (work[host], host), default=None)


def _neighbours(name: str, topology: Topology) -> set[str]:
    """The units that read from this one, or that it reads from."""
    unit_of, found = topology.unit_of, set()
    for stage in topology.stages.values():
        for stream in stage.inputs:
            pair = {unit_of[stage.name], unit_of[stream]}
            if name in pair:
                found |= pair
    return found - {name}
