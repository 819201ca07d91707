"""States that are saved now and then, in virtual time: what is lost is what was promised."""

from __future__ import annotations

import pytest

from understudy.core import beginning
from understudy.core.policies import checkpoint
from understudy.sim import fuzz

SEEDS = [seed for seed in range(900_000, 900_900) if seed % 11 in (5, 8)]
"""Those in which some units are under ``us.Checkpoint``, and some stages need all their input."""


def complaints(seeds: list[int]) -> list[str]:
    return [f"seed {seed}: {text}" for seed in seeds for text in fuzz.play(seed).wrong[:1]]


def test_nothing_is_lost_but_what_was_acknowledged_and_not_saved() -> None:
    assert complaints([*SEEDS, 902_756]) == []


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
