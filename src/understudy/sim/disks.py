"""A host's disk in virtual time, which survives a crash: checkpoints of stages, and the logs of sources."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from understudy.core.landed import Known
from understudy.core.numbers import FIRST_EPOCH, Epoch
from understudy.sim.model import State

FORGET_EVERY = 50
"""A log is shortened this many epochs at a time: one by one would move the whole list each time."""


class Log:
    """What a source has cut: ``entries`` are the epochs from ``base`` on; nobody needs those before it."""

    __slots__ = ("base", "entries", "landed")

    def __init__(self) -> None:
        self.base = 0
        self.entries: list[int] = []
        self.landed: Known = {}
        """What was known of sinks when it was shortened."""

    @property
    def end(self) -> int:
        """The epoch that is cut next."""
        return self.base + len(self.entries)

    def since(self, epoch: int) -> tuple[int, ...]:
        return tuple(self.entries[max(0, epoch - self.base) :])

    def truncate(self, end: int) -> None:
        """Forget entries from ``end`` on."""
        if end < self.base:
            self.replace(end, ())
        del self.entries[end - self.base :]

    def replace(self, begin: int, values: tuple[int, ...]) -> None:
        self.base, self.entries = begin, list(values)

    def forget(self, upto: int, landed: Known) -> None:
        """Nobody will ask for epochs up to ``upto``."""
        if upto - self.base > FORGET_EVERY:
            self.landed = landed
            del self.entries[: upto - self.base]
            self.base = upto


@dataclass(slots=True)
class Version:
    """A checkpoint of one stage: its state after ``epoch``, and its output from ``first`` on that may be wanted."""

    epoch: Epoch
    state: State
    first: Epoch
    output: tuple[int, ...] = ()
    gap: Epoch = FIRST_EPOCH
    """Epochs of its stream before this one were lost while it had no protection."""
    windows: list[Any] | None = None
    """What open windows are made of (``Windows.history``, ``Reach.history``): it is still needed after a stop."""
    landed: Known = field(default_factory=dict)
    """What its host knew of sinks, which is why the output before it is not wanted any more."""


@dataclass
class Disk:
    """What survives a crash."""

    versions: dict[str, list[Version]] = field(default_factory=dict)
    """Stage -> its newest checkpoint, twice, or once after damage."""
    logs: dict[str, Log] = field(default_factory=dict)
    """Source -> the epochs that it has cut."""

    def paste(self, stage: str, version: Version) -> None:
        self.versions[stage] = [version, version]

    def newest(self, stage: str) -> Version | None:
        return next(iter(self.versions.get(stage, ())), None)

    def has_all(self, stages: tuple[str, ...]) -> bool:
        """Of each a checkpoint, or a log."""
        return all(stage in self.logs or self.newest(stage) is not None for stage in stages)

    def damage(self, stage: str) -> None:
        """One of the two rots."""
        self.versions[stage].pop()

    def drop(self, stages: tuple[str, ...]) -> None:
        for stage in stages:
            self.versions.pop(stage, None)
            self.logs.pop(stage, None)
