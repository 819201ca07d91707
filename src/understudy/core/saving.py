"""At which epochs a state is saved that cannot be had afterwards.

Spark keeps the state after every epoch for a while; a user's object has only its newest. A sweep wants the state at the
trim point, which lies behind, so states are saved ahead of being asked for, and the newest that was saved at or before
the trim point is captured. Saving after every epoch would be best, and is done where it costs little; else after every
second, fourth, eighth. Multiples of powers of two, so that stages that save at different paces still save at the same
epochs, and a sweep from sink to source meets a saved state everywhere.
"""

from __future__ import annotations

from understudy.core.numbers import Epoch

SHARE = 0.05
"""Of the time that saving may take. More makes epochs later; less makes a crash go back further."""
STEP_MAX = 1 << 20
_FADING = 0.2
"""Weight of the newest measurement: a state that grows is noticed within a few saves."""


TOO_LONG = 3
"""Saves in a row that take longer than their period are said: the first one may be slow for reasons of its own."""


class Saving:
    """Ask ``due`` after an epoch, and say ``took`` when it was saved."""

    def __init__(self, within_s: float | None = None) -> None:
        self.step = 1
        self.within_s = within_s
        """A state is saved at least this often, whatever that takes."""
        self._save_s = self._epoch_s = 0.0
        self._last_at: float | None = None
        self._too_long = 0

    def due(self, epoch: Epoch, now: float) -> bool:
        """An epoch is done. Returns whether the state after it is to be saved."""
        if self._last_at is not None:
            self._epoch_s = _mean(self._epoch_s, now - self._last_at)
        self._last_at = now
        return epoch % self.step == 0

    def took(self, save_s: float) -> bool:
        """Returns whether it is to be said that saving takes longer than the time within which it should be done."""
        self._too_long = self._too_long + 1 if self.within_s is not None and save_s > self.within_s else 0
        self._save_s = _mean(self._save_s, save_s)
        if self._epoch_s > 0:
            self.step = self._best()
        return self._too_long == TOO_LONG

    def _best(self) -> int:
        step = 1
        while step < STEP_MAX and self._save_s > SHARE * step * self._epoch_s:
            if self.within_s is not None and 2 * step * self._epoch_s > self.within_s:
                break
            step *= 2
        return step


def _mean(before: float, newest: float) -> float:
    return newest if before == 0.0 else before + _FADING * (newest - before)
