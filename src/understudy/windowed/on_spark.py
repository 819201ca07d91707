"""Windows per key as stages of Spark: joins and aggregates whose keys are spread over its executors.

They give the same rows as the operators of the same name (``join``, ``aggregate``), in no order within an epoch. Rows
are numbered before Spark shuffles them, and put in order again key by key; what a key keeps is in
``jvm/KeyWindow.java``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from understudy.windowed.spans import AUTO, Rows, columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from understudy.windowed.aggregate import Aggregate
    from understudy.windowed.join import Join

_LEFT, _RIGHT, _ROW, _NUMBER = "left", "right", "row", "number"
_KEY, _COLUMN = "key{}", "column{}"
"""Columns of the state go by number: Spark writes its schema in Avro, which refuses many a user's name."""
ROWS = -1
"""Instead of a column: all rows (``jvm/Aggregates.java``)."""


class KeyedJoin:
    """A function of two DataFrames, as ``@job.stage`` takes one."""

    def __init__(self, like: Join, left: Rows, right: Rows) -> None:
        """``like``: the operator that gives the same."""
        self._like, self._left, self._right = like, left, right

    def __call__(self, left: DataFrame, right: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        made, on = self._like.schema(_arrow(left), _arrow(right)), list(self._like.on)
        names = [_KEY.format(number) for number in range(len(on))]
        rests = [[name for name in side.columns if name not in on] for side in (left, right)]
        kinds = [_kept(side, rest) for side, rest in zip((left, right), rests)]

        def side(of: DataFrame, which: int) -> DataFrame:
            keys = [_key(of, name).alias(key) for name, key in zip(on, names)]
            sides = [F.lit(None).cast(kind) for kind in kinds]
            sides[which] = _packed(of, rests[which], kinds[which])
            known = of
            for name in on:  # a null equals nothing; dropna would take NaN for one
                known = known.where(of[_quoted(name)].isNotNull())
            return known.select(*keys, sides[0].alias(_LEFT), sides[1].alias(_RIGHT), _number(of).alias(_NUMBER))

        tagged = side(left, 0).unionByName(side(right, 1))
        spans = (self._left.count, _group(self._left), self._right.count, _group(self._right))
        pairs = _through_java(tagged, "join", names, *spans)
        result = []
        for position, name in enumerate(made.names):
            if name in on:
                found, kind = pairs[names[on.index(name)]], left.schema[name].dataType
            elif position < len(left.columns):
                found, kind = pairs[_LEFT].getField(_COLUMN.format(rests[0].index(name))), left.schema[name].dataType
            else:
                number = position - len(left.columns)
                found, kind = pairs[_RIGHT].getField(_COLUMN.format(number)), right.schema[rests[1][number]].dataType
            result.append(found.cast(kind).alias(name))
        return pairs.select(*result)


class KeyedAggregate:
    """A function of a DataFrame, as ``@job.stage`` takes one."""

    def __init__(
        self, like: Aggregate, by: str | Sequence[str], window: Rows, outputs: dict[str, tuple[str, str]]
    ) -> None:
        """``like``: the operator that gives the same."""
        self._like, self._by = like, columns("aggregate", "by", by)
        self._window, self._outputs = window, outputs

    def __call__(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructField, StructType

        from understudy.windowed.folding import ALL, too_large

        like = self._like.schema(_arrow(rows))
        made = from_arrow_schema(like)
        kept = list(dict.fromkeys(column for column, _ in self._outputs.values() if column != ALL))
        names = [_KEY.format(number) for number in range(len(self._by))]
        keys = [_key(rows, name).alias(key) for name, key in zip(self._by, names)]
        kind = _kept(rows, kept)
        numbered = rows.select(*keys, _packed(rows, kept, kind).alias(_ROW), _number(rows).alias(_NUMBER))
        fields = [StructField(key, rows.schema[name].dataType) for name, key in zip(self._by, names)]
        for name, (column, function) in self._outputs.items():
            told = function in ("sum", "mean", "count")
            field = made[name].dataType if told else kind[kept.index(column)].dataType
            fields.append(StructField(_COLUMN.format(len(fields)), field))
        of = [ROWS if column == ALL else kept.index(column) for column, _ in self._outputs.values()]
        functions = [function for _, function in self._outputs.values()]
        said = [too_large(name, output, like.field(name).type) for name, output in self._outputs.items()]
        about = (self._window.count, _group(self._window), of, functions, said, StructType(fields))
        found = _through_java(numbered, "aggregate", names, *about)
        return found.select(*[
            found[field.name].cast(made[name].dataType).alias(name)
            for field, name in zip(fields, [*self._by, *self._outputs])
        ])  # fmt: skip


def _arrow(frame: DataFrame) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")


def _group(span: Rows) -> int:
    """0 where each key gets what suits its rate."""
    return 0 if span.group_of_key == AUTO else span.group_of_key


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _key(frame: DataFrame, name: str) -> Column:
    """Of a float its one zero and its one NaN: state is found by the bits of its key."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType

    column, kind = frame[_quoted(name)], frame.schema[name].dataType
    if not isinstance(kind, (DoubleType, FloatType)):
        return column
    nan, zero = F.lit(float("nan")).cast(kind), F.lit(0.0).cast(kind)
    return F.when(F.isnan(column), nan).when(column == zero, zero).otherwise(column)


def _kept(frame: DataFrame, names: Sequence[str]) -> StructType:
    """The type of a row as it is kept."""
    from pyspark.sql.types import BooleanType, StructField, StructType

    if not names:  # a structure without a field cannot be state
        return StructType([StructField(_COLUMN.format(0), BooleanType())])
    return cast("StructType", _numbered(StructType([frame.schema[name] for name in names])))


def _numbered(kind: DataType) -> DataType:
    """A type whose fields go by number, at every depth."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        fields = [StructField(_COLUMN.format(n), _numbered(f.dataType), f.nullable) for n, f in enumerate(kind.fields)]
        return StructType(fields)
    if isinstance(kind, ArrayType):
        return ArrayType(_numbered(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_numbered(kind.keyType), _numbered(kind.valueType), kind.valueContainsNull)
    return kind


def _packed(frame: DataFrame, names: Sequence[str], kind: StructType) -> Column:
    from pyspark.sql import functions as F

    columns = [frame[_quoted(name)] for name in names] or [F.lit(True)]
    return F.struct(*[column.cast(f.dataType).alias(f.name) for column, f in zip(columns, kind.fields)])


def _number(frame: DataFrame) -> Column:
    from pyspark.sql.classic.column import Column

    return Column(_java(frame).number())


def _java(frame: DataFrame) -> Any:
    return frame.sparkSession._jvm.understudy.KeyedWindows  # type: ignore[union-attr]


def _through_java(frame: DataFrame, name: str, keys: list[str], *about: Any) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.types import StructType

    spark = frame.sparkSession
    parse = spark._jsparkSession.parseDataType
    given = [parse(each.json()) if isinstance(each, StructType) else each for each in about]
    return DataFrame(getattr(_java(frame), name)(frame._jdf, keys, *given), spark)
