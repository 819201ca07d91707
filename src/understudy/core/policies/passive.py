"""Passive standby: one or more hosts hold the unit's last checkpoints.

Three ways to time checkpoints (Gu et al. 2009, Section 3.1). *Sweeping*: the last stage by a timer, every other stage
as soon as its output queue was trimmed. Because a stage turns epoch *e* into epoch *e*, a checkpoint can be taken *at
the trim point itself*: the state after the newest epoch that all consumers have acknowledged. Such a checkpoint needs
no output queue at all, and a sweep carries one epoch number from sink to source. Where the stage ran before sweeping
began, the first checkpoint has the queue: consumers have yet to be done with what is in it. *Individual*: every stage
by a timer of its own, paused and captured with its output queue, and goes on when that is safe. *Synchronous*: the same
with a timer for the unit, all of whose stages are paused together.

A stage acknowledges upstream what the newest version at every standby covers: whichever of them takes over, its input
is still there. That a version can be read again is the store's promise; it keeps every file twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from understudy.core.acks import FINAL
from understudy.core.numbers import NO_EPOCH, Epoch, before
from understudy.core.policies.base import (
    Acked,
    AckUpstream,
    Capture,
    CaptureFailed,
    Committed,
    Drain,
    Effect,
    Event,
    Pasted,
    Pause,
    Paused,
    Policy,
    Protection,
    Recovery,
    Resume,
    StageRole,
    StandbysChanged,
    Tick,
    Want,
    positive,
)
from understudy.core.profile import (
    ACK_BYTES,
    CAPTURE_CPU_S,
    CHECKPOINT_BYTES,
    OPEN_BYTES_PER_S,
    PACKED_BYTES_PER_S,
    PACKED_SHARE,
    PROMOTE_S,
    SNAPSHOT_BYTES,
    SNAPSHOT_EPOCHS,
    Heard,
    Profile,
    size,
)
from understudy.durations import seconds

Timing = Literal["sweeping", "individual", "synchronous"]
EARLY = 0.25
"""Share of its period by which a timed checkpoint may come early. Epochs do not come to the millisecond: one that is
done a little before the timer would wait for it, and be made again after a crash meanwhile."""
RETRY_S = 1.0
"""Pause after a failed capture. Shorter hammers a full disk; longer leaves the unit unprotected longer."""


@dataclass(frozen=True)
class PassiveStandby(Policy):
    """A second host holds the state and an armed query; a crash costs about one micro-batch and loses nothing.

    ``checkpoint="sweeping"``: the last stage is checkpointed by a timer, every other stage right after its
    consumers' checkpoints let it trim its output queue, so that checkpoints sweep from sink to source and carry
    no queue at all (Gu et al. 2009, Section 3.1). ``"individual"`` and ``"synchronous"`` are the paper's two others.
    ``standbys``: on how many hosts the state is kept; as many may fail at once.
    """

    kind: ClassVar[str] = "passive standby"
    checkpoint: Timing = "sweeping"
    every: str | float = "500ms"
    standbys: int = 1

    def __post_init__(self) -> None:
        if self.checkpoint not in get_args(Timing):
            known = ", ".join(repr(t) for t in get_args(Timing))
            raise ValueError(f"checkpoint={self.checkpoint!r} is not known; use one of {known}")
        seconds(self.every, what="every")
        positive("standbys", self.standbys)

    @property
    def recovery(self) -> Recovery:
        return "standby"

    @property
    def backups(self) -> int:
        return self.standbys

    @property
    def every_s(self) -> float:
        return seconds(self.every, what="every")

    @property
    def checkpoint_s(self) -> float:
        return self.every_s

    @property
    def carries_queue(self) -> bool:
        return self.checkpoint != "sweeping"

    def with_backups(self, backups: int) -> PassiveStandby:
        return replace(self, standbys=backups)

    def describe(self) -> str:
        several = f" on {self.standbys} hosts" if self.standbys > 1 else ""
        return f"{self.kind}, {self.checkpoint} every {self.every}{several}"

    def protect(self, stages: Iterable[StageRole]) -> Protection:
        machines: dict[Timing, type[Sweeping] | type[Individual] | type[Synchronous]] = {
            "sweeping": Sweeping, "individual": Individual, "synchronous": Synchronous,
        }  # fmt: skip
        return machines[self.checkpoint](stages, every_s=self.every_s)

    # -- what to expect -----------------------------------------------------------------------------------------------

    def silence_s(self, profile: Profile, *, reach_s: float, share: float) -> float:
        again = share * self._taken_every_s(profile) / profile.step_s
        if not self.carries_queue:
            again += profile.behind_s / profile.step_s
        opening_s = profile.state_bytes / OPEN_BYTES_PER_S
        return profile.detection_s + PROMOTE_S + opening_s + (again + 1) * profile.batch_s

    def spent(self, profile: Profile) -> tuple[float, float]:
        every_s = self._taken_every_s(profile)
        changed_per_s = PACKED_SHARE * profile.delta_bytes / profile.step_s
        if profile.state_bytes:
            tables = PACKED_SHARE * min(profile.state_bytes, SNAPSHOT_EPOCHS * profile.delta_bytes)
            changed_per_s += (SNAPSHOT_BYTES + tables) / max(SNAPSHOT_EPOCHS * profile.step_s, every_s)
        if self.carries_queue:
            changed_per_s += profile.output_bytes_per_s
        sent_per_s = changed_per_s + (CHECKPOINT_BYTES + ACK_BYTES) / every_s
        cpu_per_s = CAPTURE_CPU_S / every_s + changed_per_s / PACKED_BYTES_PER_S
        return self.standbys * sent_per_s, self.standbys * cpu_per_s

    def _taken_every_s(self, profile: Profile) -> float:
        """A sweep comes from below; only a unit that nobody but sinks reads begins one itself."""
        if self.carries_queue or profile.heard_every_s is None:
            return self.every_s
        return profile.heard_every_s

    def acknowledges(self, below: Mapping[str, Heard], *, epoch_s: float, reach_s: float) -> Heard:
        if self.carries_queue:
            return Heard(0.0, self.every_s)
        # A sweep comes from below, and goes on upwards at once.
        every_s = max((each.every_s for each in below.values()), default=self.every_s)
        behind_s = max((each.behind_s for each in below.values()), default=0.0)
        return Heard(behind_s, max(every_s, epoch_s))

    def kept(self, profile: Profile, inputs: Sequence[str], *, reach_s: float) -> str:
        hosts = f"{self.standbys} standbys" if self.standbys > 1 else "a standby"
        state = f"state, {size(profile.state_bytes)}" if profile.state_bytes else "its position"
        queue = ", and its output queue" if self.carries_queue else ""
        return f"{state}{queue}, on {hosts}; producers keep what came since"


@dataclass(slots=True)
class Version:
    """What one standby has of one stage. ``newest <= captured``."""

    captured: Epoch
    newest: Epoch | None = None
    in_flight: bool = False
    lost: bool = False
    """The standby cannot store. What it has still counts until the plan names another: nothing may be acknowledged that
    somebody might yet be told to go back to."""
    timer_at: float | None = None
    retry_at: float | None = None

    def pasted(self, epoch: Epoch) -> None:
        self.in_flight = False
        self.newest = epoch if self.newest is None else max(epoch, self.newest)

    def failed(self, now: float) -> None:
        self.in_flight = False
        self.captured = NO_EPOCH if self.newest is None else self.newest
        self.timer_at, self.retry_at = None, now + RETRY_S


class StageVersions:
    """One stage's checkpoints at all its standbys.

    Invariant: ``acked <= newest version at every standby <= captured <= due``; without a standby ``acked`` follows
    the trim point, because going on unprotected beats filling every queue upstream.
    """

    def __init__(self, role: StageRole, *, every_s: float, sweeping: bool) -> None:
        self.name, self.every_s, self.sweeping = role.name, every_s, sweeping
        self.timed = sweeping and role.last
        self.committed = self.acked = self.due = role.start
        """``due`` is the newest version that could be captured; never one from before it began."""
        self._kept = role.start
        """The newest that is trimmed and whose state was kept."""
        self._passed: set[Epoch] = set()
        """Epochs after that whose state was not: unless the stage is at one of them, it is lost."""
        self.trimmed = role.start if role.trimmed is None else min(role.trimmed, role.start)
        self.at: dict[str, Version] = {}
        self.draining = False

    def advance(self, *, committed: Epoch | None = None, trimmed: Epoch | None = None, version: bool = True) -> None:
        if committed is not None and committed > self.committed:
            self.committed = committed
            if not version and self.sweeping:
                self._passed.add(committed)
        if trimmed is not None and trimmed > self.trimmed:
            self.trimmed = trimmed
        newest = min(self.committed, self.trimmed) if self.sweeping else self.committed
        if self.draining and newest == self.committed:
            # It stands still there, as far as is known: whatever state it is at can be captured.
            self.due = max(self.due, newest)
            return
        while newest in self._passed:
            newest = before(newest)
        if newest > self._kept:
            self._kept = newest
            if self._passed:
                self._passed = {epoch for epoch in self._passed if epoch > newest}
        self.due = self._kept if self.due in self._passed else max(self.due, self._kept)

    def drain(self) -> None:
        self.draining = True
        self.advance()

    def set_standbys(self, standbys: tuple[str, ...]) -> None:
        self.at = {s: self.at.get(s) or Version(captured=NO_EPOCH) for s in standbys}

    def acks(self) -> list[Effect]:
        """Acknowledge what became safe."""
        if self.at:
            safe = min([NO_EPOCH if version.newest is None else version.newest for version in self.at.values()])
        else:
            safe = min(self.committed, self.trimmed, self.due)
        if safe <= self.acked:
            return []
        self.acked = safe
        return [AckUpstream(self.name, safe)]

    def captures(self, now: float) -> list[Effect]:
        """Capture wherever something is due."""
        effects: list[Effect] = []
        for standby, version in self.at.items():
            if not self.behind(version):
                continue
            wait_until = self.wait_until(version)
            if wait_until is None or now >= wait_until:
                version.captured, version.in_flight, version.retry_at = self.due, True, None
                version.timer_at = max(now, version.timer_at or now) + self.every_s if self.timed else None
                queue = not self.sweeping or self.due > self.trimmed
                effects.append(Capture(self.name, standby, self.due, queue))
        return effects

    def behind(self, version: Version) -> bool:
        """A version could be captured that the standby lacks, or it has none at all."""
        if version.in_flight or version.lost:
            return False
        return self.due > version.captured or version.newest is None

    def wait_until(self, version: Version) -> float | None:
        """The timer paces a timed stage, except that a drain or an empty standby does not wait for it; after a
        failure everybody waits. What comes early does not make more checkpoints: the timer goes on from where it
        was."""
        free = self.draining or version.newest is None
        timer_at = None if free or version.timer_at is None else version.timer_at - EARLY * self.every_s
        return _later(timer_at, version.retry_at)

    def safe(self) -> bool:
        """Every standby has the newest version, and nothing is under way."""
        return all(
            v.lost or (not v.in_flight and v.newest is not None and v.captured >= self.due) for v in self.at.values()
        )


class _Versions:
    """What all timings share: the events that change a stage's versions."""

    def __init__(self, stages: Iterable[StageRole], *, every_s: float, sweeping: bool) -> None:
        self.stages = {role.name: StageVersions(role, every_s=every_s, sweeping=sweeping) for role in stages}

    def _note(self, event: Event, now: float) -> Iterable[StageVersions]:
        """Take note of what happened; returns the stages that it may let go on."""
        if isinstance(event, Committed):
            self.stages[event.stage].advance(committed=event.epoch, version=event.version)
        elif isinstance(event, Acked):
            if event.level == FINAL:
                self.stages[event.stage].advance(trimmed=event.epoch)
        elif isinstance(event, Pasted):
            version = self.stages[event.stage].at.get(event.standby)
            if version is not None:
                version.pasted(event.epoch)
        elif isinstance(event, CaptureFailed):
            version = self.stages[event.stage].at.get(event.standby)
            if version is not None:
                version.failed(now)
                version.lost = event.lost_standby
        elif isinstance(event, (Tick, StandbysChanged, Drain)):
            for stage in self.stages.values():
                if isinstance(event, StandbysChanged):
                    stage.set_standbys(event.standbys)
                elif isinstance(event, Drain):
                    stage.drain()
            return self.stages.values()
        return (self.stages[event.stage],)

    def safe(self) -> bool:
        """Nothing is left to capture. A drain waits for this."""
        return all(stage.safe() for stage in self.stages.values())

    def wants(self, stage: str, now: float) -> Want:
        """Not where stages are paused first: what they are at is captured."""
        return Want.NOTHING


class Sweeping(_Versions):
    """Every stage is captured on its own and goes on meanwhile: what is captured lies behind it."""

    def __init__(self, stages: Iterable[StageRole], *, every_s: float) -> None:
        super().__init__(stages, every_s=every_s, sweeping=True)

    def wants(self, stage: str, now: float) -> Want:
        return Want.AHEAD

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not isinstance(event, Paused):
            for stage in self._note(event, now):
                effects += stage.acks()
                effects += stage.captures(now)
        return effects

    def next_deadline(self) -> float | None:
        deadline: float | None = None
        for stage in self.stages.values():
            for version in stage.at.values():
                if stage.behind(version):
                    deadline = sooner(deadline, stage.wait_until(version))
        return deadline


def sooner(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)


def _later(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


class Synchronous(_Versions):
    """Pause all, capture all, go on when all is safe (Gu et al. 2009, Section 3.1: the controller's protocol).

    Phases: *running* until the timer; *pausing* until every stage has paused; *capturing* until every standby has
    every stage, or something failed.
    """

    def __init__(self, stages: Iterable[StageRole], *, every_s: float) -> None:
        super().__init__(stages, every_s=every_s, sweeping=False)
        self.every_s = every_s
        self.phase: Literal["running", "pausing", "capturing"] = "running"
        self._paused: set[str] = set()
        self._failed = False
        self._began = 0.0
        self._round_at: float | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:
        self._note(event, now)
        if isinstance(event, Paused):
            self._paused.add(event.stage)
        elif isinstance(event, CaptureFailed) and event.standby in self.stages[event.stage].at:
            self._failed = True
        effects = [effect for stage in self.stages.values() for effect in stage.acks()]
        return effects + self._advance(now)

    def _advance(self, now: float) -> list[Effect]:
        stages = self.stages.values()
        if self.phase == "running":
            due = self.next_deadline()
            if due is None or now < due:
                return []
            self.phase, self._paused, self._began = "pausing", set(), now
            return [Pause(stage.name) for stage in stages]
        if self.phase == "pausing":
            if len(self._paused) < len(self.stages):
                return []
            self.phase, self._failed = "capturing", False
            captures = [effect for stage in stages for effect in stage.captures(now)]
            if captures:
                return captures
        if any(v.in_flight for stage in stages for v in stage.at.values()):
            return []
        self.phase = "running"
        self._round_at = now + RETRY_S if self._failed else self._began + self.every_s
        return [Resume(stage.name) for stage in stages]

    def next_deadline(self) -> float | None:
        """When the next round begins; None while one is under way or there is nothing to capture."""
        stages = self.stages.values()
        behind = any(stage.behind(v) for stage in stages for v in stage.at.values())
        if self.phase != "running" or not behind:
            return None
        hurry = any((s.draining or v.newest is None) and not v.lost for s in stages for v in s.at.values())
        if self._round_at is None or (hurry and not self._failed):
            return float("-inf")
        return self._round_at


class Individual:
    """Every stage as if it were a unit of its own: it is paused alone, and goes on when its own checkpoint is safe."""

    def __init__(self, stages: Iterable[StageRole], *, every_s: float) -> None:
        self.each = {role.name: Synchronous([role], every_s=every_s) for role in stages}

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, (Tick, StandbysChanged, Drain)):
            return [effect for machine in self.each.values() for effect in machine.handle(event, now)]
        return self.each[event.stage].handle(event, now)

    def next_deadline(self) -> float | None:
        deadline: float | None = None
        for machine in self.each.values():
            deadline = sooner(deadline, machine.next_deadline())
        return deadline

    def safe(self) -> bool:
        return all(machine.safe() for machine in self.each.values())

    def wants(self, stage: str, now: float) -> Want:
        return Want.NOTHING
