"""What the user writes: a job of sources, stages and sinks. Mistakes are reported where they are made."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.core.policies import PassiveStandby, Policy, is_policy, none
from understudy.core.topology import CycleError, StageShape, Topology, UnitShape
from understudy.durations import seconds
from understudy.errors import JobError
from understudy.operators import Operator, checked, windowed
from understudy.roles import ROLES, UnitRoles, given, policy_of
from understudy.sinks import Sink
from understudy.sources import AnySource, RecordedSource, Source, SparkSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from understudy.windowed.base import Windowed
    from understudy.windowed.spans import Rows, Seconds

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

    def declared_schema(self) -> pa.Schema | None:
        """Of its stream, where the job says it; None where Spark has to be asked."""
        if self.operator is not None:
            return self.operator.schema
        return None if self.source is None or isinstance(self.source, SparkSource) else self.source.arrow_schema()


class Job:
    """A streaming job. ``epoch`` is how often sources cut an epoch; ``ha`` protects whatever says nothing else."""

    def __init__(self, name: str, *, epoch: str | float = "500ms", ha: Policy | None = None) -> None:
        self.where = _caller()
        self.name = _checked_name(name, "job", self.where)
        try:
            self.epoch_s = seconds(epoch, what="epoch")
        except ValueError as error:
            raise JobError(f"{self.where}: job {name!r}: {error}") from None
        self.ha: Policy = PassiveStandby() if ha is None else _checked_policy(ha, f"{self.where}: job {name!r}")
        self.stages: dict[str, Stage] = {}
        self._units: dict[str, tuple[Policy | None, UnitRoles]] = {}
        self._assigned: dict[str, tuple[Policy | None, dict[str, Any], str]] = {}
        """By unit, what a roles file says instead: policy, roles, and the name of the file."""
        self._unit: str | None = None
        self._reference = False
        """It is run without failure, to compare with: nothing will get lost."""

    def source(
        self,
        name: str,
        source: AnySource,
        *,
        ha: Policy | None = None,
        host: str | None = None,
        standbys: str | Sequence[str] = (),
        state: str | None = None,
        monitor: str | None = None,
    ) -> Stream:
        """Add a source; see ``understudy.sources`` and, for where it runs, ``understudy.roles``."""
        where = _caller()
        if ha is not None and not _checked_policy(ha, where).protected:
            raise JobError(
                f"{where}: source {name!r} cannot have ha=us.none: what a source keeps costs a few bytes per "
                "epoch and everything downstream is recovered from it"
            )
        if not isinstance(source, (Source, SparkSource)):
            raise JobError(
                f"{where}: source {name!r} got {source!r}; use us.sources.rate, .folder or .spark, or an object of a "
                "class of your own that derives from us.sources.Source"
            )
        roles = _checked_roles(f"{where}: source {name!r}", host, standbys, state, monitor)
        return self._add(Stage(name, where, source=source, ha=ha, roles=roles))

    def stage(
        self,
        *inputs: Stream | str,
        name: str | None = None,
        ha: Policy | None = None,
        output_mode: str | None = None,
        host: str | None = None,
        standbys: str | Sequence[str] = (),
        state: str | None = None,
        monitor: str | None = None,
    ) -> Callable[[Callable[..., DataFrame]], Stream]:
        """Decorate a function from DataFrames to a DataFrame; it becomes a stage reading ``inputs`` in that order."""
        where = _caller()
        _check_reader(inputs, output_mode, "a stage", "@job.stage(some_stream)", where)

        def decorate(function: Callable[..., DataFrame]) -> Stream:
            names = tuple(self._stream_name(i, where) for i in inputs)
            label = name or function.__name__
            roles = _checked_roles(f"{where}: stage {label!r}", host, standbys, state, monitor)
            stage = Stage(label, where, inputs=names, function=function, output_mode=output_mode, ha=ha, roles=roles)
            return self._add(stage)

        return decorate

    def operator(
        self,
        *inputs: Stream | str,
        schema: Any,
        prepare: Callable[..., DataFrame] | None = None,
        stateless: bool = False,
        name: str | None = None,
        ha: Policy | None = None,
        output_mode: str | None = None,
        host: str | None = None,
        standbys: str | Sequence[str] = (),
        state: str | None = None,
        monitor: str | None = None,
    ) -> Callable[[type], Stream]:
        """Decorate a class whose object turns every epoch of ``inputs`` into rows of ``schema``; see
        ``understudy.operators``. With ``prepare``, a function from DataFrames to a DataFrame, it is given what that
        query makes of the epoch. ``stateless``: what it makes of an epoch depends on that epoch alone."""
        where = _caller()
        _check_reader(inputs, output_mode, "an operator", "@job.operator(some_stream, schema=...)", where)

        def decorate(cls: type) -> Stream:
            names = tuple(self._stream_name(i, where) for i in inputs)
            label = str(name or getattr(cls, "__name__", ""))
            try:
                made = checked(cls, schema, inputs=1 if prepare else len(names), stateless=stateless)
            except ValueError as error:
                raise JobError(f"{where}: operator {label!r}: {error}") from None
            roles = _checked_roles(f"{where}: operator {label!r}", host, standbys, state, monitor)
            stage = Stage(label, where, inputs=names, function=prepare, operator=made, output_mode=output_mode, ha=ha)
            stage.roles = roles
            return self._add(stage)

        return decorate

    def join(
        self,
        left_stream: Stream | str,
        right_stream: Stream | str,
        *,
        on: str | Sequence[str],
        left: Rows,
        right: Rows,
        suffix: str = "_right",
        schema: Any = None,
        name: str | None = None,
        ha: Policy | None = None,
        **roles: Any,
    ) -> Stream:
        """Rows of two streams that are equal in the columns ``on``, each within its window (``us.rows``); see
        ``understudy.windowed.join``. ``schema``: of what comes of it, where an input's is not known before Spark runs;
        ``roles``: as of an operator."""
        from understudy.windowed.join import Join

        make = partial(Join, on, left, right, suffix=suffix)
        return self._windowed("join", (left_stream, right_stream), make, schema, name, ha, roles)

    def aggregate(
        self,
        stream: Stream | str,
        *,
        by: str | Sequence[str],
        window: Rows | Seconds,
        late: float | str = 0,
        schema: Any = None,
        name: str | None = None,
        ha: Policy | None = None,
        roles: Mapping[str, Any] | None = None,
        **outputs: tuple[str, str],
    ) -> Stream:
        """What comes of the newest rows of each key, or of those of the last seconds: ``mean=("speed", "mean")``; see
        ``understudy.windowed.aggregate``. ``schema``, ``roles``: as of ``join``."""
        from understudy.windowed.aggregate import Aggregate

        make = partial(Aggregate, by, window, late=late, **outputs)
        return self._windowed("aggregate", (stream,), make, schema, name, ha, dict(roles or {}))

    def barrier(
        self,
        *streams: Stream | str,
        schema: Any = None,
        name: str | None = None,
        ha: Policy | None = None,
        **roles: Any,
    ) -> Stream:
        """The n-th row of every stream, as soon as all of them have one; see ``understudy.windowed.barrier``.
        ``schema``, ``roles``: as of ``join``."""
        from understudy.windowed.barrier import Barrier

        return self._windowed("barrier", streams, partial(Barrier, len(streams)), schema, name, ha, roles)

    def _windowed(
        self,
        kind: str,
        inputs: Sequence[Stream | str],
        make: Callable[[], Windowed],
        schema: Any,
        name: str | None,
        ha: Policy | None,
        roles: Mapping[str, Any],
    ) -> Stream:
        where = _caller(3)
        names = tuple(self._stream_name(i, where) for i in inputs)
        label = name or "_".join([kind, *names])
        for unknown in (i for i in names if i not in self.stages and schema is None):
            raise JobError(f"{where}: {kind} of unknown stream {unknown!r}; streams so far: {self._known()}")
        known = [self.stages[i].declared_schema() if i in self.stages else None for i in names]
        try:
            made = windowed(make, None if schema is not None and None in known else known, schema)
        except (ValueError, TypeError) as error:
            raise JobError(f"{where}: {kind} {label!r}: {error}") from None
        for strange in sorted(set(roles) - {"host", "standbys", "state", "monitor"}):
            raise JobError(f"{where}: {kind} {label!r} got {strange}=, which it does not know")
        asked = (roles.get("host"), roles.get("standbys", ()), roles.get("state"), roles.get("monitor"))
        placed = _checked_roles(f"{where}: {kind} {label!r}", *asked)
        return self._add(Stage(label, where, inputs=names, operator=made, ha=ha, roles=placed))

    def sink(self, stream: Stream | str, sink: Sink, *, name: str | None = None) -> None:
        """Send a stream out; see ``understudy.sinks``. A stream may have several sinks."""
        where = _caller()
        stage = self.stages.get(self._stream_name(stream, where))
        if stage is None:
            raise JobError(f"{where}: sink on unknown stream {stream!r}; streams so far: {self._known()}")
        if not isinstance(sink, Sink):
            raise JobError(
                f"{where}: {sink!r} is not a sink; use us.sinks.parquet, .json_lines, .console, .foreach_epoch, or an "
                "object of a class of your own that derives from us.sinks.Sink"
            )
        taken = {n for s in self.stages.values() for n in s.sinks}
        label = name or next(
            n for i in range(len(taken) + 1) if (n := stage.name + (f"-{i}" if i else "")) not in taken
        )
        if label in taken:
            raise JobError(f"{where}: there is a sink {label!r} already; give this one another name=")
        stage.sinks[_checked_name(label, "sink", where)] = sink

    @contextmanager
    def unit(
        self,
        name: str,
        *,
        ha: Policy | None = None,
        host: str | None = None,
        standbys: str | Sequence[str] = (),
        state: str | None = None,
        monitor: str | None = None,
    ) -> Iterator[None]:
        """Stages defined inside are placed on one host, protected and recovered together."""
        where = _caller(depth=3)
        if self._unit is not None:
            raise JobError(f"{where}: unit {name!r} inside unit {self._unit!r}; units cannot be nested")
        if name in self._units:
            raise JobError(f"{where}: there is a unit {name!r} already; choose another name")
        _checked_name(name, "unit", where)
        roles = _checked_roles(f"{where}: unit {name!r}", host, standbys, state, monitor)
        self._units[name] = (None if ha is None else _checked_policy(ha, where), roles)
        self._unit = name
        try:
            yield
        finally:
            self._unit = None

    # -- what the runtime asks --------------------------------------------------------------------------------------

    @property
    def needs_spark(self) -> bool:
        """Some part of it is Spark's. Hosts of other jobs need no JVM."""
        sinks = (sink for stage in self.stages.values() for sink in stage.sinks.values())
        return (
            any(stage.function is not None or isinstance(stage.source, SparkSource) for stage in self.stages.values())
            or any(sink.needs_spark for sink in sinks)
        )  # fmt: skip

    def policy(self, stage: str) -> Policy:
        """What a roles file says, else the stage's own choice, else its unit's, else the job's. A source is always
        protected: all that is kept of it is a few bytes per epoch, and without them nothing downstream could be
        replayed."""
        s = self.stages[stage]
        assigned = self._assigned.get(s.unit or s.name, (None, {}, ""))[0]
        chosen = assigned or s.ha or (self._units[s.unit][0] if s.unit else None) or self.ha
        if s.source is not None and type(chosen) is not PassiveStandby:
            return PassiveStandby(standbys=max(1, chosen.tolerates))
        return chosen

    def resolve(self, chosen: Mapping[str, Policy]) -> None:
        """Put the policies that were chosen for units in the place of their goals (``us.auto``)."""
        for stage in self.stages.values():
            stage.ha = chosen.get(stage.unit or stage.name, stage.ha)

    def as_reference(self, recorded: Path) -> None:
        """Turn into the failure-free reference run of a drill: no protection, and sources that were recorded
        (``recorded/<source>/``) are read from there."""
        for stage in self.stages.values():
            if (recorded / stage.name).is_dir():
                stage.source = RecordedSource(str(recorded / stage.name))
        self.ha, self._reference = none, True
        self._units, self._assigned = {}, {}
        for stage in self.stages.values():
            stage.ha = stage.unit = None
            stage.roles = UnitRoles()

    def assign(self, roles: Mapping[str, Mapping[str, Any]]) -> None:
        """Let a roles file (``understudy.roles.read``) override what the job says. Raises JobError."""
        units = self._members()
        for name, unit in roles.items():
            wanted = dict(unit)
            file = wanted.pop("file", "roles")
            what = f"{file}: unit {name!r}"
            if name not in units:
                raise JobError(f"{file}: unknown unit {name!r}; units are: {', '.join(units)}")
            policy = policy_of(wanted, what)
            source = next((s for s in units[name] if self.stages[s].source is not None), None)
            if policy is not None and source is not None and not policy.protected:
                raise JobError(f"{what}: source {source!r} cannot have ha='none'; everything is recovered from it")
            self._assigned[name] = (policy, given(wanted, what), file)
        self.topology()

    def topology(self) -> Topology:
        """Check the whole job and return its shape. Raises JobError."""
        if not self.stages:
            raise JobError(
                f"{self.where}: job {self.name!r} is empty; add job.source(...), @job.stage(...) and job.sink(...)"
            )
        for stage in self.stages.values():
            if stage.unit is None and stage.name in self._units:
                raise JobError(f"{stage.where}: stage {stage.name!r} has the name of a unit; rename one of them")
            for name in stage.inputs:
                if name not in self.stages:
                    raise JobError(
                        f"{stage.where}: stage {stage.name!r} reads unknown stream {name!r}; "
                        f"streams are: {self._known()}"
                    )
        try:
            found = Topology.build(
                [StageShape(s.name, s.inputs, tuple(s.sinks), s.needs_all_input) for s in self.stages.values()],
                [self._unit_shape(name, stages) for name, stages in self._members().items()],
            )
        except CycleError as error:
            first = self.stages[error.path[0]]
            raise JobError(
                f"{first.where}: the job has a cycle: {error}; a stage cannot read, directly or through "
                "others, what it writes. Remove one of these inputs."
            ) from None
        for name, unit in [] if self._reference else found.spoiled():
            lossy = found.units[unit].policy.describe()
            raise JobError(
                f"{self.stages[name].where}: {name!r} needs every row of its input, but unit {unit!r} may lose some "
                f"({lossy}); protect {unit!r} with a standby or by upstream backup"
            )
        return found

    def check_ends(self) -> None:
        """Check a job to which nothing will be added any more. Raises JobError."""
        topology = self.topology()
        for stage in self.stages.values():
            if not topology.consumers(stage.name):
                raise JobError(
                    f"{stage.where}: nobody reads {stage.name!r}: send it out with job.sink({stage.name}, ...), let a "
                    "stage read it, or remove it"
                )

    def _unit_shape(self, name: str, stages: list[str]) -> UnitShape:
        policies = {self.policy(s) for s in stages}
        where = self.stages[stages[0]].where
        if len(policies) > 1:
            described = ", ".join(f"{s}: {self.policy(s).describe()}" for s in stages)
            raise JobError(
                f"{where}: unit {name!r} mixes policies ({described}); a unit is recovered together: give it one ha="
            )
        _, assigned, file = self._assigned.get(name, (None, {}, ""))
        what = f"{file or where}: unit {name!r}"
        roles = replace(self._unit_roles(name, stages, what), **assigned)
        roles.check(what)
        return UnitShape(name, tuple(stages), policies.pop(), roles.host, roles.in_order, roles.monitor)

    def _unit_roles(self, name: str, stages: list[str], what: str) -> UnitRoles:
        """What the unit and its stages say, put together."""
        said = [self.stages[s].roles for s in stages]
        if name in self._units:
            said.append(self._units[name][1])
        found: dict[str, Any] = {}
        for role in ROLES:
            values = list(dict.fromkeys(v for r in said if (v := getattr(r, role))))
            if len(values) > 1:
                wishes = " and ".join(f"{role}={list(v) if isinstance(v, tuple) else v!r}" for v in values)
                raise JobError(f"{what} is asked for {wishes}; a unit is placed as one: say each role once")
            if values:
                found[role] = values[0]
        return UnitRoles(**found)

    def _members(self) -> dict[str, list[str]]:
        """Unit -> its stages."""
        members: dict[str, list[str]] = {}
        for stage in self.stages.values():
            members.setdefault(stage.unit or stage.name, []).append(stage.name)
        return members

    # -- inside -----------------------------------------------------------------------------------------------------

    def _add(self, stage: Stage) -> Stream:
        _checked_name(stage.name, "stage", stage.where)
        if stage.name in self.stages:
            raise JobError(
                f"{stage.where}: there is a stream {stage.name!r} already "
                f"(defined at {self.stages[stage.name].where}); choose another name"
            )
        if stage.ha is not None:
            _checked_policy(stage.ha, stage.where)
        stage.unit = self._unit
        self.stages[stage.name] = stage
        return Stream(stage.name, self)

    def _stream_name(self, stream: Stream | str, where: str) -> str:
        if isinstance(stream, Stream):
            if stream.job is not self:
                raise JobError(f"{where}: stream {stream.name!r} belongs to job {stream.job.name!r}, not {self.name!r}")
            return stream.name
        if isinstance(stream, str):
            return stream
        raise JobError(f"{where}: {stream!r} is not a stream; pass what job.source or @job.stage returned, or its name")

    def _known(self) -> str:
        return ", ".join(self.stages) or "none"


def _checked_name(name: Any, what: str, where: str = "") -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        prefix = f"{where}: " if where else ""
        raise JobError(f"{prefix}{what} name {name!r}: use a letter, then up to 63 letters, digits, '_' or '-'")
    return name


def _checked_policy(policy: Any, where: str) -> Policy:
    if not is_policy(policy):
        raise JobError(f"{where}: ha={policy!r} is not a policy; use us.PassiveStandby(...) or us.none")
    return policy


def _check_reader(inputs: Sequence[object], output_mode: str | None, what: str, example: str, where: str) -> None:
    """What reads streams must be given one, and may be told its output mode."""
    if not inputs:
        raise JobError(f"{where}: {what} needs an input; write {example}")
    if output_mode not in _MODES:
        raise JobError(f"{where}: output_mode={output_mode!r}; use 'append', 'update' or 'complete'")


def _checked_roles(
    what: str, host: str | None, standbys: str | Sequence[str], state: str | None, monitor: str | None
) -> UnitRoles:
    wanted = {"host": host, "standbys": standbys, "state": state, "monitor": monitor}
    roles = UnitRoles(**given({role: value for role, value in wanted.items() if value is not None}, what))
    roles.check(what)
    return roles


def _caller(depth: int = 2) -> str:
    frame = sys._getframe(depth)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
