"""A source's log at its standbys: what a standby makes of the entries that it is sent.

An epoch is seen by nobody before every standby has its entry. So the logs of standbys may differ in entries of epochs
that were seen by nobody: primaries that died have cut them, and told some standbys. Only what all consumers are done
with is *certain* to be the same everywhere. The first message of a primary makes a standby forget all else, and brings
it anew. Only the first: a late one must not take back what came since.
"""

from __future__ import annotations

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
