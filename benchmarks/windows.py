"""`make bench-windows`: operators with windows, and what their checkpoints write. One core, no hosts, no Spark.

Rows per second are of processor time (of all threads, Arrow's pool held to one), so that what else the machine does is
not measured; ``wall`` is beside it. ``join``: S1 (two integers, 70 characters) in a window, S2 (an integer, 10
characters) in none, as in Section 5.2 of Jacques-Silva et al. 2009, and how many times Table 1's input rate that is.
``save``: bytes and time of a checkpoint of which 1 % is new against one of everything. ``keys``: an epoch with a row
for each of 10,000 keys. ``zipf``: rows written for every new row, groups of one size against ``group="auto"``.
``count``: an operator that only counts. Goals are checked.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from common import console, save
from understudy.windowed.bundles import SMALL_MAX
from understudy.windowed.join import Join
from understudy.windowed.keyed import KeyedWindows
from understudy.windowed.rows import RowWindow
from understudy.windowed.spans import rows

TABLE_1 = {8192: 9350.94, 16384: 5054.39, 32768: 2503.25, 65536: 970.19, 131072: 889.64}
"""Input rows per second of the paper's join, by window."""
JOIN_TIMES_MIN, SAVE_SHARE_MAX, COUNT_MIN, KEYS_MS_MAX = 50.0, 0.03, 5e6, 100.0
SEED = 7


class Counts:
    """An operator that only counts."""

    def __init__(self) -> None:
        self.n = 0

    def process(self, table: pa.Table) -> pa.Table:
        self.n += table.num_rows
        return pa.table({"n": [self.n]})


def first_stream(draw: np.random.Generator, count: int, keys: int) -> pa.Table:
    text = pa.array([f"{n:070d}" for n in draw.integers(0, 10**9, count)])
    return pa.table({"k": draw.integers(0, keys, count), "other": draw.integers(0, 10**9, count), "long": text})


def second_stream(draw: np.random.Generator, count: int, keys: int) -> pa.Table:
    text = pa.array([f"{n:010d}" for n in draw.integers(0, 10**9, count)])
    return pa.table({"k": draw.integers(0, keys, count), "short": text})


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What came of it, and seconds of processor time and of wall time."""
    busy, wall = time.process_time(), time.perf_counter()
    made = work()
    return made, time.process_time() - busy, time.perf_counter() - wall


def join(window: int, epoch: int, matches: int, seconds: float, per: str | None = None) -> dict[str, Any]:
    """``epoch``: rows of both inputs together. ``matches``: partners of a row of S2, on average."""
    draw = np.random.default_rng(SEED)
    keys = 50 if per else window // matches
    asked = 600 if per else keys
    operator = Join("k", rows(window, group=max(1, window // 64), per=per), rows(0))
    held = keys * window if per else window
    operator.process(first_stream(draw, held, keys), second_stream(draw, 0, asked))
    epochs = [(first_stream(draw, epoch // 2, keys), second_stream(draw, epoch // 2, asked)) for _ in range(8)]
    operator.process(*epochs[0])
    busy = wall = 0.0
    done = made = 0
    while busy < seconds:
        epoch_ = epochs[done % len(epochs)]
        result, more_busy, more_wall = timed(lambda epoch_=epoch_: operator.process(*epoch_))
        busy, wall, done, made = busy + more_busy, wall + more_wall, done + 1, made + result.num_rows
    _, save_busy, _ = timed(operator.save)
    operator.process(*epochs[0])
    _, save_busy, _ = timed(operator.save)
    return {
        "window": window,
        "per_key": per is not None,
        "epoch_rows": epoch,
        "rows_per_s": round(epoch * done / busy),
        "rows_per_s_wall": round(epoch * done / wall),
        "out_rows_per_s": round(made / busy),
        "partners": round(made / (done * epoch / 2), 1),
        "times_table_1": None if per else round(epoch * done / busy / TABLE_1[window], 1),
        "save_ms": round(save_busy * 1000, 2),
    }


def saves(window: int, group: int, repeats: int) -> dict[str, Any]:
    draw = np.random.default_rng(SEED)
    kept = RowWindow(window, group)
    kept.insert(first_stream(draw, 2 * window, 1000))
    whole, whole_s, _ = timed(kept.save)
    new = window // 100
    bytes_, times = [], []
    for _ in range(repeats):
        kept.insert(first_stream(draw, new, 1000))
        part, busy, _ = timed(kept.save)
        bytes_.append(sum(len(body) for body in part.values() if body is not None))
        times.append(busy)
    whole_bytes = sum(len(body) for body in whole.values() if body is not None)
    parts = RowWindow(window, group)
    everything = {**whole, **{name: body for name, body in part.items() if body is not None}}
    _, restore_s, _ = timed(lambda: parts.restore({name: everything.get(name) for name in part}))
    return {
        "window": window,
        "group": group,
        "new_rows": new,
        "whole_bytes": whole_bytes,
        "bytes": round(median(bytes_)),
        "share": round(median(bytes_) / whole_bytes, 4),
        "share_max": round(max(bytes_) / whole_bytes, 4),
        "whole_ms": round(whole_s * 1000, 1),
        "save_ms": round(median(times) * 1000, 2),
        "restore_ms": round(restore_s * 1000, 1),
    }


def keyed(kind: str, keys: int, window: int, epochs: int) -> dict[str, Any]:
    """Full windows, and an epoch with a row for each of 10,000 keys, in an order of its own."""
    draw = np.random.default_rng(SEED)
    windows = KeyedWindows(window, "auto", ["k"])

    def epoch(numbers: Any) -> pa.Table:
        column = pa.array(numbers) if kind == "integer" else pa.array([f"key {n:08d}" for n in numbers])
        return pa.table({"k": column, "v": draw.integers(0, 10**6, len(numbers)), "text": ["x" * 80] * len(numbers)})

    for _ in range(window):
        windows.insert(epoch(draw.permutation(keys)))
    windows.save()
    inserts, saves_s, bytes_ = [], [], []
    for _ in range(epochs):
        table = epoch(draw.permutation(keys)[:10_000])
        inserts.append(timed(lambda table=table: windows.insert(table))[1])
        saved, busy, _ = timed(windows.save)
        saves_s.append(busy)
        bytes_.append(sum(len(body) for body in saved.values() if body is not None) / table.nbytes)
    return {
        "keys": keys,
        "kind": kind,
        "window": window,
        "rows": len(windows),
        "insert_ms": round(median(inserts) * 1000, 1),
        "insert_ms_max": round(max(inserts) * 1000, 1),
        "save_ms": round(median(saves_s) * 1000, 1),
        "save_ms_max": round(max(saves_s) * 1000, 1),
        "bytes_per_new_byte": round(sum(bytes_) / len(bytes_), 2),
    }


def zipf(group: int | str, saves_: int) -> dict[str, Any]:
    """2,000 rows between two saves, over 50 keys of which the n-th is as frequent as 1/n, as in Section 5.2."""
    draw = np.random.default_rng(SEED)
    weights = 1 / np.arange(1, 51)
    windows = KeyedWindows(1024, group, ["k"])
    written = new = 0
    busy = 0.0
    for number in range(saves_ + 40):
        keys = draw.choice(50, 2000, p=weights / weights.sum())
        windows.insert(first_stream(draw, 2000, 50).set_column(0, "k", pa.array(keys)))
        before = windows._written
        _, save_s, _ = timed(windows.save)
        if number >= 40:
            written += sum(b.size for b in windows._bundles.values() if b.number > before)
            new, busy = new + 2000, busy + save_s
    return {"group": group, "rows_per_new_row": round(written / new, 2), "save_ms": round(busy / saves_ * 1000, 2)}


def count(seconds: float) -> int:
    operator, table = Counts(), first_stream(np.random.default_rng(SEED), 10_000, 1000)
    busy = 0.0
    while busy < seconds:
        busy += timed(lambda: [operator.process(table) for _ in range(100)])[1]
    return round(operator.n / busy)


def shown(title: str, found: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left", padding=(0, 0))
    for name in found[0]:
        table.add_column(name.replace("_", " "), justify="right", overflow="fold")
    for each in found:
        table.add_row(*(str(value) for value in each.values()))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a second or two, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    quick = arguments.quick
    pa.set_cpu_count(1)
    seconds = 0.1 if quick else 2.0
    result: dict[str, Any] = {"seed": SEED, "quick": quick}
    shapes = [(32768, 1000, 10), (32768, 10_000, 10), (32768, 10_000, 20)]
    if not quick:
        shapes += [(8192, 10_000, 10), (131072, 1000, 10), (131072, 10_000, 10)]
    result["join"] = [join(window, epoch, matches, seconds) for window, epoch, matches in shapes]
    result["join"].append(join(1024, 10_000, 0, seconds, per="k"))
    shown("join, rows per second of one core", result["join"])
    result["save"] = [saves(131072, group, 3 if quick else 20) for group in (512, 4096)]
    shown("a checkpoint with 1 % new rows, against a whole one", result["save"])
    shapes_ = [("integer", 10_000, 10), ("string", 10_000, 10)]
    shapes_ += [] if quick else [("integer", 100_000, 10), ("integer", 10_000, 100)]
    result["keys"] = [keyed(*shape, epochs=3 if quick else 2 * SMALL_MAX) for shape in shapes_]
    shown("an epoch with a row for each of 10,000 keys", result["keys"])
    result["zipf"] = [zipf(group, 5 if quick else 60) for group in ("auto", 32, 64, 128, 256)]
    shown("rows written for every new row, Zipf keys", result["zipf"])
    result["count_rows_per_s"] = count(seconds / 4)
    console.print(f"an operator that only counts: {result['count_rows_per_s']:,} rows per second", highlight=False)
    bars = {
        "join": min(each["times_table_1"] for each in result["join"][:2]) >= JOIN_TIMES_MIN,
        "save": result["save"][0]["share"] <= SAVE_SHARE_MAX,
        "keys": max(each["insert_ms"] for each in result["keys"][:2]) <= KEYS_MS_MAX,
        "count": result["count_rows_per_s"] >= COUNT_MIN,
    }
    result["bars"] = bars
    save("bench-windows", result, arguments.out)
    console.print(bars)
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
