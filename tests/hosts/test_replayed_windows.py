"""Windows that come with it under upstream backup, on real hosts: producers keep the epochs that their rows came in,
and what was killed is rebuilt from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy.core.policies import parse
from understudy.drill import Drill
from understudy.errors import JobError
from understudy.runtime.session import LocalRun, wait_for

pytestmark = pytest.mark.timeout(180)

JOB = """
import understudy as us

job = us.Job("replayed", epoch="100ms")
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
both = job.barrier(trades, quotes, name="both", host="h1", ha=us.{barrier}())
for stream in (pairs, counts, both):
    job.sink(stream, us.sinks.parquet({sinks!r} + stream.name))
"""


def write(folder: Path, ha: str = "UpstreamBackup", barrier: str = "PassiveStandby") -> Path:
    path = folder / "job.py"
    path.write_text(JOB.format(ha=ha, barrier=barrier, sinks=f"{folder}/out/"))
    return path


def held(drill: Drill, stage: str) -> int:
    """How many epochs of its stream are kept."""
    status = drill.coordinator.status()["hosts"][drill.run.host_of(stage)]["stages"][stage]
    return int(status["produced"] - status["trimmed"])


def test_what_was_killed_is_rebuilt_and_old_input_is_let_go_of(tmp_path: Path) -> None:
    with Drill(write(tmp_path), tmp_path / "drill", hosts=4) as drill:
        drill.epochs(40)
        for stage in ("pairs", "counts"):
            drill.leg(stage)
            drill.signal(stage)
            drill.epochs(30)
            drill.restart()
        # 2,000 rows come in 13 epochs, 100 in 3, and what is made of two seconds' ids is done with after 20
        wait_for(lambda: held(drill, "trades") < 45, 20, "old input to be let go of")
        assert held(drill, "trades") >= 13 and held(drill, "quotes") >= 13
        for result in drill.judge_legs():
            assert result["verdict"] == "precise" and result["clean_stop"], result


def test_a_stopped_job_knows_what_its_windows_are_made_of(tmp_path: Path) -> None:
    """It is stopped cleanly, and killed before the windows hold only what came since."""
    job = write(tmp_path)
    with LocalRun(job, tmp_path / "state", hosts=4, fresh=True) as run:
        wait_for(lambda: len(list((tmp_path / "out" / "pairs").glob("epoch=*"))) > 30, 60, "thirty epochs")
        assert run.stop()
    assert list((tmp_path / "state").glob("hosts/*/**/reach.json")), "part of the last checkpoint"


def test_they_come_under_it_while_they_run(tmp_path: Path) -> None:
    with Drill(write(tmp_path, ha="PassiveStandby"), tmp_path / "drill", hosts=4) as drill:
        drill.settle(20)
        drill.switch("pairs", parse("upstream-backup"))
        drill.epochs(10)
        drill.leg("turned")
        drill.signal("pairs")
        drill.epochs(20)
        for result in drill.judge_legs():
            assert result["verdict"] == "precise", result


def test_a_barrier_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(JobError) as caught,
        LocalRun(write(tmp_path, barrier="UpstreamBackup"), tmp_path / "state", hosts=4, fresh=True) as run,
    ):
        run.wait(60)
    assert "a barrier pairs rows by their numbers" in str(caught.value)
