"""What Gu et al. 2009 claim, as numbers with the band in which the shape holds, beside what was found.

The paper's figures are drawings; its text prints ratios and directions. Each is one ``Claim``, taken from the rows of
``results.jsonl`` three times: simulated with the paper's protocol, simulated with Understudy's, and measured on hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from understudy.core.policies import passive

Row = dict[str, Any]
"""A line of ``results.jsonl`` or an entry of ``summary.json``."""

METHODS: tuple[passive.Timing, ...] = ("sweeping", "individual", "synchronous")
HOWS = {
    "paper": "simulated, the paper's protocol",
    "understudy": "simulated, Understudy's protocol",
    "measured": "measured on hosts",
}
INFINITE = float("inf")

Means = dict[tuple[str, str, str, float], dict[str, float]]
"""By figure, how, series and x."""


def means(rows: Iterable[Row]) -> Means:
    points: dict[tuple[str, str, str, float], list[dict[str, Any]]] = {}
    for row in rows:
        points.setdefault((row["figure"], row["how"], row["series"], row["x"]), []).append(row["values"])
    found: Means = {}
    for point, runs in points.items():
        names = [n for n, v in runs[0].items() if isinstance(v, (int, float))]
        found[point] = {n: fmean(r[n] for r in runs if r.get(n) is not None) for n in names}
    return found


class View:
    """The results of one way of finding out."""

    def __init__(self, at: Means, how: str) -> None:
        self._at, self.how = at, how

    def line(self, figure: str, series: str, value: str) -> dict[float, float]:
        """x -> value, in order of x. Raises KeyError when there is nothing."""
        found = {
            x: v[value] for (f, h, s, x), v in sorted(self._at.items()) if (f, h, s) == (figure, self.how, series)
        }
        if not found:
            raise KeyError(f"{figure} {series} {value}")
        return found

    def middle(self, figure: str, series: str, value: str) -> float:
        """At the point in the middle of the axis."""
        line = list(self.line(figure, series, value).values())
        return line[len(line) // 2]

    def growth(self, figure: str, series: str, value: str) -> float:
        """From the first point of the axis to the last."""
        line = list(self.line(figure, series, value).values())
        return line[-1] / line[0]

    def ratio(self, figure: str, value: str, over: str, under: str) -> float:
        """Of two series, averaged over the axis."""
        a, b = self.line(figure, over, value), self.line(figure, under, value)
        return fmean(a[x] / b[x] for x in a if x in b)

    def span(self, figure: str, series: str, value: str) -> float:
        """By what the axis grows."""
        xs = list(self.line(figure, series, value))
        return xs[-1] / xs[0]


Value = Callable[[View], float]


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


@dataclass(frozen=True)
class Claim:
    where: str
    what: str
    says: str
    """What the paper says, in short."""
    paper: float
    low: float
    high: float
    """Between these the shape is there."""
    value: Value
    turning: float | None = None
    """Values on either side of it mean opposite things, such as 1 for the ratio of two curves. Simulation and
    measurement agree when they are on the same side; without it, when both are in the band or both are not."""
    why: Mapping[str, str] = field(default_factory=dict)
    """By how it was found: the reason, should the shape not be there."""
    given: bool = False
    """An input of the simulation: there is nothing to compare a measurement with."""


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
    """Every claim as often as there are results for it. Measured ones say whether the simulation agrees."""
    at = means(rows)
    found: list[Row] = []
    for claim in CLAIMS:
        simulated: float | None = None
        for how, text in HOWS.items():
            try:
                ours = claim.value(View(at, how))
            except (KeyError, ZeroDivisionError):
                continue
            within = claim.low <= ours <= claim.high
            high = None if claim.high == INFINITE else claim.high
            entry: Row = {
                "name": f"{claim.where}: {claim.what}", "how": how, "found": text, "says": claim.says,
                "paper": claim.paper, "ours": round(ours, 4), "band": [claim.low, high], "within": within,
            }  # fmt: skip
            if not within:
                entry["why"] = claim.why.get(how, "")
            if how == "understudy":
                simulated = ours
            elif how == "measured" and simulated is not None and not claim.given:
                entry["agrees"] = _agree(claim, simulated, ours)
            found.append(entry)
    return found


def _agree(claim: Claim, simulated: float, measured: float) -> bool:
    if claim.turning is not None:
        return (simulated >= claim.turning) == (measured >= claim.turning)
    return (claim.low <= simulated <= claim.high) == (claim.low <= measured <= claim.high)
