"""What a host can be of a stage: its primary, or a standby of it. Who becomes what, and when, is in ``roles.py``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from understudy.core.agreement import Part, Standing
from understudy.core.beginning import Start
from understudy.core.keeping import Charge, Holdings
from understudy.core.numbers import FIRST_EPOCH, Epoch, Generation
from understudy.core.plans import UnitPlan
from understudy.runtime.wire import Refusal, Reply, refuse

if TYPE_CHECKING:
    import pyarrow as pa

    from understudy.core.policies.upstream import Row
    from understudy.runtime import messages
    from understudy.runtime.host import Host
    from understudy.runtime.keeper import Keeper
    from understudy.runtime.parts import CheckpointPart
    from understudy.runtime.stage import RunningStage
    from understudy.runtime.streams import Stream


class Role(ABC):
    host: Host
    name: str
    """Of the stage."""
    unit: str
    generation: Generation

    @abstractmethod
    def standing(self) -> Standing:
        """As an agreement sees it."""

    @abstractmethod
    def stop(self) -> None:
        """Be nothing of the stage any more."""

    @abstractmethod
    def status(self) -> dict[str, Any]: ...

    @property
    @abstractmethod
    def running(self) -> RunningStage | None:
        """What computes the stage here: a primary, or the copy of a standby that runs."""

    @property
    @abstractmethod
    def out(self) -> Stream | None:
        """The producing end of the stage's stream, whether or not it is sent from here."""

    def arm(self) -> str | Reply[Any]:
        """A reader of the stage's query is being made. Answers when it may go on, and for whom it reads."""
        return refuse(Refusal.STOPPED)


class Primary(Role):
    stopping: bool
    start_epoch: Epoch
    output: Stream
    keepers: tuple[Keeper, ...] = ()
    """What protects it, where that is not its own doing."""
    gap: Epoch = FIRST_EPOCH
    """Epochs before this one were lost while the unit had no protection."""
    row: Row | None = None
    """It is being rebuilt, and with whom."""

    def standing(self) -> Standing:
        return Standing(Part.PRIMARY, self.generation, over=self.stopping)

    @property
    def out(self) -> Stream | None:
        return self.output

    @property
    @abstractmethod
    def begun(self) -> Epoch:
        """The newest epoch that will come out, whatever is asked from now on; a drain of a source waits for it."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def protect(self, wanted: UnitPlan, charges: list[Charge], holdings: Holdings) -> RunningStage | None:
        """Bring what protects it in line with the plan. Returns itself where that is up to its unit's keepers."""

    @abstractmethod
    def standby_is_known(self) -> None:
        """The coordinator knows of a standby that could take over."""

    @abstractmethod
    def drain(self, final: Epoch) -> bool:
        """Stopping: take the last checkpoint, after epoch ``final``. True once nothing is left to do."""

    @abstractmethod
    def fence(self) -> None:
        """A newer generation of the unit runs elsewhere: stop, add nothing."""

    @abstractmethod
    def regenerate(self, epoch: Epoch) -> pa.Table | None:
        """An epoch that its stream has no rows of any more, or never had."""

    @abstractmethod
    def on_trimmed(self, epoch: Epoch) -> None:
        """All consumers are done with ``epoch``. Call with ``host.changed`` held."""

    @abstractmethod
    def on_progress(self) -> None:
        """Consumers have got further. Call with ``host.changed`` held."""

    def copy_is_at(self, standby: str, epoch: Epoch) -> messages.Trimmed | Reply[Any]:
        """A copy has processed ``epoch``. Returns what all consumers are done with."""
        return refuse(Refusal.ELSEWHERE)

    def measured(self) -> dict[str, Any]:
        """What the stage takes and keeps. Looks at its files: not to be called with ``host.changed`` held."""
        return {}


class Standby(Role):
    since: int
    """Serial of the plan that made this host one."""

    def standing(self) -> Standing:
        return Standing(Part.STANDBY, self.generation, self.since)

    @property
    def out(self) -> Stream | None:
        running = self.running
        return None if running is None else running.output

    def paste(self, part: CheckpointPart, body: bytes) -> Epoch | Reply[Any] | None:
        """A part of a checkpoint. Returns the epoch of the version that is whole with it."""
        return refuse(Refusal.ELSEWHERE)

    def add(self, call: messages.Entries) -> int | Reply[Any]:
        """Entries of a source. Returns how many there are."""
        return refuse(Refusal.ELSEWHERE)

    @abstractmethod
    def follow(self, generation: Generation) -> None:
        """Another standby has become primary."""

    def rise(self) -> None:
        """The primary is suspected: run meanwhile, where that helps."""

    def stand_down(self) -> None:
        """The primary is well."""

    def risen_serves(self) -> bool | None:
        """Whether a copy that has risen can be promoted: None when none has. What is held must not change from now
        on."""
        return None

    @abstractmethod
    def succeed(self, generation: Generation, found: Start | None = None) -> Succession | None:
        """Become the primary; None when there is nothing to go on with but what is on disk. ``found``: what producers
        still have for it, where what is held is a state from some while ago."""


Succession = tuple[Primary, Callable[[], None]]
"""Who leads now, and how it begins, once it is registered."""
