"""Jobs of operators on real host processes, which start in a second: every policy, kills, pauses, and processes of
operators that die on a living host."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from understudy.core.policies import PassiveStandby, parse
from understudy.drill import Drill
from understudy.errors import StageFailed, UnderstudyError
from understudy.runtime.messages import AwaitTurn, SwitchPolicy
from understudy.runtime.session import LocalRun, wait_for
from understudy.runtime.wire import Peer, Refusal

pytestmark = pytest.mark.timeout(180)

HEAD = '''
import os, pathlib
import pyarrow as pa
import pyarrow.compute as pc
import understudy as us

job = us.Job("tested", epoch={epoch!r}, ha=us.PassiveStandby(every="200ms"))
rows = job.source("rows", us.sources.rate(rows_per_second=2000, keys=20), host="h1", standbys=["h2"])

class Totals:
    """What every road has come to, with a number that tells how many epochs there were."""
    def __init__(self):
        self.totals, self.epochs = {{}}, 0
    def process(self, rows):
        {before}
        self.epochs += 1
        sums = rows.group_by("road").aggregate([("speed", "sum")])
        for road, speed in zip(sums["road"].to_pylist(), sums["speed_sum"].to_pylist()):
            self.totals[road] = self.totals.get(road, 0.0) + speed
        roads = sorted(self.totals)
        speeds = [self.totals[road] for road in roads]
        return pa.table({{"road": roads, "speed": speeds, "epochs": [self.epochs] * len(roads)}})

class Halved:
    def process(self, rows):
        return rows.set_column(rows.schema.get_field_index("speed"), "speed", pc.divide(rows["speed"], 2.0))

WIDE, SUMS = "id long, road long, speed double", "road long, speed double, epochs long"
'''
ALL_POLICIES = (
    HEAD
    + """
halved = job.operator(rows, schema=WIDE, stateless=True, name="halved", ha=us.UpstreamBackup(), host="h2")(Halved)
passive = job.operator(halved, schema=SUMS, name="passive", host="h3")(Totals)
alone, together = us.PassiveStandby("individual", every="200ms"), us.PassiveStandby("synchronous", every="200ms")
single = job.operator(passive, schema=SUMS, name="single", ha=alone)(Totals)
together = job.operator(single, schema=SUMS, name="together", ha=together)(Totals)
active = job.operator(halved, schema=SUMS, name="active", ha=us.ActiveStandby(), host="h3")(Totals)
eager = job.operator(active, schema=SUMS, name="eager", ha=us.ActiveStandby(delivery="eager"))(Totals)
hybrid = job.operator(eager, schema=SUMS, name="hybrid", ha=us.Hybrid(every="200ms"))(Totals)
two = job.operator(halved, schema=SUMS, name="two", ha=us.PassiveStandby(standbys=2, every="200ms"))(Totals)

@job.operator(together, hybrid, two, schema="road long, most double")
class Ends:
    def process(self, left, middle, right):
        both = pa.concat_tables([left, middle, right])
        return both.group_by("road").aggregate([("speed", "max")]).rename_columns(["road", "most"])

job.sink(Ends, us.sinks.parquet({sink!r}))
"""
)
PAIR = (
    HEAD
    + """
totals = job.operator(rows, schema=SUMS, name="totals", host="h2", standbys=["h1"])(Totals)
job.sink(totals, us.sinks.parquet({sink!r}))
"""
)


def write(folder: Path, text: str, before: str = "pass", epoch: str = "50ms") -> Path:
    path = folder / "job.py"
    path.write_text(text.format(sink=str(folder / "out"), before=before, epoch=epoch))
    return path


def processes_of(drill: Drill, stage: str) -> list[psutil.Process]:
    """The operators' processes on the host of a stage."""
    pid = drill.coordinator.pids[drill.run.host_of(stage)]
    return [p for p in psutil.Process(pid).children() if "understudy.runtime.operator_child" in p.cmdline()]


def judged(drill: Drill) -> None:
    for result in drill.judge_legs():
        assert result["verdict"] == "precise", result
        assert result["disorder"] == [] and result["clean_stop"]


@pytest.mark.timeout(400)
def test_every_policy_in_one_job_under_kills_and_a_pause(tmp_path: Path) -> None:
    job = write(tmp_path, ALL_POLICIES, epoch="150ms")  # two cores are busy with ten of them a second
    with Drill(job, tmp_path / "drill", hosts=4) as drill:
        drill.settle(10)
        assert not any(host.get("spark") for host in drill.coordinator.status()["hosts"].values()), "no JVM"
        for stage in ("passive", "single", "eager", "rows"):
            drill.leg(stage)
            drill.signal(stage)
            drill.epochs(10)
            drill.restart()
        drill.leg("pause")
        drill.signal("hybrid", number=signal.SIGSTOP)
        paused = drill.harmed[-1]
        drill.wait_event("host-lost", host=paused)
        drill.epochs(10)
        drill.signal(paused, number=signal.SIGCONT)
        drill.epochs(10)
        judged(drill)


def test_policies_are_changed_while_hosts_die(tmp_path: Path) -> None:
    with Drill(write(tmp_path, PAIR), tmp_path / "drill", hosts=3) as drill:
        drill.settle(4)
        for policy in ("active-standby", "hybrid", "passive-standby individual", "active-standby delivery=eager"):
            drill.switch("totals", parse(policy))
            drill.settle(4)
            drill.leg(policy)
            drill.signal("totals")
            drill.epochs(4)
            drill.restart()
        judged(drill)


def test_what_a_unit_cannot_change_to_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with LocalRun(write(tmp_path, PAIR), tmp_path / "state", hosts=2, fresh=True) as run:
        run.coordinator.wait_until_running()
        peer = Peer(run.coordinator.address, run.config.token)
        for unit, policy, why in (
            ("total", "none", "there is no unit 'total'; units are: rows, totals"),
            ("rows", "none", "unit 'rows' has a source"),
            ("totals", "hybris", "policies are: none, passive-standby"),
            ("totals", "active-standby copies=3", "needs 3 hosts and 2 are there"),
            ("totals", "upstream-backup", "stateless=True"),
        ):
            reply = peer.call(SwitchPolicy(unit, policy))
            assert reply.refused == Refusal.POLICY and why in reply.text
        assert peer.call(SwitchPolicy("totals", "active-standby")).answer.turning
        assert peer.call(AwaitTurn("totals"), timeout_s=30).answer.text == "totals: now under active standby"
        peer.close()


def test_a_paused_primary_is_missed_and_welcomed_back_by_its_monitor(tmp_path: Path) -> None:
    text = PAIR.replace('host="h2"', 'host="h2", monitor="h3"')
    with Drill(write(tmp_path, text), tmp_path / "drill", hosts=3) as drill:
        drill.settle(4)
        drill.signal("totals", number=signal.SIGSTOP)
        assert drill.harmed == ["h2"]
        for kind in ("missed", "failed"):
            drill.wait_event(kind, host="h2", by="h3")
        drill.epochs(10)
        assert drill.run.host_of("totals") == "h1"
        drill.signal("h2", number=signal.SIGCONT)
        drill.wait_event("answers", host="h2", by="h3")
        drill.epochs(10)
        judged(drill)


def test_a_process_that_dies_on_a_living_host_costs_one_takeover_and_not_the_host(tmp_path: Path) -> None:
    with Drill(write(tmp_path, PAIR), tmp_path / "drill", hosts=3) as drill:
        drill.settle(10)
        host = drill.run.host_of("totals")
        [process] = processes_of(drill, "totals")
        process.kill()
        wait_for(lambda: drill.run.host_of("totals") != host, 10, "a takeover")
        drill.epochs(20)
        said = [e for e in drill.coordinator.events if e["kind"] == "threw"]
        assert len(said) == 1 and "totals" in said[0]["text"] and "trying once more" in said[0]["text"]
        assert host in drill.coordinator.failover.alive
        judged(drill)


def failure_of(job: Path, folder: Path) -> UnderstudyError:
    with pytest.raises(UnderstudyError) as caught, LocalRun(job, folder, hosts=2, fresh=True) as run:
        run.wait(60)
    return caught.value


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ("if self.epochs == 20: raise ValueError('no twentieth')", "ValueError: no twentieth"),
        ("if self.epochs == 20: os._exit(7)", "the process of operator 'totals' ended by itself, with exit code 7"),
    ],
)
def test_code_that_fails_twice_at_an_epoch_stops_the_job_and_names_it(tmp_path: Path, before: str, cause: str) -> None:
    error = failure_of(write(tmp_path, PAIR, before), tmp_path / "state")
    assert isinstance(error, StageFailed) and error.exit_code == 5
    assert "totals" in str(error) and "epoch 20" in str(error) and cause in str(error)


def test_an_object_that_cannot_be_made_is_refused_before_anything_runs(tmp_path: Path) -> None:
    text = PAIR.replace("self.totals, self.epochs = {{}}, 0", "open('/nowhere/at/all')")
    error = failure_of(write(tmp_path, text), tmp_path / "state")
    assert error.exit_code == 2
    assert "operator 'totals' cannot be made: FileNotFoundError" in str(error) and "job.py:" in str(error)


def test_upstream_backup_of_an_object_with_state_is_refused(tmp_path: Path) -> None:
    text = PAIR.replace('host="h2", standbys=["h1"])(Totals)', "ha=us.UpstreamBackup())(Totals)")
    error = failure_of(write(tmp_path, text), tmp_path / "state")
    assert error.exit_code == 2 and "stateless=True" in str(error)


UNPICKLABLE = PAIR.replace(
    "self.totals, self.epochs = {{}}, 0", "self.totals, self.epochs, self.lock = {{}}, 0, LOCK()"
)
UNPICKLABLE = UNPICKLABLE.replace("class Totals:", "from threading import Lock as LOCK\n\nclass Totals:")


@pytest.mark.parametrize("ha", ["us.PassiveStandby()", 'us.PassiveStandby("individual")'])
def test_a_state_that_cannot_be_saved_stops_the_job_and_says_so(tmp_path: Path, ha: str) -> None:
    text = UNPICKLABLE.replace('host="h2", standbys=["h1"])(Totals)', f"ha={ha})(Totals)")
    error = failure_of(write(tmp_path, text), tmp_path / "state")
    assert isinstance(error, StageFailed) and "cannot pickle '_thread.lock' object" in str(error)
    assert "write methods save and restore" in str(error) and error.exit_code == 5


def test_what_keeps_nothing_need_not_be_saved(tmp_path: Path) -> None:
    text = UNPICKLABLE.replace('host="h2", standbys=["h1"])(Totals)', "stateless=True)(Totals)")
    with LocalRun(write(tmp_path, text), tmp_path / "state", hosts=2, fresh=True) as run:
        wait_for(lambda: len(list((tmp_path / "out").glob("epoch=*"))) > 10, 30, "ten epochs")
        run.wait(0)
        assert run.stop()


def test_an_object_that_has_forked_is_missed_all_the_same(tmp_path: Path) -> None:
    """What it leaves behind holds nobody up, and the host sees its death."""
    before = "import subprocess, sys; os.fork() or __import__('time').sleep(600) if self.epochs == 1 else None"
    with Drill(write(tmp_path, PAIR, before), tmp_path / "drill", hosts=3) as drill:
        drill.coordinator.wait_until_running(armed=True)
        drill.epochs(10)
        host = drill.run.host_of("totals")
        os.kill(min(p.pid for p in processes_of(drill, "totals")), signal.SIGKILL)
        wait_for(lambda: drill.run.host_of("totals") != host, 10, "a takeover")
        drill.epochs(10)


def test_a_stopped_job_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Cleanly, and after everybody was killed at once, under the policy that was chosen for it; the number of epochs is
    part of the state."""
    text = PAIR.replace('host="h2"', 'ha=us.auto(recovery_time="10s"), host="h2"')
    job, folder = write(tmp_path, text), tmp_path / "state"
    chosen = set()

    def newest() -> int:
        return max((int(p.parent.name[6:]) for p in (tmp_path / "out").glob("epoch=*/part-*")), default=-1)

    def run_for(epochs: int, *, fresh: bool = False, kill: bool = False) -> None:
        goal = newest() + epochs
        with LocalRun(job, folder, hosts=2, fresh=fresh) as run:
            wait_for(lambda: newest() >= goal, 30, f"epoch {goal}")
            run.wait(0)
            chosen.add(run.coordinator.topology.units["totals"].policy)
            if kill:
                for process in run.hosts.processes.values():
                    for each in [*process.children(recursive=True), process]:
                        each.kill()
            else:
                assert run.stop()

    run_for(20, fresh=True)
    run_for(20, kill=True)
    run_for(20)
    [policy] = chosen
    assert isinstance(policy, PassiveStandby)
    import pyarrow.dataset as pads

    written = pads.dataset(tmp_path / "out", partitioning="hive").to_table(columns=["epoch", "epochs"])
    assert {(e, n - 1) for e, n in zip(written["epoch"].to_pylist(), written["epochs"].to_pylist())} == {
        (e, e) for e in range(newest() + 1)
    }


def test_what_user_code_prints_is_logged_and_nothing_is_left_of_a_killed_host(tmp_path: Path) -> None:
    before = "import time; print('here is', self.epochs, flush=True); time.sleep(0.01)"
    with Drill(write(tmp_path, PAIR, before), tmp_path / "drill", hosts=2) as drill:
        drill.settle(2)
        logs: list[Any] = [p.read_text() for p in (tmp_path / "drill" / "state" / "hosts").glob("*/host.log")]
        assert any("here is 1\n" in text for text in logs)
        [process] = processes_of(drill, "totals")
        host = psutil.Process(drill.coordinator.pids[drill.run.host_of("totals")])
        os.kill(host.pid, signal.SIGKILL)  # it alone, not what it has started
        wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, 5, "its process to end")
        drill.epochs(4)
