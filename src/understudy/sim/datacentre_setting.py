"""A data centre and a job in it, as ``understudy simulate`` is told: what there is, what fails, what things take."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from understudy.core.policies import Policy, is_policy
from understudy.sim.failures import FailureModel, failure_model


@dataclass(frozen=True)
class Setting:
    """The data centre, its failures, and the job's measures. Every unit is taken to be alike."""

    hosts: int = 2400
    """Machines. The paper's data centre has 2,400 in 30 racks."""
    racks: int = 30
    """Racks they stand in, side by side."""
    days: float = 365.0
    """Days to live through."""
    failures: str | FailureModel = "google"
    """What fails how often: ``google``, ``abe``, ``none``, or a model of one's own."""
    seed: int = 1
    """One seed is one story; policies are compared over the same one."""
    policy: Policy | None = None
    """Protects every unit but sources; None leaves to each what the job says."""
    placement: Literal["spread", "packed"] = "spread"
    """``Failover`` prefers hosts by name among equals. ``spread``: names run across racks; ``packed``: rack by rack,
    so that a small job sits in one."""
    epoch_s: float = 0.5
    """Time between epochs, and so between acknowledgements."""
    rows_per_s: float = 1000.0
    """Rows that each unit takes in."""
    row_bytes: float = 100.0
    """Size of a row."""
    state_bytes: float = 10e6
    """State of a unit. The paper's applications have 3 to 18 MB in each of 55 units, on average."""
    state_share: float = 0.1
    """Bytes of state that change, per byte taken in: what a checkpoint has to carry. 0.1 fits Gu et al. 2009, Fig 5."""
    window_s: float = 60.0
    """How far back a state reaches: what a replay has to bring again."""
    replay_speed: float = 20.0
    """How many times faster than it came the input is replayed."""
    bandwidth_bytes_per_s: float = 125e6
    """Of a host, for bringing a state to a new standby: 1 Gbit/s, as in the paper."""
    heartbeat_s: float = 0.5
    """Time between heartbeats."""
    misses: int = 5
    """Heartbeats missed in a row that make a failure."""
    broken_s: float = 0.05
    """From a process's death to the news of its broken connection."""
    passive_s: float = 0.6
    """From detection until a passive standby runs."""
    active_s: float = 0.1
    """From detection until consumers read an active standby."""
    replay_s: float = 0.6
    """From detection until a replay can begin; its window comes on top."""
    none_s: float = 0.6
    """From detection until an unprotected unit runs anew."""
    standby_s: float = 10.0
    """To start a new standby; bringing the state comes on top."""

    def __post_init__(self) -> None:
        for name in ("hosts", "racks", "misses"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
        at_least_something = ("days", "epoch_s", "rows_per_s", "row_bytes", "replay_speed", "heartbeat_s")
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type != "float":
                continue
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ValueError(f"{each.name}={value!r} must be a number, and not negative")
            if value == 0 and each.name in (*at_least_something, "bandwidth_bytes_per_s"):
                raise ValueError(f"{each.name}=0 must be more than nothing; the default is {each.default}")
        if self.racks > self.hosts:
            raise ValueError(f"racks={self.racks} is more than hosts={self.hosts}; use at most one rack per host")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ValueError(f"seed={self.seed!r} must be a whole number")
        if self.placement not in ("spread", "packed"):
            raise ValueError(f"placement={self.placement!r} is not known; use 'spread' or 'packed'")
        if self.policy is not None and not is_policy(self.policy):
            raise ValueError(f"policy={self.policy!r} is not a policy; use None for the job's own, or PassiveStandby()")
        failure_model(self.failures)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        policy = None if self.policy is None else self.policy.describe()
        return {**vars(self), "policy": policy, "failures": failure_model(self.failures).name}
