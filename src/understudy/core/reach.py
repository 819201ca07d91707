"""Which input a window by rows still needs, told from the numbers of its rows alone.

Rows of an input are numbered as they come. After every epoch a window says which is the oldest row that it still has,
and which number the next one will have; the latter tells in which epoch each row came. So the state after an epoch can
be rebuilt from the epoch of its oldest row on. A replay that begins there, with nothing, numbers rows anew; it holds
the very same ones when it has come as far as its predecessor, and what it makes from then on is the same.

A stage goes from epoch to epoch on all its inputs at once, and so it is rebuilt from one epoch on: the oldest that any
of its windows needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from understudy.core.numbers import Epoch, after

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
