"""What all operators with windows can do, and what they say of a restore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from understudy.core.operators import OperatorClass
from understudy.core.reach import Span
from understudy.windowed.parts import prefixed, under

Times = tuple[float, float]
"""When the state was saved and when it is restored, in seconds of one clock."""


@dataclass(frozen=True)
class Restored:
    """What came of a restore. Nothing in it is an error: a state that is not whole is what can be had."""

    kept: int = 0
    """Rows that are in the windows now."""
    stale: int = 0
    """Rows that were saved and would have left their window meanwhile."""
    damaged: int = 0
    """Rows that were in the windows and are gone with a part that is missing or damaged."""
    parts: tuple[str, ...] = ()
    """The names of the parts that are missing or damaged, also where that cost no row."""
    fresh: bool = False
    """A head was missing or damaged: what it was the head of begins from nothing, and is not counted in ``damaged``."""

    @property
    def words(self) -> str:
        said = [_counted(self.kept, "kept")]
        if self.stale:
            said.append(_counted(self.stale, "removed that would have expired meanwhile"))
        if self.damaged:
            said.append(_counted(self.damaged, "lost with what is missing or damaged"))
        if self.fresh:
            said.append("begun from nothing where a head is missing or damaged")
        if self.parts:
            said.append(f"missing or damaged: {', '.join(self.parts)}")
        return "; ".join(said)

    def within(self, prefix: str) -> Restored:
        return replace(self, parts=tuple(f"{prefix}.{name}" for name in self.parts))

    def __add__(self, other: Restored) -> Restored:
        return Restored(
            self.kept + other.kept,
            self.stale + other.stale,
            self.damaged + other.damaged,
            self.parts + other.parts,
            self.fresh or other.fresh,
        )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'} {what}"


class StateDamaged(ValueError):
    """So much of a state is missing or damaged that all that came of the rest would be wrong."""


class Windowed(ABC):
    """An operator whose state is windows.

    ``process`` is called once per epoch, ``save`` and ``restore`` between two epochs. What ``save`` returns is the
    whole state by parts; a part without content is one of the save just before, or of the restore, unchanged. So
    whoever calls it must have kept that, and may forget every part that the newest save does not name, once that is
    safe."""

    needs_all_input: ClassVar[bool] = False
    """Its results are wrong, not only incomplete, when rows of its input are lost."""

    needs_cut_times: bool = False
    """It counts the time at which each epoch was cut (``understudy.cut_times``), and is given it with the rows."""

    def missed(self, rows: Sequence[int]) -> int:
        """After a restore: of every input so many rows came after the save, and will not come again. What would have
        expired with them leaves. Returns how many rows that were."""
        return sum(window.missed(lost) for window, lost in zip(self.windows().values(), rows))

    @abstractmethod
    def process(self, *tables: pa.Table) -> pa.Table:
        """One epoch's rows of every input. Returns what comes of them."""

    @abstractmethod
    def schema(self, *inputs: pa.Schema) -> pa.Schema:
        """Of what comes of rows like these. Raises ValueError."""

    @abstractmethod
    def judged(self) -> OperatorClass:
        """What it remembers, and whether it can be rebuilt by replay."""

    def spans(self) -> list[Span]:
        """Which rows its state is made of, window by window. Only of one that can be rebuilt by replay."""
        return [window.span() for window in self.windows().values()]

    @abstractmethod
    def windows(self) -> Mapping[str, Window]:
        """What is to be saved, by a name that is part of every part's name. In the order of the inputs."""

    def save(self, at: float | None = None) -> dict[str, bytes | None]:
        """``at``: the time, by the clock of ``times`` in ``restore``, which counts rows per second by it."""
        parts: dict[str, bytes | None] = {}
        for prefix, window in self.windows().items():
            parts |= prefixed(prefix, window.save(at))
        return parts

    def restore(
        self, parts: Mapping[str, bytes | None], lost: Sequence[int | None] = (), times: Times | None = None
    ) -> Restored:
        """Take up a state that was saved; whatever was here before is forgotten.

        ``lost``: for every input the rows that came after the save and will not come again; None where nobody knows,
        and then ``times`` tells how many they may have been."""
        result = Restored()
        for number, (prefix, window) in enumerate(self.windows().items()):
            stale = lost[number] if number < len(lost) else None
            result += window.restore(under(prefix, parts), stale, times).within(prefix)
        return result


class Window(ABC):
    """What keeps rows: ``RowWindow`` or ``KeyedWindows``."""

    @abstractmethod
    def save(self, at: float | None = None) -> dict[str, bytes | None]: ...

    @abstractmethod
    def restore(
        self, parts: Mapping[str, bytes | None], stale: int | None = None, times: Times | None = None
    ) -> Restored: ...

    @abstractmethod
    def missed(self, lost: int) -> int:
        """So many rows are lost that would have come now. Returns how many leave because of them."""

    def span(self) -> Span:
        """The number of the oldest row that it has, and the number that its next row will have."""
        raise NotImplementedError("it has rows of every key, however old they are")


class Rate:
    """Rows per second between two saves, as Section 4.4 has it written with the state."""

    def __init__(self) -> None:
        self.rows_per_s = 0.0
        self._at: float | None = None

    def saved(self, new: int, at: float | None) -> None:
        if at is not None and self._at is not None and at > self._at:
            self.rows_per_s = new / (at - self._at)
        self._at = at if at is not None else self._at

    def restored(self, rows_per_s: float, times: Times | None) -> None:
        self.rows_per_s = rows_per_s
        self._at = times[1] if times else None

    def lost(self, stale: int | None, times: Times | None) -> int:
        """How many rows have gone by: as known, else by the paper's formula where there are times for it."""
        if stale is not None:
            return max(0, stale)
        return max(0, round((times[1] - times[0]) * self.rows_per_s)) if times else 0


_MAY_HAVE_DICTIONARIES = {
    pa.lib.Type_DICTIONARY, pa.lib.Type_STRUCT, pa.lib.Type_LIST, pa.lib.Type_LARGE_LIST
}  # fmt: skip


def decoded(table: pa.Table) -> pa.Table:
    """The table with plain columns in the place of dictionaries. Those of all epochs together would grow for ever, also
    where few rows are kept, and outgrow their indices: a dictionary is how values came, not what they are."""
    schema = decoded_schema(table.schema)
    return table if schema is table.schema else table.cast(schema)


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """The same schema where it has no dictionary."""
    types = schema.types
    if not any(type_.id in _MAY_HAVE_DICTIONARIES for type_ in types):
        return schema
    found = [_decoded_type(type_) for type_ in types]
    if found == types:
        return schema
    return pa.schema([field.with_type(type_) for field, type_ in zip(schema, found)], metadata=schema.metadata)


def _decoded_type(type_: Any) -> Any:
    if pa.types.is_dictionary(type_):
        return _decoded_type(type_.value_type)
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_decoded_type(field.type)) for field in type_])
    for is_it, make in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_it(type_):
            return make(type_.value_field.with_type(_decoded_type(type_.value_type)))
    return type_


def check_columns(what: str, schema: pa.Schema, needed: Sequence[str] = ()) -> None:
    """Raises ValueError where a name is there twice, or one is missing."""
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{what} has two columns named {twice!r}; rename one")
    missing = next((name for name in needed if name not in schema.names), None)
    if missing is not None:
        raise ValueError(f"{what} has no column {missing!r}, only {schema.names}")


def aligned(table: pa.Table, schema: pa.Schema | None, what: str) -> pa.Table:
    """The table in the schema of what is there already; of what is the first, ``decoded``. Raises ValueError."""
    if schema is not None and table.schema.equals(schema):
        return table
    table = decoded(table)
    if schema is None or table.schema.equals(schema):
        return table
    told = f"{what} has rows of {_told(schema)}, and is given {_told(table.schema)}"
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise ValueError(f"{told}: without a column {missing[0]!r}")
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise ValueError(f"{told} ({error})") from error


def _told(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
