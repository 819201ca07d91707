"""States that are saved now and then, in virtual time: what is lost is what was promised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy.core import beginning
from understudy.core.policies import checkpoint
from understudy.core.row_counts import Missed
from understudy.sim import fuzz
from understudy.sim.faults import STOP, Fault, Saboteur
from understudy.sim.model import SimJob
from understudy.sim.nodes import Conditions, World

SEEDS = [seed for seed in range(900_000, 900_900) if seed % 11 in (5, 8)]
"""Those in which some units are under ``us.Checkpoint``, and some stages need all their input."""


def complaints(seeds: list[int]) -> list[str]:
    return [f"seed {seed}: {text}" for seed in seeds for text in fuzz.play(seed).wrong[:1]]


def test_nothing_is_lost_but_what_was_acknowledged_and_not_saved() -> None:
    assert complaints([*SEEDS, 902_756, 2_048_340]) == []


def test_an_epoch_that_nobody_acknowledged_must_not_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(saved: int, found: beginning.Start) -> beginning.Resumed:
        return beginning.Resumed(max(saved, found.epoch - 1) + 1, 0)

    monkeypatch.setattr(beginning, "resumed", broken)
    assert any("which nobody has acknowledged" in text for text in complaints(SEEDS))


def test_what_needs_all_its_input_must_not_let_go_of_it_before_it_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint._Stage, "safe_epoch", lambda stage: stage.committed)
    assert any("would need" in text for text in complaints(SEEDS))


def test_a_state_that_was_safe_must_not_get_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standby keeps the first version that it is given, and says that it has the newest."""
    from understudy.sim.disks import Disk

    paste = Disk.paste
    monkeypatch.setattr(Disk, "paste", lambda disk, stage, version: disk.newest(stage) or paste(disk, stage, version))
    going_on = [seed for seed in SEEDS if seed % 7 and seed % 13 not in (1, 3)]  # a whole job would end on it
    assert any("has lost a state that was safe there" in text for text in complaints(going_on))


# -- a clean stop ------------------------------------------------------------------------------------------------------


def stopped_and_resumed(seed: int) -> list[str]:
    """A stage whose consumer also reads another source, which has come less far when the job is stopped."""
    stages = fuzz.shape({"s": (), "t": (), "a": ("s",), "j": ("a", "t")})
    policy = checkpoint.Checkpoint(every=fuzz.EVERY_S)
    job = fuzz.job_of(stages, {"a": policy, "j": policy}, span={"a": 0, "j": 0})
    world = World(job, hosts=5, seed=seed, conditions=Conditions(epochs=60, process_s=0.12, asks_late=True))

    def pause() -> None:
        host = world.hosts[str(world.coordinator.failover.plan.units["t"].primary)]
        host.pause()
        world.engine.after(0.15, host.resume)

    at = 1.0 + 0.01 * seed
    world.engine.at(at - 0.12, pause)
    story = fuzz.Story(seed, "checkpoint", "join", 5)
    fuzz.finish_and_judge(world, Saboteur(world, [Fault(STOP, at, 0.3, 0)]), story)
    return story.wrong


def test_what_a_consumer_lacks_at_a_clean_stop_is_there_when_the_job_is_resumed() -> None:
    assert [text for seed in range(12) for text in stopped_and_resumed(seed)] == []


# -- stale rows -------------------------------------------------------------------------------------------------------


def killed(seed: int) -> list[str]:
    """Windows by rows whose states are saved now and then, and what is wrong after some host was killed."""
    job = fuzz.uniform(fuzz.SHAPES["diamond"], checkpoint.Checkpoint(every="400ms"), span=3)
    job = replace(job, rows={name: 20 for name, stage in job.topology.stages.items() if stage.inputs})
    world = World(job, hosts=5, seed=seed, conditions=Conditions(epochs=40))
    fuzz.finish(world, Saboteur(world, [Fault("kill", 1.5 + 0.037 * seed, 0.5, seed)]))
    return list(world.violations)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Missed]:
    """What restored stages were told that they missed."""
    said: list[Missed] = []
    step = SimJob.without_stale

    def noted(job: SimJob, stage: str, state: tuple[int, ...], missed: int) -> tuple[int, ...]:
        after = step(job, stage, state, missed)
        assert len(after) - 1 <= 20 and list(after[1:]).count(-1) >= min(20, missed)
        said.append(Missed(0, {stage: missed}))
        return after

    monkeypatch.setattr(SimJob, "without_stale", noted)
    return said


def test_a_restored_window_is_told_how_many_rows_it_missed(told: list[Missed]) -> None:
    assert [text for seed in range(12) for text in killed(seed)] == []
    assert any(count > 3 for each in told for count in each.rows.values())


def test_one_that_nobody_told_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from understudy.core import row_counts

    monkeypatch.setattr(row_counts, "missed", lambda saved, resumed, counted, usual: Missed())
    assert any("is told that it missed 0 rows" in t for seed in range(12) for t in killed(seed))
