"""One page that shows what a failure did to a job: a single HTML file that needs nothing else, and a PNG
beside it.

Plots are drawn once, in the light palette. For the page the colours in the SVG text are replaced by CSS
variables and its fonts by the page's, so that the same drawing follows the reader's light or dark setting;
the PNG, which goes into places that have no setting, keeps the light colours on white.

Everything that comes from a run (names, event texts, categories) is escaped where it enters the page and
never enters a plot.
"""

from __future__ import annotations

import datetime as dt
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # matplotlib takes half a second to import; only drawing should pay for it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# One colour, one meaning, in every plot, bar and badge: name, light, dark. Light values must differ from each
# other, since that is how they are found in the SVG.
_PALETTE = {
    "ink": ("#1c2330", "#e8ebf1"),
    "muted": ("#667085", "#98a2b3"),
    "rule": ("#dfe3ea", "#343b49"),
    "line": ("#2f5fd0", "#7ea6ff"),
    "kill": ("#d02f4b", "#ff7d8f"),
    "detection": ("#e08a00", "#f5b041"),
    "redeployment": ("#8250df", "#b794ff"),
    "reprocessing": ("#0f9488", "#3fd0c0"),
}
_LIGHT = {name: light for name, (light, _) in _PALETTE.items()}

_PARTS = ("detection", "redeployment", "reprocessing")

_VERDICTS = {
    "precise": "Identical to a failure-free run: nothing lost, nothing repeated, nothing altered.",
    "rollback": "Nothing lost and nothing altered, but some rows were written more than once.",
    "gap": "Some rows of a failure-free run are missing or altered.",
}

# Beyond this many epochs, dots melt into the line and only make the page heavy.
_DOTS_MAX = 400

# A failure that takes less of the plot's width than this gets a second plot of its own; its bands would be
# slivers.
_ZOOM_BELOW = 0.2


def write_report(
    out: Path,
    *,
    title: str,
    result: dict[str, Any],
    arrivals: Sequence[tuple[float, int, int]],
    events: Sequence[dict[str, Any]],
) -> Path:
    """Write the page to ``out`` and the plot to ``sequence.png`` beside it; return ``out``.

    ``result`` is shown as far as it is there: any key may be missing or None. Times in ``result``,
    ``arrivals`` and ``events`` ({"t", "kind", "text"}) are epoch seconds of one clock; the page counts from
    the earliest of them.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    events = sorted((e for e in events if _number(e.get("t")) is not None), key=lambda e: float(e["t"]))
    story = _story(result, arrivals, [float(event["t"]) for event in events])
    _save_png(out.with_name("sequence.png"), story)
    body = "\n".join(
        [
            _header(title, result),
            _tiles(result),
            _section("Sequence number received over time", _plots(story)),
            _section("Where the silence went", _silence(result, story)),
            '<div class="columns">',
            _section("What protection cost", _bytes(result)),
            _section("What happened", _timeline(events, story.start)),
            "</div>",
        ]
    )
    out.write_text(_PAGE.format(title=escape(title), style=_style(), body=body), encoding="utf-8")
    return out


# --- What is drawn ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Story:
    """The run in seconds since its start."""

    start: float
    """Epoch seconds of second 0."""
    seconds: list[float]
    epochs: list[int]
    killed: float | None
    bands: list[tuple[str, float, float]]
    """(part of the silence, from, to), without gaps, in order."""

    @property
    def zoom(self) -> tuple[float, float] | None:
        """The stretch around the failure, if that is too small to be seen in the whole run."""
        if self.killed is None or not self.bands or not self.seconds:
            return None
        length = self.bands[-1][2] - self.killed
        if length <= 0 or length >= _ZOOM_BELOW * (max(self.seconds) - min(self.seconds)):
            return None
        return self.killed - max(0.6 * length, 0.5), self.bands[-1][2] + max(0.9 * length, 0.5)


def _story(result: dict[str, Any], arrivals: Sequence[tuple[float, int, int]], event_times: list[float]) -> _Story:
    killed_at = _number(result.get("killed_at"))
    instants = [killed_at]
    for name, part in (("detected_at", "detection_s"), ("resumed_at", "redeployment_s")):
        instants.append(_instant(result, name, instants[-1], part))
    instants.append(_instant(result, "first_output_at", killed_at, "silence_s"))

    in_time = sorted(arrivals)
    known = [time for time, _, _ in in_time] + event_times + ([] if killed_at is None else [killed_at])
    start = min(known, default=0.0)
    bands = [
        (part, begin - start, end - start)
        for part, begin, end in zip(_PARTS, instants, instants[1:])
        if begin is not None and end is not None and end > begin
    ]
    return _Story(
        start=start,
        seconds=[time - start for time, _, _ in in_time],
        epochs=[epoch for _, epoch, _ in in_time],
        killed=None if killed_at is None else killed_at - start,
        bands=bands,
    )


def _instant(result: dict[str, Any], name: str, before: float | None, duration: str) -> float | None:
    """An instant, given as such or as the time that passed since another one."""
    instant, passed_s = _number(result.get(name)), _number(result.get(duration))
    if instant is None and before is not None and passed_s is not None:
        instant = before + passed_s
    return instant


def _draw(axes: Axes, story: _Story, *, window: tuple[float, float] | None = None) -> None:
    from matplotlib.ticker import MaxNLocator

    for part, begin, end in story.bands:
        axes.axvspan(begin, end, color=_LIGHT[part], alpha=0.22, lw=0, label=f"{part}  {_span(end - begin)}")
    shown = sum(1 for s in story.seconds if window is None or window[0] <= s <= window[1])
    # Steps: until the next epoch arrives, the reader of the sink has the last one. An outage is a flat
    # stretch.
    (line,) = axes.plot(story.seconds, story.epochs, drawstyle="steps-post", color=_LIGHT["line"], lw=1.4, zorder=3)
    if shown <= _DOTS_MAX:
        line.set(marker="o", markersize=3.4 if window is None else 5.0)
    if story.killed is not None:
        axes.axvline(story.killed, color=_LIGHT["kill"], lw=1.6, ls=(0, (4, 2)), zorder=4)
        axes.annotate(
            "kill",
            (story.killed, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            color=_LIGHT["kill"],
            fontweight="bold",
            annotation_clip=False,
        )
    if window is not None:
        axes.set_xlim(*window)
        inside = [e for s, e in zip(story.seconds, story.epochs) if window[0] <= s <= window[1]] or story.epochs
        margin = max(1.0, 0.12 * (max(inside) - min(inside)))
        axes.set_ylim(min(inside) - margin, max(inside) + margin)
    axes.set_xlabel("seconds since start")
    axes.set_ylabel("epoch received")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
    axes.grid(axis="y", color=_LIGHT["rule"], lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_LIGHT["muted"])
    axes.tick_params(colors=_LIGHT["muted"], labelcolor=_LIGHT["ink"])
    axes.xaxis.label.set_color(_LIGHT["ink"])
    axes.yaxis.label.set_color(_LIGHT["ink"])
    if not story.seconds:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "nothing arrived", transform=axes.transAxes, ha="center", color=_LIGHT["muted"])


def _figure(width_in: float, height_in: float) -> Figure:
    # Not pyplot: it keeps every figure in a global list, and picks a backend for a screen.
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")


def _legend(figure: Figure) -> None:
    """Below the plot: inside, some run's failure would always lie under it."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, labelcolor=_LIGHT["ink"])


def _save_png(path: Path, story: _Story) -> None:
    zoom = story.zoom
    figure = _figure(8.6 if zoom is None else 13.0, 4.6)
    if zoom is None:
        _draw(figure.subplots(), story)
    else:
        whole, close = figure.subplots(1, 2, width_ratios=[1.25, 1])
        _draw(whole, story)
        _draw(close, story, window=zoom)
        whole.set_title("the whole run", color=_LIGHT["muted"], loc="right", fontsize=10)
        close.set_title("around the failure", color=_LIGHT["muted"], loc="right", fontsize=10)
    _legend(figure)
    figure.savefig(path, dpi=150, facecolor="white", metadata={"Software": None})


def _plots(story: _Story) -> str:
    zoom = story.zoom
    if zoom is None:
        return _svg("whole", 9.4, 4.2, lambda axes: _draw(axes, story), "Epochs received over the run")
    return (
        '<div class="columns plots">'
        + _svg("whole", 6.4, 4.2, lambda axes: _draw(axes, story), "Epochs received over the whole run")
        + _svg("close", 6.4, 4.2, lambda axes: _draw(axes, story, window=zoom), "The same around the failure")
        + "</div>"
    )


def _svg(name: str, width_in: float, height_in: float, draw: Callable[[Axes], None], caption: str) -> str:
    """Draw into SVG text that can live inside a page: no prologue, no own style, ids of its own."""
    import matplotlib

    figure = _figure(width_in, height_in)
    draw(figure.subplots())
    _legend(figure)
    buffer = io.StringIO()
    # Texts stay texts (they can be selected, searched and take the page's font); ids do not change from run
    # to run.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style\b.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg\b[^>]*?)\swidth="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg\b[^>]*?)\sheight="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, light in _LIGHT.items():
        svg = svg.replace(light, f"var(--{colour})")
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)
    return f'<figure class="plot">{svg}<figcaption>{escape(caption)}</figcaption></figure>'


# --- What is written ----------------------------------------------------------------------------------------


def _header(title: str, result: dict[str, Any]) -> str:
    verdict = str(result.get("verdict") or "")
    known = verdict in _VERDICTS
    about = "".join(
        f"<div><dt>{name}</dt><dd>{escape(_plain(result[name]))}</dd></div>"
        for name in ("job", "policy", "hosts")
        if result.get(name) not in (None, "", [], {})
    )
    return (
        f'<header><h1>{escape(title)}</h1><dl class="about">{about}</dl></header>'
        f'<div class="verdict {verdict if known else "unknown"}">'
        f"<strong>{escape(verdict) or 'not judged'}</strong>"
        f"<p>{_VERDICTS.get(verdict, 'This run was not compared with a failure-free one.')}</p></div>"
    )


def _tiles(result: dict[str, Any]) -> str:
    """The key numbers. A count other than 0 in the first three is what the verdict rests on, so it stands
    out."""
    tiles = []
    for key, label in (("lost", "rows lost"), ("repeated", "rows repeated"), ("different", "rows altered")):
        if (count := _number(result.get(key))) is not None:
            tiles.append((_count(count), label, "" if count == 0 else ("warn" if key == "repeated" else "bad")))
    for key, label in (
        ("silence_s", "kill to first new output"),
        ("full_recovery_s", "until back to normal"),
        ("longest_silence_s", "longest pause felt at the sink"),
    ):
        if (duration_s := _number(result.get(key))) is not None:
            tiles.append((_span(duration_s), label, ""))
    for key, label in (("rows", "rows"), ("epochs", "epochs")):
        if (count := _number(result.get(key))) is not None:
            tiles.append((_count(count), label, ""))
    if (ratio := _number(result.get("ha_ratio"))) is not None:
        tiles.append((_percent(ratio), "HA bytes per byte of data", ""))
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile {css}"><b>{value}</b><span>{label}</span></div>' for value, label, css in tiles)
        + "</div>"
    )


def _silence(result: dict[str, Any], story: _Story) -> str:
    silence_s = _number(result.get("silence_s"))
    if story.killed is None and silence_s is None:
        return '<p class="note">Nothing was killed in this run.</p>'
    drawn = {part: end - begin for part, begin, end in story.bands}
    parts = [(part, _number(result.get(f"{part}_s"))) for part in _PARTS]
    found = [(part, part, drawn.get(part, 0.0) if part_s is None else part_s) for part, part_s in parts]
    found = [(css, label, part_s) for css, label, part_s in found if part_s > 0]
    accounted_s = sum(part_s for _, _, part_s in found)
    if silence_s is not None and silence_s - accounted_s > 0.001:
        found.append(("rest", "not accounted for", silence_s - accounted_s))
    total_s = sum(part_s for _, _, part_s in found)
    notes = []
    if silence_s is None:
        notes.append("No new epoch arrived after the kill, as far as this run was watched.")
    elif accounted_s - silence_s > 0.001:
        notes.append(
            f"The output did not wait for the recovery: it was silent for {_span(silence_s)} only,"
            " while these parts went on behind it."
        )
    bar = legend = ""
    if total_s > 0:
        segments = "".join(
            f'<i class="{css}" style="flex-grow:{part_s / total_s:.6f}" title="{label} {_span(part_s)}"></i>'
            for css, label, part_s in found
        )
        spoken = ", ".join(f"{label} {_span(part_s)}" for _, label, part_s in found)
        bar = f'<div class="bar" role="img" aria-label="{spoken}">{segments}</div>'
        legend = "".join(
            f'<li><i class="{css}"></i>{label}<b>{_span(part_s)}</b><small>{_percent(part_s / total_s)}</small></li>'
            for css, label, part_s in found
        )
        legend = f'<ul class="legend">{legend}</ul>'
    return bar + legend + "".join(f'<p class="note">{note}</p>' for note in notes)


def _bytes(result: dict[str, Any]) -> str:
    """Bytes by category. A category called ``data`` is the job's own traffic: shown for scale, not counted as
    cost."""
    given = result.get("bytes")
    sizes = {str(name): _number(size) for name, size in (given.items() if isinstance(given, dict) else ())}
    counted = sorted(((n, s) for n, s in sizes.items() if s is not None), key=lambda pair: (-pair[1], pair[0]))
    ratio = _number(result.get("ha_ratio"))
    ratio_text = (
        ""
        if ratio is None
        else (f'<p class="note">Bytes sent for high availability per byte of data: <b>{_percent(ratio)}</b></p>')
    )
    if not counted:
        return ratio_text or '<p class="note">No traffic was recorded.</p>'
    largest = max(size for _, size in counted) or 1.0
    rows = "".join(
        f'<tr class="{"own" if name == "data" else ""}"><th scope="row">{escape(name)}</th>'
        f'<td class="meter"><i style="width:{100 * max(size, 0) / largest:.2f}%"></i></td>'
        f'<td title="{_count(size)} bytes">{_bytes_text(size)}</td></tr>'
        for name, size in counted
    )
    total = sum(size for name, size in counted if name != "data")
    return (
        '<table><thead><tr><th scope="col">category</th><th></th><th scope="col">bytes</th></tr></thead>'
        f"<tbody>{rows}</tbody><tfoot><tr><th scope='row'>all HA</th><td></td>"
        f'<td title="{_count(total)} bytes">{_bytes_text(total)}</td></tr></tfoot></table>{ratio_text}'
    )


# The first match colours an event's badge; what a run calls its events is its own affair.
_EVENT_COLOURS = (
    ("detect", "detection"),
    ("suspect", "detection"),
    ("promot", "redeployment"),
    ("deploy", "redeployment"),
    ("failover", "redeployment"),
    ("resum", "reprocessing"),
    ("output", "reprocessing"),
    ("recover", "reprocessing"),
    ("kill", "kill"),
    ("crash", "kill"),
    ("fail", "kill"),
)


def _timeline(events: Sequence[dict[str, Any]], start: float) -> str:
    if not events:
        return '<p class="note">No events were recorded.</p>'
    items = []
    for event in events:
        kind = str(event.get("kind", ""))
        css = next((css for word, css in _EVENT_COLOURS if word in kind.lower()), "")
        at = float(event["t"])
        items.append(
            f'<li><time title="{_clock(at)}">{at - start:.3f}</time>'
            f'<span class="kind {css}">{escape(kind)}</span>'
            f"<span>{escape(str(event.get('text', '')))}</span></li>"
        )
    return f'<ol class="timeline">{"".join(items)}</ol>'


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>{content}</section>"


# --- Numbers and texts --------------------------------------------------------------------------------------


def _number(value: Any) -> float | None:
    """A finite number, or None for everything else that a result may hold in its place."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _span(duration_s: float) -> str:
    if abs(duration_s) < 0.9995:
        return f"{duration_s * 1000:.0f} ms"
    if abs(duration_s) < 60:
        return f"{duration_s:.2f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes} min {seconds} s"


def _count(number: float) -> str:
    return f"{number:,.0f}".replace(",", "\u202f")  # narrow and unbreakable


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.{2 if abs(ratio) < 0.01 else 1 if abs(ratio) < 1 else 0}f} %"


def _bytes_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(map(_plain, sorted(value, key=str) if isinstance(value, (set, frozenset)) else value))
    return str(value)


def _clock(at: float) -> str:
    try:
        return dt.datetime.fromtimestamp(at, tz=dt.UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a virtual clock may show anything
        return f"{at:.3f}"


# --- The page -----------------------------------------------------------------------------------------------


def _style() -> str:
    light = "".join(f"--{name}:{value};" for name, (value, _) in _PALETTE.items())
    dark = "".join(f"--{name}:{value};" for name, (_, value) in _PALETTE.items())
    return (
        ":root{color-scheme:light dark;--page:#f5f6f9;--card:#fff;"
        f"--good:#16803c;--warn:#b45309;--bad:#c62a41;{light}}}"
        "@media (prefers-color-scheme:dark){:root{--page:#12151b;--card:#1b2029;"
        f"--good:#4ade80;--warn:#fbbf24;--bad:#ff7d8f;{dark}}}}}{_CSS}"
    )


_CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
 font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:72rem;margin:0 auto;padding:2rem 1.25rem 3rem;
 display:grid;grid-template-columns:minmax(0,1fr);gap:1.25rem}
main>*,.columns>*{min-width:0}
h1{margin:0;font-size:1.5rem;line-height:1.25;overflow-wrap:anywhere}
h2{margin:0 0 .9rem;font-size:1rem}
.about{display:flex;flex-wrap:wrap;gap:.25rem 1.5rem;margin:.5rem 0 0}
.about div{display:flex;gap:.4rem;min-width:0}
.about dt,.note,figcaption,.tile span,small{color:var(--muted)}
.about dd{margin:0;font-weight:600;overflow-wrap:anywhere}
section,.verdict,.tile{background:var(--card);border:1px solid var(--rule);border-radius:.75rem}
section{padding:1.1rem 1.25rem}
.verdict{padding:1.4rem 1.5rem;border-left:.6rem solid var(--tone);--tone:var(--muted)}
.verdict strong{display:block;font-size:3rem;line-height:1;letter-spacing:-.03em;
 text-transform:uppercase;color:var(--tone);overflow-wrap:anywhere}
@media (min-width:40rem){.verdict strong{font-size:5rem}}
.verdict p{margin:.6rem 0 0;font-size:1.1rem}
.precise{--tone:var(--good)}.rollback{--tone:var(--warn)}.gap{--tone:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem}
.tile{padding:.85rem 1rem}
.tile b{display:block;font-size:1.6rem;line-height:1.2;font-variant-numeric:tabular-nums}
.tile span{font-size:.85rem}
.tile.warn b{color:var(--warn)}
.tile.bad b{color:var(--bad)}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));
 gap:1.25rem;align-items:start}
.plot{margin:0;overflow-x:auto}
.plot svg{display:block;width:100%;min-width:26rem;height:auto}
.plot svg *{stroke-linejoin:round;stroke-linecap:butt}
.plot text{font-family:inherit!important}
figcaption{font-size:.85rem;text-align:center}
.bar{display:flex;gap:2px;height:2.5rem;border-radius:.4rem;overflow:hidden}
.bar i{flex:0 1 0;min-width:3px}
.detection{background:var(--detection)}
.redeployment{background:var(--redeployment)}
.reprocessing{background:var(--reprocessing)}
.rest{background:var(--muted)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.4rem 1.75rem;margin:.9rem 0 0;padding:0}
.legend li{display:flex;align-items:center;gap:.5rem}
.legend b,.legend small{white-space:nowrap}
.legend i{flex:none;width:.8rem;height:.8rem;border-radius:.2rem}
.note{margin:.75rem 0 0}
.note b{color:var(--ink)}
h2+.note{margin-top:0}
table{width:100%;border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .5rem;text-align:left;border-bottom:1px solid var(--rule)}
tbody th{font-weight:400;overflow-wrap:anywhere}
thead th{color:var(--muted);font-weight:400;font-size:.85rem}
th:last-child,td:last-child{text-align:right;white-space:nowrap}
tfoot th,tfoot td{border-bottom:0;font-weight:700}
.meter{width:40%}
.meter i{display:block;height:.6rem;min-width:1px;border-radius:.3rem;background:var(--line)}
.own th,.own td{color:var(--muted)}
.own .meter i{background:var(--muted);opacity:.5}
.timeline{list-style:none;margin:0;padding:0;max-height:30rem;overflow:auto}
.timeline li{display:grid;grid-template-columns:4rem 7.5rem 1fr;gap:.75rem;align-items:baseline;
 padding:.35rem 0;border-bottom:1px solid var(--rule)}
.timeline li:last-child{border-bottom:0}
.timeline span{min-width:0;overflow-wrap:anywhere}
time{text-align:right;color:var(--muted);font-variant-numeric:tabular-nums}
.kind{font-weight:600;background:none;border-left:.3rem solid var(--muted);padding-left:.5rem}
.kind.kill{border-color:var(--kill)}
.kind.detection{border-color:var(--detection)}
.kind.redeployment{border-color:var(--redeployment)}
.kind.reprocessing{border-color:var(--reprocessing)}
@media print{body{background:none}section,.verdict,.tile{break-inside:avoid}.timeline{max-height:none}}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
