"""What the user writes: a job of sources, stages and sinks. Mistakes are reported where they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.core.policies import PassiveStandby, Policy, none
from understudy.core.topology import CycleError, StageShape, Topology, UnitShape
from understudy.durations import seconds
from understudy.errors import JobError
from understudy.job_windows import WindowMethods
from understudy.operators import checked
from understudy.roles import ROLES, UnitRoles, given, policy_of
from understudy.sinks import Sink
from understudy.sources import AnySource, RecordedSource, Source, SparkSource
from understudy.stages import Stage, Stream, caller, check_reader, checked_name, checked_policy, checked_roles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Job(WindowMethods):
    """A streaming job. ``epoch`` is how often sources cut an epoch; ``ha`` protects whatever says nothing else."""

    def __init__(self, name: str, *, epoch: str | float = "500ms", ha: Policy | None = None) -> None:
        self.where = caller()
        self.name = checked_name(name, "job", self.where)
        try:
            self.epoch_s = seconds(epoch, what="epoch")
        except ValueError as error:
            raise JobError(f"{self.where}: job {name!r}: {error}") from None
        self.ha: Policy = PassiveStandby() if ha is None else checked_policy(ha, f"{self.where}: job {name!r}")
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
        where = caller()
        if ha is not None and not checked_policy(ha, where).protected:
            raise JobError(
                f"{where}: source {name!r} cannot have ha=us.none: what a source keeps costs a few bytes per "
                "epoch and everything downstream is recovered from it"
            )
        if not isinstance(source, (Source, SparkSource)):
            raise JobError(
                f"{where}: source {name!r} got {source!r}; use us.sources.rate, .folder or .spark, or an object of a "
                "class of your own that derives from us.sources.Source"
            )
        roles = checked_roles(f"{where}: source {name!r}", host, standbys, state, monitor)
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
        where = caller()
        check_reader(inputs, output_mode, "a stage", "@job.stage(some_stream)", where)

        def decorate(function: Callable[..., DataFrame]) -> Stream:
            names = tuple(self._stream_name(i, where) for i in inputs)
            label = name or function.__name__
            roles = checked_roles(f"{where}: stage {label!r}", host, standbys, state, monitor)
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
        where = caller()
        check_reader(inputs, output_mode, "an operator", "@job.operator(some_stream, schema=...)", where)

        def decorate(cls: type) -> Stream:
            names = tuple(self._stream_name(i, where) for i in inputs)
            label = str(name or getattr(cls, "__name__", ""))
            try:
                made = checked(cls, schema, inputs=1 if prepare else len(names), stateless=stateless)
            except ValueError as error:
                raise JobError(f"{where}: operator {label!r}: {error}") from None
            roles = checked_roles(f"{where}: operator {label!r}", host, standbys, state, monitor)
            stage = Stage(label, where, inputs=names, function=prepare, operator=made, output_mode=output_mode, ha=ha)
            stage.roles = roles
            return self._add(stage)

        return decorate

    def sink(self, stream: Stream | str, sink: Sink, *, name: str | None = None) -> None:
        """Send a stream out; see ``understudy.sinks``. A stream may have several sinks."""
        where = caller()
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
        stage.sinks[checked_name(label, "sink", where)] = sink

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
        where = caller(depth=3)
        if self._unit is not None:
            raise JobError(f"{where}: unit {name!r} inside unit {self._unit!r}; units cannot be nested")
        if name in self._units:
            raise JobError(f"{where}: there is a unit {name!r} already; choose another name")
        checked_name(name, "unit", where)
        roles = checked_roles(f"{where}: unit {name!r}", host, standbys, state, monitor)
        self._units[name] = (None if ha is None else checked_policy(ha, where), roles)
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

    @property
    def needs_cut_times(self) -> bool:
        """Some stage counts the times at which epochs were cut: sources fix them, and they travel with the rows."""
        return any(stage.needs_cut_times for stage in self.stages.values())

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
        checked_name(stage.name, "stage", stage.where)
        if stage.name in self.stages:
            raise JobError(
                f"{stage.where}: there is a stream {stage.name!r} already "
                f"(defined at {self.stages[stage.name].where}); choose another name"
            )
        if stage.ha is not None:
            checked_policy(stage.ha, stage.where)
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
