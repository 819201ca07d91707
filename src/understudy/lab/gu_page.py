"""The figures of Gu et al. 2009 drawn again, simulation and measurement side by side, and the page that shows them.

The rows of ``results.jsonl`` are all that is read here, so that a page can be drawn again without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.lab.gu_claims import HOWS, METHODS, Means, Row, means

if TYPE_CHECKING:  # matplotlib takes half a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _MUTED, _RULE = "#1c2330", "#667085", "#dfe3ea"
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


def _panels(measured: bool, height_in: float = 4.0) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure  # not pyplot, which keeps every figure and looks for a screen

    figure = Figure(figsize=(10.4 if measured else 6.2, height_in), layout="constrained")
    axes = [figure.add_subplot(1, 2 if measured else 1, i + 1) for i in range(2 if measured else 1)]
    for each, title in zip(axes, (_SIMULATED, _MEASURED)):
        each.set_title(title, fontsize=10, color=_INK, loc="left")
        each.grid(axis="y", color=_RULE, lw=0.8)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(_MUTED)
        each.tick_params(colors=_MUTED, labelcolor=_INK)
    return figure, axes


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=_INK)
    axes.set_ylabel(y, color=_INK)


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
        handles.append(Line2D([], [], color=_MUTED, label="the paper's protocol", **dashed))
        handles.append(Line2D([], [], color=_MUTED, marker="o", ms=5.5, lw=1.5, label="Understudy's"))
    _place(figure, handles)


def _place(figure: Figure, handles: list[Any]) -> None:
    columns = len(handles) if figure.get_figwidth() > 8 else 3
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, labelcolor=_INK)


def _xlabel(axes: Axes, at: Means, figure: str, how: str, xs: str, unit: str) -> None:
    axes.set_xticks(sorted({k[3] for k in at if k[0] == figure and k[1] == how}))
    axes.set_xlabel(f"{xs} ({unit})", color=_INK)


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
        each.set_ylabel(ylabel, color=_INK)
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
        each.axvline(0, color=_MUTED, lw=1, ls=(0, (4, 2)))
        each.annotate(
            "failure", (0, 1), xycoords=("data", "axes fraction"), xytext=(4, -2), textcoords="offset points",
            color=_MUTED, va="top",
        )  # fmt: skip
        _label(each, "seconds since the failure", "elements received (thousands)")
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
        _label(each, f"{xs} ({unit})", "seconds")
    handles: list[Any] = [Patch(color=colour, label=part) for part, colour in _PARTS.items()]
    handles.append(Patch(color=_MUTED, alpha=0.45, label="pale: the paper's protocol"))
    _place(figure, handles)
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

_STYLE = """
:root { color-scheme: light; --ink: #1c2330; --muted: #667085; --rule: #dfe3ea; --miss: #b42318; --good: #0b8577 }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: #fff; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: .3rem } h2 { font-size: 1.2rem; margin-top: 2.5rem }
p.lead, figcaption { color: var(--muted) }
figure { margin: 1.5rem 0 } figure img { max-width: 100%; height: auto } figcaption { font-size: .9rem }
table { border-collapse: collapse; width: 100%; font-size: .9rem }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--rule); vertical-align: top }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td.good { color: var(--good) } td.miss { color: var(--miss); font-weight: 600 }
dt { font-weight: 600; margin-top: .8rem } dd { margin: 0 }
"""


def write_page(
    out: Path, rows: Sequence[Row], summary: Sequence[Row], choices: Mapping[str, str], scaling: Mapping[str, str]
) -> Path:
    """Figures as PNG and SVG, and ``index.html`` that shows them; returns the page's path."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "gu"}):  # the same drawing is the same file
        for name, draw in figures(rows).items():
            figure = draw()
            figure.savefig(out / f"{name}.png", dpi=150, facecolor="white", metadata={"Software": None})
            figure.savefig(out / f"{name}.svg", facecolor="white", metadata={"Date": None})
    page = out / "index.html"
    page.write_text(_page(rows, summary, choices, scaling), encoding="utf-8")
    return page


def _page(
    rows: Sequence[Row], summary: Sequence[Row], choices: Mapping[str, str], scaling: Mapping[str, str]
) -> str:
    images = "".join(
        f'<figure><a href="{name}.png"><img src="{name}.svg" alt="{escape(caption)}"></a>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for name, caption in _CAPTIONS.items()
    )
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
    misses = "".join(
        f"<dt>{escape(row['name'])}, {escape(row['found'])}: paper {row['paper']:g} ({escape(row['says'])}), ours "
        f"{row['ours']:.3g}</dt><dd>{escape(row['why'] or 'Not explained.')}</dd>"
        for row in summary
        if not row["within"]
    )
    seeds = sum(1 for row in rows if row.get("simulated"))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Gu et al. 2009, done again</title><style>{_STYLE}</style></head><body>
<h1>Gu et al. 2009, done again</h1>
<p class="lead">An Empirical Study of High Availability in Stream Processing Systems, Figures 2 to 8: a chain of eight
PEs in four subjobs, simulated with the machines that Understudy runs on ({seeds} runs in virtual time), and the same
chain as a Spark job on hosts of this machine ({len(rows) - seeds} results).</p>
<p>Of the shapes that the paper describes hold: {escape("; ".join(counts))}. {agreement}</p>
<p>Two protocols are simulated. <em>The paper's</em>: a checkpoint is the newest state with the whole output queue.
<em>Understudy's</em>: a sweeping checkpoint is taken at the trim point, where the queue is empty, and the two other
methods send every element once.</p>
<h2>Figures</h2>{images}
<h2>Paper and ours</h2>{_table(summary)}
<h2>What does not come out, and why</h2><dl>{misses or "<dd>Everything does.</dd>"}</dl>
<h2>What the paper leaves open, and what was taken</h2><dl>{_definitions(choices)}</dl>
{f"<h2>How the measurement was scaled</h2><dl>{_definitions(scaling)}</dl>" if scaling else ""}
</body></html>
"""


def _definitions(texts: Mapping[str, str]) -> str:
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in texts.items())


def _table(summary: Sequence[Row]) -> str:
    """A line per claim, a column per way of finding out."""
    claims: dict[str, dict[str, Row]] = {}
    for row in summary:
        claims.setdefault(row["name"], {})[row["how"]] = row
    hows = [how for how in HOWS if any(how in found for found in claims.values())]
    heads = "".join(f'<th class="number">{escape(HOWS[how])}</th>' for how in hows)
    agree = "<th>same direction</th>" if "measured" in hows else ""
    lines = []
    for name, found in claims.items():
        one = next(iter(found.values()))
        low, high = one["band"]
        band = f"{low:g} to {high:g}" if high is not None else f"{low:g} or more"
        cells = "".join(_number(found.get(how)) for how in hows)
        if agree:
            agrees = found.get("measured", {}).get("agrees")
            said = "" if agrees is None else "yes" if agrees else "no"
            cells += f'<td class="{"miss" if said == "no" else "good"}">{said}</td>'
        what = f"<td>{escape(name)}</td><td>{escape(one['says'])}</td>"
        lines.append(f'<tr>{what}<td class="number">{band}</td>{cells}</tr>')
    head = f'<th>what</th><th>the paper says</th><th class="number">shape holds from … to</th>{heads}{agree}'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _number(row: Row | None) -> str:
    if row is None:
        return "<td></td>"
    return f'<td class="number {"good" if row["within"] else "miss"}">{row["ours"]:.3g}</td>'
