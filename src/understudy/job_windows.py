"""What a job has to write windows with: joins, aggregates and barriers.

A window over a whole stream has one order and one place by nature: it is an operator, one object. Windows per key are
that too where no query is before them, since a job without queries needs no JVM; behind a query they run on Spark,
which spreads their keys over its executors (``windowed/on_spark.py``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from understudy.core.policies import Policy
from understudy.errors import JobError
from understudy.operators import windowed
from understudy.sources import SparkSource
from understudy.stages import Stage, Stream, caller, checked_roles

if TYPE_CHECKING:
    from understudy.windowed.base import Windowed
    from understudy.windowed.spans import Rows, Seconds

ENGINES = (None, "spark", "operator")


@dataclass(frozen=True)
class _Kind:
    """What a user has asked for, ready to be made for either engine."""

    name: str
    operator: Callable[[], Windowed]
    on_spark: Callable[[Windowed], Callable[..., Any]] | None = None
    """From the operator that gives the same; None where only an operator will do."""


class WindowMethods:
    stages: dict[str, Stage]

    @abstractmethod
    def _add(self, stage: Stage) -> Stream: ...

    @abstractmethod
    def _stream_name(self, stream: Stream | str, where: str) -> str: ...

    @abstractmethod
    def _known(self) -> str: ...

    def join(
        self,
        left_stream: Stream | str,
        right_stream: Stream | str,
        *,
        on: str | Sequence[str],
        left: Rows,
        right: Rows,
        suffix: str = "_right",
        engine: str | None = None,
        schema: Any = None,
        name: str | None = None,
        ha: Policy | None = None,
        **roles: Any,
    ) -> Stream:
        """Rows of two streams that are equal in the columns ``on``, each within its window (``us.rows``); see
        ``understudy.windowed.join``. ``engine``: what computes it, ``"spark"`` (windows per key only) or
        ``"operator"``. ``schema``: of what comes of an operator, where an input's is not known before Spark runs;
        ``roles``: as of an operator."""
        from understudy.windowed.join import Join
        from understudy.windowed.on_spark import KeyedJoin
        from understudy.windowed.spans import Rows

        keyed = all(isinstance(span, Rows) and (span.per or not span.count) for span in (left, right))
        on_spark = partial(KeyedJoin, left=left, right=right) if keyed else None
        kind = _Kind("join", partial(Join, on, left, right, suffix=suffix), on_spark)
        return self._windowed(kind, (left_stream, right_stream), engine, schema, name, ha, roles)

    def aggregate(
        self,
        stream: Stream | str,
        *,
        by: str | Sequence[str],
        window: Rows | Seconds,
        late: float | str = 0,
        engine: str | None = None,
        schema: Any = None,
        name: str | None = None,
        ha: Policy | None = None,
        roles: Mapping[str, Any] | None = None,
        **outputs: tuple[str, str],
    ) -> Stream:
        """What comes of the newest rows of each key, or of those of the last seconds: ``mean=("speed", "mean")``; see
        ``understudy.windowed.aggregate``. ``engine``, ``schema``, ``roles``: as of ``join``."""
        from understudy.windowed.aggregate import Aggregate, refuse_outputs
        from understudy.windowed.on_spark import KeyedAggregate
        from understudy.windowed.spans import Rows

        parameters = {"late": late, "engine": engine, "schema": schema, "name": name, "ha": ha, "roles": roles}
        try:
            refuse_outputs({**parameters, "schemas": outputs.get("schemas")})
        except ValueError as error:
            raise JobError(f"{caller()}: {error}") from None
        on_spark = partial(KeyedAggregate, by=by, window=window, outputs=outputs) if isinstance(window, Rows) else None
        kind = _Kind("aggregate", partial(Aggregate, by, window, late=late, **outputs), on_spark)
        return self._windowed(kind, (stream,), engine, schema, name, ha, dict(roles or {}))

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

        return self._windowed(_Kind("barrier", partial(Barrier, len(streams))), streams, None, schema, name, ha, roles)

    def _windowed(
        self,
        kind: _Kind,
        inputs: Sequence[Stream | str],
        engine: str | None,
        schema: Any,
        name: str | None,
        ha: Policy | None,
        roles: Mapping[str, Any],
    ) -> Stream:
        where = caller(3)
        names = tuple(self._stream_name(i, where) for i in inputs)
        label = name or "_".join([kind.name, *names])
        what = f"{where}: {kind.name} {label!r}"
        for strange in sorted(set(roles) - {"host", "standbys", "state", "monitor"}):
            raise JobError(f"{what} got {strange}=, which it does not know")
        asked = (roles.get("host"), roles.get("standbys", ()), roles.get("state"), roles.get("monitor"))
        stage = Stage(label, where, inputs=names, ha=ha, roles=checked_roles(what, *asked))
        try:
            if self._on_spark(kind, names, engine, schema):
                assert kind.on_spark is not None
                stage.function, stage.output_mode = kind.on_spark(kind.operator()), "append"
            else:
                stage.operator = self._operator(kind, names, schema, where)
        except (ValueError, TypeError) as error:
            raise JobError(f"{what}: {error}") from None
        return self._add(stage)

    def _on_spark(self, kind: _Kind, inputs: Sequence[str], engine: str | None, schema: Any) -> bool:
        """Raises ValueError."""
        if engine not in ENGINES:
            raise ValueError(f"engine={engine!r} must be 'spark' or 'operator'")
        if engine == "spark" and kind.on_spark is None:
            raise ValueError(
                "engine='spark' is for windows by rows of each key, as in us.rows(100, per='key'); a window over a "
                "whole stream has one order and one place, and is an operator"
            )
        behind_query = any(self._is_query(name) for name in inputs)
        chosen = engine == "spark" or (engine is None and kind.on_spark is not None and behind_query)
        if chosen and schema is not None:
            raise ValueError("schema= is for operators: Spark finds it itself; leave it out, or say engine='operator'")
        return chosen

    def _is_query(self, name: str) -> bool:
        stage = self.stages.get(name)
        return stage is not None and (stage.function is not None or isinstance(stage.source, SparkSource))

    def _operator(self, kind: _Kind, inputs: Sequence[str], schema: Any, where: str) -> Any:
        """Raises ValueError."""
        for unknown in (i for i in inputs if i not in self.stages and schema is None):
            raise JobError(f"{where}: {kind.name} of unknown stream {unknown!r}; streams so far: {self._known()}")
        known = [self.stages[i].declared_schema() if i in self.stages else None for i in inputs]
        return windowed(kind.operator, None if schema is not None and None in known else known, schema)
