"""Where results go: a store outside of all hosts that takes each epoch once and refuses fenced generations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.core.numbers import FIRST_GENERATION, NO_EPOCH, Epoch, Generation
from understudy.verify.checkers import Written

if TYPE_CHECKING:
    from understudy.sim.nodes import World


class SinkStore:
    """As the folder sinks of the runtime: the highest generation that was opened wins."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.generation = FIRST_GENERATION
        self.newest = NO_EPOCH
        self.values: dict[Epoch, int] = {}
        self.written: list[Written] = []
        self.rewritten: list[str] = []
        """What came again as something else."""

    def open(self, generation: Generation) -> bool:
        """A writer of this generation begins. False when a newer one has begun already."""
        if generation < self.generation:
            return False
        self.generation = generation
        return True

    def write(self, epoch: Epoch, value: int, generation: Generation) -> bool:
        """False when the writer is fenced. An epoch that is there already is left as it is, and so is a gap. It must
        come again as it was."""
        if generation < self.generation:
            return False
        known = self.values.get(epoch)
        if epoch > self.newest:
            self.newest = epoch
            self.values[epoch] = value
            if self.world.remember:
                self.written.append(Written(self.world.engine.now, epoch, generation, value))
            else:
                self.values.pop(Epoch(epoch - 100), None)
        elif known is not None and known != value:
            self.world.tell("CHECK", f"{self.name}: epoch {epoch} comes again as {value}")
            self.rewritten.append(f"epoch {epoch} was written as {known} and again as {value}")
        return True
