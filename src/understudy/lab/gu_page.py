"""The figures of Gu et al. 2009 drawn again, simulation and measurement side by side, and the page that shows them.

The rows of ``results.jsonl`` are all that is read here, so that a page can be drawn again without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.lab.claims import Means, Row, means
from understudy.lab.gu_claims import HOWS, METHODS
from understudy.lab.pages import INK, MUTED, definitions, document, draw, images, label, misses, panels, place, table

if TYPE_CHECKING:  # matplotlib takes half a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "sweeping": "#0b8577", "individual": "#c86400", "synchronous": "#2f5fd0",
    "NONE": "#667085", "None-AS": "#2f5fd0", "AS-AS": "#7a3fc4", "PS": "#0b8577", "AS": "#2f5fd0",
}  # fmt: skip
_MARKS = {
    "sweeping": "^", "individual": "s", "synchronous": "o", "NONE": "D", "None-AS": "o", "AS-AS": "s", "PS": "^",
    "AS": "o",
}  # fmt: skip
_CONFIGURATIONS = ("NONE", "None-AS", "AS-AS", "PS")
_PARTS = {"detection": "#e08a00", "redeployment": "#8250df", "reprocessing": "#0f9488"}
_SIMULATED, _MEASURED = "simulated, at the paper's parameters", "measured on hosts, scaled"

_CAPTIONS = {
    "figure-2": "Figure 2. Average size of a checkpoint message against the checkpoint interval.",
    "figure-3": "Figure 3. Total size of all checkpoint messages in 100 s against the checkpoint interval.",
    "figure-4": "Figure 4. Time that one checkpoint takes against the data rate.",
    "figure-5": "Figure 5. Bytes that the second subjob sends, by configuration, against the data rate.",
    "figure-6": (
        "Figure 6. Sequence number received downstream of the second subjob, whose machine stops at 0. Under active "
        "standby (AS) the curve runs through the failure; under passive standby (PS) it is flat until the standby has "
        "taken over, and then catches up."
    ),
    "figure-7": "Figure 7. Recovery under passive standby, by what the time goes to, against the heartbeat interval.",
    "figure-8": "Figure 8. Recovery under passive standby, by what the time goes to, against the checkpoint interval.",
}


# -- drawing -------------------------------------------------------------------------------------------------------


def _panels(measured: bool) -> tuple[Figure, list[Axes]]:
    return panels((_SIMULATED, _MEASURED)[: 1 + measured], 10.4 if measured else 6.2)


def _line(axes: Axes, at: Means, figure: str, how: str, series: str, value: str, scale: float = 1.0) -> None:
    found = sorted((k[3], v[value] * scale) for k, v in at.items() if k[:3] == (figure, how, series) and value in v)
    if not found:
        return
    x, y = zip(*found)
    hollow: dict[str, Any] = {"ls": (0, (4, 2)), "mfc": "white"} if how == "paper" else {"ls": "-"}
    axes.plot(x, y, lw=1.5, ms=5.5, color=_COLOURS[series], marker=_MARKS[series], **hollow)


def _legend(figure: Figure, names: Sequence[str], *, protocols: bool = True) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=_COLOURS[n], marker=_MARKS[n], ms=5.5, lw=1.5, label=n) for n in names]
    if protocols:
        dashed: dict[str, Any] = {"ls": (0, (4, 2)), "marker": "o", "mfc": "white", "lw": 1.5, "ms": 5.5}
        handles.append(Line2D([], [], color=MUTED, label="the paper's protocol", **dashed))
        handles.append(Line2D([], [], color=MUTED, marker="o", ms=5.5, lw=1.5, label="Understudy's"))
    place(figure, handles)


def _xlabel(axes: Axes, at: Means, figure: str, how: str, xs: str, unit: str) -> None:
    axes.set_xticks(sorted({k[3] for k in at if k[0] == figure and k[1] == how}))
    axes.set_xlabel(f"{xs} ({unit})", color=INK)


def _lines(
    at: Means, figure: str, value: str, series: Sequence[str], x: tuple[str, str, str], y: tuple[str, str],
    scales: tuple[float, float] = (1.0, 1.0), *, log: bool = False,
) -> Figure:  # fmt: skip
    """``x``: what is on the axis, its unit when simulated and when measured; ``y``: likewise, without the name."""
    drawing, axes = _panels(any(k[0] == figure and k[1] == "measured" for k in at))
    for each, hows, unit, ylabel, scale in zip(axes, (("paper", "understudy"), ("measured",)), x[1:], y, scales):
        for how in hows:
            for name in series:
                _line(each, at, figure, how, name, value, scale)
        _xlabel(each, at, figure, hows[-1], x[0], unit)
        each.set_ylabel(ylabel, color=INK)
        if log:
            each.set_yscale("log")
        else:
            each.set_ylim(0, None)
    _legend(drawing, series)
    return drawing


_BEFORE_S = {"understudy": 0.5, "measured": 10.0}
"""How much of Figure 6 lies before the failure."""


def _figure_6(rows: Sequence[Row]) -> Figure:
    rows = [row for row in rows if row["figure"] == "6"]
    figure, axes = _panels(any(row["how"] == "measured" for row in rows))
    for each, (how, before_s) in zip(axes, _BEFORE_S.items()):
        for row in rows:
            if row["how"] == how:
                seen = [(t, n) for t, n in row["values"]["trace"] if t >= -before_s]
                x, y = zip(*[(t, (n - seen[0][1]) / 1000) for t, n in seen])
                mark: dict[str, Any] = {"marker": ".", "ms": 3} if how == "understudy" else {"marker": "o", "ms": 4}
                each.plot(x, y, ls="-", lw=1.0, color=_COLOURS[row["series"]], **mark)
        each.axvline(0, color=MUTED, lw=1, ls=(0, (4, 2)))
        each.annotate(
            "failure", (0, 1), xycoords=("data", "axes fraction"), xytext=(4, -2), textcoords="offset points",
            color=MUTED, va="top",
        )  # fmt: skip
        label(each, "seconds since the failure", "elements received (thousands)")
    _legend(figure, ("AS", "PS"), protocols=False)
    return figure


def _bars(at: Means, number: str, xs: str, units: tuple[str, str]) -> Figure:
    from matplotlib.patches import Patch

    figure, axes = _panels(any(k[0] == number and k[1] == "measured" for k in at))
    for each, hows, unit in zip(axes, (("paper", "understudy"), ("measured",)), units):
        points = sorted({k[3] for k in at if k[0] == number and k[1] in hows})
        width = 0.38 if len(hows) == 2 else 0.5
        for offset, how in enumerate(hows):
            places = [i + (offset - 0.5) * (width + 0.02) if len(hows) == 2 else i for i in range(len(points))]
            floor = [0.0] * len(points)
            for part, colour in _PARTS.items():
                heights = [at[number, how, "PS", x][f"{part}_s"] for x in points]
                each.bar(places, heights, width, bottom=floor, color=colour, alpha=0.45 if how == "paper" else 1.0)
                floor = [a + b for a, b in zip(floor, heights)]
        each.set_xticks(range(len(points)), [f"{x:g}" for x in points])
        label(each, f"{xs} ({unit})", "seconds")
    handles: list[Any] = [Patch(color=colour, label=part) for part, colour in _PARTS.items()]
    handles.append(Patch(color=MUTED, alpha=0.45, label="pale: the paper's protocol"))
    place(figure, handles)
    return figure


def figures(rows: Sequence[Row]) -> dict[str, Callable[[], Figure]]:
    at = means(rows)
    interval = ("checkpoint interval", "ms", "s")
    rate = ("data rate", "elements/s", "rows/s")
    return {
        "figure-2": lambda: _lines(
            at, "2-3", "mean_size", METHODS, interval, ("elements per checkpoint", "KB per checkpoint"), (1, 1e-3),
            log=True,
        ),
        "figure-3": lambda: _lines(
            at, "2-3", "total_size", METHODS, interval, ("thousand elements", "KB"), (1e-3, 1e-3), log=True
        ),
        "figure-4": lambda: _lines(at, "4", "mean_s", METHODS, rate, ("ms per checkpoint",) * 2, (1e3, 1e3)),
        "figure-5": lambda: _lines(
            at, "5", "bytes_per_s", _CONFIGURATIONS, rate, ("MB/s", "KB/s"), (1e-6, 1e-3)
        ),
        "figure-6": lambda: _figure_6(rows),
        "figure-7": lambda: _bars(at, "7", "heartbeat interval", ("ms", "s")),
        "figure-8": lambda: _bars(at, "8", "checkpoint interval", ("ms", "s")),
    }  # fmt: skip


# -- the page ------------------------------------------------------------------------------------------------------


def write_page(
    out: Path, rows: Sequence[Row], summary: Sequence[Row], choices: Mapping[str, str], scaling: Mapping[str, str]
) -> Path:
    """Figures as PNG and SVG, and ``index.html`` that shows them; returns the page's path."""
    draw(out, figures(rows), "gu")
    page = out / "index.html"
    page.write_text(_page(rows, summary, choices, scaling), encoding="utf-8")
    return page


def _page(rows: Sequence[Row], summary: Sequence[Row], choices: Mapping[str, str], scaling: Mapping[str, str]) -> str:
    counts = []
    for how, text in HOWS.items():
        mine = [row for row in summary if row["how"] == how]
        if mine:
            counts.append(f"{sum(row['within'] for row in mine)} of {len(mine)} {text}")
    measured = [row for row in summary if "agrees" in row]
    agreement = (
        f"In {sum(row['agrees'] for row in measured)} of {len(measured)} the simulation of Understudy's protocol and "
        "the measurement point the same way. "
        if measured
        else "Nothing was measured on hosts in this run. "
    )
    seeds = sum(1 for row in rows if row.get("simulated"))
    body = f"""
<p class="lead">An Empirical Study of High Availability in Stream Processing Systems, Figures 2 to 8: a
chain of eight PEs in four subjobs, simulated with the machines that Understudy runs on ({seeds} runs in virtual time),
and the same chain as a Spark job on hosts of this machine ({len(rows) - seeds} results).</p>
<p>Of the shapes that the paper describes hold: {escape("; ".join(counts))}. {agreement}</p>
<p>Two protocols are simulated. <em>The paper's</em>: a checkpoint is the newest state with the whole output queue.
<em>Understudy's</em>: a sweeping checkpoint is taken at the trim point, where the queue is empty, and the two other
methods send every element once.</p>
<h2>Figures</h2>{images(_CAPTIONS)}
<h2>Paper and ours</h2>{table(summary, HOWS)}
<h2>What does not come out, and why</h2><dl>{misses(summary) or "<dd>Everything does.</dd>"}</dl>
<h2>What the paper leaves open, and what was taken</h2><dl>{definitions(choices)}</dl>
{f"<h2>How the measurement was scaled</h2><dl>{definitions(scaling)}</dl>" if scaling else ""}
"""
    return document("Gu et al. 2009, done again", body)
