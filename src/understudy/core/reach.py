"""Which input a window by rows still needs, told from the numbers of its rows alone.

Rows of an input are numbered as they come. After every epoch a window says which is the oldest row that it still has,
and which number the next one will have; the latter tells in which epoch each row came. So the state after an epoch can
be rebuilt from the epoch of its oldest row on. A replay that begins there, with nothing, numbers rows anew; it holds
the very same ones when it has come as far as its predecessor, and what it makes from then on is the same.

A stage goes from epoch to epoch on all its inputs at once, and so it is rebuilt from one epoch on: the oldest that any
of its windows needs.

A barrier pairs rows by their numbers, so a replay must not number them anew: it has to know how many rows of each
input came before the epoch that it begins with. That is true for good, as what sinks have is (``core.landed``), and it
travels the same way: whoever is told that input may be let go of is told with it what number the next row has
(``Numbers``). So nobody answers where a barrier begins without knowing how its rows are numbered from there on, or from
later on; and what comes before that is not needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from understudy.core.landed import Known
from understudy.core.numbers import FIRST_EPOCH, Epoch, after

Span = tuple[int, int]
"""Of a window: the number of the oldest row that it still needs, and the number that its next row will have. Equal when
it needs none."""


class Reach:
    """Call ``committed`` after every epoch, in order.

    Where rows were there before the first call, and there is no history, they count as having come in its epoch: who
    did not see them come must not count on knowing what they are made of (``core.keeping`` waits until they have left).
    """

    def __init__(self, history: list[dict[str, Any]] | None = None) -> None:
        self._windows = [_Came(each["next"], each["came"]) for each in history or []]

    def history(self) -> list[dict[str, Any]]:
        """As of the newest epoch, as plain data: give it back to a stage that goes on where it stopped."""
        return [{"next": window.next, "came": [list(pair) for pair in window.came]} for window in self._windows]

    def committed(self, epoch: Epoch, spans: Sequence[Span]) -> Epoch:
        """Returns the oldest input epoch from which the state after ``epoch`` can be rebuilt."""
        if len(self._windows) != len(spans):
            self._windows = [_Came(None, []) for _ in spans]
        return min((window.committed(epoch, *span) for window, span in zip(self._windows, spans)), default=after(epoch))


class _Came:
    """In which epochs the rows of one window came."""

    def __init__(self, following: int | None, came: Sequence[Sequence[int]]) -> None:
        self.next = following
        """The number of the next row; None before the first epoch."""
        self.came = deque((Epoch(epoch), number) for epoch, number in came)
        """(epoch, the number of the first row that came in it), ascending in both."""

    def committed(self, epoch: Epoch, oldest: int, following: int) -> Epoch:
        if self.next is None or following < self.next:  # numbered anew: its state was lost with a damaged file
            self.came.clear()
            self.next = oldest
        if following > self.next:
            self.came.append((epoch, self.next))
            self.next = following
        while self.came and (oldest >= following or (len(self.came) > 1 and self.came[1][1] <= oldest)):
            self.came.popleft()
        return self.came[0][0] if self.came else after(epoch)


class Numbers:
    """How many rows of each input of a barrier came before recent epochs. Call ``committed`` after every epoch, in
    order, and ``told`` before anybody is told that input before an epoch may be let go of."""

    def __init__(
        self, stage: str, start: Epoch, totals: Sequence[int], history: Mapping[str, Any] | None = None
    ) -> None:
        """``totals``: the rows of every input up to ``start``, that epoch included. ``history``: of a predecessor that
        stopped there."""
        self._stage = stage
        first = after(start) if history is None else Epoch(history["first"])
        self._first, self._before = first, deque([tuple(totals)])
        if history is not None:
            self._before = deque(tuple(each) for each in history["before"])

    def history(self) -> dict[str, Any]:
        """As plain data."""
        return {"first": self._first, "before": [list(each) for each in self._before]}

    def committed(self, epoch: Epoch, totals: Sequence[int]) -> None:
        if epoch != self._first + len(self._before) - 1:
            raise ValueError(f"epoch {epoch} committed where {self._first + len(self._before) - 1} was due")
        self._before.append(tuple(totals))

    def told(self, epoch: Epoch) -> Known:
        """What is true for good of the rows from ``epoch`` on, as it travels with what sinks have. Earlier epochs are
        not asked for any more."""
        if not 0 <= epoch - self._first < len(self._before):
            return {}
        while self._first < epoch:
            self._before.popleft()
            self._first = after(self._first)
        numbers = {_key(self._stage, place): Epoch(total) for place, total in enumerate(self._before[0])}
        return {_key(self._stage): epoch, **numbers}


def numbered(known: Known, stage: str, inputs: int) -> tuple[Epoch, tuple[int, ...]]:
    """From which epoch on a barrier can be rebuilt, and how many rows of each input come before it. All of them only
    grow, and are told together: what is known is of one epoch."""
    return known.get(_key(stage), FIRST_EPOCH), tuple(known.get(_key(stage, place), 0) for place in range(inputs))


def _key(stage: str, place: int | None = None) -> str:
    """Unlike any name of a stage or a sink."""
    return f"{stage}<" if place is None else f"{stage}<{place}"
