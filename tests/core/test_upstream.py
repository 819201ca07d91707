"""Upstream backup: scripts, the paper's claims, every state against every event, and an oracle. Crashes and what is
rebuilt after them are in test_upstream_chain.py."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protections import EVENTS, PATIENT, Table, at, check_pair, check_twice, play, trimmed

from understudy.core.acks import FINAL
from understudy.core.policies import UpstreamBackup
from understudy.core.policies.base import (
    Acked,
    AckUpstream,
    Committed,
    Drain,
    Effect,
    Event,
    Placed,
    StageRole,
    Tick,
)
from understudy.core.policies.upstream import Replayable, Row


def stage(k: int = 1, *, start: int = -1, inputs: tuple[str, ...] = ("in",)) -> Replayable:
    return UpstreamBackup(k=k).protect([StageRole("s", start, inputs)])


def committed(epoch: int, **needs: int) -> Committed:
    return Committed("s", epoch, {"in" if name == "in_" else name: oldest for name, oldest in needs.items()})


def ack(epoch: int, level: int = FINAL, input: str = "in") -> AckUpstream:
    return AckUpstream("s", epoch, level, input)


# -- scripts ----------------------------------------------------------------------------------------------------


def test_what_consumers_have_received_is_acknowledged_upstream_one_level_higher() -> None:
    """Hwang et al. 2003, Section 4.2.1: ACK(0) of a stage's stream makes ACK(1) of its inputs, by which, with K = 1,
    producers trim. The stage's state reaches back three epochs."""
    machine = stage()
    for epoch in range(10):
        play(machine, (0, committed(epoch, in_=max(0, epoch - 2)), []))
    play(
        machine,
        (1, Acked("s", 0, 1), []),  # the state after 1 needs 0: nothing may go
        (1, Acked("s", 0, 5), [ack(2)]),
        (1, Acked("s", 0, 4), []),
        (1, Acked("s", 0, 9), [ack(6)]),
    )


def test_a_stage_without_state_needs_nothing_of_what_its_consumers_have() -> None:
    """Hwang et al. 2003, Figure 5 trims up to but excluding the element that caused the acknowledged one. Deviation:
    epochs sharpen that by one, since a header names what the state *after* an epoch needs."""
    machine = stage()
    for epoch in range(4):
        machine.handle(committed(epoch, in_=epoch + 1), 0)
    play(machine, (0, Acked("s", 0, 2), [ack(2)]))


def test_every_input_is_acknowledged_by_its_own_indicator() -> None:
    """Hwang et al. 2003, Section 4.2.2: indicators name the oldest needed element of each input; where an element has
    none for an input, the nearest earlier one counts."""
    machine = stage(inputs=("left", "right"))
    play(machine, (0, committed(0, left=0), []), (0, committed(1, right=2), []), (0, committed(2, left=3), []))
    play(machine, (1, Acked("s", 0, 0), []), (1, Acked("s", 0, 1), [ack(1, input="right")]))
    play(machine, (2, Acked("s", 0, 2), [ack(2, input="left")]))


def test_with_k_2_level_0_makes_level_1_and_level_1_makes_the_final_ack() -> None:
    """Hwang et al. 2003, Section 4.4: level-1 acknowledgements generate level-2 ones; only level K trims."""
    machine = stage(2)
    for epoch in range(10):
        machine.handle(committed(epoch, in_=epoch - 1), 0)
    play(
        machine,
        (0, Acked("s", 0, 8), [ack(6, level=1)]),
        (0, Acked("s", 1, 5), [ack(3)]),
        (0, Acked("s", 2, 9), []),  # above K: nobody's business
        (0, Acked("s", 0, 9), [ack(7, level=1)]),
    )


def test_a_rebuilt_stage_passes_on_only_what_it_has_processed_again() -> None:
    """Its consumers are ahead of it: what they have, a copy that is still replaying could not rebuild."""
    machine = stage(2, start=3)
    play(
        machine,
        (0, Acked("s", 0, 9), []),
        (0, Acked("s", 1, 5), []),
        (1, committed(4, in_=4), [ack(3, level=1), ack(3)]),
        (1, committed(5, in_=5), [ack(4, level=1), ack(4)]),
        (1, committed(6, in_=6), [ack(5, level=1)]),
    )


def test_a_stage_without_indicators_acknowledges_nothing() -> None:
    play(stage(), (0, Committed("s", 0), []), (0, Committed("s", 1, {}), []), (0, Acked("s", 0, 1), []))


def test_trimmed_epochs_are_forgotten() -> None:
    machine = stage()
    for epoch in range(100):
        machine.handle(committed(epoch, in_=epoch + 1), 0)
    play(machine, (0, Acked("s", 0, 90), [ack(90)]))
    assert len(machine.stages["s"].indicators) == 100
    play(machine, (0, trimmed(50), []))
    assert len(machine.stages["s"].indicators) == 50
    play(machine, (0, Acked("s", 0, 95), [ack(95)]))


def test_what_may_still_be_passed_on_is_not_forgotten() -> None:
    machine = stage(2)
    for epoch in range(100):
        machine.handle(committed(epoch, in_=epoch + 1), 0)
    play(machine, (0, Acked("s", 0, 90), [ack(90, level=1)]), (0, trimmed(80), []))
    play(machine, (0, Acked("s", 1, 20), [ack(20)]))
    assert len(machine.stages["s"].indicators) == 80


def test_between_stages_of_one_host_a_level_is_passed_on_as_it_is() -> None:
    """Hwang et al. 2003, Section 4.2.2: a node's cause goes through all its operators. Stage z says to stage a on the
    same host, at the same level, what its consumers have; to a producer elsewhere one level more."""
    roles = [StageRole("a", -1, ("in",), last=False), StageRole("z", -1, ("other", "a"))]
    machine = UpstreamBackup(k=2).protect(roles)
    play(machine, (0, Placed("z", ("a",)), []))
    for epoch in range(6):
        play(machine, (0, Committed("a", epoch, {"in": epoch - 1}), []))
        play(machine, (0, Committed("z", epoch, {"a": epoch, "other": epoch + 1}), []))
    play(
        machine,
        (1, Acked("z", 0, 4), [AckUpstream("z", 4, 1, "other"), AckUpstream("z", 3, 0, "a")]),
        (1, Acked("a", 0, 3), [AckUpstream("a", 1, 1, "in")]),
        (2, Acked("z", 1, 4), [AckUpstream("z", 4, FINAL, "other"), AckUpstream("z", 3, 1, "a")]),
        (2, Acked("a", 1, 3), [AckUpstream("a", 1, FINAL, "in")]),
        (3, Acked("z", FINAL, 4), [AckUpstream("z", 3, FINAL, "a")]),
        (3, Acked("a", FINAL, 3), []),
    )


def test_from_when_a_producer_is_elsewhere_levels_rise_again() -> None:
    machine = stage(2)
    for epoch in range(10):
        machine.handle(committed(epoch, in_=epoch + 1), 0)
    play(machine, (0, Placed("s", ("in",)), []), (0, Acked("s", 0, 3), [ack(3, level=0)]))
    play(machine, (1, Placed("s", ()), []), (1, Acked("s", 0, 4), [ack(4, level=1)]))
    play(machine, (2, Placed("s", ("in",)), []), (2, Acked("s", 0, 5), [ack(5, level=0)]))


# -- every state against every event ----------------------------------------------------------------------------------
#
# The stage "s" started at epoch 5 and has committed 9; the state after e needs the input from e - 1 on.


def built(k: int, *acks: Event) -> Replayable:
    machine = stage(k, start=5)
    at(machine, 0, *(committed(epoch, in_=epoch - 1) for epoch in range(6, 10)), *acks)
    return machine


TABLE: Table = {
    "K=1, consumers have nothing of it": (lambda: built(1), {"level 0": "ack 6 of in"}),
    "K=1, consumers have 7": (lambda: built(1, Acked("s", 0, 7)), {"level 0": "ack 6 of in"}),
    "K=1, consumers have all": (lambda: built(1, Acked("s", 0, 9)), {}),
    "K=1, consumers are ahead": (lambda: built(1, Acked("s", 0, 12)), {}),
    "K=1, trimmed": (lambda: built(1, Acked("s", 0, 7), trimmed(7)), {"level 0": "ack 6 of in"}),
    "K=2, consumers have nothing of it": (
        lambda: built(2),
        {"level 0": "ack 6 level 1 of in", "level 1": "ack 6 of in"},
    ),
    "K=2, consumers have all": (lambda: built(2, Acked("s", 0, 9)), {"level 1": "ack 6 of in"}),
    "K=2, theirs have 7": (
        lambda: built(2, Acked("s", 0, 7), Acked("s", 1, 7)),
        {"level 0": "ack 6 level 1 of in", "level 1": "ack 6 of in"},
    ),
    "K=1, producer on the same host": (
        lambda: built(1, Placed("s", ("in",))),
        {"level 0": "ack 6 level 0 of in", "trimmed": "ack 6 of in"},
    ),
    "K=2, producer on the same host, consumers have 9": (
        lambda: built(2, Placed("s", ("in",)), Acked("s", 0, 9)),
        {"level 1": "ack 6 level 1 of in", "trimmed": "ack 6 of in"},
    ),
    "replaying, nothing committed": (lambda: at(stage(1, start=5), 0, Acked("s", 0, 12)), {}),
}


@pytest.mark.parametrize(("state", "event"), list(product(TABLE, EVENTS)))
def test_every_state_against_every_event(state: str, event: str) -> None:
    check_pair(TABLE, state, event)


@pytest.mark.parametrize(("state", "event"), list(product(TABLE, EVENTS)))
def test_told_twice_is_told_once(state: str, event: str) -> None:
    check_twice(TABLE, state, event)


@pytest.mark.parametrize("state", TABLE)
def test_there_is_never_anything_to_wait_for(state: str) -> None:
    machine = TABLE[state][0]()
    for now, event in EVENTS.values():
        machine.handle(event, now)
        assert machine.next_deadline() is None
        assert machine.safe()


# -- acknowledgements at most every so often ---------------------------------------------------------------------------


def paced(k: int = 1, every: str = "2s") -> Replayable:
    machine = UpstreamBackup(k=k, ack_every=every).protect([StageRole("s", 5, ("in",))])
    return at(machine, 0, *(committed(epoch, in_=epoch - 1) for epoch in range(6, 10)))


def test_an_ack_goes_at_once_and_the_next_ones_are_gathered() -> None:
    """Hwang et al. 2003, Section 4.2.1: acknowledgements every M_s seconds. Deviation: the first does not wait."""
    machine = paced()
    play(machine, (1.0, Acked("s", 0, 6), [ack(4)]))
    assert machine.next_deadline() is None, "nothing is held back"
    play(machine, (1.5, Acked("s", 0, 7), []), (2.0, Acked("s", 0, 8), []))
    assert machine.next_deadline() == 3.0
    play(machine, (2.9, Tick(), []), (3.0, Tick(), [ack(6)]), (9.0, Tick(), []))
    play(machine, (9.1, Acked("s", 0, 9), [ack(7)]))


def test_every_level_and_input_is_held_back_on_its_own() -> None:
    machine = paced(k=2)
    play(machine, (1.0, Acked("s", 0, 6), [ack(4, level=1)]))
    play(machine, (1.1, Acked("s", 0, 8), []), (1.2, Acked("s", 1, 7), []), (1.3, Acked("s", 0, 9), []))
    play(machine, (3.0, Tick(), [ack(7, level=1), ack(5)]))


def test_a_producer_on_the_same_host_is_told_at_once() -> None:
    machine = paced()
    play(machine, (0, Placed("s", ("in",)), []))
    play(machine, (1.0, Acked("s", 0, 6), [ack(4, level=0)]), (1.1, Acked("s", 0, 7), [ack(5, level=0)]))
    assert machine.next_deadline() is None


def test_a_stop_does_not_wait_for_the_pace() -> None:
    play(paced(), (1.0, Acked("s", 0, 6), [ack(4)]), (1.1, Acked("s", 0, 7), []), (1.2, Drain(), [ack(5)]))


@pytest.mark.parametrize("wrong", ["soon", "0s", -1, "-5s", 0])
def test_a_pace_must_be_a_duration(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"ack_every=.*"):
        UpstreamBackup(ack_every=wrong)  # type: ignore[arg-type]


PACED: Table = {
    "nothing said yet": (lambda: at(paced(every="300s"), 0), {"level 0": "ack 6 of in"}),
    "said a moment ago": (lambda: at(paced(every="300s"), 50, Acked("s", 0, 6)), {}),
    "held back": (
        lambda: at(paced(every="60s"), 50, Acked("s", 0, 6), Acked("s", 0, 7)),
        {"late tick": "ack 5 of in", "drain": "ack 5 of in"},
    ),
    "held back, and time": (
        lambda: at(paced(every="20s"), 50, Acked("s", 0, 6), Acked("s", 0, 7)),
        {**dict.fromkeys(EVENTS, "ack 5 of in"), "level 0": "ack 6 of in"},
    ),
}


@pytest.mark.parametrize(("state", "event"), list(product(PACED, EVENTS)))
def test_every_paced_state_against_every_event(state: str, event: str) -> None:
    check_pair(PACED, state, event)


@pytest.mark.parametrize(("state", "event"), list(product(PACED, EVENTS)))
def test_told_twice_is_told_once_when_paced(state: str, event: str) -> None:
    check_twice(PACED, state, event)


# -- an oracle that forgets nothing -----------------------------------------------------------------------------------


class Naive:
    """Two stages, "a" and "z": z reads a and an input of its own. Everything is looked up from scratch."""

    READS = {"a": ["in"], "z": ["other", "a"]}  # noqa: RUF012

    def __init__(self, k: int, start: dict[str, int]) -> None:
        self.k, self.start = k, start
        self.needs: dict[str, dict[int, dict[str, int]]] = {"a": {}, "z": {}}
        self.near: dict[str, tuple[str, ...]] = {"a": (), "z": ()}
        self.heard: list[Acked] = []
        self.said: list[AckUpstream] = []

    def has(self, name: str, level: int) -> int:
        return max([self.start[name], *(a.epoch for a in self.heard if (a.stage, a.level) == (name, level))])

    def oldest(self, name: str, epoch: int, input: str) -> int | None:
        known = [e for e, needs in self.needs[name].items() if e <= epoch and input in needs]
        return self.needs[name][max(known)][input] if known else None

    def pass_on(self, name: str, level: int) -> list[Effect]:
        """To a producer on the same host the same level, to another one the next; the next after the last is final."""
        levels = [*range(self.k), FINAL]
        epoch = min(self.has(name, level), max([self.start[name], *self.needs[name]]))
        effects: list[Effect] = []
        for input in self.READS[name]:
            place = levels.index(level) + (input not in self.near[name])
            oldest = self.oldest(name, epoch, input)
            if place == len(levels) or oldest is None:
                continue
            order = AckUpstream(name, oldest - 1, levels[place], input)
            before = [s.epoch for s in self.said if (s.stage, s.level, s.input) == (name, order.level, input)]
            if order.epoch > max([-1, *before]):
                effects.append(order)
                self.said.append(order)
        return effects

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Committed):
            self.needs[event.stage][event.epoch] = dict(event.needs or {})
            return [effect for level in (*range(self.k), FINAL) for effect in self.pass_on(event.stage, level)]
        if isinstance(event, Placed):
            self.near[event.stage] = event.near
            return []
        assert isinstance(event, Acked)
        if event.level >= self.k or event.epoch <= self.has(event.stage, event.level):
            return []
        self.heard.append(event)
        return self.pass_on(event.stage, event.level)


FACTS = st.one_of(
    st.tuples(st.sampled_from("az"), st.dictionaries(st.sampled_from(["in", "other", "a"]), st.integers(0, 4))),
    st.builds(Acked, st.sampled_from("az"), st.sampled_from([FINAL, 0, 0, 1, 2, 3]), st.integers(-1, 15)),
    st.builds(Placed, st.sampled_from("az"), st.sampled_from([(), ("a",), ("in", "other")])),
)


@settings(PATIENT, max_examples=400)
@given(st.integers(1, 3), st.integers(-1, 4), st.integers(-1, 4), st.lists(FACTS, max_size=50))
def test_the_machine_agrees_with_one_that_forgets_nothing(k: int, a: int, z: int, facts: list) -> None:
    """Needs are given as how far back each reaches, so that they rise with the epochs as those of windows do."""
    roles = [StageRole("a", a, ("in",)), StageRole("z", z, ("other", "a"))]
    machine, naive = UpstreamBackup(k=k).protect(roles), Naive(k, {"a": a, "z": z})
    at_epoch = {"a": a, "z": z}
    for fact in facts:
        if isinstance(fact, tuple):
            name, back = fact
            epoch = at_epoch[name] = at_epoch[name] + 1
            fact = Committed(name, epoch, {i: max(0, epoch + 1 - b) for i, b in back.items() if i in Naive.READS[name]})
        assert machine.handle(fact, 0.0) == naive.handle(fact), fact


def test_a_row_of_rebuilt_neighbours_is_promised_up_to_k_hosts() -> None:
    first = Row(frozenset(["h1"]), 1)
    assert first.promised
    assert first.joined_by(Row(frozenset(["h1"]), 1)).promised, "they were on one host"
    assert not first.joined_by(Row(frozenset(["h2"]), 2)).promised, "the smallest K counts"
    two = Row(frozenset(["h1"]), 2).joined_by(Row(frozenset(["h2"]), 2))
    assert two.promised and not two.joined_by(Row(frozenset(["h3"]), 2)).promised
