"""Hybrid: passive standby that turns active at the first sign of trouble (announced by Gu et al. 2009, Section 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from understudy.core.policies.passive import PassiveStandby


@dataclass(frozen=True)
class Hybrid(PassiveStandby):
    """As passive standby; but with the first missed heartbeat the standby restores its checkpoint and runs, without
    sending. When the failure is confirmed it has caught up; when the primary answers again it stands down."""

    kind: ClassVar[str] = "hybrid"

    @property
    def rises(self) -> bool:
        return True
