"""The figures of Jacques-Silva et al. 2009, Section 5, drawn again, and the page that shows them.

The rows of ``results.jsonl`` are all that is read here, so that a page can be drawn again without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy.lab import pages
from understudy.lab.claims import Means, Row, View, means
from understudy.lab.pages import MUTED
from understudy.lab.spade_claims import HOWS, rmse
from understudy.lab.spade_join import PER_KEY_IN, PER_KEY_OUT, TABLE_1

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "with": "#0b8577", "without": "#c86400", "512": "#0b8577", "1024": "#2f5fd0", "2048": "#7a3fc4", "4096": "#c86400",
    "1 s": "#0b8577", "10 s": "#2f5fd0",
}  # fmt: skip
_MARKS = {"512": "^", "1024": "o", "2048": "D", "4096": "s", "1 s": "^", "10 s": "o"}
_LEAST = 1e-4
"""Points of error from which on the axis of Figure 7 begins."""
_CAPTIONS = {
    "figure-7": (
        "Figure 7. Prediction errors from the failure on, all runs: which share of outputs is off by at most so much. "
        "Thin lines: the run whose error without checkpoints is in the middle; dotted: the paper's worst errors."
    ),
    "table-1": "Table 1. Rows per second that the join takes in and gives out, by window, without checkpoints.",
    "figure-8": "Figure 8. What a checkpoint every second takes, at the paper's input rates, and what it writes.",
    "figure-9": "Figure 9. The same every 10 seconds.",
    "figure-10": (
        "Figure 10. The join per key, 50 windows of 1,024 rows: what checkpoints take, by rows per group, under "
        "uniform and under Zipf keys. “auto”: of each key as many as suit it. Hollow: the paper at its best (1.37 % of "
        "input)."
    ),
}


# -- drawing -------------------------------------------------------------------------------------------------------


def _figure_7(rows: Sequence[Row]) -> Figure:
    figure, (axes,) = pages.panels(("",), 7.0, 4.4)
    handles = []
    without = sorted((row["values"]["rmse"], row["x"]) for row in rows if row["series"] == "without")
    typical = without[len(without) // 2][1] if without else None
    for series, worst in (("with", 6), ("without", 52)):
        mine = [row for row in rows if row["series"] == series]
        found = [each for row in mine for each in row["values"]["errors"]]
        one = [each for row in mine if row["x"] == typical for each in row["values"]["errors"]]
        (line,) = _shares(axes, found, lw=2, color=_COLOURS[series], label=f"{series} checkpoints")
        _shares(axes, one, lw=0.8, color=_COLOURS[series])
        axes.axvline(worst, color=_COLOURS[series], lw=1, ls=(0, (1, 2)))
        handles.append(line)
    axes.set_xscale("log")
    axes.set_xlim(_LEAST, 110)
    axes.set_ylim(0, 1.02)
    pages.label(axes, "prediction error (points)", "share of outputs")
    pages.place(figure, handles, 2)
    return figure


def _shares(axes: Axes, errors: Sequence[float], **style: Any) -> Any:
    ordered = np.maximum(np.sort(np.abs(errors)), _LEAST)
    return axes.step(ordered, np.arange(1, len(ordered) + 1) / max(1, len(ordered)), where="post", **style)


def _table_1(at: Means) -> Figure:
    figure, panels = pages.panels(("in", "out"), 9.6)
    handles: list[Any] = []
    for number, (axes, value) in enumerate(zip(panels, ("rows_per_s", "out_rows_per_s"))):
        ours = View(at, "measured").line("table-1", "join", value)
        (mine,) = axes.plot(*zip(*ours.items()), color="#0b8577", marker="^", lw=1.5, label="ours, one core")
        paper = {window: TABLE_1[window][number] for window in TABLE_1}
        (theirs,) = axes.plot(
            *zip(*paper.items()), color=MUTED, marker="o", mfc="white", lw=1.5, ls=(0, (4, 2)), label="the paper's"
        )
        _windows(axes, list(TABLE_1))
        axes.set_yscale("log")
        pages.label(axes, "rows in the window", "rows per second")
        handles = [mine, theirs]
    pages.place(figure, handles)
    return figure


def _windows(axes: Axes, windows: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(windows, [f"{window:g}" for window in windows])
    axes.minorticks_off()


def _single(at: Means, number: str) -> Figure:
    figure, panels = pages.panels(("overhead", "written by a checkpoint"), 9.6)
    handles: list[Any] = []
    for axes, value, scale, text in zip(panels, ("overhead", "bytes"), (100, 1e-3), ("% of the time", "KB")):
        handles = []
        for series in sorted({s for f, h, s, _ in at if (f, h) == (number, "measured")}, key=int):
            line = View(at, "measured").line(number, series, value)
            y = [each * scale for each in line.values()]
            style: dict[str, Any] = {"color": _COLOURS[series], "marker": _MARKS[series]}
            (drawn,) = axes.plot(list(line), y, lw=1.5, ms=5.5, label=f"{series} rows per group", **style)
            handles.append(drawn)
        _windows(axes, sorted({x for f, _, _, x in at if f == number}))
        axes.set_ylim(0, None)
        pages.label(axes, "rows in the window", text)
    pages.place(figure, handles)
    return figure


def _figure_10(at: Means) -> Figure:
    figure, panels = pages.panels(("uniform keys", "Zipf keys"), 9.6)
    groups = sorted({x for f, h, _, x in at if (f, h) == ("10", "measured") and x}) + [0.0]
    handles: list[Any] = []
    top = max(v["overhead"] for k, v in at.items() if k[:2] == ("10", "measured")) * 100
    for axes, kind in zip(panels, ("uniform", "Zipf")):
        handles = []
        for every in ("1 s", "10 s"):
            line = View(at, "measured").line("10", f"{kind}, {every}", "overhead")
            y = [100 * line[group] if group in line else np.nan for group in groups]
            style: dict[str, Any] = {"color": _COLOURS[every], "marker": _MARKS[every]}
            (drawn,) = axes.plot(range(len(groups) - 1), y[:-1], lw=1.5, ms=5.5, label=f"every {every}", **style)
            axes.plot([len(groups) - 1], y[-1:], ls="none", ms=7, **style)
            handles.append(drawn)
        if kind == "uniform" and 64.0 in groups:
            axes.plot([groups.index(64.0)], [1.37], ls="none", marker="^", ms=9, mfc="white", mec=MUTED, zorder=4)
            top = max(top, 1.37)
        axes.set_xticks(range(len(groups)), [f"{group:g}" if group else "auto" for group in groups])
        pages.label(axes, "rows per group", "overhead (% of the time)")
    for axes in panels:
        axes.set_ylim(0, 1.1 * top)
    pages.place(figure, handles)
    return figure


def figures(rows: Sequence[Row]) -> dict[str, Callable[[], Figure]]:
    at = means(rows)
    return {
        "figure-7": lambda: _figure_7([row for row in rows if row["figure"] == "7"]),
        "table-1": lambda: _table_1(at),
        "figure-8": lambda: _single(at, "8"),
        "figure-9": lambda: _single(at, "9"),
        "figure-10": lambda: _figure_10(at),
    }


# -- the page ------------------------------------------------------------------------------------------------------


def write_page(
    out: Path, rows: Sequence[Row], summary: Sequence[Row], choices: Mapping[str, str], scaling: Mapping[str, str]
) -> Path:
    """Figures as PNG and SVG, and ``index.html`` that shows them; returns the page's path."""
    pages.draw(out, figures(rows), "spade")
    page = out / "index.html"
    page.write_text(_page(rows, summary, choices, scaling), encoding="utf-8")
    return page


def _page(rows: Sequence[Row], summary: Sequence[Row], choices: Mapping[str, str], scaling: Mapping[str, str]) -> str:
    view = View(means(rows), "measured")
    crashes = len(view.line("7", "with", "squares"))
    within = sum(row["within"] for row in summary)
    missing = sum(row["values"].get("missing", 0) for row in rows if row["series"] == "without")
    body = f"""
<p class="lead">Language-Level Checkpointing Support for Stream Processing Applications, Section 5: what a crash does to
results with and without checkpoints, and what checkpoints of a join cost. Operators are in processes of their own and
saved by the code that jobs run on; no Spark, no network.</p>
<p>{within} of {len(summary)} numbers and shapes hold. {crashes} crashes: RMSE {rmse(view, "with"):.3g} points with
checkpoints and {rmse(view, "without"):.3g} without (the paper's: 4.80 and 7.79); {missing:g} outputs never came of
those that began anew.</p>
<h2>Figures</h2>{pages.images(_CAPTIONS)}
<h2>Rates without checkpoints</h2>{_rates(view)}
<h2>Checkpoints of the join per key</h2>{_per_key(rows)}
{_on_spark(rows)}
<h2>Paper and ours</h2>{pages.table(summary, HOWS)}
<h2>What does not come out, and why</h2><dl>{pages.misses(summary) or "<dd>Everything does.</dd>"}</dl>
<h2>What the paper leaves open, and what was taken</h2><dl>{pages.definitions(choices)}</dl>
<h2>How the measurement was scaled</h2><dl>{pages.definitions(scaling)}</dl>
"""
    return pages.document("Jacques-Silva et al. 2009, done again", body)


def _lines(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text."""
    kinds = ["", *[' class="number"'] * (len(heads) - 1)]
    head = "".join(f"<th{kind}>{escape(text)}</th>" for kind, text in zip(kinds, heads))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{escape(text)}</td>' for kind, text in zip(kinds, line))}</tr>" for line in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _rates(view: View) -> str:
    taken, given, wall = (
        view.line("table-1", "join", name) for name in ("rows_per_s", "out_rows_per_s", "rows_per_s_wall")
    )
    heads = ("window", "in, paper", "in, ours", "times", "in, by the wall clock", "out, paper", "out, ours", "times")
    lines = []
    for window, rate in taken.items():
        paper_in, paper_out = TABLE_1[int(window)]
        cells = (paper_in, rate, rate / paper_in, wall[window], paper_out, given[window], given[window] / paper_out)
        lines.append([f"{window:,.0f}", *(f"{cell:,.0f}" for cell in cells)])
    return _lines(heads, lines)


def _per_key(rows: Sequence[Row]) -> str:
    heads = (
        "keys, period", "rows per group", "overhead", "by the wall clock", "KB per checkpoint", "a checkpoint takes",
        "one every", "late",
    )  # fmt: skip
    lines = []
    for row in rows:
        if row["figure"] == "10" and row["how"] == "measured":
            found = row["values"]
            group = f"{row['x']:g}" if row["x"] else "auto"
            lines.append([
                row["series"], group, f"{100 * found['overhead']:.2f} %", f"{100 * found['overhead_wall']:.2f} %",
                f"{found['bytes'] / 1000:,.0f}", f"{found['capture_ms']:.1f} ms", f"{found['interval_s']:.2f} s",
                f"{found['late']} of {found['captures']}",
            ])  # fmt: skip
    return _lines(heads, lines)


def _on_spark(rows: Sequence[Row]) -> str:
    """Nothing, unless somebody has measured it."""
    measured = [row for row in rows if row["how"] == "spark"]
    if not measured:
        return ""
    lines = [
        [row["series"], f"{row['x']:g} s", f"{row['values']['rows_per_s']:,.0f}",
         f"{row['values']['out_rows_per_s']:,.0f}"] for row in measured
    ]  # fmt: skip
    lines.append(["the paper's, without checkpoints", "", f"{PER_KEY_IN:,.0f}", f"{PER_KEY_OUT:,.0f}"])
    heads = ("policy", "period", "rows in per second", "rows out per second")
    return f"<h2>The join per key on Spark</h2>{_lines(heads, lines)}"
