"""Durations as people write them: ``"500ms"``, ``"10s"``, ``"2m"``, or a number of seconds."""

from __future__ import annotations

import math
import re

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*")


def seconds(value: str | float, *, what: str = "duration") -> float:
    """Return ``value`` in seconds; ``what`` names the parameter in the error."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        result = float(value)
    else:
        match = _TEXT.fullmatch(str(value))
        if match is None:
            raise ValueError(
                f"{what}={value!r} is not a duration; write a number with a unit, such as '500ms' or '10s'"
            )
        result = float(match[1]) * _UNIT_S[match[2]]
    if not 0 < result < math.inf:
        raise ValueError(f"{what}={value!r} must be longer than nothing, such as '500ms'")
    return result
