"""What every policy is made of: plain data for the user, traits for placement, and a machine for each running unit.

A policy is a frozen dataclass that the user picks. Its *traits* tell ``core.failover`` who takes over after a crash
and the hosts what a standby does meanwhile. Its *protection* is a machine, one per running unit, that is told what
happened (events are facts) and answers with what to do (effects are orders): what to capture, and what may be
acknowledged upstream. Nothing may be acknowledged before what can rebuild it is safe.

Acknowledgements have levels (Hwang et al. 2003, Section 4.4). Level 0 says *received* and needs no message: asking
for epoch *e* says it for everything before *e*. ``FINAL`` says *never needed again*, and is what a queue is trimmed
by. Levels between exist for upstream backup with K > 1 only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Literal, Protocol

from understudy.core.acks import FINAL
from understudy.core.numbers import Epoch
from understudy.core.operators import OperatorClass
from understudy.core.profile import COLD_QUERY_S, Heard, Profile

Recovery = Literal["gap", "saved", "standby", "replay"]
"""Who takes over: a fresh copy that lost everything, a standby that holds a state from some while ago, a standby that
holds the state, or a fresh copy that rebuilds the state from what its producers kept."""


class Want(Enum):
    """Whether the state after the epoch that was just made must be saved, where it cannot be had later."""

    NOTHING = "nothing"
    AHEAD = "ahead"
    """Now and then: what is captured lies behind, and nobody knows yet at which epoch (``core.saving``)."""
    NOW = "now"
    """This one is to be captured, or the next."""


# -- events -------------------------------------------------------------------------------------------------------
# Nobody changes an event or an effect. They are not frozen, because several are made for every epoch, and making a
# frozen one takes three times as long.


@dataclass(slots=True)
class Committed:
    """The stage has processed ``epoch``. ``needs`` names, per input, the oldest epoch from which the state after it
    can be rebuilt (Hwang et al. 2003: the indicators); empty where the policy does not ask for them. With ``version``
    the state after it can be captured later; else only while the stage stands still there (``core.saving``)."""

    stage: str
    epoch: Epoch
    needs: Mapping[str, Epoch] | None = None
    version: bool = True


@dataclass(slots=True)
class Acked:
    """All consumers of the stage's stream have acknowledged ``epoch`` at ``level``; FINAL means it was trimmed."""

    stage: str
    level: int
    epoch: Epoch


@dataclass(slots=True)
class Pasted:
    """A standby's copy of the stage is at ``epoch``: a checkpoint is safely on its disk, or it has processed it."""

    stage: str
    standby: str
    epoch: Epoch


@dataclass(slots=True)
class CaptureFailed:
    """The capture or its transport failed; ``lost_standby`` when the standby itself is unusable."""

    stage: str
    standby: str
    lost_standby: bool


@dataclass(slots=True)
class Paused:
    """The stage has finished what it was at and starts nothing new."""

    stage: str


def standby_key(host: str, since: int) -> str:
    """A standby as protections know it: a host that began anew is another one."""
    return f"{host}#{since}"


@dataclass(slots=True)
class StandbysChanged:
    """These are the standbys now, as ``standby_key`` names them. One that was not there before holds nothing."""

    standbys: tuple[str, ...]


@dataclass(slots=True)
class Placed:
    """Of the stage's inputs, these share its fate (``Topology.shares_fate``): no further host need fail for the stage
    to be lost together with their producers."""

    stage: str
    near: tuple[str, ...]


@dataclass(slots=True)
class Tick:
    """A deadline has passed."""


@dataclass(slots=True)
class Drain:
    """The job is stopping: checkpoint whatever is left without waiting for a timer."""


Event = Committed | Acked | Pasted | CaptureFailed | Paused | Placed | StandbysChanged | Tick | Drain


# -- effects ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Capture:
    """Bring the stage's state after ``epoch`` to ``standby``; with ``queue``, also its untrimmed output up to it."""

    stage: str
    standby: str
    epoch: Epoch
    queue: bool


@dataclass(slots=True)
class AckUpstream:
    """Tell the producer of ``input`` (of every input when None) that this stage is done with ``epoch``."""

    stage: str
    epoch: Epoch
    level: int = FINAL
    input: str | None = None


@dataclass(slots=True)
class TrimStandby:
    """Tell a running standby that all consumers are done with ``epoch`` of the stage's stream."""

    stage: str
    standby: str
    epoch: Epoch


@dataclass(slots=True)
class Pause:
    stage: str


@dataclass(slots=True)
class Resume:
    stage: str


@dataclass(slots=True)
class Late:
    """Say that a checkpoint of the stage comes so much later than it should."""

    stage: str
    late_s: float
    often: bool = False
    """Many were, of late: it is worth telling the user."""


Effect = Capture | AckUpstream | TrimStandby | Pause | Resume | Late


# -- the interface ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StageRole:
    """One stage of a unit, as its protection sees it. ``start`` is the epoch that its state is at."""

    name: str
    start: Epoch
    inputs: tuple[str, ...] = ()
    last: bool = True
    """Only sinks read its stream."""
    trimmed: Epoch | None = None
    """What all its consumers are done with. Left out: everything up to ``start``. One that runs already, as a copy or
    under another policy, may have output that somebody still wants."""
    needs_all_input: bool = False
    """With a row missing, all that it makes afterwards would be wrong."""


class Protection(Protocol):
    """What a policy does for one running unit."""

    def handle(self, event: Event, now: float) -> list[Effect]: ...

    def next_deadline(self) -> float | None: ...

    def safe(self) -> bool:
        """Nothing is left to be made safe. A drain waits for this."""
        ...

    def wants(self, stage: str, now: float) -> Want:
        """Asked when the stage has made an epoch, before it says so."""
        ...


@dataclass(frozen=True)
class Policy:
    """Base of all policies. Adding one means adding a file beside this one: what it is called, what it does for a unit,
    and what to expect of it. It is known by its ``kind`` as soon as it is imported."""

    kind: ClassVar[str] = ""

    @property
    def recovery(self) -> Recovery:
        return "gap"

    @property
    def protected(self) -> bool:
        """Nothing of the unit may be lost, as long as no more fails than it ``tolerates``."""
        return self.recovery not in ("gap", "saved")

    @property
    def backups(self) -> int:
        """How many hosts hold the unit besides its primary."""
        return 0

    @property
    def tolerates(self) -> int:
        """How many hosts may fail at once without losing anything of this unit."""
        return self.backups

    @property
    def standby_runs(self) -> bool:
        """A standby processes everything as the primary does, without sending."""
        return False

    @property
    def keeps_on_disk(self) -> bool:
        """The unit's state is kept on disks: of standbys or, until there is one, of the primary's own host."""
        return self.recovery in ("saved", "standby") and not self.standby_runs

    @property
    def eager(self) -> bool:
        """Consumers ask every copy and take whichever answers first."""
        return False

    @property
    def rises(self) -> bool:
        """A standby starts to run as soon as its primary is suspected, and stands down when it answers."""
        return False

    @property
    def checkpoint_s(self) -> float | None:
        """Between two checkpoints of a unit; None where it takes none, or one for each standby."""
        return None

    @property
    def carries_queue(self) -> bool:
        """Checkpoints have the output that consumers are not done with."""
        return False

    def saved(self, found: OperatorClass) -> str:
        """In words: what is saved of a stage's state, where that differs by its kind."""
        return ""

    def missing(self, found: OperatorClass) -> str:
        """In words: what may be wrong with a stage after a crash, and for how long. Nothing where nothing may be."""
        lost = "rows between the crash and the new start are lost"
        return f"{lost}; the state begins anew, and is wrong {found.wrong_until}" if found.wrong_until else lost

    @property
    def is_goal(self) -> bool:
        """No policy yet: one is to be chosen that meets it."""
        return False

    @property
    def levels(self) -> int:
        """The highest level of acknowledgements that this policy's units pass on."""
        return 1

    def describe(self) -> str:
        return self.kind

    def with_backups(self, backups: int) -> Policy | None:
        """The same with so many hosts besides the primary, at least one; None where it has none at all."""
        return None

    def protect(self, stages: Iterable[StageRole]) -> Protection:
        """The machine for one running unit of these stages."""
        raise NotImplementedError

    # -- what to expect (``core.costs``) ------------------------------------------------------------------------------

    def silence_s(self, profile: Profile, *, reach_s: float, share: float) -> float:
        """From a crash to the first new output: detection, then K until the unit runs again, then Q epochs made again,
        then the first new one. ``share`` of an interval has passed when it crashes; ``reach_s``: how far back the
        unit's state reaches into its input."""
        return profile.detection_s + COLD_QUERY_S + profile.batch_s

    def spent(self, profile: Profile) -> tuple[float, float]:
        """Bytes and CPU seconds that protection takes, per second."""
        return 0.0, 0.0

    def acknowledges(self, below: Mapping[str, Heard], *, epoch_s: float, reach_s: float) -> Heard:
        """How a stage acknowledges its input, when those ``below`` it do so."""
        return Heard(0.0, epoch_s)

    def kept(self, profile: Profile, inputs: Sequence[str], *, reach_s: float) -> str:
        """In words: what is kept of a unit that reads these streams, and where."""
        return "nothing"


def positive(what: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what}={value!r} must be a whole number of at least 1")
    return value
