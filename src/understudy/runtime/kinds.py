"""The kinds of stages that a host knows: queries, operators, and operators behind a query. Each says what such a stage
is, what computes it (``engine.py``), and how a standby gets one ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from understudy.core.numbers import Generation
from understudy.core.operators import OperatorClass, of_object
from understudy.errors import JobError
from understudy.runtime import messages
from understudy.runtime.armed import ArmedQuery
from understudy.runtime.armed_operator import ArmedOperator, ArmedPrepared
from understudy.runtime.operator_engine import Living, OperatorEngine, PreparedEngine, cause_of, started
from understudy.runtime.operator_process import Died, Threw
from understudy.runtime.spark import spark_types
from understudy.runtime.spark_engine import SparkEngine

if TYPE_CHECKING:
    from understudy.operators import Operator
    from understudy.runtime.checkpoints import CheckpointStore
    from understudy.runtime.engine import Armed, Engine
    from understudy.runtime.host import Host
    from understudy.runtime.stage import RunningStage
    from understudy.stages import Stage


class Kind(Protocol):
    """What a host knows of one kind of stages."""

    def check(self, stage: str) -> None:
        """Build it once, so that mistakes show before anything runs. Raises JobError."""
        ...

    def judged(self, stage: str) -> OperatorClass | None:
        """What it remembers, and whether it gives the same again; None for a source that the host reads."""
        ...

    def schema(self, stage: str) -> str:
        """In Spark's words, as checkpoints name it. Raises JobError."""
        ...

    def arrow_schema(self, stage: str) -> pa.Schema: ...

    def engine(self, stage: RunningStage, ready: Any) -> Engine:
        """``ready``: what ``Armed.take`` returned, if anything."""
        ...

    def arm(
        self, stage: str, *, unit: str, generation: Generation, store: CheckpointStore, stateless: bool = False
    ) -> Armed:
        """Get a standby ready on a store. ``stateless``: it will begin from nothing."""
        ...


class SparkKind:
    """Stages that are queries."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def check(self, stage: str) -> None:
        """Raises JobError."""
        declared = self.host.job.stages[stage].declared_schema()
        if declared is None:
            self.host.wait_for_plans().require_sendable(stage)
        else:
            require_writable(self.host.job.stages[stage], declared)

    def judged(self, stage: str) -> OperatorClass | None:
        """None for a source that the host reads without Spark."""
        if self.host.job.stages[stage].declared_schema() is not None:
            return None
        return self.host.wait_for_plans().operators(stage)

    def schema(self, stage: str) -> str:
        declared = self.host.job.stages[stage].declared_schema()
        if declared is None:
            return self.host.wait_for_plans().schema(stage).simpleString()
        return spark_types(self.host.job.stages[stage], declared).simpleString()

    def arrow_schema(self, stage: str) -> pa.Schema:
        return self.host.wait_for_plans().arrow_schema(stage)

    def engine(self, stage: RunningStage, ready: Any) -> SparkEngine:
        return SparkEngine(stage, ready)

    def arm(
        self, stage: str, *, unit: str, generation: Generation, store: CheckpointStore, stateless: bool = False
    ) -> ArmedQuery:
        return ArmedQuery(self.host, stage, unit=unit, generation=generation, store=store, stateless=stateless)


class OperatorKind:
    """Stages that are operators without a query."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def _operator(self, stage: str) -> Operator:
        operator = self.host.job.stages[stage].operator
        assert operator is not None
        return operator

    def check(self, stage: str) -> None:
        """Make the object once, so that mistakes show before anything runs. Raises JobError."""
        defined = self.host.job.stages[stage]
        require_writable(defined, self._operator(stage).schema)
        try:
            started(self.host, stage, self._operator(stage), None).end()
        except (Threw, Died) as error:
            raise JobError(f"{defined.where}: operator {stage!r} cannot be made: {cause_of(error)[0]}") from None

    def judged(self, stage: str) -> OperatorClass:
        operator = self._operator(stage)
        return operator.judged or of_object(stateless=operator.stateless, needs_all_input=operator.needs_all_input)

    def schema(self, stage: str) -> str:
        return spark_types(self.host.job.stages[stage], self._operator(stage).schema).simpleString()

    def arrow_schema(self, stage: str) -> pa.Schema:
        return self._operator(stage).schema

    def engine(self, stage: RunningStage, ready: Any) -> Engine:
        return OperatorEngine(stage, Living(stage, self._operator(stage.name), ready))

    def arm(
        self, stage: str, *, unit: str, generation: Generation, store: CheckpointStore, stateless: bool = False
    ) -> Armed:
        told = messages.Armed(unit, generation, stage, spare=stateless)
        return ArmedOperator(self.host, stage, self._operator(stage), store, stateless=stateless, told=told)


class PreparedKind(OperatorKind):
    """Stages that are operators behind a query."""

    def check(self, stage: str) -> None:
        self.host.wait_for_plans().frame(stage)
        super().check(stage)

    def judged(self, stage: str) -> OperatorClass:
        query = self.host.wait_for_plans().operators(stage)
        assert query is not None
        operator = self._operator(stage)
        return of_object(stateless=operator.stateless, needs_all_input=operator.needs_all_input, query=query)

    def engine(self, stage: RunningStage, ready: Any) -> Engine:
        query, process = ready or (None, None)
        return PreparedEngine(stage, query, Living(stage, self._operator(stage.name), process))

    def arm(
        self, stage: str, *, unit: str, generation: Generation, store: CheckpointStore, stateless: bool = False
    ) -> Armed:
        about = {"unit": unit, "generation": generation, "store": store, "stateless": stateless}
        return ArmedPrepared(self.host, stage, self._operator(stage), **about)


def require_writable(stage: Stage, schema: pa.Schema) -> None:
    """Raises JobError where one of a stage's sinks cannot write rows of this schema."""
    for name, sink in stage.sinks.items():
        try:
            sink.try_on(schema.empty_table())
        except Exception as error:
            raise JobError(f"{stage.where}: sink {name!r} cannot write what {stage.name!r} makes: {error}") from error
