"""Windows by rows that are rebuilt by replay: producers keep the epochs that their rows came in, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy.core.reach import Reach, Span
from understudy.sim.checks import undrained
from understudy.sim.copies import Copy
from understudy.sim.faults import STOP, Fault, Saboteur, Switching
from understudy.sim.fuzz import POLICIES, SHAPES, Story, finish_and_judge, uniform
from understudy.sim.model import SimJob
from understudy.sim.nodes import Conditions, World

REPLAYED = ["upstream", "upstream-2", "upstream-paced"]


def windowed(policy: str, *, shape: str = "chain", rows: int = 12, units: dict[str, str] | None = None) -> SimJob:
    job = uniform(SHAPES[shape], POLICIES[policy], units=units)
    return replace(job, rows={name: rows for name, stage in job.topology.stages.items() if stage.inputs})


def complaints(job: SimJob, *faults: Fault, stories: int = 6, switches: tuple[Switching, ...] = ()) -> list[str]:
    found: list[str] = []
    for seed in range(stories):
        world = World(job, hosts=5, seed=seed, conditions=Conditions(epochs=40))
        moved = [replace(f, at=f.at + 0.037 * seed, pick=f.pick + seed) for f in faults]
        story = Story(seed, "", "", 5)
        finish_and_judge(world, Saboteur(world, moved, switches), story)
        assert not story.beyond
        found += story.wrong
    return found


@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", [*REPLAYED, "sweeping", "active"])
def test_rows_survive_a_death(policy: str, shape: str, rows: int) -> None:
    assert complaints(windowed(policy, shape=shape, rows=rows), Fault("kill", 1.5, 0.5, 0), stories=3) == []


@pytest.mark.parametrize("policy", REPLAYED)
def test_windows_of_one_unit_are_rebuilt_one_from_the_other(policy: str) -> None:
    assert complaints(windowed(policy, units={"a": "ab", "b": "ab"}), Fault("kill", 1.5, 0.5, 0)) == []


def test_producers_keep_the_epochs_of_the_rows_and_let_go_of_older_ones() -> None:
    world = World(windowed("upstream"), hosts=5, conditions=Conditions(epochs=60))
    world.engine.run(4.0)
    outputs = [unit.outputs() for host in world.hosts.values() for unit in host.units.values() if unit.primary]
    held = {name: out.queue.next - 1 - out.queue.trimmed for outs in outputs for name, out in outs.items()}
    assert held["s"] >= 6 and held["a"] >= 6, "six rows come in four epochs, and twelve are kept"
    assert undrained(world) == [], "and not much more"


@pytest.mark.parametrize("policy", REPLAYED)
def test_what_rows_came_in_is_known_after_a_stop(policy: str) -> None:
    harm = (Fault(STOP, 1.2, 0.2, 0), Fault(STOP, 1.6, 0.2, 0), Fault("kill", 1.8, 0.5, 0))
    assert complaints(windowed(policy), *harm) == []


@pytest.mark.parametrize("then", ["sweeping", "active", "none"])
def test_they_come_under_upstream_backup_while_they_are_full(then: str) -> None:
    """And leave it again."""
    switches = (Switching("b", POLICIES["upstream"], 0.7), Switching("b", POLICIES[then], 2.5))
    for at in (1.0, 1.6, 2.2):
        assert complaints(windowed("sweeping"), Fault("kill", at, 0.5, 0), switches=switches, stories=2) == []


# -- pairs ------------------------------------------------------------------------------------------------------------


def pairing(policy: str, *, shape: str, units: dict[str, str] | None = None) -> SimJob:
    job = uniform(SHAPES[shape], POLICIES[policy], units=units)
    return replace(job, pairs=[name for name, stage in job.topology.stages.items() if stage.inputs])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", [*REPLAYED, "sweeping", "active"])
def test_rows_are_paired_as_they_were_after_a_death(policy: str, shape: str) -> None:
    for kills in (1, 2) if policy == "upstream-2" else (1,):
        harm = [Fault("kill", 1.5 + 0.4 * number, 0.5, number) for number in range(kills)]
        assert complaints(pairing(policy, shape=shape), *harm, stories=4) == []


@pytest.mark.parametrize("policy", REPLAYED)
def test_rows_are_paired_as_they_were_after_a_stop(policy: str) -> None:
    harm = (Fault(STOP, 1.2, 0.2, 0), Fault(STOP, 1.6, 0.2, 0), Fault("kill", 1.8, 0.5, 0))
    assert complaints(pairing(policy, shape="diamond"), *harm, stories=4) == []


def test_pairs_come_under_upstream_backup_while_rows_wait() -> None:
    switches = (Switching("c", POLICIES["upstream"], 0.7),)
    for at in (1.6, 2.2):
        harm = Fault("kill", at, 0.5, 0)
        assert complaints(pairing("sweeping", shape="diamond"), harm, switches=switches, stories=3) == []


def test_forgetting_the_numbers_of_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Copy, "tell_numbers", lambda self: None)
    found = complaints(pairing("upstream", shape="diamond"), Fault("kill", 1.5, 0.5, 0))
    assert any("numbers" in text for text in found)


# -- broken on purpose ------------------------------------------------------------------------------------------------


def test_letting_go_of_an_epoch_too_much_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    harm = Fault("kill", 1.5, 0.5, 0)
    committed = Reach.committed

    def short(self: Reach, epoch: int, spans: list[Span]) -> int:
        return min(epoch + 1, committed(self, epoch, spans) + 2)

    monkeypatch.setattr(Reach, "committed", short)
    found = complaints(windowed("upstream"), harm)
    assert any("different" in text or "lost" in text for text in found)


def test_forgetting_over_a_stop_what_rows_came_in_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Copy, "windows_until", lambda self, epoch: None)
    found: list[str] = []
    for late in range(8):
        found += complaints(windowed("upstream"), Fault(STOP, 1.5, 0.2, 0), Fault("kill", 1.9 + late / 20, 0.5, late))
    assert any("different" in text or "lost" in text for text in found)
