"""Policies as words, for the command line and roles files: ``passive-standby``, ``active-standby copies=3``.

A spelling is a name and the options that differ from their defaults, as ``option=value``. A value that can only belong
to one option may stand alone: ``passive-standby individual 200ms``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from understudy.core.policies.active import ActiveStandby
from understudy.core.policies.auto import Auto
from understudy.core.policies.base import Policy
from understudy.core.policies.checkpoint import Checkpoint
from understudy.core.policies.hybrid import Hybrid
from understudy.core.policies.none import NoProtection
from understudy.core.policies.passive import PassiveStandby
from understudy.core.policies.upstream import UpstreamBackup

_OURS: tuple[type[Policy], ...] = (
    NoProtection, PassiveStandby, ActiveStandby, UpstreamBackup, Hybrid, Checkpoint, Auto,
)  # fmt: skip


def kinds() -> dict[str, type[Policy]]:
    """Every policy that was imported, by its name: ours first."""
    found: dict[str, type[Policy]] = {}
    for kind in (*_OURS, *_below(Policy)):
        found.setdefault(kind.kind.replace(" ", "-"), kind)  # one that has no name of its own is no other policy
    return found


def _below(kind: type[Policy]) -> Iterator[type[Policy]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def parse(text: str, **options: Any) -> Policy:
    """The policy that ``text`` spells; ``options`` come on top. Raises ValueError, naming what there is."""
    name, *words = text.split() or [""]
    kind = kinds().get(name)
    if kind is None:
        raise ValueError(f"unknown policy {name!r}; policies are: {', '.join(kinds())}")
    known = [f.name for f in fields(kind)]
    given: dict[str, Any] = {}
    for word in words:
        option, equals, value = word.partition("=")
        if not equals:
            option, value = _owner(word, kind), word
        if option in given:
            raise ValueError(f"{name}: {option} is given twice")
        given[option] = value
    given |= options
    for option in given:
        if option not in known:
            there = f"options are: {', '.join(known)}" if known else "it has no options"
            raise ValueError(f"{name}: unknown option {option!r}; {there}")
    try:
        return kind(**{option: _value(value) for option, value in given.items()})
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def spell(policy: Policy) -> str:
    """The shortest words that ``parse`` turns into this policy again."""
    name = type(policy).kind.replace(" ", "-")
    changed = [f for f in fields(policy) if getattr(policy, f.name) != f.default]
    return " ".join([name, *(f"{f.name}={getattr(policy, f.name)}".replace(" ", "") for f in changed)])


def _owner(word: str, kind: type[Policy]) -> str:
    """The option that a value standing alone belongs to."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        if word in get_args(hints[field.name]):
            return field.name
    if word[:1].isdigit() and word[-1:].isalpha() and "every" in hints:  # a duration with its unit
        return "every"
    return word


def _value(value: Any) -> Any:
    """Numbers as numbers; all else is checked by the policy itself."""
    if not isinstance(value, str):
        return value
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value
