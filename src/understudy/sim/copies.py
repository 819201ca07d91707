"""A running copy of one stage in virtual time: it asks for epochs, turns each into one of its own, and serves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from understudy.core import row_counts
from understudy.core.acks import FINAL
from understudy.core.numbers import FIRST_EPOCH, NO_EPOCH, Epoch, after, between
from understudy.core.pacing import Asking, Pace
from understudy.core.policies import base
from understudy.core.policies.upstream import Row
from understudy.core.queue import READ_AHEAD, OutputQueue, has_room, lead_for
from understudy.core.reach import Numbers, Reach
from understudy.core.row_counts import Counted, RowCounts
from understudy.core.windows import Windows
from understudy.sim.disks import Version
from understudy.sim.model import EMPTY, ROWS_USUAL, State, rows_of

if TYPE_CHECKING:
    from understudy.sim.nodes import World
    from understudy.sim.units import Unit

SOON_S = 1e-9
"""Time is in floats: what is to happen so soon happens now."""
Acks = dict[str, dict[int, Epoch]]
"""Input -> level -> the newest epoch that is acknowledged at it."""
Reply = Callable[[Epoch, int, str | None], None]
"""Given the epoch, its value, and the reason when there is none."""


class Output:
    """The producing end of a stream: its queue, what is in it, and those who wait for what is not."""

    __slots__ = ("_number", "counts", "gap", "heard", "pending", "queue", "row", "stream", "values")

    def __init__(
        self, world: World, stream: str, *, first: Epoch, gap: Epoch = FIRST_EPOCH, row: Row | None = None
    ) -> None:
        self.stream, self.row = stream, row
        at = world.conditions
        lead = lead_for(at.heartbeat_s * at.misses, at.epoch_s)
        self.queue = OutputQueue(world.topology.consumers(stream), start=first, rebuilt=row is not None, lead=lead)
        self.values: dict[Epoch, int] = {}
        self.counts = RowCounts()
        self._number = world.number[stream]
        self.gap = gap
        """Epochs before this one were lost without protection, and are served as empty ones."""
        self.heard: dict[str, Mapping[int, Epoch]] = {}
        """Consumer -> what it last acknowledged, to know when nothing is new."""
        self.pending: dict[tuple[str, str], tuple[Epoch, Reply]] = {}
        """Who waits (a consumer, and on which host) -> for which epoch, and how to answer."""

    def append(self, epoch: Epoch, value: int) -> None:
        if epoch < self.queue.next:
            return
        self.counts.came(epoch, rows_of(self._number, epoch))
        if self.queue.append(epoch):
            self.values[epoch] = value
        if self.pending:
            waiting, self.pending = self.pending, {}
            for who, (wanted, reply) in waiting.items():
                self.serve(who, wanted, reply)

    def serve(self, who: tuple[str, str], epoch: Epoch, reply: Reply) -> None:
        if epoch >= self.queue.next:
            self.pending[who] = (epoch, reply)
        elif epoch in self.values:
            reply(epoch, self.values[epoch], None)
        elif epoch < self.gap:
            reply(epoch, EMPTY, None)
        else:
            reply(epoch, EMPTY, "gone")

    def ack(self, consumer: str, epoch: Epoch, level: int = FINAL) -> Epoch | None:
        oldest = self.queue.first
        trimmed = self.queue.ack(consumer, epoch, level)
        if trimmed is not None:
            for old in between(oldest, self.queue.first):
                del self.values[old]
        return trimmed


class Copy:
    """One stage on one host. ``done`` is the epoch that its state is at."""

    done: Epoch
    output: Output

    def __init__(
        self,
        unit: Unit,
        name: str,
        *,
        done: Epoch,
        state: State,
        first: Epoch | None = None,
        output: tuple[int, ...] = (),
        gap: Epoch = FIRST_EPOCH,
        row: Row | None = None,
        windows: list[Any] | None = None,
    ) -> None:
        """``first`` is the oldest epoch of its stream that this copy has or will make; ``output`` are those it has.
        ``row``: it is being rebuilt, and with whom. ``windows``: what those in its state are made of, if that is
        known."""
        self.unit, self.name, self.host, self.world = unit, name, unit.host, unit.world
        self.number = self.world.number[name]
        topology = self.world.topology
        shape = topology.stages[name]
        self.inputs = shape.inputs
        self.inside = frozenset(i for i in shape.inputs if i in unit.shape.stages)
        self.done, self.state = done, state
        self.received = dict.fromkeys(self.inputs, done)
        self.read: dict[tuple[str, Epoch], int] = {}
        self.asked: dict[str, tuple[Epoch, float]] = {}
        """Input -> the epoch asked for, and when."""
        self.acks: Acks = {i: {} for i in self.inputs}
        """What producers are told: what everybody who protects this copy allows."""
        self.told: dict[int, Epoch] = {}
        """Level -> what consumers have acknowledged at it, as its keepers know."""
        self.history: dict[Epoch, State] = {done: state}
        """States after recent epochs, those that are kept, for checkpoints at the trim point."""
        self.saves = self.world.job.saves.get(name, 1)
        self.busy = self.stopped = False
        self.pace = Pace()
        """As a primary: lets running copies keep up."""
        self._paced_until = -1.0
        """When it looks again whether it may start."""
        self._asking = {i: Asking() for i in self.inputs} if self.world.conditions.asks_late else {}
        self._done_at = 0.0
        """When the epoch that it is at will be done."""
        self.paused_by: set[object] = set()
        """The keepers that want it to stand still; while its unit's policy changes, there are two."""
        self._windows: Windows | None = None
        self._windows_before = windows
        job = self.world.job
        history = windows or [None, None]
        self._reach = Reach(history[0]) if name in job.rows or name in job.pairs else None
        self._numbers: Numbers | None = None
        if name in job.pairs:
            self._numbers = Numbers(name, done, job.totals(name, state), history[1])
        self._needed = after(done)
        """The oldest epoch that its newest rows are made of, where it is they that are its state."""
        begin = after(done) if first is None else first
        self.output = Output(self.world, name, first=begin, gap=gap, row=row)
        for epoch, value in enumerate(output, begin):
            self.output.append(Epoch(epoch), value)
        self.sinks: dict[str, Epoch] = {}
        """Sink -> the epoch that it is to be given next."""

    # -- in -----------------------------------------------------------------------------------------------------------

    def go(self) -> None:
        if self.unit.primary:
            for sink in (c for c in self.output.queue.progress if c in self.world.sinks):
                if not self.world.sinks[sink].open(self.unit.generation):
                    self.unit.fence()
                    return
                self.sinks[sink] = max(self.output.queue.first, after(self.output.queue.progress[sink].acked))
                self._write(sink)
        for stream in self.inputs:
            self.ask(stream)

    def ask(self, stream: str) -> None:
        epoch: Epoch = self.received[stream] + 1  # type: ignore[assignment]  # no call: it is asked often
        asked = self.asked.get(stream)
        if asked is not None and asked[0] == epoch:
            return
        if self.stopped or epoch > self.done + 1 + READ_AHEAD or (self._asking and self._asks_later(stream)):
            return
        self.asked[stream] = (epoch, self.world.engine.now)
        self.unit.send_request(self, stream, epoch)

    def _asks_later(self, stream: str) -> bool:
        """As real hosts do: not before the epoch is about to be wanted."""
        now = self.world.engine.now
        done_in_s = max(0.0, self._done_at - now) if self.busy else 0.0
        begun = after(self.done) if self.busy else self.done
        wait_s = self._asking[stream].wait_s(self.received[stream], begun, done_in_s)
        if SOON_S < wait_s < math.inf:
            self.host.living.after(wait_s, self.ask, stream)
        return wait_s > SOON_S

    def retry(self, before: float) -> None:
        for stream in self.inputs:
            asked = self.asked.get(stream)
            if asked is None or asked[1] <= before:
                self.asked.pop(stream, None)
                self.ask(stream)

    def deliver(self, stream: str, epoch: Epoch, value: int) -> None:
        if self.stopped or epoch != self.received[stream] + 1:
            return
        self.received[stream] = epoch
        self.read[stream, epoch] = value
        if self._asking:
            self._asking[stream].came(2 * self.world.conditions.delay_s, 0.0, 0.0)
        self.ask(stream)
        self.try_run()

    # -- work ---------------------------------------------------------------------------------------------------------

    def try_run(self) -> None:
        if self.busy or self.paused_by or self.stopped or not self.inputs:
            return  # without inputs it is a source, whose epochs are cut
        epoch: Epoch = self.done + 1  # type: ignore[assignment]
        for received in self.received.values():
            if received < epoch:
                return
        if self.unit.primary:
            room = has_room(self.output.queue.ahead, draining=self.host.draining)
            if not room or not self._in_step(epoch):
                return
        self.busy = True
        self.host.living.after(self.world.conditions.process_s, self._finish, epoch)
        if self._asking:
            self._done_at = self.world.engine.now + self.world.conditions.process_s
            for stream in self.inputs:
                self.ask(stream)

    def _in_step(self, epoch: Epoch) -> bool:
        """Whether to start an epoch, or to let running copies gain first."""
        at, now = self.world.conditions, self.world.engine.now
        wait_s = self.pace.wait_s(epoch, now, max(at.epoch_s, at.process_s))
        if wait_s <= SOON_S:
            self.pace.started(epoch, now)
            return True
        if self._paced_until < now:
            self._paced_until = now + wait_s
            self.host.living.after(wait_s, self.try_run)
        return False

    def _finish(self, epoch: Epoch) -> None:
        self.busy = False
        if self.stopped:
            return
        if self.world.throws is not None and self.world.throws(self.host.name, self.name, epoch):
            self.stopped = True
            self.unit.failed(self.name, epoch)
            return
        job = self.world.job
        values = [self.read.pop((stream, epoch)) for stream in self.inputs]
        self.state, value = job.step(self.name, self.number, epoch, self.state, values)
        self.done = epoch
        if self._reach is not None:
            self._needed = self._reach.committed(epoch, job.rows_in(self.name, self.state))
        if self._numbers is not None:
            self._numbers.committed(epoch, job.totals(self.name, self.state))
        if epoch % self.saves == 0:
            self.history[epoch] = self.state
        self.output.append(epoch, value)
        self.unit.processed(self, epoch)
        if self.stopped:
            return
        for sink in self.sinks:
            self._write(sink)
        if self.paused_by:
            self.unit.note(base.Paused(self.name))
        for stream in self.inputs:
            self.ask(stream)
        self.try_run()

    def needs(self, epoch: Epoch) -> Epoch:
        """The oldest input epoch from which the state after ``epoch``, which was just made, can be rebuilt."""
        if self._reach is not None:
            return self._needed
        window = self.world.job.windows.get(self.name)
        if window is None:
            return self.world.job.needs_after(self.name, epoch)
        if self._windows is None:
            self._windows = Windows(window, start=epoch, history=self._windows_before)
        return self._windows.committed(epoch, self.state[0])

    def without_stale(self, at: Epoch, counted: Mapping[str, Counted]) -> State:
        """What has not expired by then of its state, which was saved some while ago."""
        job = self.world.job
        if self.name not in job.rows:
            return self.state
        lost = list(between(after(self.done), after(at)))
        lacks = row_counts.missed(self.done, at, counted, dict.fromkeys(counted, ROWS_USUAL))
        rows, true = sum(lacks.rows.values()), sum(job.rows_read(self.name, epoch) for epoch in lost)
        unknown = [epoch for epoch in lost for answer in counted.values() if answer.of(epoch) is None]
        if abs(rows - true) > 2 * len(unknown):
            self.world.violate(f"{self.name} is told that it missed {rows} rows, and missed {true}")
        return job.without_stale(self.name, self.state, rows)

    def tell_numbers(self) -> None:
        """Before input is let go of: how its rows are numbered from there on."""
        if self._numbers is not None:
            acked = max(acks.get(FINAL, NO_EPOCH) for acks in self.acks.values())
            self.host.landed.hears(self._numbers.told(after(acked)))

    def windows_until(self, epoch: Epoch) -> list[Any] | None:
        """What open windows are made of, for the last checkpoint."""
        if self._reach is not None:
            return [self._reach.history(), self._numbers.history() if self._numbers else None]
        return self._windows_before if self._windows is None else self._windows.history(epoch)

    def prune(self, trimmed: Epoch) -> None:
        """No checkpoint will be taken of an older state than the newest that is no newer than the trim point."""
        while len(self.history) > 1:
            oldest, second = islice(self.history, 2)
            if second > trimmed:
                return
            del self.history[oldest]

    def state_after(self, epoch: Epoch) -> State | None:
        """None when the copy has passed it, and did not keep it."""
        return self.state if epoch == self.done else self.history.get(epoch)

    def version(self, epoch: Epoch, *, queue: bool) -> Version | None:
        """Its state after an epoch, with ``queue`` also its untrimmed output up to it. None: see ``state_after``."""
        state = self.state_after(epoch)
        if state is None:
            return None
        first, output = after(epoch), list[int]()
        if queue:
            first = min(self.output.queue.first, first)
            output = [self.output.values[e] for e in between(first, after(epoch))]
        return Version(epoch, state, first, tuple(output), gap=self.output.gap, landed=self.host.landed.known)

    # -- out ----------------------------------------------------------------------------------------------------------

    def _write(self, sink: str) -> None:
        epoch = self.sinks[sink]
        if epoch in self.output.values:
            self.sinks[sink] = after(epoch)
            self.host.living.after(self.world.conditions.disk_s, self._written, sink, epoch, self.output.values[epoch])
        elif epoch < self.output.queue.first:
            self.sinks[sink] = self.output.queue.first
            self._write(sink)

    def _written(self, sink: str, epoch: Epoch, value: int) -> None:
        if self.stopped:
            return
        if not self.world.sinks[sink].write(epoch, value, self.unit.generation):
            self.unit.fence()
            return
        self.host.landed.has(sink, epoch)
        self.output.queue.request(sink, after(epoch))
        self.unit.acked(self, sink, {FINAL: epoch})
        self._write(sink)
