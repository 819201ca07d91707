"""Which input a windowed state still needs, told from Spark's watermarks alone.

The watermark of batch *e* is the newest event time in the epochs before *e*, less the delay; it never falls. The state
after *e* holds the windows that end after it, so the rows that it was made of are newer than ``watermark(e) - length``.
The first epoch with such a row is also the first whose *following* watermark shows that one has come:

    needs(e) = the first epoch i with watermark(i + 1) >= watermark(e) - (length + delay)

Nothing else need be known of the rows: not their times, not the column they are in, not what the stage filtered out
before its window. And the epoch that set the watermark of *e* is always among those kept, so that a replay from an
empty state has reached the same watermark when *e* is done: what was closed by then is not emitted again afterwards,
and rows that come late for it are dropped as they were. The watermark *after* *e* would not do: a replay reaches it one
batch later.
"""

from __future__ import annotations

import math
from collections import deque

from understudy.core.numbers import Epoch
from understudy.core.operators import Window


class Windows:
    """Call ``committed`` after every epoch, in order.

    Its history is an epoch for every watermark that was reached since the oldest still needed, ascending in both; give
    it back to a stage that goes on where it stopped, or it forgets what its state was made of.
    """

    def __init__(self, window: Window, *, start: Epoch, history: list[list[int]] | None = None) -> None:
        """``start`` is the first epoch to come when there is no history."""
        self.reach_ms = math.ceil(round(window.reach_s * 1000, 3))  # up, but not because of a float's last bit
        self._reached: deque[tuple[Epoch, int]] = deque((Epoch(epoch), mark) for epoch, mark in history or [])
        """(epoch, the watermark after it), wherever that rose."""
        if not self._reached:
            self._reached.append((start, 0))

    def history(self, until: Epoch) -> list[list[int]]:
        """As of epoch ``until``, as plain numbers."""
        return [list(pair) for pair in self._reached if pair[0] <= until]

    def committed(self, epoch: Epoch, next_watermark_ms: int) -> Epoch:
        """Batch ``epoch`` is done and the next one will use this watermark. Returns the oldest input epoch from which
        the state after ``epoch`` can be rebuilt."""
        reached = self._reached
        watermark_ms = reached[-1][1]
        if next_watermark_ms > watermark_ms:
            reached.append((epoch, next_watermark_ms))
        while reached[0][1] < watermark_ms - self.reach_ms:
            reached.popleft()
        return reached[0][0]
