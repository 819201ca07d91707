"""When a stage is checkpointed and what it acknowledges: scripts, the paper's claims, and every order of events."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.core.checkpointing import (
    AckUpstream,
    Capture,
    CaptureFailed,
    Committed,
    Drain,
    Effect,
    Event,
    Pasted,
    Received,
    StandbyChanged,
    Sweeping,
    Tick,
    Trimmed,
    Unprotected,
)
from understudy.core.queue import OutputQueue

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines

PRESENT, ABSENT = StandbyChanged(present=True), StandbyChanged(present=False)
LOST, FAILED = CaptureFailed(lost_standby=True), CaptureFailed(lost_standby=False)


def play(machine: Sweeping | Unprotected, *script: tuple[float, Event, list[Effect]]) -> None:
    """Feed each event at its time and compare the whole list of effects."""
    for step, (now, event, expected) in enumerate(script):
        assert machine.handle(event, now) == expected, f"step {step}: {event} at {now}"


def done(machine: Sweeping, epoch: int, now: float = 0.0) -> list[Effect]:
    """The epoch is committed, acknowledged by every consumer, and known to be."""
    return machine.handle(Committed(epoch), now) + machine.handle(Trimmed(epoch), now)


def inner(start: int = -1) -> Sweeping:
    return Sweeping(start=start, every_s=10.0, last=False)


def last(start: int = -1) -> Sweeping:
    return Sweeping(start=start, every_s=10.0, last=True)


# -- scripts ----------------------------------------------------------------------------------------------------


def test_a_stage_in_the_middle_from_its_first_epoch_to_its_third() -> None:
    play(
        inner(),
        (0, PRESENT, [Capture(-1)]),  # a standby that holds nothing is of no use: even the empty state is shipped
        (0, Pasted(-1), []),
        (1, Committed(0), []),
        (1, Trimmed(0), [Capture(0)]),
        (1, Committed(1), []),
        (1, Trimmed(1), []),  # one at a time
        (2, Pasted(0), [Capture(1)]),
        (3, Pasted(1), [AckUpstream(0)]),
        (4, Committed(2), []),
        (4, Trimmed(2), [Capture(2)]),
        (5, Pasted(2), [AckUpstream(1)]),
        (99, Tick(), []),
    )


def test_a_last_stage_waits_for_its_timer() -> None:
    machine = last()
    play(
        machine,
        (0, PRESENT, [Capture(-1)]),
        (1, Pasted(-1), []),
        (2, Committed(0), []),
        (2, Trimmed(0), []),
        (9.9, Tick(), []),
    )
    assert machine.next_deadline() == 10.0
    play(
        machine,
        (10, Tick(), [Capture(0)]),
        (11, Pasted(0), []),
        (12, Committed(1), []),
        (12, Trimmed(1), []),
        (20, Tick(), [Capture(1)]),
        (21, Pasted(1), [AckUpstream(0)]),
    )
    assert machine.next_deadline() is None, "nothing new: nothing to wait for"


def test_a_late_timer_does_not_hold_back_an_epoch() -> None:
    machine = last()
    play(machine, (0, PRESENT, [Capture(-1)]), (1, Pasted(-1), []))
    play(machine, (15, Committed(0), []), (15, Trimmed(0), [Capture(0)]))


def test_only_what_is_both_committed_and_trimmed_is_captured() -> None:
    play(
        inner(),
        (0, PRESENT, [Capture(-1)]),
        (0, Pasted(-1), []),
        (1, Trimmed(5), []),  # consumers were ahead of a stage that begins again
        (2, Committed(0), [Capture(0)]),
        (3, Pasted(0), []),
        (4, Committed(3), [Capture(3)]),
        (5, Pasted(3), [AckUpstream(0)]),
        (6, Committed(9), [Capture(5)]),
    )


def test_old_news_moves_nothing() -> None:
    machine = inner(start=7)
    play(
        machine,
        (0, PRESENT, [Capture(7)]),
        (0, Pasted(7), []),
        (0, Committed(3), []),
        (0, Trimmed(4), []),
        (0, Received(9), []),
        (0, Tick(), []),
    )
    assert (machine.committed, machine.trimmed, machine.captured, machine.pasted, machine.acked) == (7,) * 5


def test_without_a_standby_the_stage_goes_on_unprotected() -> None:
    play(
        inner(),
        (0, Committed(0), []),
        (0, Trimmed(0), [AckUpstream(0)]),
        (0, Trimmed(3), []),
        (0, Committed(2), [AckUpstream(2)]),
        (0, Tick(), []),
    )


def test_a_new_standby_is_brought_up_to_date_at_once_and_acks_wait_for_it() -> None:
    play(
        last(start=4),
        (0, Committed(5), []),
        (0, Trimmed(5), [AckUpstream(5)]),
        (0, PRESENT, [Capture(5)]),
        (1, Committed(6), []),
        (1, Trimmed(6), []),
        (2, Pasted(5), []),
        (10, Tick(), [Capture(6)]),
        (11, Pasted(6), []),
        (12, Committed(7), []),
        (12, Trimmed(7), []),
        (20, Tick(), [Capture(7)]),
        (21, Pasted(7), [AckUpstream(6)]),
    )


def test_another_standby_begins_from_nothing() -> None:
    machine = inner()
    play(
        machine,
        (0, PRESENT, [Capture(-1)]),
        (0, Committed(0), []),
        (0, Trimmed(0), []),
        (1, PRESENT, [Capture(0)]),
        (2, Pasted(0), []),
        (3, PRESENT, [Capture(0)]),  # nothing new, but this one holds nothing
    )
    assert machine.in_flight and not machine.holding


def test_another_standby_does_not_wait_for_the_timer_of_the_one_before() -> None:
    play(last(), (0, PRESENT, [Capture(-1)]), (1, Pasted(-1), []), (2, PRESENT, [Capture(-1)]))
    play(last(), (0, PRESENT, [Capture(-1)]), (1, FAILED, []), (1.5, PRESENT, [Capture(-1)]))


def test_a_lost_standby_frees_what_was_held_for_it() -> None:
    machine = inner()
    play(
        machine,
        (0, PRESENT, [Capture(-1)]),
        (0, Pasted(-1), []),
        (0, Committed(0), []),
        (0, Trimmed(0), [Capture(0)]),
        (1, ABSENT, [AckUpstream(0)]),
        (1, Committed(1), []),
        (1, Trimmed(1), [AckUpstream(1)]),
    )
    assert machine.next_deadline() is None


def test_an_unusable_standby_is_as_good_as_none() -> None:
    play(
        inner(),
        (0, PRESENT, [Capture(-1)]),
        (0, Committed(0), []),
        (0, Trimmed(0), []),
        (1, LOST, [AckUpstream(0)]),
        (5, Tick(), []),
        (6, PRESENT, [Capture(0)]),
    )
    machine = inner()
    play(machine, (0, PRESENT, [Capture(-1)]), (0, Pasted(-1), []))
    assert done(machine, 0) == [Capture(0)] and machine.holding
    play(machine, (1, LOST, [AckUpstream(0)]))
    assert not machine.holding, "nobody may take the job for drained"


def test_a_failed_capture_is_tried_again_after_a_pause_while_the_standby_holds_nothing() -> None:
    machine = inner()
    play(machine, (0, PRESENT, [Capture(-1)]), (3, FAILED, []), (3.5, Committed(0), []), (3.5, Trimmed(0), []))
    assert machine.next_deadline() == 3 + Sweeping.RETRY_S
    play(machine, (4, Tick(), [Capture(0)]), (5, Pasted(0), []))


def test_a_failed_capture_of_the_last_stage_is_tried_again_after_a_pause() -> None:
    machine = last()
    play(
        machine,
        (0, PRESENT, [Capture(-1)]),
        (1, Pasted(-1), []),
        (10, Committed(0), []),
        (10, Trimmed(0), [Capture(0)]),
        (11, FAILED, []),
        (11.5, Committed(1), []),
        (11.5, Trimmed(1), []),
    )
    assert machine.next_deadline() == 11 + Sweeping.RETRY_S
    play(machine, (12, Tick(), [Capture(1)]))


@pytest.mark.parametrize("is_last", [False, True])
def test_a_failed_capture_is_tried_again_without_a_newer_epoch(is_last: bool) -> None:
    machine = Sweeping(start=-1, every_s=0.5, last=is_last)
    play(machine, (0, PRESENT, [Capture(-1)]), (0, Pasted(-1), []))
    assert done(machine, 0, now=1.0) == [Capture(0)]
    play(machine, (1, FAILED, []), (9, Tick(), [Capture(0)]))


def test_draining_tries_a_failed_capture_again() -> None:
    machine = inner()
    play(machine, (0, PRESENT, [Capture(-1)]), (0, Pasted(-1), []))
    assert done(machine, 0) == [Capture(0)]
    play(machine, (1, FAILED, []), (9, Drain(), [Capture(0)]))


def test_the_pause_after_a_failure_is_kept_when_newer_epochs_wait() -> None:
    machine = inner()
    play(machine, (0, PRESENT, [Capture(-1)]), (0, Pasted(-1), []))
    assert done(machine, 0) == [Capture(0)]
    assert done(machine, 1) == []
    play(machine, (1, FAILED, []), (1.5, Tick(), []), (2, Tick(), [Capture(1)]))


def test_the_pause_after_a_failure_is_kept_while_draining() -> None:
    play(inner(), (0, PRESENT, [Capture(-1)]), (0, Drain(), []), (1, FAILED, []), (2, Tick(), [Capture(-1)]))


def test_draining_does_not_wait_for_the_timer() -> None:
    play(
        last(),
        (0, PRESENT, [Capture(-1)]),
        (1, Pasted(-1), []),
        (2, Committed(0), []),
        (2, Trimmed(0), []),
        (3, Drain(), [Capture(0)]),
        (3, Committed(1), []),
        (3, Trimmed(1), []),
        (4, Pasted(0), [Capture(1)]),
        (5, Pasted(1), [AckUpstream(0)]),
    )


def test_without_a_capture_to_wait_for_there_is_no_deadline() -> None:
    machine = last()
    assert machine.next_deadline() is None, "no standby"
    machine.handle(PRESENT, 0)
    assert machine.next_deadline() is None, "in flight"
    machine.handle(Pasted(-1), 1)
    assert machine.next_deadline() is None, "nothing new"
    done(machine, 0, now=2)
    assert machine.next_deadline() == 10.0


def test_an_unprotected_stage_ignores_everything_but_new_input() -> None:
    machine = Unprotected(start=3)
    play(
        machine,
        (0, Committed(9), []),
        (0, Trimmed(9), []),
        (0, Pasted(9), []),
        (0, FAILED, []),
        (0, PRESENT, []),
        (0, Tick(), []),
        (0, Drain(), []),
        (0, Received(3), []),
        (0, Received(4), [AckUpstream(4)]),
        (0, Received(4), []),
        (0, Received(9), [AckUpstream(9)]),
    )
    assert machine.next_deadline() is None


# -- a chain of stages, with nothing but core objects ------------------------------------------------------------


@dataclass
class Node:
    """One stage of the chain: its machine, its output queue, and what its standby holds."""

    machine: Sweeping | Unprotected
    queue: OutputQueue
    consumer: str
    """Who reads the queue: the next stage, or the sink."""
    state: int = -1
    acked: int = -1
    in_flight: int | None = None
    versions: list[int] = field(default_factory=list)


class Chain:
    """source -> stage 1 -> ... -> stage n -> sink. The source (index 0) is only a queue; it can always be re-read."""

    def __init__(self, stages: int, *, every_s: float = 10.0, last_protected: bool = True) -> None:
        self.now = 0.0
        self.every_s = every_s
        self.sunk = -1
        self.log: list[tuple[int, Effect]] = []
        self.nodes: list[Node] = []
        self.source = OutputQueue(["1"])
        for i in range(1, stages + 1):
            is_last = i == stages
            machine: Sweeping | Unprotected = Sweeping(start=-1, every_s=every_s, last=is_last)
            if is_last and not last_protected:
                machine = Unprotected(start=-1)
            consumer = "sink" if is_last else str(i + 1)
            self.nodes.append(Node(machine, OutputQueue([consumer]), consumer))

    def upstream(self, i: int) -> OutputQueue:
        return self.nodes[i - 1].queue if i else self.source

    def tell(self, i: int, event: Event) -> None:
        node = self.nodes[i]
        for effect in node.machine.handle(event, self.now):
            self.log.append((i + 1, effect))
            if isinstance(effect, Capture):
                assert node.in_flight is None, "a second capture while one is under way"
                assert node.queue.trimmed >= effect.epoch, "the checkpoint would need the output queue too"
                assert node.state >= effect.epoch
                node.in_flight = effect.epoch
            else:
                assert effect.epoch > node.acked, "acks only rise"
                node.acked = effect.epoch
                self.ack(i, effect.epoch)

    def ack(self, i: int, epoch: int) -> None:
        """Stage index ``i`` acknowledges its input."""
        trimmed = self.upstream(i).ack(str(i + 1), epoch)
        if trimmed is not None and i:
            self.tell(i - 1, Trimmed(trimmed))

    def standby(self, i: int, present: bool = True) -> None:
        self.nodes[i].versions, self.nodes[i].in_flight = [], None
        self.tell(i, StandbyChanged(present))

    def produce(self) -> None:
        self.source.append(self.source.next)

    def process(self, i: int) -> bool:
        """Stage ``i`` takes its next epoch, if it is there."""
        node, upstream, epoch = self.nodes[i], self.upstream(i), self.nodes[i].state + 1
        if not upstream.request(str(i + 1), epoch):
            return False
        assert upstream.first <= epoch, f"stage {i + 1} needs epoch {epoch}, which was trimmed"
        self.tell(i, Received(epoch))
        node.state = epoch
        node.queue.append(epoch)
        self.tell(i, Committed(epoch))
        return True

    def sink(self) -> bool:
        queue, epoch = self.nodes[-1].queue, self.sunk + 1
        if not queue.request("sink", epoch):
            return False
        self.sunk = epoch
        trimmed = queue.ack("sink", epoch)
        if trimmed is not None:
            self.tell(len(self.nodes) - 1, Trimmed(trimmed))
        return True

    def paste(self, i: int) -> bool:
        node = self.nodes[i]
        if node.in_flight is None:
            return False
        epoch, node.in_flight = node.in_flight, None
        if epoch not in node.versions:
            node.versions = sorted([*node.versions, epoch])[-2:]
        self.tell(i, Pasted(epoch))
        return True

    def fail(self, i: int, *, lost: bool) -> None:
        node = self.nodes[i]
        if node.in_flight is not None:
            node.in_flight = None
            if lost:
                node.versions = []
            self.tell(i, CaptureFailed(lost))

    def crash(self, i: int, *, damaged: bool) -> None:
        """The stage's host dies and its standby takes over, from the older version if the newer one is damaged."""
        node = self.nodes[i]
        if not node.versions:
            return
        version = node.versions[0] if damaged else node.versions[-1]
        assert self.upstream(i).first <= version + 1, f"stage {i + 1} restarts after {version}: its input is gone"
        machine = Sweeping(start=version, every_s=self.every_s, last=i == len(self.nodes) - 1)
        fresh = Node(machine, OutputQueue([node.consumer], start=version + 1), node.consumer, version, version)
        self.nodes[i] = fresh
        # The consumer comes to the new producer and says where it is.
        if i + 1 < len(self.nodes):
            downstream = self.nodes[i + 1]
            acked, received = downstream.acked, downstream.state
        else:
            acked = received = self.sunk
        assert received >= version, f"stage {i + 1} restarts after {version}, its consumer wants {received + 1}"
        trimmed = fresh.queue.ack(fresh.consumer, acked) if acked > version else None
        fresh.queue.request(fresh.consumer, received + 1)
        if trimmed is not None:
            self.tell(i, Trimmed(trimmed))
        self.standby(i)

    def settle(self) -> None:
        """Let everything happen that can happen without the clock."""
        while True:
            moved = [self.process(i) for i in range(len(self.nodes))]
            if not any([*moved, self.sink(), *(self.paste(i) for i in range(len(self.nodes)))]):
                return

    def tick(self, now: float) -> None:
        self.now = now
        for i in range(len(self.nodes)):
            self.tell(i, Tick())

    def captures(self) -> list[tuple[int, int]]:
        return [(i, e.epoch) for i, e in self.log if isinstance(e, Capture)]

    def acks(self) -> list[tuple[int, int]]:
        return [(i, e.epoch) for i, e in self.log if isinstance(e, AckUpstream)]


def running(stages: int, *, last_protected: bool = True) -> Chain:
    """A chain whose standbys hold the empty state."""
    chain = Chain(stages, last_protected=last_protected)
    for i in range(stages):
        chain.standby(i)
    chain.settle()
    chain.log.clear()
    return chain


def test_checkpoints_sweep_from_the_last_stage_to_the_source() -> None:
    """Gu et al. 2009, Section 3.1: the events sweep in the reverse direction of the data flow. Deviation: since an
    ack covers the older of two versions, a sweep moves one stage up with every second timer instead of all stages
    with every one."""
    chain = running(3)
    for epoch in range(6):
        chain.produce()
        chain.settle()
        chain.tick(10.0 * (epoch + 1))
        chain.settle()
    assert chain.captures() == [
        (3, 0),
        (3, 1),
        (2, 0),
        (3, 2),
        (2, 1),
        (1, 0),
        (3, 3),
        (2, 2),
        (1, 1),
        (3, 4),
        (2, 3),
        (1, 2),
        (3, 5),
        (2, 4),
        (1, 3),
    ]
    assert chain.acks()[-3:] == [(3, 4), (2, 3), (1, 2)]
    assert chain.source.trimmed == 2


def test_a_stage_acks_after_receipt_processing_and_checkpointing() -> None:
    """Gu et al. 2009, Section 3.1 (when to trim): an ack follows receipt, processing and checkpointing. Deviation,
    on the safe side: one version later, so that a damaged newest version can be passed over."""
    chain = running(1)
    for _ in range(3):
        chain.produce()
    chain.process(0)
    assert chain.acks() == [], "received and processed"
    chain.sink()
    chain.tick(10)
    assert chain.captures() == [(1, 0)] and chain.acks() == [], "captured"
    chain.paste(0)
    assert chain.acks() == [], "pasted, but the only version"
    chain.process(0)
    chain.sink()
    chain.tick(20)
    chain.paste(0)
    assert chain.acks() == [(1, 0)]
    assert chain.source.trimmed == 0


def test_an_inner_stage_is_checkpointed_right_after_its_queue_was_trimmed() -> None:
    """Gu et al. 2009, Section 3.1 (when to checkpoint): driven by acknowledgment, immediately after trimming, with
    no timer."""
    machine = inner()
    play(machine, (0, PRESENT, [Capture(-1)]), (0, Pasted(-1), []))
    for epoch in range(5):
        play(machine, (epoch, Committed(epoch), []))
    for now in range(5, 1000, 100):
        play(machine, (now, Tick(), []))
    assert machine.next_deadline() is None
    play(machine, (1000, Trimmed(3), [Capture(3)]))


def test_the_last_stage_is_checkpointed_by_a_timer() -> None:
    """Gu et al. 2009, Section 3.1: the last PE has none further downstream and is driven by a timer."""
    chain = running(1)
    for _ in range(4):
        chain.produce()
        chain.settle()
        chain.tick(9)
    assert chain.captures() == []
    chain.tick(10)
    assert chain.captures() == [(1, 3)], "one checkpoint for all that happened between two ticks of its timer"


def test_a_checkpoint_needs_neither_input_nor_output_queue() -> None:
    """Gu et al. 2009, Section 3.1 (what to include): internal state and output queue but no input queue. Deviation:
    in lockstep the state is taken at the trim point itself, so that the output queue is not needed either."""
    chain = running(2)
    for epoch in range(8):
        chain.produce()
        chain.settle()  # Chain.tell checks for each Capture(e) that the output queue was trimmed up to e
        chain.tick(10.0 * (epoch + 1))
    assert len(chain.captures()) > 8


def test_an_unprotected_last_stage_acks_on_receipt_and_still_starts_the_sweep() -> None:
    """Gu et al. 2009, Section 3.1: a last PE without HA protection may acknowledge upon receipt of new data, and
    such acknowledgments can still trigger checkpointing upstream."""
    chain = running(2, last_protected=False)
    chain.produce()
    chain.process(0)
    assert chain.log == []
    chain.process(1)
    assert chain.log == [(2, AckUpstream(0)), (1, Capture(0))]
    chain.produce()
    chain.settle()
    assert chain.log[2:] == [(2, AckUpstream(1)), (1, Capture(1)), (1, AckUpstream(0))]


def test_neighbours_that_fail_together_recover_upstream_first() -> None:
    """Gu et al. 2009, Theorem 3.2: a downstream PE completes its recovery only when its upstream has regenerated
    what it needs; the order comes about by itself."""
    chain = running(3)
    for epoch in range(5):
        chain.produce()
        chain.settle()
        chain.tick(10.0 * (epoch + 1))
        chain.settle()
    before = [node.state for node in chain.nodes]
    chain.crash(0, damaged=True)
    chain.crash(1, damaged=False)
    assert not chain.process(1), "the middle stage waits for the first"
    chain.settle()
    assert [node.state for node in chain.nodes] == before
    assert chain.sunk == 4


INDEX = st.integers(0, 2)
STEPS = st.one_of(
    st.just(("produce",)),
    st.just(("sink",)),
    st.tuples(st.just("process"), INDEX),
    st.tuples(st.just("paste"), INDEX),
    st.tuples(st.just("tick"), st.floats(0.0, 12.0)),
    st.tuples(st.just("crash"), INDEX, st.booleans()),
    st.tuples(st.just("fail"), INDEX, st.booleans()),
    st.tuples(st.just("standby"), INDEX, st.booleans()),
    st.just(("settle",)),
)


@settings(PATIENT, max_examples=250)
@given(st.integers(1, 3), st.lists(STEPS, max_size=60))
def test_whatever_fails_in_whatever_order_every_input_is_still_there(stages: int, steps: list[tuple]) -> None:
    """Gu et al. 2009, Theorems 3.1 and 3.2: no checkpoint that a standby may restart from, damaged newest one or
    not, ever needs an epoch that was trimmed; and afterwards everything goes on to the end."""
    chain = running(stages)
    for kind, *about in steps:
        if about and kind != "tick":
            about[0] %= stages
        if kind == "tick":
            chain.tick(chain.now + about[0])
        elif kind == "crash":
            chain.crash(about[0], damaged=about[1])
        elif kind == "fail":
            chain.fail(about[0], lost=about[1])
        elif kind == "standby":
            chain.standby(about[0], about[1])
        else:
            getattr(chain, kind)(*about)
    chain.produce()
    chain.settle()
    assert [node.state for node in chain.nodes] == [chain.source.next - 1] * stages
    assert chain.sunk == chain.source.next - 1


# -- one machine, any order of events -----------------------------------------------------------------------------

FACTS = st.one_of(
    st.builds(Committed, st.integers(-1, 20)),
    st.builds(Trimmed, st.integers(-1, 20)),
    st.builds(Received, st.integers(-1, 20)),
    st.builds(StandbyChanged, st.booleans()),
    st.just(Tick()),
    st.sampled_from(["pasted", "failed", "lost"]),
    st.just(Drain()),
)


@dataclass
class Watcher:
    """Drives one machine as a careful driver would and checks its promises with a memory of its own."""

    machine: Sweeping
    start: int
    now: float = 0.0
    in_flight: int | None = None
    present: bool = False
    pasted: list[int] = field(default_factory=list)
    committed: int = -1
    trimmed: int = -1
    acked: int = -1

    def feed(self, event: Event) -> list[Effect]:
        machine = self.machine
        if isinstance(event, Committed):
            self.committed = max(self.committed, event.epoch)
        elif isinstance(event, Trimmed):
            self.trimmed = max(self.trimmed, event.epoch)
        elif isinstance(event, StandbyChanged):
            self.in_flight, self.present = None, event.present
        elif isinstance(event, Pasted):
            self.in_flight = None
            self.pasted.append(event.epoch)
        elif isinstance(event, CaptureFailed):
            self.in_flight = None
            self.present = self.present and not event.lost_standby
        effects = machine.handle(event, self.now)
        due = min(self.committed, self.trimmed)
        for effect in effects:
            if isinstance(effect, Capture):
                assert self.in_flight is None, "two captures in flight"
                assert self.present, "a capture for nobody"
                assert effect.epoch == due, "always the newest possible"
                self.in_flight = effect.epoch
            else:
                assert effect.epoch > self.acked
                self.acked = effect.epoch
                if self.present:
                    assert len(self.pasted) >= 2 and effect.epoch <= min(self.pasted[-2:])
                else:
                    assert effect.epoch == due
                    self.pasted = [due, due]  # unprotected: there is nothing left that could be asked for
        assert [type(e) for e in effects] in ([], [Capture], [AckUpstream], [AckUpstream, Capture])
        assert machine.acked <= machine.pasted <= machine.captured <= due
        assert machine.in_flight == (self.in_flight is not None)
        assert self.present or not machine.holding, "a standby that is gone holds nothing"
        if not self.present:
            assert self.acked == due, "without a standby nothing is held back"
        deadline = machine.next_deadline()
        assert deadline is None or deadline > self.now, "a deadline that has passed must have been acted on"
        return effects


@settings(PATIENT, max_examples=400)
@given(st.booleans(), st.integers(-1, 3), st.lists(st.tuples(st.floats(0, 3), FACTS), max_size=50), st.booleans())
def test_in_whatever_order_facts_arrive_the_promises_hold(
    is_last: bool, start: int, script: list[tuple[float, Event | str]], failures: bool
) -> None:
    machine = Sweeping(start=start, every_s=2.0, last=is_last)
    watcher = Watcher(machine, start, committed=start, trimmed=start, acked=start, pasted=[start])
    for pause, fact in script:
        watcher.now += pause
        if isinstance(fact, str):
            if watcher.in_flight is None or (fact != "pasted" and not failures):
                continue
            fact = {"pasted": Pasted(watcher.in_flight), "failed": FAILED, "lost": LOST}[fact]
        watcher.feed(fact)

    # Liveness: give it a standby, let everything be committed and trimmed, drain: the newest version gets there.
    watcher.feed(PRESENT)
    watcher.feed(Committed(30))
    watcher.feed(Trimmed(30))
    watcher.feed(Drain())
    for _ in range(3):
        if watcher.in_flight is not None:
            watcher.feed(Pasted(watcher.in_flight))
    assert watcher.pasted[-1] == machine.pasted == machine.captured == 30
    assert machine.next_deadline() is None


@settings(PATIENT, max_examples=200)
@given(st.booleans(), st.lists(st.tuples(st.floats(0, 3), FACTS), max_size=30))
def test_a_deadline_is_kept(is_last: bool, script: list[tuple[float, Event | str]]) -> None:
    """Whatever happened, a Tick at the deadline does what the deadline was for: no driver spins."""
    machine = Sweeping(start=-1, every_s=2.0, last=is_last)
    watcher = Watcher(machine, -1, pasted=[-1])
    for pause, fact in script:
        watcher.now += pause
        if isinstance(fact, str):
            if watcher.in_flight is None:
                continue
            fact = {"pasted": Pasted(watcher.in_flight), "failed": FAILED, "lost": LOST}[fact]
        watcher.feed(fact)
        deadline = machine.next_deadline()
        if deadline is not None and pause > 1.5:
            watcher.now = deadline
            assert watcher.feed(Tick()) == [Capture(machine.due)]


@settings(PATIENT)
@given(st.integers(-1, 5), st.lists(st.integers(-1, 20)))
def test_an_unprotected_stage_acks_each_new_high_once(start: int, received: list[int]) -> None:
    machine = Unprotected(start=start)
    high = start
    for epoch in received:
        expected = [AckUpstream(epoch)] if epoch > high else []
        assert machine.handle(Received(epoch), 0.0) == expected
        high = max(high, epoch)
