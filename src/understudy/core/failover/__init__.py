"""Who runs what: placement, promotion, fencing by generation, and the choice of new standbys.

The machine's whole decision is one **plan**: for every unit its generation, primary and standby. Each change
makes a new plan with a higher serial; hosts are sent whole plans and make themselves agree with them, so a lost,
repeated or late message does no harm, and a restarted coordinator only has to send its last plan again.

Order of recovery needs no message: a recovering stage pulls its input from whoever the plan names, and waits
there until that one has recovered, so neighbours that failed together recover upstream first (Gu et al. 2009,
Theorem 3.2).

``events`` is what the machine is told and what it wants done, ``machine`` decides, ``placement`` knows the best host.
"""

from __future__ import annotations

from understudy.core.failover.events import (
    CODE,
    MACHINE,
    UNDERSTUDY,
    Begin,
    Effect,
    Event,
    HostCleared,
    HostJoined,
    HostLost,
    HostSuspected,
    Publish,
    Say,
    StageThrew,
    StandbyReady,
    StandbyUnusable,
    StopJob,
    Switch,
    Tick,
    Turned,
)
from understudy.core.failover.machine import Failover

__all__ = [
    "Begin",
    "CODE",
    "Effect",
    "Event",
    "Failover",
    "HostCleared",
    "HostJoined",
    "HostLost",
    "HostSuspected",
    "MACHINE",
    "Publish",
    "Say",
    "StageThrew",
    "StandbyReady",
    "StandbyUnusable",
    "StopJob",
    "Switch",
    "Tick",
    "Turned",
    "UNDERSTUDY",
]
