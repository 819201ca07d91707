"""Where a stage begins that has no state: what its producers answer, and what comes of their answers.

Without protection it begins at the newest epoch, the next that it was not given before. Rebuilt by replay it begins at
the oldest that its producers have kept for it; and so it does with a state that was saved some while ago. Real hosts
and simulated ones only carry the questions and answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from understudy.core.landed import Known
from understudy.core.numbers import Epoch, after, before
from understudy.core.policies.upstream import Row
from understudy.core.queue import OutputQueue
from understudy.core.row_counts import UNCOUNTED, Counted


@dataclass(frozen=True)
class Place:
    """A producer's answer."""

    epoch: Epoch
    lost: bool
    """What was before it is lost for good, not only no longer needed."""
    row: Row | None = None
    """Who is being rebuilt there, and may lack what the consumer needs."""
    landed: Known = field(default_factory=dict)
    """What sinks below had when the producer let go of what was before, or more."""
    counted: Counted = UNCOUNTED
    """How many rows its recent epochs had."""


@dataclass(frozen=True)
class Start:
    """Where a stage begins."""

    epoch: Epoch
    lost: bool
    row: Row | None
    """With whom it is being rebuilt; None where what was before is lost anyway."""
    counted: Mapping[str, Counted] = field(default_factory=dict)
    """Input -> how many rows its recent epochs had."""

    @property
    def promised(self) -> bool:
        """Not more was lost at once than policies promise to survive: it may begin."""
        return self.row is None or self.row.promised


def place(
    queue: OutputQueue,
    consumer: str,
    *,
    newest: bool,
    gap: Epoch,
    row: Row | None,
    landed: Known,
    counted: Counted = UNCOUNTED,
) -> Place:
    """What the producing end of a stream answers. ``gap``: epochs before this one were lost without protection.
    ``row``: with whom the producer is being rebuilt itself. ``landed``: what its host knows of sinks."""
    progress = queue.progress[consumer]
    epoch = after(progress.given) if newest else max(queue.first, after(progress.acked))
    return Place(epoch, newest or epoch <= gap, row if queue.owes(consumer) else None, landed, counted)


def start(places: Sequence[Place], lost_with: str | None, tolerates: int, *, newest: bool) -> Start:
    """Of all answers, one for each input. ``lost_with``: the host that the stage was lost with; ``tolerates``: how many
    may be at once."""
    epoch, lost = max((place.epoch, place.lost) for place in places)
    row = Row(frozenset([lost_with]), max(1, tolerates))
    for each in places:
        if each.row is not None:
            row = row.joined_by(each.row)
    return Start(epoch, lost, None if newest or lost else row)


@dataclass(frozen=True)
class Resumed:
    """Where a stage goes on with a state that was saved."""

    epoch: Epoch
    """The state counts as being of this epoch."""
    skipped: int
    """Epochs of input that are missing from it."""


def resumed(saved: Epoch, found: Start) -> Resumed:
    """``saved``: the epoch that the state was saved after. Producers keep what was not acknowledged: where that begins
    no later than the state ends, nothing is missing from it."""
    epoch = max(saved, before(found.epoch))
    return Resumed(epoch, epoch - saved)
