"""All that the processes of a job say to each other. ``wire.py`` carries it, and checks that it is what it should be.

A message names what it is about as the protocol does: a *generation* of a *unit*, an *epoch* of a *stream*, a *standby*
by its key. Whoever receives one refuses what belongs to an older generation than the newest it knows.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from understudy.core import draining, numbers
from understudy.core.failover import StageThrew, StandbyReady, StandbyUnusable, Turned
from understudy.core.plans import Plan
from understudy.runtime.parts import CheckpointPart
from understudy.runtime.wire import Call, Get, Message, prepare, prepare_messages

# -- the coordinator to a host ----------------------------------------------------------------------------------------


class Options(Message, frozen=True):
    """How a job is run, besides what its file says."""

    roles: dict[str, Any] = msgspec.field(default_factory=dict)
    """As read from a file (``understudy.roles``)."""
    sink_root: str | None = None
    """Drills: all sinks write below this folder."""
    record: str | None = None
    """Drills: rows of sources that cannot be read again are kept below this folder."""
    replay: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    """Drills: the entries that sources cut once more."""
    reference: str | None = None
    """Drills: the folder with what was recorded."""
    opening_epochs: int | None = None
    """Drills: how many epochs are cut before every standby is armed."""


class TakeJob(Call[None], frozen=True):
    """The job's code, packed, is the body."""

    ident: str
    file: str
    directory: str
    heartbeat_s: float
    heartbeat_misses: int
    policies: dict[str, str]
    """Unit -> what was chosen for it in the place of a goal."""
    options: Options


class TakePlan(Call[None], frozen=True):
    plan: Plan
    process: str
    """Which process of the host it was made for."""
    hosts: dict[str, str]
    processes: dict[str, str]
    go: int
    """How many epochs sources may cut."""
    policies: dict[str, str]
    spares: dict[str, str]
    """Unit -> the host that would rebuild it by replay."""
    draining: bool = False
    """The job is being stopped. If its coordinator dies meanwhile, the next one goes on with it."""


class Checked(Message, frozen=True):
    schemas: dict[str, Any]
    operators: dict[str, dict[str, Any]]
    """Stage -> ``core.operators.OperatorClass`` as plain data, where it is one of Spark's."""


class CheckJob(Call[Checked], frozen=True):
    """Build every stage; with ``policies``, as if units were under these."""

    policies: dict[str, str] = msgspec.field(default_factory=dict)


class Drain(Call[draining.Answer], frozen=True):
    """Come to an end: cut no more epochs, and take the last checkpoints (``core.draining``)."""

    question: draining.Question


class Status(Call[dict[str, Any]], frozen=True):
    """To hosts and the coordinator. The answer is for people's eyes, and for scripts."""


class Reset(Call[None], frozen=True):
    """Forget the job, and keep Spark warm."""


class Exit(Call[None], frozen=True):
    pass


class Pulse(Get[None], frozen=True):
    """A ``Beat`` now and then, for as long as the process lives."""

    interval_s: float
    process: str
    monitor: str | None = None
    """The host that asks, if it is not the coordinator. It is sent beats without content."""


class Beat(Message, frozen=True, array_like=True):
    """Kept tiny: it is sent several times a second. ``Status`` has the rest."""

    produced: dict[str, numbers.Epoch]
    """Stage -> its newest epoch."""
    rows: int
    serial: int
    """Of the newest plan that the host has."""


# -- a host to another ------------------------------------------------------------------------------------------------


class Ack(Call[None], frozen=True):
    """A consumer will never ask for these epochs of a stream again, on each level."""

    stream: str
    consumer: str
    host: str
    unit: str
    generation: numbers.Generation
    acks: tuple[tuple[int, numbers.Epoch], ...]
    """(level, epoch)"""
    landed: dict[str, numbers.Epoch]
    """What sinks have (``core.landed``)."""


class EpochAbout(Message, frozen=True):
    generation: numbers.Generation
    waited_s: float
    """How long the request waited until the epoch was there."""
    cut_s: float
    """How long a source took to cut it."""


class Epoch(Get[EpochAbout], frozen=True):
    """One epoch of a stream, for a consumer that runs on another host."""

    stream: str
    epoch: numbers.Epoch
    consumer: str
    host: str
    unit: str
    generation: numbers.Generation
    acks: tuple[tuple[int, numbers.Epoch], ...]
    landed: dict[str, numbers.Epoch]
    """What sinks have (``core.landed``)."""
    counts: bool
    """Asked by a primary: what it has asked for, it has."""


class Peek(Get[None], frozen=True):
    """Some recent rows of a stream, to rehearse with."""

    stream: str


class Place(Message, frozen=True):
    epoch: numbers.Epoch
    lost: bool
    landed: dict[str, numbers.Epoch]
    """What sinks have (``core.landed``)."""
    row_hosts: tuple[str | None, ...] | None = None
    row_k: int = 0
    """The row of units that is being rebuilt above, if one is."""
    counted_from: numbers.Epoch = numbers.FIRST_EPOCH
    counted: tuple[int, ...] = ()
    """How many rows its epochs from there on had."""


class Position(Call[Place], frozen=True):
    """Where a consumer without state begins, or with one that was saved some while ago."""

    stream: str
    consumer: str
    host: str
    unit: str
    generation: numbers.Generation
    newest: bool
    counted: bool = False
    """It wants to know how many rows it has missed."""


class Paste(Call[numbers.Epoch | None], frozen=True):
    """A part of a checkpoint; its bytes are the body. Answered with the epoch of the version that is whole with it."""

    unit: str
    stage: str
    generation: numbers.Generation
    part: CheckpointPart


class Trimmed(Message, frozen=True):
    """What all consumers are done with."""

    epoch: numbers.Epoch
    landed: dict[str, numbers.Epoch]
    """What sinks have (``core.landed``)."""


class CopyAt(Call[Trimmed], frozen=True):
    """A copy has processed an epoch. Answered with what it may trim."""

    unit: str
    stage: str
    generation: numbers.Generation
    standby: str
    epoch: numbers.Epoch


class Entries(Call[int], frozen=True):
    """Entries of a source, for the log of its standby. Answered with how many the standby has."""

    unit: str
    stage: str
    generation: numbers.Generation
    after: int
    """How many come before these."""
    certain: int
    """How many are the same in every log: all consumers are done with them."""
    landed: dict[str, numbers.Epoch]
    """What sinks have (``core.landed``)."""
    entries: list[Any]


# -- Spark to its host ------------------------------------------------------------------------------------------------


class Arm(Call[str], frozen=True):
    """A query's reader is being made. Answered, when the query may go on, with the session that it belongs to: the
    running stage or one rehearsal of it."""

    stage: str
    input: str


class Initial(Call[numbers.Epoch], frozen=True):
    """The epoch before the first one."""

    stage: str
    input: str
    session: str


class Grant(Call[numbers.Epoch], frozen=True):
    """Everything up to ``after`` is done. Answered, when it may be started, with the next epoch."""

    stage: str
    input: str
    session: str
    after: numbers.Epoch


class Partitioning(Message, frozen=True):
    parts: int
    bytes: int


class Parts(Call[Partitioning], frozen=True):
    """How the rows of an epoch are divided."""

    stage: str
    input: str
    session: str
    epoch: numbers.Epoch


class Input(Get[None], frozen=True):
    """One part of the rows of an epoch."""

    stage: str
    input: str
    session: str
    epoch: numbers.Epoch
    part: int
    parts: int


# -- to the coordinator -----------------------------------------------------------------------------------------------


class Join(Call[None], frozen=True):
    host: str
    address: str
    pid: int
    process: str
    holds: dict[str, numbers.Epoch]
    """Stage -> newest epoch of a whole checkpoint, or entry, in the host's folder."""


class Switching(Message, frozen=True):
    text: str
    turning: bool
    """The unit is still under its policy before."""


class SwitchPolicy(Call[Switching], frozen=True):
    unit: str
    policy: str


class AwaitTurn(Call[Switching], frozen=True):
    """Wait a while for a unit to be under its new policy."""

    unit: str


# -- reports: what hosts tell the coordinator -------------------------------------------------------------------------


class Runs(Message, frozen=True):
    """A primary goes on after ``epoch``."""

    unit: str
    generation: numbers.Generation
    stage: str
    epoch: numbers.Epoch
    missing: int = 0
    """So many epochs up to that one are not in its state."""


class Armed(Message, frozen=True):
    """A standby, or a spare query, could take over at once."""

    unit: str
    generation: numbers.Generation
    stage: str
    spare: bool = False


class Warm(Message, frozen=True):
    """It has rehearsed all there is."""

    unit: str
    generation: numbers.Generation
    stage: str


class Fenced(Message, frozen=True):
    """A primary found that it is none any more, and has stopped."""

    unit: str
    generation: numbers.Generation
    stage: str


class Gone(Message, frozen=True):
    """An epoch that a stage needs is nowhere. Without ``stream``, the stage cannot be rebuilt."""

    unit: str
    generation: numbers.Generation
    stage: str
    epoch: numbers.Epoch
    stream: str | None = None


class Notice(Message, frozen=True):
    """What a user should know of a unit, and nobody decides upon."""

    what: Literal["damaged", "late", "lost"]
    """A checkpoint was found damaged; checkpoints come late; epochs come out empty."""
    unit: str
    text: str


class Seen(Message, frozen=True):
    """What a monitor sees."""

    view: dict[str, tuple[str, int, str | None]]
    """Host -> which process of it, its misses, and why it has failed, if it has."""


class SparkFailed(Message, frozen=True):
    cause: str


Decided = StandbyReady | StandbyUnusable | Turned | StageThrew
"""What ``core.failover`` decides upon."""
Reported = Decided | Runs | Armed | Warm | Fenced | Gone | Notice | Seen | SparkFailed
_REPORTS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Reported)}


class Report(Call[None], frozen=True):
    host: str
    t: float
    kind: str
    about: msgspec.Raw

    @classmethod
    def of(cls, host: str, t: float, what: Reported) -> Report:
        return cls(host, t, type(what).__name__, msgspec.Raw(msgspec.json.encode(what)))

    def what(self) -> Reported:
        """Raises ValueError when it is none."""
        if self.kind not in _REPORTS:
            raise ValueError(f"a report of kind {self.kind!r}, which there is not")
        found: Reported = msgspec.json.decode(self.about, type=_REPORTS[self.kind])
        return found


prepare_messages()
prepare(Beat, *get_args(Reported))
