"""Rates out of counters, as the hosts report them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from understudy.planning import Measured
from understudy.runtime.profile import Profiler, Sampler
from understudy.runtime.session import wait_for


def status(rows: int, *, spent: dict[str, int] | None = None, batch_s: float | None = 0.2) -> dict[str, Any]:
    stage = {"role": "primary", "batch_s": batch_s, "state_bytes": 1000, "delta_bytes": 10}
    standby = {"role": "standby", "batch_s": 9.0}
    return {
        "bytes": spent or {"data": 10 * rows, "checkpoint": rows, "ack": 0},
        "hosts": {
            "h1": {"rows": {"a": rows}, "published": {"a": 8 * rows}, "stages": {"s": stage}},
            "h2": {"rows": {"b": 2 * rows}, "published": {"b": 4 * rows}, "stages": {"s": standby}},
            "dead": {"alive": False},
        },
    }


def test_rates_come_from_differences() -> None:
    sampler = Sampler()
    assert sampler.add(status(100), 10.0).streams == {}
    found = sampler.add(status(300), 12.0)
    assert found.streams["a"] == {"rows_per_s": 100.0, "bytes_per_s": 800.0}
    assert found.streams["b"] == {"rows_per_s": 200.0, "bytes_per_s": 400.0}
    assert found.stages == {"s": {"batch_s": 0.2, "state_bytes": 1000, "delta_bytes": 10}}
    assert (found.ha_ratio, found.seconds) == (pytest.approx(0.1), 2.0)


def test_newer_looks_count_more_and_counters_that_died_do_not_count() -> None:
    sampler = Sampler()
    for now, rows in ((0.0, 0), (1.0, 100), (2.0, 300)):
        found = sampler.add(status(rows), now)
    assert found.streams["a"]["rows_per_s"] == pytest.approx(130.0)
    found = sampler.add(status(0, spent={"data": 0}), 3.0)
    assert found.streams["a"]["rows_per_s"] == pytest.approx(130.0)
    assert found.ha_ratio == pytest.approx(0.1)


def test_what_is_not_known_is_left_out() -> None:
    assert "batch_s" not in Sampler().add(status(1, batch_s=None), 0.0).stages["s"]


def test_the_profile_is_written_while_the_job_runs(tmp_path: Path) -> None:
    rows = iter(range(0, 10_000, 100))
    profiler = Profiler(tmp_path, lambda: status(next(rows)), every_s=0.01)
    profiler.start()
    wait_for((tmp_path / "profile.json").exists, 10, "a profile")
    profiler.end()
    profiler.join(5)
    found = Measured.read(tmp_path / "profile.json")
    assert found is not None
    assert set(found.streams) == {"a", "b"}
    assert json.loads((tmp_path / "profile.json").read_text())["seconds"] > 0
