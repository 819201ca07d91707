"""Rows that cannot be read again: an epoch is published when everybody who may have to send it again has it.

One epoch at a time. Whoever comes to keep the rows meanwhile must have it too; nobody waits for those that are gone.

A new primary may have inherited an epoch that nobody has seen, and that others would cut otherwise if they came to
lead: it is seen when those that the plan counts on have it. Who has just come to keep rows holds up no takeover.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class Preserving:
    """Say ``aim`` when a plan names who keeps the rows, ``begin`` with every epoch, ``safe_at`` when one has it."""

    def __init__(self) -> None:
        self._keepers: tuple[str, ...] = ()
        self._ready: Collection[str] = ()
        self._safe: set[str] = set()
        self._inherited = False

    def aim(self, keepers: Iterable[str], ready: Collection[str] = ()) -> None:
        """These keep the rows now, as ``standby_key`` names them, and the plan counts on those that are ``ready``. One
        that was not there before has nothing."""
        self._keepers, self._ready = tuple(keepers), ready
        self._safe.intersection_update(self._keepers)

    def begin(self, *, inherited: bool = False) -> None:
        """Another epoch: nobody has it. ``inherited``: an earlier primary has cut it."""
        self._safe.clear()
        self._inherited = inherited

    def safe_at(self, keeper: str) -> None:
        """One has the epoch, and the rows before it that somebody may want. A word that comes late counts nothing."""
        if keeper in self._keepers:
            self._safe.add(keeper)

    def left(self) -> list[str]:
        """Who lacks the epoch."""
        return [keeper for keeper in self._keepers if keeper not in self._safe]

    def done(self) -> bool:
        """Everybody has it. As long as nobody is named to keep it, nobody has."""
        return bool(self._keepers) and not self.left()

    def may_be_seen(self) -> bool:
        return self.done() or (self._inherited and self._safe.issuperset(self._ready))
