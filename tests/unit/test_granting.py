"""When a stage may start its next epoch, asked as Spark asks: once for every input."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy import job_files
from understudy.runtime.host import Host, HostConfig
from understudy.runtime.messages import Options, TakeJob
from understudy.runtime.stage import FRESH, RunningStage

JOB = """
import understudy as us

job = us.Job("granting", epoch="50ms")
left = job.source("left", us.sources.rate(rows_per_second=10, keys=2))
right = job.source("right", us.sources.rate(rows_per_second=10, keys=2))


@job.operator(left, right, schema="n long", ha=us.PassiveStandby("individual", every="1s"))
class Both:
    def process(self, left, right):
        return None


job.sink(Both, us.sinks.console())
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[RunningStage]:
    """Of a host that runs nothing else; both of its inputs have their first two epochs."""
    file = tmp_path / "job.py"
    file.write_text(JOB)
    host = Host(HostConfig("h1", tmp_path / "h1", "127.0.0.1:1", "token", lazy_spark=True))
    host.take_job(TakeJob("1", file.name, str(tmp_path), 0.5, 3, {}, Options()), job_files.pack(file))
    found = RunningStage(
        host, "Both", unit="Both", generation=1, folder=tmp_path / "s", state=tmp_path / "s" / "state", **FRESH
    )
    for inlet in found.inlets.values():
        inlet.received = 1
    yield found
    host.server.shutdown()


def asked(stage: RunningStage, after: int) -> tuple[threading.Thread, list[int | None]]:
    answers: list[int | None] = []
    thread = threading.Thread(target=lambda: answers.append(stage.next_epoch(after)), daemon=True)
    thread.start()
    thread.join(0.3)
    return thread, answers


def test_a_stage_that_is_told_to_pause_between_two_inputs_questions_finishes_its_epoch(stage: RunningStage) -> None:
    """It stood still for ever: the second input waited for the pause to end, and the pause for the epoch to end."""
    assert asked(stage, -1)[1] == [0]
    with stage.host.changed:
        stage.paused_by.add("a keeper")
    assert asked(stage, -1)[1] == [0], "the other input is let go as well"
    thread, answers = asked(stage, 0)
    assert answers == [], "but the next epoch waits"
    with stage.host.changed:
        stage.paused_by.clear()
        stage.host.changed.notify_all()
    thread.join(5)
    assert answers == [1]
