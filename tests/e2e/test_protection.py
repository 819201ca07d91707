"""Every policy on real hosts: each stage under its own, and units that change theirs while hosts die."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from jobs import EACH_ITS_OWN, PAIR, PREPARED, write_job
from understudy.cli import FAST_START
from understudy.core.policies import parse
from understudy.drill import Drill
from understudy.errors import JobError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_each_stage_under_its_own_policy(tmp_path: Path) -> None:
    """Eager active standby of two stages, hybrid, two standbys and synchronous checkpoints of two stages at once, in
    one job: a pause that is only suspected, and then two hosts killed at the same moment."""
    job = write_job(tmp_path, EACH_ITS_OWN, sink=tmp_path / "out")
    with Drill(job, tmp_path / "drill", hosts=4, settings=FAST_START, heartbeat_misses=12) as drill:
        drill.settle(4)
        drill.signal("speeds", number=signal.SIGSTOP)
        paused = drill.harmed[-1]
        drill.wait_event("rising", unit="speeds")
        drill.signal(paused, number=signal.SIGCONT)
        drill.wait_event("stood-down", unit="speeds")
        drill.epochs(4)
        drill.signal("moving", "counts")
        drill.epochs(8)
        result = drill.judge()
    assert result["verdict"] == "precise", result
    assert result["disorder"] == []


def test_policies_are_changed_while_hosts_die(tmp_path: Path) -> None:
    """Passive to active with a host that dies in the middle of the change, to upstream backup and back, and between
    policies that can keep their standby. What cannot be is refused and changes nothing."""
    job = write_job(tmp_path, PAIR, sink=tmp_path / "out")
    with Drill(job, tmp_path / "drill", hosts=3, settings=FAST_START) as drill:
        drill.settle(4)
        switch = drill.coordinator.switch
        with pytest.raises(JobError, match="there is no unit 'speed'; units are: positions, speeds"):
            switch("speed", parse("none"))
        with pytest.raises(JobError, match="has a source"):
            switch("positions", parse("none"))
        with pytest.raises(JobError, match="4 copies needs 4 hosts and 3 are there"):
            switch("speeds", parse("active-standby copies=4"))
        refusal = r"rebuild stage 'speeds' by replay: groupBy\(road\) without a watermark .*; use us.PassiveStandby"
        with pytest.raises(JobError, match=refusal):
            switch("speeds", parse("upstream-backup"))
        assert switch("speeds", parse("active-standby")) == (
            "speeds: changes from passive standby, sweeping every 500ms to active standby"
        )
        drill.signal("speeds")
        drill.epochs(2)
        drill.run.hosts.start(drill.harmed[-1])
        drill.turned("speeds")
        drill.settle(2)
        drill.signal("speeds")  # its copy goes on, and gets one of its own when the host is back
        drill.epochs(2)
        drill.run.hosts.start(drill.harmed[-1])
        drill.wait_event("standby-ready", timeout_s=90, unit="speeds")
        drill.settle(2)
        for policy in ("active-standby delivery=eager", "hybrid", "none"):
            drill.switch("speeds", parse(policy))
            assert drill.coordinator.failover.topology.units["speeds"].policy == parse(policy)
            drill.epochs(2)
        drill.switch("speeds", parse("passive-standby individual"))
        drill.epochs(1)
        drill.signal("speeds")  # its checkpoints carry the output queue, and are restored with it
        drill.epochs(8)
        result = drill.judge()
    assert result["verdict"] == "precise", result
    assert result["disorder"] == []


def test_an_operator_is_given_what_a_query_has_prepared(tmp_path: Path) -> None:
    """The query's state and the object's are of one epoch, under passive standby and then as a running copy; and Spark
    stages read what an operator makes."""
    job = write_job(tmp_path, PREPARED, sink=tmp_path / "out")
    with Drill(job, tmp_path / "drill", hosts=2, settings=FAST_START) as drill:
        drill.settle(4)
        drill.leg("passive")
        drill.signal("Most")
        drill.epochs(4)
        drill.restart()
        drill.switch("Most", parse("active-standby"))
        drill.settle(4)
        drill.leg("active")
        drill.signal("Most")
        drill.epochs(6)
        for result in drill.judge_legs():
            assert result["verdict"] == "precise", result
            assert result["disorder"] == []
