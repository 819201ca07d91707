"""A host's disk in virtual time, which survives a crash: checkpoints of stages, and the logs of sources."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from understudy.sim.model import State

VERSIONS_KEPT = 2
FORGET_EVERY = 50
"""A log is shortened this many epochs at a time: one by one would move the whole list each time."""


class Log:
    """What a source has cut: ``entries`` are the epochs from ``base`` on; nobody needs those before it."""

    __slots__ = ("base", "entries")

    def __init__(self) -> None:
        self.base = 0
        self.entries: list[int] = []

    @property
    def end(self) -> int:
        """The epoch that is cut next."""
        return self.base + len(self.entries)

    def since(self, epoch: int) -> tuple[int, ...]:
        return tuple(self.entries[max(0, epoch - self.base) :])

    def put(self, begin: int, values: tuple[int, ...]) -> None:
        """Take over entries from ``begin`` on, if they fit and go further than what is there."""
        if self.base <= begin <= self.end < begin + len(values):
            self.entries[begin - self.base :] = values

    def replace(self, begin: int, values: tuple[int, ...]) -> None:
        self.base, self.entries = begin, list(values)

    def forget(self, upto: int) -> None:
        """Nobody will ask for epochs up to ``upto``."""
        if upto - self.base > FORGET_EVERY:
            del self.entries[: upto - self.base]
            self.base = upto


@dataclass(slots=True)
class Version:
    """A checkpoint of one stage: its state after ``epoch``, and its output from ``first`` on that may be wanted."""

    epoch: int
    state: State
    first: int
    output: tuple[int, ...] = ()
    gap: int = 0
    """Epochs of its stream before this one were lost while it had no protection."""
    damaged: bool = False


@dataclass
class Disk:
    """What survives a crash."""

    versions: dict[str, list[Version]] = field(default_factory=dict)
    """Stage -> the last few checkpoints, oldest first."""
    logs: dict[str, Log] = field(default_factory=dict)
    """Source -> the epochs that it has cut."""

    def paste(self, stage: str, version: Version) -> None:
        kept = [v for v in self.versions.get(stage, []) if v.epoch < version.epoch]
        self.versions[stage] = [*kept[1 - VERSIONS_KEPT :], version]

    def newest(self, stage: str) -> Version | None:
        return next((v for v in reversed(self.versions.get(stage, [])) if not v.damaged), None)

    def damage(self, stage: str) -> None:
        """The newest version rots."""
        self.versions[stage][-1] = replace(self.versions[stage][-1], damaged=True)

    def drop(self, stages: tuple[str, ...]) -> None:
        for stage in stages:
            self.versions.pop(stage, None)
            self.logs.pop(stage, None)
