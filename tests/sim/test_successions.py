"""One takeover after the other: standbys that follow another primary than before, and plans that get lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from understudy.core import agreement
from understudy.sim.checks import judge, undrained
from understudy.sim.coordinator import Coordinator
from understudy.sim.faults import Saboteur
from understudy.sim.fuzz import POLICIES, SHAPES, finish, uniform
from understudy.sim.hosts import Host
from understudy.sim.nodes import Conditions, Node, World


def world_of(policy: str, *, preserved: bool = False) -> World:
    job = replace(uniform(SHAPES["chain"], POLICIES[policy]), preserved=["s"] if preserved else [])
    return World(job, hosts=6, seed=1, conditions=Conditions(epochs=40))


def two_die_in_turn(policy: str, unit: str, ms: int, *, preserved: bool = False) -> list[str]:
    """The primary dies; ``ms`` later whoever took over, perhaps before its first checkpoint came to the follower."""
    world = world_of(policy, preserved=preserved)
    world.engine.run(2.0)
    saboteur = Saboteur(world, [])
    for _ in range(2):
        primary = world.coordinator.journalled.units[unit].primary
        assert primary is not None
        world.hosts[primary].crash()
        world.engine.run(world.engine.now + ms / 1000)
    finish(world, saboteur)
    assert not saboteur.beyond
    return judge(world) + undrained(world)


@pytest.mark.parametrize("unit", ["s", "a"])
@pytest.mark.parametrize("policy", ["sweeping-2", "active-2"])
def test_a_follower_has_what_it_needs_until_its_new_primary_has_brought_it_something(policy: str, unit: str) -> None:
    for ms in (*range(1, 12), 20, 60, 110, 160):
        assert two_die_in_turn(policy, unit, ms) == [], f"{ms} ms"


def test_a_follower_of_a_source_whose_rows_cannot_be_read_again() -> None:
    for ms in (*range(1, 12), 20, 60, 110, 160):
        assert two_die_in_turn("sweeping-2", "s", ms, preserved=True) == [], f"{ms} ms"


def test_a_follower_that_forgets_what_it_held_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out = Host._carry_out

    def forgets(self: Host, name: str, order: agreement.Order) -> None:
        carry_out(self, name, order)
        if isinstance(order, agreement.Follow):
            self.disk.drop(self.world.topology.units[name].stages)

    monkeypatch.setattr(Host, "_carry_out", forgets)
    found = [text for ms in range(1, 12) for text in two_die_in_turn("sweeping-2", "a", ms)]
    assert any("nobody has" in text or "lost" in text for text in found)


def plans_get_lost(policy: str) -> list[str]:
    """Of the plans that the takeover of a unit makes, nobody gets one before it has been sent three times."""
    world = world_of(policy)
    world.engine.run(2.0)
    send, sent = world.send, dict[tuple[str, int], int]()

    def lossy(source: Node, to: str, unit: str | None, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "take_plan":
            which = (to, arguments[0].serial)
            sent[which] = sent.get(which, 0) + 1
            if sent[which] < 3:
                return
        send(source, to, unit, method, arguments)

    world.send = lossy  # type: ignore[method-assign]
    primary = world.coordinator.journalled.units["a"].primary
    assert primary is not None
    world.hosts[primary].crash()
    finish(world, Saboteur(world, []))
    return judge(world)


@pytest.mark.parametrize("policy", ["sweeping", "active", "eager", "upstream", "hybrid"])
def test_a_plan_that_got_lost_is_sent_again(policy: str) -> None:
    assert plans_get_lost(policy) == []


def test_a_plan_that_is_sent_only_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    beat = Coordinator.beat
    monkeypatch.setattr(Coordinator, "beat", lambda self, host, life, serial: beat(self, host, life, 1 << 60))
    assert any("no progress" in text for text in plans_get_lost("sweeping"))
