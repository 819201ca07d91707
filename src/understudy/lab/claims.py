"""What a paper claims, as numbers with the band in which its shape holds, beside what a laboratory has found.

A paper's figures are drawings; its text prints ratios and directions. Each is one ``Claim``, taken from the rows of
``results.jsonl`` as often as there are ways in which the laboratory finds out, such as simulating and measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

Row = dict[str, Any]
"""A line of ``results.jsonl`` or an entry of ``summary.json``."""

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
        found = {x: v[value] for (f, h, s, x), v in sorted(self._at.items()) if (f, h, s) == (figure, self.how, series)}
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


def summarise(
    rows: Iterable[Row], claims: Iterable[Claim], hows: Mapping[str, str], compared: tuple[str, str] | None = None
) -> list[Row]:
    """Every claim as often as there are results for it. ``hows``: the ways of finding out, and how they are told.
    ``compared``: of these two, what was found in the second way says whether it agrees with the first."""
    at = means(rows)
    found: list[Row] = []
    for claim in claims:
        first: float | None = None
        for how, text in hows.items():
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
            if compared is not None and how == compared[0]:
                first = ours
            elif compared is not None and how == compared[1] and first is not None and not claim.given:
                entry["agrees"] = _agree(claim, first, ours)
            found.append(entry)
    return found


def _agree(claim: Claim, simulated: float, measured: float) -> bool:
    if claim.turning is not None:
        return (simulated >= claim.turning) == (measured >= claim.turning)
    return (claim.low <= simulated <= claim.high) == (claim.low <= measured <= claim.high)
