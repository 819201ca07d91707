"""What must hold of what a sink received, whoever drove the job: checked alike for simulated and for real runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy.core.numbers import FIRST_GENERATION, NO_EPOCH, Epoch, Generation


@dataclass(slots=True)
class Written:
    """One epoch as it came to a sink."""

    t: float
    epoch: Epoch
    generation: Generation | None = None
    """Whose writing it was; None where a sink does not tell."""
    content: int | None = None
    """Something that is equal exactly when the rows are; None where rows are compared elsewhere."""


def check_sink(written: Sequence[Written], *, expected: Mapping[Epoch, int] | None = None) -> list[str]:
    """Everything that is wrong, in words; nothing when all is well. ``written`` in order of arrival.

    Order: every epoch comes right after the one before it, once. Fencing: once a generation has written, no older one
    does. With ``expected``, epoch -> content: nothing is lost and nothing else than expected was written.
    """
    wrong: list[str] = []
    seen: dict[Epoch, Written] = {}
    generation = FIRST_GENERATION
    newest = NO_EPOCH
    for one in written:
        if one.epoch in seen:
            wrong.append(f"epoch {one.epoch} was written twice")
        elif one.epoch < newest:
            wrong.append(f"epoch {one.epoch} was written after epoch {newest}")
        seen.setdefault(one.epoch, one)
        newest = max(newest, one.epoch)
        if one.generation is not None:
            if one.generation < generation:
                wrong.append(f"generation {one.generation} wrote epoch {one.epoch} after generation {generation}")
            generation = max(generation, one.generation)
    if expected is not None:
        lost = [epoch for epoch in expected if epoch not in seen]
        if lost:
            wrong.append(f"{len(lost)} epochs lost, the first is {min(lost)}")
        wrong += [
            f"epoch {epoch} is different"
            for epoch, one in seen.items()
            if epoch in expected and one.content is not None and one.content != expected[epoch]
        ]
    return wrong
