"""Rehearsing a stage's query on throw-away rows, so that a takeover meets a warm JVM and warm workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from understudy.core.numbers import NO_EPOCH, Epoch, after
from understudy.runtime import messages, wire
from understudy.runtime.arrow_types import collect
from understudy.runtime.wire import Refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from understudy.runtime.host import Host
    from understudy.runtime.spark_files import Batch

NO_FASTER, LAST = 0.9, 3
"""A query is warm when none of its last so many batches took less than this part of the fastest before."""
FIRST_ROWS, MORE, AT_EASE_S = 10, 10, 1.0
"""A rehearsal begins with few rows, and takes so many times more after every batch that took no longer than this: what
a row costs is not known, and the running stages need the processor more."""
REHEARSAL_S = 45.0
"""A rehearsal that takes longer hangs, and others wait for it. The takeover is then only slower."""
CALM_S = 3.0
"""So long after a takeover nobody rehearses on its host, and nothing large is sent: the new primary needs processor and
disk more."""


class Turns:
    """Whose turn it is to rehearse on a host: one at a time, and first those whose takeover would be the slowest."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[bool, int]] = []
        self._busy = False
        self._numbers = count()
        self._calm_until = 0.0

    def hold(self) -> None:
        """A takeover begins: for a while nobody rehearses."""
        self._calm_until = time.monotonic() + CALM_S

    def held_s(self) -> float:
        """How long that will last."""
        return max(0.0, self._calm_until - time.monotonic())

    @contextmanager
    def turn(self, armed: bool, *, timeout_s: float) -> Iterator[None]:
        """Whoever is ``armed`` already comes after those that are not. Raises TimeoutError."""
        with self._changed:
            mine = (armed, next(self._numbers))
            self._waiting.append(mine)
            try:
                if not self._changed.wait_for(lambda: not self._busy and min(self._waiting) == mine, timeout_s):
                    raise TimeoutError("another one does not end")
                self._busy = True
            finally:
                self._waiting.remove(mine)
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()


class Course:
    """How a rehearsal goes: from few rows to all of its sample, as far as that is cheap, and on until it gets no
    faster."""

    def __init__(self, rows: int) -> None:
        """``rows``: how many there are."""
        self.rows, self._all = min(FIRST_ROWS, rows), rows
        self.batches_s: list[float] = []
        """How long each took."""
        self._grown = 0
        """Those that were over when the rows last became more."""

    def took(self, batch_s: float) -> None:
        """A batch is over. The first one loads classes, whatever its rows."""
        self.batches_s.append(batch_s)
        if self.rows < self._all and (len(self.batches_s) == 1 or batch_s <= AT_EASE_S):
            self.rows, self._grown = min(self.rows * MORE, self._all), len(self.batches_s)

    def is_warm(self) -> bool:
        took_s = self.batches_s[self._grown :]
        return len(took_s) > LAST and min(took_s[-LAST:]) > NO_FASTER * min(took_s[:-LAST])


def sample(host: Host, stream: str) -> pa.Table | None:
    """Recent rows of a stream, from wherever it is produced; None where there are none, or nobody answers."""
    producer = host.directory.primary_of(stream)
    if producer is None:
        return None
    if producer == host.name:
        return host.peek(stream)
    try:
        reply, table = host.peer(producer).get(messages.Peek(stream), category="control", timeout_s=5)
    except (flight.FlightError, pa.ArrowException, OSError):
        return None
    return None if reply.refused else table


class Rehearsal:
    """Runs the stage's own query on a copy of recent rows, starting from a copy of the state or from nothing, so that a
    takeover meets a warm JVM, warm workers, and has been through the opening of the state once."""

    def __init__(self, host: Host, name: str, state: Path, *, epochs: int) -> None:
        self.host, self.name, self.state = host, name, state
        self.session = f"rehearsal of {name}, {time.time_ns()}"
        self._epochs = epochs
        self._newest = Epoch(-2)
        """The newest epoch that was asked for; the first is -1, for a query that begins from nothing."""
        self._asked_at: float | None = None
        """When it was, which is when the one before was done."""
        self.over = False
        self._done = threading.Event()
        self._samples: dict[str, pa.Table] = {}
        self._course = Course(0)

    def run(self, abandoned: threading.Event) -> None:
        plans = self.host.wait_for_plans()
        for stream in self.host.job.stages[self.name].inputs:
            found = sample(self.host, stream)
            self._samples[stream] = plans.arrow_schema(stream).empty_table() if found is None else found
        self._course = Course(max(table.num_rows for table in self._samples.values()))
        self.host.rehearsals[self.session] = self
        query = None
        try:
            query = plans.start(self.name, self.state, self._publish)
            limit, slow = time.monotonic() + REHEARSAL_S, False
            while not slow and not self._done.wait(0.2) and not abandoned.is_set() and query.isActive:
                if time.monotonic() > limit:
                    slow = bool(self._course.batches_s)  # but it has been through all of it
                    if not slow:
                        raise TimeoutError(f"no end after {REHEARSAL_S:.0f} s")
            if slow or self._done.is_set():
                plans.rehearsed.add(self.name)
                plans.found_stores(self.name, query, self.state)
                took = ", ".join(f"{batch_s:.2f}" for batch_s in self._course.batches_s)
                rows = sum(self._sampled(stream).num_rows for stream in self._samples)
                print(f"{time.time():.3f} {self.name}: rehearsed on {rows} rows; batches took {took} s", flush=True)
        finally:
            with self.host.changed:
                self.over = True
                self.host.changed.notify_all()
            del self.host.rehearsals[self.session]
            if query is not None:
                query.stop()

    def _publish(self, frame: DataFrame, batch: Batch) -> None:
        collect(frame)

    def arm(self) -> str | wire.Reply[Any]:
        return self.session

    def initial(self) -> Epoch:
        return NO_EPOCH

    def grant(self, done: Epoch) -> Epoch | wire.Reply[Any]:
        if done > self._newest:  # each input asks
            now, before, self._newest = time.monotonic(), self._asked_at, done
            if before is not None:
                self._course.took(now - before)
            self._asked_at = now
        with self.host.changed:
            self.host.changed.wait_for(lambda: self.over, self.host.rehearsing.held_s())
        if len(self._course.batches_s) < self._epochs and not self._course.is_warm() and not self.over:
            return after(done)
        self._done.set()
        with self.host.changed:
            self.host.changed.wait_for(lambda: self.over)
        return wire.refuse(Refusal.STOPPED)

    def parts(self, input: str, epoch: Epoch) -> messages.Partitioning:
        return messages.Partitioning(1, self._sampled(input).nbytes)

    def input_slice(self, input: str, epoch: Epoch, part: int, parts: int) -> pa.Table:
        return self._sampled(input)

    def _sampled(self, input: str) -> pa.Table:
        return self._samples[input].slice(0, self._course.rows)
