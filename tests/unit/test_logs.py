"""A log on a disk that is full: whoever says something goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAYS = """
import resource, sys, traceback
from understudy.runtime import logs
{before}
print("before", flush=True)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
print("lost", flush=True)
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
print("lost too", file=sys.stderr)
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
print("after", sys.stdout.fileno(), flush=True)
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_cannot_be_written_is_lost_or_comes_later(tmp_path: Path, unbuffered: str) -> None:
    def run(before: str) -> tuple[int, str]:
        with open(tmp_path / "log", "wb") as log:
            words, about = [sys.executable, "-c", SAYS.format(before=before)], {"PYTHONUNBUFFERED": unbuffered}
            code = subprocess.run(words, stdout=log, stderr=log, env={**os.environ, **about}, check=False).returncode
        return code, (tmp_path / "log").read_text()

    assert run("")[0] != 0
    code, text = run("logs.never_fail()")
    assert code == 0 and text.startswith("before\n") and "after 1\n" in text
