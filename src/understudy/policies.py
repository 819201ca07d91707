"""How a part of a job survives a crash: the choices a user picks from.

A policy is plain data. What it makes the job keep, acknowledge and do after a failure is decided in
``core/checkpointing.py`` (what and when) and ``core/failover.py`` (who takes over).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from understudy.durations import seconds


@dataclass(frozen=True)
class Policy:
    """Base of all policies; ``protected`` says whether a standby is kept."""

    @property
    def protected(self) -> bool:
        return False

    def describe(self) -> str:
        return "none"


@dataclass(frozen=True)
class NoProtection(Policy):
    """Gap recovery: nothing is kept. After a crash the unit starts anew at the newest epoch; rows in between are
    lost and their epochs become empty ones."""


@dataclass(frozen=True)
class PassiveStandby(Policy):
    """A second host holds the state and an armed query; a crash costs about one micro-batch and loses nothing.

    ``checkpoint="sweeping"``: the last stage is checkpointed by a timer, every other stage right after its
    consumers' checkpoints let it trim its output queue, so that checkpoints sweep from sink to source and carry
    no queue at all (Gu et al. 2009, Section 3.1).
    """

    checkpoint: Literal["sweeping"] = "sweeping"
    every: str | float = "500ms"

    def __post_init__(self) -> None:
        if self.checkpoint != "sweeping":
            raise ValueError(f"checkpoint={self.checkpoint!r} is not known; use checkpoint='sweeping'")
        seconds(self.every, what="every")

    @property
    def protected(self) -> bool:
        return True

    @property
    def every_s(self) -> float:
        return seconds(self.every, what="every")

    def describe(self) -> str:
        return f"passive standby, {self.checkpoint} every {self.every}"


none = NoProtection()
