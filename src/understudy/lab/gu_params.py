"""What one run of the model of Gu et al. 2009 is given. Defaults are the paper's.

Two *protocols* can be told to the same machines, because the two differ in what a checkpoint is:

- ``paper``: a checkpoint is the newest state and the whole output queue, and its PE is paused meanwhile (Section 3.1).
- ``understudy``: a sweeping checkpoint is taken at the trim point, where the queue is empty; the other two methods ship
  each element of a queue once; and sweeping checkpoints pause nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Method = Literal["none", "sweeping", "individual", "synchronous", "lazy", "eager"]
Protocol = Literal["paper", "understudy"]
CHECKPOINTED = ("sweeping", "individual", "synchronous")


@dataclass(frozen=True)
class Params:
    """One run. Defaults are Section 5's; what the paper does not print is explained in ``gu.CHOICES``."""

    methods: tuple[Method, ...] = ("sweeping",) * 4
    """Of each subjob, from source to sink."""
    protocol: Protocol = "understudy"
    rate_per_s: int = 3000
    interval_s: float = 0.5
    """Between checkpoints."""
    heartbeat_s: float = 0.1
    misses: int = 3
    fail: int | None = None
    """The subjob whose machine dies, counted from 0."""
    failure_phase: float = 0.5
    """When it dies, as a share of the checkpoint interval since the last PE's checkpoint; a sweep over it in even steps
    gives the mean that random failures only scatter around."""
    warmup_s: float = 5.0
    measure_s: float = 9.0
    seed: int = 1

    pes_per_unit: int = 2
    state_elements: int = 20
    element_bytes: int = 100
    ack_bytes: int = 8
    batch_s: float = 0.004
    element_s: float = 20e-6
    """Processing."""
    send_s: float = 30e-6
    """Sending an element from queue to queue."""
    link_delay_s: float = 0.0001
    call_s: float = 1 / 700
    calls: int = 5
    """Remote calls per checkpoint: pause, paused, checkpoint, store, resume (Section 4.1)."""
    store_s: float = 20e-6
    """Serialising and storing one element of a checkpoint."""
    redeploy_s: float = 0.5

    def __post_init__(self) -> None:
        for name, allowed in (("methods", get_args(Method)), ("protocol", get_args(Protocol))):
            given = getattr(self, name)
            for value in given if isinstance(given, (tuple, list)) else (given,):
                if value not in allowed:
                    raise ValueError(f"{name}={value!r} is none of {', '.join(allowed)}")
        if not self.methods:
            raise ValueError("methods=() must name a method for each subjob")
        positive = ("rate_per_s", "interval_s", "heartbeat_s", "misses", "warmup_s", "measure_s", "pes_per_unit")
        for name in (*positive, "batch_s", "element_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be more than 0")
        times = ("element_s", "send_s", "link_delay_s", "call_s", "store_s", "redeploy_s")
        for name in ("state_elements", "ack_bytes", *times):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must not be negative")
        if max(self.element_s, self.send_s) * self.rate_per_s >= 1:
            raise ValueError(f"rate_per_s={self.rate_per_s} is more than a PE can process or send")
        if self.fail is not None and not 0 <= self.fail < len(self.methods) - 1:
            raise ValueError(f"fail={self.fail} must name a subjob that has another one downstream")
        if not 0 <= self.failure_phase < 1:
            raise ValueError(f"failure_phase={self.failure_phase!r} must be at least 0 and less than 1")

    @property
    def batch(self) -> float:
        """Elements in an epoch."""
        return self.rate_per_s * self.batch_s
