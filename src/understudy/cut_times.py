"""The time at which an epoch was cut: what windows by time count that name no column (``us.seconds(20, slide=5)``).

It is fixed once, by the source that cuts the epoch, and kept with whatever else says what the epoch holds: its entry,
or its rows. So whoever makes the epoch again finds the same. From there on it travels with the rows, as metadata of
their table: an epoch without rows has it too, and no column of the user's is in its way. A stage that has several
inputs goes by the newest. Nobody pays for it in jobs without such a window (``Job.needs_cut_times``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

NAME = "understudy.cut_us"
"""In an entry, and in metadata: microseconds since 1970."""
KEY = NAME.encode()
_ENTRY = "entry"

# -- of tables --------------------------------------------------------------------------------------------------------


def time_of(schema: pa.Schema) -> int | None:
    """None of an epoch that was lost, which came out empty."""
    found = (schema.metadata or {}).get(KEY)
    return None if found is None else int(found)


def with_time(table: pa.Table, cut_us: int | None) -> pa.Table:
    if cut_us is None:
        return without_time(table)
    return table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: str(cut_us).encode()})


def without_time(table: pa.Table) -> pa.Table:
    """As users are shown it."""
    metadata = table.schema.metadata or {}
    if KEY not in metadata:
        return table
    return table.replace_schema_metadata({key: value for key, value in metadata.items() if key != KEY} or None)


def newest(tables: Iterable[pa.Table | None]) -> int | None:
    """Of those that are there and have a time."""
    found = [time_of(table.schema) for table in tables if table is not None]
    return max((each for each in found if each is not None), default=None)


# -- of entries -------------------------------------------------------------------------------------------------------


def timed_entry(entry: Any, cut_us: int) -> dict[str, Any]:
    """Around it, whatever it is: an entry is its source's own."""
    return {NAME: cut_us, _ENTRY: entry}


def entry_time(entry: Any) -> int | None:
    return entry[NAME] if isinstance(entry, dict) and NAME in entry else None


def plain_entry(entry: Any) -> Any:
    """As its source has made it."""
    return entry[_ENTRY] if entry_time(entry) is not None else entry
