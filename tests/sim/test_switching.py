"""A unit changes its policy while the job runs and things go wrong; and what would happen if it did so carelessly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations

import pytest

from understudy.core.failover import Failover
from understudy.core.keeping import Keeper
from understudy.core.plans import Turn, UnitPlan
from understudy.core.policies import ActiveStandby, PassiveStandby, Policy, none
from understudy.core.policies.passive import StageVersions
from understudy.sim.checks import judge
from understudy.sim.copies import Copy
from understudy.sim.faults import SWITCH, Saboteur, Switching
from understudy.sim.fuzz import (
    SHAPES,
    Story,
    finish,
    finish_and_judge,
    job_of,
    play,
    play_many,
    shape,
    uniform,
)
from understudy.sim.nodes import Conditions, World
from understudy.sim.steps import KEPT, POLICIES, TURNS, Place, crash_everywhere
from understudy.sim.units import Unit

AT = 1.0
"""When units are switched here."""
PAIRS = list(permutations(KEPT, 2))
OTHERWISE = [(a, b) for a, b in PAIRS if {a, b} & {"active", "eager", "upstream"} and {a, b} != {"active", "eager"}]
"""Those that take a turn: who stands by under the one cannot under the other."""

Harm = Callable[[World], None]


def world_of(before: str, after: str, *, hosts: int = 4, span: int | None = None, seed: int = 1) -> World:
    replays = "upstream" in (before, after)
    job = uniform(SHAPES["chain"], POLICIES[before], span=span if span is not None else 3 * replays)
    conditions = Conditions(epochs=25, disk_s=0.08, delay_s=0.01)
    world = World(job, hosts=hosts, seed=seed, conditions=conditions)
    world.story = []
    return world


def plan(world: World, unit: str = "a") -> UnitPlan:
    return world.coordinator.journalled.units[unit]


def said(world: World, text: str) -> bool:
    return any(text in line for _, line in world.story or [])


def told(world: World, switches: list[Switching], harm: Harm | None = None, *, harm_at: float = AT) -> Story:
    """The story with these switches, and with harm at some time."""
    story = Story(0, "", "", len(world.hosts))
    saboteur = Saboteur(world, [], switches)
    if harm is not None:
        saboteur.healed_at = max(saboteur.healed_at, harm_at)
        world.engine.at(harm_at, harm, world)
    finish_and_judge(world, saboteur, story)
    return story


def switched(
    before: str, after: str, harm: Harm | None = None, *, late_s: float = 0.0, span: int | None = None, seed: int = 1
) -> tuple[World, Story]:
    world = world_of(before, after, span=span, seed=seed)
    return world, told(world, [Switching("a", POLICIES[after], AT)], harm, harm_at=AT + late_s)


def kill_primary(world: World) -> None:
    host = world.hosts[plan(world).primary or ""]
    host.crash()
    world.engine.after(1.2, host.restart)


def kill_coming(world: World) -> None:
    """The standby that is being made, or was."""
    unit = plan(world)
    for name in (unit.turn.standbys if unit.turn else unit.standbys)[:1]:
        world.hosts[name].crash()
        world.engine.after(1.2, world.hosts[name].restart)


def moments() -> Iterator[float]:
    """How long after the switch: while it is on its way, while state is on its way, and when all of it is done."""
    yield from (0.005, 0.015, 0.025, 0.06, 0.1, 0.115, 0.13, 0.2, 0.4)


# -- what is promised -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_without_harm_all_is_well(before: str, after: str) -> None:
    world, story = switched(before, after)
    assert story.wrong == [] and not story.beyond
    assert plan(world).policy is not None and plan(world).protected_by(none) == POLICIES[after]
    assert said(world, f"a: now under {POLICIES[after].describe()}")
    assert not said(world, "lost") and not said(world, "UNPROTECTED")


@pytest.mark.parametrize("harm", [kill_primary, kill_coming])
@pytest.mark.parametrize(("before", "after"), OTHERWISE)
def test_whoever_dies_in_mid_turn_nothing_is_lost(before: str, after: str, harm: Harm) -> None:
    for late_s in moments():
        world, story = switched(before, after, harm, late_s=late_s)
        assert (late_s, story.wrong, story.beyond) == (late_s, [], False)
        assert plan(world).protected_by(none) == POLICIES[after], "it comes to that all the same"


@pytest.mark.parametrize("after", ["active", "sweeping"])
def test_with_two_hosts_only_the_old_standby_makes_room(after: str) -> None:
    before = "sweeping" if after == "active" else "active"
    world = world_of(before, after, hosts=2)
    story = told(world, [Switching("a", POLICIES[after], AT)], kill_primary, harm_at=AT + 1.0)
    assert said(world, "a is UNPROTECTED while it changes its policy") and said(world, "a: now under")
    assert story.wrong == [] and not story.beyond, "the new one has been ready for long"


def test_who_is_killed_while_nobody_stands_by_is_beyond_the_promise() -> None:
    world = world_of("sweeping", "active", hosts=2)
    story = told(world, [Switching("a", POLICIES["active"], AT)], kill_primary, harm_at=AT + 0.001)
    assert story.beyond


def test_a_change_of_mind_fills_the_room_that_was_made() -> None:
    world = world_of("sweeping", "active", hosts=2)
    story = told(world, [Switching("a", POLICIES["active"], AT), Switching("a", POLICIES["sweeping"], AT + 0.001)])
    assert story.wrong == [] and len(plan(world).ready) == 1


def test_the_same_again_does_not_begin_again() -> None:
    """A primary that has reported that its producers keep enough would not do so for another turn to the same."""
    world = world_of("sweeping", "upstream")
    story = told(world, [Switching("a", POLICIES["upstream"], AT + late) for late in (0, 0.04, 0.08, 0.12, 0.3, 0.301)])
    assert story.wrong == [] and plan(world).turn is None


def test_windows_count_as_kept_when_those_that_were_open_are_closed() -> None:
    """A state of eight epochs: its producer let go of some under the policy before, so that its standby must stay."""
    world = world_of("sweeping", "upstream", span=8)
    saboteur = Saboteur(world, [], [Switching("a", POLICIES["upstream"], AT)])
    world.engine.run(AT + 0.6)
    assert plan(world).turn is not None and plan(world).standbys
    world.engine.run(AT + 1.2)
    assert plan(world).turn is None and not plan(world).standbys
    kill_primary(world)
    finish(world, saboteur)
    assert said(world, "a: rebuilt on") and judge(world) == [] and not saboteur.beyond


def test_a_standby_lost_while_windows_close_is_replaced() -> None:
    """That may take hours; nobody is to be without a standby for so long."""
    world = world_of("sweeping", "upstream", span=8)
    saboteur = Saboteur(world, [], [Switching("a", POLICIES["upstream"], AT)])
    world.engine.run(AT + 0.1)
    (standby,) = plan(world).standbys
    world.hosts[standby].crash()
    world.engine.run(AT + 0.3)
    unit = plan(world)
    assert unit.turn is not None and unit.ready and unit.ready != (standby,)
    finish(world, saboteur)
    assert judge(world) == []


def test_what_was_lost_without_protection_leaves_a_gap_that_later_policies_know_of() -> None:
    """Consumers may ask for epochs from before the gap long after it was protected again; they are empty."""
    for late_s in moments():
        world = world_of("none", "sweeping")
        saboteur = Saboteur(world, [], [Switching("a", POLICIES["sweeping"], AT + late_s)])
        world.engine.at(AT, kill_primary, world)
        world.epochs = 45
        for look_s in (1.6, 2.6):
            world.engine.at(AT + look_s, saboteur.settled)
        world.engine.at(AT + 2.7, kill_primary, world)
        finish(world, saboteur)
        assert saboteur.unprotected == {"a"} and not saboteur.beyond
        assert judge(world, saboteur.unprotected) == []
        assert any("lost" in text or "different" in text for text in judge(world)), "what is not held against anybody"


def test_to_none_and_back_excuses_only_what_is_below() -> None:
    """In a diamond one side is without protection when it is lost; and nothing is excused where nothing was lost."""
    for victim in ("a", "b"):
        job = uniform(SHAPES["fork"], POLICIES["sweeping"])
        world = World(job, hosts=5, seed=1, conditions=Conditions(epochs=25))
        saboteur = Saboteur(world, [], [Switching("b", none, AT), Switching("b", POLICIES["sweeping"], AT + 1.0)])
        world.engine.run(AT + 0.1)
        host = world.hosts[plan(world, victim).primary or ""]
        lost = {name for name, unit in world.coordinator.journalled.units.items() if unit.primary == host.name}
        host.crash()
        world.engine.after(1.0, host.restart)
        finish(world, saboteur)
        assert saboteur.unprotected == lost & {"b"} and not saboteur.beyond
        wrong = judge(world)
        assert all(text.startswith("out-b: ") for text in wrong) and bool(wrong) == ("b" in lost)
        assert judge(world, saboteur.unprotected) == []


# -- every step, and by chance --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", TURNS, ids=str)
def test_a_crash_at_every_step(place: Place) -> None:
    """Here every 41st place, all of them with `make fuzz`."""
    _, tried, wrong = crash_everywhere(place, stride=41, offset=len(str(place)))
    assert wrong == []
    assert tried >= 2


def test_random_stories_have_switches() -> None:
    tally = play_many(range(3000, 3200))
    assert tally.failed == [] and tally.faults[SWITCH] > 100


@pytest.mark.parametrize("seed", [712, 1982, 2041, 2231, 2976])
def test_stories_that_once_went_wrong(seed: int) -> None:
    """Each found a flaw: a host that was being made a standby and had to begin by replay began from nothing instead;
    a unit without protection had let go of input ahead of its state, so that no copy of it could go on; an eager copy
    that was cut off from nobody said that an epoch was gone which its primary had yet to make."""
    assert play(seed).wrong == []


# -- broken on purpose ----------------------------------------------------------------------------------------------


def complaints(before: str, after: str, *, span: int | None = None) -> list[str]:
    """What is wrong in stories in which the primary is killed at some moment of a switch."""
    found: list[str] = []
    for seed, late_s in enumerate((*moments(), 0.6, 0.8, 1.0)):
        found += switched(before, after, kill_primary, late_s=late_s, span=span, seed=seed)[1].wrong
    return found


def lost(found: list[str]) -> bool:
    return any("nobody has" in text or "lost" in text or "would need" in text or "different" in text for text in found)


@pytest.mark.parametrize(("counts", "span"), [(0, 8), (-1, 1)], ids=["the old one's", "the new one's"])
def test_acknowledging_what_one_of_two_allows_is_caught(
    monkeypatch: pytest.MonkeyPatch, counts: int, span: int
) -> None:
    """Checkpoints let go of input that wide windows are made of; and keep what a stage without state needs no more."""

    def allow(self: Unit, copy: Copy) -> None:
        copy.acks = self.keepers[counts].machine.acks[copy.name]

    assert complaints("sweeping", "upstream", span=span) == []
    monkeypatch.setattr(Unit, "allow", allow)
    assert lost(complaints("sweeping", "upstream", span=span))


def test_dropping_the_old_standby_before_the_new_one_is_ready_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Failover._advance_turn

    def broken(self: Failover, name: str, units: object, unit: UnitPlan) -> object:
        return advance(self, name, units, unit.held_by((), (), ()))  # type: ignore[arg-type]

    monkeypatch.setattr(Failover, "_advance_turn", broken)
    monkeypatch.setattr(Saboteur, "_asks_for", lambda self, name, unit: 1)
    monkeypatch.setattr(Saboteur, "_has", lambda self, name, unit: 1)
    assert lost(complaints("sweeping", "active")) or any("no progress" in t for t in complaints("active", "sweeping"))


def test_turning_to_the_new_policy_before_it_is_ready_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_all_ready(self: Turn, host: str, since: int) -> Turn:
        turn = self.held_by((*self.standbys, host), (*self.since, since), self.ready)
        return turn.held_by(turn.standbys, turn.since, turn.standbys)

    monkeypatch.setattr(Turn, "with_standby", with_all_ready)
    assert lost(complaints("sweeping", "active"))


def test_counting_on_producers_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "_producers_keep_enough", lambda self: True)
    assert lost(complaints("sweeping", "upstream", span=8))


def test_sweeping_that_forgets_what_ran_before_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first checkpoint is not at the trim point: without the queue, a consumer that died too, because it was on the
    same host, asks for what nobody has."""

    def found() -> list[str]:
        edges = {"s": (), "a": ("s",), "b": ("a",), "c": ("b",), "d": ("a", "c")}
        wrong: list[str] = []
        for late_s in moments():
            policies: dict[str, Policy] = {"a": ActiveStandby(), "b": POLICIES["sweeping"], "c": POLICIES["sweeping"]}
            policies["d"] = PassiveStandby(every=0.25)
            job = job_of(shape(edges), policies, span={})
            world = World(job, hosts=3, seed=1, conditions=Conditions(epochs=25))
            world.engine.run(0.5)
            assert plan(world, "a").primary == plan(world, "d").primary
            at = AT + 0.17  # some epochs after a checkpoint of d
            wrong += told(world, [Switching("a", POLICIES["sweeping"], at)], kill_primary, harm_at=at + late_s).wrong
        return wrong

    assert found() == []
    init = StageVersions.__init__

    def broken(self: StageVersions, *args: object, **options: object) -> None:
        init(self, *args, **options)  # type: ignore[arg-type]
        self.trimmed = self.committed

    monkeypatch.setattr(StageVersions, "__init__", broken)
    assert lost(found())
