"""Operators with windows, and states that are saved now and then, on real hosts that are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from understudy.core.numbers import FIRST_EPOCH
from understudy.drill import Drill
from understudy.verify import compare

pytestmark = pytest.mark.timeout(240)

JOB = """
import pyarrow as pa
import understudy as us

job = us.Job("windows", epoch="100ms")
trades = job.source("trades", us.sources.rate(rows_per_second=1500, keys=50))
quotes = job.source("quotes", us.sources.rate(rows_per_second=300, keys=50, seed=7))

pairs = job.join(
    trades, quotes, on="road", left=us.rows(20_000, group=512), right=us.rows(0),
    name="pairs", ha=us.PassiveStandby(every="500ms"), host="h1",
)
means = job.aggregate(
    trades, by="road", window=us.rows(500, per="road"), mean=("speed", "mean"), name="means",
    ha=us.Checkpoint(every="2s"), roles={"host": "h1"},
)
both = job.barrier(trades, quotes, name="both", ha=us.Checkpoint(every="1s"), host="h1")


@job.operator(trades, schema="epochs long, rows long", ha=us.Checkpoint(every="2s"), host="h1")
class Counts:
    def __init__(self):
        self.epochs = self.rows = 0

    def process(self, trades):
        self.epochs, self.rows = self.epochs + 1, self.rows + trades.num_rows
        return pa.table({"epochs": [self.epochs], "rows": [self.rows]})


for stream in (pairs, means, both, Counts):
    job.sink(stream, us.sinks.parquet(f"out/{stream.name}"))
"""


Story = tuple[dict[str, str], list[dict[str, Any]], Path]
"""Sink -> the verdict on it; what the coordinator said; the drill's folder."""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Of one kill of the host that has all four."""
    folder = tmp_path_factory.mktemp("windows")
    job, out = folder / "job.py", folder / "drill"
    job.write_text(JOB)
    with Drill(job, out, hosts=3) as drill:
        drill.epochs(25)
        drill.signal("pairs")
        drill.epochs(25)
        events, newest = list(drill.coordinator.events), drill.newest()
        result = drill.judge()
        sinks = drill.sinks()
    assert result["repeated"] == 0 and not result["disorder"]
    found = {
        sink: compare.compare_sinks(out / "run" / sink, out / "reference" / sink, since=FIRST_EPOCH, upto=newest)
        for sink in sinks
    }
    return {sink: each.verdict for sink, each in found.items()}, events, out


def test_what_is_lost_is_what_was_promised(story: Story) -> None:
    """A join under passive standby is precise, and so is a barrier whose state is only saved now and then: its
    producers keep what is not saved. The others may lack some epochs, and say how many."""
    verdicts, events, _ = story
    lacking = {e["unit"] for e in events if e["kind"] == "running" and "lacks" in e["text"]}
    assert lacking <= {"means", "Counts"}
    wrong = {sink for sink, verdict in verdicts.items() if verdict != "precise"}
    assert wrong <= {"means", "Counts"}
    assert "Counts" not in lacking or "Counts" in wrong, "what it says of itself shows in what it makes"


def test_it_goes_on_from_the_last_saved_state(story: Story) -> None:
    """Two seconds are 20 epochs: no more than that, and what was on its way, is missing from the count."""
    _, events, folder = story
    said = [e["text"] for e in events if e["kind"] == "promoted" and e["unit"] == "Counts"]
    assert len(said) == 1 and said[0].endswith("from its last saved state")
    newest = sorted((folder / "run" / "Counts").glob("epoch=*"))[-1]
    (row,) = parquet.read_table(newest / "part-0.parquet").to_pylist()
    epoch = int(newest.name.partition("=")[2])
    assert epoch + 1 - 25 <= row["epochs"] <= epoch + 1
