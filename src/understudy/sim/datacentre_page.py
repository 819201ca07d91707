"""What a simulated life in a data centre is reported as: results, a table, one figure and a small page.

The figure shows what a user has to weigh: how fast units ran again (the whole distribution, as means hide the hours
spent waiting for a rack), how much silence is left in a year, what was lost (without it, no protection would look
best: it can start anew anywhere), and what the protection costs in bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # matplotlib takes half a second to import; only drawing should pay for it
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Result:
    """What one policy made of the story."""

    policy: str
    availability: float
    """Share of the time in which every unit ran."""
    worst_unit_availability: float
    silence_min_per_year: float
    outages: int
    """Times in which some unit did not run."""
    longest_outage_s: float
    rows_lost: int
    """Rows that passed a unit by, and rows that lost states stood for."""
    rows_passed_by: int
    states_lost: int
    rows_repeated: int
    """Rows that a unit had to take in once more."""
    recoveries: int
    """Times that a unit ran again; of these the next four."""
    recovery_median_s: float
    recovery_p95_s: float
    recovery_p99_s: float
    recovery_max_s: float
    ha_share: float
    """Bytes for high availability per byte of data."""
    failures: int
    failures_hit: int
    """Failures that took a primary or a standby of the job."""
    node_failures_by_cause: dict[str, int]
    hits_by_cause: dict[str, int]
    silence_min_by_cause: dict[str, float]
    """Silence by the cause that began it, over the whole time."""
    says: dict[str, int]
    """What the placement machine told the user, counted by kind: ``promoted``, ``waiting``, ..."""
    recovery_s: tuple[float, ...] = field(repr=False, default=())
    """All recoveries, sorted."""

    @property
    def nines(self) -> float:
        return math.inf if self.availability >= 1 else -math.log10(1 - self.availability)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; ``nines`` is None where nothing was ever silent."""
        nines = self.nines
        return {**asdict(self), "nines": None if nines == math.inf else nines, "recovery_s": list(self.recovery_s)}


def describe(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Rows of a table, the heads first: one policy a row."""
    heads = ("policy", "availability", "nines", "silence min/year", "outages", "recovery median", "p95", "p99", "max")
    rows: list[tuple[str, ...]] = [(*heads, "rows lost", "states lost", "rows repeated", "HA bytes", "failures hit")]
    for r in results:
        times = (r.recovery_median_s, r.recovery_p95_s, r.recovery_p99_s, r.recovery_max_s)
        rows.append(
            (
                r.policy,
                f"{r.availability:.5%}",
                "all" if r.nines == math.inf else f"{r.nines:.1f}",
                f"{r.silence_min_per_year:,.1f}",
                f"{r.outages:,}",
                *(_span(s) if r.recoveries else "-" for s in times),
                f"{r.rows_lost:,}",
                f"{r.states_lost:,}",
                f"{r.rows_repeated:,}",
                f"{r.ha_share:.1%}",
                f"{r.failures_hit:,} of {r.failures:,}",
            )
        )
    return rows


def write_page(out: Path, results: Sequence[Result], setting: Mapping[str, Any], *, title: str = "") -> list[Path]:
    """Write ``datacentre.png``, ``datacentre.svg``, ``summary.json`` and ``index.html`` into the folder ``out``.

    ``setting`` is what was simulated, as plain data (see ``Setting.to_dict``); it is shown and stored as given.
    """
    out.mkdir(parents=True, exist_ok=True)
    summary, page = out / "summary.json", out / "index.html"
    content = {"simulated": True, "setting": dict(setting), "results": [r.to_dict() for r in results]}
    summary.write_text(json.dumps(content, indent=1) + "\n")
    pictures = _draw(out, results)
    page.write_text(_html(title or "A year in the data centre", results, setting), encoding="utf-8")
    return [*pictures, summary, page]


_INK, _MUTED, _RULE = "#1c2330", "#667085", "#dfe3ea"
_COLOURS = ("#d02f4b", "#2f5fd0", "#0f9488", "#8250df", "#e08a00", "#667085", "#1c2330")


def _draw(out: Path, results: Sequence[Result]) -> list[Path]:
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot, which keeps figures and looks for a screen

    colours = [_COLOURS[i % len(_COLOURS)] for i in range(len(results))]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "datacentre", "font.size": 10}):
        figure = Figure(figsize=(14.5, 1.9 + 0.32 * max(8, len(results))), layout="constrained")
        curves, silence, lost, cost = figure.subplots(1, 4, width_ratios=[2.0, 1.0, 1.0, 1.0])
        _curves(curves, results, colours)
        names = [_short(r.policy) for r in results]
        minutes, percents = [r.silence_min_per_year for r in results], [100 * r.ha_share for r in results]
        _bars(silence, names, minutes, colours, "minutes of silence a year", "{:,.1f}")
        _bars(lost, names, [r.rows_lost / 1e6 for r in results], colours, "million rows lost", "{:,.3g}")
        _bars(cost, names, percents, colours, "bytes for HA, % of data", "{:,.1f} %")
        lost.set_yticklabels([])
        cost.set_yticklabels([])
        for axes in (curves, silence, lost, cost):
            axes.spines[["top", "right"]].set_visible(False)
            axes.spines[["left", "bottom"]].set_color(_MUTED)
            axes.tick_params(colors=_MUTED, labelcolor=_INK)
            axes.set_axisbelow(True)
        paths = [out / "datacentre.png", out / "datacentre.svg"]
        figure.savefig(paths[0], dpi=150, facecolor="white", metadata={"Software": None})
        figure.savefig(paths[1], facecolor="white", metadata={"Date": None})
    return paths


def _curves(axes: Axes, results: Sequence[Result], colours: Sequence[str]) -> None:
    """The share of recoveries that were no longer than so long. Lines that coincide stay apart by their width."""
    for index, r in enumerate(results):
        if r.recovery_s:
            steps = [(max(s, 1e-3), 100 * (i + 1) / r.recoveries) for i, s in enumerate(r.recovery_s)]
            xs, ys = [steps[0][0], *(s for s, _ in steps)], [0.0, *(y for _, y in steps)]
            width = 1.4 + 0.9 * (len(results) - index - 1)
            axes.plot(xs, ys, drawstyle="steps-post", color=colours[index], lw=width, label=_short(r.policy))
    axes.set_title("how fast a unit ran again", loc="left", color=_INK, fontsize=11)
    axes.set_ylabel("% of recoveries", color=_INK)
    axes.set_ylim(0, 102)
    shown = [r.recovery_s for r in results if r.recovery_s]
    if not shown:
        axes.text(0.5, 0.5, "nothing had to recover", transform=axes.transAxes, ha="center", color=_MUTED)
        axes.set_xticks([])
        return
    axes.set_xscale("log")
    shortest_s, longest_s = min(each[0] for each in shown), max(each[-1] for each in shown)
    ticks = [t for t in _TICKS if shortest_s / 5 <= t <= longest_s * 5]
    axes.set_xticks(ticks, [_span(t) for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("from failure until the unit runs", color=_INK)
    axes.grid(color=_RULE, lw=0.8)
    axes.legend(frameon=False, labelcolor=_INK, loc="lower right")


_TICKS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0)


def _bars(
    axes: Axes, names: Sequence[str], values: Sequence[float], colours: Sequence[str], title: str, form: str
) -> None:
    places = range(len(names))
    axes.barh(places, values, color=colours, height=0.62)
    axes.set_yticks(list(places), list(names))
    axes.invert_yaxis()
    axes.set_title(title, loc="left", color=_INK, fontsize=11)
    axes.set_xlim(0, max([*values, 1e-9]) * 1.32)
    axes.grid(axis="x", color=_RULE, lw=0.8)
    for place, value in zip(places, values):
        axes.annotate(form.format(value), (value, place), (4, 0), textcoords="offset points", va="center", color=_INK)


def _html(title: str, results: Sequence[Result], setting: Mapping[str, Any]) -> str:
    heads, *rows = describe(results)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    about = ", ".join(f"{escape(str(name))} {escape(str(value))}" for name, value in setting.items())
    causes = ""
    if results:
        nodes = results[0].node_failures_by_cause
        causes = "Hosts that failed: " + ", ".join(f"{escape(c)} {n:,}" for c, n in nodes.items()) if nodes else ""
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>
body{{font:15px/1.5 system-ui,sans-serif;color:{_INK};max-width:1250px;margin:2rem auto;padding:0 1rem}}
table{{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}}
th,td{{border-bottom:1px solid {_RULE};padding:.35rem .6rem;text-align:right}}
th:first-child,td:first-child{{text-align:left}} img{{width:100%}} small{{color:{_MUTED}}}
</style></head><body><h1>{escape(title)}</h1>
<img src="datacentre.svg" alt="Recovery times, silence, loss and cost by policy">
<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<p>{causes}</p><p><small>Simulated. {about}</small></p></body></html>
"""


def _short(policy: str) -> str:
    """A policy's name without its details; they are in the table."""
    kind, *details = policy.split(", ")
    return f"{kind}, eager" if "eager" in details else kind


def _span(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    for unit, size, limit in (("s", 1.0, 60.0), ("min", 60.0, 60.0), ("h", 3600.0, 48.0)):
        if seconds / size < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86400:.3g} d"
