"""Windows that come with it under upstream backup, on real hosts: producers keep the epochs that their rows came in,
and what was killed is rebuilt from them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as pads
import pytest

from understudy.core.policies import parse
from understudy.drill import Drill
from understudy.runtime.session import LocalRun, wait_for

pytestmark = pytest.mark.timeout(400)

JOB = """
import understudy as us

job = us.Job("replayed", epoch="200ms")
trades = job.source("trades", us.sources.rate(rows_per_second=1500, keys=50), host="h2", standbys=["h3"])
quotes = job.source("quotes", us.sources.rate(rows_per_second=300, keys=50, seed=7), host="h3", standbys=["h2"])
pairs = job.join(
    trades, quotes, on="road", left=us.rows(2000, group=512), right=us.rows(100), name="pairs",
    ha=us.{ha}(), host="h1",
)
counts = job.aggregate(
    trades, by="road", window=us.seconds(2, slide=1, of="id"), n=("*", "count"), mean=("speed", "mean"),
    name="counts", ha=us.{ha}(), roles={{"host": "h1"}},
)
more = job.source("more", us.sources.rate(rows_per_second=300, keys=50, seed=3), host="h3", standbys=["h2"])
both = job.barrier(more, quotes, name="both", host="h1", ha=us.{ha}())
for stream in (pairs, counts, both):
    job.sink(stream, us.sinks.parquet({sinks!r} + stream.name))
"""


def write(folder: Path, ha: str = "UpstreamBackup") -> Path:
    path = folder / "job.py"
    path.write_text(JOB.format(ha=ha, sinks=f"{folder}/out/"))
    return path


def held(drill: Drill, stage: str) -> int:
    """How many epochs of its stream are kept."""
    status = drill.coordinator.status()["hosts"][drill.run.host_of(stage)]["stages"][stage]
    return int(status["produced"] - status["trimmed"])


def test_what_was_killed_is_rebuilt_and_old_input_is_let_go_of(tmp_path: Path) -> None:
    with Drill(write(tmp_path), tmp_path / "drill", hosts=4) as drill:
        drill.epochs(25)
        for stage in ("pairs", "both"):
            drill.leg(stage)
            drill.signal(stage)
            drill.epochs(15)
            drill.restart()
        # 2,000 rows come in seven epochs, 100 in two, and what is made of 2,000 ids is done with soon afterwards
        wait_for(lambda: held(drill, "trades") < 30, 20, "old input to be let go of")
        assert held(drill, "trades") >= 3 and held(drill, "quotes") >= 3
        wait_for(lambda: held(drill, "more") < 20, 20, "what waits for no partner to be let go of")
        for result in drill.judge_legs():
            assert result["verdict"] == "precise" and result["clean_stop"], result


def test_a_stopped_job_knows_what_its_windows_are_made_of(tmp_path: Path) -> None:
    """It is stopped cleanly, and killed before the windows hold only what came since."""
    job = write(tmp_path)
    with LocalRun(job, tmp_path / "state", hosts=4, fresh=True) as run:
        wait_for(lambda: len(list((tmp_path / "out" / "pairs").glob("epoch=*"))) > 30, 60, "thirty epochs")
        assert run.stop()
    assert list((tmp_path / "state").glob("hosts/*/**/reach.json")), "part of the last checkpoint"
    with LocalRun(job, tmp_path / "state", hosts=4) as run:
        done = len(list((tmp_path / "out" / "both").glob("epoch=*")))
        wait_for(lambda: len(list((tmp_path / "out" / "both").glob("epoch=*"))) > done + 3, 60, "it to go on")
        run.hosts.processes["h1"].kill()
        wait_for(lambda: len(list((tmp_path / "out" / "both").glob("epoch=*"))) > done + 20, 60, "it to be rebuilt")
        assert run.stop()
    both = pads.dataset(tmp_path / "out" / "both", partitioning="hive").to_table()
    assert both["id"].to_pylist() == both["id_2"].to_pylist(), "ids count the rows of a source"
    assert sorted(both["id"].to_pylist()) == list(range(both.num_rows)), "none is lost, none comes twice"


def test_they_come_under_it_while_they_run(tmp_path: Path) -> None:
    with Drill(write(tmp_path, ha="PassiveStandby"), tmp_path / "drill", hosts=4) as drill:
        drill.settle(20)
        drill.switch("pairs", parse("upstream-backup"))
        drill.switch("both", parse("upstream-backup"))
        drill.epochs(10)
        drill.leg("turned")
        drill.signal("pairs")
        drill.epochs(20)
        for result in drill.judge_legs():
            assert result["verdict"] == "precise", result
