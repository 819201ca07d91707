"""How a part of a job survives a crash: the choices a user picks from, one file each.

Each file holds the policy (plain data) and its protection (a pure machine); ``base`` says what both must be. Who takes
over after a crash is decided in ``core/failover.py`` from the policy's traits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from understudy.core.policies.active import ActiveStandby
from understudy.core.policies.auto import Auto
from understudy.core.policies.base import Policy, Protection, StageRole
from understudy.core.policies.hybrid import Hybrid
from understudy.core.policies.none import NoProtection
from understudy.core.policies.passive import PassiveStandby
from understudy.core.policies.upstream import UpstreamBackup

none = NoProtection()
_KINDS: dict[str, type[Policy]] = {
    kind.__name__: kind for kind in (ActiveStandby, Auto, Hybrid, NoProtection, PassiveStandby, UpstreamBackup)
}


def auto(
    *, recovery_time: str | float = "2s", loss: Literal["none", "some"] = "none", overhead: float | None = None
) -> Auto:
    """The cheapest policy that meets this goal; see ``Auto``. ``understudy plan`` shows which, and why."""
    return Auto(recovery_time, loss, overhead)


def to_dict(policy: Policy) -> dict[str, Any]:
    """A policy as plain data, for journals and messages."""
    return {"policy": type(policy).__name__, **asdict(policy)}


def from_dict(data: Mapping[str, Any]) -> Policy:
    return _KINDS[data["policy"]](**{key: value for key, value in data.items() if key != "policy"})


__all__ = [
    "ActiveStandby",
    "Auto",
    "Hybrid",
    "NoProtection",
    "PassiveStandby",
    "Policy",
    "Protection",
    "StageRole",
    "UpstreamBackup",
    "auto",
    "from_dict",
    "none",
    "to_dict",
]
