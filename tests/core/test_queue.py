"""Positions of an output queue, against the paper's claims and against a queue that remembers everything."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.core.acks import FINAL
from understudy.core.queue import LEAD, OutputQueue, Progress, lead_for

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines


def positions(queue: OutputQueue) -> tuple[int, int, int]:
    return queue.trimmed, queue.first, queue.next


# -- Gu et al. 2009 ---------------------------------------------------------------------------------------------


def test_epochs_are_numbered_one_by_one() -> None:
    """Gu et al. 2009, Section 3.1: an output queue assigns an incremental sequence number to each new element."""
    queue = OutputQueue(["a"])
    assert [queue.append(e) for e in range(3)] == [True, True, True]
    with pytest.raises(ValueError, match="epoch 4 appended where 3 was due"):
        queue.append(4)
    with pytest.raises(ValueError, match="epoch 2 appended where 3 was due"):
        queue.append(2)
    assert positions(queue) == (-1, 0, 3)


def test_receipt_removes_nothing() -> None:
    """Gu et al. 2009, Section 3.1: data received downstream is not removed; it may crash there unprocessed."""
    queue = OutputQueue(["a"])
    for epoch in range(3):
        queue.append(epoch)
        assert queue.request("a", epoch)
    assert not queue.request("a", 3)
    assert positions(queue) == (-1, 0, 3)


def test_acks_are_accumulative() -> None:
    """Gu et al. 2009, Section 3.1: accumulative acknowledgment, like that of TCP."""
    queue = OutputQueue(["a"])
    for epoch in range(5):
        queue.append(epoch)
    assert queue.ack("a", 3) == 3
    assert positions(queue) == (3, 4, 5)
    assert queue.ack("a", 1) is None, "an old ack that was under way for long takes nothing back"
    assert queue.ack("a", 3) is None
    assert positions(queue) == (3, 4, 5)


def test_an_epoch_goes_only_when_every_consumer_acked_it() -> None:
    """Gu et al. 2009, Section 3.1: removed only when the acknowledgments from all downstream queues are there."""
    queue = OutputQueue(["a", "b"])
    for epoch in range(4):
        queue.append(epoch)
    assert queue.ack("a", 3) is None
    assert positions(queue) == (-1, 0, 4)
    assert queue.ack("b", 1) == 1
    assert positions(queue) == (1, 2, 4)
    assert queue.ack("b", 3) == 3
    assert positions(queue) == (3, 4, 4)


def test_a_consumer_that_lost_its_input_finds_it_again() -> None:
    """Gu et al. 2009, Section 3.1 (what to include) and Theorem 3.1: input queues need not be checkpointed, since
    whatever came after the consumer's last acknowledged checkpoint is still in the producer's output queue."""
    queue = OutputQueue(["a", "b"])
    for epoch in range(6):
        queue.append(epoch)
    queue.request("a", 6)
    queue.ack("a", 2)
    queue.ack("b", 5)
    assert queue.first == 3
    assert [queue.request("a", e) for e in range(3, 7)] == [True, True, True, False]


def test_a_producer_that_begins_again_need_not_keep_what_is_known_downstream() -> None:
    """Gu et al. 2009, Theorem 3.1: downstream drops what it has processed before. Here it is not even sent: a
    consumer's first words to the new producer say where it is."""
    queue = OutputQueue(["a"], start=3)
    assert queue.ack("a", 4) == 4
    assert not queue.request("a", 6), "not there yet: everything before 6 is to be regenerated first"
    assert [queue.append(e) for e in (3, 4, 5, 6)] == [False, False, True, True]
    assert positions(queue) == (4, 5, 7)
    assert queue.request("a", 6)


# -- the rest of the interface ----------------------------------------------------------------------------------


def test_a_new_queue_begins_at_its_start() -> None:
    queue = OutputQueue(["a", "b"], start=7)
    assert positions(queue) == (6, 7, 7)
    assert queue.progress == {"a": Progress(6, 6), "b": Progress(6, 6)}
    assert queue.ahead == 0


def test_a_stream_without_consumers_keeps_nothing() -> None:
    queue = OutputQueue([])
    assert [queue.append(e) for e in range(3)] == [False, False, False]
    assert positions(queue) == (2, 3, 3)
    assert queue.ahead == 0


def test_a_request_says_that_everything_before_has_arrived() -> None:
    queue = OutputQueue(["a", "b"])
    for epoch in range(4):
        queue.append(epoch)
    assert queue.ahead == 4
    queue.request("a", 4)
    assert queue.ahead == 4, "the slowest consumer counts"
    queue.request("b", 3)
    assert queue.ahead == 1
    queue.request("b", 1)
    assert queue.ahead == 1, "asking again for an old epoch does not unreceive the newer ones"


def test_what_copies_ask_for_lifts_back_pressure_up_to_a_point_and_says_nothing_else() -> None:
    queue = OutputQueue(["a"])
    for epoch in range(LEAD + 10):
        queue.append(epoch)
    queue.request("a", 3)
    assert queue.ask("a", 5) and queue.ahead == LEAD + 5
    assert not queue.ask("a", LEAD + 10), "not there yet"
    assert queue.ahead == LEAD + 9 - (2 + LEAD), "the primary is so far behind that it counts again"
    assert (queue.bound(0), queue.bound(FINAL), queue.trimmed) == (2, -1, -1)
    queue.request("a", 10)
    assert queue.ahead == 0
    assert queue.hears("a", 1, near=False)
    assert queue.ahead == LEAD + 10, "the next generation speaks for itself"


@pytest.mark.parametrize(("detection_s", "epoch_s", "lead"), [(2.5, 0.5, 9), (12.0, 3.0, 8), (2.5, 10.0, 5)])
def test_a_primary_that_hangs_leaves_its_copies_room_until_it_is_found_out(
    detection_s: float, epoch_s: float, lead: int
) -> None:
    assert lead_for(detection_s, epoch_s) == lead
    queue = OutputQueue(["a"], lead=lead)
    for epoch in range(lead + 3):
        queue.append(epoch)
    queue.request("a", 1)
    queue.ask("a", lead + 1)
    assert queue.ahead == 2, "all that the copies have counts"
    queue.ask("a", lead + 3)
    assert queue.ahead == 2, "and no more than that"


def test_an_ack_counts_as_receipt() -> None:
    queue = OutputQueue(["a"])
    queue.append(0)
    queue.ack("a", 0)
    assert queue.progress["a"] == Progress(received=0, acked=0)
    assert queue.ahead == 0


def test_an_ack_ahead_of_the_queue_never_puts_first_past_next() -> None:
    queue = OutputQueue(["a"], start=2)
    assert queue.ack("a", 9) == 9
    assert positions(queue) == (9, 2, 2)


# -- levels -----------------------------------------------------------------------------------------------------


def test_asking_for_an_epoch_says_level_0_for_everything_before() -> None:
    """Hwang et al. 2003, Section 4.2.1: level-0 acknowledgements confirm receipt. Deviation: they need no message
    of their own, since consumers pull."""
    queue = OutputQueue(["a", "b"])
    for epoch in range(6):
        queue.append(epoch)
    queue.request("a", 5)
    assert (queue.bound(0), queue.bound(1), queue.bound(FINAL)) == (-1, -1, -1), "b has nothing yet"
    queue.request("b", 3)
    assert (queue.bound(0), queue.bound(1), queue.bound(FINAL)) == (2, -1, -1)
    assert positions(queue) == (-1, 0, 6)


def test_levels_below_the_final_one_trim_nothing() -> None:
    """Hwang et al. 2003, Section 4.4: only level-K acknowledgements are actually used to trim output queues."""
    queue = OutputQueue(["a"])
    for epoch in range(6):
        queue.append(epoch)
    assert [queue.ack("a", 4, level) for level in (1, 2, 3)] == [None, None, None]
    assert positions(queue) == (-1, 0, 6)
    assert [queue.bound(level) for level in (0, 1, 2, 3, 4)] == [-1, 4, 4, 4, -1]
    assert queue.ack("a", 2) == 2
    assert positions(queue) == (2, 3, 6)


def test_a_level_is_what_every_consumer_said_at_it() -> None:
    """Hwang et al. 2003, Section 4.2.1, Figure 6: S3[125] and S3[123] at level 0 make 123, 50 and 55 at level 1
    make 50."""
    queue = OutputQueue(["Nb", "Nc"])
    queue.request("Nb", 126)
    queue.request("Nc", 124)
    queue.ack("Nb", 50, 1)
    queue.ack("Nc", 55, 1)
    assert (queue.bound(0), queue.bound(1)) == (123, 50)


def test_a_consumer_that_does_not_speak_a_level_is_bounded_by_its_final_ack() -> None:
    """A passive neighbour beside one with upstream backup: what it has checkpointed is never needed again at all."""
    queue = OutputQueue(["speaks", "silent"])
    queue.ack("speaks", 7, 1)
    queue.ack("silent", 3)
    assert (queue.bound(1), queue.bound(2), queue.bound(FINAL)) == (3, -1, -1)
    queue.ack("silent", 9)
    assert (queue.bound(1), queue.bound(2), queue.bound(FINAL)) == (7, -1, -1)


def test_a_final_ack_speaks_for_every_level() -> None:
    queue = OutputQueue(["a"])
    queue.ack("a", 2, 1)
    queue.ack("a", 5)
    assert [queue.bound(level) for level in (FINAL, 0, 1, 2)] == [5, 5, 5, 5]


def test_old_news_at_a_level_takes_nothing_back() -> None:
    queue = OutputQueue(["a"])
    queue.ack("a", 5, 1)
    queue.ack("a", 2, 1)
    assert queue.bound(1) == 5
    assert queue.progress["a"] == Progress(received=-1, acked=-1, levels={1: 5})


def test_what_a_consumer_on_the_same_host_has_keeps_nothing_safe() -> None:
    """Hwang et al. 2003, Section 4.2.2: a node's indicators are composed over all its operators. A stage on the same
    host fails together with its producer, so its receipt does not count; what it passes on does."""
    queue = OutputQueue(["near", "far"], start=2)
    for epoch in range(2, 8):
        queue.append(epoch)
    assert queue.hears("near", 1, near=True) and queue.hears("far", 1, near=False)
    queue.request("near", 7)
    queue.request("far", 7)
    assert [queue.bound(level) for level in (0, 1)] == [1, 1]
    queue.ack("near", 4, 0)
    assert [queue.bound(level) for level in (0, 1)] == [4, 1]
    queue.ack("near", 3, 0)
    assert queue.bound(0) == 4, "old news takes nothing back"
    assert queue.ack("near", 5) is None
    assert queue.ack("far", 6) == 5
    assert [queue.bound(level) for level in (0, 1, FINAL)] == [5, 5, 5]
    assert queue.ahead == 1, "for back-pressure receipt counts as ever"


def test_nobody_speaks_for_a_consumer_that_was_replaced() -> None:
    """Where the new copy begins depends on what the queue held when it first spoke."""
    queue = OutputQueue(["a", "b"])
    assert queue.hears("a", 3, near=False)
    assert queue.hears("a", 3, near=False), "the same one again"
    assert not queue.hears("a", 2, near=True)
    assert queue.progress["a"] == Progress(-1, -1, generation=3, near=False), "it changed nothing"
    assert queue.hears("a", 4, near=True)
    assert queue.progress["a"] == Progress(-1, -1, generation=4, near=True)
    assert queue.hears("b", 0, near=False), "generations are told apart by consumer, and begin with 0"


def test_a_consumer_that_has_moved_away_says_level_0_by_asking() -> None:
    queue = OutputQueue(["a"])
    queue.hears("a", 1, near=True)
    queue.ack("a", 3, 0)
    queue.hears("a", 2, near=False)
    queue.request("a", 9)
    assert queue.bound(0) == 8


def test_a_stream_without_consumers_has_everything_acked_at_every_level() -> None:
    queue = OutputQueue([], start=4)
    queue.append(4)
    assert [queue.bound(level) for level in (FINAL, 0, 1)] == [4, 4, 4]


@pytest.mark.parametrize("call", [lambda q: q.request("x", 0), lambda q: q.ack("x", 0), lambda q: q.ack("x", 0, 1)])
def test_a_stranger_is_a_bug_and_raises(call: object) -> None:
    with pytest.raises(KeyError):
        call(OutputQueue(["a"]))  # type: ignore[operator]


# -- property: a queue that remembers everything ----------------------------------------------------------------


@dataclass
class NaiveQueue:
    """Keeps every epoch and every word of every consumer, and works everything out from scratch."""

    start: int
    consumers: list[str]
    produced: list[int] = field(default_factory=list)
    said_acked: dict[str, list[int]] = field(default_factory=dict)
    said_received: dict[str, list[int]] = field(default_factory=dict)
    said_at: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    near: list[str] = field(default_factory=list)

    def acked(self, consumer: str, epoch: int) -> bool:
        return epoch < self.start or any(epoch <= a for a in self.said_acked.get(consumer, []))

    def received(self, consumer: str, epoch: int) -> bool:
        return self.acked(consumer, epoch) or any(epoch <= r for r in self.said_received.get(consumer, []))

    def wanted(self, epoch: int) -> bool:
        return any(not self.acked(c, epoch) for c in self.consumers)

    @property
    def kept(self) -> list[int]:
        return [e for e in self.produced if self.wanted(e)]

    @property
    def trimmed(self) -> int:
        if not self.consumers:
            return self.start + len(self.produced) - 1
        epoch = self.start - 1
        while not self.wanted(epoch + 1):
            epoch += 1
        return epoch

    def bound(self, level: int) -> int:
        """The newest epoch up to which no consumer lacks the level."""

        def has(consumer: str, epoch: int) -> bool:
            if any(epoch <= e for e in self.said_at.get((consumer, level), [])):
                return True
            by_asking = level == 0 and consumer not in self.near
            return self.received(consumer, epoch) if by_asking else self.acked(consumer, epoch)

        if not self.consumers:
            return self.trimmed
        epoch = self.start - 1
        while all(has(c, epoch + 1) for c in self.consumers):
            epoch += 1
        return epoch

    @property
    def ahead(self) -> int:
        return max((sum(not self.received(c, e) for e in self.produced) for c in self.consumers), default=0)


EPOCHS = st.integers(-1, 12)
NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.just(("append",)),
    st.tuples(st.just("request"), NAMES, EPOCHS),
    st.tuples(st.just("ack"), NAMES, EPOCHS),
    st.tuples(st.just("level"), NAMES, EPOCHS, st.integers(0, 3)),
)


@settings(PATIENT, max_examples=300)
@given(st.integers(0, 3), st.lists(NAMES, unique=True), st.lists(NAMES, max_size=1), st.lists(STEPS, max_size=40))
def test_the_queue_agrees_with_one_that_remembers_everything(
    start: int, consumers: list[str], near: list[str], steps: list[tuple[object, ...]]
) -> None:
    queue, naive = OutputQueue(consumers, start=start), NaiveQueue(start, consumers, near=near)
    for name in consumers:
        assert queue.hears(name, 1, near=name in near)
    for step in steps:
        if step[0] == "append":
            epoch = queue.next
            keep = queue.append(epoch)
            naive.produced.append(epoch)
            assert keep == naive.wanted(epoch)
        elif step[1] not in consumers:
            continue
        elif step[0] == "request":
            served = queue.request(step[1], step[2])  # type: ignore[arg-type]
            naive.said_received.setdefault(step[1], []).append(step[2] - 1)  # type: ignore
            assert served == (step[2] < start + len(naive.produced))  # type: ignore[operator]
        elif step[0] == "level":
            if step[3] == 0 and step[1] not in near:
                continue  # whoever is elsewhere says level 0 by asking
            assert queue.ack(step[1], step[2], step[3]) is None  # type: ignore[arg-type]
            naive.said_at.setdefault((step[1], step[3]), []).append(step[2])  # type: ignore
        else:
            before = naive.trimmed
            moved = queue.ack(step[1], step[2])  # type: ignore[arg-type]
            naive.said_acked.setdefault(step[1], []).append(step[2])  # type: ignore
            assert moved == (None if naive.trimmed == before else naive.trimmed)

        assert queue.trimmed == naive.trimmed == queue.bound(FINAL)
        assert [queue.bound(level) for level in range(4)] == [naive.bound(level) for level in range(4)]
        assert queue.ahead == naive.ahead
        assert list(range(queue.first, queue.next)) == naive.kept, "keeps what is wanted and nothing else"
        # The invariant as stated in queue.py. While regenerating, trimmed may lie ahead of next; first then waits.
        for progress in queue.progress.values():
            assert queue.trimmed <= progress.acked <= progress.received
        assert queue.first <= queue.next
        assert queue.trimmed < queue.first or queue.first == queue.next


def test_what_a_consumer_was_given_is_known_beyond_its_generation() -> None:
    """A successor without state begins after it, however often it asks; what was only received keeps nothing safe."""
    queue = OutputQueue(["a"])
    for epoch in range(8):
        queue.append(epoch)
    queue.hears("a", 1, near=False)
    queue.request("a", 6)
    queue.ack("a", 2)
    for _ in range(2):
        assert queue.hears("a", 2, near=False)
        assert (queue.progress["a"].given, queue.progress["a"].received) == (5, 2)


def test_a_rebuilt_queue_owes_what_is_gone_until_it_hears_that_nobody_needs_it() -> None:
    queue = OutputQueue(["a", "b"], start=7, rebuilt=True)
    assert queue.owes("a") and queue.owes("b")
    queue.hears("a", 2, near=False)
    queue.ack("a", 5)
    assert queue.owes("a"), "it may yet need epoch 6"
    queue.ack("a", 9, level=1)
    assert queue.owes("a"), "only what is final counts"
    queue.ack("a", 6)
    assert not queue.owes("a") and queue.owes("b")
    queue.hears("a", 3, near=False)
    assert not queue.owes("a"), "nor will its successors"


@pytest.mark.parametrize("queue", [OutputQueue(["a"], start=7), OutputQueue(["a"], start=0, rebuilt=True)])
def test_a_queue_that_lost_nothing_owes_nothing(queue: OutputQueue) -> None:
    assert not queue.owes("a")
