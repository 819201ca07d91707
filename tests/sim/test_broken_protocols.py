"""Checkers that never complain prove nothing: protocols broken on purpose must be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from understudy.core.acks import FINAL
from understudy.core.directory import Directory
from understudy.core.entries import Leader
from understudy.core.policies import PassiveStandby, StageRole, UpstreamBackup
from understudy.core.policies.base import AckUpstream, Capture, Committed, Effect, Event, Placed
from understudy.core.policies.passive import Sweeping
from understudy.core.policies.upstream import Replayable
from understudy.core.queue import OutputQueue
from understudy.sim import sinks
from understudy.sim.faults import Fault, Saboteur
from understudy.sim.fuzz import SHAPES, Story, finish_and_judge, uniform
from understudy.sim.model import SimJob
from understudy.sim.nodes import Conditions, World


class AckBeforeCheckpoint(PassiveStandby):
    """Acknowledges an epoch as soon as it is processed, whether or not the standby has it."""

    def protect(self, stages: Iterable[StageRole]) -> Sweeping:
        class Broken(Sweeping):
            def handle(self, event: Event, now: float) -> list[Effect]:
                effects = super().handle(event, now)
                if isinstance(event, Committed):
                    effects.append(AckUpstream(event.stage, event.epoch))
                return effects

        return Broken(stages, every_s=self.every_s)


class AckOnCapture(PassiveStandby):
    """Acknowledges a checkpoint when it is sent, not when it has arrived."""

    def protect(self, stages: Iterable[StageRole]) -> Sweeping:
        class Broken(Sweeping):
            def handle(self, event: Event, now: float) -> list[Effect]:
                effects = super().handle(event, now)
                return effects + [AckUpstream(e.stage, e.epoch) for e in effects if isinstance(e, Capture)]

        return Broken(stages, every_s=self.every_s)


class TrimTooEarly(UpstreamBackup):
    """Acknowledges what consumers have, although its own state still needs it."""

    def protect(self, stages: Iterable[StageRole]) -> Replayable:
        class Broken(Replayable):
            def handle(self, event: Event, now: float) -> list[Effect]:
                effects = super().handle(event, now)
                if isinstance(event, Committed):
                    effects.append(AckUpstream(event.stage, event.epoch, FINAL))
                return effects

        return Broken(stages, k=self.k)


class NeighboursForgotten(UpstreamBackup):
    """Counts on consumers that share its host."""

    def protect(self, stages: Iterable[StageRole]) -> Replayable:
        class Broken(Replayable):
            def handle(self, event: Event, now: float) -> list[Effect]:
                return [] if isinstance(event, Placed) else super().handle(event, now)

        return Broken(stages, k=self.k)


def complaints(job: Callable[[], SimJob], kind: str, *, hosts: int = 4, stories: int = 40) -> list[str]:
    """What the checkers say over some stories with one fault each."""
    found: list[str] = []
    for seed in range(stories):
        world = World(job(), hosts=hosts, seed=seed, conditions=Conditions(epochs=20))
        faults = [Fault(kind, 0.4 + 0.037 * seed, 1.0, seed)]
        story = Story(seed, "", "", hosts)
        finish_and_judge(world, Saboteur(world, faults), story)
        found += story.wrong
    return found


@pytest.mark.parametrize("policy", [AckBeforeCheckpoint(every=0.3), AckOnCapture(every=0.1)], ids=["ack", "capture"])
def test_acknowledging_too_early_is_caught(policy: PassiveStandby) -> None:
    found = complaints(lambda: uniform(SHAPES["chain"], policy), "kill")
    assert any("would need" in text for text in found), "by the trim checker, while it happens"


def test_acknowledging_before_the_checkpoint_loses_epochs() -> None:
    found = complaints(lambda: uniform(SHAPES["chain"], AckBeforeCheckpoint(every=0.3)), "kill")
    assert any("nobody has" in text or "lost" in text for text in found)


def test_trimming_what_the_state_needs_is_caught() -> None:
    assert complaints(lambda: uniform(SHAPES["chain"], UpstreamBackup()), "kill") == []
    found = complaints(lambda: uniform(SHAPES["chain"], TrimTooEarly()), "kill")
    assert any("nobody has" in text or "lost" in text or "different" in text for text in found)


def test_counting_on_a_consumer_of_the_same_host_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of one unit fail together; that one of them has an epoch keeps it no safer."""
    one = {"a": "ab", "b": "ab"}
    assert complaints(lambda: uniform(SHAPES["chain"], UpstreamBackup(), units=one), "kill") == []
    monkeypatch.setattr(OutputQueue, "hears", lambda self, consumer, generation, *, near: True)
    found = complaints(lambda: uniform(SHAPES["chain"], NeighboursForgotten(), units=one), "kill")
    assert any("nobody has" in text or "lost" in text for text in found)


def test_no_fencing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A primary that cannot hear the coordinator goes on while another takes over, and nobody turns it away."""
    job = uniform(SHAPES["chain"], PassiveStandby(every=0.1))
    assert complaints(lambda: job, "isolation") == []
    monkeypatch.setattr(Directory, "stale", lambda self, unit, generation: False)
    monkeypatch.setattr(sinks.SinkStore, "open", lambda self, generation: True)
    monkeypatch.setattr(OutputQueue, "hears", lambda self, consumer, generation, *, near: True)
    found = complaints(lambda: job, "isolation")
    assert any("after generation" in text for text in found)


def test_a_source_that_shows_before_it_shares_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from understudy.sim.sources import SourceUnit

    job = uniform(SHAPES["chain"], PassiveStandby(every=0.1))
    monkeypatch.setattr(Leader, "shows", lambda self, end: end)
    monkeypatch.setattr(SourceUnit, "_share", lambda self: None)
    found = complaints(lambda: job, "kill")
    assert any("different" in text or "again as" in text for text in found)
