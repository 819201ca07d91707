"""Measures a job while it runs: rows and bytes of its streams, time and state of its stages. ``understudy plan`` and
``us.auto`` reckon with it from the next start on."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from understudy.planning import Measured
from understudy.runtime.wire import HA_CATEGORIES

FILE = "profile.json"
EVERY_S = 10.0
"""Between two looks at a running job. Each asks every host for its status once."""
WEIGHT = 0.3
"""How much the newest look counts against all before it: a spike does not make a profile, a change does within a
minute."""


class Sampler:
    """Turns the counters of successive statuses into rates. Pure: it is given the time."""

    def __init__(self) -> None:
        self.measured = Measured()
        self._before: tuple[float, Counter[str], Counter[str], dict[str, int]] | None = None

    def add(self, status: dict[str, Any], now: float) -> Measured:
        hosts = [about for about in status["hosts"].values() if "stages" in about]
        rows: Counter[str] = Counter()
        sent: Counter[str] = Counter()
        for about in hosts:
            rows.update(about["rows"])
            sent.update(about["published"])
            for name, stage in about["stages"].items():
                if stage["role"] == "primary":
                    self._blend(self.measured.stages, name, {k: stage[k] for k in _STAGE if stage.get(k) is not None})
        if self._before is not None:
            self._rates(now, rows, sent, status["bytes"])
        self._before = (now, rows, sent, status["bytes"])
        return self.measured

    def _rates(self, now: float, rows: Counter[str], sent: Counter[str], spent: dict[str, int]) -> None:
        assert self._before is not None
        then, rows_then, sent_then, spent_then = self._before
        passed_s = now - then
        if passed_s <= 0:
            return
        self.measured.seconds += passed_s
        for name in rows:
            more_rows, more_bytes = rows[name] - rows_then[name], sent[name] - sent_then[name]
            if more_rows >= 0 and more_bytes >= 0:  # else its host died, and took its counters along
                rates = {"rows_per_s": more_rows / passed_s, "bytes_per_s": more_bytes / passed_s}
                self._blend(self.measured.streams, name, rates)
        more = {category: count - spent_then.get(category, 0) for category, count in spent.items()}
        if more.get("data", 0) > 0:
            ratio = sum(max(0, more.get(category, 0)) for category in HA_CATEGORIES) / more["data"]
            known = self.measured.ha_ratio
            self.measured.ha_ratio = ratio if known is None else known + WEIGHT * (ratio - known)

    @staticmethod
    def _blend(known: dict[str, dict[str, float]], name: str, newest: dict[str, float]) -> None:
        old = known.setdefault(name, {})
        for key, value in newest.items():
            old[key] = value if key not in old else old[key] + WEIGHT * (value - old[key])


_STAGE = ("batch_s", "state_bytes", "delta_bytes")


class Profiler(threading.Thread):
    """Writes the profile of a running job into its folder, now and then."""

    def __init__(self, folder: Path, status: Callable[[], dict[str, Any]], *, every_s: float = EVERY_S) -> None:
        super().__init__(name="profiler", daemon=True)
        self._path, self._status, self._every_s = folder / FILE, status, every_s
        self._sampler = Sampler()
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._every_s):
            measured = self._sampler.add(self._status(), time.monotonic())
            if measured.streams and not self._ended.is_set():
                temporary = self._path.with_suffix(".tmp")
                temporary.write_text(json.dumps(asdict(measured), indent=1))
                temporary.rename(self._path)

    def end(self) -> None:
        self._ended.set()
