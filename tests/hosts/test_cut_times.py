"""Windows by time without a column, on real hosts that are killed: the times at which epochs were cut are kept, so that
whoever takes over, whoever replays and a run without failure all find the same windows."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from understudy.cut_times import KEY, entry_time
from understudy.drill import Drill

pytestmark = pytest.mark.timeout(400)

JOB = """
import understudy as us

job = us.Job("cut", epoch="200ms")
positions = job.source("positions", us.sources.rate(rows_per_second=500, keys=20), host="h2", standbys=["h3"])
quiet = job.source("quiet", us.sources.rate(rows_per_second=1, keys=2), host="h2", standbys=["h3"])


@job.operator(positions, schema="road long, speed double", stateless=True, host="h3")
class Moving:
    def process(self, positions):
        return positions.select(["road", "speed"])


with job.unit("kept", ha=us.PassiveStandby(every="500ms"), host="h1"):
    means = job.aggregate(positions, by="road", window=us.seconds(20, slide=5), mean=("speed", "mean"))
    alone = job.aggregate(quiet, by="road", window=us.seconds(1), n=("*", "count"), name="alone")
replayed = job.aggregate(
    Moving, by="road", window=us.seconds(20, slide=5), mean=("speed", "mean"), n=("*", "count"), name="replayed",
    ha=us.UpstreamBackup(), roles={"host": "h1"},
)
for stream in (means, alone, replayed):
    job.sink(stream, us.sinks.parquet(f"out/{stream.name}"))
"""


def test_windows_are_the_same_after_a_takeover_and_after_a_replay(tmp_path: Path) -> None:
    job, out = tmp_path / "job.py", tmp_path / "drill"
    job.write_text(JOB)
    with Drill(job, out, hosts=4) as drill:
        drill.epochs(30)
        drill.leg("aggregates")
        drill.signal("replayed")
        drill.epochs(30)
        drill.restart()
        drill.leg("source")
        drill.signal("positions")
        drill.epochs(30)
        for result in drill.judge_legs():
            assert result["verdict"] == "precise" and not result["repeated"] and result["clean_stop"], result
        cut = {name: [entry_time(entry) for entry in entries] for name, entries in drill.entries().items()}
    for name, times in cut.items():
        assert times == sorted(times, key=lambda us: us or 0) and None not in times, name
    closed = {sink: check(out / "run" / sink, cut[source]) for sink, source in SOURCES.items()}
    assert closed["aggregate_positions"] == closed["replayed"] and len(closed["replayed"]) >= 3, "five seconds apart"
    assert len(closed["alone"]) >= 5, "also in epochs without rows"


SOURCES = {"aggregate_positions": "positions", "replayed": "positions", "alone": "quiet"}


def check(sink: Path, times: list[int | None]) -> list[datetime]:
    """Every window comes with the first epoch that was cut at its end, or later. Returns the ends."""
    ends: list[datetime] = []
    for epoch, folder in enumerate(sorted(sink.glob("epoch=*"))):
        assert folder.name == f"epoch={epoch:012d}"
        table = parquet.read_table(folder / "part-0.parquet")
        assert KEY not in (table.schema.metadata or {})
        for end in sorted(set(table["window_end"].to_pylist())):
            end_us, newest = round(end.timestamp() * 1_000_000), times[epoch]
            assert newest is not None and end_us <= newest
            assert epoch == 0 or end_us > (times[epoch - 1] or 0)
            ends.append(end)
    assert ends == sorted(set(ends)), "once each"
    return ends
