"""Upstream backup: no checkpoint at all; producers keep what is needed to rebuild a lost state by replay.

Hwang et al. 2003, Sections 4.2 and 4.4. When all consumers have acknowledged epoch *v* of a stage's stream at level
*n*, the stage acknowledges its inputs at level *n + 1*: everything that the state after *v* does not need. Producers
trim at level K, so that K neighbours in a row may fail at once and be rebuilt one after the other.

Epochs sharpen the paper's bound by one element: a header names what the state *after* an epoch needs, so a stage
without state needs nothing of the epochs that its consumers have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from understudy.core.acks import FINAL, Indicators
from understudy.core.numbers import NO_EPOCH, Epoch, before
from understudy.core.operators import duration
from understudy.core.policies.base import (
    Acked,
    AckUpstream,
    Committed,
    Drain,
    Effect,
    Event,
    Placed,
    Policy,
    Recovery,
    StageRole,
    Want,
    positive,
)
from understudy.core.profile import (
    ACK_BYTES,
    ACK_CPU_S,
    IN_FLIGHT_EPOCHS,
    PROMOTE_S,
    Heard,
    Profile,
    size,
)
from understudy.durations import seconds


@dataclass(frozen=True)
class Row:
    """Neighbours that are rebuilt one from the other: the hosts that they were lost with, and the smallest K."""

    hosts: frozenset[str | None]
    k: int

    def joined_by(self, other: Row) -> Row:
        return Row(self.hosts | other.hosts, min(self.k, other.k))

    @property
    def promised(self) -> bool:
        return len(self.hosts) <= self.k


@dataclass(frozen=True)
class UpstreamBackup(Policy):
    """Nothing is kept but what producers have sent; any host rebuilds a lost state by replay. Costs almost nothing
    while all is well. Only for stages whose state lets go of old input.

    ``ack_every``: tell producers on other hosts what they may forget at most this often; rarely saves messages, often
    keeps their queues, and so a recovery, short (Hwang et al. 2003, Section 4.2.1). By default with every epoch, which
    is pace enough: an epoch is many rows, and needs one message.
    """

    kind: ClassVar[str] = "upstream backup"
    k: int = 1
    ack_every: str | float | None = None

    def __post_init__(self) -> None:
        positive("k", self.k)
        if self.ack_every is not None:
            seconds(self.ack_every, what="ack_every")

    @property
    def recovery(self) -> Recovery:
        return "replay"

    @property
    def tolerates(self) -> int:
        return self.k

    @property
    def levels(self) -> int:
        return self.k

    def describe(self) -> str:
        depth = f", K={self.k}" if self.k > 1 else ""
        return f"{self.kind}{depth}{f', acks every {self.ack_every}' if self.ack_every is not None else ''}"

    def protect(self, stages: Iterable[StageRole]) -> Replayable:
        return Replayable(stages, k=self.k, ack_every_s=self._ack_every_s)

    @property
    def _ack_every_s(self) -> float | None:
        return None if self.ack_every is None else seconds(self.ack_every, what="ack_every")

    # -- what to expect -----------------------------------------------------------------------------------------------

    def _acks_every_s(self, step_s: float) -> float:
        """With every epoch, or less often."""
        return max(step_s, self._ack_every_s or 0.0)

    def silence_s(self, profile: Profile, *, reach_s: float, share: float) -> float:
        again = (reach_s + share * self._acks_every_s(profile.step_s)) / profile.step_s + IN_FLIGHT_EPOCHS
        # Its spare is held at the door.
        return profile.detection_s + PROMOTE_S + (again + 1) * profile.batch_s

    def spent(self, profile: Profile) -> tuple[float, float]:
        acks_per_s = self.k / self._acks_every_s(profile.step_s)
        return ACK_BYTES * acks_per_s, ACK_CPU_S * acks_per_s

    def acknowledges(self, below: Mapping[str, Heard], *, epoch_s: float, reach_s: float) -> Heard:
        every_s = self._acks_every_s(epoch_s)
        return Heard(every_s + reach_s, every_s)

    def kept(self, profile: Profile, inputs: Sequence[str], *, reach_s: float) -> str:
        keep = f"{', '.join(inputs)} {'keeps' if len(inputs) == 1 else 'keep'}"
        if not reach_s:
            return f"nothing; {keep} what consumers lack"
        return f"nothing; {keep} {duration(reach_s)} of input, {size(reach_s * profile.bytes_per_s)}"


class _Stage:
    def __init__(self, role: StageRole, k: int) -> None:
        self.name, self.inputs = role.name, role.inputs
        self.near: tuple[str, ...] = ()
        self.levels: tuple[int, ...] = tuple(range(k))
        """Those that are passed on: FINAL only to inputs that are near. What came from elsewhere was done with when
        level K was reached."""
        self.indicators: Indicators[Epoch] = Indicators(role.inputs)
        self.committed = role.start
        self.bounds = {level: role.start for level in (*range(k), FINAL)}
        """By level: what all consumers have acknowledged."""
        self.acked: dict[tuple[str, int], Epoch] = {}


class Replayable:
    """Turns its consumers' acknowledgements at level n into its own at level n + 1.

    What counts are hosts that fail on their own: to a producer on the same host, or below another stage of it, a level
    is passed on as it is. This composes indicators over all that is on one host, be it one unit or several.
    """

    def __init__(self, stages: Iterable[StageRole], *, k: int, ack_every_s: float | None = None) -> None:
        self.k, self.ack_every_s = k, ack_every_s
        self.stages = {role.name: _Stage(role, k) for role in stages}
        self._waiting: dict[tuple[str, str | None, int], AckUpstream] = {}
        """Acknowledgements held back, the newest of each kind."""
        self._free_at = float("-inf")
        """From when on the next may go out."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        acks = self._acks(event)
        return [*acks] if self.ack_every_s is None else self._paced(acks, self.ack_every_s, event, now)

    def _paced(self, acks: list[AckUpstream], every_s: float, event: Event, now: float) -> list[Effect]:
        """What need not wait, and what was held back, if it is time."""
        effects: list[Effect] = []
        for ack in acks:
            if ack.input in self.stages[ack.stage].near:
                effects.append(ack)  # to a producer on this host: no message, and others wait for it to pass it on
            else:
                self._waiting[ack.stage, ack.input, ack.level] = ack
        if self._waiting and (now >= self._free_at or isinstance(event, Drain)):
            effects += self._waiting.values()
            self._waiting.clear()
            self._free_at = now + every_s
        return effects

    def _acks(self, event: Event) -> list[AckUpstream]:
        if isinstance(event, Committed):
            stage = self.stages[event.stage]
            if event.epoch <= stage.committed:
                return []
            stage.committed = event.epoch
            stage.indicators.append(event.epoch, event.needs or {})
            acks: list[AckUpstream] = []
            for level in stage.levels:
                acks += self._pass_on(stage, level)
            return acks
        if isinstance(event, Acked):
            stage = self.stages[event.stage]
            if event.epoch <= stage.bounds.get(event.level, event.epoch):
                return []
            stage.bounds[event.level] = event.epoch
            acks = self._pass_on(stage, event.level) if event.level in stage.levels else []
            stage.indicators.forget(min(stage.bounds.values()))
            return acks
        if isinstance(event, Placed):
            stage = self.stages[event.stage]
            stage.near = event.near
            stage.levels = (*range(self.k), FINAL) if event.near else tuple(range(self.k))
        return []

    def _pass_on(self, stage: _Stage, level: int) -> list[AckUpstream]:
        """What consumers have and this copy has processed: the state after that is what must be rebuilt."""
        epoch = min(stage.bounds[level], stage.committed)
        acks: list[AckUpstream] = []
        for name in stage.inputs:
            if name in stage.near:
                up = level
            elif level == FINAL:
                continue
            else:
                up = FINAL if level + 1 == self.k else level + 1
            oldest = stage.indicators.cause(epoch, name)
            if oldest is not None and oldest - 1 > stage.acked.get((name, up), NO_EPOCH):
                stage.acked[name, up] = done_with = before(oldest)
                acks.append(AckUpstream(stage.name, done_with, up, name))
        return acks

    def safe(self) -> bool:
        return True

    def wants(self, stage: str, now: float) -> Want:
        return Want.NOTHING

    def next_deadline(self) -> float | None:
        return self._free_at if self._waiting else None
