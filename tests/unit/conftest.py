"""A checkpoint store, and a primary that ships to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores import FILES, Primary
from understudy.runtime import parts
from understudy.runtime.checkpoints import CheckpointStore


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "store")


@pytest.fixture
def primary(tmp_path: Path, store: CheckpointStore) -> Primary:
    return Primary(tmp_path / "primary", store)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(parts, "PART_BYTES", 10)
    return 10


@pytest.fixture
def held(store: CheckpointStore, primary: Primary) -> CheckpointStore:
    """Epoch 5, after another one."""
    primary.ship(3, {"metadata": b"m", "state/a": b"aa"})
    primary.ship(5, FILES)
    return store
