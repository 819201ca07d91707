"""The two numbers that everybody tells each other, as types of their own, so that mypy finds out when one is passed for
the other, or for a level, a serial or a count.

At run time both are plain integers. Arithmetic gives an ``int``; what comes of it is an epoch again by ``after``,
``before`` or ``Epoch(...)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NewType

Epoch = NewType("Epoch", int)
"""One micro-batch's worth of a stream, by number."""
Generation = NewType("Generation", int)
"""Of a unit: how often it was given another primary. Whoever speaks for an older one is refused."""

FIRST_EPOCH = Epoch(0)
NO_EPOCH = Epoch(-1)
"""Before the first one: nothing has come yet, or was done."""
FIRST_GENERATION = Generation(0)
NO_GENERATION = Generation(-1)
"""Before the first one."""


def after(epoch: Epoch) -> Epoch:
    """The next one."""
    return epoch + 1  # type: ignore[return-value]  # asked for with every epoch: no second call


def before(epoch: Epoch) -> Epoch:
    """The one before: with the first, ``NO_EPOCH``."""
    return epoch - 1  # type: ignore[return-value]


def between(first: Epoch, end: Epoch) -> Sequence[Epoch]:
    """From the first one up to, and without, the end."""
    return range(first, end)  # type: ignore[return-value]
