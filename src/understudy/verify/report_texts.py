"""Numbers and other values of a result as the texts that the report shows."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any


def finite(value: Any) -> float | None:
    """A finite number, or None for everything else that a result may hold in its place."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def span_text(duration_s: float) -> str:
    if abs(duration_s) < 0.9995:
        return f"{duration_s * 1000:.0f} ms"
    if abs(duration_s) < 60:
        return f"{duration_s:.2f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes} min {seconds} s"


def count_text(number: float) -> str:
    return f"{number:,.0f}".replace(",", "\u202f")  # narrow and unbreakable


def percent_text(ratio: float) -> str:
    return f"{100 * ratio:.{2 if abs(ratio) < 0.01 else 1 if abs(ratio) < 1 else 0}f} %"


def bytes_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def plain_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {plain_text(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(map(plain_text, sorted(value, key=str) if isinstance(value, (set, frozenset)) else value))
    return str(value)


def clock_text(at: float) -> str:
    try:
        return dt.datetime.fromtimestamp(at, tz=dt.UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a virtual clock may show anything
        return f"{at:.3f}"
