"""How a primary lets its running copies keep up with it.

A copy works through the same epochs as its primary, at the same cost each. On a primary that is always busy it would
stay as far behind as it was when it was made, and have that much to make up for when it is needed. So while a copy is
behind, the primary starts an epoch only when the copy has gained on it, or at half its usual pace. Rows do not wait:
a source that is asked less often gives more at once, which is cheaper per row.
"""

from __future__ import annotations

from collections.abc import Iterable

IN_STEP = 2
"""Epochs by which a copy may be behind and still be called in step: one is under way, one on its way."""


class Pace:
    """Ask ``wait_s`` before an epoch, say ``started`` when it has begun."""

    def __init__(self) -> None:
        self._watched: frozenset[str] = frozenset()
        self._at: dict[str, int] = {}
        self._lag = 0
        """Of the slowest copy, when the last epoch was started."""
        self._started_at = float("-inf")

    def watch(self, copies: Iterable[str]) -> None:
        """These are the copies now. One that was not there before counts when it has said where it is."""
        self._watched = frozenset(copies)
        self._at = {copy: epoch for copy, epoch in self._at.items() if copy in self._watched}

    def copy_is_at(self, copy: str, epoch: int) -> None:
        if copy in self._watched:
            self._at[copy] = epoch

    def wait_s(self, epoch: int, now: float, step_s: float) -> float:
        """How long to wait before starting ``epoch``, unless a copy moves; ``step_s``: what an epoch usually takes."""
        lag = self._lag_before(epoch)
        if lag <= IN_STEP or lag < self._lag:
            return 0.0
        return max(0.0, self._started_at + 2 * step_s - now)

    def started(self, epoch: int, now: float) -> None:
        self._lag, self._started_at = self._lag_before(epoch), now

    def _lag_before(self, epoch: int) -> int:
        return epoch - 1 - min(self._at.values()) if self._at else 0
