"""Virtual time: a heap of things to come, taken one by one. Nothing happens between them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import repeat
from typing import Any

Call = Callable[..., None]


class Died(Exception):
    """The process that was running has died; whatever it was doing ends here."""


class Life:
    """One life of a process. What is planned within it happens while it goes on, waits while it is frozen, and does not
    happen once it has ended."""

    __slots__ = ("_engine", "_waiting", "goes_on")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.goes_on = True
        self._waiting: list[tuple[Call, tuple[Any, ...]]] | None = None
        """What came while it was frozen; None when it is not."""

    def after(self, delay: float, call: Call, *arguments: Any) -> None:
        """As ``Engine.after``."""
        engine = self._engine
        engine._planned += 1
        heappush(engine._heap, (engine.now + delay, engine._planned, self, call, arguments))

    def freeze(self) -> None:
        if self.goes_on:
            self.goes_on, self._waiting = False, []

    def thaw(self) -> None:
        """Go on, first of all with what has waited."""
        if self._waiting is not None:
            waiting, self._waiting, self.goes_on = self._waiting, None, True
            for call, arguments in waiting:
                self.do(call, arguments)

    def end(self) -> None:
        self.goes_on, self._waiting = False, None

    def do(self, call: Call, arguments: tuple[Any, ...]) -> None:
        """Make a call whose time has come."""
        if self.goes_on:
            try:
                call(*arguments)
            except Died:
                pass
        elif self._waiting is not None:
            self._waiting.append((call, arguments))


class Engine:
    """``at`` and ``after`` plan a call; ``run`` makes the calls in order of time, and of planning for equal times.

    There is no way to take a planned call back: the callee looks whether it still matters.
    """

    __slots__ = ("_heap", "_own", "_planned", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Life, Call, tuple[Any, ...]]] = []
        self._planned = 0
        self._own = Life(self)
        """For what is planned within no life of its own."""

    @property
    def events(self) -> int:
        """Calls made so far."""
        return self._planned - len(self._heap)

    def at(self, time: float, call: Call, *arguments: Any) -> None:
        self._planned += 1
        heappush(self._heap, (time if time > self.now else self.now, self._planned, self._own, call, arguments))

    def after(self, delay: float, call: Call, *arguments: Any) -> None:
        self._planned += 1
        heappush(self._heap, (self.now + delay, self._planned, self._own, call, arguments))

    def run(self, until: float = float("inf"), *, events_max: int | None = None) -> None:
        """Until ``until``, until nothing is planned, or until ``events_max`` more calls were made."""
        heap = self._heap
        turns = repeat(None) if events_max is None else repeat(None, events_max)
        collecting = gc.isenabled()
        gc.disable()  # a story makes few cycles, and looking for them costs a fifth of the time
        try:
            for _ in turns:
                if not heap or heap[0][0] > until:
                    break
                self.now, _, life, call, arguments = heappop(heap)
                if life.goes_on:  # as in ``Life.do``, but without one more call for every event
                    try:
                        call(*arguments)
                    except Died:
                        pass
                else:
                    life.do(call, arguments)
        finally:
            if collecting:
                gc.enable()
        if until != float("inf") and not (heap and heap[0][0] <= until):
            self.now = max(self.now, until)

    def __len__(self) -> int:
        """How much is planned."""
        return len(self._heap)


class Link:
    """One direction between two hosts: a fixed delay, and a bandwidth that messages queue for, in order."""

    __slots__ = ("_free_at", "bytes_per_s", "delay_s")

    def __init__(self, *, delay_s: float, bytes_per_s: float = float("inf")) -> None:
        self.delay_s, self.bytes_per_s = delay_s, bytes_per_s
        self._free_at = 0.0

    def arrival(self, now: float, size: int) -> float:
        """When a message of ``size`` bytes that is sent now will be there."""
        begin = max(now, self._free_at)
        self._free_at = begin + size / self.bytes_per_s
        return self._free_at + self.delay_s
