"""A host that cannot write another byte, not even to its log, while it leads or holds: somebody else does, it is said,
and nothing is lost. Then it has room again."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from understudy.drill import Drill

pytestmark = pytest.mark.timeout(180)

JOB = """
import pyarrow as pa
import understudy as us

job = us.Job("full", epoch="50ms")
rows = job.source("rows", us.sources.rate(rows_per_second=2000, keys=20), host="h1", standbys=["h2"])

class Totals:
    def __init__(self):
        self.totals = {{}}
    def process(self, rows):
        for road, speed in zip(rows["road"].to_pylist(), rows["speed"].to_pylist()):
            self.totals[road] = self.totals.get(road, 0.0) + speed
        return pa.table({{"road": list(self.totals), "speed": list(self.totals.values())}})

totals = job.operator(rows, schema="road long, speed double", host="h2", standbys=["h3"], ha={ha})(Totals)
job.sink(totals, us.sinks.parquet("out"))
"""


@contextmanager
def full_disk(process: psutil.Process) -> Iterator[None]:
    """As far as this process can tell."""
    _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, most))
    try:
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))


@pytest.mark.parametrize(
    ("ha", "victim", "told"),
    [
        ('us.PassiveStandby(every="200ms")', "h1", "threw"),
        ('us.PassiveStandby(every="200ms")', "h3", "unprotected"),
        ('us.PassiveStandby("synchronous", every="200ms")', "h2", "threw"),
        ("us.ActiveStandby()", "h2", "threw"),
    ],
)
def test_a_full_disk_costs_a_takeover_and_nothing_else(tmp_path: Path, ha: str, victim: str, told: str) -> None:
    (tmp_path / "job.py").write_text(JOB.format(ha=ha))
    with Drill(tmp_path / "job.py", tmp_path / "drill", hosts=3) as drill:
        drill.settle()
        with full_disk(drill.run.hosts.processes[victim]):
            drill.wait_event(told)
            drill.epochs(20)
        drill.epochs(20)
        said = [event["text"] for event in drill.coordinator.events if event["kind"] in ("threw", "unprotected")]
        result = drill.judge()
    assert (result["verdict"], result["disorder"]) == ("precise", [])
    assert any("machine" in text or "cannot stand by" in text for text in said), said
