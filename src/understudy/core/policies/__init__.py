"""How a part of a job survives a crash: the choices a user picks from, one file each.

Each file holds the policy (plain data) and its protection (a pure machine); ``base`` says what both must be. Who takes
over after a crash is decided in ``core/failover.py`` from the policy's traits.
"""

from understudy.core.policies.active import ActiveStandby
from understudy.core.policies.base import Policy, Protection, StageRole
from understudy.core.policies.hybrid import Hybrid
from understudy.core.policies.none import NoProtection
from understudy.core.policies.passive import PassiveStandby
from understudy.core.policies.spelling import parse, spell
from understudy.core.policies.upstream import UpstreamBackup

none = NoProtection()

__all__ = [
    "ActiveStandby",
    "Hybrid",
    "NoProtection",
    "PassiveStandby",
    "Policy",
    "Protection",
    "StageRole",
    "UpstreamBackup",
    "none",
    "parse",
    "spell",
]
