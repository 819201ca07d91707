"""One page that shows what a failure did to a job: a single HTML file that needs nothing else, and a PNG
beside it.

Everything that comes from a run (names, event texts, categories) is escaped where it enters the page and
never enters a plot.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from understudy.verify.report_plots import PARTS, Story, plots, save_png, story_of
from understudy.verify.report_style import page
from understudy.verify.report_texts import (
    bytes_text,
    clock_text,
    count_text,
    finite,
    percent_text,
    plain_text,
    span_text,
)
from understudy.verify.silence import Arrival

_VERDICTS = {
    "precise": "Identical to a failure-free run: nothing lost, nothing repeated, nothing altered.",
    "rollback": "Nothing lost and nothing altered, but some rows were written more than once.",
    "gap": "Some rows of a failure-free run are missing or altered.",
}


def write_report(
    out: Path,
    *,
    title: str,
    result: dict[str, Any],
    arrivals: Sequence[Arrival],
    events: Sequence[dict[str, Any]],
) -> Path:
    """Write the page to ``out`` and the plot to ``sequence.png`` beside it; return ``out``.

    ``result`` is shown as far as it is there: any key may be missing or None. Times in ``result``,
    ``arrivals`` and ``events`` ({"t", "kind", "text"}) are epoch seconds of one clock; the page counts from
    the earliest of them.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    events = sorted((e for e in events if finite(e.get("t")) is not None), key=lambda e: float(e["t"]))
    story = story_of(result, arrivals, [float(event["t"]) for event in events])
    save_png(out.with_name("sequence.png"), story)
    body = "\n".join(
        [
            _header(title, result),
            _tiles(result),
            _section("Sequence number received over time", plots(story)),
            _section("Where the silence went", _silence(result, story)),
            '<div class="columns">',
            _section("What protection cost", _bytes(result)),
            _section("What happened", _timeline(events, story.start)),
            "</div>",
        ]
    )
    out.write_text(page(title, body), encoding="utf-8")
    return out


def _header(title: str, result: dict[str, Any]) -> str:
    verdict = str(result.get("verdict") or "")
    known = verdict in _VERDICTS
    about = "".join(
        f"<div><dt>{name}</dt><dd>{escape(plain_text(result[name]))}</dd></div>"
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
        if (count := finite(result.get(key))) is not None:
            tiles.append((count_text(count), label, "" if count == 0 else ("warn" if key == "repeated" else "bad")))
    for key, label in (
        ("silence_s", "kill to first new output"),
        ("full_recovery_s", "until back to normal"),
        ("longest_silence_s", "longest pause felt at the sink"),
    ):
        if (duration_s := finite(result.get(key))) is not None:
            tiles.append((span_text(duration_s), label, ""))
    for key, label in (("rows", "rows"), ("epochs", "epochs")):
        if (count := finite(result.get(key))) is not None:
            tiles.append((count_text(count), label, ""))
    if (ratio := finite(result.get("ha_ratio"))) is not None:
        tiles.append((percent_text(ratio), "HA bytes per byte of data", ""))
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile {css}"><b>{value}</b><span>{label}</span></div>' for value, label, css in tiles)
        + "</div>"
    )


def _silence(result: dict[str, Any], story: Story) -> str:
    silence_s = finite(result.get("silence_s"))
    if story.killed is None and silence_s is None:
        return '<p class="note">Nothing was killed in this run.</p>'
    drawn = {part: end - begin for part, begin, end in story.bands}
    parts = [(part, finite(result.get(f"{part}_s"))) for part in PARTS]
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
            f"The output did not wait for the recovery: it was silent for {span_text(silence_s)} only,"
            " while these parts went on behind it."
        )
    bar = legend = ""
    if total_s > 0:
        segments = "".join(
            f'<i class="{css}" style="flex-grow:{part_s / total_s:.6f}" title="{label} {span_text(part_s)}"></i>'
            for css, label, part_s in found
        )
        spoken = ", ".join(f"{label} {span_text(part_s)}" for _, label, part_s in found)
        bar = f'<div class="bar" role="img" aria-label="{spoken}">{segments}</div>'
        legend = "".join(
            f'<li><i class="{css}"></i>{label}<b>{span_text(part_s)}</b>'
            f"<small>{percent_text(part_s / total_s)}</small></li>"
            for css, label, part_s in found
        )
        legend = f'<ul class="legend">{legend}</ul>'
    return bar + legend + "".join(f'<p class="note">{note}</p>' for note in notes)


def _bytes(result: dict[str, Any]) -> str:
    """Bytes by category. A category called ``data`` is the job's own traffic: shown for scale, not counted as
    cost."""
    given = result.get("bytes")
    sizes = {str(name): finite(size) for name, size in (given.items() if isinstance(given, dict) else ())}
    counted = sorted(((n, s) for n, s in sizes.items() if s is not None), key=lambda pair: (-pair[1], pair[0]))
    ratio = finite(result.get("ha_ratio"))
    ratio_text = (
        ""
        if ratio is None
        else (f'<p class="note">Bytes sent for high availability per byte of data: <b>{percent_text(ratio)}</b></p>')
    )
    if not counted:
        return ratio_text or '<p class="note">No traffic was recorded.</p>'
    largest = max(size for _, size in counted) or 1.0
    rows = "".join(
        f'<tr class="{"own" if name == "data" else ""}"><th scope="row">{escape(name)}</th>'
        f'<td class="meter"><i style="width:{100 * max(size, 0) / largest:.2f}%"></i></td>'
        f'<td title="{count_text(size)} bytes">{bytes_text(size)}</td></tr>'
        for name, size in counted
    )
    total = sum(size for name, size in counted if name != "data")
    return (
        '<table><thead><tr><th scope="col">category</th><th></th><th scope="col">bytes</th></tr></thead>'
        f"<tbody>{rows}</tbody><tfoot><tr><th scope='row'>all HA</th><td></td>"
        f'<td title="{count_text(total)} bytes">{bytes_text(total)}</td></tr></tfoot></table>{ratio_text}'
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
            f'<li><time title="{clock_text(at)}">{at - start:.3f}</time>'
            f'<span class="kind {css}">{escape(kind)}</span>'
            f"<span>{escape(str(event.get('text', '')))}</span></li>"
        )
    return f'<ol class="timeline">{"".join(items)}</ol>'


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>{content}</section>"
