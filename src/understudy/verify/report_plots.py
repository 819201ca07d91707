"""The plot of the report: which epoch had arrived when, with the failure and the parts of the silence.

Plots are drawn once, in the light palette. For the page the colours in the SVG text are replaced by CSS variables and
its fonts by the page's, so that the same drawing follows the reader's light or dark setting; the PNG, which goes into
places that have no setting, keeps the light colours on white.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.core.numbers import Epoch
from understudy.verify.report_style import LIGHT
from understudy.verify.report_texts import finite, span_text
from understudy.verify.silence import Arrival

if TYPE_CHECKING:  # matplotlib takes half a second to import; only drawing should pay for it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = ("detection", "redeployment", "reprocessing")

# Beyond this many epochs, dots melt into the line and only make the page heavy.
_DOTS_MAX = 400

# A failure that takes less of the plot's width than this gets a second plot of its own; its bands would be
# slivers.
_ZOOM_BELOW = 0.2


@dataclass(frozen=True)
class Story:
    """The run in seconds since its start."""

    start: float
    """Epoch seconds of second 0."""
    seconds: list[float]
    epochs: list[Epoch]
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


def story_of(result: dict[str, Any], arrivals: Sequence[Arrival], event_times: list[float]) -> Story:
    killed_at = finite(result.get("killed_at"))
    instants = [killed_at]
    for name, part in (("detected_at", "detection_s"), ("resumed_at", "redeployment_s")):
        instants.append(_instant(result, name, instants[-1], part))
    instants.append(_instant(result, "first_output_at", killed_at, "silence_s"))

    in_time = sorted(arrivals)
    known = [time for time, _, _ in in_time] + event_times + ([] if killed_at is None else [killed_at])
    start = min(known, default=0.0)
    bands = [
        (part, begin - start, end - start)
        for part, begin, end in zip(PARTS, instants, instants[1:])
        if begin is not None and end is not None and end > begin
    ]
    return Story(
        start=start,
        seconds=[time - start for time, _, _ in in_time],
        epochs=[epoch for _, epoch, _ in in_time],
        killed=None if killed_at is None else killed_at - start,
        bands=bands,
    )


def _instant(result: dict[str, Any], name: str, before: float | None, duration: str) -> float | None:
    """An instant, given as such or as the time that passed since another one."""
    instant, passed_s = finite(result.get(name)), finite(result.get(duration))
    if instant is None and before is not None and passed_s is not None:
        instant = before + passed_s
    return instant


def _draw(axes: Axes, story: Story, *, window: tuple[float, float] | None = None) -> None:
    from matplotlib.ticker import MaxNLocator

    for part, begin, end in story.bands:
        axes.axvspan(begin, end, color=LIGHT[part], alpha=0.22, lw=0, label=f"{part}  {span_text(end - begin)}")
    shown = sum(1 for s in story.seconds if window is None or window[0] <= s <= window[1])
    # Steps: until the next epoch arrives, the reader of the sink has the last one. An outage is a flat
    # stretch.
    (line,) = axes.plot(story.seconds, story.epochs, drawstyle="steps-post", color=LIGHT["line"], lw=1.4, zorder=3)
    if shown <= _DOTS_MAX:
        line.set(marker="o", markersize=3.4 if window is None else 5.0)
    if story.killed is not None:
        axes.axvline(story.killed, color=LIGHT["kill"], lw=1.6, ls=(0, (4, 2)), zorder=4)
        axes.annotate(
            "kill",
            (story.killed, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            color=LIGHT["kill"],
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
    axes.grid(axis="y", color=LIGHT["rule"], lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LIGHT["muted"])
    axes.tick_params(colors=LIGHT["muted"], labelcolor=LIGHT["ink"])
    axes.xaxis.label.set_color(LIGHT["ink"])
    axes.yaxis.label.set_color(LIGHT["ink"])
    if not story.seconds:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "nothing arrived", transform=axes.transAxes, ha="center", color=LIGHT["muted"])


def _figure(width_in: float, height_in: float) -> Figure:
    # Not pyplot: it keeps every figure in a global list, and picks a backend for a screen.
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")


def _legend(figure: Figure) -> None:
    """Below the plot: inside, some run's failure would always lie under it."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, labelcolor=LIGHT["ink"])


def save_png(path: Path, story: Story) -> None:
    zoom = story.zoom
    figure = _figure(8.6 if zoom is None else 13.0, 4.6)
    if zoom is None:
        _draw(figure.subplots(), story)
    else:
        whole, close = figure.subplots(1, 2, width_ratios=[1.25, 1])
        _draw(whole, story)
        _draw(close, story, window=zoom)
        whole.set_title("the whole run", color=LIGHT["muted"], loc="right", fontsize=10)
        close.set_title("around the failure", color=LIGHT["muted"], loc="right", fontsize=10)
    _legend(figure)
    figure.savefig(path, dpi=150, facecolor="white", metadata={"Software": None})


def plots(story: Story) -> str:
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
    for colour, light in LIGHT.items():
        svg = svg.replace(light, f"var(--{colour})")
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)
    return f'<figure class="plot">{svg}<figcaption>{escape(caption)}</figcaption></figure>'
