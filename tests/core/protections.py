"""Shared by the tests of policies: scripts of events, and effects written short."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, settings

from understudy.core.acks import FINAL
from understudy.core.policies.base import (
    Acked,
    AckUpstream,
    Capture,
    CaptureFailed,
    Committed,
    Drain,
    Effect,
    Event,
    Pasted,
    Paused,
    Placed,
    Protection,
    StandbysChanged,
    Tick,
    TrimStandby,
)

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines

Script = tuple[float, Event, list[Effect]]


def play(machine: Protection, *script: Script) -> None:
    """Feed each event at its time and compare the whole list of effects."""
    for step, (now, event, expected) in enumerate(script):
        assert machine.handle(event, now) == expected, f"step {step}: {event} at {now}"


def standbys(*names: str) -> StandbysChanged:
    return StandbysChanged(names)


def trimmed(epoch: int, stage: str = "s") -> Acked:
    return Acked(stage, FINAL, epoch)


def shown(effects: list[Effect]) -> str:
    """All of the effects of a machine with the one stage "s"."""
    words = []
    for effect in effects:
        assert effect.stage == "s"
        if isinstance(effect, Capture):
            words.append(f"{effect.standby}@{effect.epoch}{'+queue' if effect.queue else ''}")
        elif isinstance(effect, AckUpstream):
            level = "" if effect.level == FINAL else f" level {effect.level}"
            words.append(f"ack {effect.epoch}{level}{f' of {effect.input}' if effect.input else ''}")
        elif isinstance(effect, TrimStandby):
            words.append(f"trim {effect.standby}@{effect.epoch}")
        else:
            words.append(type(effect).__name__.lower())
    return " | ".join(words)


EVENTS: dict[str, tuple[float, Event]] = {
    "committed": (100.5, Committed("s", 10)),
    "trimmed": (100.5, trimmed(8)),
    "level 0": (100.5, Acked("s", 0, 8)),
    "level 1": (100.5, Acked("s", 1, 8)),
    "pasted b@5": (100.5, Pasted("s", "b", 5)),
    "pasted b@7": (100.5, Pasted("s", "b", 7)),
    "pasted c@6": (100.5, Pasted("s", "c", 6)),
    "pasted stranger": (100.5, Pasted("s", "z", 7)),
    "failed b": (100.5, CaptureFailed("s", "b", False)),
    "lost b": (100.5, CaptureFailed("s", "b", True)),
    "lost stranger": (100.5, CaptureFailed("s", "z", True)),
    "paused": (100.5, Paused("s")),
    "placed": (100.5, Placed("s", ("in",))),
    "standbys -": (100.5, standbys()),
    "standbys b": (100.5, standbys("b")),
    "standbys b c": (100.5, standbys("b", "c")),
    "standbys c": (100.5, standbys("c")),
    "tick": (100.5, Tick()),
    "late tick": (200, Tick()),
    "drain": (100.5, Drain()),
}
"""What can happen to the stage "s" at about 100 s. States are built before."""

Table = dict[str, tuple[Callable[[], Protection], dict[str, str]]]
"""State -> how to get there, and the effects of every event that has any. Absent: nothing happens."""


def check_pair(table: Table, state: str, event: str) -> None:
    build, row = table[state]
    assert set(row) <= set(EVENTS), "a row of the table names an event that there is not"
    now, what = EVENTS[event]
    assert shown(build().handle(what, now)) == row.get(event, "")


def check_twice(table: Table, state: str, event: str) -> None:
    """Facts that were told before change nothing the second time, apart from what a deadline brings."""
    now, what = EVENTS[event]
    machine = table[state][0]()
    machine.handle(what, now)
    assert machine.handle(what, now) == []


def at(machine: Protection, now: float, *events: Event) -> Protection:
    """The machine after these events."""
    for event in events:
        machine.handle(event, now)
    return machine
