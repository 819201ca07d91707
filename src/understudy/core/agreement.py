"""What a host makes of a plan: who it is now, and what it must do to be that. Real and simulated hosts carry it out.

A host is sent whole plans, and compares each with what it is already. Of every unit it is primary, standby or nothing;
a real host, whose stages can fail one by one, asks for each of a unit's stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from understudy.core.numbers import NO_GENERATION, Epoch, Generation
from understudy.core.plans import UnitPlan
from understudy.core.policies import Policy, parse


class Part(Enum):
    """What a host is of a unit."""

    NOTHING = "nothing"
    STANDBY = "standby"
    PRIMARY = "primary"


@dataclass(frozen=True)
class Standing:
    """What a host is of a unit now."""

    part: Part = Part.NOTHING
    generation: Generation = NO_GENERATION
    since: int = -1
    """As standby: the serial of the plan that made it one."""
    over: bool = False
    """As primary: it has found itself fenced already, or has failed."""


# -- orders -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TellFenced:
    """Tell the user that a newer generation has taken the place of what runs here."""

    generation: Generation


@dataclass(frozen=True)
class Begin:
    """Drop what this host is of the unit, and lead it from what ``start`` says (``UnitPlan.start``)."""

    generation: Generation
    start: str


@dataclass(frozen=True)
class Promote:
    """From standby to primary: with what runs already, else with what is on disk. ``saved``: from a state that may be
    older than what its producers still have for it (``core.beginning``)."""

    generation: Generation
    saved: bool = False


@dataclass(frozen=True)
class StandBy:
    """Drop what this host is of the unit and what its disk has of it; become a standby that holds nothing yet."""

    generation: Generation
    since: int
    policy: Policy


@dataclass(frozen=True)
class Follow:
    """As standby: another one has become primary."""

    generation: Generation


@dataclass(frozen=True)
class Rise:
    """As standby: the primary is suspected. Run from the last checkpoint, without sending."""


@dataclass(frozen=True)
class StandDown:
    """As standby: the primary is well. Hold checkpoints again, if it had risen."""


@dataclass(frozen=True)
class Forget:
    """Drop what this host is of the unit, and what its disk has of it."""


Order = TellFenced | Begin | Promote | StandBy | Follow | Rise | StandDown | Forget

MOVES: Mapping[tuple[Part, Part], frozenset[type[Order]]] = {
    (Part.NOTHING, Part.NOTHING): frozenset(),
    (Part.NOTHING, Part.STANDBY): frozenset({StandBy, StandDown, Rise}),
    (Part.NOTHING, Part.PRIMARY): frozenset({Begin}),
    (Part.STANDBY, Part.NOTHING): frozenset({Forget}),
    (Part.STANDBY, Part.STANDBY): frozenset({StandBy, Follow, Rise, StandDown}),
    (Part.STANDBY, Part.PRIMARY): frozenset({Promote, Begin}),
    (Part.PRIMARY, Part.NOTHING): frozenset({TellFenced, Forget}),
    (Part.PRIMARY, Part.STANDBY): frozenset({TellFenced, StandBy, StandDown, Rise}),
    (Part.PRIMARY, Part.PRIMARY): frozenset({TellFenced, Begin}),
}
"""From what a host is, to what a plan wants it to be -> the orders that this can take."""


class IllegalMove(Exception):
    """A plan asks for what no plan can ask for."""


def wanted_of(host: str, wanted: UnitPlan, defined: Policy) -> tuple[Part, int, Policy]:
    """What a plan wants a host to be of a unit; as standby, since when, and under which policy. ``defined``: what the
    job says."""
    policy = wanted.protected_by(defined)
    if wanted.primary == host:
        return Part.PRIMARY, -1, policy
    turn = wanted.turn
    for some, under in ((wanted, policy), *([(turn, parse(turn.policy))] if turn is not None else [])):
        if host in some.standbys:
            return Part.STANDBY, some.since[some.standbys.index(host)], under
    return Part.NOTHING, -1, policy


def orders(host: str, mine: Standing, wanted: UnitPlan, defined: Policy) -> list[Order]:
    """What a host must do to agree with a plan. Raises IllegalMove."""
    part, since, policy = wanted_of(host, wanted, defined)
    if mine.generation > wanted.generation:
        story = f"it is {mine.part.value} of generation {mine.generation}"
        raise IllegalMove(f"{host} is to be {part.value} of generation {wanted.generation}, but {story} already")
    found: list[Order] = []
    if part is Part.PRIMARY:
        found += _lead(mine, wanted)
    elif part is Part.STANDBY:
        found += _stand_by(host, mine, wanted, since, policy)
    elif mine.part is not Part.NOTHING:
        found.append(Forget())
    if found and mine.part is Part.PRIMARY and mine.generation < wanted.generation and not mine.over:
        found.insert(0, TellFenced(mine.generation))
    strange = [order for order in found if type(order) not in MOVES[mine.part, part]]
    if strange:
        raise IllegalMove(f"{host}, which is {mine.part.value}, is to be {part.value}: {strange} cannot do that")
    return found


def _lead(mine: Standing, wanted: UnitPlan) -> list[Order]:
    if mine.part is Part.PRIMARY and mine.generation == wanted.generation:
        return []
    if mine.part is Part.STANDBY and wanted.start in ("held", "saved"):
        return [Promote(wanted.generation, saved=wanted.start == "saved")]
    # Its own next generation; or it was being made a standby, and does not count as one yet.
    return [Begin(wanted.generation, wanted.start)]


def _stand_by(host: str, mine: Standing, wanted: UnitPlan, since: int, policy: Policy) -> list[Order]:
    found: list[Order] = []
    if mine.part is Part.STANDBY and mine.since == since:
        if mine.generation < wanted.generation:
            found.append(Follow(wanted.generation))
    elif wanted.primary is None:
        return []  # nobody has what it could hold, and what it has may be all that is left
    else:
        found.append(StandBy(wanted.generation, since, policy))
    rises = wanted.rising and wanted.ready[:1] == (host,)
    return [*found, Rise() if rises else StandDown()]


def copy_serves(at: Epoch, held: Epoch | None) -> bool:
    """A copy that rose, and has processed epoch ``at``, can be promoted: its input is still there. Producers keep what
    the version ``held`` beside it lacks, which got newer while the primary lived on."""
    return held is None or at >= held
