"""What sinks have, known wherever it is counted on.

A stage that is rebuilt by replay makes epochs again that its sinks have, and windows lack rows in them until all that
they are made of was read. Sinks must not be given these. Its input was let go of because its sinks had epoch *v*, and
from *v* on it is whole again; so whoever is told what may be trimmed is told with it what sinks have by then. Then
nobody answers where a stage begins without knowing what its sinks have, whoever else was lost.

What a sink has it has for good, and newer news only say more: it does not matter whom they come from, or how late.
"""

from __future__ import annotations

from collections.abc import Mapping

from understudy.core.numbers import NO_EPOCH, Epoch
from understudy.core.queue import OutputQueue

Known = Mapping[str, Epoch]
"""Sink, as its producer's queue names it -> the newest epoch that it has."""


class Landed:
    """As one host knows it. Hear what comes with a message before anything else that it says."""

    def __init__(self) -> None:
        self.known: Known = {}
        """Made anew, never changed: messages on their way carry what was known when they left."""

    def has(self, sink: str, epoch: Epoch) -> None:
        """A sink has an epoch, safely, and all before."""
        if epoch > self.known.get(sink, NO_EPOCH):
            self.known = {**self.known, sink: epoch}

    def hears(self, known: Known) -> None:
        if known is not self.known:
            for sink, epoch in known.items():
                self.has(sink, epoch)

    def skip(self, queue: OutputQueue) -> None:
        """A stage begins without state: sinks are not given again what they have."""
        for consumer in queue.progress:
            if consumer in self.known:
                queue.ack(consumer, self.known[consumer])
