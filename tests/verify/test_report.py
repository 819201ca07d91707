"""The page must stand alone, show what it was given and nothing that a run smuggles in."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from understudy.verify.report import write_report
from understudy.verify.silence import recovery

T = 1_763_258_000.0
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """A strict reader: every tag closed in order, texts by place, all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script") and data.strip():
            self.texts.append(data.strip())

    def having(self, css: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.tags if css in (attrs.get("class") or "").split()]


def failure(epochs: int = 120) -> tuple[dict[str, Any], list[tuple[float, int, int]], list[dict[str, Any]]]:
    """A run of 0.2 s epochs that is silent for 1.5 s in its middle."""
    half = epochs // 2
    arrivals = [(T + 0.2 * e + (0 if e < half else 1.3), e, 600) for e in range(epochs)]
    killed_at = arrivals[half - 1][0] + 0.05
    detected_at, resumed_at = killed_at + 0.14, killed_at + 0.85
    result: dict[str, Any] = {
        "verdict": "precise", "lost": 0, "repeated": 0, "different": 0,
        "killed_at": killed_at, "detected_at": detected_at, "resumed_at": resumed_at,
        "policy": "PassiveStandby(sweeping)", "job": "fraud", "hosts": ["h1", "h2", "h3"],
        "bytes": {"data": 48_200_000, "checkpoint deltas": 3_900_000, "acks": 100_000}, "ha_ratio": 0.083,
        "rows": 72_000, "epochs": epochs,
    }  # fmt: skip
    parts = recovery(
        arrivals, killed_at=killed_at, detected_at=detected_at, resumed_at=resumed_at, epoch_s=0.2
    )
    result |= parts.to_dict()
    events = [
        {"t": resumed_at, "kind": "resumed", "text": "state of epoch 57 restored"},
        {"t": killed_at, "kind": "killed", "text": "SIGKILL to host h2"},
    ]
    return result, arrivals, events


def write(
    tmp_path: Path, result: dict[str, Any], arrivals: Any = (), events: Any = (), title: str = "t"
) -> str:
    out = tmp_path / "deep" / "report.html"
    assert write_report(out, title=title, result=result, arrivals=arrivals, events=events) == out
    return out.read_text(encoding="utf-8")


def test_the_page_shows_verdict_numbers_parts_bytes_and_events(tmp_path: Path) -> None:
    text = write(tmp_path, *failure(), title="Drill 7")
    page = Page(text)
    assert page.having("verdict")[0]["class"] == "verdict precise"
    for shown in (
        "Drill 7", "precise", "fraud", "PassiveStandby(sweeping)", "h1, h2, h3", "72\u202f000", "1.45 s",
        "140 ms", "710 ms", "600 ms", "checkpoint deltas", "3.9 MB", "48.2 MB", "8.3 %", "SIGKILL to host h2",
        "kill", "epoch received", "seconds since start",
    ):  # fmt: skip
        assert shown in page.texts, shown
    assert "4 MB" in page.texts  # all HA: 3.9 MB + 100 kB, the job's own data left out
    # events by time, counted from the earliest thing known
    assert page.texts.index("killed") < page.texts.index("resumed")
    assert "11.850" in page.texts


@pytest.mark.parametrize("verdict", ["precise", "rollback", "gap"])
def test_each_verdict_has_a_colour_of_its_own(tmp_path: Path, verdict: str) -> None:
    text = write(tmp_path, {"verdict": verdict, "lost": 1})
    assert Page(text).having("verdict")[0]["class"] == f"verdict {verdict}"
    tones = dict(re.findall(r"\.(precise|rollback|gap)\{--tone:var\(--(\w+)\)\}", text))
    assert tones == {"precise": "good", "rollback": "warn", "gap": "bad"}


def test_the_bar_is_divided_as_the_silence_was(tmp_path: Path) -> None:
    result, arrivals, events = failure()
    bar = re.search(r'<div class="bar".*?</div>', write(tmp_path, result, arrivals, events))
    assert bar is not None
    found = {
        css: float(share) for css, share in re.findall(r'class="(\w+)" style="flex-grow:([\d.]+)"', bar[0])
    }
    assert found == pytest.approx(
        {"detection": 0.14 / 1.45, "redeployment": 0.71 / 1.45, "reprocessing": 0.6 / 1.45}, abs=1e-4
    )


def test_time_that_no_part_explains_is_shown_as_such(tmp_path: Path) -> None:
    text = write(tmp_path, {"killed_at": T, "silence_s": 4.0, "detection_s": 1.0})
    assert "not accounted for" in Page(text).texts
    assert "75.0 %" in Page(text).texts


def test_output_that_never_stopped_is_not_called_silent(tmp_path: Path) -> None:
    result = {
        "killed_at": T,
        "silence_s": 0.2,
        "detection_s": 1.0,
        "redeployment_s": 0.3,
        "reprocessing_s": 0.0,
    }
    assert "silent for 200 ms only" in write(tmp_path, result)


def test_everything_from_a_run_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\"'&"
    result, arrivals, _ = failure()
    clean = Page(write(tmp_path, result, arrivals, [{"t": T, "kind": "k", "text": "x"}]))
    result |= {
        "job": evil,
        "policy": evil,
        "hosts": [evil, {evil: evil}],
        "verdict": evil,
        "bytes": {evil: 1},
    }
    text = write(tmp_path, result, arrivals, [{"t": T, "kind": evil, "text": evil}], title=evil)
    page = Page(text)
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in clean.tags}
    assert "<script" not in text
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert page.texts.count(evil) >= 6  # title twice, verdict, job, policy, category, kind, text
    assert page.having("verdict")[0]["class"] == "verdict unknown"


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    text = write(tmp_path, *failure())
    assert "http:" not in text and "https:" not in text and "//" not in re.sub(r"</?\w+", "", text)
    assert "@import" not in text and "url(http" not in text
    for tag, attrs in Page(text).tags:
        assert tag not in ("script", "link", "img", "iframe")
        for name in ("src", "href", "xlink:href"):
            assert (attrs.get(name) or "#").startswith("#")


def test_plots_follow_light_and_dark_and_do_not_share_ids(tmp_path: Path) -> None:
    text = write(tmp_path, *failure())
    plots = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(plots) == 2  # the whole run, and the failure that is too short to be seen in it
    for plot in plots:
        ET.fromstring(plot.replace("xlink:href", "href"))
        assert "var(--line)" in plot and "var(--kill)" in plot and "var(--detection)" in plot
        fixed = set(re.findall(r"#[0-9a-f]{6}\b", plot)) - {"#ffffff"}
        assert not fixed, f"colours that do not follow the reader's setting: {fixed}"
        own = re.findall(r'\bid="([^"]+)"', plot)
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', plot)) <= set(own)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert "prefers-color-scheme:dark" in text
    assert set(re.findall(r"var\(--(\w+)", text)) <= set(re.findall(r"--(\w+):", text))


def test_a_long_failure_needs_no_second_plot(tmp_path: Path) -> None:
    text = write(tmp_path, *failure(epochs=20))
    assert text.count("<svg") == 1


def test_the_png_beside_it_shows_the_run(tmp_path: Path) -> None:
    write(tmp_path, *failure())
    pixels = matplotlib.image.imread(tmp_path / "deep" / "sequence.png")[..., :3]
    assert pixels.shape[0] > 400 and pixels.shape[1] > 800
    assert (pixels[0, 0] == 1).all()
    line = np.array([0x2F, 0x5F, 0xD0]) / 255
    assert (np.abs(pixels - line).max(axis=2) < 0.02).sum() > 1000


def test_a_page_can_be_written_from_almost_nothing(tmp_path: Path) -> None:
    page = Page(write(tmp_path, {}))
    assert "not judged" in page.texts and "nothing arrived" in page.texts
    assert "Nothing was killed in this run." in page.texts
    holes = dict.fromkeys(failure()[0], None)
    Page(write(tmp_path, holes, [(T, 0, 1)], [{"t": None, "kind": "?"}, {"t": T}]))
    odd = {"killed_at": T, "silence_s": float("nan"), "lost": "many", "bytes": [1], "ha_ratio": True}
    page = Page(write(tmp_path, odd, [(T - 1, 0, 1)], []))
    assert "No new epoch arrived after the kill, as far as this run was watched." in page.texts


def test_the_same_run_makes_the_same_page(tmp_path: Path) -> None:
    assert write(tmp_path / "a", *failure()) == write(tmp_path / "b", *failure())


def test_thousands_of_epochs_stay_a_light_page(tmp_path: Path) -> None:
    arrivals = [(T + 0.1 * e, e, 1) for e in range(20_000)]
    assert len(write(tmp_path, {"verdict": "precise"}, arrivals)) < 300_000
