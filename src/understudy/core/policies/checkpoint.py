"""Checkpoints of what is worth saving (Jacques-Silva et al. 2009): partial fault tolerance, by choice.

The state of every stage is saved at a period of its own; nothing else is paid for: input is acknowledged as soon as it
was processed, and output is not kept for a takeover. After a crash the stage goes on from its last saved state, at the
oldest epoch that its producers still have for it. What was acknowledged and not saved is missing from that state, and
its epochs become empty ones for whoever has not got them.

One kind of stage is not right without every row: a barrier, which pairs its inputs (Section 4). Where a stage
``needs_all_input``, only its producers keep what its last checkpoint does not cover, and that has its output too; so it
loses nothing.

One scheduler for a unit, as the paper's thread: stages by their next deadline, one capture at a time, so that a large
state does not come at the same moment as the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from understudy.core.numbers import NO_EPOCH, Epoch
from understudy.core.operators import OperatorClass
from understudy.core.policies.base import (
    AckUpstream,
    Capture,
    CaptureFailed,
    Committed,
    Drain,
    Effect,
    Event,
    Late,
    Pasted,
    Policy,
    Recovery,
    StageRole,
    StandbysChanged,
    Want,
    positive,
)
from understudy.core.policies.passive import EARLY, RETRY_S, sooner
from understudy.core.profile import (
    CAPTURE_CPU_S,
    CHECKPOINT_BYTES,
    OPEN_BYTES_PER_S,
    PACKED_BYTES_PER_S,
    PACKED_SHARE,
    PROMOTE_S,
    Heard,
    Profile,
    size,
)
from understudy.durations import seconds

_NOTHING, _ALL = Epoch(-2), Epoch(1 << 62)
LATE = 0.25
"""Share of its period by which a checkpoint may be late before that counts. An epoch need not end at the deadline."""
RECENT, OFTEN = 8, 4
"""Of so many checkpoints so many late ones are said: the period is too short. One is what a busy machine does."""


@dataclass(frozen=True)
class Checkpoint(Policy):
    """The state is saved now and then, and a crash costs what came since: for results that may be a little wrong for a
    while, and should cost next to nothing to keep. ``every``: how often each stage's state is saved."""

    kind: ClassVar[str] = "checkpoint"
    every: str | float = "10s"
    standbys: int = 1

    def __post_init__(self) -> None:
        positive("standbys", self.standbys)
        seconds(self.every, what="every")

    @property
    def recovery(self) -> Recovery:
        return "saved"

    @property
    def backups(self) -> int:
        return self.standbys

    @property
    def tolerates(self) -> int:
        return 0

    @property
    def every_s(self) -> float:
        return seconds(self.every, what="every")

    @property
    def checkpoint_s(self) -> float:
        return self.every_s

    def with_backups(self, backups: int) -> Checkpoint:
        return replace(self, standbys=backups)

    def describe(self) -> str:
        several = f" on {self.standbys} hosts" if self.standbys > 1 else ""
        return f"{self.kind} every {self.every}{several}"

    def protect(self, stages: Iterable[StageRole]) -> Scheduled:
        return Scheduled(stages, every_s=self.every_s)

    # -- what to expect -----------------------------------------------------------------------------------------------

    def silence_s(self, profile: Profile, *, reach_s: float, share: float) -> float:
        opening_s = profile.state_bytes / OPEN_BYTES_PER_S
        return profile.detection_s + PROMOTE_S + opening_s + profile.batch_s

    def spent(self, profile: Profile) -> tuple[float, float]:
        epochs = max(1.0, self.every_s / profile.step_s)
        changed = min(profile.state_bytes, epochs * profile.delta_bytes) if profile.state_bytes else 0.0
        each = CHECKPOINT_BYTES + PACKED_SHARE * changed
        every_s = max(self.every_s, profile.step_s)
        cpu_per_s = (CAPTURE_CPU_S + PACKED_SHARE * changed / PACKED_BYTES_PER_S) / every_s
        return self.standbys * each / every_s, self.standbys * cpu_per_s

    def acknowledges(self, below: Mapping[str, Heard], *, epoch_s: float, reach_s: float) -> Heard:
        return Heard(0.0, epoch_s)

    def kept(self, profile: Profile, inputs: Sequence[str], *, reach_s: float) -> str:
        state = f"state, {size(profile.state_bytes)}" if profile.state_bytes else "its state"
        where = f"{self.standbys} hosts" if self.standbys > 1 else "another host"
        return f"{state}, every {self.every} on {where}"

    def saved(self, found: OperatorClass) -> str:
        return found.saved

    def missing(self, found: OperatorClass) -> str:
        if found.needs_all_input:
            return ""
        if not found.wrong_until:
            return "rows on their way may be lost, and nothing else is wrong"
        lacks = f"rows on their way may be lost, and its state lacks those of the last {self.every}"
        return f"{lacks}: it is wrong {found.wrong_until}"


@dataclass(slots=True)
class _Held:
    """What one standby has of one stage. ``newest <= captured``."""

    captured: Epoch = _NOTHING
    newest: Epoch | None = None


class _Stage:
    """Invariant: ``captured <= available <= committed`` at every standby."""

    def __init__(self, role: StageRole) -> None:
        self.name, self.needs_all_input = role.name, role.needs_all_input
        self.committed = self.acked = role.start
        self.available = role.start
        """The newest epoch whose state can be had."""
        self.next_at = 0.0
        """When it is to be saved next. The first time is at once: a standby that holds nothing is none."""
        self.retry_at = 0.0
        self.waits_since: float | None = None
        """Since when there is something that was not saved."""
        self.punctual: deque[bool] = deque(maxlen=RECENT)
        """Whether each of the last checkpoints came in time."""
        self.told_late = False
        self.at: dict[str, _Held] = {}

    def lacking(self) -> list[str]:
        """The standbys that have not what could be had."""
        return [key for key, held in self.at.items() if self.available > held.captured]

    def deadline(self, early_s: float, *, draining: bool) -> float | None:
        """From when on it may be captured; None when there is nothing to capture."""
        lacking = self.lacking()
        if not lacking:
            return None
        hurry = draining or any(self.at[key].newest is None for key in lacking)
        return max(self.retry_at, float("-inf") if hurry else self.next_at - early_s)

    def came(self, *, late: bool) -> bool:
        """A checkpoint. Returns whether it is to be said that many are late: once, until they come in time again."""
        self.punctual.append(not late)
        if all(self.punctual):
            self.told_late = False
        often = not self.told_late and self.punctual.count(False) >= OFTEN
        self.told_late |= often
        return often

    def safe_epoch(self) -> Epoch:
        """What may be acknowledged."""
        if not self.needs_all_input or not self.at:
            return self.committed
        return min(NO_EPOCH if held.newest is None else held.newest for held in self.at.values())


class Scheduled:
    """Captures of a unit's stages: the next deadline first, one at a time."""

    def __init__(self, stages: Iterable[StageRole], *, every_s: float) -> None:
        self.every_s = every_s
        self.stages = {role.name: _Stage(role) for role in stages}
        self.late = 0
        """Checkpoints that began later than they should have."""
        self._busy: tuple[str, set[str]] | None = None
        """The stage that is being captured, and the standbys that have not answered."""
        self._draining = False

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Committed):
            stage = self.stages[event.stage]
            stage.committed = max(stage.committed, event.epoch)
            if stage.waits_since is None:
                stage.waits_since = now
            if event.version or self._draining:
                stage.available = stage.committed
        elif isinstance(event, Pasted):
            self._pasted(event)
        elif isinstance(event, CaptureFailed):
            self._failed(event, now)
        elif isinstance(event, StandbysChanged):
            for stage in self.stages.values():
                stage.at = {key: stage.at.get(key) or _Held() for key in event.standbys}
            if self._busy is not None:
                self._answered(self._busy[0], keep=event.standbys)
        elif isinstance(event, Drain):
            self._draining = True
            for stage in self.stages.values():
                stage.available = stage.committed  # it stands still there, so its state can be had
                for held in stage.at.values():  # and once more where it has been: this time with its output
                    held.captured = held.captured if held.captured == _ALL else _NOTHING
        for stage in self.stages.values():
            safe = stage.safe_epoch()
            if safe > stage.acked:
                stage.acked = safe
                effects.append(AckUpstream(stage.name, safe))
        return effects + self._capture(now)

    def _pasted(self, event: Pasted) -> None:
        held = self.stages[event.stage].at.get(event.standby)
        if held is not None:
            held.newest = event.epoch if held.newest is None else max(held.newest, event.epoch)
        self._answered(event.stage, event.standby)

    def _failed(self, event: CaptureFailed, now: float) -> None:
        stage = self.stages[event.stage]
        held = stage.at.get(event.standby)
        if held is not None:
            held.captured = _NOTHING if held.newest is None else held.newest
            if event.lost_standby:
                held.captured = _ALL  # until a plan names another it is brought nothing more
            stage.retry_at = now + RETRY_S
            # That state may never be had; by then there is to be a newer one.
            stage.next_at = min(stage.next_at, stage.retry_at)
        self._answered(event.stage, event.standby)

    def _answered(self, stage: str, standby: str | None = None, keep: Iterable[str] | None = None) -> None:
        if self._busy is None or self._busy[0] != stage:
            return
        left = self._busy[1] - {standby} if keep is None else self._busy[1].intersection(keep)
        self._busy = (stage, left) if left else None

    def _capture(self, now: float) -> list[Effect]:
        if self._busy is not None:
            return []
        due = [(at, name) for name in self.stages if (at := self._deadline(name)) is not None and at <= now]
        if not due:
            return []
        name = min(due)[1]
        stage = self.stages[name]
        effects: list[Effect] = []
        since = max(stage.next_at, stage.waits_since or 0.0)
        late = bool(stage.next_at) and not self._draining and now - since > LATE * self.every_s
        often = stage.came(late=late)
        if late:
            self.late += 1
            effects.append(Late(name, now - since, often))
        lacking = stage.lacking()
        for key in lacking:
            stage.at[key].captured = stage.available
            # With its output where the job ends: a consumer may end before it, and go on with what it lacks.
            queue = stage.needs_all_input or self._draining
            effects.append(Capture(name, key, stage.available, queue=queue))
        self._busy = (name, set(lacking))
        if not stage.next_at:
            stage.next_at = now + self.every_s
        elif now >= stage.next_at - EARLY * self.every_s:  # not one for a standby that is new, or is tried again
            # From where it should have been: what comes early makes no more checkpoints. Not what is late already.
            stage.next_at = max(stage.next_at + self.every_s, now)
        stage.waits_since = None if stage.available == stage.committed else now
        return effects

    def next_deadline(self) -> float | None:
        deadline: float | None = None
        for name in self.stages if self._busy is None else ():
            deadline = sooner(deadline, self._deadline(name))
        return deadline

    def _deadline(self, stage: str) -> float | None:
        return self.stages[stage].deadline(EARLY * self.every_s, draining=self._draining)

    def wants(self, stage: str, now: float) -> Want:
        """The state after the epoch that was just made, when the stage is due."""
        mine = self.stages[stage]
        if self._busy is not None and self._busy[0] == stage:
            return Want.NOTHING  # one state at a time: those on their way must still be there when they are sent
        behind = any(mine.committed >= held.captured for held in mine.at.values())
        return Want.NOW if behind and now >= mine.next_at - EARLY * self.every_s else Want.NOTHING

    def safe(self) -> bool:
        return self._busy is None and not any(stage.lacking() for stage in self.stages.values())
