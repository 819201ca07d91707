"""Upstream backup by its results: a chain of windows whose hosts crash, up to K at once, and is rebuilt by replay.
Whether anything was trimmed too early shows in the values that reach the sink; too late, in what the source keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protections import PATIENT

from understudy.core.acks import FINAL
from understudy.core.policies import UpstreamBackup
from understudy.core.policies.base import Acked, AckUpstream, Committed, Event, Placed, StageRole
from understudy.core.policies.upstream import Replayable
from understudy.core.queue import OutputQueue
from understudy.core.topology import StageShape, Topology, UnitShape


def value(width: int, inputs: dict[int, int], epoch: int) -> int:
    """The output of a window over the last ``width`` input epochs."""
    return hash((width, *(inputs.get(e) for e in range(max(0, epoch - width + 1), epoch + 1))))


@dataclass
class Stage:
    name: str
    width: int
    queue: OutputQueue
    unit: int
    generation: int
    next: int = 0
    """The epoch that it takes next."""
    seen: dict[int, int] = field(default_factory=dict)
    """Its input, of which it may use the window only; empty in a copy that begins anew."""
    output: dict[int, int] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    """Level -> what its protection knows its consumers to have."""
    said: dict[int, int] = field(default_factory=dict)
    """Level -> what it has acknowledged upstream."""


class Chain:
    """source -> stages, one window each, grouped into units, which are placed on hosts -> sink."""

    def __init__(self, k: int, units: list[list[int]], hosts: list[str] | None = None) -> None:
        self.k, self.units = k, units
        self.hosts = hosts or [f"h{number}" for number in range(len(units))]
        """Where each unit is. Source and sink are elsewhere."""
        self.widths = [width for unit in units for width in unit]
        self.unit_of = [number for number, unit in enumerate(units) for _ in unit]
        self.topology = Topology.build(
            [StageShape(str(i), (str(i - 1),) if i else ()) for i in range(len(self.widths))],
            [
                UnitShape(str(number), tuple(str(i) for i, u in enumerate(self.unit_of) if u == number), policy)
                for number, policy in enumerate([UpstreamBackup(k=k)] * len(units))
            ],
        )
        self.generation = 0
        self.source = OutputQueue(["0"])
        self.sunk: list[int] = []
        self.stages: list[Stage] = []
        self.machines: dict[int, Replayable] = {}
        for number in range(len(units)):
            self.place(number)
        self.meet()

    # -- building ---------------------------------------------------------------------------------------------------

    def place(self, number: int) -> None:
        """A unit begins with empty state at the oldest epoch that its producer has kept."""
        mine = [i for i, unit in enumerate(self.unit_of) if unit == number]
        begin = self.upstream(mine[0]).first
        self.generation += 1
        for i in mine:
            last = i + 1 == len(self.widths)
            queue = OutputQueue(["sink" if last else str(i + 1)], start=begin)
            self.stages[i : i + 1] = [Stage(str(i), self.widths[i], queue, number, self.generation, next=begin)]
        roles = [StageRole(str(i), begin - 1, (self.input(i),), i + 1 == len(self.widths)) for i in mine]
        self.machines[number] = UpstreamBackup(k=self.k).protect(roles)

    def meet(self) -> None:
        """Everybody learns who shares whose fate."""
        hosts = {str(number): host for number, host in enumerate(self.hosts)}
        for i, stage in enumerate(self.stages):
            near = i > 0 and self.topology.shares_fate(str(i), str(i - 1), hosts)
            assert self.upstream(i).hears(stage.name, stage.generation, near=near)
            self.tell(stage.unit, Placed(stage.name, (self.input(i),) if near else ()))

    def input(self, i: int) -> str:
        return "source" if i == 0 else str(i - 1)

    def upstream(self, i: int) -> OutputQueue:
        return self.stages[i - 1].queue if i else self.source

    def crash(self, hosts: set[str], *, to: dict[str, str] | None = None) -> None:
        """These hosts are gone at once; what ran there is placed anew, upstream first, on new ones (or on those that
        ``to`` names). Then consumers say where they are."""
        gone = {number for number, host in enumerate(self.hosts) if host in hosts}
        self.hosts = [(to or {}).get(h, h + "'") if h in hosts else h for h in self.hosts]
        for number in sorted(gone):
            self.place(number)
        self.meet()
        for i, stage in enumerate(self.stages):
            if stage.unit not in gone:
                continue
            if i + 1 == len(self.stages):
                stage.queue.request("sink", len(self.sunk))
                stage.queue.ack("sink", len(self.sunk) - 1)
            elif (consumer := self.stages[i + 1]).unit not in gone:
                stage.queue.request(consumer.name, consumer.next)
                for level, epoch in consumer.said.items():
                    stage.queue.ack(consumer.name, epoch, level)
            self.told(i)

    # -- running ----------------------------------------------------------------------------------------------------

    def tell(self, unit: int, event: Event) -> None:
        for effect in self.machines[unit].handle(event, 0.0):
            assert isinstance(effect, AckUpstream)
            i = int(effect.stage)
            stage = self.stages[i]
            assert effect.input == self.input(i)
            assert effect.epoch > stage.said.get(effect.level, -1), "acks only rise"
            stage.said[effect.level] = effect.epoch
            self.upstream(i).ack(stage.name, effect.epoch, effect.level)
            if i:
                self.told(i - 1)

    def told(self, i: int) -> None:
        """Tell the protection what all consumers of a stage have, where that has risen."""
        stage = self.stages[i]
        for level in (*range(self.k), FINAL):
            bound = stage.queue.bound(level)
            if bound > stage.told.get(level, -1):
                stage.told[level] = bound
                self.tell(stage.unit, Acked(stage.name, level, bound))

    def produce(self) -> None:
        self.source.append(self.source.next)

    def process(self, i: int) -> bool:
        stage, upstream, epoch = self.stages[i], self.upstream(i), self.stages[i].next
        ready = upstream.request(stage.name, epoch)
        if i:
            self.told(i - 1)
        if not ready:
            return False
        assert upstream.first <= epoch, f"stage {i} wants {epoch}, which was trimmed"
        stage.seen[epoch] = epoch if i == 0 else self.stages[i - 1].output[epoch]
        stage.output[epoch] = value(stage.width, stage.seen, epoch)
        stage.next = epoch + 1
        stage.queue.append(epoch)
        self.tell(stage.unit, Committed(stage.name, epoch, {self.input(i): max(0, epoch + 2 - stage.width)}))
        return True

    def sink(self) -> bool:
        stage, epoch = self.stages[-1], len(self.sunk)
        if not stage.queue.request("sink", epoch):
            return False
        assert stage.queue.first <= epoch
        self.sunk.append(stage.output[epoch])
        stage.queue.ack("sink", epoch)
        self.told(len(self.stages) - 1)
        return True

    def settle(self) -> None:
        while any([self.process(i) for i in range(len(self.stages))]) or self.sink():
            pass

    # -- judging ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The sink has what it would have without any crash, and the source keeps what K hosts in a row need."""
        row = {epoch: epoch for epoch in range(self.source.next)}
        for width in self.widths:
            row = {epoch: value(width, row, epoch) for epoch in row}
        assert self.sunk == [row[epoch] for epoch in range(self.source.next)]
        lost = takewhile(lambda n: len(set(self.hosts[: n + 1])) <= self.k, range(len(self.units)))
        reach = sum(width - 1 for number in lost for width in self.units[number])
        assert self.source.trimmed == max(-1, self.source.next - 1 - reach)


def run(chain: Chain, epochs: int) -> None:
    for _ in range(epochs):
        chain.produce()
        chain.settle()


# -- Hwang et al. 2003 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["h0", "h1", "h2"])
def test_any_single_failure_is_recovered_by_replay(lost: str) -> None:
    """Hwang et al. 2003, Section 4.2: if a downstream node fails, any other node can restore the lost state by
    replaying the tuples logged by the upstream neighbours."""
    chain = Chain(1, [[3], [2], [4]])
    run(chain, 10)
    chain.crash({lost})
    run(chain, 10)
    chain.check()


@pytest.mark.parametrize(("k", "first"), [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0)])
def test_k_neighbours_in_a_row_are_recovered(k: int, first: int) -> None:
    """Hwang et al. 2003, Section 4.4: tuples are preserved until they have been processed by K consecutive nodes, so
    that K concurrent failures are survived."""
    chain = Chain(k, [[3], [2], [4]])
    run(chain, 12)
    chain.crash({f"h{number}" for number in range(first, first + k)})
    run(chain, 8)
    chain.check()


@pytest.mark.parametrize("k", [1, 2])
def test_more_than_k_in_a_row_are_not(k: int) -> None:
    """Hwang et al. 2003, Section 4.4, the other way round: K + 1 neighbours need what was trimmed. This also shows
    that the chain of this file would notice."""
    chain = Chain(k, [[3], [2], [4]])
    run(chain, 12)
    chain.crash({f"h{number}" for number in range(k + 1)})
    run(chain, 8)
    with pytest.raises(AssertionError):
        chain.check()


def test_the_price_of_k_is_what_the_source_keeps() -> None:
    """Hwang et al. 2003, Section 4.4: overhead grows with K; each level adds the reach of one more node's state."""
    kept = []
    for k in (1, 2, 3):
        chain = Chain(k, [[3], [2], [4]])
        run(chain, 30)
        kept.append(chain.source.next - chain.source.first)
    assert kept == list(accumulate([2, 1, 3]))


@pytest.mark.parametrize(
    ("units", "hosts"), [([[3, 2, 4], [2]], ["A", "B"]), ([[3], [2, 4], [2]], ["A", "A", "B"])], ids=["unit", "host"]
)
def test_what_is_on_one_host_is_rebuilt_together(units: list[list[int]], hosts: list[str]) -> None:
    """Hwang et al. 2003, Section 4.2.2: for a query network, cause yields the oldest input that contributes to the
    state of any operator in it. A node is a host, whatever units it has."""
    chain = Chain(1, units, hosts)
    run(chain, 20)
    assert chain.source.next - chain.source.first == 2 + 1 + 3
    chain.crash({"A"})
    run(chain, 5)
    chain.check()


def test_a_host_with_units_apart_in_the_chain_is_rebuilt() -> None:
    chain = Chain(1, [[3], [2], [4], [2]], ["A", "B", "A", "B"])
    run(chain, 20)
    chain.crash({"A"})
    run(chain, 5)
    chain.crash({"B"})
    run(chain, 5)
    chain.check()


def test_two_hosts_that_have_three_neighbours_in_a_row_are_rebuilt() -> None:
    """Two hosts are two failures, however often each comes in the chain."""
    chain = Chain(2, [[1], [1], [2]], ["A", "B", "A"])
    run(chain, 5)
    chain.crash({"A", "B"})
    run(chain, 5)
    chain.check()


def test_a_unit_rebuilt_on_its_producers_host_is_safe_there_once_its_window_has_passed() -> None:
    """What the two need together was trimmed while they were apart; epochs that came since are all there. Placement
    avoids it where another host is free (``failover.placement``)."""
    chain = Chain(1, [[3], [4]], ["A", "B"])
    run(chain, 20)
    chain.crash({"B"}, to={"B": "A"})
    run(chain, 8)
    chain.crash({"A"})
    run(chain, 10)
    chain.check()


# -- crashes at any time ----------------------------------------------------------------------------------------------

UNITS = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4)
STEPS = st.one_of(
    st.just(("produce",)),
    st.just(("produce",)),
    st.just(("sink",)),
    st.tuples(st.just("process"), st.integers(0, 11)),
    st.tuples(st.just("process"), st.integers(0, 11)),
    st.just(("settle",)),
    st.tuples(st.just("crash"), st.sets(st.integers(0, 3), min_size=1, max_size=3)),
)


@settings(PATIENT, max_examples=300)
@given(
    st.integers(1, 3), UNITS, st.lists(st.sampled_from("ABCD"), min_size=4, max_size=4), st.lists(STEPS, max_size=60)
)
def test_whichever_k_hosts_crash_at_once_the_sink_gets_the_same_rows(
    k: int, units: list[list[int]], hosts: list[str], steps: list[tuple]
) -> None:
    """Hwang et al. 2003, Sections 4.2 and 4.4. At most K hosts are lost until all has caught up and every window has
    passed: a rebuilt queue begins with what its consumers lack, and what they would need to be rebuilt themselves comes
    with new epochs. What was on one host is placed on one host again."""
    chain = Chain(k, units, hosts[: len(units)])
    for kind, *about in steps:
        if kind == "crash":
            known = sorted(set(chain.hosts))
            chain.crash({known[n % len(known)] for n in sorted(about[0])[:k]})
            run(chain, 1 + sum(chain.widths))
        elif kind == "process":
            chain.process(about[0] % len(chain.stages))
        else:
            getattr(chain, kind)()
    run(chain, 1)
    chain.check()
