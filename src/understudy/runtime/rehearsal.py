"""Rehearsing a stage's query on throw-away rows, so that a takeover meets a warm JVM and warm workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from understudy.runtime import wire
from understudy.runtime.arrow_types import collect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from understudy.runtime.host import Host

NO_FASTER, LAST = 0.9, 3
"""A query is warm when none of its last so many batches took less than this part of the fastest before."""
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


class Rehearsal:
    """Runs the stage's own query on a copy of recent rows, starting from a copy of the state or from nothing, so that a
    takeover meets a warm JVM, warm workers, and has been through the opening of the state once."""

    def __init__(self, host: Host, name: str, state: Path, *, epochs: int) -> None:
        self.host, self.name, self.state = host, name, state
        self.session = f"rehearsal of {name}, {time.time_ns()}"
        self._epochs = epochs
        self._newest = -2
        """The newest epoch that was asked for; the first is -1, for a query that begins from nothing."""
        self._asked_at: list[float] = []
        """When each was, which is when the one before was done."""
        self.over = False
        self._done = threading.Event()
        self._samples: dict[str, pa.Table] = {}

    def run(self, abandoned: threading.Event) -> None:
        plans = self.host.wait_for_plans()
        for stream in self.host.job.stages[self.name].inputs:
            self._samples[stream] = self._sample(stream) or plans.arrow_schema(stream).empty_table()
        self.host.rehearsals[self.session] = self
        query = None
        try:
            query = plans.start(self.name, self.state, self._publish)
            limit = time.monotonic() + REHEARSAL_S
            while not self._done.wait(0.2) and not abandoned.is_set() and query.isActive:
                if time.monotonic() > limit:
                    raise TimeoutError(f"no end after {REHEARSAL_S:.0f} s")
            if self._done.is_set():
                plans.rehearsed.add(self.name)
                plans.found_stores(self.name, query, self.state)
                took = ", ".join(f"{batch_s:.2f}" for batch_s in self._batches_s())
                print(f"{time.time():.3f} {self.name}: rehearsed; batches took {took} s", flush=True)
        finally:
            with self.host.changed:
                self.over = True
                self.host.changed.notify_all()
            del self.host.rehearsals[self.session]
            if query is not None:
                query.stop()

    def _sample(self, stream: str) -> pa.Table | None:
        producer = self.host.directory.primary_of(stream)
        if producer is None or producer == self.host.name:
            return None
        try:
            reply, table = self.host.peer(producer).get(
                {"get": "peek", "stream": stream}, category="control", timeout_s=5
            )
        except (flight.FlightError, pa.ArrowException, OSError):
            return None
        return None if reply.refused else table

    def _publish(self, frame: DataFrame, batch: int) -> None:
        collect(frame)

    def arm(self) -> dict[str, Any]:
        return {"session": self.session}

    def initial(self) -> dict[str, Any]:
        return {"epoch": -1}

    def grant(self, after: int) -> wire.Reply | dict[str, Any]:
        if after > self._newest:  # each input asks
            self._newest = after
            self._asked_at.append(time.monotonic())
        with self.host.changed:
            self.host.changed.wait_for(lambda: self.over, self.host.rehearsing.held_s())
        if len(self._asked_at) <= self._epochs and not self._is_warm() and not self.over:
            return {"epoch": after + 1}
        self._done.set()
        with self.host.changed:
            self.host.changed.wait_for(lambda: self.over)
        return wire.refuse("stopped")

    def _is_warm(self) -> bool:
        took_s = self._batches_s()
        return len(took_s) > LAST and min(took_s[-LAST:]) > NO_FASTER * min(took_s[:-LAST])

    def _batches_s(self) -> list[float]:
        return [end - begin for begin, end in pairwise(self._asked_at)]

    def parts(self, input: str, epoch: int) -> dict[str, Any]:
        return {"parts": 1, "bytes": self._samples[input].nbytes}

    def input_slice(self, input: str, epoch: int, part: int, parts: int) -> pa.Table:
        return self._samples[input]
