"""A plan: who runs what, who stands by, and under which policy. The whole decision of ``core.failover``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from understudy.core.numbers import FIRST_GENERATION, Epoch, Generation
from understudy.core.policies import Policy, parse


class Standbys:
    """Who stands by: shared by a unit's plan and its turn."""

    standbys: tuple[str, ...]
    ready: tuple[str, ...]
    since: tuple[int, ...]

    def held_by(self, standbys: tuple[str, ...], since: tuple[int, ...], ready: tuple[str, ...]) -> Self:
        raise NotImplementedError

    def only(self, hosts: Collection[str]) -> Self:
        """This with no standbys but those among ``hosts``."""
        kept = [(s, since) for s, since in zip(self.standbys, self.since, strict=True) if s in hosts]
        ready = tuple(s for s in self.ready if s in hosts)
        return self.held_by(tuple(s for s, _ in kept), tuple(since for _, since in kept), ready)

    def with_standby(self, host: str, since: int) -> Self:
        return self.held_by((*self.standbys, host), (*self.since, since), self.ready)

    def with_ready(self, host: str) -> Self:
        ready = tuple(s for s in self.standbys if s in self.ready or s == host)
        return self.held_by(self.standbys, self.since, ready)

    def has(self, host: str, since: int) -> bool:
        return (host, since) in zip(self.standbys, self.since, strict=True)

    def heir(self, alive: Collection[str]) -> str | None:
        """Who can take over."""
        return next((s for s in self.standbys if s in self.ready and s in alive), None)


@dataclass(frozen=True)
class Turn(Standbys):
    """A unit changes its policy. Until those who will protect it then are ready, what protects it now goes on, and its
    primary acknowledges only what both allow: whoever takes over meanwhile finds what it needs."""

    policy: str
    """As ``policies.spell`` writes it."""
    serial: int
    """Of the plan that began it, or began it again after a takeover."""
    standbys: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    since: tuple[int, ...] = ()

    def held_by(self, standbys: tuple[str, ...], since: tuple[int, ...], ready: tuple[str, ...]) -> Turn:
        return replace(self, standbys=standbys, since=since, ready=ready)


@dataclass(frozen=True)
class UnitPlan(Standbys):
    """Where one unit runs. While a unit waits for a host to return, it goes on naming those that are gone."""

    generation: Generation = FIRST_GENERATION
    primary: str | None = None
    standbys: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    """The standbys that hold a whole checkpoint, or need none because nothing was acknowledged upstream yet."""
    start: str = "fresh"
    """What the primary of this generation starts from: ``fresh`` (nothing), ``held`` (the checkpoint that it holds
    as standby or from an earlier run; fresh where none was ever taken), ``saved`` (the same, at the oldest epochs that
    its producers have kept: what was acknowledged since is lost), ``newest`` (empty state at the newest input epoch:
    policy none) or ``replay`` (empty state at the oldest epochs that its producers have kept)."""
    since: tuple[int, ...] = ()
    """For each standby the serial of the plan that made it one. A host that was replaced by a new process keeps its
    name but begins anew, which this tells apart."""
    rising: bool = False
    """The primary is suspected: a ready standby runs meanwhile, without sending, so as to have caught up."""
    policy: str | None = None
    """What protects it, where that was changed while the job ran; else what the job says."""
    turn: Turn | None = None
    threw: Epoch | None = None
    """The epoch at which its code threw, and was tried once more. In the plan, so that a coordinator that is started
    again knows of it."""

    def held_by(self, standbys: tuple[str, ...], since: tuple[int, ...], ready: tuple[str, ...]) -> UnitPlan:
        return replace(self, standbys=standbys, since=since, ready=ready)

    def protected_by(self, defined: Policy) -> Policy:
        """What protects it, where the job says ``defined``."""
        return defined if self.policy is None else parse(self.policy)

    @property
    def standby(self) -> str | None:
        """The first standby: the one that takes over."""
        return self.standbys[0] if self.standbys else None

    @property
    def all_standbys(self) -> tuple[str, ...]:
        """Also those of the policy to come."""
        return (*self.standbys, *(self.turn.standbys if self.turn else ()))

    def only(self, hosts: Collection[str]) -> UnitPlan:
        return replace(super().only(hosts), turn=self.turn and self.turn.only(hosts))

    def without(self, host: str) -> UnitPlan:
        """This plan with one standby less."""
        return self.only([s for s in self.all_standbys if s != host])

    def turned(self) -> UnitPlan:
        """This plan when its turn is done."""
        assert self.turn is not None
        turn = self.turn
        return replace(self.held_by(turn.standbys, turn.since, turn.ready), policy=turn.policy, rising=False, turn=None)


@dataclass(frozen=True)
class Plan:
    serial: int = 0
    units: Mapping[str, UnitPlan] = field(default_factory=dict)
