"""What a policy costs while all is well, and what a crash costs under it: the papers' formulas, in epochs.

Hwang et al. 2003, Section 5, with tuples of c bytes at rate λ, ids of x bytes, and M seconds between checkpoints or
acknowledgements: passive standby sends ``1 + 2x/(λcM)`` bytes for every byte of data, upstream backup ``2x/(λcM)``.
The first new output comes ``P = K + Qc/B`` after detection; Q, the duplicates, are on average ``Mλ/2`` under passive
standby and ``Mλ/2 + 2dλ`` under the others. Here a duplicate is an epoch, and making one again costs a micro-batch
where it cost the paper a transmission. The leading 1 of passive standby, all output sent once more, is what the
output queue costs; sweeping checkpoints carry none, and send what changed in the state instead. Active standby
doubles the input, eager delivery the output as well: the 2 and 4 of Gu et al. 2009, Figure 5, beside 1.1 for
sweeping.

A model for choosing between policies, not a promise: a drill measures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from understudy.core.operators import OperatorClass
from understudy.core.policies.active import ActiveStandby
from understudy.core.policies.base import Policy
from understudy.core.policies.passive import PassiveStandby
from understudy.core.policies.upstream import UpstreamBackup
from understudy.core.topology import Topology
from understudy.durations import seconds

ACK_BYTES = 110.0
"""x: an acknowledgement as it is counted, header and all. Level 0 costs none: asking for an epoch says it."""
CHECKPOINT_BYTES = 1500.0
"""A checkpoint in which nothing changed: its manifest, and Spark's logs of one batch."""
ENTRY_BYTES = 200.0
"""A source's entry on its way to the standby: which rows an epoch holds."""
CAPTURE_CPU_S = 0.015
"""To name, hash, pack and send the files of a small checkpoint."""
PACKED_SHARE = 0.5
"""What packing leaves of changed state."""
SNAPSHOT_EPOCHS = 10
"""How often Spark writes what changed once more, as tables in place of logs (``spark.py``: minDeltasForSnapshot)."""
SNAPSHOT_BYTES = 7000.0
"""What RocksDB adds to the tables of a snapshot, packed: its options and its list of files."""
PACKED_BYTES_PER_S = 50e6
"""How fast a checkpoint's bytes are hashed and packed, on one core."""
ACK_CPU_S = 0.001
"""To send one message and handle it at the other end."""
PROMOTE_S = 0.05
"""From the decision until a standby that was held at the door has been let go, or a copy begins to send."""
DELIVER_S = 0.05
"""From an epoch's being there until its consumers have it from another host than before."""
FIRST_BATCH_S = 0.1
"""What the first batch of a query that was held at the door takes longer than others."""
OPEN_BYTES_PER_S = 16e9
"""How fast state is taken over. It is open already, and nothing of it is read, but the more state, the more files are
looked at and linked, and the first batch finds none of it in memory."""
COLD_QUERY_S = 6.0
"""To plan and start a query that was not started ahead of time, on a host whose Spark runs."""
CAPACITY_ROWS_PER_S = 1e6
"""What one stage can take in when it is behind."""
IN_FLIGHT_EPOCHS = 2.0
"""2d: epochs that are under way between a consumer and what its acknowledgement lets go."""


@dataclass(frozen=True)
class Profile:
    """What one unit does while all is well. The defaults are those of a small job on a small machine."""

    epoch_s: float = 0.5
    rows_per_s: float = 1000.0
    """Rows that come in from other units: λ."""
    bytes_per_s: float = 50_000.0
    """Bytes that come in: λc."""
    output_bytes_per_s: float = 50_000.0
    state_bytes: float = 0.0
    delta_bytes: float = 0.0
    """Bytes of state that an epoch changes."""
    batch_s: float = 0.25
    """One epoch, from its being granted to its commit, through all stages of the unit."""
    behind_s: float = 0.0
    """By how much the units that read its output acknowledge it late, at most."""
    heard_every_s: float | None = None
    """How often they do. None: nobody but sinks reads it, and they acknowledge every epoch."""
    detection_s: float = 0.05
    """From a crash to the news of it: a broken connection. A host that hangs is noticed by its heartbeats only."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "heard_every_s" and value is None:
                continue
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ValueError(f"{each.name}={value!r} must be a number, and not negative")
        if self.epoch_s == 0 or self.batch_s == 0:
            raise ValueError("epoch_s and batch_s must be longer than nothing")

    @property
    def step_s(self) -> float:
        """Between epochs as they come: a unit that takes longer than an epoch is given larger ones, not more."""
        return max(self.epoch_s, self.batch_s)


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
    sent_per_s, cpu_per_s = _spent(policy, profile)
    silence_s, worst_s = (_silence_s(policy, profile, reach_s, share) for share in (0.5, 1.0))
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


def reach_s(operators: list[OperatorClass]) -> float:
    """How far back the states of a unit's stages reach, one after the other."""
    return sum(found.window.reach_s for found in operators if found.window is not None)


def _silence_s(policy: Policy, profile: Profile, reach_s: float, share: float) -> float:
    """Detection, then K until the unit runs again, then Q epochs made again, then the first new one. ``share`` of an
    interval M has passed when it crashes."""
    step_s, batch_s, detection_s = profile.step_s, profile.batch_s, profile.detection_s
    if policy.recovery == "gap":
        return detection_s + COLD_QUERY_S + batch_s
    if isinstance(policy, UpstreamBackup):
        again = (reach_s + share * _ack_every_s(policy, profile)) / step_s + IN_FLIGHT_EPOCHS
        return detection_s + PROMOTE_S + FIRST_BATCH_S + (again + 1) * batch_s  # its spare is held at the door
    if isinstance(policy, ActiveStandby):
        return DELIVER_S if _delivers_twice(policy, profile) else detection_s + PROMOTE_S + DELIVER_S
    assert isinstance(policy, PassiveStandby)
    every_s = _checkpoint_every_s(policy, profile)
    again = share * every_s / step_s
    if policy.checkpoint == "sweeping":
        again += profile.behind_s / step_s
    opening_s = FIRST_BATCH_S + profile.state_bytes / OPEN_BYTES_PER_S
    return detection_s + PROMOTE_S + opening_s + (again + 1) * batch_s


def _spent(policy: Policy, profile: Profile) -> tuple[float, float]:
    """Bytes and CPU seconds that protection takes, per second."""
    if isinstance(policy, UpstreamBackup):
        acks_per_s = policy.k / _ack_every_s(policy, profile)
        return ACK_BYTES * acks_per_s, ACK_CPU_S * acks_per_s
    if isinstance(policy, ActiveStandby):
        copied = profile.bytes_per_s + (2 * profile.output_bytes_per_s if _delivers_twice(policy, profile) else 0.0)
        sent_per_s = copied + 2 * ACK_BYTES / profile.step_s
        return policy.backups * sent_per_s, policy.backups * profile.batch_s / profile.step_s
    if isinstance(policy, PassiveStandby):
        every_s = _checkpoint_every_s(policy, profile)
        changed_per_s = PACKED_SHARE * profile.delta_bytes / profile.step_s
        if profile.state_bytes:
            tables = PACKED_SHARE * min(profile.state_bytes, SNAPSHOT_EPOCHS * profile.delta_bytes)
            changed_per_s += (SNAPSHOT_BYTES + tables) / max(SNAPSHOT_EPOCHS * profile.step_s, every_s)
        if policy.checkpoint != "sweeping":
            changed_per_s += profile.output_bytes_per_s
        sent_per_s = changed_per_s + (CHECKPOINT_BYTES + ACK_BYTES) / every_s
        cpu_per_s = CAPTURE_CPU_S / every_s + changed_per_s / PACKED_BYTES_PER_S
        return policy.standbys * sent_per_s, policy.standbys * cpu_per_s
    return 0.0, 0.0


def _ack_every_s(policy: UpstreamBackup, profile: Profile) -> float:
    """With every epoch, or less often."""
    return max(profile.step_s, _given_ack_every_s(policy))


def _given_ack_every_s(policy: UpstreamBackup) -> float:
    return 0.0 if policy.ack_every is None else seconds(policy.ack_every, what="ack_every")


def _checkpoint_every_s(policy: PassiveStandby, profile: Profile) -> float:
    """A sweep comes from below; only a unit that nobody but sinks reads begins one itself."""
    if policy.checkpoint != "sweeping" or profile.heard_every_s is None:
        return policy.every_s
    return profile.heard_every_s


def _delivers_twice(policy: ActiveStandby, profile: Profile) -> bool:
    """Sinks are written by the primary alone, so eager delivery needs other units to deliver to."""
    return policy.eager and profile.heard_every_s is not None


# -- what a unit hears from those below it --------------------------------------------------------------------------


@dataclass(frozen=True)
class Heard:
    """How acknowledgements come: ``behind_s`` late, and one ``every_s``."""

    behind_s: float
    every_s: float


def heard(topology: Topology, operators: Mapping[str, OperatorClass], epoch_s: float) -> dict[str, dict[str, Heard]]:
    """Stage -> stage that reads it -> how that one acknowledges, under the policies of ``topology``."""
    found: dict[str, dict[str, Heard]] = {}
    for name in reversed(list(topology.stages)):
        consumers = [stage.name for stage in topology.stages.values() if name in stage.inputs]
        found[name] = {
            consumer: _acknowledges(
                topology.units[topology.unit_of[consumer]].policy, operators.get(consumer), found[consumer], epoch_s
            )
            for consumer in consumers
        }
    return found


def _acknowledges(policy: Policy, operator: OperatorClass | None, below: Mapping[str, Heard], epoch_s: float) -> Heard:
    if isinstance(policy, PassiveStandby) and policy.checkpoint == "sweeping":
        # A sweep comes from below, and goes on upwards at once.
        every_s = max((each.every_s for each in below.values()), default=policy.every_s)
        behind_s = max((each.behind_s for each in below.values()), default=0.0)
        return Heard(behind_s, max(every_s, epoch_s))
    if isinstance(policy, PassiveStandby):
        return Heard(0.0, policy.every_s)
    if isinstance(policy, UpstreamBackup):
        every_s = max(epoch_s, _given_ack_every_s(policy))
        window = None if operator is None else operator.window
        return Heard(every_s + (0.0 if window is None else window.reach_s), every_s)
    return Heard(0.0, epoch_s)
