"""A row of every input: the n-th of each with the n-th of the others (Section 4's barrier).

Rows are paired by their numbers, and a row that is missing keeps its number. So whatever is damaged or lost, a row is
only ever paired with its own partners: a partner that is gone takes the others with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from understudy.core.operators import OperatorClass, of_barrier
from understudy.windowed.base import (
    Restored,
    StateDamaged,
    Times,
    Window,
    Windowed,
    aligned,
    check_columns,
    decoded_schema,
)
from understudy.windowed.rows import RowWindow

GROUP = 512
"""Rows that are saved together. What waits is usually little; where one input runs ahead, it is only added to."""
_TOTALS = "totals"


class Barrier(Windowed):
    """Results have the columns of the first input, then those of the second, and so on; one whose name was there before
    gets the number of its input, as in ``speed_2``."""

    needs_all_input: ClassVar[bool] = True

    def __init__(self, inputs: int = 2, *, schemas: Sequence[pa.Schema] | None = None) -> None:
        if isinstance(inputs, bool) or not isinstance(inputs, int) or inputs < 2:
            raise ValueError(
                f"barrier(inputs={inputs!r}) must be 2 or more: a barrier waits for rows of several inputs"
            )
        if schemas is not None:
            self.schema(*schemas)
        self._waiting = [RowWindow(None, GROUP) for _ in range(inputs)]

    @staticmethod
    def schema(*inputs: pa.Schema) -> pa.Schema:
        """Of what comes of rows like these. Raises ValueError."""
        fields: list[Any] = []
        names: set[str] = set()
        for number, schema in enumerate(inputs, 1):
            check_columns(f"input {number} of the barrier", schema)
            for field in decoded_schema(schema):
                name = f"{field.name}_{number}" if field.name in names else field.name
                if name in names:
                    raise ValueError(f"two columns of the barrier's result would be named {name!r}; rename one")
                names.add(name)
                fields.append(field.with_name(name))
        return pa.schema(fields)

    def process(self, *tables: pa.Table) -> pa.Table:
        came = [
            aligned(table, waiting.log.schema, f"input {number} of the barrier")
            for number, (waiting, table) in enumerate(zip(self._waiting, tables, strict=True), 1)
        ]
        schema = self.schema(*(table.schema for table in came))
        for waiting, table in zip(self._waiting, came):
            waiting.insert(table)
        until = min(waiting.total for waiting in self._waiting)
        numbers = [waiting.numbers(until) for waiting in self._waiting]
        common = numbers[0]
        for each in numbers[1:]:
            common = np.intersect1d(common, each, assume_unique=True)
        columns: list[Any] = []
        for waiting, each in zip(self._waiting, numbers):
            log, at = waiting.log, np.searchsorted(each, common)
            whole = len(common) and common[-1] - common[0] + 1 == len(common)
            rows = log.slice(log.first + int(at[0]), len(at)) if whole else log.take(log.first + at)
            columns += rows.columns
        for waiting in self._waiting:
            waiting.drop_before(until)
        return pa.table(columns, schema=schema).combine_chunks()

    def missed(self, rows: Sequence[int]) -> int:
        """Their partners, which may come, wait for nothing."""
        gone = super().missed(rows)
        until = min(waiting.total for waiting in self._waiting)
        for waiting in self._waiting:
            waiting.drop_before(until)
        return gone

    def judged(self) -> OperatorClass:
        return of_barrier()

    def windows(self) -> Mapping[str, Window]:
        return {f"input{number}": waiting for number, waiting in enumerate(self._waiting, 1)}

    def save(self, at: float | None = None) -> dict[str, bytes | None]:
        totals = [waiting.total for waiting in self._waiting]
        for waiting in self._waiting:
            waiting.notes = {_TOTALS: totals}  # in every head, so that one that is damaged is not missed
        return super().save(at)

    def restore(
        self, parts: Mapping[str, bytes | None], lost: Sequence[int | None] = (), times: Times | None = None
    ) -> Restored:
        """``times`` are no help here: what is not known to be lost must come again, or pairs would be wrong. Raises
        StateDamaged where no head can be read: nobody knows the rows' numbers then, which pairs are told by."""
        result = super().restore(parts, lost)
        totals = next((w.notes[_TOTALS] for w in self._waiting if _TOTALS in w.notes), None)
        if totals is None:
            heads = ", ".join(result.parts) or "there is none"
            raise StateDamaged(
                f"no head of the barrier's state can be read ({heads}), and without one rows would be paired with "
                "others than their partners; restore another state that was saved"
            )
        for number, waiting in enumerate(self._waiting):
            if _TOTALS not in waiting.notes:  # its head is gone, and all that waited with it
                gone = lost[number] if number < len(lost) else None
                waiting.drop_before(waiting.skip(totals[number] + (gone or 0)))
        return result
