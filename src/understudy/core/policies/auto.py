"""A goal in place of a policy. ``core/choice.py`` finds the cheapest policy that meets it, once it is known what the
unit's operators are and what it costs to run them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from understudy.core.policies.base import Policy, Protection, Recovery, StageRole
from understudy.durations import seconds

Loss = Literal["none", "some"]


@dataclass(frozen=True)
class Auto(Policy):
    """The cheapest policy that brings output back within ``recovery_time`` of a crash, without losing rows (or, with
    ``loss="some"``, perhaps losing those in between), and costs at most ``overhead`` extra: bytes for protection per
    byte of data, and CPU likewise. None: whatever it takes."""

    kind: ClassVar[str] = "auto"
    recovery_time: str | float = "2s"
    loss: Loss = "none"
    overhead: float | None = None

    def __post_init__(self) -> None:
        seconds(self.recovery_time, what="recovery_time")
        if self.loss not in get_args(Loss):
            known = ", ".join(repr(loss) for loss in get_args(Loss))
            raise ValueError(f"loss={self.loss!r} is not known; use one of {known}")
        if self.overhead is not None:
            number = isinstance(self.overhead, (int, float)) and not isinstance(self.overhead, bool)
            if not number or not 0 <= self.overhead < math.inf:
                raise ValueError(
                    f"overhead={self.overhead!r} must be a number and not negative, such as 0.2 for a fifth; "
                    "leave it out to allow any"
                )

    @property
    def is_goal(self) -> bool:
        return True

    @property
    def recovery_s(self) -> float:
        return seconds(self.recovery_time, what="recovery_time")

    @property
    def recovery(self) -> Recovery:
        """Until it is resolved: as most policies, so that nothing is refused that may turn out well."""
        return "standby"

    def describe(self) -> str:
        within = "" if self.overhead is None else f", overhead at most {self.overhead:.0%}"
        return f"{self.kind}, back within {self.recovery_time}, loss {self.loss}{within}"

    def protect(self, stages: Iterable[StageRole]) -> Protection:
        raise TypeError("us.auto(...) is a goal; a unit runs under the policy that was chosen for it")
