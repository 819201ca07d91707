"""What a unit does while all is well, and what things cost: what policies estimate from (``costs.py``)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

ACK_BYTES = 110.0
"""x: an acknowledgement as it is counted, header and all. Level 0 costs none: asking for an epoch says it."""
CHECKPOINT_BYTES = 1500.0
"""A checkpoint in which nothing changed: its manifest, and Spark's logs of one batch."""
ENTRY_BYTES = 200.0
"""A source's entry on its way to the standby: which rows an epoch holds."""
CAPTURE_CPU_S = 0.015
"""To name, hash, pack and send the files of a small checkpoint."""
PACKED_SHARE = 0.5
"""What packing leaves of changed state."""
SNAPSHOT_EPOCHS = 10
"""How often Spark writes what changed once more, as tables in place of logs (``spark.py``: minDeltasForSnapshot)."""
SNAPSHOT_BYTES = 7000.0
"""What RocksDB adds to the tables of a snapshot, packed: its options and its list of files."""
PACKED_BYTES_PER_S = 50e6
"""How fast a checkpoint's bytes are hashed and packed, on one core."""
ACK_CPU_S = 0.001
"""To send one message and handle it at the other end."""
PROMOTE_S = 0.05
"""From the decision until a standby that was held at the door has been let go, or a copy begins to send."""
DELIVER_S = 0.05
"""From an epoch's being there until its consumers have it from another host than before."""
OPEN_BYTES_PER_S = 32e9
"""How fast state is taken over. It is open already, and nothing of it is read, but the more state, the more files are
looked at and linked, and the first batch finds none of it in memory."""
COLD_QUERY_S = 6.0
"""To plan and start a query that was not started ahead of time, on a host whose Spark runs."""
CAPACITY_ROWS_PER_S = 1e6
"""What one stage can take in when it is behind."""
IN_FLIGHT_EPOCHS = 2.0
"""2d: epochs that are under way between a consumer and what its acknowledgement lets go."""


@dataclass(frozen=True)
class Profile:
    """What one unit does while all is well. The defaults are those of a small job on a small machine."""

    epoch_s: float = 0.5
    rows_per_s: float = 1000.0
    """Rows that come in from other units: λ."""
    bytes_per_s: float = 50_000.0
    """Bytes that come in: λc."""
    output_bytes_per_s: float = 50_000.0
    state_bytes: float = 0.0
    delta_bytes: float = 0.0
    """Bytes of state that an epoch changes."""
    batch_s: float = 0.25
    """One epoch, from its being granted to its commit, through all stages of the unit."""
    behind_s: float = 0.0
    """By how much the units that read its output acknowledge it late, at most."""
    heard_every_s: float | None = None
    """How often they do. None: nobody but sinks reads it, and they acknowledge every epoch."""
    detection_s: float = 0.05
    """From a crash to the news of it: a broken connection. A host that hangs is noticed by its heartbeats only."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "heard_every_s" and value is None:
                continue
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ValueError(f"{each.name}={value!r} must be a number, and not negative")
        if self.epoch_s == 0 or self.batch_s == 0:
            raise ValueError("epoch_s and batch_s must be longer than nothing")

    @property
    def step_s(self) -> float:
        """Between epochs as they come: a unit that takes longer than an epoch is given larger ones, not more."""
        return max(self.epoch_s, self.batch_s)


@dataclass(frozen=True)
class Heard:
    """How acknowledgements come: ``behind_s`` late, and one ``every_s``."""

    behind_s: float
    every_s: float


def size(count: float) -> str:
    """Bytes in words, to two digits."""
    for unit, each in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= each:
            return f"{count / each:.2g} {unit}" if count < 100 * each else f"{count / each:.0f} {unit}"
    return f"{count:.0f} B"
