"""Reads the facts that ``core/operators.py`` judges out of Spark's analysed plan, through py4j.

Every call to the JVM costs a fraction of a millisecond, so an expression is only looked into when Spark says that
there is something of interest in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.core.operators import OPAQUE, WINDOWS_PER_KEY, Call, Key, Operator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DELAY = "spark.watermarkDelayMs"
_WINDOW, _SESSION = "spark.timeWindow", "spark.sessionWindow"
_PATTERNS = ("CURRENT_LIKE", "PYTHON_UDF", "SCALA_UDF", "AGGREGATE_EXPRESSION")
_NO_CLOCK = ("CurrentDatabase", "CurrentCatalog", "CurrentUser", "CurrentTimeZone")
"""Spark replaces these at the start of a query, as it does the clock, but time does not change them."""
_CLOCK = ("CurrentTime", "CurrentDate", "CurrentBatchTimestamp", "Now", "LocalTimestamp")
_ORDER = {
    "first", "last", "any_value", "first_value", "last_value", "collect_list", "collect_set", "array_agg", "listagg",
    "string_agg", "max_by", "min_by", "mode", "percentile_approx", "approx_percentile",
}  # fmt: skip
_PARTITION = ("monotonically_increasing_id", "spark_partition_id", "input_file_name")
_OWN, _NUMBER = "understudy.KeyedWindows", "understudy_number"
"""``jvm/KeyedWindows.java``: processors, and the function that numbers rows before they are shuffled."""
_SUMS = ("sum", "avg", "mean", "try_sum", "try_avg")
_MOMENTS = ("stddev", "std", "var", "corr", "covar", "skewness", "kurtosis", "regr_")


def read(frame: DataFrame) -> Operator:
    """The plan of a streaming DataFrame, as far as it matters here."""
    return _Reader(frame.sparkSession._jvm).operator(frame._jdf.queryExecution().analyzed())


class _Reader:
    def __init__(self, jvm: Any) -> None:
        patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self._patterns = [getattr(patterns, name)() for name in _PATTERNS]
        self._defined: dict[int, Any] = {}
        """Expression id -> the expression that it is a name of."""

    def operator(self, node: Any) -> Operator:
        children = tuple(self.operator(child) for child in _each(node.children()))
        name = _name(node)
        self._define(name, node)
        calls = [*_wall_clock(name, node), *(call for e in _each(node.expressions()) for call in self._calls(e))]
        keys = [self._key(e) for e in _keys_of(name, node)]
        whole = not name.startswith("Deduplicate") or len(keys) == node.output().size()
        return Operator(name, node.isStreaming(), children, tuple(keys), tuple(dict.fromkeys(calls)), whole)

    # -- keys -------------------------------------------------------------------------------------------------------

    def _define(self, name: str, node: Any) -> None:
        """Remember what names stand for: a window's length is only to be seen where the window is made."""
        if name in ("Project", "Aggregate"):
            made = node.projectList() if name == "Project" else node.aggregateExpressions()
            for expression in _each(made):
                if _class(expression) == "Alias":
                    self._defined[expression.exprId().id()] = expression.child()
        elif name == "Expand" and node.projections().size():
            for attribute, expression in zip(_each(node.output()), _each(node.projections().apply(0))):
                self._defined.setdefault(attribute.exprId().id(), expression)

    def _key(self, expression: Any) -> Key:
        if _class(expression) not in ("AttributeReference", "Alias"):
            return Key(expression.sql().replace("`", ""))
        metadata = expression.metadata()
        delay_s = metadata.getLong(_DELAY) / 1000 if metadata.contains(_DELAY) else None
        window, session = metadata.contains(_WINDOW), metadata.contains(_SESSION)
        length_s = self._length_s(expression) if window else None
        return Key(expression.name(), delay_s, window, length_s, session)

    def _length_s(self, expression: Any) -> float | None:
        """``end`` of a window's structure is made as ``start + length``, in microseconds."""
        seen = set()
        while _class(expression) in ("AttributeReference", "Alias"):
            number = expression.exprId().id()
            if number in seen or number not in self._defined:
                return None
            seen.add(number)
            expression = self._defined[number]
        if _class(expression) != "CreateNamedStruct" or expression.children().size() != 4:
            return None
        end = expression.children().apply(3)
        while end.children().size() == 1:
            end = end.children().apply(0)
        if _class(end) != "Add" or _class(end.right()) != "Literal":
            return None
        return int(str(end.right().value())) / 1e6

    # -- calls ------------------------------------------------------------------------------------------------------

    def _calls(self, expression: Any) -> list[Call]:
        if expression.deterministic() and not any(expression.containsPattern(p) for p in self._patterns):
            return []
        kind, found = _class(expression), []
        if kind == "ScalaUDF" and expression.udfName().contains(_NUMBER):
            return []
        if kind in ("PythonUDF", "PythonUDAF", "ScalaUDF"):
            found.append(Call(_udf_name(expression), "assumed" if _declared(expression) else "declared"))
        elif kind.startswith(_CLOCK) and kind not in _NO_CLOCK:
            found.append(Call(expression.prettyName(), "clock"))
        elif kind == "AggregateExpression":
            found += _aggregate(expression.aggregateFunction())
        elif not expression.deterministic() and all(c.deterministic() for c in _each(expression.children())):
            name = expression.prettyName()
            found.append(Call(name, "partition" if name in _PARTITION else "random"))
        return found + [call for child in _each(expression.children()) for call in self._calls(child)]


def _keys_of(name: str, node: Any) -> list[Any]:
    if name == "Aggregate":
        return _each(node.groupingExpressions())
    if name in ("Deduplicate", "DeduplicateWithinWatermark"):
        return _each(node.keys())
    return _each(node.output()) if name == "Distinct" else []


def _wall_clock(name: str, node: Any) -> list[Call]:
    """Functions with state that Spark calls when processing time has passed."""
    if name.startswith("FlatMapGroups") and name.endswith("WithState"):
        return [Call(OPAQUE[name], "timeouts")] if node.timeout().toString() == "ProcessingTimeTimeout" else []
    if name.startswith("TransformWithState"):
        return [Call(OPAQUE[name], "timers")] if node.timeMode().toString() == "ProcessingTime" else []
    return []


def _aggregate(function: Any) -> list[Call]:
    name = function.prettyName()
    if name in _ORDER:
        return [Call(name, "order")]
    floats = any(c.dataType().typeName() in ("double", "float") for c in _each(function.children()))
    if (name in _SUMS and floats) or name.startswith(_MOMENTS):
        return [Call(name, "float")]
    return []


def _declared(udf: Any) -> bool:
    """Declared deterministic, whatever its arguments are."""
    return bool(udf.udfDeterministic())


def _name(node: Any) -> str:
    if node.nodeName() == "TransformWithState" and node.statefulProcessor().getClass().getName().startswith(_OWN):
        return WINDOWS_PER_KEY
    return str(node.nodeName())


def _udf_name(udf: Any) -> str:
    if _class(udf) == "ScalaUDF":
        return str(udf.name())
    return "lambda" if udf.name() == "<lambda>" else str(udf.name())


def _class(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]
