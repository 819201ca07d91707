"""What Jacques-Silva et al. 2009 claim in Section 5, as far as it is a number or a direction, and what Understudy is to
reach besides."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import sqrt
from statistics import fmean

from understudy.lab import claims
from understudy.lab.claims import INFINITE, Claim, Row, Value, View
from understudy.lab.spade_join import TABLE_1

HOWS = {"measured": "measured", "spark": "measured on Spark"}
"""The second only where somebody has measured it (``spade.SPARK``)."""
JOIN_TIMES_MIN, COUNT_MIN, SAVE_SHARE_MAX = 50.0, 5e6, 0.03
"""How many times Table 1's input rate a join takes in, rows per second of an operator that only counts, and what a save
with 1 % new rows may write of what a whole one does."""
_SMALL, _LARGE = "512", "4096"


def rmse(view: View, series: str) -> float:
    """Of all outputs of all runs from the failure on."""
    squares, outputs = view.line("7", series, "squares"), view.line("7", series, "outputs")
    return sqrt(sum(squares.values()) / sum(outputs.values()))


def _worst(series: str) -> Value:
    return lambda v: max(v.line("7", series, "worst").values())


def mean_overhead(view: View, figure: str, window: float) -> float:
    """Over the group sizes."""
    return fmean(view.line(figure, group, "overhead")[window] for group in _groups(view, figure))


def _groups(view: View, figure: str) -> list[str]:
    found = []
    for group in ("512", "1024", "2048", "4096"):
        try:
            view.line(figure, group, "overhead")
        except KeyError:
            continue
        found.append(group)
    if not found:
        raise KeyError(figure)
    return found


def _falls(figure: str) -> Value:
    def value(view: View) -> float:
        windows = list(view.line(figure, _SMALL, "overhead"))
        return mean_overhead(view, figure, windows[-1]) / mean_overhead(view, figure, windows[0])

    return value


def _steepest_rise(figure: str) -> Value:
    """From one window to the next."""

    def value(view: View) -> float:
        found = [mean_overhead(view, figure, window) for window in view.line(figure, _SMALL, "overhead")]
        if len(found) < 2:
            raise KeyError(figure)
        return max(after / before for before, after in pairwise(found))

    return value


def _small_against_large(figure: str, windows_min: int, name: str = "overhead") -> Value:
    """Of all windows from this one on together."""

    def value(view: View) -> float:
        small, large = (view.line(figure, group, name) for group in (_SMALL, _LARGE))
        return sum(small[w] for w in small if w >= windows_min) / sum(large[w] for w in large if w >= windows_min)

    return value


def best(view: View, series: str) -> float:
    """The least overhead among group sizes that are the same for all keys."""
    return min(overhead for group, overhead in view.line("10", series, "overhead").items() if group)


def _auto(view: View, series: str, value: str) -> float:
    return view.line("10", series, value)[0]


def _auto_against_one_size(view: View) -> float:
    saved = view.line("10", "Zipf, 1 s", "bytes")
    return saved[0] / min(bytes_ for group, bytes_ in saved.items() if group)


_FIXED = (
    "A save also takes what does not depend on what is new: asking the process, a head that lists all groups, and a "
    "list of their files. In a window of 131,072 rows that is more for 257 groups of 512 than what they spare in rows."
)

_ALL_NEW = (
    "In 10 s the paper's rates bring more rows than the smallest window holds, which is all that it saves. The next "
    "two have more to save."
)
_FILES = (
    "A file more takes about as long here as 100 KB more in one. With the 1,250 rows that come in a second, three or "
    "four groups of 512 against one or two of 4,096 are about even in time; what they spare is bytes."
)
NOISE = 0.1
"""By how much the means of two points differ on a machine that does something else besides."""

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "Section 5.1",
        "runs without failure give the same outputs twice (1: yes)",
        "all runs produced the same",
        1,
        1,
        1,
        lambda v: v.middle("7", "golden", "same"),
    ),
    Claim(
        "Fig 7",
        "RMSE with checkpoints / without",
        "4.80 / 7.79",
        4.80 / 7.79,
        0,
        0.8,
        lambda v: rmse(v, "with") / rmse(v, "without"),
        1,
    ),
    Claim("Fig 7", "RMSE with checkpoints, points", "4.80", 4.80, 0, 4.80, lambda v: rmse(v, "with")),
    Claim("Fig 7", "worst error with checkpoints, points", "at most 6", 6, 0, 6, _worst("with")),
    Claim(
        "Fig 7",
        "worst error without / with checkpoints",
        "52 / 6",
        52 / 6,
        2,
        INFINITE,
        lambda v: _worst("without")(v) / _worst("with")(v),
        1,
    ),
    Claim(
        "Table 1",
        "input rate of the join, the least multiple of the paper's over all windows",
        "1",
        1,
        1,
        INFINITE,
        lambda v: min(rate / TABLE_1[int(w)][0] for w, rate in v.line("table-1", "join", "rows_per_s").items()),
    ),
    Claim(
        "Table 1",
        "output rate of the join, the least multiple of the paper's over all windows",
        "1",
        1,
        1,
        INFINITE,
        lambda v: min(r / TABLE_1[int(w)][1] for w, r in v.line("table-1", "join", "out_rows_per_s").items()),
    ),
    Claim(
        "Goal",
        "input rate of the join at W = 32,768, multiple of the paper's",
        "not in the paper",
        1,
        JOIN_TIMES_MIN,
        INFINITE,
        lambda v: v.line("table-1", "join", "rows_per_s")[32768] / TABLE_1[32768][0],
    ),
    Claim(
        "Goal",
        "rows per second of an operator that only counts, millions",
        "not in the paper",
        COUNT_MIN / 1e6,
        COUNT_MIN / 1e6,
        INFINITE,
        lambda v: v.middle("speed", "count", "rows_per_s") / 1e6,
    ),
    Claim(
        "Goal",
        "bytes of a save with 1 % new rows / of a whole one, W = 131,072, g = 512",
        "not in the paper",
        0.01,
        0,
        SAVE_SHARE_MAX,
        lambda v: v.line("speed", "save", "share")[512],
    ),
    Claim(
        "Fig 8",
        "overhead every 1 s, largest / smallest window, mean of all groups",
        "falls as the window grows",
        0.2,
        0,
        1,
        _falls("8"),
        1,
    ),
    Claim(
        "Fig 8",
        "overhead every 1 s, from a window to the next, the largest ratio",
        "falls as the window grows",
        0.7,
        0,
        1,
        _steepest_rise("8"),
        1,
        {"measured": _FIXED},
    ),
    Claim(
        "Fig 8",
        "overhead every 1 s at W = 32,768, g = 512 (%)",
        "less than 1 %",
        1,
        0,
        1,
        lambda v: 100 * v.line("8", _SMALL, "overhead")[32768],
    ),
    Claim(
        "Fig 8",
        "overhead every 1 s at W = 32,768, g = 512 / g = 4096",
        "smaller groups are better",
        0.5,
        0,
        1,
        lambda v: v.line("8", _SMALL, "overhead")[32768] / v.line("8", _LARGE, "overhead")[32768],
        1,
        {"measured": _FILES},
    ),
    Claim(
        "Fig 8",
        "bytes saved every 1 s, g = 512 / g = 4096, all windows from 32,768",
        "less re-serialization",
        0.5,
        0,
        0.8,
        _small_against_large("8", 32768, "bytes"),
        1,
    ),
    Claim(
        "Fig 8",
        "overhead every 1 s, g = 512 / g = 4096, all windows from 32,768",
        "smaller groups are better",
        0.5,
        0,
        1,
        _small_against_large("8", 32768),
        1,
        {"measured": _FIXED},
    ),
    Claim(
        "Fig 9",
        "overhead every 10 s / every 1 s, mean of all points",
        "higher rates than every 1 s",
        0.5,
        0,
        1,
        lambda v: _mean_of(v, "9") / _mean_of(v, "8"),
        1,
    ),
    Claim(
        "Fig 9",
        "overhead every 10 s, largest / smallest window, mean of all groups",
        "falls as the window grows",
        0.5,
        0,
        1,
        _falls("9"),
        1,
        {"measured": _ALL_NEW},
    ),
    Claim(
        "Fig 9",
        "overhead every 10 s, from a window to the next, the largest ratio",
        "falls as the window grows",
        0.7,
        0,
        1,
        _steepest_rise("9"),
        1,
        {"measured": _ALL_NEW},
    ),
    Claim(
        "Fig 9",
        "overhead every 10 s, g = 512 / g = 4096, all windows",
        "larger groups are better",
        1.1,
        1,
        INFINITE,
        _small_against_large("9", 0),
        1,
        {
            "measured": (
                "Files are made in this process's memory here, not on a shared network disk as in the paper: one more "
                "costs little."
            )
        },
    ),
    Claim(
        "Fig 10",
        "overhead of the join per key at its best, every 1 s (%)",
        "1.37 % in, 1.83 % out, g = 64",
        1.4,
        0,
        2,
        lambda v: 100 * best(v, "uniform, 1 s"),
        None,
    ),
    Claim(
        "Fig 10",
        "overhead of the join per key at its best, every 10 s (%)",
        "not printed",
        1.4,
        0,
        2,
        lambda v: 100 * best(v, "uniform, 10 s"),
        None,
    ),
    Claim(
        "Section 5.2",
        'Zipf keys, group="auto": seconds between checkpoints that are due every 1 s',
        "6",
        6,
        0.9,
        1.1,
        lambda v: _auto(v, "Zipf, 1 s", "interval_s"),
    ),
    Claim(
        "Section 5.2",
        'Zipf keys, group="auto": checkpoints that came late',
        "most",
        1,
        0,
        0,
        lambda v: _auto(v, "Zipf, 1 s", "late") + _auto(v, "Zipf, 10 s", "late"),
    ),
    Claim(
        "Section 5.2",
        'overhead every 1 s, Zipf keys with group="auto" / uniform keys at their best',
        "lower than under uniform keys, but late",
        1,
        0,
        1 + NOISE,
        lambda v: _auto(v, "Zipf, 1 s", "overhead") / best(v, "uniform, 1 s"),
        1,
    ),
    Claim(
        "Section 5.2",
        'bytes saved every 1 s, Zipf keys, group="auto" / least of the groups of one size',
        "different keys need different sizes",
        1,
        0,
        1,
        _auto_against_one_size,
        1,
    ),
    Claim(
        "Fig 10 on Spark",
        "input that us.Checkpoint costs against us.none, at its best (%)",
        "1.37",
        1.37,
        -100,
        2,
        lambda v: 100 * min(v.line("10", "us.Checkpoint", "overhead").values()),
    ),
)


def _mean_of(view: View, figure: str) -> float:
    return fmean(o for group in _groups(view, figure) for o in view.line(figure, group, "overhead").values())


def summarise(rows: Iterable[Row]) -> list[Row]:
    return claims.summarise(rows, CLAIMS, HOWS)
