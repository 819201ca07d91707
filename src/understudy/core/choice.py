"""The cheapest policy that meets a goal, and why it is the one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from understudy.core.costs import Estimate, estimate, reach_s
from understudy.core.operators import OperatorClass, duration
from understudy.core.policies import ActiveStandby, Checkpoint, PassiveStandby, Policy, UpstreamBackup, none
from understudy.core.policies.auto import Auto
from understudy.core.profile import Profile

EVERY = ("500ms", "1s", "2s", "5s", "10s")
"""Intervals between checkpoints or acknowledgements to choose from: below the first they cost more than the epoch that
they save; above the last, what they cost is nothing already."""


class NoPolicy(ValueError):
    """No policy meets the goal; the message names the nearest that would."""


@dataclass(frozen=True)
class Choice:
    policy: Policy
    estimate: Estimate
    why: tuple[str, ...]
    """One line for every policy that was looked at, the chosen one first."""


@dataclass(frozen=True)
class Candidate:
    """A policy, and what to expect of it."""

    policy: Policy
    estimate: Estimate

    def tells(self) -> str:
        e = self.estimate
        times = f"about {_time(e.silence_s)}, at worst {_time(e.worst_s)}"
        return f"{self.policy.describe()}: back after {times}; {e.overhead:.1%} overhead"

    def meets(self, goal: Auto) -> bool:
        return self.fast(goal) and self.cheap(goal)

    def fast(self, goal: Auto) -> bool:
        return self.estimate.worst_s <= goal.recovery_s

    def cheap(self, goal: Auto) -> bool:
        return goal.overhead is None or self.estimate.overhead <= goal.overhead


def choose(
    goal: Auto,
    profile: Profile,
    operators: Sequence[OperatorClass],
    fits: Callable[[Policy], bool] = lambda policy: True,
) -> Choice:
    """The policy for a unit of stages of these classes. ``fits``: it may be under it at all. Raises NoPolicy."""
    known = [candidate for candidate in candidates(goal, profile, operators) if fits(candidate.policy)]
    fitting = [candidate for candidate in known if candidate.meets(goal)]
    if not fitting:
        raise NoPolicy(_nearest(goal, known))
    chosen = min(fitting, key=lambda candidate: (candidate.estimate.overhead, candidate.estimate.worst_s))
    return Choice(chosen.policy, chosen.estimate, tuple(_why(goal, chosen, known, _refusal(operators))))


def candidates(goal: Auto, profile: Profile, operators: Sequence[OperatorClass]) -> list[Candidate]:
    """What there is to choose from: the policies that such a unit can be under without losing more than is allowed."""
    policies: list[Policy] = [none, *(Checkpoint(every=every) for every in EVERY)] if goal.loss == "some" else []
    if not _refusal(operators):
        policies += [UpstreamBackup(), *(UpstreamBackup(ack_every=every) for every in EVERY)]
    policies += [PassiveStandby(every=every) for every in EVERY] + [ActiveStandby()]
    if profile.heard_every_s is not None:
        policies.append(ActiveStandby(delivery="eager"))
    reach = reach_s(list(operators), profile.rows_per_s)
    return [Candidate(policy, estimate(policy, profile, reach_s=reach)) for policy in policies]


def _refusal(operators: Sequence[OperatorClass]) -> str:
    """Why a unit cannot be rebuilt by replay; empty when it can."""
    return next((found.refusal for found in operators if found.refusal), "")


def _why(goal: Auto, chosen: Candidate, candidates: list[Candidate], refusal: str) -> list[str]:
    lines = [f"{chosen.tells()}: the cheapest that meets the goal"]
    for candidate in best_of_each_kind(goal, [c for c in candidates if _kind(c) != _kind(chosen)]):
        if not candidate.fast(goal):
            verdict = f"later than {goal.recovery_time}"
        elif not candidate.cheap(goal):
            verdict = f"more than {goal.overhead:.0%}"
        else:
            verdict = "costs more"
        lines.append(f"{candidate.tells()}: {verdict}")
    if goal.loss == "none":
        lines.append("none: would lose rows")
    if refusal:
        lines.append(f"upstream backup: cannot rebuild it by replay: {refusal}")
    return lines


def best_of_each_kind(goal: Auto, candidates: list[Candidate]) -> list[Candidate]:
    """Of several intervals, only the one that comes nearest to the goal is worth a line: the cheapest of those that are
    fast enough, else the fastest."""

    def distance(candidate: Candidate) -> tuple[bool, float]:
        fast = candidate.fast(goal)
        return not fast, candidate.estimate.overhead if fast else candidate.estimate.worst_s

    kinds = dict.fromkeys(_kind(candidate) for candidate in candidates)
    return [min((c for c in candidates if _kind(c) == kind), key=distance) for kind in kinds]


def _kind(candidate: Candidate) -> tuple[str, bool]:
    return candidate.policy.kind, candidate.policy.eager


def _nearest(goal: Auto, candidates: list[Candidate]) -> str:
    """Give up as little as possible of one wish, or of the other."""
    fast = min((c for c in candidates if c.fast(goal)), key=lambda c: c.estimate.overhead, default=None)
    cheap = min((c for c in candidates if c.cheap(goal)), key=lambda c: c.estimate.worst_s, default=None)
    remedies = []
    if fast is not None:
        remedies.append(f"overhead={_up(fast.estimate.overhead)} would allow {fast.tells()}")
    if cheap is not None:
        remedies.append(f"recovery_time={_time_up(cheap.estimate.worst_s)!r} would allow {cheap.tells()}")
    if not remedies:
        fastest = min(candidates, key=lambda c: c.estimate.worst_s)
        wishes = f"recovery_time={_time_up(fastest.estimate.worst_s)!r}, overhead={_up(fastest.estimate.overhead)}"
        remedies.append(f"{wishes} would allow {fastest.tells()}")
    return f"no policy meets it ({goal.describe()}); " + "; ".join(remedies)


def _time(s: float) -> str:
    """To two digits: an estimate is no better."""
    return duration(float(f"{s:.2g}"))


def _time_up(s: float) -> str:
    """A duration as an argument, rounded up so that it is enough."""
    return f"{int(s * 1000 / 50) * 50 + 50}ms" if s < 1 else f"{int(s * 10) / 10 + 0.1:.1f}s"


def _up(ratio: float) -> float:
    return round(int(ratio * 100) / 100 + 0.01, 2)
