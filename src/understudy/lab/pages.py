"""What the pages of the laboratories share: how drawings and pages look, and the table of claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.lab.claims import Row

if TYPE_CHECKING:  # matplotlib takes half a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, RULE = "#1c2330", "#667085", "#dfe3ea"

# -- drawing -------------------------------------------------------------------------------------------------------


def panels(titles: Sequence[str], width_in: float, height_in: float = 4.0) -> tuple[Figure, list[Axes]]:
    """Drawings side by side."""
    from matplotlib.figure import Figure  # not pyplot, which keeps every figure and looks for a screen

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    axes = [figure.add_subplot(1, len(titles), i + 1) for i in range(len(titles))]
    for each, title in zip(axes, titles):
        each.set_title(title, fontsize=10, color=INK, loc="left")
        each.grid(axis="y", color=RULE, lw=0.8)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(MUTED)
        each.tick_params(colors=MUTED, labelcolor=INK)
    return figure, axes


def label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)


def place(figure: Figure, handles: list[Any], columns: int | None = None) -> None:
    """The legend, below the drawings."""
    columns = columns or (len(handles) if figure.get_figwidth() > 8 else 3)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK)


def draw(out: Path, figures: Mapping[str, Callable[[], Figure]], salt: str) -> None:
    """As PNG and SVG."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": salt}):  # the same drawing is the same file
        for name, drawn in figures.items():
            figure = drawn()
            figure.savefig(out / f"{name}.png", dpi=150, facecolor="white", metadata={"Software": None})
            figure.savefig(out / f"{name}.svg", facecolor="white", metadata={"Date": None})


# -- the page ------------------------------------------------------------------------------------------------------

STYLE = """
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


def document(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1>
{body}</body></html>
"""


def images(captions: Mapping[str, str]) -> str:
    return "".join(
        f'<figure><a href="{name}.png"><img src="{name}.svg" alt="{escape(caption)}"></a>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for name, caption in captions.items()
    )


def misses(summary: Sequence[Row]) -> str:
    """What is outside of its band, each with the reason."""
    return "".join(
        f"<dt>{escape(row['name'])}, {escape(row['found'])}: paper {row['paper']:g} ({escape(row['says'])}), ours "
        f"{row['ours']:.3g}</dt><dd>{escape(row['why'] or 'Not explained.')}</dd>"
        for row in summary
        if not row["within"]
    )


def definitions(texts: Mapping[str, str]) -> str:
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in texts.items())


def table(summary: Sequence[Row], hows: Mapping[str, str]) -> str:
    """A line per claim, a column per way of finding out."""
    claims: dict[str, dict[str, Row]] = {}
    for row in summary:
        claims.setdefault(row["name"], {})[row["how"]] = row
    columns = [how for how in hows if any(how in found for found in claims.values())]
    heads = "".join(f'<th class="number">{escape(hows[how])}</th>' for how in columns)
    compared = any("agrees" in row for row in summary)
    agree = "<th>same direction</th>" if compared else ""
    lines = []
    for name, found in claims.items():
        one = next(iter(found.values()))
        low, high = one["band"]
        band = f"{low:g} to {high:g}" if high is not None else f"{low:g} or more"
        cells = "".join(_number(found.get(how)) for how in columns)
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
