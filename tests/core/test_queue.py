"""Positions of an output queue, against the paper's claims and against a queue that remembers everything."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.core.queue import OutputQueue, Progress

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


@pytest.mark.parametrize("call", [lambda q: q.request("x", 0), lambda q: q.ack("x", 0)])
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

    @property
    def ahead(self) -> int:
        return max((sum(not self.received(c, e) for e in self.produced) for c in self.consumers), default=0)


EPOCHS = st.integers(-1, 12)
NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.just(("append",)),
    st.tuples(st.just("request"), NAMES, EPOCHS),
    st.tuples(st.just("ack"), NAMES, EPOCHS),
)


@settings(PATIENT, max_examples=300)
@given(st.integers(0, 3), st.lists(NAMES, unique=True), st.lists(STEPS, max_size=40))
def test_the_queue_agrees_with_one_that_remembers_everything(
    start: int, consumers: list[str], steps: list[tuple[object, ...]]
) -> None:
    queue, naive = OutputQueue(consumers, start=start), NaiveQueue(start, consumers)
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
        else:
            before = naive.trimmed
            moved = queue.ack(step[1], step[2])  # type: ignore[arg-type]
            naive.said_acked.setdefault(step[1], []).append(step[2])  # type: ignore
            assert moved == (None if naive.trimmed == before else naive.trimmed)

        assert queue.trimmed == naive.trimmed
        assert max(0, queue.ahead) == naive.ahead
        assert list(range(queue.first, queue.next)) == naive.kept, "keeps what is wanted and nothing else"
        # The invariant as stated in queue.py. While regenerating, trimmed may lie ahead of next; first then waits.
        for progress in queue.progress.values():
            assert queue.trimmed <= progress.acked <= progress.received
        assert queue.first <= queue.next
        assert queue.trimmed < queue.first or queue.first == queue.next
