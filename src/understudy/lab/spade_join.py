"""The join of Jacques-Silva et al. 2009, Section 5.2: its streams, what it takes in without checkpoints, and what a
save of its window writes. In this process, without hosts and without Spark.

S1 has two integers and 70 characters and is kept in a window; S2 has an integer and 10 characters and is kept in none.
Rows per second are of processor time (of all threads, Arrow's pool held to one), so that what else the machine does is
not measured; ``wall`` is beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from understudy.windowed.join import Join
from understudy.windowed.rows import RowWindow
from understudy.windowed.spans import rows

TABLE_1 = {
    8192: (9350.94, 25451.04),
    16384: (5054.39, 27180.69),
    32768: (2503.25, 25643.36),
    65536: (970.19, 14099.27),
    131072: (889.64, 13062.59),
}
"""Rows per second that the paper's join takes in and gives out, by window."""
PER_KEY_IN, PER_KEY_OUT = 2026.52, 75856.67
"""The same of the join per key."""
PER_KEY_WINDOW, KEYS, ASKED = 1024, 50, 600
"""Rows in the window of a key, keys in S1, and keys in S2."""
SEED = 7


class Counts:
    """An operator that only counts."""

    def __init__(self) -> None:
        self.n = 0

    def process(self, table: pa.Table) -> pa.Table:
        self.n += table.num_rows
        return pa.table({"n": [self.n]})


# -- streams -------------------------------------------------------------------------------------------------------


def first_stream(draw: np.random.Generator, count: int, keys: int, *, zipf: bool = False) -> pa.Table:
    """``zipf``: the n-th key is as frequent as 1/n."""
    weights = 1 / np.arange(1, keys + 1)
    found = draw.choice(keys, count, p=weights / weights.sum()) if zipf else draw.integers(0, keys, count)
    return pa.table({"k": found, "other": draw.integers(0, 10**9, count), "long": _text(draw, count, 70)})


def second_stream(draw: np.random.Generator, count: int, keys: int) -> pa.Table:
    return pa.table({"k": draw.integers(0, keys, count), "short": _text(draw, count, 10)})


def _text(draw: np.random.Generator, count: int, length: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(draw.integers(0, 10**9, count)).cast(pa.string()), width=length, padding="0")


def keys_of(window: int) -> int:
    """How many keys there must be for each row of S2 to find as many partners as Table 1's rates say."""
    rate, made = TABLE_1[window]
    return round(window / (made / (rate / 2)))


def operator(window: int, group: int | Literal["auto"], per: str | None = None) -> Join:
    return Join("k", rows(window, group=group, per=per), rows(0))


# -- speed ---------------------------------------------------------------------------------------------------------


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What came of it, and seconds of processor time and of wall time."""
    busy, wall = time.process_time(), time.perf_counter()
    made = work()
    return made, time.process_time() - busy, time.perf_counter() - wall


@contextmanager
def one_core() -> Iterator[None]:
    """Arrow's pool is held to one thread meanwhile."""
    before = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        pa.set_cpu_count(before)


def join(window: int, epoch: int, keys: int, seconds: float, per: str | None = None) -> dict[str, Any]:
    """``epoch``: rows of both inputs together."""
    draw = np.random.default_rng(SEED)
    asked = ASKED if per else keys
    held = keys * window if per else window
    joining = operator(window, max(1, window // 64), per)
    joining.process(first_stream(draw, held, keys), second_stream(draw, 0, asked))
    epochs = [(first_stream(draw, epoch // 2, keys), second_stream(draw, epoch // 2, asked)) for _ in range(8)]
    joining.process(*epochs[0])
    busy = wall = 0.0
    done = made = 0
    while busy < seconds:
        result, more_busy, more_wall = timed(partial(joining.process, *epochs[done % len(epochs)]))
        busy, wall, done, made = busy + more_busy, wall + more_wall, done + 1, made + result.num_rows
    joining.save()
    joining.process(*epochs[0])
    _, save_busy, _ = timed(joining.save)
    return {
        "window": window,
        "per_key": per is not None,
        "epoch_rows": epoch,
        "rows_per_s": round(epoch * done / busy),
        "rows_per_s_wall": round(epoch * done / wall),
        "out_rows_per_s": round(made / busy),
        "partners": round(made / (done * epoch / 2), 1),
        "times_table_1": None if per else round(epoch * done / busy / TABLE_1[window][0], 1),
        "save_ms": round(save_busy * 1000, 2),
    }


def saves(window: int, group: int, repeats: int) -> dict[str, Any]:
    """A save of a window of which 1 % is new, against one of everything."""
    draw = np.random.default_rng(SEED)
    kept = RowWindow(window, group)
    kept.insert(first_stream(draw, 2 * window, 1000))
    whole, whole_s, _ = timed(kept.save)
    new = window // 100
    bytes_, times = [], []
    part: dict[str, bytes | None] = whole
    for _ in range(repeats):
        kept.insert(first_stream(draw, new, 1000))
        part, busy, _ = timed(kept.save)
        bytes_.append(written(part))
        times.append(busy)
    parts = RowWindow(window, group)
    everything = {**whole, **{name: body for name, body in part.items() if body is not None}}
    _, restore_s, _ = timed(lambda: parts.restore({name: everything.get(name) for name in part}))
    return {
        "window": window,
        "group": group,
        "new_rows": new,
        "whole_bytes": written(whole),
        "bytes": round(median(bytes_)),
        "share": round(median(bytes_) / written(whole), 4),
        "share_max": round(max(bytes_) / written(whole), 4),
        "whole_ms": round(whole_s * 1000, 1),
        "save_ms": round(median(times) * 1000, 2),
        "restore_ms": round(restore_s * 1000, 1),
    }


def written(saved: dict[str, bytes | None]) -> int:
    """Bytes that a save has for whoever has the one before."""
    return sum(len(body) for body in saved.values() if body is not None)


def count(seconds: float) -> int:
    """Rows per second of an operator that only counts."""
    counting, table = Counts(), first_stream(np.random.default_rng(SEED), 10_000, 1000)
    busy = 0.0
    while busy < seconds:
        busy += timed(lambda: [counting.process(table) for _ in range(100)])[1]
    return round(counting.n / busy)
