"""When output arrived at a sink, and for how long a failure kept the sink silent."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from understudy.core.numbers import NO_EPOCH, Epoch
from understudy.verify.sink_folders import count_rows, epoch_files

Arrival = tuple[float, Epoch, int]
"""(epoch seconds, epoch number, rows)"""

# How much longer than usual a pause may be and still pass for jitter. Below 2, one late micro-batch counts as
# an outage; far above, an outage of a few epochs would be called normal.
_ABNORMAL_PAUSE = 2.0


def arrivals(sink: Path) -> list[Arrival]:
    """When each epoch was complete in ``sink``, as (time, epoch, rows), sorted by epoch.

    The time is the newest modification time among the epoch's part files. An epoch that was written twice
    shows only its second time, and one without any part file, which may still be in the making, is left out.
    """
    result = []
    for epoch, files in sorted(epoch_files(sink).items()):
        if files:
            newest_ns = max(file.stat().st_mtime_ns for file in files)
            result.append((newest_ns / 1e9, epoch, sum(count_rows(file) for file in files)))
    return result


@dataclass(frozen=True)
class Recovery:
    """How long a failure interrupted the output, and where the time went. A part that cannot be told is None.

    ``detection_s + redeployment_s + reprocessing_s == silence_s`` when all four are known and the output
    stopped.
    """

    silence_s: float | None = None
    """From the kill to the first output that the failure did not let through: an epoch never seen before."""
    detection_s: float | None = None
    promotion_s: float | None = None
    """The share of `redeployment_s` until the standby was told to take over."""
    redeployment_s: float | None = None
    reprocessing_s: float | None = None
    """From the unit's return to its first new output at the sink: retransmission and reprocessing. 0 where
    the output never stopped, as under active standby."""
    longest_silence_s: float | None = None
    """The longest pause between two arrivals from the kill to full recovery. What a reader of the sink felt:
    it also counts the usual pause before the kill, and outputs that were still on their way hide nothing of
    it."""
    full_recovery_s: float | None = None
    """From the kill until the output came at its usual pace and kept it; 0 if it never left it."""
    first_output_at: float | None = None
    """The end of `silence_s`, in epoch seconds."""
    usual_gap_s: float | None = None
    """The median pause between arrivals before the kill; more than twice that counts as an interruption."""

    def to_dict(self) -> dict[str, float | None]:
        return asdict(self)


def recovery(
    arrivals: Sequence[Arrival],
    *,
    killed_at: float,
    detected_at: float | None = None,
    promoted_at: float | None = None,
    resumed_at: float | None = None,
    epoch_s: float,
) -> Recovery:
    """Split the interruption that a kill caused, judging by what arrived at the sink and when (paper A, Fig
    6-8).

    All times are in epoch seconds of one clock. ``epoch_s``, the job's epoch interval, stands in for the
    usual pause when fewer than two epochs had arrived before the kill.

    Epochs that a killed unit had already passed on still reach the sink after the kill. Taking one of them
    for recovered output would make the silence look like milliseconds, so when ``resumed_at`` is known and
    the output paused until then, arrivals before it do not end the silence.
    """
    if epoch_s <= 0:
        raise ValueError(f"epoch_s={epoch_s} must be positive: the job's epoch interval in seconds")
    in_time = sorted(arrivals)
    times = [time for time, _, _ in in_time]
    before = [time for time in times if time <= killed_at]
    pauses_before = [later - earlier for earlier, later in pairwise(before)]
    usual_gap_s = statistics.median(pauses_before) if pauses_before else epoch_s
    limit_s = _ABNORMAL_PAUSE * usual_gap_s

    pauses = [(earlier, later) for earlier, later in pairwise(times) if later > killed_at]
    if not before:  # nothing to measure the first pause from but the kill itself
        pauses = [(killed_at, time) for time in times[:1]] + pauses
    full_recovery_s = _settled_s(pauses, killed_at=killed_at, limit_s=limit_s)
    settled_at = float("inf") if full_recovery_s is None else killed_at + full_recovery_s
    around = [later - earlier for earlier, later in pauses if earlier <= killed_at or earlier < settled_at]

    first_output_at = _first_output_at(in_time, killed_at=killed_at, resumed_at=resumed_at, limit_s=limit_s)
    reprocessing_s = _difference(first_output_at, resumed_at)
    return Recovery(
        silence_s=_difference(first_output_at, killed_at),
        detection_s=_difference(detected_at, killed_at),
        promotion_s=_difference(promoted_at, detected_at),
        redeployment_s=_difference(resumed_at, detected_at),
        reprocessing_s=None if reprocessing_s is None else max(0.0, reprocessing_s),
        longest_silence_s=max(around, default=None),
        full_recovery_s=full_recovery_s,
        first_output_at=first_output_at,
        usual_gap_s=usual_gap_s,
    )


def _first_output_at(
    in_time: list[Arrival], *, killed_at: float, resumed_at: float | None, limit_s: float
) -> float | None:
    seen = max((epoch for time, epoch, _ in in_time if time <= killed_at), default=NO_EPOCH)
    new = [time for time, epoch, _ in in_time if time > killed_at and epoch > seen]
    if not new or resumed_at is None or new[0] >= resumed_at:
        return new[0] if new else None
    # Something new came before the unit was back: either the output never stopped, or that was still on its
    # way.
    returned = [time for time in new if time >= resumed_at]
    if not returned:
        return None
    last_before = max(time for time in new if time < resumed_at)
    return returned[0] if returned[0] - last_before > limit_s else new[0]


def _settled_s(pauses: list[tuple[float, float]], *, killed_at: float, limit_s: float) -> float | None:
    """The end of the last pause over ``limit_s``, provided something arrived after it to show that it was the
    last."""
    if not pauses:
        return None
    abnormal = [later for earlier, later in pauses if later - earlier > limit_s]
    if not abnormal:
        return 0.0
    return None if abnormal[-1] == pauses[-1][1] else abnormal[-1] - killed_at


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier
