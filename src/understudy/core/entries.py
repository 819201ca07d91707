"""A source's log at its standbys: what a standby makes of the entries that it is sent, and what its primary shows.

An epoch is seen by nobody before every standby has its entry. So the logs of standbys may differ in entries of epochs
that were seen by nobody: primaries that died have cut them, and told some standbys. Only what all consumers are done
with is *certain* to be the same everywhere. The first message of a primary makes a standby forget all else, and brings
it anew. Only the first: a late one must not take back what came since.

A primary cuts an epoch when the one before has been seen. So of the log that it begins with only the newest entry can
be of an epoch that nobody has seen, and that another standby would cut otherwise if it came to lead.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from understudy.core.numbers import NO_GENERATION, Generation


@dataclass(frozen=True)
class Taken:
    keep: int
    """How many entries of its log stay."""
    skip: int | None
    """How many of the entries that came are there already; the others follow. None: some in between are missing."""


class Follower:
    """Of one standby."""

    def __init__(self) -> None:
        self._generation = NO_GENERATION
        """The newest that has sent anything."""

    def take(self, generation: Generation, have: int, *, certain: int, after: int) -> Taken | None:
        """Entries after the first ``after`` ones have come, of which ``certain`` ones are the same everywhere; the log
        has ``have``. None when a newer primary has spoken."""
        if generation < self._generation:
            return None
        keep = min(have, certain) if generation > self._generation else have
        self._generation = generation
        return Taken(keep, keep - after if after <= keep else None)


class Leader:
    """Of one primary: how many of its entries consumers may see."""

    def __init__(self, inherited: int, *, certain: int = 0) -> None:
        """``inherited``: how many entries it begins with, of which consumers are done with ``certain`` ones."""
        self._inherited = inherited
        self._shown = max(certain, inherited - 1)
        self._has: dict[str, int] = {}
        self._ready: Collection[str] | None = None
        """None until a plan has named the standbys."""

    def aim(self, standbys: Collection[str], ready: Collection[str]) -> None:
        """These are the standbys now, as ``standby_key`` names them, and the plan counts on those that are ready."""
        self._has = {standby: self._has.get(standby, 0) for standby in standbys}
        self._ready = ready

    def has(self, standby: str, count: int) -> None:
        """A standby has said how many entries it has."""
        if count > self._has.get(standby, count):
            self._has[standby] = count

    def at(self, standby: str) -> int:
        return self._has.get(standby, 0)

    def shows(self, end: int) -> int:
        """Of ``end`` entries so many may be seen: those that every standby has. What it inherited may be seen as soon
        as those that the plan counts on have it; one that has just come must not hold up a takeover."""
        if self._ready is not None:
            counted = min((self.at(standby) for standby in self._ready), default=end)
            everywhere = min(self._has.values(), default=end)
            self._shown = max(self._shown, min(counted, self._inherited), min(everywhere, end))
        return self._shown
