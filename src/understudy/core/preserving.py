"""Rows that cannot be read again: an epoch is published when everybody who may have to send it again has it.

One epoch at a time. Whoever comes to keep the rows meanwhile must have it too; nobody waits for those that are gone.
"""

from __future__ import annotations

from collections.abc import Iterable


class Preserving:
    """Say ``aim`` when a plan names who keeps the rows, ``begin`` with every epoch, ``safe_at`` when one has it."""

    def __init__(self) -> None:
        self._keepers: tuple[str, ...] = ()
        self._safe: set[str] = set()

    def aim(self, keepers: Iterable[str]) -> None:
        """These keep the rows now, as ``standby_key`` names them. One that was not there before has nothing."""
        self._keepers = tuple(keepers)
        self._safe.intersection_update(self._keepers)

    def begin(self) -> None:
        """Another epoch: nobody has it."""
        self._safe.clear()

    def safe_at(self, keeper: str) -> None:
        """One has the epoch, and the rows before it that somebody may want. A word that comes late counts nothing."""
        if keeper in self._keepers:
            self._safe.add(keeper)

    def left(self) -> list[str]:
        """Who lacks the epoch."""
        return [keeper for keeper in self._keepers if keeper not in self._safe]

    def done(self) -> bool:
        """It may be published. As long as nobody is named to keep it, it may not."""
        return bool(self._keepers) and not self.left()
