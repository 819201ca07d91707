"""A chain of protected stages made of nothing but core objects: the paper's claims, and crashes in any order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protections import PATIENT, play, standbys, trimmed

from understudy.core.acks import FINAL
from understudy.core.policies import NoProtection, PassiveStandby
from understudy.core.policies.base import (
    Acked,
    AckUpstream,
    Capture,
    CaptureFailed,
    Committed,
    Effect,
    Event,
    Pasted,
    Pause,
    Paused,
    Policy,
    Protection,
    StageRole,
    StandbysChanged,
    Tick,
)
from understudy.core.queue import OutputQueue


@dataclass
class Checkpoint:
    """A stage's state after ``epoch`` with its output queue from ``first`` on; none when ``first`` is past it."""

    epoch: int
    first: int


@dataclass
class Node:
    """One stage of the chain: its machine, its output queue, and what its standbys hold."""

    machine: Protection
    queue: OutputQueue
    consumer: str
    """Who reads the queue: the next stage, or the sink."""
    state: int = -1
    acked: int = -1
    """What it has acknowledged since it began; its predecessor's word is not repeated."""
    held: dict[str, Checkpoint] = field(default_factory=dict)
    """By standby, the newest; none while it holds nothing."""
    under_way: dict[str, Checkpoint] = field(default_factory=dict)
    pausing: bool = False


class Chain:
    """source -> stage 1 -> ... -> stage n -> sink. The source is only a queue; it can always be read again."""

    def __init__(self, policies: list[Policy]) -> None:
        self.now = 0.0
        self.policies = policies
        self.sunk = -1
        self.log: list[tuple[int, Effect]] = []
        self.source = OutputQueue(["1"])
        self.nodes: list[Node] = []
        for i in range(len(policies)):
            consumer = "sink" if i == len(policies) - 1 else str(i + 2)
            self.nodes.append(Node(self.protection(i, -1), OutputQueue([consumer]), consumer))

    def protection(self, i: int, start: int) -> Protection:
        return self.policies[i].protect([StageRole(str(i + 1), start, last=i == len(self.policies) - 1)])

    def upstream(self, i: int) -> OutputQueue:
        return self.nodes[i - 1].queue if i else self.source

    def tell(self, i: int, event: Event) -> None:
        node = self.nodes[i]
        for effect in node.machine.handle(event, self.now):
            self.log.append((i + 1, effect))
            if isinstance(effect, Capture):
                assert effect.standby not in node.under_way, "a second capture while one is under way"
                assert node.state >= effect.epoch
                first = node.queue.first if effect.queue else effect.epoch + 1
                assert effect.queue or node.queue.trimmed >= effect.epoch, "it would need the output queue too"
                node.under_way[effect.standby] = Checkpoint(effect.epoch, first)
            elif isinstance(effect, AckUpstream):
                assert effect.epoch > node.acked, "acks only rise"
                node.acked = effect.epoch
                self.heard(i - 1, self.upstream(i).ack(str(i + 1), effect.epoch))
            else:
                node.pausing = isinstance(effect, Pause)

    def heard(self, i: int, trim: int | None) -> None:
        """The queue of stage index ``i`` (the source's is -1) was trimmed, perhaps."""
        if trim is not None and i >= 0:
            self.tell(i, Acked(str(i + 1), FINAL, trim))

    def standbys(self, i: int, *names: str) -> None:
        node = self.nodes[i]
        node.held = {n: c for n, c in node.held.items() if n in names}
        node.under_way = {n: c for n, c in node.under_way.items() if n in names}
        self.tell(i, StandbysChanged(names))

    def produce(self) -> None:
        self.source.append(self.source.next)

    def process(self, i: int) -> bool:
        """Stage ``i`` takes its next epoch, if it is there and the stage is not held."""
        node, upstream, epoch = self.nodes[i], self.upstream(i), self.nodes[i].state + 1
        if node.pausing or not upstream.request(str(i + 1), epoch):
            return False
        assert upstream.first <= epoch, f"stage {i + 1} needs epoch {epoch}, which was trimmed"
        node.state = epoch
        node.queue.append(epoch)
        self.tell(i, Committed(str(i + 1), epoch))
        return True

    def sink(self) -> bool:
        queue, epoch = self.nodes[-1].queue, self.sunk + 1
        if not queue.request("sink", epoch):
            return False
        assert queue.first <= epoch
        self.sunk = epoch
        self.heard(len(self.nodes) - 1, queue.ack("sink", epoch))
        return True

    def pause(self, i: int) -> bool:
        """A stage that was asked to has finished what it was at. Telling it twice does no harm."""
        if self.nodes[i].pausing and not self.nodes[i].under_way:
            self.tell(i, Paused(str(i + 1)))
            return True
        return False

    def paste(self, i: int, which: int = 0) -> bool:
        node = self.nodes[i]
        if not node.under_way:
            return False
        standby = sorted(node.under_way)[which % len(node.under_way)]
        checkpoint = node.under_way.pop(standby)
        node.held[standby] = checkpoint
        self.tell(i, Pasted(str(i + 1), standby, checkpoint.epoch))
        return True

    def fail(self, i: int, *, lost: bool) -> None:
        node = self.nodes[i]
        if node.under_way:
            standby = min(node.under_way)
            del node.under_way[standby]  # what it holds already is still good, and somebody may go back to it
            self.tell(i, CaptureFailed(str(i + 1), standby, lost))

    def crash(self, i: int, which: int) -> None:
        """The stage's host dies and one of its standbys takes over. The other standbys stay, and are sent everything
        anew."""
        node = self.nodes[i]
        heirs = sorted(node.held)
        if not heirs:
            return
        heir = heirs[which % len(heirs)]
        checkpoint = node.held[heir]
        start = checkpoint.epoch
        assert self.upstream(i).first <= start + 1, f"stage {i + 1} restarts after {start}: its input is gone"
        queue = OutputQueue([node.consumer], start=min(checkpoint.first, start + 1))
        for epoch in range(queue.next, start + 1):
            queue.append(epoch)
        rest = {name: held for name, held in node.held.items() if name != heir}
        fresh = self.nodes[i] = Node(self.protection(i, start), queue, node.consumer, start, held=rest)
        # The consumer comes to the new producer and says where it is.
        last = i + 1 == len(self.nodes)
        acked, received = (self.sunk,) * 2 if last else (self.nodes[i + 1].acked, self.nodes[i + 1].state)
        assert received + 1 >= queue.first, f"stage {i + 1} restarts with {queue.first}; {received + 1} is wanted"
        fresh.queue.request(fresh.consumer, received + 1)
        self.heard(i, fresh.queue.ack(fresh.consumer, acked))
        self.standbys(i, *rest, f"new after {heir}")

    def work(self) -> None:
        """One more epoch comes, and everybody is done with all there is to do; nothing arrives at a standby."""
        self.produce()
        while any([*(self.process(i) for i in range(len(self.nodes))), self.sink()]):
            pass

    def settle(self) -> None:
        """Let everything happen that can happen without the clock."""
        while True:
            moved = [self.process(i) or self.paste(i) or self.pause(i) for i in range(len(self.nodes))]
            if not any([*moved, self.sink()]):
                return

    def tick(self, now: float) -> None:
        self.now = now
        for i in range(len(self.nodes)):
            self.tell(i, Tick())

    def captures(self) -> list[tuple[int, int]]:
        return [(i, e.epoch) for i, e in self.log if isinstance(e, Capture)]

    def acks(self) -> list[tuple[int, int]]:
        return [(i, e.epoch) for i, e in self.log if isinstance(e, AckUpstream)]


SWEEPING = PassiveStandby(every="10s")


def running(*policies: Policy) -> Chain:
    """A chain whose standbys hold the empty state."""
    chain = Chain(list(policies))
    for i, policy in enumerate(policies):
        chain.standbys(i, *"bcd"[: policy.backups])
    chain.settle()
    chain.log.clear()
    return chain


# -- Gu et al. 2009 -------------------------------------------------------------------------------------------------


def test_checkpoints_sweep_from_the_last_stage_to_the_source() -> None:
    """Gu et al. 2009, Section 3.1: the events sweep in the reverse direction of the data flow. One tick of the last
    stage's timer carries one epoch number from the sink all the way to the source."""
    chain = running(SWEEPING, SWEEPING, SWEEPING)
    for epoch in range(6):
        chain.produce()
        chain.settle()
        assert chain.log == [], "nothing before the timer"
        chain.tick(10.0 * (epoch + 1))
        chain.settle()
        sweep = [(Capture(s, "b", epoch, False), AckUpstream(s, epoch)) for s in "321"]
        assert [effect for _, effect in chain.log] == [effect for pair in sweep for effect in pair]
        assert chain.source.trimmed == epoch
        chain.log.clear()


def test_a_stage_acks_after_receipt_processing_and_checkpointing() -> None:
    """Gu et al. 2009, Section 3.1 (when to trim): an ack follows receipt, processing and checkpointing."""
    chain = running(SWEEPING)
    chain.produce()
    chain.produce()
    chain.process(0)
    assert chain.acks() == [], "received and processed"
    chain.sink()
    chain.tick(10)
    assert chain.captures() == [(1, 0)] and chain.acks() == [], "captured"
    chain.paste(0)
    assert chain.acks() == [(1, 0)], "pasted"
    assert chain.source.trimmed == 0


def test_an_inner_stage_is_checkpointed_right_after_its_queue_was_trimmed() -> None:
    """Gu et al. 2009, Section 3.1 (when to checkpoint): driven by acknowledgment, immediately after trimming, with
    no timer."""
    machine = SWEEPING.protect([StageRole("s", -1, ("in",), last=False)])
    play(machine, (0, standbys("b"), [Capture("s", "b", -1, False)]), (0, Pasted("s", "b", -1), []))
    for epoch in range(5):
        play(machine, (epoch, Committed("s", epoch), []))
    for now in range(5, 1000, 100):
        play(machine, (now, Tick(), []))
    assert machine.next_deadline() is None
    play(machine, (1000, trimmed(3), [Capture("s", "b", 3, False)]))


def test_the_last_stage_is_checkpointed_by_a_timer() -> None:
    """Gu et al. 2009, Section 3.1: the last PE has none further downstream and is driven by a timer."""
    chain = running(SWEEPING)
    for _ in range(4):
        chain.produce()
        chain.settle()
        chain.tick(7)
    assert chain.captures() == []
    chain.tick(10)
    assert chain.captures() == [(1, 3)], "one checkpoint for all that happened between two ticks of its timer"


def test_a_sweeping_checkpoint_needs_neither_input_nor_output_queue() -> None:
    """Gu et al. 2009, Section 3.1 (what to include): internal state and output queue but no input queue. Deviation:
    in lockstep the state is taken at the trim point itself, so that the output queue is not needed either."""
    chain = running(SWEEPING, SWEEPING)
    for epoch in range(8):
        chain.produce()
        chain.settle()  # Chain.tell checks for each capture that the output queue was trimmed up to it
        chain.tick(10.0 * (epoch + 1))
    assert len(chain.captures()) > 8
    assert not any(effect.queue for _, effect in chain.log if isinstance(effect, Capture))


def test_an_unprotected_last_stage_acks_on_receipt_and_still_starts_the_sweep() -> None:
    """Gu et al. 2009, Section 3.1: a last PE without HA protection may acknowledge upon receipt of new data, and
    such acknowledgments can still trigger checkpointing upstream."""
    chain = running(SWEEPING, NoProtection())
    chain.produce()
    chain.process(0)
    assert chain.log == []
    chain.process(1)
    assert chain.log == [(2, AckUpstream("2", 0)), (1, Capture("1", "b", 0, False))]
    chain.paste(0)
    assert chain.log[2:] == [(1, AckUpstream("1", 0))]


def test_neighbours_that_fail_together_recover_upstream_first() -> None:
    """Gu et al. 2009, Theorem 3.2: a downstream PE completes its recovery only when its upstream has regenerated
    what it needs; the order comes about by itself."""
    chain = running(SWEEPING, SWEEPING, SWEEPING)
    for epoch in range(5):
        chain.produce()
        chain.settle()
        if epoch < 3:
            chain.tick(10.0 * (epoch + 1))
            chain.settle()
    chain.crash(0, 0)
    chain.crash(1, 0)
    assert [node.state for node in chain.nodes] == [2, 2, 4]
    assert not chain.process(1), "the middle stage waits for the first"
    chain.settle()
    assert [node.state for node in chain.nodes] == [4, 4, 4]
    assert chain.sunk == 4


@pytest.mark.parametrize("timing", ["individual", "synchronous"])
def test_a_restored_stage_brings_its_output_queue_along(timing: str) -> None:
    """Gu et al. 2009, Section 3.1: the output queue is part of a checkpoint that was not taken right after a trim.
    A consumer that restarts from an older state finds there what it needs."""
    chain = running(PassiveStandby(timing, every="1s"), SWEEPING)  # type: ignore[arg-type]
    for epoch in range(4):
        chain.produce()
        chain.settle()
        chain.tick(1.0 * (epoch + 1))
        chain.settle()
    assert [e.queue for i, e in chain.log if i == 1 and isinstance(e, Capture)] == [True] * 4
    chain.crash(0, 0)
    assert (chain.nodes[0].state, chain.nodes[0].queue.first) == (3, 0)
    chain.crash(1, 0)
    assert chain.nodes[1].state < 3 and chain.process(1), "it finds the next epoch without waiting"


def test_the_slower_of_two_standbys_can_take_over() -> None:
    """Hwang et al. 2003, Section 4.4: any of K backups may be the one that is left. When the faster one is gone too,
    and the producer has been replaced, the input of the slower one is still there."""
    chain = running(SWEEPING, PassiveStandby(every="10s", standbys=2))
    chain.work()
    chain.tick(10)
    chain.paste(1)
    assert {name: held.epoch for name, held in chain.nodes[1].held.items()} == {"b": 0, "c": -1}
    chain.crash(1, 0)
    chain.crash(0, 0)
    chain.crash(1, 0)
    assert chain.nodes[1].state == -1
    chain.settle()
    assert [node.state for node in chain.nodes] == [0, 0]


# -- crashes in any order -------------------------------------------------------------------------------------------

INDEX = st.integers(0, 2)
STEPS = st.one_of(
    st.just(("produce",)),
    st.just(("sink",)),
    st.tuples(st.just("process"), INDEX),
    st.tuples(st.just("pause"), INDEX),
    st.tuples(st.just("paste"), INDEX, INDEX),
    st.tuples(st.just("tick"), st.one_of(st.just(10.0), st.floats(0.0, 12.0))),
    st.tuples(st.just("crash"), INDEX, INDEX),
    st.tuples(st.just("fail"), INDEX, st.booleans()),
    st.tuples(st.just("standbys"), INDEX, st.lists(st.sampled_from("bcde"), unique=True, max_size=3)),
    st.just(("work",)),
    st.just(("settle",)),
)
POLICIES = st.builds(
    PassiveStandby,
    checkpoint=st.sampled_from(["sweeping", "individual", "synchronous"]),
    every=st.just(10.0),
    standbys=st.integers(1, 2),
)


@settings(PATIENT, max_examples=300)
@given(st.lists(POLICIES, min_size=1, max_size=3), st.lists(STEPS, max_size=60))
def test_whatever_fails_in_whatever_order_every_input_is_still_there(
    policies: list[PassiveStandby], steps: list[tuple]
) -> None:
    """Gu et al. 2009, Theorems 3.1 and 3.2: no checkpoint that a standby may restart from ever needs an epoch that
    was trimmed; and afterwards everything goes on to the end."""
    chain = running(*policies)
    for kind, *about in steps:
        if about and kind != "tick":
            about[0] %= len(policies)
        if kind == "tick":
            chain.tick(chain.now + about[0])
        elif kind == "fail":
            chain.fail(about[0], lost=about[1])
        elif kind == "standbys":
            chain.standbys(about[0], *about[1])
        else:
            getattr(chain, kind)(*about)
    chain.produce()
    chain.settle()
    for _ in range(3):  # a round that failed goes on after its pause
        chain.tick(chain.now + 20)
        chain.settle()
    assert [node.state for node in chain.nodes] == [chain.source.next - 1] * len(policies)
    assert chain.sunk == chain.source.next - 1
