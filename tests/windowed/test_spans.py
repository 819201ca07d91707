"""What a user says of a window, checked when it is written."""

from __future__ import annotations

import subprocess
import sys

import pytest

from understudy.windowed.spans import rows, seconds


def test_defaults():
    assert (rows(32768).group, rows(10).group, rows(0).group) == (512, 1, 1)
    assert rows(1024, per="k").group == "auto" and rows(1024, per=["a", "b"]).per == ("a", "b")
    assert (seconds(20).length_ms, seconds(20).slide_ms, seconds("1m", slide="500ms").slide_ms) == (20000, 20000, 500)


def test_a_window_that_is_of_each_key_anyhow_has_the_group_that_was_said():
    said = [rows(64), rows(64, group=1), rows(64, group=16), rows(64, per="k"), rows(64, per="k", group=16)]
    assert [span.group_of_key for span in said] == ["auto", 1, 16, "auto", 16]
    assert said[0].group == said[1].group == 1, "though it is what one stream of so many rows gets"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: rows(-1), r"rows\(count=-1\)"),
        (lambda: rows(1.5), r"rows\(count=1.5\)"),
        (lambda: rows(True), r"rows\(count=True\)"),
        (lambda: rows(10, group=0), r"rows\(group=0\)"),
        (lambda: rows(10, group=11), r"rows\(group=11\) is larger than the window; choose 1 to 10"),
        (lambda: rows(10, group="auto"), "needs a key"),
        (lambda: rows(10, group="big"), r"rows\(group='big'\)"),
        (lambda: rows(10, per=""), r"rows\(per=''\)"),
        (lambda: rows(10, per=[]), r"rows\(per=\[\]\)"),
        (lambda: rows(10, per=["a", "a"]), "twice"),
        (lambda: rows(10, per=3), r"rows\(per=3\) must name a column"),
        (lambda: rows(10, per={"a"}), r"rows\(per=\{'a'\}\) must name a column"),
        (lambda: rows(10, per=["a", 3]), r"rows\(per=\['a', 3\]\) must name a column"),
        (lambda: rows(0, group=7), r"rows\(0, group=7\): .* has nothing to group; leave it out"),
        (lambda: seconds(0), r"seconds\(length\)=0"),
        (lambda: seconds("long"), r"seconds\(length\)='long'"),
        (lambda: seconds(0.0001), "whole milliseconds"),
        (lambda: seconds(5, slide=6), "longer than the window"),
        (lambda: seconds(5, slide=-1), r"seconds\(slide\)=-1"),
        (lambda: seconds(5, of=""), r"seconds\(of=''\)"),
        (lambda: seconds(3600, slide=0.001), "every row would be in 3,600,000 windows.*a slide of at least 360ms"),
    ],
)
def test_mistakes_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_a_row_may_be_in_many_windows():
    assert seconds(3600, slide="360ms").slide_ms == 360
    with pytest.raises(ValueError, match="at least 360ms"):
        seconds(3600, slide="359ms")


def test_nothing_heavy_is_imported():
    code = (
        "import sys, understudy.windowed.spans; print([m for m in ('pyarrow', 'numpy', 'pandas') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
