"""What a user says of a window: so many rows, or so many seconds. Checked when it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from understudy.core.ring import default_group
from understudy.durations import seconds as in_seconds

AUTO: Literal["auto"] = "auto"


WINDOWS_MAX = 10_000
"""That a row may be in at once. It is added up in each of them: so many windows turn 1,000 rows a second into ten
million, which is about what a processor adds up."""


@dataclass(frozen=True)
class Rows:
    """Made by ``rows``."""

    count: int
    group: int | Literal["auto"]
    per: tuple[str, ...] | None
    chosen: bool = False
    """Whether the user has said the group, or it is what a window of this size gets."""

    @property
    def group_of_key(self) -> int | Literal["auto"]:
        """Where it is a window of each key though nobody said so with ``per``, as an aggregate's is: what suits one
        stream of so many rows does not suit each key."""
        return self.group if self.per is not None or self.chosen else AUTO


@dataclass(frozen=True)
class Seconds:
    """Made by ``seconds``."""

    length_ms: int
    slide_ms: int
    of: str | None
    """None: the time at which an epoch was cut."""


def rows(count: int, *, group: int | str | None = None, per: str | Sequence[str] | None = None) -> Rows:
    """The newest ``count`` rows of a stream, or with ``per`` of each key. 0 keeps nothing.

    ``group``: how many rows are written together; a checkpoint writes every group with a new row, whole. A 64th of the
    window if not given. ``"auto"``, with ``per``: for each key as many as it gets between two checkpoints.
    """
    _check_whole("rows", "count", count)
    if count < 0:
        raise ValueError(f"rows(count={count}): a window cannot hold less than nothing; 0 keeps no row")
    names = None if per is None else columns("rows", "per", per)
    return Rows(count, _checked_group(count, group, names), names, chosen=group is not None)


def _checked_group(count: int, group: int | str | None, per: tuple[str, ...] | None) -> int | Literal["auto"]:
    if group == AUTO:
        if per is None:
            raise ValueError("rows(group='auto') needs a key, as in per='symbol': it is the group size of each key")
        return AUTO
    if group is None:
        return AUTO if per is not None else default_group(count)
    if isinstance(group, str):
        raise ValueError(f"rows(group={group!r}) must be a number of rows, or 'auto'")
    _check_whole("rows", "group", group)
    if group < 1:
        raise ValueError(f"rows(group={group}) must be at least 1 row")
    if count == 0:
        raise ValueError(f"rows(0, group={group}): a window that keeps no row has nothing to group; leave it out")
    if group > count:
        raise ValueError(f"rows(group={group}) is larger than the window; choose 1 to {count}, or leave it out")
    return group


def seconds(length: float | str, *, slide: float | str | None = None, of: str | None = None) -> Seconds:
    """The rows of ``length`` seconds, and a result every ``slide`` seconds (as long as the window if not given).

    Time is what the column ``of`` says: a timestamp, or int64 milliseconds. Without it, it is the time at which the
    source cut a row's epoch, and windows close while nothing comes as well. That time is fixed then, and kept: it is
    never the clock of whoever computes, so that a replay finds the same.
    """
    length_ms = _ms("length", length)
    slide_ms = length_ms if slide is None else _ms("slide", slide)
    if slide_ms > length_ms:
        raise ValueError(f"seconds(slide={slide!r}) is longer than the window ({length!r}): some rows would be in none")
    if -(-length_ms // slide_ms) > WINDOWS_MAX:
        raise ValueError(
            f"seconds({length!r}, slide={slide!r}): every row would be in {-(-length_ms // slide_ms):,} windows, and "
            f"be added up in each; choose a slide of at least {-(-length_ms // WINDOWS_MAX)}ms"
        )
    if of is not None and (not isinstance(of, str) or not of):
        raise ValueError(f"seconds(of={of!r}) must be the name of a column with times")
    return Seconds(length_ms, slide_ms, of)


def _ms(parameter: str, value: float | str) -> int:
    exact = in_seconds(value, what=f"seconds({parameter})") * 1000
    if round(exact) < 1 or abs(exact - round(exact)) > 1e-6:
        raise ValueError(f"seconds({parameter}={value!r}) must be whole milliseconds, at least one")
    return round(exact)


def _check_whole(function: str, parameter: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{function}({parameter}={value!r}) must be a whole number of rows")


def columns(function: str, parameter: str, value: str | Sequence[str]) -> tuple[str, ...]:
    """Names of columns, one or several. Raises ValueError."""
    one = isinstance(value, str) or not isinstance(value, Sequence)  # a set has another order on every host
    names: tuple[Any, ...] = (value,) if one else tuple(value)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{function}({parameter}={value!r}) must name a column, or several")
    if len(set(names)) != len(names):
        raise ValueError(f"{function}({parameter}={value!r}) names a column twice")
    return names
