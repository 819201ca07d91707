"""A slice of `make soak-kills`: one random job, harmed a few times. The seed is printed when it goes wrong."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import soak_kills

pytestmark = pytest.mark.timeout(240)


def test_a_random_job_under_random_harm(tmp_path: Path) -> None:
    seed = 7 if os.environ.get("CI") else int(time.time())
    soak = soak_kills.play(seed, tmp_path / "soak", 5, lambda _: None)
    assert soak.wrong is None, f"seed {seed} ({', '.join(soak.policies)}): {soak.wrong}"
    assert sum(soak.done.values()) == 5 and soak.lost == soak.repeated == 0


@pytest.mark.parametrize("seed", range(40))
def test_every_seed_makes_a_job_that_can_run(tmp_path: Path, seed: int) -> None:
    import random

    soak = soak_kills.Soak(seed)
    soak_kills.write_job(tmp_path / "job.py", seed, random.Random(seed), soak)
    topology = soak_kills.job_files.load(tmp_path / "job.py").topology()
    assert len(topology.units) >= 3 and len(soak.policies) >= 2
