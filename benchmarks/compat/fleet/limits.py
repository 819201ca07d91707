"""Speed limits and zones of roads, from a file of the package."""

import csv
import functools
from importlib import resources


@functools.cache
def _table() -> dict[int, tuple[float, str]]:
    text = resources.files("fleet").joinpath("limits.csv").read_text(encoding="utf-8")
    return {int(row["road"]): (float(row["limit"]), row["zone"]) for row in csv.DictReader(text.splitlines())}


def limit_of(road: int) -> float:
    return _table().get(road, (130.0, "motorway"))[0]


def zone_of(road: int) -> str:
    return _table().get(road, (130.0, "motorway"))[1]
