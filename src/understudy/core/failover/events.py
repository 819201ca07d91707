"""What the failover machine is told (events), and what it wants done (effects)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy.core.numbers import Epoch, Generation
from understudy.core.plans import Plan
from understudy.core.policies import Policy

CODE, UNDERSTUDY, MACHINE = "code", "understudy", "machine"
"""Whose failure it is when a stage fails while its host lives: the user's code's, Understudy's own, the machine's."""


@dataclass(frozen=True)
class HostJoined:
    """A host is there. ``holds`` maps units to the newest epoch of a whole checkpoint found in its folder.
    ``returned``: it is the same process as before, with all that it was running, and was only out of touch."""

    host: str
    holds: Mapping[str, Epoch] = field(default_factory=dict)
    returned: bool = False


@dataclass(frozen=True)
class HostLost:
    host: str
    reason: str


@dataclass(frozen=True)
class HostSuspected:
    """A heartbeat of the host is missing; not yet a failure."""

    host: str


@dataclass(frozen=True)
class HostCleared:
    """A suspected host has answered."""

    host: str


@dataclass(frozen=True)
class StandbyReady:
    """The primary reports that its standby has a whole checkpoint, or runs as well."""

    unit: str
    generation: Generation
    host: str
    since: int


@dataclass(frozen=True)
class StandbyUnusable:
    """The primary could not store a checkpoint at its standby (disk full, say)."""

    unit: str
    generation: Generation
    host: str
    since: int
    cause: str


@dataclass(frozen=True)
class StageThrew:
    """A stage failed while its host lives. It is tried once more on another host, then the job stops."""

    unit: str
    generation: Generation
    stage: str
    epoch: Epoch
    cause: str
    whose: str = CODE


@dataclass(frozen=True)
class Begin:
    """Enough hosts are there: place everything. ``resume`` takes up held checkpoints; without ``clean`` the units
    without protection start anew, as after a crash."""

    resume: bool = False
    clean: bool = False


@dataclass(frozen=True)
class Switch:
    """The user wants a unit to be under another policy from now on."""

    unit: str
    policy: Policy


@dataclass(frozen=True)
class Turned:
    """The primary reports that a policy without standbys can protect the unit: its producers keep what is needed."""

    unit: str
    generation: Generation
    serial: int


@dataclass(frozen=True)
class Tick:
    """Time has passed (``Failover.due``)."""


Event = (
    HostJoined
    | HostLost
    | HostSuspected
    | HostCleared
    | StandbyReady
    | StandbyUnusable
    | StageThrew
    | Begin
    | Switch
    | Turned
    | Tick
)


@dataclass(frozen=True)
class Publish:
    """Journal the plan, then send it to every living host."""

    plan: Plan


@dataclass(frozen=True)
class Say:
    """Something the user should see. ``kind`` is machine-readable."""

    kind: str
    text: str
    unit: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class StopJob:
    stage: str
    epoch: Epoch
    cause: str
    whose: str = CODE


Effect = Publish | Say | StopJob
