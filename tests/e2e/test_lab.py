"""The papers' experiments, distributed by Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

_BY_SPARK = """
import json
from dataclasses import asdict
from understudy.lab import hwang
texts = [json.dumps(asdict(job.params)) for job in hwang.plan(hwang.QUICK, 3) if job.figure == "9"] * 3
calls = []
found = hwang._results_by_spark(texts, lambda done, total: calls.append((done, total)))
assert found == hwang._results_here(texts, lambda done, total: None)
assert calls[-1] == (len(texts), len(texts)), calls
"""


def test_spark_finds_what_one_process_finds() -> None:
    """In a process of its own: the JVM lives as long as the Python that started it."""
    subprocess.run([sys.executable, "-c", _BY_SPARK], check=True, timeout=200)
