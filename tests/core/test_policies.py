"""What a user picks from: traits that placement and hosts go by, words, and mistakes found when a policy is made."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from understudy.core.policies import (
    ActiveStandby,
    Hybrid,
    NoProtection,
    PassiveStandby,
    Policy,
    StageRole,
    UpstreamBackup,
    none,
)
from understudy.core.policies.active import Active
from understudy.core.policies.none import Unprotected
from understudy.core.policies.passive import Individual, Sweeping, Synchronous
from understudy.core.policies.upstream import Replayable

TRAITS = ("recovery", "backups", "tolerates", "standby_runs", "eager", "rises", "levels", "protected")
CHOICES: list[tuple[Policy, str, tuple[object, ...], type]] = [
    (none, "none", ("gap", 0, 0, False, False, False, 1, False), Unprotected),
    (
        PassiveStandby(),
        "passive standby, sweeping every 500ms",
        ("standby", 1, 1, False, False, False, 1, True),
        Sweeping,
    ),
    (
        PassiveStandby(checkpoint="individual", every=2, standbys=2),
        "passive standby, individual every 2 on 2 hosts",
        ("standby", 2, 2, False, False, False, 1, True),
        Individual,
    ),
    (
        PassiveStandby(checkpoint="synchronous", every="1s"),
        "passive standby, synchronous every 1s",
        ("standby", 1, 1, False, False, False, 1, True),
        Synchronous,
    ),
    (Hybrid(every="1s"), "hybrid, sweeping every 1s", ("standby", 1, 1, False, False, True, 1, True), Sweeping),
    (
        Hybrid(checkpoint="synchronous", standbys=3),
        "hybrid, synchronous every 500ms on 3 hosts",
        ("standby", 3, 3, False, False, True, 1, True),
        Synchronous,
    ),
    (ActiveStandby(), "active standby", ("standby", 1, 1, True, False, False, 1, True), Active),
    (
        ActiveStandby(copies=3, delivery="eager"),
        "active standby, eager, 3 copies",
        ("standby", 2, 2, True, True, False, 1, True),
        Active,
    ),
    (UpstreamBackup(), "upstream backup", ("replay", 0, 1, False, False, False, 1, True), Replayable),
    (UpstreamBackup(k=2), "upstream backup, K=2", ("replay", 0, 2, False, False, False, 2, True), Replayable),
    (UpstreamBackup(k=3), "upstream backup, K=3", ("replay", 0, 3, False, False, False, 3, True), Replayable),
]
IDS = [words for _, words, _, _ in CHOICES]


@pytest.mark.parametrize(("policy", "words", "traits", "machine"), CHOICES, ids=IDS)
def test_traits(policy: Policy, words: str, traits: tuple[object, ...], machine: type) -> None:
    assert {name: getattr(policy, name) for name in TRAITS} == dict(zip(TRAITS, traits, strict=True))
    assert policy.describe() == words
    assert type(policy.protect([StageRole("s", 3)])) is machine


@pytest.mark.parametrize("policy", [p for p, *_ in CHOICES], ids=IDS)
def test_a_policy_is_plain_data(policy: Policy) -> None:
    assert policy == replace(policy) and hash(policy) == hash(replace(policy))
    with pytest.raises(FrozenInstanceError):
        policy.k = 9  # type: ignore[attr-defined]


def test_policies_of_different_kinds_are_different() -> None:
    """A unit that mixes them is found by comparing."""
    assert len({p for p, *_ in CHOICES}) == len(CHOICES)
    assert PassiveStandby() != Hybrid(), "hybrid has the same settings, but is another kind"
    assert none == NoProtection()


@pytest.mark.parametrize("policy", [p for p, *_ in CHOICES], ids=IDS)
def test_a_new_protection_has_nothing_to_wait_for(policy: Policy) -> None:
    machine = policy.protect([StageRole("s", 3), StageRole("t", -1, ("s",))])
    assert machine.safe()
    assert machine.next_deadline() is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [(PassiveStandby, "standbys"), (Hybrid, "standbys"), (ActiveStandby, "copies"), (UpstreamBackup, "k")],
)
@pytest.mark.parametrize("number", [0, -1, 1.0, "1", None, True])
def test_how_many_is_a_whole_number_of_at_least_one(kind: type[Policy], name: str, number: object) -> None:
    with pytest.raises(ValueError, match=f"^{name}={number!r} must be a whole number of at least 1$"):
        kind(**{name: number})


def test_a_single_copy_is_no_standby() -> None:
    with pytest.raises(ValueError, match=r"^copies=1: a standby needs at least 2; use us\.none for a single one$"):
        ActiveStandby(copies=1)


def test_an_unknown_delivery_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^delivery='late' is not known; use one of 'lazy', 'eager'$"):
        ActiveStandby(delivery="late")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [PassiveStandby, Hybrid])
@pytest.mark.parametrize("timing", ["never", "Sweeping", "", None])
def test_an_unknown_timing_names_those_that_are_known(kind: type[PassiveStandby], timing: str) -> None:
    known = "'sweeping', 'individual', 'synchronous'"
    with pytest.raises(ValueError, match=f"^checkpoint={timing!r} is not known; use one of {known}$"):
        kind(checkpoint=timing)  # type: ignore[arg-type]


@pytest.mark.parametrize("every", ["soon", 0, "-1s"])
def test_a_wrong_duration_is_found_when_the_policy_is_made(every: object) -> None:
    with pytest.raises(ValueError, match=r"^every="):
        PassiveStandby(every=every)  # type: ignore[arg-type]


def test_the_base_protects_nothing() -> None:
    with pytest.raises(NotImplementedError):
        Policy().protect([])
