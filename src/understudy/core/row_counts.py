"""How many rows a restored state has missed, so that what would have expired meanwhile can be let go of.

Jacques-Silva et al. 2009, Section 4: a state that was saved some while ago is *stale*. Who made the lost epochs knows
how many rows they had (``RowCounts``, of recent epochs), and says so when it is asked where to go on. Where nobody
knows, because the producer was lost as well, the paper's formula does: the time that is missing, which is epochs here,
times the rows that usually came in it (``Usual``, which checkpoints have).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from understudy.core.numbers import FIRST_EPOCH, Epoch, after, between

KEPT = 1024
"""Recent epochs of a stream whose rows are known: minutes of short epochs, and a few kilobytes. A state that was saved
longer ago is filled up with what usually came."""
_FADING = 0.05
"""Weight of the newest epoch in what usually comes: some twenty epochs back counts half."""


@dataclass(frozen=True)
class Counted:
    """A producer's answer."""

    first: Epoch = FIRST_EPOCH
    rows: tuple[int, ...] = ()
    """Of that epoch and those after it."""

    def of(self, epoch: Epoch) -> int | None:
        return self.rows[epoch - self.first] if 0 <= epoch - self.first < len(self.rows) else None


UNCOUNTED = Counted()


class RowCounts:
    """Of one stream, at the host that makes it. Say ``came`` of every epoch that was made."""

    def __init__(self) -> None:
        self._first = FIRST_EPOCH
        self._rows: deque[int] = deque(maxlen=KEPT)

    def came(self, epoch: Epoch, rows: int) -> None:
        if epoch < self._first + len(self._rows):
            return  # made again
        if epoch > self._first + len(self._rows):
            self._rows.clear()
        if not self._rows:
            self._first = epoch
        elif len(self._rows) == KEPT:
            self._first = after(self._first)
        self._rows.append(rows)

    def newest(self, count: int = KEPT) -> Counted:
        left = max(0, len(self._rows) - count)
        return Counted(Epoch(self._first + left), tuple(islice(self._rows, left, None)))


class Usual:
    """Rows per epoch of one input, as of late."""

    def __init__(self, rows: float | None = None) -> None:
        """``rows``: as was known before."""
        self.rows = rows or 0.0
        self._any = rows is not None

    def came(self, rows: int) -> None:
        self.rows, self._any = (self.rows + _FADING * (rows - self.rows) if self._any else float(rows)), True


@dataclass(frozen=True)
class Missed:
    """What is not in a state that was saved."""

    epochs: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    """Of every input."""

    def __add__(self, other: Missed) -> Missed:
        names = {**self.rows, **other.rows}
        rows = {name: self.rows.get(name, 0) + other.rows.get(name, 0) for name in names}
        return Missed(self.epochs + other.epochs, rows)


def missed(saved: Epoch, resumed: Epoch, counted: Mapping[str, Counted], usual: Mapping[str, float]) -> Missed:
    """A state of epoch ``saved`` counts as being of ``resumed``. ``usual``: rows per epoch of each input when it was
    saved; of one that it does not name, what is usual among the epochs that are known."""
    rows: dict[str, int] = {}
    for name, answer in counted.items():
        found = [answer.of(epoch) for epoch in between(after(saved), after(resumed))]
        known = [count for count in found if count is not None]
        each = usual.get(name, sum(known) / len(known) if known else 0.0)
        rows[name] = sum(known) + round((len(found) - len(known)) * each)
    return Missed(resumed - saved, rows)
