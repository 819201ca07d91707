"""Policies compared over years in a data centre: the same failures happen to a job under each of them.

What happens is in ``datacentre_years``, what the data centre is like in ``datacentre_setting``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from understudy.core.policies import ActiveStandby, Hybrid, PassiveStandby, Policy, UpstreamBackup, none
from understudy.core.topology import Topology
from understudy.sim.datacentre_page import Result, describe
from understudy.sim.datacentre_setting import Setting
from understudy.sim.datacentre_years import Progress, Years, is_source, upstream_of
from understudy.sim.failures import Failure, failure_model

__all__ = [
    "POLICIES",
    "Progress",
    "Result",
    "Setting",
    "bandwidth_share",
    "compare",
    "describe",
    "simulate",
    "tell_story",
    "under",
]

POLICIES: tuple[Policy, ...] = (none, PassiveStandby(), ActiveStandby(), UpstreamBackup(), Hybrid())
ID_BYTES = 8
"""A row's number in an acknowledgement (Hwang et al. 2003, Table 3)."""


def simulate(
    topology: Topology, setting: Setting, story: Sequence[Failure] | None = None, progress: Progress | None = None
) -> Result:
    """One policy, the setting's or the job's own, over one story, which the setting's failure model tells."""
    if setting.policy is not None:
        topology = under(topology, setting.policy)
    _check(topology, setting)
    if story is None:
        story = tell_story(setting)
    label = "as written" if setting.policy is None else setting.policy.describe()
    world = Years(topology, setting, story)
    world.run(label, progress)
    return world.result(label, story, bandwidth_share(topology, setting))


def compare(
    topology: Topology,
    setting: Setting,
    policies: Sequence[Policy | None] | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Several policies over the same story; None in ``policies`` stands for what the job says itself. Without
    ``policies``: one of each kind."""
    settings = [replace(setting, policy=policy) for policy in (POLICIES if policies is None else policies)]
    for each in settings:  # before the first hour is spent
        _check(topology if each.policy is None else under(topology, each.policy), each)
    story = tell_story(setting)
    return [simulate(topology, each, story, progress) for each in settings]


def tell_story(setting: Setting) -> list[Failure]:
    """All that fails in the setting's days."""
    model = failure_model(setting.failures)
    return model.story(hosts=setting.hosts, racks=setting.racks, days=setting.days, seed=setting.seed)


def under(topology: Topology, policy: Policy) -> Topology:
    """The topology with every unit under ``policy``, but sources under passive standby, as ``Job.policy`` has it."""
    units = {}
    for name, shape in topology.units.items():
        source = any(not topology.stages[stage].inputs for stage in shape.stages)
        kept = source and type(policy) is not PassiveStandby
        units[name] = replace(shape, policy=PassiveStandby() if kept else policy)
    return replace(topology, units=units)


def bandwidth_share(topology: Topology, setting: Setting) -> float:
    """Bytes sent for high availability per byte of data, while nothing fails: Hwang et al. 2003, formulas (1) and (2).

    With x bytes for an id, each input stream and interval: passive standby 2x and what changed of the state, and
    unless it sweeps also the output queue; active standby 3x and the input again, eager also the output; upstream
    backup one x for each level, 2x for K = 1. All but the last once for each standby.
    """
    data = setting.rows_per_s * setting.row_bytes
    total = 0.0
    for shape in topology.units.values():
        policy, ids = shape.policy, ID_BYTES * max(1, len(upstream_of(topology, shape)))
        if policy.recovery == "replay":
            total += (policy.levels + 1) * ids / setting.epoch_s
        elif policy.standby_runs:
            total += policy.backups * (data * (2 if policy.eager else 1) + 3 * ids / setting.epoch_s)
        elif (every_s := policy.checkpoint_s) is not None:
            taken = 0.0 if is_source(topology, shape) else data * every_s
            sent = min(setting.state_bytes, setting.state_share * taken)
            sent += taken if policy.carries_queue else 0.0
            total += policy.backups * (sent + 2 * ids) / every_s
    return total / (data * len(topology.units))


def _check(topology: Topology, setting: Setting) -> None:
    path: dict[str, int] = {}
    for name, shape in topology.units.items():
        path[name] = 1 + max((path.get(u, 0) for u in upstream_of(topology, shape)), default=0)
    longest = max(path.values())
    for name, shape in topology.units.items():
        policy = shape.policy
        if policy.backups > setting.hosts - 1:
            raise ValueError(
                f"hosts={setting.hosts}: unit {name!r} wants {policy.backups} standbys besides its primary "
                f"({policy.describe()}); use hosts={policy.backups + 1} or more, or a smaller k"
            )
        if policy.recovery == "replay" and policy.tolerates > longest:
            raise ValueError(
                f"k={policy.tolerates}: unit {name!r} cannot have more in a row fail than the job's longest path has, "
                f"which is {longest}; use k={longest} or less"
            )
