"""``understudy plan`` and ``us.auto`` on real hosts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest
from test_life import epochs_in, final_counts

from jobs import GOALS, write_job
from understudy.cli import FAST_START
from understudy.core.policies import PassiveStandby, UpstreamBackup
from understudy.runtime.session import LocalRun, wait_for
from understudy.sources import generate_rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def more_epochs(run: LocalRun, sink: Path, count: int) -> None:
    """Wait for output; a job that has failed says why at once."""
    goal = epochs_in(sink)[-1] + count
    wait_for(lambda: run.coordinator.failure is not None or epochs_in(sink)[-1] >= goal, 180, f"epoch {goal}")
    run.coordinator.wait(0)


def plan(job: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "understudy", "plan", str(job), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=job.parent, check=False)


def test_a_plan_tells_what_to_expect(tmp_path: Path) -> None:
    job = write_job(tmp_path, GOALS, sink=tmp_path / "out", other=tmp_path / "dice", within="2s")
    state = tmp_path / ".understudy" / "tested"
    state.mkdir(parents=True)
    known = {"streams": {"moving": {"rows_per_s": 2000, "bytes_per_s": 60_000}}, "seconds": 60, "ha_ratio": 0.05}
    (state / "profile.json").write_text(json.dumps(known))
    done = plan(job, "--json", "plan.json")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "us.auto for speeds" in done.stdout
    assert "protection took 5.0% of the data's bytes" in " ".join(done.stdout.split())
    units = {unit["unit"]: unit for unit in json.loads((tmp_path / "plan.json").read_text())["units"]}
    assert list(units) == ["positions", "moving", "speeds", "dice"]
    assert units["moving"]["policy"] == "upstream backup, acks every 10s"
    assert units["moving"]["stages"]["moving"]["determinism"] == "repeatable"
    assert units["speeds"]["policy"].startswith("passive standby, sweeping every")
    assert units["speeds"]["stages"]["speeds"]["state"] == "unbounded"
    assert any("groupBy(road) without a watermark" in line for line in units["speeds"]["why"])
    assert (units["dice"]["recovery"], units["dice"]["stages"]["dice"]["state"]) == ("rollback", "windowed")
    assert "rand() is random" in units["dice"]["recovery_cause"]
    assert units["speeds"]["measured"]["ha_ratio"] > 0
    assert not (tmp_path / "out").exists(), "nothing ran"


def test_a_goal_that_nothing_meets_is_one_clear_error(tmp_path: Path) -> None:
    done = plan(write_job(tmp_path, GOALS, sink=tmp_path / "out", other=tmp_path / "dice", within="1ms"))
    assert done.returncode == 2
    assert "us.auto for unit 'speeds': no policy meets it" in done.stderr
    assert "would allow passive standby, sweeping every 1s" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_with_goals_runs_and_goes_on_under_what_was_chosen(tmp_path: Path) -> None:
    sink = tmp_path / "out"
    job = write_job(tmp_path, GOALS, sink=sink, other=tmp_path / "dice", within="2s")
    state = tmp_path / "state"
    with LocalRun(job, state, hosts=2, fresh=True, settings=FAST_START) as run:
        run.coordinator.wait_until_running(armed=True, timeout_s=180)
        chosen = {name: unit.policy for name, unit in run.coordinator.topology.units.items()}
        assert chosen["moving"] == UpstreamBackup(ack_every="10s")
        assert isinstance(chosen["speeds"], PassiveStandby)
        assert any(e["kind"] == "chosen" and e["text"].startswith("speeds: ") for e in run.coordinator.events)
        wait_for((state / "profile.json").exists, 60, "a profile")
        wait_for(lambda: "batch_s" in json.loads((state / "profile.json").read_text())["stages"]["speeds"], 60, "more")
        run.hosts.signal("h1", signal.SIGKILL)
        more_epochs(run, sink, 6)
        assert run.stop(), "a clean stop"
    slow = {"stages": {"speeds": {"batch_s": 30.0, "state_bytes": 1e9, "delta_bytes": 1e9}}}
    (state / "profile.json").write_text(json.dumps(slow))  # now another policy would be chosen
    with LocalRun(job, state, hosts=2, settings=FAST_START) as run:
        more_epochs(run, sink, 6)
        assert {name: unit.policy for name, unit in run.coordinator.topology.units.items()} == chosen
        assert run.stop(), "a clean stop"
    assert epochs_in(sink) == list(range(epochs_in(sink)[-1] + 1))
    log = max(state.glob("hosts/*/stages/positions/entries.jsonl"), key=lambda path: path.stat().st_size)
    last = json.loads(log.read_text().splitlines()[-1])
    made = generate_rows(0, last["first"] + last["count"], keys=50)
    roads = made.filter(pc.field("speed") > 1)["road"].to_pylist()
    assert final_counts(sink) == dict(Counter(roads))
