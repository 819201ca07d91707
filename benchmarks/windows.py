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
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from common import console, save
from understudy.lab.spade_join import SEED, count, first_stream, join, saves, timed
from understudy.windowed.bundles import SMALL_MAX
from understudy.windowed.keyed import KeyedWindows

JOIN_TIMES_MIN, SAVE_SHARE_MAX, COUNT_MIN, KEYS_MS_MAX = 50.0, 0.03, 5e6, 100.0


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
    windows = KeyedWindows(1024, group, ["k"])
    written = new = 0
    busy = 0.0
    for number in range(saves_ + 40):
        windows.insert(first_stream(draw, 2000, 50, zipf=True))
        before = windows._written
        _, save_s, _ = timed(windows.save)
        if number >= 40:
            written += sum(b.size for b in windows._bundles.values() if b.number > before)
            new, busy = new + 2000, busy + save_s
    return {"group": group, "rows_per_new_row": round(written / new, 2), "save_ms": round(busy / saves_ * 1000, 2)}


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
    result["join"] = [join(window, epoch, window // partners, seconds) for window, epoch, partners in shapes]
    result["join"].append(join(1024, 10_000, 50, seconds, per="k"))
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
