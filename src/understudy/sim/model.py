"""What a simulated job computes: numbers in, numbers out, so that any lost, repeated or altered epoch shows.

A source's epoch is a number drawn when it is cut, and thus known to nobody who lost its log. A stage mixes what it
reads with its state: everything it ever read (``span`` 0) or the last ``span`` epochs. ``expected`` computes the same
without hosts, queues or failures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from understudy.core.topology import Topology

_PRIME = (1 << 61) - 1
EMPTY = 0
"""The value of an epoch without rows: what a unit without protection leaves in place of epochs that it lost."""

State = tuple[int, ...]


def mix(numbers: Iterable[int]) -> int:
    """One number from several; order matters."""
    result = 1469598103934665603
    for number in numbers:
        result = (result ^ number) * 1099511628211 % _PRIME
    return result


@dataclass(frozen=True)
class SimJob:
    """A topology and what its stages remember."""

    topology: Topology
    span: Mapping[str, int] = field(default_factory=dict)
    """How many epochs of input a stage's output depends on; 0 for all there ever were; 1 where not named."""
    saves: Mapping[str, int] = field(default_factory=dict)
    """Stages that are objects: the state is saved after every so many epochs, and else lost with the next. Others keep
    the state after every epoch, as Spark does."""

    def span_of(self, stage: str) -> int:
        return self.span.get(stage, 1)

    def fresh(self, stage: str) -> State:
        return (0,) if self.span_of(stage) == 0 else ()

    def step(self, stage: str, number: int, state: State, values: Sequence[int]) -> tuple[State, int]:
        """One epoch: the state after it and what comes out. ``number`` tells stages apart."""
        span = self.span_of(stage)
        read = mix(values)
        if span == 0:
            after: State = (mix((state[0], read)),)
            return after, mix((number, after[0]))
        window = (*state, read)
        return window[-(span - 1) :] if span > 1 else (), mix((number, *window))

    def needs_after(self, stage: str, epoch: int) -> int:
        """The oldest input epoch from which the state after ``epoch`` can be rebuilt."""
        span = self.span_of(stage)
        return 0 if span == 0 else max(0, epoch - span + 2)

    def expected(self, sources: Mapping[str, Sequence[int]], upto: int) -> dict[str, list[int]]:
        """Every stream's epochs 0..``upto`` as they must be."""
        streams: dict[str, list[int]] = {name: list(log[: upto + 1]) for name, log in sources.items()}
        for number, (name, shape) in enumerate(self.topology.stages.items()):
            if not shape.inputs:
                continue
            state, out = self.fresh(name), []
            for epoch in range(upto + 1):
                state, value = self.step(name, number, state, [streams[i][epoch] for i in shape.inputs])
                out.append(value)
            streams[name] = out
        return streams
