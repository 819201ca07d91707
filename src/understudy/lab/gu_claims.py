"""What Gu et al. 2009 claim, taken three times from the rows of ``results.jsonl``: simulated with the paper's protocol,
simulated with Understudy's, and measured on hosts."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from understudy.core.policies import passive
from understudy.lab import claims
from understudy.lab.claims import INFINITE, Claim, Row, Value, View

METHODS: tuple[passive.Timing, ...] = ("sweeping", "individual", "synchronous")
HOWS = {
    "paper": "simulated, the paper's protocol",
    "understudy": "simulated, Understudy's protocol",
    "measured": "measured on hosts",
}


def _times_sweeping(value: str, other: str) -> Value:
    return lambda v: v.middle("2-3", other, value) / v.middle("2-3", "sweeping", value)


def _growth(figure: str, series: str, value: str) -> Value:
    return lambda v: v.growth(figure, series, value)


def _slope(figure: str, series: str, value: str) -> Value:
    """Growth over growth of the axis: 1 when proportional."""
    return lambda v: v.growth(figure, series, value) / v.span(figure, series, value)


def _ratio(figure: str, value: str, over: str, under: str) -> Value:
    return lambda v: v.ratio(figure, value, over, under)


def _pause(series: str) -> Value:
    """The longest pause of Figure 6 in usual ones."""
    return lambda v: v.middle("6", series, "longest_pause_s") / v.middle("6", series, "usual_pause_s")


def _detection(v: View) -> list[float]:
    """The share of detection in recovery, by heartbeat interval."""
    detection, total = v.line("7", "PS", "detection_s"), v.line("7", "PS", "total_s")
    return [detection[x] / total[x] for x in detection]


_TRIM_POINT = (
    "Understudy takes a sweeping checkpoint at the trim point, where the output queue is empty: it is the state alone, "
    "smaller than the paper's. The two others ship every element once."
)
_CHANGES = (
    "What is sent is what every epoch changed, here all 20 rows, and with every tenth epoch RocksDB's whole table; the "
    "paper's state is sent once per checkpoint, however many elements changed it."
)
_BATCH = (
    "A stage pauses between micro-batches: a checkpoint waits for the one under way to end, which takes tenths of a "
    "second. The paper's PEs end one element."
)
_CALLS = (
    "Whatever its size, a checkpoint takes one call here and five in the paper (Section 4.1), so that its size counts "
    "for more. "
)
_ARMED = "Nothing is deployed after a failure: the standby's query was started before, and is let go."

_BIG = METHODS[1:]

CLAIMS: tuple[Claim, ...] = (
    *(
        Claim(
            "Fig 2", f"average checkpoint size, {other} / sweeping, middle of the axis", "roughly 30", 30, 15, 60,
            _times_sweeping("mean_size", other), 1, {"understudy": _TRIM_POINT, "measured": _TRIM_POINT},
        )
        for other in _BIG
    ),
    *(
        Claim(
            "Fig 2", f"average checkpoint size, {other}: growth over growth of the interval", "proportional", 1, 0.6,
            1.2, _slope("2-3", other, "mean_size"),
        )
        for other in _BIG
    ),
    Claim(
        "Fig 2", "average checkpoint size: growth with the interval, sweeping / individual", "grows more slowly", 0.5,
        0.0, 0.8, lambda v: v.growth("2-3", "sweeping", "mean_size") / v.growth("2-3", "individual", "mean_size"), 1,
        {"measured": _CHANGES},
    ),
    *(
        Claim(
            "Fig 3", f"total checkpoint size, {other} / sweeping, middle of the axis", "13 to 30", 20, 10, 40,
            _times_sweeping("total_size", other), 1, {"understudy": _TRIM_POINT, "measured": _TRIM_POINT},
        )
        for other in _BIG
    ),
    *(
        Claim(
            "Fig 3", f"total checkpoint size, {other}: last / first interval", "relatively constant", 1, 0.6, 1.4,
            _growth("2-3", other, "total_size"),
        )
        for other in _BIG
    ),
    Claim(
        "Fig 3", "total checkpoint size, sweeping: last / first interval", "drops", 0.2, 0.0, 0.8,
        _growth("2-3", "sweeping", "total_size"), 1, {"measured": _CHANGES},
    ),
    *(
        Claim(
            "Fig 4", f"checkpoint time, {other} / sweeping, mean of all rates", "about 4", 4, 2, 8,
            _ratio("4", "mean_s", other, "sweeping"), 1, {"measured": _CALLS + _BATCH},
        )
        for other in _BIG
    ),
    Claim(
        "Fig 4", "checkpoint time, synchronous / individual", "synchronous has the longest time", 1.5, 1.0, INFINITE,
        _ratio("4", "mean_s", "synchronous", "individual"), 1,
    ),
    *(
        Claim("Fig 5", f"bytes, {name} / NONE", says, paper, low, high, _ratio("5", "bytes_per_s", name, "NONE"), 1)
        for name, says, paper, low, high in (
            ("None-AS", "around twice", 2, 1.8, 2.2),
            ("AS-AS", "about four times", 4, 3.6, 4.4),
            ("PS", "about 10 % more", 1.1, 1.0, 1.15),
        )
    ),
    Claim("Fig 6", "AS: longest pause / usual pause downstream", "almost transparent", 1, 0, 2.5, _pause("AS")),
    Claim("Fig 6", "PS: longest pause / usual pause downstream", "a silent period", 10, 2.5, INFINITE, _pause("PS")),
    Claim(
        "Fig 7", "detection: growth over growth of the heartbeat interval", "about linearly", 1, 0.8, 1.2,
        _slope("7", "PS", "detection_s"),
    ),
    Claim(
        "Fig 7", "share of detection in recovery, longest heartbeat interval", "becomes dominant", 0.7, 0.5, 1,
        lambda v: _detection(v)[-1], 0.5,
    ),
    Claim(
        "Fig 7", "share of detection in recovery, longest / shortest heartbeat interval", "becomes dominant", 2, 1.2,
        INFINITE, lambda v: _detection(v)[-1] / _detection(v)[0], 1,
    ),
    Claim(
        "Fig 8", "retransmission and reprocessing, longest / shortest checkpoint interval", "tends to increase", 2, 1.2,
        INFINITE, _growth("8", "PS", "reprocessing_s"), 1,
    ),
    Claim(
        "Fig 8", "whole recovery, longest / shortest checkpoint interval", "does not change much", 1, 0.75, 1.25,
        _growth("8", "PS", "total_s"),
    ),
    Claim(
        "Fig 8", "redeployment (s)", "about 500 ms", 0.5, 0.4, 0.6,
        lambda v: fmean(v.line("8", "PS", "redeployment_s").values()), None, {"measured": _ARMED}, given=True,
    ),
)  # fmt: skip


def summarise(rows: Iterable[Row]) -> list[Row]:
    return claims.summarise(rows, CLAIMS, HOWS, compared=("understudy", "measured"))
