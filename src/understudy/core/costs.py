"""What a policy costs while all is well, and what a crash costs under it: the papers' formulas, in epochs.

Hwang et al. 2003, Section 5, with tuples of c bytes at rate λ, ids of x bytes, and M seconds between checkpoints or
acknowledgements: passive standby sends ``1 + 2x/(λcM)`` bytes for every byte of data, upstream backup ``2x/(λcM)``.
The first new output comes ``P = K + Qc/B`` after detection; Q, the duplicates, are on average ``Mλ/2`` under passive
standby and ``Mλ/2 + 2dλ`` under the others. Here a duplicate is an epoch, and making one again costs a micro-batch
where it cost the paper a transmission. The leading 1 of passive standby, all output sent once more, is what the
output queue costs; sweeping checkpoints carry none, and send what changed in the state instead. Active standby
doubles the input, eager delivery the output as well: the 2 and 4 of Gu et al. 2009, Figure 5, beside 1.1 for
sweeping.

A policy's own figures are in its file. A model for choosing between policies, not a promise: a drill measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from understudy.core.operators import OperatorClass
from understudy.core.policies.base import Policy
from understudy.core.profile import (
    ACK_CPU_S,
    CAPACITY_ROWS_PER_S,
    COLD_QUERY_S,
    ENTRY_BYTES,
    PROMOTE_S,
    Heard,
    Profile,
)
from understudy.core.topology import Topology


@dataclass(frozen=True)
class Estimate:
    """What to expect of a policy for one unit."""

    silence_s: float
    """From a crash to the first new output, on average."""
    worst_s: float
    """The same when the crash comes just before a checkpoint or an acknowledgement would have."""
    full_recovery_s: float
    """Until the delay from source to sink is as before."""
    ha_ratio: float
    """Bytes sent for protection, per byte of data."""
    cpu_ratio: float
    """CPU spent on protection, per CPU of the unit itself."""

    @property
    def overhead(self) -> float:
        """The larger of both ratios."""
        return max(self.ha_ratio, self.cpu_ratio)


def estimate(policy: Policy, profile: Profile, *, reach_s: float = 0.0) -> Estimate:
    """``reach_s``: how far back the unit's state reaches into its input, which a replay has to bring again."""
    sent_per_s, cpu_per_s = policy.spent(profile)
    silence_s, worst_s = (policy.silence_s(profile, reach_s=reach_s, share=share) for share in (0.5, 1.0))
    load = min(0.95, profile.rows_per_s / CAPACITY_ROWS_PER_S)
    return Estimate(
        silence_s=silence_s,
        worst_s=worst_s,
        full_recovery_s=silence_s + profile.batch_s + silence_s * load / (1 - load),
        ha_ratio=sent_per_s / max(1.0, profile.bytes_per_s),
        cpu_ratio=cpu_per_s / (profile.batch_s / profile.step_s),
    )


def estimate_source(profile: Profile, *, preserved: bool) -> Estimate:
    """Of a source: all that is kept is an entry per epoch or, where its rows cannot be read again (``preserved``), the
    rows themselves."""
    kept_per_s = profile.output_bytes_per_s if preserved else 0.0
    start_s = COLD_QUERY_S if preserved else PROMOTE_S
    silence_s = profile.detection_s + start_s + profile.epoch_s
    return Estimate(
        silence_s=silence_s,
        worst_s=silence_s,
        full_recovery_s=silence_s + profile.epoch_s,
        ha_ratio=(kept_per_s + ENTRY_BYTES / profile.epoch_s) / max(1.0, profile.output_bytes_per_s),
        cpu_ratio=ACK_CPU_S / profile.batch_s,
    )


def reach_s(operators: list[OperatorClass], rows_per_s: float = 0.0) -> float:
    """How far back the states of a unit's stages reach, one after the other. ``rows_per_s``: what they read."""
    return sum(found.reach_s(rows_per_s) for found in operators)


# -- what a unit hears from those below it --------------------------------------------------------------------------


def heard(topology: Topology, operators: Mapping[str, OperatorClass], epoch_s: float) -> dict[str, dict[str, Heard]]:
    """Stage -> stage that reads it -> how that one acknowledges, under the policies of ``topology``."""
    found: dict[str, dict[str, Heard]] = {}
    for name in reversed(list(topology.stages)):
        consumers = [stage.name for stage in topology.stages.values() if name in stage.inputs]
        found[name] = {
            consumer: topology.units[topology.unit_of[consumer]].policy.acknowledges(
                found[consumer], epoch_s=epoch_s, reach_s=reach_s([o for n, o in operators.items() if n == consumer])
            )
            for consumer in consumers
        }
    return found
