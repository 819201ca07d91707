"""What keeps a unit safe that is led from a host, as real hosts and simulated ones carry it out.

A led unit has one keeper, and a second one while it changes its policy: each with the machine of its policy, its own
standbys, and its own word on what may be acknowledged upstream. Only what all of them allow is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from understudy.core.acks import FINAL
from understudy.core.failover import StandbyReady, StandbyUnusable, Turned
from understudy.core.numbers import NO_EPOCH, Epoch, Generation
from understudy.core.plans import Standbys, UnitPlan
from understudy.core.policies import Policy, base, parse
from understudy.core.topology import Topology

Levels = dict[int, Epoch]
"""Level -> the newest epoch that is acknowledged at it."""

OWN = -1
"""Since when a host's own disk counts as a standby of what it leads: always."""


@dataclass(frozen=True)
class Charge:
    """What a plan asks of one keeper."""

    policy: Policy
    standbys: Mapping[str, tuple[str, int]]
    """Standby, as ``standby_key`` names it -> its host, and since when it is one."""
    turn: int | None = None
    """The unit is changing to this policy since the plan of this serial; None: the policy protects it already."""


def charges(wanted: UnitPlan, defined: Policy, host: str) -> list[Charge]:
    """One for each policy that counts; the one that protects the unit now is the first. ``defined``: what the job says.

    Until the coordinator knows of a standby's version, the disk of the primary's own ``host`` is what to go back to,
    wherever state is kept on disks at all."""
    found = [_charge(wanted.protected_by(defined), wanted, host, own=not wanted.ready)]
    if wanted.turn is not None:
        turn = wanted.turn
        found.append(_charge(parse(turn.policy), turn, host, own=not turn.standbys, turn=turn.serial))
    return found


def _charge(policy: Policy, some: Standbys, host: str, *, own: bool, turn: int | None = None) -> Charge:
    return Charge(policy, standing(some, host if own and policy.keeps_on_disk else None), turn)


def standing(some: Standbys, own: str | None = None) -> dict[str, tuple[str, int]]:
    """Standby, as ``standby_key`` names it -> its host, and since when it is one; with ``own``, also that host's own
    disk."""
    pairs = [*zip(some.standbys, some.since, strict=True), *([(own, OWN)] if own is not None else [])]
    return {base.standby_key(host, since): (host, since) for host, since in pairs}


def counted(some: Standbys) -> list[str]:
    """Those standbys that the plan counts on, as ``standby_key`` names them."""
    return [key for key, (host, _) in standing(some).items() if host in some.ready]


class Serves(Protocol):
    def serves(self, policy: Policy) -> bool: ...


K = TypeVar("K", bound=Serves)


def going_on(known: Sequence[K], wanted: Iterable[Charge]) -> list[K | None]:
    """For each charge the keeper that goes on with it; None: a new one begins where the unit's stages are. Those that
    are not named end."""
    return [next((k for k in reversed(known) if k.serves(charge.policy)), None) for charge in wanted]


def allowed(said: Sequence[Levels]) -> Levels:
    """What may be acknowledged when every keeper has said what it allows: of the levels that all of them speak, the
    oldest epoch."""
    if len(said) == 1:
        return said[0]
    levels = set(said[0]).intersection(*said[1:]) if said else set()
    return {level: min(one[level] for one in said) for level in sorted(levels)}


@dataclass(slots=True)
class Report:
    """Tell the coordinator, now or as soon as there is one."""

    event: StandbyReady | StandbyUnusable | Turned


class Holdings:
    """What the standbys of a unit hold of it, as the host that leads it in this generation knows. A standby is ready
    when it holds all of the unit's stages."""

    def __init__(self, host: str, unit: str, generation: Generation, stages: Iterable[str]) -> None:
        self.host, self.unit, self.generation = host, unit, generation
        self._stages = frozenset(stages)
        self._at: Mapping[str, tuple[str, int]] = {}
        self._held: dict[str, set[str]] = {}

    def aim(self, standbys: Mapping[str, tuple[str, int]]) -> None:
        """These are the standbys now, as ``standing`` names them. One that comes back comes back with nothing."""
        self._at = standbys
        self._held = {key: self._held.get(key, set()) for key in standbys}

    def held(self, standby: str, stage: str) -> list[Report]:
        """A standby holds the stage."""
        mine = self._held.get(standby)
        if mine is None or stage in mine:
            return []
        mine.add(stage)
        host, since = self._at[standby]
        ready = mine == self._stages and host != self.host
        return [Report(StandbyReady(self.unit, self.generation, host, since))] if ready else []

    def unusable(self, standby: str, cause: str) -> list[Report]:
        """A standby cannot hold what it is brought, and will not be able to."""
        host, since = self._at.get(standby, (self.host, OWN))
        return [] if host == self.host else [Report(StandbyUnusable(self.unit, self.generation, host, since, cause))]


Effect = base.Capture | base.AckUpstream | base.Pause | base.Resume | base.Late | Report
"""What is to be carried out. What running standbys may trim goes along with answers (``Keeper.trimmed``)."""


class Keeper:
    """One policy's machine for a led unit, what it lets be acknowledged, and what the coordinator is told of it."""

    def __init__(self, holdings: Holdings, policy: Policy, stages: Iterable[base.StageRole]) -> None:
        """The machine begins where the stages are. ``holdings``: the whole unit's; these stages may be a part of it."""
        roles = list(stages)
        self.policy = policy
        self.machine = policy.protect(roles)
        self.acks: dict[str, dict[str, Levels]] = {role.name: {i: {} for i in role.inputs} for role in roles}
        """Stage -> input -> what may be acknowledged as far as this policy goes. The inner ones are made anew, never
        changed: messages on their way carry what was said when they left."""
        self.standbys: Mapping[str, tuple[str, int]] = {}
        """Standby, as ``standby_key`` names it -> its host, and since when it is one."""
        self.levels = policy.levels if policy.recovery == "replay" else 0
        """Of acknowledgements by consumers that the machine wants to hear of."""
        self._trims: dict[tuple[str, str], Epoch] = {}
        """(stage, running standby) -> what all consumers are done with, as it is to be told."""
        self._begun = {role.name: role.start for role in roles}
        self._holdings = holdings
        self._agreed = False
        self._serial: int | None = None
        self._turn: int | None = None
        """The turn that is done when the producers keep enough; others are when standbys are ready. None once that was
        reported."""

    def serves(self, policy: Policy) -> bool:
        """This keeper can go on under ``policy``: it is the same, or differs in who asks whom only."""
        return self.policy == policy or (self.policy.standby_runs and policy.standby_runs)

    def agree(
        self, charge: Charge, topology: Topology, primaries: Mapping[str, str | None], now: float
    ) -> list[Effect]:
        """A new plan has come. A turn may have ended and begun again without this host having seen the plan in
        between."""
        self.policy = charge.policy
        effects: list[Effect] = []
        if self.levels:
            if charge.turn != self._serial:
                self._serial = self._turn = charge.turn
                effects += self._perhaps_turned()
            for stage in self.acks:  # where everybody is may have changed, and so who shares whose fate
                inputs = topology.stages[stage].inputs
                near = tuple(i for i in inputs if topology.shares_fate(stage, i, primaries, self.levels))
                effects += self.handle(base.Placed(stage, near), now)
        if charge.standbys != self.standbys or not self._agreed:
            self._agreed, self.standbys = True, charge.standbys
            effects += self.handle(base.StandbysChanged(tuple(charge.standbys)), now)
        return effects

    def handle(self, event: base.Event, now: float) -> list[Effect]:
        """A standby that is no longer one, and answers late, is not heard."""
        if isinstance(event, (base.Pasted, base.CaptureFailed)) and event.standby not in self.standbys:
            return []
        effects: list[Effect] = []
        for effect in self.machine.handle(event, now):
            if isinstance(effect, base.TrimStandby):
                self._trims[effect.stage, effect.standby] = effect.epoch
                continue
            effects.append(effect)
            if isinstance(effect, base.AckUpstream) and self._note(effect) and self._turn is not None:
                effects += self._perhaps_turned()
        if isinstance(event, base.Pasted):
            effects += self._holdings.held(event.standby, event.stage)
        return effects

    def trimmed(self, stage: str, standby: str) -> Epoch | None:
        """What a running standby is answered when it says how far its copy of the stage is: no message of its own is
        spent on it, and a standby that stands still needs no trimming."""
        return self._trims.get((stage, standby))

    def unusable(self, stage: str, standby: str, cause: str, now: float) -> list[Effect]:
        """A standby cannot store the stage's checkpoint, and will not be able to."""
        if standby not in self.standbys:
            return []
        told = self._holdings.unusable(standby, cause)
        # Nobody names another disk in the place of the own one: it may have room again.
        own = self.standbys[standby][0] == self._holdings.host
        return [*told, *self.handle(base.CaptureFailed(stage, standby, lost_standby=not own), now)]

    def _note(self, effect: base.AckUpstream) -> bool:
        """Returns whether that is news."""
        inputs, news = self.acks[effect.stage], False
        for stream in inputs if effect.input is None else (effect.input,):
            known = inputs[stream]
            if effect.epoch > known.get(effect.level, NO_EPOCH):
                inputs[stream] = {**known, effect.level: effect.epoch}
                news = True
        return news

    def _perhaps_turned(self) -> list[Effect]:
        if self._turn is None or not self._producers_keep_enough():
            return []
        turn, self._turn = self._turn, None
        return [Report(Turned(self._holdings.unit, self._holdings.generation, turn))]

    def _producers_keep_enough(self) -> bool:
        """Not even the first epoch that this protection saw is needed any more. What the state was made of before that,
        and may have been trimmed under the policy before, is not needed then either."""
        return all(
            acks.get(FINAL, NO_EPOCH) > self._begun[stage]
            for stage, inputs in self.acks.items()
            for acks in inputs.values()
        )

    def next_deadline(self) -> float | None:
        return self.machine.next_deadline()

    def safe(self) -> bool:
        return self.machine.safe()

    def wants(self, stage: str, now: float) -> base.Want:
        return self.machine.wants(stage, now)
