"""How the windows of many keys are saved: rows of many keys together in a part, and beside it whose rows they are.

A file for every group of every key would be thousands of tiny ones in a save. So what a save writes goes into one
*bundle*: its rows, ordered by key, and a directory of *runs*, successive rows of one key, with all that is known of the
key. A later bundle overrides an earlier one, so the head lists bundles only, and what did not change is not mentioned
anywhere in a save. A bundle of very many rows is divided, so that a damaged part costs no more than ``PART_ROWS`` rows.
Rows are saved with their numbers, so that a damaged directory costs none; and a directory says which rows have been, so
that where those are damaged, no older ones stay in their place.

Rows in a bundle die: they leave their window, or are written again with the group they are in. Two rules keep the rest
from growing, and both move what lives into the bundle that is written anyway:

- A bundle of which at most a third lives is moved. So what is on disk is at most three times what lives (and what is
  new), and moving adds at most half to what is written: two thirds of a bundle were replaced before one third moved.
- Where there are more than ``SMALL_MAX`` small ones, the smaller half of them is moved. Each time a row is moved for
  this its bundle is ``SMALL_MAX / 2`` times larger than before, so it happens once or twice until it is in a full one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.windowed.keys import as_key, keys_of
from understudy.windowed.log import Ints
from understudy.windowed.parts import named, packed, unpacked

PART_ROWS = 16_384
"""A part of 100-byte rows is then 1.6 MB: worth a file, and not much to lose."""
SMALL_MAX = 32
"""The head lists bundles in 150 bytes each, with every save."""
LIVES_MIN = 1 / 3

_COLUMNS = ("first", "count", "total", "open", "saved", "rate")


@dataclass(frozen=True)
class Bundle:
    number: int
    rows: str
    """The name of the part with rows."""
    directory: str
    size: int


@dataclass
class Runs:
    """A directory: for every run its key, and what is known of the key."""

    keys: list[Any]
    """The columns of the keys."""
    first: Ints
    count: Ints
    total: Ints
    """How many rows the key has had."""
    open: Ints
    """The first row of the key's group that is not full."""
    saved: Ints
    """The save with its newest row."""
    rate: Any
    """Rows per save."""
    exact: bool = True
    """False: made up from the rows, and nothing is known but these."""


def to_move(live: Mapping[int, int], size: Mapping[int, int]) -> set[int]:
    """Which bundles are to be written again, told how many of their rows live and how many they have."""
    moved = {number for number, rows in live.items() if 0 < rows <= size[number] * LIVES_MIN}
    small = sorted((rows, number) for number, rows in live.items() if rows and size[number] < PART_ROWS / 2)
    small = [(rows, number) for rows, number in small if number not in moved]
    if len(small) >= SMALL_MAX:
        moved |= {number for _, number in small[: SMALL_MAX // 2]}
    return moved


def write(number: int, rows: pa.Table, numbers: Ints, runs: Runs) -> tuple[Bundle, dict[str, bytes | None]]:
    columns = [pa.array(getattr(runs, name)) for name in _COLUMNS]
    names = [*_COLUMNS, *(f"key{position}" for position in range(len(runs.keys)))]
    directory = packed(pa.table([*columns, *runs.keys], names=names), "lz4")  # small numbers, and much alike
    body = packed(rows.append_column("number", pa.array(numbers)))
    bundle = Bundle(number, named(f"rows-{number}", body), named(f"keys-{number}", directory), rows.num_rows)
    return bundle, {bundle.rows: body, bundle.directory: directory}


def read(bundle: Bundle, per: Sequence[str], parts: Mapping[str, bytes | None]) -> tuple[Runs | None, pa.Table | None]:
    """What of it can be read: whose rows they are, and the rows."""
    numbered = unpacked(bundle.rows, parts.get(bundle.rows))
    if numbered is not None and numbered.num_rows != bundle.size:
        numbered = None
    rows = None if numbered is None else numbered.remove_column(numbered.num_columns - 1)
    found = unpacked(bundle.directory, parts.get(bundle.directory))
    if found is not None and found.column_names[: len(_COLUMNS)] == list(_COLUMNS):
        keys = [as_key(column) for column in found.columns[len(_COLUMNS) :]]
        return Runs(keys, *(_plain(found[name]) for name in _COLUMNS)), rows
    if numbered is None:
        return None, None
    numbers = _plain(numbered.columns[-1])
    nothing = np.zeros(len(numbers), np.int64)
    ends = numbers + 1
    return Runs(keys_of(rows, per), numbers, nothing + 1, ends, ends, nothing, nothing * 0.0, exact=False), rows


def _plain(column: Any) -> Any:
    return column.combine_chunks().to_numpy(zero_copy_only=False)


def latest(keys: Ints, numbers: Ints, order: Sequence[int] | Ints) -> Ints:
    """Where each (key, number) is that is in several bundles: the newest, in the order of keys and numbers."""
    ordered = np.lexsort((np.asarray(order), numbers, keys))
    keys, numbers = keys[ordered], numbers[ordered]
    newest = np.ones(len(ordered), bool)
    newest[:-1] = (keys[1:] != keys[:-1]) | (numbers[1:] != numbers[:-1])
    found: Ints = ordered[newest]
    return found
