"""Who does what for a unit, where the user says so: in the job, or in a small TOML file that overrides it.

```toml
[units.ingest]
host = "h1"                             # runs it
standbys = ["h2", "h3"]                 # in this order; more than the policy needs are where the next ones go
state = "h2"                            # keeps its checkpoints: one of the standbys, which then comes first
monitor = "h3"                          # watches the host that runs it, and reports to the coordinator
ha = "passive-standby sweeping 500ms"   # see core/policies/spelling.py
```
Whatever is left out is up to the placement.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from understudy.core.policies import Policy, none, parse, spell
from understudy.core.topology import Topology
from understudy.errors import JobError


@dataclass(frozen=True)
class UnitRoles:
    """Hosts that were asked for. None and () leave the choice to the placement, and watching to the coordinator."""

    host: str | None = None
    standbys: tuple[str, ...] = ()
    state: str | None = None
    monitor: str | None = None

    @property
    def in_order(self) -> tuple[str, ...]:
        """The standbys, the state host first: the first ready one takes over."""
        return tuple(sorted(self.standbys, key=lambda host: host != self.state))

    def check(self, what: str) -> None:
        """Raises JobError when the roles contradict each other."""
        hosts = [h for h in (self.host, *self.standbys) if h is not None]
        twice = next((h for h in hosts if hosts.count(h) > 1), None)
        if twice is not None:
            raise JobError(f"{what} names {twice!r} twice; its host and its standbys are different hosts")
        if self.state is not None and self.state not in self.standbys:
            named = f"one of {', '.join(map(repr, self.standbys))}" if self.standbys else "it in standbys= too"
            raise JobError(
                f"{what}: state={self.state!r} is not one of its standbys; a standby restores from its own disk, so "
                f"that the state is kept where it takes over: name {named}"
            )
        if self.monitor is not None and self.monitor == self.host:
            raise JobError(
                f"{what}: monitor={self.monitor!r} is the host that it would watch; name another one, or none: then "
                "the coordinator watches alone"
            )


ROLES = tuple(f.name for f in fields(UnitRoles))


def given(roles: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Roles as a user writes them, checked one by one: for ``UnitRoles(**...)``. Raises JobError."""
    found: dict[str, Any] = {}
    for role, value in roles.items():
        if role not in ROLES:
            raise JobError(f"{what}: unknown role {role!r}; roles are: {', '.join(ROLES)}, and ha for the policy")
        several = role == "standbys"
        hosts = [value] if isinstance(value, str) or not several else value
        if not isinstance(hosts, (list, tuple)) or not all(isinstance(h, str) and h for h in hosts):
            form = 'a list of hosts, such as ["h2", "h3"]' if several else 'a host, such as "h1"'
            raise JobError(f"{what}: {role}={value!r} is not {form}")
        found[role] = tuple(hosts) if several else value
    return found


def read(path: str | Path) -> dict[str, dict[str, Any]]:
    """A roles file, unit by unit: plain data, for ``Job.assign``. Raises JobError."""
    file = Path(path)
    try:
        content = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{file}: the roles cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        text = str(error)
        line = re.search(r" \(at line (\d+), column \d+\)", text)
        at = line[1] if line else str(len(file.read_text().splitlines()))
        raise JobError(f"{file.name}:{at}: not TOML: {text[: line.start()] if line else text}") from None
    units = content.pop("units", {})
    if content or not isinstance(units, dict) or not all(isinstance(u, dict) for u in units.values()):
        wrong = next(iter(content), "units")
        raise JobError(f"{file.name}: {wrong!r} is no table of a unit; write [units.NAME] and its roles below")
    return {name: {"file": file.name, **roles} for name, roles in units.items()}


def policy_of(roles: dict[str, Any], what: str) -> Policy | None:
    """Take ``ha`` out of a unit's roles."""
    text = roles.pop("ha", None)
    if text is None:
        return None
    try:
        return parse(str(text))
    except ValueError as error:
        raise JobError(f"{what}: ha={text!r}: {error}") from None


def check_hosts(topology: Topology, names: Collection[str]) -> None:
    """The job may only ask for hosts that there are, and for no more than there are. Raises JobError."""
    asked = {h for u in topology.units.values() for h in (u.primary, *u.standbys, u.monitor) if h}
    if unknown := sorted(asked - set(names)):
        raise JobError(f"the job asks for unknown host {', '.join(unknown)}; hosts are: {', '.join(sorted(names))}")
    there = len(names)
    wanting = [u for u in topology.units.values() if u.policy.backups >= there and not _bare(u.policy, there)]
    if not wanting:
        return
    unit = max(wanting, key=lambda u: u.policy.backups)
    needs = unit.policy.backups + 1
    raise JobError(
        f"unit {unit.name!r} with {spell(unit.policy)} needs at least {needs} hosts and there "
        f"{'is' if there == 1 else 'are'} {there}; start {needs} (--hosts {needs}), or protect it with "
        f"{spell(_fewer(unit.policy, there - 1))}"
    )


def _bare(policy: Policy, hosts: int) -> bool:
    """On a single host nothing can be protected, sources included: a job that asks for no more than the default runs
    there, and is said to be UNPROTECTED."""
    return hosts == 1 and policy.backups == 1 and not policy.standby_runs


def _fewer(policy: Policy, backups: int) -> Policy:
    """The nearest policy that makes do with so many hosts besides the primary."""
    return (policy.with_backups(backups) if backups else None) or none
