"""Active standby: scripts, the paper's claims, every state against every event, an oracle, and takeovers."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protections import EVENTS, PATIENT, Table, at, check_pair, check_twice, play, standbys, trimmed

from understudy.core.acks import FINAL
from understudy.core.policies import ActiveStandby
from understudy.core.policies.active import Active
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
    StageRole,
    StandbysChanged,
    Tick,
    TrimStandby,
)
from understudy.core.policies.passive import RETRY_S
from understudy.core.queue import OutputQueue


def stage(start: int = -1) -> Active:
    return ActiveStandby().protect([StageRole("s", start, ("in",))])


def give(epoch: int, standby: str = "b") -> Capture:
    """Copies are given the state with the output queue: consumers may still want what is in it."""
    return Capture("s", standby, epoch, queue=True)


def ack(epoch: int) -> AckUpstream:
    return AckUpstream("s", epoch)


# -- scripts ----------------------------------------------------------------------------------------------------


def test_a_copy_is_given_the_state_once_and_then_keeps_up_by_itself() -> None:
    """Hwang et al. 2003, Section 4.3: secondary nodes obtain tuples from their primaries' upstream neighbours and
    process them in parallel."""
    machine = stage()
    play(
        machine,
        (0, Committed("s", 0), []),
        (0, standbys("b"), [give(0)]),
        (1, Committed("s", 1), []),
        (2, Pasted("s", "b", 0), [ack(0)]),
        (3, Pasted("s", "b", 1), [ack(1)]),
        (4, Committed("s", 2), []),
        (5, Pasted("s", "b", 2), [ack(2)]),
        (99, Tick(), []),
    )
    assert machine.next_deadline() is None


def test_input_is_acknowledged_when_every_copy_has_processed_it() -> None:
    """Hwang et al. 2003, Section 4.3: whichever of the two survives must still get what it has not processed."""
    machine = stage()
    at(machine, 0, standbys("b", "c"), Pasted("s", "b", -1), Pasted("s", "c", -1))
    play(
        machine,
        (1, Committed("s", 5), []),
        (1, Pasted("s", "b", 7), []),  # copies may be ahead of their primary
        (1, Pasted("s", "c", 3), [ack(3)]),
        (2, Pasted("s", "c", 6), [ack(5)]),
        (3, Committed("s", 9), [ack(6)]),
    )


def test_copies_are_told_what_consumers_are_done_with() -> None:
    """Hwang et al. 2003, Section 4.3: when the primary is acknowledged by all its downstream neighbours it composes a
    queue-trimming message for the secondary. Deviation: both see the same epochs, so that the mapping through
    indicators is the identity."""
    machine = stage()
    at(machine, 0, Committed("s", 9), standbys("b", "c"), Pasted("s", "b", 9))
    both: list[Effect] = [TrimStandby("s", "b", 4), TrimStandby("s", "c", 4)]
    play(machine, (1, trimmed(4), both), (1, trimmed(4), []), (1, trimmed(2), []))
    play(machine, (2, Acked("s", 0, 9), []), (2, standbys(), [ack(4)]), (2, trimmed(7), [ack(7)]))


def test_without_a_copy_the_stage_acknowledges_its_trim_point() -> None:
    play(stage(), (0, Committed("s", 3), []), (0, trimmed(1), [ack(1)]), (0, trimmed(9), [ack(3)]))


def test_a_copy_that_could_not_be_given_the_state_is_given_it_after_a_pause() -> None:
    machine = stage()
    play(machine, (0, standbys("b"), [give(-1)]), (1, CaptureFailed("s", "b", False), []), (1, Committed("s", 2), []))
    assert machine.next_deadline() == 1 + RETRY_S
    assert not machine.safe()
    play(machine, (1.5, Tick(), []), (2, Tick(), [give(2)]))
    assert machine.next_deadline() is None, "under way"
    play(machine, (3, Pasted("s", "b", 2), [ack(2)]))
    assert machine.safe()


def test_a_copy_that_failed_holds_acks_back_until_the_plan_names_another() -> None:
    machine = stage()
    at(machine, 0, standbys("b"), Pasted("s", "b", -1), Committed("s", 4), trimmed(4))
    play(machine, (1, CaptureFailed("s", "b", True), []), (1.5, trimmed(9), [TrimStandby("s", "b", 9)]))
    play(machine, (1.5, standbys(), [ack(4)]))


def test_another_copy_begins_from_nothing_and_an_old_one_goes_on() -> None:
    machine = stage()
    at(machine, 0, Committed("s", 3), standbys("b"), Pasted("s", "b", 3))
    play(machine, (1, standbys("b", "c"), [give(3, "c")]), (1, Committed("s", 4), []), (1, Pasted("s", "b", 4), []))
    play(machine, (2, Pasted("s", "c", 3), []), (2, Pasted("s", "c", 4), [ack(4)]))
    play(machine, (3, standbys("c", "b#2"), [give(4, "b#2")]), (3, Pasted("s", "b", 9), []))


def test_each_stage_of_a_unit_has_copies_of_its_own() -> None:
    machine = ActiveStandby().protect([StageRole("x", 3, ("in",)), StageRole("y", 3, ("x",))])
    play(
        machine,
        (0, standbys("b"), [Capture("x", "b", 3, True), Capture("y", "b", 3, True)]),
        (0, Committed("x", 5), []),
        (0, Committed("y", 4), []),
        (1, Pasted("x", "b", 5), [AckUpstream("x", 5)]),
        (1, CaptureFailed("y", "b", False), []),
        (2, Acked("x", FINAL, 4), [TrimStandby("x", "b", 4), Capture("y", "b", 4, True)]),
        (3, Pasted("y", "b", 4), [AckUpstream("y", 4)]),
    )


# -- every state against every event ----------------------------------------------------------------------------------
#
# The stage "s" starts at epoch 5 and has committed 9. In brackets: where the copy b is, and then c.


def committed() -> Active:
    return at(stage(5), 90, Committed("s", 9))  # type: ignore[return-value]


def copied(*positions: int) -> Active:
    return at(committed(), 100, standbys("b"), *(Pasted("s", "b", p) for p in positions))  # type: ignore[return-value]


NEW = {"standbys b c": "c@9+queue", "standbys c": "c@9+queue"}
TABLE: Table = {
    "alone [-]": (
        committed,
        {
            "trimmed": "ack 8",
            "standbys b": "b@9+queue",
            "standbys b c": "b@9+queue | c@9+queue",
            "standbys c": "c@9+queue",
        },
    ),
    "filling [-], 9 under way": (copied, {"trimmed": "trim b@8", "pasted b@7": "ack 7", **NEW}),
    "behind [7]": (lambda: copied(7), {"trimmed": "trim b@8", **NEW}),
    "ahead [12]": (
        lambda: copied(12),
        {"trimmed": "trim b@8", "committed": "ack 10", **{event: "c@9+queue" for event in NEW}},
    ),
    "failed [-]": (
        lambda: at(copied(), 100, CaptureFailed("s", "b", False)),
        {"trimmed": "trim b@8", "pasted b@7": "ack 7", "late tick": "b@9+queue", **NEW},
    ),
    "two copies [9 -], 9 under way to c": (
        lambda: at(copied(9), 100, standbys("b", "c")),
        {"trimmed": "trim b@8 | trim c@8"},
    ),
    "two copies [12 6]": (
        lambda: at(committed(), 100, standbys("b", "c"), Pasted("s", "b", 12), Pasted("s", "c", 6)),
        {"trimmed": "trim b@8 | trim c@8", "standbys b": "ack 9"},
    ),
    "draining [7]": (lambda: at(copied(7), 100, Drain()), {"trimmed": "trim b@8", **NEW}),
}


@pytest.mark.parametrize(("state", "event"), list(product(TABLE, EVENTS)))
def test_every_state_against_every_event(state: str, event: str) -> None:
    check_pair(TABLE, state, event)


@pytest.mark.parametrize(("state", "event"), list(product(TABLE, EVENTS)))
def test_told_twice_is_told_once(state: str, event: str) -> None:
    check_twice(TABLE, state, event)


# -- an oracle that remembers everything ------------------------------------------------------------------------------


@dataclass
class Naive:
    """Knows every word that was ever said about two stages."""

    start: dict[str, int]
    told: list[tuple[float, Event | Effect]] = field(default_factory=list)

    def newest(self, name: str, kind: type, **like: object) -> int:
        said = [w for _, w in self.told if isinstance(w, kind) and w.stage == name]
        return max([self.start[name], *(w.epoch for w in said if all(getattr(w, k) == v for k, v in like.items()))])

    def lives(self, name: str) -> dict[str, list[tuple[float, Event | Effect]]]:
        """What happened to each copy since it became one or failed."""
        lives: dict[str, list[tuple[float, Event | Effect]]] = {}
        for then, what in self.told:
            if isinstance(what, StandbysChanged):
                lives = {s: lives.get(s, []) for s in what.standbys}
            elif getattr(what, "standby", None) in lives and what.stage == name:  # type: ignore[union-attr]
                fails = isinstance(what, CaptureFailed)
                lives[what.standby] = [*([] if fails else lives[what.standby]), (then, what)]  # type: ignore
        return lives

    def handle(self, event: Event, now: float) -> list[Effect]:
        is_trim = isinstance(event, Acked) and event.level == FINAL
        rises = is_trim and event.epoch > self.newest(event.stage, Acked, level=FINAL)
        self.told.append((now, event))
        effects: list[Effect] = []
        if rises:
            effects += [TrimStandby(event.stage, s, event.epoch) for s in self.lives(event.stage)]
        for name in self.start:
            effects += self.ack(name)
            for standby, life in self.lives(name).items():
                waits = [then + RETRY_S for then, w in life if isinstance(w, CaptureFailed)]
                if not any(isinstance(w, (Pasted, Capture)) for _, w in life) and all(now >= t for t in waits):
                    effects.append(Capture(name, standby, self.newest(name, Committed), queue=True))
        self.told += [(now, effect) for effect in effects]
        return effects

    def ack(self, name: str) -> list[Effect]:
        places = [
            max((w.epoch for _, w in life if isinstance(w, Pasted)), default=-1) for life in self.lives(name).values()
        ]
        done = self.newest(name, Committed)
        safe = min([done, *places]) if places else min(done, self.newest(name, Acked, level=FINAL))
        return [AckUpstream(name, safe)] if safe > self.newest(name, AckUpstream) else []


NAMES, EPOCHS, HOSTS = st.sampled_from("xy"), st.integers(-1, 12), st.sampled_from("bcd")
FACTS = st.one_of(
    st.builds(Committed, NAMES, EPOCHS),
    st.builds(Acked, NAMES, st.sampled_from([FINAL, FINAL, 0, 1]), EPOCHS),
    st.builds(Pasted, NAMES, HOSTS, EPOCHS),
    st.builds(CaptureFailed, NAMES, HOSTS, st.booleans()),
    st.builds(StandbysChanged, st.lists(HOSTS, unique=True).map(tuple)),
    st.sampled_from([Tick(), Drain()]),
)


@settings(PATIENT, max_examples=300)
@given(EPOCHS, EPOCHS, st.lists(st.tuples(st.integers(0, 6), FACTS), max_size=50))
def test_the_machine_agrees_with_its_story(x: int, y: int, script: list[tuple[int, Event]]) -> None:
    machine = ActiveStandby().protect([StageRole("x", x), StageRole("y", y)])
    naive, now = Naive({"x": x, "y": y}), 0.0
    for quarters, event in script:
        now += quarters / 4
        assert machine.handle(event, now) == naive.handle(event, now), event
        lives = [life for name in "xy" for life in naive.lives(name).values()]
        assert machine.safe() == all(any(isinstance(w, Pasted) for _, w in life) for life in lives)
        idle = [life for life in lives if not any(isinstance(w, (Pasted, Capture)) for _, w in life)]
        failed = [then + RETRY_S for life in idle for then, w in life if isinstance(w, CaptureFailed)]
        assert machine.next_deadline() == min(failed, default=None)


# -- takeovers --------------------------------------------------------------------------------------------------------


@dataclass
class Copy:
    state: int
    queue: OutputQueue


class Pair:
    """source -> one stage with its copies -> a consumer that acknowledges when it likes."""

    def __init__(self) -> None:
        self.source, self.machine = OutputQueue(["s"]), stage()
        self.primary = Copy(-1, OutputQueue(["n"]))
        self.copies: dict[str, Copy] = {}
        self.under_way: dict[str, Copy] = {}
        self.received = self.acked = -1
        self.now = 0.0

    def tell(self, event: Event) -> None:
        for effect in self.machine.handle(event, self.now):
            if isinstance(effect, Capture):
                self.under_way[effect.standby] = self.twin(self.primary)
                assert self.primary.state == effect.epoch
            elif isinstance(effect, TrimStandby) and effect.standby in self.copies:
                self.copies[effect.standby].queue.ack("n", effect.epoch)
            elif isinstance(effect, AckUpstream):
                self.source.ack("s", effect.epoch)
        for name, copy in [("primary", self.primary), *self.copies.items(), *self.under_way.items()]:
            assert self.source.first <= copy.state + 1, f"the input of {name} is gone"
            assert copy.queue.first <= self.received + 1, f"{name} no longer has what its consumer wants"

    @staticmethod
    def twin(copy: Copy) -> Copy:
        queue = OutputQueue(["n"], start=copy.queue.first)
        for epoch in range(queue.next, copy.state + 1):
            queue.append(epoch)
        return Copy(copy.state, queue)

    def run(self, name: str) -> bool:
        """The primary, or a copy, takes the next epoch if it is there."""
        copy = self.primary if name == "a" else self.copies.get(name)
        if copy is None or copy.state + 1 >= self.source.next:
            return False
        copy.state += 1
        copy.queue.append(copy.state)
        self.tell(Committed("s", copy.state) if name == "a" else Pasted("s", name, copy.state))
        return True

    def consume(self) -> bool:
        if not self.primary.queue.request("n", self.received + 1):
            return False
        self.received += 1
        return True

    def ack(self) -> None:
        self.acked = self.received
        if self.primary.queue.ack("n", self.acked) is not None:
            self.tell(Acked("s", FINAL, self.acked))

    def deliver(self, name: str, *, well: bool) -> None:
        if name in self.under_way:
            copy = self.under_way.pop(name)
            if well:
                self.copies[name] = copy
            self.tell(Pasted("s", name, copy.state) if well else CaptureFailed("s", name, False))

    def standbys(self, names: list[str]) -> None:
        self.copies = {n: c for n, c in self.copies.items() if n in names}
        self.under_way = {n: c for n, c in self.under_way.items() if n in names}
        self.tell(StandbysChanged(tuple(names)))

    def crash(self, name: str) -> None:
        """The primary is gone and a copy takes over; the others go on as its copies, given everything anew."""
        if name in self.copies:
            self.primary = self.copies.pop(name)
            rest, self.copies, self.under_way = list(self.copies), {}, {}
            self.machine = stage(self.primary.state)
            self.primary.queue.request("n", self.received + 1)
            if self.primary.queue.ack("n", self.acked) is not None:
                self.tell(Acked("s", FINAL, self.primary.queue.trimmed))
            self.tell(StandbysChanged(tuple(rest)))


STEPS = st.one_of(
    st.tuples(st.just("produce")),
    st.tuples(st.just("run"), st.sampled_from("aabc")),
    st.tuples(st.sampled_from(["consume", "consume", "ack", "tick"])),
    st.tuples(st.just("deliver"), st.sampled_from("bc"), st.sampled_from([True, True, False])),
    st.tuples(st.just("standbys"), st.sampled_from([[], ["b"], ["b", "c"], ["c"]])),
    st.tuples(st.just("crash"), st.sampled_from("bc")),
)


@settings(PATIENT, max_examples=300)
@given(st.lists(STEPS, max_size=80))
def test_whichever_copy_takes_over_its_input_and_its_consumers_next_epoch_are_there(steps: list[tuple]) -> None:
    """Hwang et al. 2003, Section 4.3: the secondary has what the primary's consumers lack, and its input is kept."""
    pair = Pair()
    pair.standbys(["b", "c"])
    for kind, *about in steps:
        if kind == "produce":
            pair.source.append(pair.source.next)
        elif kind == "tick":
            pair.now += 0.7
            pair.tell(Tick())
        elif kind == "deliver":
            pair.deliver(about[0], well=about[1])
        else:
            getattr(pair, kind)(*about)
    while pair.run("a") or pair.consume():
        pass
    assert pair.received == pair.primary.state == pair.source.next - 1
