"""What computes a stage: an engine. The stage itself (``stage.py``) is the protocol around it.

An engine asks its stage for epochs (``RunningStage.next_epoch``), gives back what comes of each (``publish``) and knows
its own state: which files are the state after an epoch, and how to go on from them. There are two: a Spark query
(``spark_engine.py``) and an operator's process (``operator_engine.py``).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from understudy.core.landed import Known
from understudy.core.numbers import Epoch

if TYPE_CHECKING:
    from understudy.runtime import wire
    from understudy.runtime.shipping import Shipper


Ended = tuple[str, str]
"""Why an engine ended, and whose failure that was (``core.failover``)."""


class EngineFailed(Exception):
    """What is asked of an engine beside its work failed: why, and whose failure that was."""

    def __init__(self, cause: str, whose: str) -> None:
        super().__init__(cause)
        self.cause, self.whose = cause, whose


class Engine(Protocol):
    """Computes one running stage."""

    def run(self) -> Ended:
        """Until it is stopped, or fails. Called once, in a thread of its own."""
        ...

    def stop(self) -> None:
        """End ``run``, at once. The stage is stopping already."""
        ...

    def files_of(self, epoch: Epoch) -> dict[str, Path]:
        """The files that are the state after an epoch; names are those of a checkpoint. Raises FileNotFoundError when
        it no longer has that state, EngineFailed when it cannot tell it."""
        ...

    def files_for(self, shipper: Shipper, epoch: Epoch) -> dict[str, Path]:
        """The same for a target that has an older version, in files that spare it most."""
        ...

    def last_files(self, epoch: Epoch) -> dict[str, Path]:
        """The same when the job stops, with what else is wanted to go on."""
        ...

    def needs(self, epoch: Epoch) -> Epoch:
        """The oldest epoch of input from which the state after ``epoch`` can be rebuilt."""
        ...

    def told(self, epoch: Epoch) -> Known:
        """Input before ``epoch`` is about to be let go of: what whoever rebuilds the state must know of the rest, as it
        travels with what sinks have. Call with ``host.changed`` held."""
        ...

    def lent(self, epoch: Epoch) -> AbstractContextManager[None]:
        """The files of the state after an epoch stay meanwhile."""
        ...

    def trimmed(self, epoch: Epoch) -> None:
        """All consumers are done with ``epoch``: what only they needed can be deleted."""
        ...

    def sizes(self, epoch: Epoch) -> tuple[int, int]:
        """Bytes of the state after an epoch, and of what the newest changed. Raises FileNotFoundError."""
        ...


class Armed(Protocol):
    """A stage that is ready to be run, on a standby's store or from nothing; what ``kinds.Kind.arm`` returns.

    ``lock`` is held by whoever changes or copies the store. To take over: ``abandon``; with ``lock`` held, ``take`` and
    ``catch_up``; then register the running stage, and ``release``.
    """

    lock: Any
    armed: bool
    open_at: Epoch | None
    """The epoch at which its state is open."""

    def pasted(self) -> None:
        """The store has a (newer) version."""
        ...

    def close_state(self) -> None:
        """What was opened does not count any more. Call with ``lock`` held."""
        ...

    def abandon(self) -> None:
        """No more preparations."""
        ...

    def take(self) -> Any:
        """What is ready, for ``kinds.Kind.engine``; None if nothing is. It is the caller's now."""
        ...

    def catch_up(self) -> Any:
        """Go to the newest version, while the caller makes sure of the store's files. Returns what the caller calls
        then, with whether something had to be mended."""
        ...

    def release(self) -> None: ...

    def arm(self) -> str | wire.Reply[Any]:
        """Spark's reader has come to the door."""
        ...

    def stop(self) -> None: ...
