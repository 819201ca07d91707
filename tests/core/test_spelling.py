"""Policies as words: what is spelled is read back, and a wrong word is answered with those that exist."""

from __future__ import annotations

import pytest

from understudy.core.policies import (
    ActiveStandby,
    Auto,
    Checkpoint,
    Hybrid,
    PassiveStandby,
    Policy,
    UpstreamBackup,
    none,
    parse,
    spell,
)
from understudy.core.policies.spelling import kinds

SPELT: list[tuple[Policy, str]] = [
    (none, "none"),
    (PassiveStandby(), "passive-standby"),
    (
        PassiveStandby("individual", every="200ms", standbys=2),
        "passive-standby checkpoint=individual every=200ms standbys=2",
    ),
    (PassiveStandby("synchronous"), "passive-standby checkpoint=synchronous"),
    (PassiveStandby(every=2), "passive-standby every=2"),
    (PassiveStandby(every=0.25), "passive-standby every=0.25"),
    (ActiveStandby(), "active-standby"),
    (ActiveStandby(copies=3, delivery="eager"), "active-standby copies=3 delivery=eager"),
    (UpstreamBackup(), "upstream-backup"),
    (UpstreamBackup(k=2), "upstream-backup k=2"),
    (Hybrid(every="1s", standbys=3), "hybrid every=1s standbys=3"),
    (Checkpoint(every="1s"), "checkpoint every=1s"),
    (Auto("5s", overhead=0.2), "auto recovery_time=5s overhead=0.2"),
]


@pytest.mark.parametrize(("policy", "text"), SPELT, ids=[text for _, text in SPELT])
def test_there_and_back(policy: Policy, text: str) -> None:
    assert spell(policy) == text
    assert parse(text) == policy
    assert type(parse(text)) is type(policy)


def test_every_policy_has_a_spelling() -> None:
    ours = ["none", "passive-standby", "active-standby", "upstream-backup", "hybrid", "checkpoint", "auto"]
    assert list(kinds())[:7] == ours, "those that others have added come after"
    assert {type(policy) for policy, _ in SPELT} == {kinds()[name] for name in ours}


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("passive-standby sweeping 500ms", PassiveStandby()),
        ("  passive-standby   200ms  individual ", PassiveStandby("individual", every="200ms")),
        ("active-standby eager copies=3", ActiveStandby(copies=3, delivery="eager")),
        ("hybrid 2s", Hybrid(every="2s")),
    ],
)
def test_a_value_that_can_only_mean_one_option_may_stand_alone(text: str, policy: Policy) -> None:
    assert parse(text) == policy


def test_options_as_arguments_come_on_top() -> None:
    assert parse("passive-standby", checkpoint="individual", standbys=2) == PassiveStandby("individual", standbys=2)
    assert parse("passive-standby standbys=3", standbys="2") == PassiveStandby(standbys=2)


def test_a_duration_is_spelt_without_spaces() -> None:
    assert spell(PassiveStandby(every="2 s")) == "passive-standby every=2s"


POLICIES = "policies are: none, passive-standby, active-standby, upstream-backup, hybrid"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", f"unknown policy ''; {POLICIES}"),
        ("actve-standby copies=2", f"unknown policy 'actve-standby'; {POLICIES}"),
        ("passive", f"unknown policy 'passive'; {POLICIES}"),
        ("active-standby often", "active-standby: unknown option 'often'; options are: copies, delivery"),
        ("active-standby 500ms", "active-standby: unknown option '500ms'; options are: copies, delivery"),
        ("active-standby k=2", "active-standby: unknown option 'k'; options are: copies, delivery"),
        ("passive-standby 500", "passive-standby: unknown option '500'; options are: checkpoint, every, standbys"),
        ("none k=1", "none: unknown option 'k'; it has no options"),
        ("active-standby eager lazy", "active-standby: delivery is given twice"),
        ("active-standby copies=2 copies=3", "active-standby: copies is given twice"),
        ("upstream-backup k=many", "upstream-backup: k='many' must be a whole number of at least 1"),
        ("upstream-backup k=0", "upstream-backup: k=0 must be a whole number of at least 1"),
        ("active-standby copies=1", "active-standby: copies=1: a standby needs at least 2; use us.none for a single"),
        ("hybrid checkpoint=never", "hybrid: checkpoint='never' is not known; use one of 'sweeping', 'individual',"),
        ("passive-standby every=soon", "passive-standby: every='soon' is not a duration; write a number with a unit"),
        ("passive-standby every=nan", "passive-standby: every=nan must be longer than nothing"),
    ],
)
def test_wrong_words_are_answered_with_those_that_exist(text: str, error: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value).startswith(error)
    assert "\n" not in str(caught.value)
