"""How a part of a job survives a crash: the choices a user picks from, one file each.

Each file holds the policy (plain data) and its protection (a pure machine); ``base`` says what both must be. Who takes
over after a crash is decided in ``core/failover`` from the policy's traits.
"""

from __future__ import annotations

from typing import Literal, TypeGuard

from understudy.core.policies.active import ActiveStandby
from understudy.core.policies.auto import Auto
from understudy.core.policies.base import Policy, Protection, StageRole
from understudy.core.policies.checkpoint import Checkpoint
from understudy.core.policies.hybrid import Hybrid
from understudy.core.policies.none import NoProtection
from understudy.core.policies.passive import PassiveStandby
from understudy.core.policies.spelling import parse, spell
from understudy.core.policies.upstream import UpstreamBackup

none = NoProtection()


def is_policy(value: object) -> TypeGuard[Policy]:
    return isinstance(value, Policy)


def auto(
    *, recovery_time: str | float = "2s", loss: Literal["none", "some"] = "none", overhead: float | None = None
) -> Auto:
    """The cheapest policy that meets this goal; see ``Auto``. ``understudy plan`` shows which, and why."""
    return Auto(recovery_time, loss, overhead)


__all__ = [
    "ActiveStandby",
    "Auto",
    "Checkpoint",
    "Hybrid",
    "NoProtection",
    "PassiveStandby",
    "Policy",
    "Protection",
    "StageRole",
    "UpstreamBackup",
    "auto",
    "is_policy",
    "none",
    "parse",
    "spell",
]
