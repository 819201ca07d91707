"""What a job is made of: its streams and stages, and the checks of what a user says of one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.core.policies import Policy, is_policy
from understudy.errors import JobError
from understudy.operators import Operator
from understudy.roles import UnitRoles, given
from understudy.sinks import Sink
from understudy.sources import AnySource, SparkSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from understudy.job import Job

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_MODES = (None, "append", "update", "complete")


@dataclass(frozen=True)
class Stream:
    """The output of a source or stage; pass it to ``job.stage`` or ``job.sink``."""

    name: str
    job: Job = field(repr=False, compare=False)


@dataclass
class Stage:
    """One source (``source`` set), one PySpark function (``function`` set), or one operator (``operator`` set; with
    ``function`` too, where it is given what a query has prepared)."""

    name: str
    where: str
    inputs: tuple[str, ...] = ()
    source: AnySource | None = None
    function: Callable[..., DataFrame] | None = None
    operator: Operator | None = None
    output_mode: str | None = None
    ha: Policy | None = None
    unit: str | None = None
    roles: UnitRoles = field(default_factory=UnitRoles)
    sinks: dict[str, Sink] = field(default_factory=dict)

    @property
    def needs_all_input(self) -> bool:
        return self.operator is not None and self.operator.needs_all_input

    @property
    def needs_cut_times(self) -> bool:
        return self.operator is not None and self.operator.needs_cut_times

    def declared_schema(self) -> pa.Schema | None:
        """Of its stream, where the job says it; None where Spark has to be asked."""
        if self.operator is not None:
            return self.operator.schema
        return None if self.source is None or isinstance(self.source, SparkSource) else self.source.arrow_schema()


def checked_name(name: Any, what: str, where: str = "") -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        prefix = f"{where}: " if where else ""
        raise JobError(f"{prefix}{what} name {name!r}: use a letter, then up to 63 letters, digits, '_' or '-'")
    return name


def checked_policy(policy: Any, where: str) -> Policy:
    if not is_policy(policy):
        raise JobError(f"{where}: ha={policy!r} is not a policy; use us.PassiveStandby(...) or us.none")
    return policy


def check_reader(inputs: Sequence[object], output_mode: str | None, what: str, example: str, where: str) -> None:
    """What reads streams must be given one, and may be told its output mode."""
    if not inputs:
        raise JobError(f"{where}: {what} needs an input; write {example}")
    if output_mode not in _MODES:
        raise JobError(f"{where}: output_mode={output_mode!r}; use 'append', 'update' or 'complete'")


def checked_roles(
    what: str, host: str | None, standbys: str | Sequence[str], state: str | None, monitor: str | None
) -> UnitRoles:
    wanted = {"host": host, "standbys": standbys, "state": state, "monitor": monitor}
    roles = UnitRoles(**given({role: value for role, value in wanted.items() if value is not None}, what))
    roles.check(what)
    return roles


def caller(depth: int = 2) -> str:
    frame = sys._getframe(depth)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
