"""Levels, indicators and cause: the worked example of the paper number by number, and a naive memory beside each."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.core.acks import FINAL, AckPacer, Indicators, LevelAcks, compose

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines


# -- Hwang et al. 2003, Figure 6: node N_a reads S0 and S1 and feeds S3 to N_b and N_c ------------------------------


def node_a() -> LevelAcks:
    """N_a as Figure 6(a) finds it. The paper gives the indicators of S3[123] only; those of the older tuples are
    such that the level-1 acknowledgements of 50 and 55 can have been made."""
    node = LevelAcks({"S3": ["Nb", "Nc"]}, ["S0", "S1"], k=1)
    node.produced("S3", 50, {"S0": 90, "S1": 40})
    node.produced("S3", 55, {"S0": 95, "S1": 45})
    node.produced("S3", 123, {"S0": 200, "S1": 100})
    node.produced("S3", 125, {"S0": 202})
    return node


def test_figure_6_level_0_acks_of_125_and_123_are_passed_on_as_200_and_100() -> None:
    """Hwang et al. 2003, Section 4.2.1: S3[123] has been acknowledged by both neighbours at level 0. It maps onto
    (S0, 200) and (S1, 100), which can thus be acknowledged at level 1."""
    node = node_a()
    assert node.acked(0, "S3", "Nb", 125) == [], "Nc may have nothing yet"
    assert node.acked(0, "S3", "Nc", 123) == [(1, "S0", 200), (1, "S1", 100)]


def test_figure_6_level_1_acks_of_50_and_55_trim_at_50() -> None:
    """Hwang et al. 2003, Section 4.2.1 and Figure 5: S3[50] has been acknowledged by both at level 1 and is used to
    trim, up to but excluding it. With K = 1 nothing is passed on."""
    node = node_a()
    assert node.acked(1, "S3", "Nb", 50) == []
    assert node.trim("S3") == -1, "one neighbour alone trims nothing"
    assert node.acked(1, "S3", "Nc", 55) == []
    assert node.trim("S3") == 50


def test_figure_6_in_one_go_in_the_papers_order() -> None:
    """Hwang et al. 2003, Figure 6(a): ACK(0,S3,125), ACK(0,S3,123), ACK(1,S3,50), ACK(1,S3,55)."""
    node = node_a()
    said = [
        node.acked(0, "S3", "Nb", 125),
        node.acked(0, "S3", "Nc", 123),
        node.acked(1, "S3", "Nb", 50),
        node.acked(1, "S3", "Nc", 55),
    ]
    assert said == [[], [(1, "S0", 200), (1, "S1", 100)], [], []]
    assert (node.trim("S3"), node.trim("S3", leaf=True)) == (50, 123)


def test_figure_6_the_indicators_of_187_and_188_and_their_causes() -> None:
    """Hwang et al. 2003, Section 4.2.2: the filter makes S2[500] of S0[900]; the union makes S3[187] of S2[500] and
    S3[188] of S1[257]. cause((S3,188),S0) = (S0,900), cause((S3,188),S1) = (S1,257), cause((S3,187),S0) = (S0,900),
    and cause((S3,187),S1) depends on the tuples before."""
    node = node_a()
    of_s2_500 = compose({}, [{"S0": 900}])
    of_s3_187 = compose({}, [of_s2_500])
    of_s3_188 = compose({}, [{"S1": 257}])
    assert (of_s2_500, of_s3_187, of_s3_188) == ({"S0": 900}, {"S0": 900}, {"S1": 257})
    node.produced("S3", 187, of_s3_187)
    node.produced("S3", 188, of_s3_188)
    cause = node.indicators["S3"].cause
    assert cause(188, "S0") == 900
    assert cause(188, "S1") == 257
    assert cause(187, "S0") == 900
    assert cause(187, "S1") == 100, "that of S3[123], the nearest earlier one with an indicator for S1"


def test_a_leaf_trims_by_level_0() -> None:
    """Hwang et al. 2003, Section 4.2: leaf nodes use level-0 acknowledgements to trim their output queues."""
    node = LevelAcks({"out": ["app"]}, ["in"], k=1)
    node.produced("out", 7, {"in": 7})
    assert node.acked(0, "out", "app", 7) == [(1, "in", 7)]
    assert (node.trim("out", leaf=True), node.trim("out")) == (7, -1)


# -- Figure 7: composition ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ({}, [], {}),
        ({}, [{"S0": 3}], {"S0": 3}),
        ({}, [{"S0": 3}, {"S1": 5}], {"S0": 3, "S1": 5}),  # a join of two inputs
        ({}, [{"S0": 9}, {"S0": 4}, {"S0": 6}], {"S0": 4}),  # a window: its oldest element counts
        ({"S0": 4}, [{"S0": 6, "S1": 1}], {"S0": 4, "S1": 1}),
        ({"S0": 4}, [{"S0": 2}, {}], {"S0": 2}),
    ],
)
def test_figure_7_an_output_needs_the_oldest_that_any_of_its_parts_needs(
    first: dict[str, int], then: list[dict[str, int]], expected: dict[str, int]
) -> None:
    """Hwang et al. 2003, Figure 7 and Section 4.2.2: one indicator per input that actually contributed; for a whole
    network, cause yields the oldest input tuple that contributes to the state of any operator."""
    before = dict(first)
    assert compose(first, then) == expected
    assert first == before, "what was given is left alone"


def test_figure_7_through_two_boxes() -> None:
    """Hwang et al. 2003, Figure 7: a window of two over a union of S0 and S1, box by box. Each output's indicators
    are those of the oldest contributing tuple on the stream between the boxes, and of everything after it."""
    union = {10: {"S0": 31}, 11: {"S1": 7}, 12: {"S1": 8}, 13: {"S0": 32}}
    windows = {out: compose(union[out - 1], [union[out]]) for out in (11, 12, 13)}
    assert windows == {11: {"S0": 31, "S1": 7}, 12: {"S1": 7}, 13: {"S0": 32, "S1": 8}}


# -- levels up to K ---------------------------------------------------------------------------------------------------


def test_level_1_makes_level_2_and_only_level_k_trims() -> None:
    """Hwang et al. 2003, Section 4.4: level-1 acknowledgements generate level-2 ones and so on; only level K trims."""
    node = LevelAcks({"out": ["n"]}, ["in"], k=3)
    for number in range(5):
        node.produced("out", number, {"in": 10 + number})
    assert node.acked(0, "out", "n", 4) == [(1, "in", 14)]
    assert node.acked(1, "out", "n", 3) == [(2, "in", 13)]
    assert node.acked(2, "out", "n", 2) == [(3, "in", 12)]
    assert node.trim("out") == -1
    assert node.acked(3, "out", "n", 1) == []
    assert node.trim("out") == 1


def test_a_chain_of_k_plus_1_nodes_brings_the_applications_ack_to_the_first() -> None:
    """Hwang et al. 2003, Section 4.4: a tuple is preserved until it has been processed by K consecutive nodes on all
    downstream paths. Three windows of 2, 3 and 1 tuples in a row, K = 3: what the application has received goes up
    one level per node and is mapped through each node's cause."""
    widths = {"a": 2, "b": 3, "c": 1}
    nodes = {name: LevelAcks({name: ["next"]}, ["in"], k=3) for name in widths}
    for name, width in widths.items():
        for number in range(20):
            nodes[name].produced(name, number, {"in": max(0, number - width + 1)})
    assert nodes["c"].acked(0, "c", "next", 15) == [(1, "in", 15)]
    assert nodes["b"].acked(1, "b", "next", 15) == [(2, "in", 13)]
    assert nodes["a"].acked(2, "a", "next", 13) == [(3, "in", 12)]


def test_an_input_is_acked_when_all_output_streams_allow_it() -> None:
    """Hwang et al. 2003, Figure 4, lines 09-11: the bound of an input is the least over all output streams."""
    node = LevelAcks({"x": ["n"], "y": ["n"]}, ["in"], k=1)
    for number in range(5):
        node.produced("x", number, {"in": number})
        node.produced("y", number, {"in": 2 * number})
    assert node.acked(0, "x", "n", 4) == []
    assert node.acked(0, "y", "n", 1) == [(1, "in", 2)]
    assert node.acked(0, "y", "n", 4) == [(1, "in", 4)]


def test_an_input_that_an_output_never_used_so_far_is_held() -> None:
    """Where cause finds nothing at all, nothing is known and nothing is acknowledged: the safe side."""
    node = LevelAcks({"x": ["n"], "y": ["n"]}, ["in"], k=1)
    node.produced("x", 0, {"in": 0})
    node.produced("y", 0, {})
    assert node.acked(0, "x", "n", 0) == []
    assert node.acked(0, "y", "n", 0) == []
    node.produced("y", 1, {"in": 1})
    assert node.acked(0, "y", "n", 1) == [(1, "in", 0)]


def test_old_acks_move_nothing() -> None:
    node = node_a()
    node.acked(0, "S3", "Nb", 123)
    node.acked(0, "S3", "Nc", 123)
    assert node.acked(0, "S3", "Nb", 123) == []
    assert node.acked(0, "S3", "Nb", 50) == []
    assert node.acked(0, "S3", "Nb", 125) == [], "Nc is where it was"
    assert node.acked(0, "S3", "Nc", 124) == [], "124 needs nothing that 123 does not"
    assert node.trim("S3", leaf=True) == 124


@pytest.mark.parametrize("k", [0, -1])
def test_without_level_1_there_is_no_safety(k: int) -> None:
    with pytest.raises(ValueError, match=f"k={k}: at least level-1 acknowledgements are needed"):
        LevelAcks({"S3": ["Nb"]}, ["S0"], k=k)


def test_final_is_no_level_of_the_papers() -> None:
    assert FINAL < 0


# -- indicators -------------------------------------------------------------------------------------------------------


def test_an_element_without_an_indicator_takes_the_nearest_earlier_one() -> None:
    """Hwang et al. 2003, Section 4.2.2: the first non-empty set returned for the tuples preceding it."""
    union = Indicators(["left", "right"])
    for number, oldest in enumerate([{"left": 5}, {"right": 9}, {"right": 10}, {"left": 6}, {}]):
        union.append(number, oldest)
    assert [union.cause(n, "left") for n in range(6)] == [5, 5, 5, 6, 6, 6]
    assert [union.cause(n, "right") for n in range(6)] == [None, 9, 10, 10, 10, 10]
    assert union.cause(-1, "left") is None


def test_equal_neighbours_are_stored_once() -> None:
    indicators = Indicators(["in"])
    for number in range(1000):
        indicators.append(number, {"in": number // 100})
    assert len(indicators) == 10
    assert [indicators.cause(n, "in") for n in (0, 99, 100, 999)] == [0, 0, 1, 9]


def test_forgetting_keeps_what_is_needed_to_answer() -> None:
    indicators = Indicators(["a", "b"])
    for number in range(10):
        indicators.append(number, {"a": number} if number % 5 else {"a": number, "b": number})
    assert len(indicators) == 12
    indicators.forget(7)
    assert len(indicators) == 4, "a: 7, 8, 9; b: the one of 5, which answers for 7"
    assert [(indicators.cause(n, "a"), indicators.cause(n, "b")) for n in (7, 8, 9)] == [(7, 5), (8, 5), (9, 5)]
    indicators.forget(2)
    assert len(indicators) == 4, "what is forgotten already"
    indicators.forget(99)
    assert (indicators.cause(99, "a"), indicators.cause(99, "b"), len(indicators)) == (9, 5, 2)


def test_forgetting_what_never_was() -> None:
    indicators = Indicators(["a"])
    indicators.forget(5)
    assert len(indicators) == 0 and indicators.cause(9, "a") is None
    indicators.append(9, {"a": 1})
    indicators.forget(3)
    assert indicators.cause(9, "a") == 1


def test_elements_come_in_order() -> None:
    indicators = Indicators(["a"])
    indicators.append(3, {"a": 1})
    with pytest.raises(ValueError, match="element 3 appended after 3"):
        indicators.append(3, {"a": 2})
    with pytest.raises(ValueError, match="element 2 appended after 3"):
        indicators.append(2, {"a": 2})
    with pytest.raises(KeyError):
        indicators.append(4, {"stranger": 1})


def test_elements_come_in_order_even_after_equal_neighbours() -> None:
    indicators = Indicators(["a"])
    indicators.append(5, {"a": 1})
    indicators.append(7, {"a": 1})
    with pytest.raises(ValueError, match="element 6 appended after 7"):
        indicators.append(6, {"a": 2})


@dataclass
class NaiveIndicators:
    """Remembers the indicators of every element and walks back one by one, as the paper's words say."""

    of: dict[int, dict[str, int]] = field(default_factory=dict)

    def cause(self, number: int, name: str) -> int | None:
        for earlier in range(number, -1, -1):
            if name in self.of.get(earlier, {}):
                return self.of[earlier][name]
        return None


NEEDS = st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 6))


@settings(PATIENT, max_examples=300)
@given(st.lists(st.tuples(st.integers(1, 3), NEEDS, st.integers(-2, 4)), max_size=40))
def test_indicators_agree_with_a_memory_of_everything(elements: list[tuple[int, dict[str, int], int]]) -> None:
    indicators, naive = Indicators(["a", "b"]), NaiveIndicators()
    number = forgotten = -1
    for step, oldest, forget in elements:
        number += step
        indicators.append(number, oldest)
        naive.of[number] = oldest
        if forget >= 0:
            forgotten = max(forgotten, number - forget)
            indicators.forget(forgotten)
        for asked in range(max(forgotten, 0), number + 2):
            for name in ("a", "b"):
                assert indicators.cause(asked, name) == naive.cause(asked, name)
    kept = number - max(forgotten, 0) + 1
    assert len(indicators) <= 2 * (kept + 1), "at most one more than the elements that can be asked about"


# -- levels against the figures, read literally -----------------------------------------------------------------------


class NaiveLevels:
    """Figures 4 and 5 with a memory of everything ever said; all bounds are worked out from scratch."""

    def __init__(self, consumers: dict[str, list[str]], inputs: list[str], k: int) -> None:
        self.consumers, self.inputs, self.k = consumers, inputs, k
        self.made: dict[str, NaiveIndicators] = {s: NaiveIndicators() for s in consumers}
        self.heard: list[tuple[int, str, str, int]] = []
        self.bounds: dict[tuple[int, str], list[int]] = {}
        """What all consumers of a stream had acknowledged at a level, each time that it rose."""

    def down(self, level: int, stream: str) -> int:
        said = [[v for at, s, n, v in self.heard if (at, s, n) == (level, stream, c)] for c in self.consumers[stream]]
        return min(max(values, default=-1) for values in said)

    def up(self, level: int, name: str) -> int:
        """Line 09, each cause as it was when the stream's bound got there."""
        best = []
        for stream in self.consumers:
            causes = [self.made[stream].cause(b, name) for b in self.bounds.get((level, stream), [])]
            best.append(max((c for c in causes if c is not None), default=-1))
        return min(best)

    def acked(self, level: int, stream: str, consumer: str, number: int) -> list[tuple[int, str, int]]:
        before = {name: self.up(level, name) for name in self.inputs}
        was = self.down(level, stream)
        self.heard.append((level, stream, consumer, number))
        if self.down(level, stream) > was:
            self.bounds.setdefault((level, stream), []).append(self.down(level, stream))
        if level == self.k:
            return []
        return [(level + 1, n, self.up(level, n)) for n in self.inputs if self.up(level, n) > before[n]]


ACKS = st.tuples(st.integers(0, 3), st.sampled_from("xy"), st.sampled_from("mn"), st.integers(-1, 8))


@settings(PATIENT, max_examples=300)
@given(
    st.integers(1, 3),
    st.lists(NEEDS, min_size=9, max_size=9),
    st.lists(NEEDS, min_size=9, max_size=9),
    st.lists(ACKS, max_size=40),
)
def test_levels_agree_with_the_figures_read_literally(
    k: int, x: list[dict[str, int]], y: list[dict[str, int]], acks: list[tuple[int, str, str, int]]
) -> None:
    consumers = {"x": ["m", "n"], "y": ["n"]}
    node, naive = LevelAcks(consumers, ["a", "b"], k=k), NaiveLevels(consumers, ["a", "b"], k)
    for stream, elements in (("x", x), ("y", y)):
        for number, oldest in enumerate(elements):
            node.produced(stream, number, oldest)
            naive.made[stream].of[number] = oldest
    for level, stream, consumer, number in acks:
        if level > k or consumer not in consumers[stream]:
            continue
        assert node.acked(level, stream, consumer, number) == naive.acked(level, stream, consumer, number)
        assert node.trim(stream) == naive.down(k, stream)
        assert node.trim(stream, leaf=True) == naive.down(0, stream)


# -- when to acknowledge ----------------------------------------------------------------------------------------------


def test_every_n_elements_or_s_seconds_whichever_comes_first() -> None:
    """Hwang et al. 2003, Section 4.2.1: each node produces an acknowledgment for every M_n tuples it successfully
    receives, every M_s seconds, or whichever occurs first."""
    pacer = AckPacer(every_n=3, every_s=1.0)
    assert pacer.next_deadline() is None
    assert [pacer.received(n, 0.1 * n) for n in (1, 2, 3)] == [None, None, 3], "three of them"
    assert pacer.next_deadline() is None
    assert pacer.received(4, 5.0) is None
    assert pacer.next_deadline() == 6.0
    assert pacer.tick(5.9) is None
    assert pacer.tick(6.0) == 4, "a second after the first that was not acknowledged"
    assert pacer.tick(99.0) is None, "nothing came since"


def test_by_number_alone_and_by_time_alone() -> None:
    assert [AckPacer(every_n=1).received(n, 0.0) for n in (7, 8)] == [7, 8]
    pacer = AckPacer(every_s=0.5)
    assert [pacer.received(n, 0.2 * n) for n in range(5)] == [None, None, None, 3, None]
    by_number = AckPacer(every_n=2)
    assert by_number.received(1, 0.0) is None and by_number.next_deadline() is None and by_number.tick(1e9) is None


@settings(PATIENT)
@given(
    st.one_of(st.none(), st.integers(1, 5)),
    st.one_of(st.none(), st.sampled_from([0.5, 1.0, 2.0])),
    st.lists(st.integers(0, 4), max_size=40),
)
def test_no_element_waits_longer_than_promised(every_n: int | None, every_s: float | None, gaps: list[int]) -> None:
    if every_n is None and every_s is None:
        return
    pacer, now, waiting = AckPacer(every_n=every_n, every_s=every_s), 0.0, list[tuple[int, float]]()
    for number, gap in enumerate(gaps):
        now += gap / 4
        deadline = pacer.next_deadline()
        if deadline is not None and deadline <= now:
            assert pacer.tick(deadline) == waiting[-1][0]
            waiting = []
        waiting.append((number, now))
        acked = pacer.received(number, now)
        if acked is not None:
            assert acked == number
            waiting = []
        assert every_n is None or len(waiting) < every_n
        assert every_s is None or not waiting or pacer.next_deadline() == waiting[0][1] + every_s


@pytest.mark.parametrize(
    ("how", "words"),
    [({}, "give at least one"), ({"every_n": 0}, "every_n=0"), ({"every_s": -1.0}, "every_s=-1.0")],
)
def test_a_pace_that_is_none_is_refused(how: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AckPacer(**how)


@pytest.mark.parametrize("level", [-1, 2])
def test_a_level_that_the_node_does_not_know_is_refused(level: int) -> None:
    with pytest.raises(ValueError, match=f"level={level}: this node knows levels 0 to 1"):
        LevelAcks({"out": ["n"]}, ["in"], k=1).acked(level, "out", "n", 5)
