"""Level-n acknowledgements and what they mean for a node's input (Hwang et al. 2003, Sections 4.2 and 4.4).

A consumer's ACK(n, S, v) on an output stream S says that everything before and including v is safe n nodes further
down. The node maps v through *cause* to each of its inputs and passes ACK(n+1) on. Cause is read from *indicators*: for
every element of an output stream, the oldest element of each input that is needed to make it again. Where an element
has none for an input (a union's element came from the other one), the nearest earlier one counts.

Everything here works on plain sequence numbers, so that tuples and epochs are served alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

N = TypeVar("N", bound=int)
"""The number of an element: an epoch, or a tuple's."""
FINAL = -1
"""The level of an acknowledgement that lets the producer trim: the epoch is never needed again."""


class Indicators(Generic[N]):
    """The indicators of one output stream: append in order, look up, forget what was trimmed.

    Consecutive elements with the same indicator are stored once, and each input has a list of its own, so that the
    nearest earlier indicator is found by bisection.
    """

    __slots__ = ("_causes", "_newest", "_numbers")

    def __init__(self, inputs: Iterable[str]) -> None:
        self._numbers: dict[str, list[N]] = {name: [] for name in inputs}
        self._causes: dict[str, list[N]] = {name: [] for name in self._numbers}
        self._newest: N | None = None

    def append(self, number: N, oldest: Mapping[str, N]) -> None:
        """Element ``number`` needs each input from ``oldest`` on; an input that contributed nothing is left out."""
        if self._newest is not None and number <= self._newest:
            raise ValueError(f"element {number} appended after {self._newest}")
        self._newest = number
        for name, cause in oldest.items():
            numbers, causes = self._numbers[name], self._causes[name]
            if not causes or causes[-1] != cause:
                numbers.append(number)
                causes.append(cause)

    def cause(self, number: N, input: str) -> N | None:
        """The oldest element of ``input`` needed for ``number``; None when neither it nor any earlier one has any."""
        place = bisect_right(self._numbers[input], number)
        return self._causes[input][place - 1] if place else None

    def forget(self, number: N) -> None:
        """Nobody will ask about elements before ``number``; what is needed to answer about it is kept."""
        for name, numbers in self._numbers.items():
            if len(numbers) > 1 and numbers[1] <= number:
                place = bisect_right(numbers, number) - 1
                del numbers[:place]
                del self._causes[name][:place]

    def __len__(self) -> int:
        return sum(map(len, self._numbers.values()))


def compose(first: Mapping[str, int], then: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Indicators over several stages of one node (Figure 7): an output needs, of each of the node's inputs, the oldest
    that any of the elements it was made from needs. ``first`` are the indicators found so far."""
    result = dict(first)
    for indicators in then:
        for name, cause in indicators.items():
            if name not in result or cause < result[name]:
                result[name] = cause
    return result


class AckPacer:
    """When to acknowledge what was received: after every ``every_n`` elements or ``every_s`` seconds, whichever comes
    first (Section 4.2.1: M_n and M_s). Rare acks save bandwidth; frequent ones keep queues, and so recovery, short.

    In lockstep epochs level 0 costs nothing, as asking for an epoch says it; this is for streams that are pushed.
    """

    def __init__(self, *, every_n: int | None = None, every_s: float | None = None) -> None:
        if every_n is None and every_s is None:
            raise ValueError("every_n, every_s: give at least one of them, or nothing is ever acknowledged")
        if every_n is not None and every_n < 1:
            raise ValueError(f"every_n={every_n} must be at least 1")
        if every_s is not None and every_s <= 0:
            raise ValueError(f"every_s={every_s} must be longer than nothing")
        self.every_n, self.every_s = every_n, every_s
        self._newest: int | None = None
        self._unacked = 0
        self._due_at: float | None = None

    def received(self, number: int, now: float) -> int | None:
        """Element ``number`` has come. Returns what to acknowledge now, if anything."""
        self._newest = number
        self._unacked += 1
        if self.every_s is not None and self._due_at is None:
            self._due_at = now + self.every_s
        return self._ack() if self.every_n is not None and self._unacked >= self.every_n else self.tick(now)

    def tick(self, now: float) -> int | None:
        """A deadline may have passed."""
        return self._ack() if self._due_at is not None and now >= self._due_at else None

    def _ack(self) -> int | None:
        self._unacked, self._due_at = 0, None
        return self._newest

    def next_deadline(self) -> float | None:
        return self._due_at


class LevelAcks:
    """One node's acknowledgements, Figures 4 and 5 for every level up to ``k``.

    ``consumers`` names the downstream neighbours of each output stream. Call ``acked`` with what they acknowledge; it
    returns what to pass on upstream as (level, input, number). ``trim`` tells up to where an output stream's queue may
    be cut: everything *before* it. A stream read by applications only is trimmed by level 0.
    """

    def __init__(self, consumers: Mapping[str, Iterable[str]], inputs: Iterable[str], *, k: int = 1) -> None:
        if k < 1:
            raise ValueError(f"k={k}: at least level-1 acknowledgements are needed to survive a failure")
        self.k = k
        self.inputs = tuple(inputs)
        self.indicators: dict[str, Indicators[int]] = {stream: Indicators(self.inputs) for stream in consumers}
        self._down = [{s: dict.fromkeys(names, -1) for s, names in consumers.items()} for _ in range(k + 1)]
        self._down_min = [dict.fromkeys(consumers, -1) for _ in range(k + 1)]
        self._up = [{i: dict.fromkeys(consumers, -1) for i in self.inputs} for _ in range(k)]
        self._up_min = [dict.fromkeys(self.inputs, -1) for _ in range(k)]

    def produced(self, stream: str, number: int, oldest: Mapping[str, int]) -> None:
        self.indicators[stream].append(number, oldest)

    def acked(self, level: int, stream: str, consumer: str, number: int) -> list[tuple[int, str, int]]:
        """ACK(level, stream, number) came from ``consumer``."""
        if not 0 <= level <= self.k:
            raise ValueError(f"level={level}: this node knows levels 0 to {self.k}")
        down = self._down[level][stream]
        if number <= down[consumer]:
            return []
        down[consumer] = number
        bound = min(down.values())
        if bound <= self._down_min[level][stream]:
            return []
        self._down_min[level][stream] = bound
        return [] if level == self.k else self._pass_on(level, stream, bound)

    def _pass_on(self, level: int, stream: str, bound: int) -> list[tuple[int, str, int]]:
        found: list[tuple[int, str, int]] = []
        for name in self.inputs:
            cause = self.indicators[stream].cause(bound, name)
            if cause is None:
                continue
            up = self._up[level][name]
            up[stream] = max(up[stream], cause)
            lowest = min(up.values())
            if lowest > self._up_min[level][name]:
                self._up_min[level][name] = lowest
                found.append((level + 1, name, lowest))
        return found

    def trim(self, stream: str, *, leaf: bool = False) -> int:
        """The queue of ``stream`` may be cut before this number."""
        return self._down_min[0 if leaf else self.k][stream]
