"""When a stage starts its next epoch, and when it asks for the one after.

*How a primary lets its running copies keep up with it* (``Pace``). A copy works through the same epochs as its primary,
at the same cost each. On a primary that is always busy it would stay as far behind as it was when it was made, and have
that much to make up for when it is needed. So while a copy is behind, the primary starts an epoch only when the copy
has gained on it, or at half its usual pace. Rows do not wait: a source that is asked less often gives more at once,
which is cheaper per row.

*When a consumer asks* (``Asking``): when it is about to want the epoch, so that its rows are as new as can be, and not
later, so that it does not wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from understudy.core.numbers import Epoch
from understudy.core.queue import READ_AHEAD

IN_STEP = 2
"""Epochs by which a copy may be behind and still be called in step: one is under way, one on its way."""


class Pace:
    """Ask ``wait_s`` before an epoch, say ``started`` when it has begun."""

    def __init__(self) -> None:
        self._watched: frozenset[str] = frozenset()
        self._at: dict[str, Epoch] = {}
        self._lag = 0
        """Of the slowest copy, when the last epoch was started."""
        self._started_at = float("-inf")

    def watch(self, copies: Iterable[str]) -> None:
        """These are the copies now. One that was not there before counts when it has said where it is."""
        self._watched = frozenset(copies)
        self._at = {copy: epoch for copy, epoch in self._at.items() if copy in self._watched}

    def copy_is_at(self, copy: str, epoch: Epoch) -> None:
        if copy in self._watched:
            self._at[copy] = epoch

    def wait_s(self, epoch: Epoch, now: float, step_s: float) -> float:
        """How long to wait before starting ``epoch``, unless a copy moves; ``step_s``: what an epoch usually takes."""
        lag = self._lag_before(epoch)
        if lag <= IN_STEP or lag < self._lag:
            return 0.0
        return max(0.0, self._started_at + 2 * step_s - now)

    def started(self, epoch: Epoch, now: float) -> None:
        self._lag, self._started_at = self._lag_before(epoch), now

    def _lag_before(self, epoch: Epoch) -> int:
        return epoch - 1 - min(self._at.values()) if self._at else 0


LEAD_SPARE_S = 0.01
"""An epoch is asked for this much earlier than it usually takes to come, lest a query wait for it."""
_FADING = 0.2
"""Weight of what the newest epoch took."""


class Asking:
    """One input of a stage: ask ``wait_s`` before each request, say ``came`` when it was answered."""

    def __init__(self) -> None:
        self._lead_s = 0.0
        """How long before it is wanted an epoch must be asked for: what cutting and sending it took lately."""

    def wait_s(self, received: Epoch, begun: Epoch, done_in_s: float) -> float:
        """How long not to ask yet, unless something changes; endless while there is an epoch that the stage has not
        begun with. ``received``, ``begun``: the newest epochs that have come and that were started; ``done_in_s``: when
        the stage will want its next one."""
        if received >= begun + READ_AHEAD:
            return math.inf
        return done_in_s - self._lead_s - LEAD_SPARE_S

    def came(self, took_s: float, waited_s: float, cut_s: float) -> None:
        """An epoch came: ``waited_s`` of the time it was not there yet, because it was not due or because its producer
        was at work; ``cut_s`` of that it was being cut."""
        self._lead_s += _FADING * (max(0.0, took_s - waited_s) + cut_s - self._lead_s)
