"""The simulated system of Hwang et al. 2003, Section 5: chains of boxes over nodes, tuple by tuple, in virtual time.

Sources push numbered tuples through *segments* (the boxes of one chain that share a node) to applications. What is
protected, and how, is ``Params.policy``; acknowledgements, indicators and trimming are ``core.acks``, the code that
jobs run with. A run is a pure function of its parameters, of which the seed is one: it picks the phases of sources and
timers, the instant of the failure, what a filter keeps and, where asked to, the node that fails.

What the paper leaves open was found by working backwards from its numbers; ``hwang.CHOICES`` lists those decisions.
The ones that shape the code:

- A tuple has the same number on every stream of its chain. A filter turns what it drops into a flow tuple (Section
  4.2.2), which keeps its number in the output stream but is never sent; an acknowledgement of v is therefore good up to
  the next number that *was* sent. Otherwise trimming, and with it the overhead of upstream backup, would depend on
  selectivity, and Table 4 says that it does not.
- What was sent arrives, even when its sender dies: links lose nothing. In particular the acknowledgements under way at
  a failure arrive long before it is detected, which is why formula (4) has 2d and not 3d.
- Passive standby acknowledges its input together with the checkpoint. Waiting for the standby's confirmation would cost
  a round trip, 5 tuples, that neither formula (1) nor Q = M·λ/2 has. Nor does (1) have bytes for the input's position
  in the checkpoint: the number of the newest output implies it.
- A node's recovery is seen by its direct downstream neighbours. Seen from the application, a failure nine nodes away
  would take 45 ms of links alone, and Figure 12 reports 7 ms for it.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from understudy.core.acks import LevelAcks
from understudy.sim.engine import Engine, Link

Policy = Literal["passive", "active", "upstream"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

DELAY_TOLERANCE_S = 0.0005
"""A tuple is on time again when its delay is this close to what it was before the failure. While a queue drains, the
delay falls by about 2 ms from one tuple to the next, so the exact value hardly matters; it must be longer than what
tuples of different chains wait for each other on a CPU (a few times 50 µs)."""

HORIZON_S = 0.2
"""How long a run goes on after detection. The slowest recovery of the paper takes 36 ms."""

WATCHED_S = 0.1
"""How long before the failure delays are recorded, to know what is normal."""

_IN, _OUT = "in", "out"


@dataclass(frozen=True)
class Params:
    """One run. Defaults are Table 1 and the two-node network of Sections 5.2 and 5.3."""

    policy: Policy
    interval_s: float = 0.010
    """Between acknowledgements, trim messages or checkpoints: M_s."""
    rows: int = 1
    columns: int = 2
    """Nodes: a chain runs through all columns of its row."""
    chains: int = 1
    depth: int = 2
    """Boxes of each chain, over all columns."""
    selectivity: float = 1.0
    """Share of tuples that the first box of the last column keeps, by chance; all other boxes pass everything."""
    fail: Literal["none", "last", "random"] = "none"
    """Which node dies: the one in the last column of the first row, or any."""
    failure_phase: float | None = None
    """When it dies, as a share of the interval that has passed since what bounds its duplicates last happened (its
    consumer's acknowledgement arrived; under passive standby, its own checkpoint). None: at random. A sweep spreads its
    runs evenly over [0, 1), so that 25 of them give the mean that 25 random ones only scatter around."""
    failover: Literal["spare", "live"] = "spare"
    """Upstream backup only: where the dead node's boxes go on."""
    shared_links: bool = False
    """Whether the streams between two nodes share one link's bandwidth, or have it each."""
    warmup_s: float = 1.0
    measure_s: float = 6.0
    seed: int = 1

    rate_per_s: float = 500.0
    tuple_bytes: int = 50
    id_bytes: int = 8
    box_s: float = 10e-6
    link_delay_s: float = 0.005
    link_bytes_per_s: float = 1e6
    detection_s: float = 0.1

    def __post_init__(self) -> None:
        for name, allowed in (
            ("policy", POLICIES),
            ("fail", ("none", "last", "random")),
            ("failover", ("spare", "live")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is none of {', '.join(allowed)}")
        for name in ("interval_s", "measure_s", "rate_per_s", "tuple_bytes", "link_bytes_per_s", "rows", "columns"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be more than 0")
        for name in ("warmup_s", "id_bytes", "box_s", "link_delay_s", "detection_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must not be negative")
        if not 0 < self.selectivity <= 1:
            raise ValueError(f"selectivity={self.selectivity!r} must be more than 0 and at most 1")
        if self.failure_phase is not None and not 0 <= self.failure_phase < 1:
            raise ValueError(f"failure_phase={self.failure_phase!r} must be at least 0 and less than 1")
        if self.chains < self.rows:
            raise ValueError(f"chains={self.chains} must be at least rows={self.rows}: every node needs a chain")
        if self.depth < self.columns:
            raise ValueError(f"depth={self.depth} must be at least columns={self.columns}: every node needs a box")
        if self.fail != "none" and self.measure_s < WATCHED_S:
            raise ValueError(f"measure_s={self.measure_s!r} is too short: delays are watched for {WATCHED_S} s")


class Host:
    """A CPU that serves one tuple after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.free_at = 0.0
        self.failed = False


class Sink:
    """What receives a chain's tuples and acknowledges them: an application, or the input side of a segment."""

    def __init__(self, world: World, host: Host, chain: int, name: str) -> None:
        self.world, self.host, self.chain, self.name = world, host, chain, name
        self.producer: Segment | None = None
        self.received = -1
        self.phase_s = 0.0
        """When its timer ticked first."""
        self.seen: list[tuple[float, int, bool]] | None = None
        """Time, number and whether it is new, of everything that arrives, while somebody watches."""
        self.data_bytes = self.ack_bytes = 0

    def arrive(self, number: int) -> None:
        new = number > self.received
        if self.seen is not None:
            self.seen.append((self.world.engine.now, number, new))
        if new:
            self.received = number

    def acknowledge(self, level: int, number: int) -> None:
        producer, world = self.producer, self.world
        if producer is not None and number >= 0:
            size = world.params.id_bytes
            self.ack_bytes += size
            world.send(self, producer, size, producer.acked, level, self.name, number)

    def tick(self) -> None:
        """Every interval, even when nothing came: what was dropped upstream of here may be trimmed all the same."""
        self.acknowledge(0, self.received)


class Segment(Sink):
    """The boxes of one chain on one node, with the output queue behind them. A source is a segment without boxes."""

    def __init__(
        self,
        world: World,
        host: Host,
        chain: int,
        name: str,
        *,
        boxes: int,
        consumers: Sequence[Sink],
        keep: bytearray | None = None,
    ) -> None:
        super().__init__(world, host, chain, name)
        self.boxes, self.keep = boxes, keep
        self.cost_s = boxes * world.params.box_s
        self.acks = LevelAcks({_OUT: [c.name for c in consumers]}, (_IN,) if boxes else ())
        # Standbys need level 0 only, and so does, under upstream backup, what only applications read.
        self.leaf = world.params.policy != "upstream" or consumers[0].name == "app"
        self.queue: list[int] = []
        self.processed = -1
        self.sending = True
        self.twin: Segment | None = None
        """Active: the secondary. Passive: what the standby has. Neither sends anything before its turn."""
        self.state_bytes = 0
        """Sent to the twin."""
        self.trimmed_at = float("-inf")
        """Active: when the last trim message was sent."""
        self.fresh = 0
        """Passive: how many tuples at the queue's end the standby has not been sent yet."""
        self.covered = self.head = -1
        """Passive: the input and the head position that the last checkpoint spoke of."""
        self.connect(consumers)

    def connect(self, consumers: Sequence[Sink]) -> None:
        """From now on tuples go to ``consumers``, and theirs are the acknowledgements."""
        self.consumers = list(consumers)
        self.wires = [(self.world.link(self.host, c.host, self.chain), c) for c in consumers]
        for consumer in consumers:
            consumer.producer = self

    # -- data

    def arrive(self, number: int) -> None:
        host, engine, params = self.host, self.world.engine, self.world.params
        if host.failed:
            return
        new, now = number > self.received, engine.now
        if self.seen is not None:
            self.seen.append((now, number, new))
        if not new:
            return
        self.received = number
        self.data_bytes += params.tuple_bytes
        kept = self.keep is None or bool(self.keep[number])
        begin = host.free_at if host.free_at > now else now
        host.free_at = done = begin + (self.cost_s if kept else params.box_s)
        engine.at(done, self.produce, number, kept)

    def produce(self, number: int, kept: bool = True) -> None:
        if self.host.failed:
            return
        self.processed = number
        if self.boxes:
            self.acks.produced(_OUT, number, {_IN: number})
        if kept:
            self.queue.append(number)
            self.fresh += 1
            if self.sending:
                for link, consumer in self.wires:
                    self._send(link, consumer, number)

    def _send(self, link: Link | None, consumer: Sink, number: int) -> None:
        engine = self.world.engine
        time = engine.now if link is None else link.arrival(engine.now, self.world.params.tuple_bytes)
        engine.at(time, consumer.arrive, number)

    def resend(self, to: Sequence[Sink]) -> None:
        """The whole queue, at the link's speed; new tuples follow behind it."""
        for link, consumer in self.wires:
            if consumer in to:
                for number in self.queue:
                    self._send(link, consumer, number)

    # -- acknowledgements

    def acked(self, level: int, consumer: str, number: int) -> None:
        if self.host.failed:
            return
        policy = self.world.params.policy
        if level == 0 and self.keep is not None and policy != "passive":  # flow tuples behind it are safe as well
            place = bisect_right(self.queue, number)
            number = self.queue[place] - 1 if place < len(self.queue) else self.processed
        passed_on = self.acks.acked(level, _OUT, consumer, number)
        if policy == "upstream":
            for level_up, _, cause in passed_on:
                self.acknowledge(level_up, cause)
        elif policy == "active":
            for _, _, cause in passed_on:
                self._trim_twin(cause)
        bound = self.acks.trim(_OUT, leaf=self.leaf)
        del self.queue[: bisect_left(self.queue, bound)]
        self.acks.indicators[_OUT].forget(bound)

    def _trim_twin(self, cause: int) -> None:
        """With two copies downstream the bound moves twice an interval, but Table 1 has one trim message in each."""
        world, twin = self.world, self.twin
        if twin is not None and world.engine.now - self.trimmed_at >= 0.999 * world.params.interval_s:
            self.trimmed_at = world.engine.now
            self.state_bytes += world.params.id_bytes
            world.send(self, twin, world.params.id_bytes, twin.trim_caused_before, cause)

    def trim_caused_before(self, cause: int) -> None:
        """Section 4.3: a secondary discards what was made from input older than the trim message says."""
        indicators, queue = self.acks.indicators[_OUT], self.queue
        place = 0
        while place < len(queue) and (indicators.cause(queue[place], _IN) or 0) < cause:
            place += 1
        del queue[:place]
        indicators.forget(queue[0] if queue else self.processed)

    # -- passive standby

    def checkpoint(self) -> None:
        """New output, and the head position of each queue that changed since the last time; then the input's ack."""
        world, twin = self.world, self.twin
        if twin is None or self.processed == self.covered:
            return
        count, head = self.fresh, self.acks.trim(_OUT, leaf=True)
        changed = (self.boxes - 1 if count else 0) + (head > self.head)
        size = count * world.params.tuple_bytes + changed * world.params.id_bytes
        self.fresh, self.head, self.covered = 0, head, self.processed
        self.state_bytes += size
        new = self.queue[len(self.queue) - count :]
        world.send(self, twin, size, twin.restore, self.processed, new, head)
        self.acknowledge(0, self.processed)

    def restore(self, processed: int, new: list[int], head: int) -> None:
        self.received = self.processed = processed
        self.queue += new
        del self.queue[: bisect_left(self.queue, head)]


@dataclass
class Node:
    """Segments that live and die together. ``twin`` is the secondary or the standby."""

    row: int
    column: int
    host: Host
    segments: list[Segment]
    twin: Node | None = None


def split(total: int, parts: int) -> list[int]:
    """``total`` things over ``parts`` places, as evenly as whole numbers allow."""
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


class World:
    """Everything of one run."""

    def __init__(self, params: Params) -> None:
        self.params, self.engine = params, Engine()
        self.rng = random.Random(params.seed)
        self.period_s = 1 / params.rate_per_s
        self.nodes: dict[tuple[int, int], Node] = {}
        self._links: dict[tuple[str, str, int], Link] = {}
        self._phases_s: list[float] = []
        for row, width in enumerate(split(params.chains, params.rows)):
            hosts = [(Host(f"{row},{column}"), Host(f"{row},{column} twin")) for column in range(params.columns)]
            chains = [self._chain(len(self._phases_s), hosts) for _ in range(width)]
            for column, (host, twin_host) in enumerate(hosts):
                node = self.nodes[row, column] = Node(row, column, host, [chain[column] for chain in chains])
                twins = [segment.twin for segment in node.segments if segment.twin]
                node.twin = Node(row, column, twin_host, twins) if twins else None
        for node in self.nodes.values():
            self._start_timer(node)
            if node.twin and params.policy == "active":
                self._start_timer(node.twin)

    def _chain(self, chain: int, hosts: list[tuple[Host, Host]]) -> list[Segment]:
        """One chain, built from its end; returns the primaries from left to right."""
        params, rng = self.params, self.rng
        self._phases_s.append(rng.random() * self.period_s)
        app = Sink(self, Host(f"app {chain}"), chain, "app")
        self._repeat(app.host, [app], [app.tick])
        keep = None
        if params.selectivity < 1:
            run_s = params.warmup_s + params.measure_s + params.interval_s + params.detection_s + HORIZON_S
            keep = bytearray(rng.random() < params.selectivity for _ in range(int(run_s * params.rate_per_s) + 2))
        found: list[Segment] = []
        after: list[Sink] = [app]
        for (host, twin_host), boxes in reversed(list(zip(hosts, split(params.depth, params.columns)))):
            twin = None
            if params.policy != "upstream":
                twin = Segment(self, twin_host, chain, "secondary", boxes=boxes, consumers=after, keep=keep)
                twin.sending = False
            # After the twin, so that it is the primary which acknowledgements go to.
            segment = Segment(self, host, chain, "primary", boxes=boxes, consumers=after, keep=keep)
            segment.twin = twin
            found.append(segment)
            after = [segment, twin] if twin and params.policy == "active" else [segment]
            keep = None
        source = Segment(self, Host(f"source {chain}"), chain, "source", boxes=0, consumers=after)
        self.engine.at(self.born(chain, 0), self._emit, source, 0)
        return found[::-1]

    def born(self, chain: int, number: int) -> float:
        """When a source made a tuple."""
        return self._phases_s[chain] + number * self.period_s

    def _emit(self, source: Segment, number: int) -> None:
        source.produce(number)
        self.engine.at(self.born(source.chain, number + 1), self._emit, source, number + 1)

    # -- timers and messages

    def _start_timer(self, node: Node) -> None:
        passive = self.params.policy == "passive"
        self._repeat(node.host, node.segments, [s.checkpoint if passive else s.tick for s in node.segments])

    def _repeat(self, host: Host, sinks: Sequence[Sink], calls: list[Callable[[], None]]) -> None:
        phase_s = self.rng.random() * self.params.interval_s
        for sink in sinks:
            sink.phase_s = self.engine.now + phase_s
        self.engine.after(phase_s, self._tick, host, calls)

    def _tick(self, host: Host, calls: list[Callable[[], None]]) -> None:
        if not host.failed:
            for call in calls:
                call()
            self.engine.after(self.params.interval_s, self._tick, host, calls)

    def link(self, source: Host, target: Host, chain: int) -> Link | None:
        """None within a host."""
        if source is target:
            return None
        key = source.name, target.name, -1 if self.params.shared_links else chain
        if key not in self._links:
            self._links[key] = Link(delay_s=self.params.link_delay_s, bytes_per_s=self.params.link_bytes_per_s)
        return self._links[key]

    def send(self, source: Sink, target: Sink, size: int, call: Callable[..., None], *arguments: Any) -> None:
        link = self.link(source.host, target.host, source.chain)
        self.engine.at(self.engine.now if link is None else link.arrival(self.engine.now, size), call, *arguments)

    # -- failure

    def choose(self) -> tuple[Node, Host]:
        """The node that will die, and where upstream backup will go on with its boxes."""
        params = self.params
        place = (0, params.columns - 1) if params.fail == "last" else self.rng.choice(sorted(self.nodes))
        node = self.nodes[place]
        # Section 3 forbids cycles: of the nodes of the same chains, only a direct neighbour may take over.
        live = [
            other.host
            for other in self.nodes.values()
            if other is not node and (other.row != node.row or abs(other.column - node.column) == 1)
        ]
        return node, self.rng.choice(live) if live and params.failover == "live" else Host("spare")

    def recover(self, node: Node, host: Host) -> None:
        """What each policy does at the moment of detection (Sections 4.1 to 4.3)."""
        policy = self.params.policy
        successors: list[Segment] = []
        for dead in node.segments:
            upstream, consumers = dead.producer, dead.consumers
            new = dead.twin or Segment(
                self, host, dead.chain, dead.name, boxes=dead.boxes, consumers=consumers, keep=dead.keep
            )
            assert upstream is not None
            successors.append(new)
            if policy != "upstream":
                new.sending = True
                new.connect(consumers)
                new.resend(consumers)
            if policy != "active":
                upstream.connect([new if consumer is dead else consumer for consumer in upstream.consumers])
                upstream.resend([new])
        if policy == "upstream":
            self._start_timer(Node(node.row, node.column, host, successors))

    # -- what was measured

    def totals(self) -> tuple[int, int, int]:
        """So far: data bytes into the last column, HA bytes by or for it, and all bytes between nodes.

        A stream between two nodes is charged with its tuples, their copies and acknowledgements, and with what its
        producer sends to a standby for the sake of its output queue.
        """
        last = self.params.columns - 1
        data = overhead = between = 0
        for (_, column), node in self.nodes.items():
            twins = node.twin.segments if node.twin else []
            inputs, copied = (sum(s.data_bytes for s in segments) for segments in (node.segments, twins))
            acks = sum(s.ack_bytes for s in node.segments + twins)
            state = sum(s.state_bytes for s in node.segments)
            if column == last:
                data += inputs
                overhead += acks + copied + state
            between += (inputs + acks + copied if column else 0) + (state if column != last else 0)
        return data, overhead, between
