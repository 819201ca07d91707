"""Adding a policy is adding a file: here is one, and nothing else in the package knows of it.

``Careful`` is passive standby that checkpoints with every epoch. It is spelled, estimated, told of in a plan and
simulated like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest

import understudy as us
from understudy import planning
from understudy.core.costs import estimate
from understudy.core.policies import PassiveStandby, Policy, parse, spell
from understudy.core.policies.base import Protection, Recovery, StageRole
from understudy.core.policies.passive import Sweeping
from understudy.core.profile import Profile
from understudy.sim.checks import judge
from understudy.sim.faults import Fault, Saboteur
from understudy.sim.fuzz import SHAPES, finish, uniform
from understudy.sim.nodes import Conditions, World


@dataclass(frozen=True)
class Careful(Policy):
    kind: ClassVar[str] = "careful standby"
    standbys: int = 1

    @property
    def recovery(self) -> Recovery:
        return "standby"

    @property
    def backups(self) -> int:
        return self.standbys

    @property
    def checkpoint_s(self) -> float:
        return 0.001

    def with_backups(self, backups: int) -> Careful:
        return Careful(backups)

    def protect(self, stages: Iterable[StageRole]) -> Protection:
        return Sweeping(stages, every_s=0.001)

    def silence_s(self, profile: Profile, *, reach_s: float, share: float) -> float:
        return profile.detection_s + profile.batch_s

    def spent(self, profile: Profile) -> tuple[float, float]:
        return profile.delta_bytes / profile.step_s, 0.0

    def kept(self, profile: Profile, inputs: Sequence[str], *, reach_s: float) -> str:
        return "everything, at once"


def test_it_is_spelled() -> None:
    assert spell(Careful(2)) == "careful-standby standbys=2"
    assert parse("careful-standby standbys=2") == Careful(2)
    with pytest.raises(ValueError, match=r"policies are: none, passive-standby, .*careful-standby"):
        parse("careless-standby")


def test_a_policy_that_is_derived_without_a_name_takes_nobodys_place() -> None:
    class Nameless(PassiveStandby):
        pass

    assert type(parse("passive-standby")) is PassiveStandby and parse(spell(Nameless())) == PassiveStandby()


def test_it_is_estimated() -> None:
    profile = Profile(batch_s=0.2, delta_bytes=1000)
    found, usual = estimate(Careful(), profile), estimate(PassiveStandby(), profile)
    assert found.silence_s == found.worst_s == pytest.approx(0.25) and found.silence_s < usual.silence_s
    assert found.ha_ratio == pytest.approx(2000 / profile.bytes_per_s)


def test_a_job_may_have_it_and_its_plan_tells() -> None:
    job = us.Job("j", ha=Careful())
    rows = job.source("rows", us.sources.rate(10))
    stage = job.stage(rows, name="s")(lambda rows: rows)
    job.sink(stage, us.sinks.parquet("out"))
    [unit] = [u for u in planning.outlook(job, job.topology(), {}, None) if u.unit == "s"]
    assert unit.kept == "everything, at once"


@pytest.mark.parametrize("kind", ["kill", "freeze"])
def test_it_is_simulated(kind: str) -> None:
    world = World(uniform(SHAPES["chain"], Careful()), hosts=4, seed=1, conditions=Conditions(epochs=20))
    saboteur = Saboteur(world, [Fault(kind, at=0.5, lasts_s=0.5, pick=1)])
    finish(world, saboteur)
    assert saboteur.done[kind] == 1 and judge(world, saboteur.unprotected) == []
