"""Passive standby beside oracles that remember the whole story and work everything out from it each time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protections import PATIENT

from understudy.core.acks import FINAL
from understudy.core.policies.base import (
    Acked,
    AckUpstream,
    Capture,
    CaptureFailed,
    Committed,
    Drain,
    Effect,
    Event,
    Pasted,
    Pause,
    Paused,
    Resume,
    StageRole,
    StandbysChanged,
    Tick,
)
from understudy.core.policies.passive import EARLY, RETRY_S, Individual, StageVersions, Sweeping, Synchronous

EVERY_S = 2.0

# -- the oracles ----------------------------------------------------------------------------------------------------


class Story:
    """All events and effects so far, with their times, and questions about them."""

    def __init__(self, roles: list[StageRole], *, sweeping: bool) -> None:
        self.roles, self.sweeping = roles, sweeping
        self.told: list[tuple[float, Event | Effect]] = []

    def about(self, kind: type, **like: object) -> list[tuple[float, object]]:
        """What of one kind was told, in order."""
        return [
            (then, what)
            for then, what in self.told
            if isinstance(what, kind) and all(getattr(what, name) == value for name, value in like.items())
        ]

    def newest(self, role: StageRole, kind: type, **like: object) -> int:
        return max([role.start, *(e.epoch for _, e in self.about(kind, stage=role.name, **like))])

    def trim_point(self, role: StageRole) -> int:
        return min(self.newest(role, Committed), self.newest(role, Acked, level=FINAL))

    def due(self, role: StageRole) -> int:
        return self.trim_point(role) if self.sweeping else self.newest(role, Committed)

    def draining(self) -> bool:
        return bool(self.about(Drain))

    def lives(self, role: StageRole) -> dict[str, list[tuple[float, object]]]:
        """For each present standby of the stage, in order, what happened to it since it became one."""
        lives: dict[str, list[tuple[float, object]]] = {}
        for then, what in self.told:
            if isinstance(what, StandbysChanged):
                lives = {name: lives.get(name, []) for name in what.standbys}
            elif isinstance(what, (Capture, Pasted, CaptureFailed)) and what.stage == role.name:
                lives[what.standby].append((then, what))
        return lives

    def ack(self, role: StageRole) -> list[Effect]:
        """The newest version, the least over all standbys; without any standby, the trim point."""
        lives = self.lives(role)
        versions = [[w.epoch for _, w in life if isinstance(w, Pasted)] for life in lives.values()]
        safe = min((v[-1] if v else -1 for v in versions), default=self.trim_point(role))
        return [AckUpstream(role.name, safe)] if safe > self.newest(role, AckUpstream) else []

    def lacks(self, role: StageRole, life: list[tuple[float, object]]) -> bool:
        """The standby could be sent something that it does not have, and nothing is under way to it."""
        pasted = [w.epoch for _, w in life if isinstance(w, Pasted)]
        return not in_flight(life) and not unusable(life) and (not pasted or self.due(role) > pasted[-1])

    def safe(self) -> bool:
        lives = [(role, life) for role in self.roles for life in self.lives(role).values()]
        return not any(in_flight(life) or self.lacks(role, life) for role, life in lives)


def in_flight(life: list[tuple[float, object]]) -> bool:
    return bool(life) and isinstance(life[-1][1], Capture)


def unusable(life: list[tuple[float, object]]) -> bool:
    return any(isinstance(w, CaptureFailed) and w.lost_standby for _, w in life)


class NaiveSweeping(Story):
    def handle(self, event: Event, now: float) -> list[Effect]:
        self.told.append((now, event))
        if isinstance(event, Paused):
            return []
        effects: list[Effect] = []
        for role in self.roles:
            if getattr(event, "stage", role.name) == role.name:
                effects += self.ack(role)
                for standby, waits in self.waits(role):
                    if all(now >= until for until in waits):
                        effects.append(Capture(role.name, standby, self.due(role), queue=False))
        self.told += [(now, effect) for effect in effects]
        return effects

    def waits(self, role: StageRole) -> Iterator[tuple[str, list[float]]]:
        """Each standby that lacks something, with the times before which it is not sent."""
        for standby, life in self.lives(role).items():
            if self.lacks(role, life):
                yield standby, self.times(role, life)

    def times(self, role: StageRole, life: list[tuple[float, object]]) -> list[float]:
        if life and isinstance(life[-1][1], CaptureFailed):
            return [life[-1][0] + RETRY_S]
        has_something = any(isinstance(w, Pasted) for _, w in life)
        if role.last and has_something and not self.draining():
            failed = max((i for i, (_, w) in enumerate(life) if isinstance(w, CaptureFailed)), default=-1)
            timer = -math.inf
            for then, what in life[failed + 1 :]:
                if isinstance(what, Capture):  # one that comes early leaves the timer where it was
                    timer = max(then, timer) + EVERY_S
            return [timer - EARLY * EVERY_S]
        return []

    def next_deadline(self) -> float | None:
        return min((max(times) for role in self.roles for _, times in self.waits(role) if times), default=None)


class NaiveSynchronous(Story):
    """Pause all, capture all, resume all: which of it is going on is read from the orders given so far."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.told.append((now, event))
        effects = [effect for role in self.roles for effect in self.ack(role)]
        effects += self.round(now)
        self.told += [(now, effect) for effect in effects]
        return effects

    def last_place(self, kind: type) -> int:
        return max((i for i, (_, what) in enumerate(self.told) if isinstance(what, kind)), default=-1)

    def missing(self) -> list[tuple[StageRole, str]]:
        return [(role, s) for role in self.roles for s, life in self.lives(role).items() if self.lacks(role, life)]

    def round(self, now: float) -> list[Effect]:
        pause, resume = self.last_place(Pause), self.last_place(Resume)
        if pause <= resume:
            begin = self.next_deadline()
            return [Pause(r.name) for r in self.roles] if begin is not None and now >= begin else []
        since = [what for _, what in self.told[pause:]]
        if any(Paused(r.name) not in since for r in self.roles):
            return []
        if not any(isinstance(w, Capture) for w in since):
            captures = [Capture(role.name, s, self.due(role), queue=True) for role, s in self.missing()]
            if captures:
                return list(captures)
        if any(in_flight(life) for role in self.roles for life in self.lives(role).values()):
            return []
        return [Resume(r.name) for r in self.roles]

    def next_deadline(self) -> float | None:
        pause, resume = self.last_place(Pause), self.last_place(Resume)
        if pause > resume or not self.missing():
            return None
        failed = any(isinstance(what, CaptureFailed) for _, what in self.told[max(pause, 0) :])
        lives = [life for role in self.roles for life in self.lives(role).values() if not unusable(life)]
        empty = any(not any(isinstance(w, Pasted) for _, w in life) for life in lives)
        if resume < 0 or ((empty or self.draining()) and not failed):
            return float("-inf")
        return self.told[resume][0] + RETRY_S if failed else self.told[pause][0] + EVERY_S


class NaiveIndividual:
    """A story for each stage."""

    def __init__(self, roles: list[StageRole]) -> None:
        self.stories = {role.name: NaiveSynchronous([role], sweeping=False) for role in roles}

    def handle(self, event: Event, now: float) -> list[Effect]:
        about = getattr(event, "stage", None)
        return [e for name, story in self.stories.items() if about in (None, name) for e in story.handle(event, now)]

    def next_deadline(self) -> float | None:
        return min((d for story in self.stories.values() if (d := story.next_deadline()) is not None), default=None)

    def safe(self) -> bool:
        return all(story.safe() for story in self.stories.values())


# -- a driver that tells only what can be true ------------------------------------------------------------------------


@dataclass
class Driver:
    machine: Sweeping | Individual | Synchronous
    oracle: NaiveSweeping | NaiveIndividual | NaiveSynchronous
    now: float = 0.0
    under_way: dict[tuple[str, str], int] = field(default_factory=dict)
    """(stage, standby) -> epoch of the capture."""
    pausing: list[str] = field(default_factory=list)

    @property
    def stages(self) -> dict[str, StageVersions]:
        machines = self.machine.each.values() if isinstance(self.machine, Individual) else [self.machine]
        return {name: stage for machine in machines for name, stage in machine.stages.items()}

    def feed(self, event: Event) -> list[Effect]:
        if isinstance(event, StandbysChanged):  # whatever was on its way to others will not be heard of
            self.under_way = {k: e for k, e in self.under_way.items() if k[1] in event.standbys}
        elif isinstance(event, (Pasted, CaptureFailed)):
            del self.under_way[event.stage, event.standby]
        effects = self.machine.handle(event, self.now)
        assert effects == self.oracle.handle(event, self.now), f"{event} at {self.now}"
        assert self.machine.next_deadline() == self.oracle.next_deadline()
        assert self.machine.safe() == self.oracle.safe()
        for effect in effects:
            if isinstance(effect, Capture):
                assert (effect.stage, effect.standby) not in self.under_way, "two captures under way"
                self.under_way[effect.stage, effect.standby] = effect.epoch
            elif isinstance(effect, Pause):
                self.pausing.append(effect.stage)
        return effects

    def answer(self, which: int, how: str) -> None:
        """One of the captures under way ends."""
        if self.under_way:
            (stage, standby), epoch = sorted(self.under_way.items())[which % len(self.under_way)]
            if not isinstance(self.machine, Sweeping) and self.stages[stage].at[standby].newest is None:
                how = "failed" if how == "lost" else how  # see test_an_unusable_empty_standby_is_no_reason_to_hurry
            end = Pasted(stage, standby, epoch) if how == "pasted" else CaptureFailed(stage, standby, how == "lost")
            self.feed(end)

    def pause(self) -> None:
        if self.pausing:
            self.feed(Paused(self.pausing.pop(0)))

    def settle(self) -> None:
        """Everything that is under way goes well, and every deadline is kept."""
        for _ in range(200):
            deadline = self.machine.next_deadline()
            if self.under_way:
                self.answer(0, "pasted")
            elif self.pausing:
                self.pause()
            elif deadline is not None:
                self.now = max(self.now, deadline)
                assert self.feed(Tick()) != [], "a tick at the deadline does what the deadline was for"
            else:
                return
        raise AssertionError("the machine never comes to rest")


STAGES = st.sampled_from(["a", "b"])
EPOCHS = st.integers(-1, 12)
FACTS = st.one_of(
    st.builds(Committed, STAGES, EPOCHS),
    st.builds(Acked, STAGES, st.just(FINAL), EPOCHS),
    st.builds(Acked, STAGES, st.integers(0, 2), EPOCHS),
    st.builds(StandbysChanged, st.lists(st.sampled_from("xyz"), unique=True, max_size=3).map(tuple)),
    st.just(Tick()),
    st.sampled_from([Drain(), Tick()]),
    st.tuples(st.integers(0, 5), st.sampled_from(["pasted", "pasted", "pasted", "failed", "lost"])),
    st.just("pause"),
)
SCRIPTS = st.lists(st.tuples(st.integers(0, 10), FACTS), max_size=50)


def run(driver: Driver, script: list[tuple[int, object]]) -> None:
    for quarters, fact in script:
        driver.now += quarters / 4  # exact in binary: no rounding to argue about
        if isinstance(fact, tuple):
            driver.answer(*fact)
        elif fact == "pause":
            driver.pause()
        else:
            driver.feed(fact)
    # Liveness: with a standby and everything committed and trimmed, a drain brings the newest version over.
    driver.feed(StandbysChanged(("w",)))
    for stage in driver.stages:
        driver.feed(Committed(stage, 30))
        driver.feed(Acked(stage, FINAL, 30))
    driver.feed(Drain())
    driver.settle()
    assert driver.machine.safe()
    for stage in driver.stages.values():
        assert stage.at["w"].newest == 30
        assert stage.acked == 30


def roles(start: int, second: int | None) -> list[StageRole]:
    one = [StageRole("a", start, ("in",), last=second is None)]
    return one if second is None else [*one, StageRole("b", second, ("in", "a"), last=True)]


def known(script: list[tuple[int, object]], names: list[StageRole]) -> list[tuple[int, object]]:
    stages = {role.name for role in names}
    return [(pause, fact) for pause, fact in script if getattr(fact, "stage", "a") in stages]


def beside_its_oracle(timing: str, each: list[StageRole]) -> Driver:
    if timing == "sweeping":
        return Driver(Sweeping(each, every_s=EVERY_S), NaiveSweeping(each, sweeping=True))
    if timing == "individual":
        return Driver(Individual(each, every_s=EVERY_S), NaiveIndividual(each))
    return Driver(Synchronous(each, every_s=EVERY_S), NaiveSynchronous(each, sweeping=False))


TIMINGS = ["sweeping", "individual", "synchronous"]


@pytest.mark.parametrize("timing", TIMINGS)
@settings(PATIENT, max_examples=400)
@given(st.integers(-1, 3), st.one_of(st.none(), st.integers(-1, 3)), SCRIPTS)
def test_each_timing_agrees_with_its_story(
    timing: str, start: int, second: int | None, script: list[tuple[int, object]]
) -> None:
    each = roles(start, second)
    run(beside_its_oracle(timing, each), known(script, each))


@settings(PATIENT, max_examples=200)
@given(st.sampled_from(TIMINGS), SCRIPTS)
def test_nothing_is_acknowledged_that_a_standby_could_not_rebuild(
    timing: str, script: list[tuple[int, object]]
) -> None:
    """The invariants as the files state them, whatever the order of facts."""
    driver = beside_its_oracle(timing, roles(-1, -1))
    for quarters, fact in script:
        acked = {name: stage.acked for name, stage in driver.stages.items()}
        driver.now += quarters / 4
        if isinstance(fact, tuple):
            driver.answer(*fact)
        elif fact == "pause":
            driver.pause()
        else:
            driver.feed(fact)
        for name, stage in driver.stages.items():
            assert stage.acked <= stage.due <= stage.committed
            for version in stage.at.values():
                if version.newest is None:
                    assert stage.acked == acked[name], "a standby that holds nothing holds back acks"
                else:
                    assert version.newest <= version.captured <= stage.due
                    assert stage.acked <= version.newest, "the version still has its input"
            if not stage.at:  # an ack for a version with its queue may lie beyond the trim point; it stands
                trim_point = min(stage.committed, stage.trimmed)
                assert stage.acked == max(acked[name], trim_point), "without a standby nothing is held back"
