"""A source's new primary shows the newest entry of its log when those standbys have it that the plan counts on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from understudy.core.keeping import Holdings
from understudy.core.landed import Landed
from understudy.core.plans import UnitPlan
from understudy.core.policies import PassiveStandby
from understudy.core.topology import StageShape, Topology, UnitShape
from understudy.runtime import messages
from understudy.runtime.source import EntryLog, SourceStage
from understudy.runtime.wire import Refusal, Reply, refuse

TOPOLOGY = Topology.build(
    [StageShape("s"), StageShape("a", ("s",))],
    [UnitShape("s", ("s",), PassiveStandby(standbys=2)), UnitShape("a", ("a",), PassiveStandby())],
)


class FakeHost(SimpleNamespace):
    """As much of a host as a source needs. ``answers``: what its peers say."""

    def __init__(self, answers: dict[str, Callable[[messages.Entries], Reply[Any]]]) -> None:
        cursor = SimpleNamespace(read=lambda entry: f"rows of {entry}")
        source = SimpleNamespace(open=lambda entries: cursor)
        super().__init__(
            name="h1",
            changed=threading.Condition(threading.RLock()),
            job=SimpleNamespace(
                stages={"s": SimpleNamespace(source=source, sinks=())}, epoch_s=0.1, needs_cut_times=False
            ),
            options=SimpleNamespace(replay={}),
            topology=TOPOLOGY,
            heartbeat=(0.5, 5),
            landed=Landed(),
            serial=1,
            go=99,
            draining=False,
            payloads=SimpleNamespace(get=lambda key, epoch: None, drop_all=lambda key: None),
        )
        self.answers = answers
        self.output = lambda stage: self.source.output

    def peer(self, name: str) -> Any:
        return SimpleNamespace(call=lambda call, **_: self.answers[name](call))

    def report_all(self, reports: list[Any]) -> None:
        pass

    def delivers_eagerly(self, consumer: str) -> bool:
        return False

    def wait_for_newer_plan(self, serial: int, stage: Any, timeout_s: float) -> None:
        with self.changed:
            self.changed.wait(0.01)


def takes_all(call: messages.Entries) -> Reply[Any]:
    return Reply(call.after + len(call.entries))


def promoted(host: FakeHost, folder: Path) -> SourceStage:
    """With a log of three entries, the newest of which may have been seen by nobody."""
    log = EntryLog(folder / "entries.jsonl")
    log.append(["e0", "e1", "e2"])
    source = host.source = SourceStage(host, "s", unit="s", generation=2, log=log)  # type: ignore[arg-type]
    return source


def names(source: SourceStage, standbys: tuple[str, ...], ready: tuple[str, ...]) -> None:
    plan = UnitPlan(generation=2, primary="h1", standbys=standbys, ready=ready, since=(1,) * len(standbys))
    source.protect(plan, [], Holdings("h1", "s", 2, ["s"]))


def test_the_newest_inherited_entry_is_seen_when_the_ready_standby_has_it(tmp_path: Path) -> None:
    there = threading.Event()
    host = FakeHost({"h2": lambda call: takes_all(call) if there.is_set() else refuse(Refusal.ELSEWHERE)})
    source = promoted(host, tmp_path)
    names(source, ("h2",), ("h2",))
    assert source.output.take("a", 1, 0.0) == (None, "rows of e1"), "it was seen before the next was cut"
    assert source.output.take("a", 2, 0.05)[0] == Refusal.LATER
    assert source.begun == 2 and not source._may_close()
    there.set()
    assert source.output.take("a", 2, 5.0) == (None, "rows of e2")
    source.stop()


def test_a_fresh_standby_is_not_waited_for(tmp_path: Path) -> None:
    host = FakeHost({"h2": lambda call: refuse(Refusal.ELSEWHERE)})
    source = promoted(host, tmp_path)
    names(source, ("h2",), ())
    assert source.output.take("a", 2, 0.0) == (None, "rows of e2")
    source.stop()
