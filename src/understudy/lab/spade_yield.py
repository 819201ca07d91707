"""An online model of wafer yields, and sensor data on which its history matters: FAB's part in Section 5.1 of
Jacques-Silva et al. 2009. FAB and its data are IBM's own, so both are made up here.

Sensors' weights drift slowly, and every tool adds something of its own to the yield of its wafers. A tool is at work
for a while and then rests for a long time, so what the model knows of it comes from long ago: a model that has lost its
memory is wrong again with every tool that comes back.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]

WAFERS, LOT = 9000, 84
"""The paper's 9,000 wafers and 107 outputs are an output for every 84 wafers. The last twelve make no whole lot."""
SENSORS, TOOLS = 24, 24
WIDTH = 1 + SENSORS + TOOLS
MEMORY = 0.9997
"""Of what is known, the share that counts when another wafer has come: half of it after 2,300."""
RIDGE = 1.0
"""As if every weight had been seen to be 0 once: there is a solution from the first wafer on."""
SCHEMA = pa.schema([("lot", pa.int64()), ("qm", pa.float64())])
_AT_WORK = 2
"""Tools at a time."""
_CAMPAIGN = 250
"""Wafers until other tools are at work."""
_TOOL_SPREAD, _SENSOR_SPREAD, _DRIFT, _NOISE = 18.0, 2.0, 0.02, 2.0
"""Standard deviations, in points of yield; the drift is per wafer and sensor."""


def wafers(seed: int, count: int = WAFERS) -> pa.Table:
    """Wafers in the order in which they are made: their number, what is measured (``WIDTH`` values) and their yield."""
    draw = np.random.default_rng(seed)
    campaigns = -(-count // _CAMPAIGN)
    at_work = draw.permuted(np.tile(np.arange(TOOLS), (campaigns, 1)), axis=1)[:, :_AT_WORK]
    tool = at_work[np.arange(count) // _CAMPAIGN, draw.integers(0, _AT_WORK, count)]
    sensed = draw.normal(size=(count, SENSORS))
    drift = np.cumsum(draw.normal(scale=_DRIFT, size=(count, SENSORS)), axis=0)
    weights = draw.normal(scale=_SENSOR_SPREAD, size=SENSORS) + drift
    found = 60 + draw.normal(scale=_TOOL_SPREAD, size=TOOLS)[tool] + (sensed * weights).sum(axis=1)
    found += draw.normal(scale=_NOISE, size=count)
    measured = np.concatenate([np.ones((count, 1)), sensed, np.eye(TOOLS)[tool]], axis=1)
    return pa.table(
        {
            "wafer": np.arange(count),
            "measured": pa.FixedSizeListArray.from_arrays(pa.array(measured.ravel()), WIDTH),
            "yield": np.clip(found, 0, 100),
        }
    )


class YieldModel:
    """Least squares over all wafers so far, the older the less. Gives out, for every lot, its *quality metric*: by how
    many points the predicted yields of its wafers were off, on average. Wafers of an epoch are predicted by what was
    known before it."""

    def __init__(self) -> None:
        self.weights: Floats = np.zeros(WIDTH)
        self._moments: Floats = np.zeros((WIDTH, WIDTH + 1))
        """Of the measured values with each other and, last, with the yield."""
        self._first = 0
        """The first lot that is not complete."""
        self._open: Floats = np.zeros((0, 2))
        """Of it and those after it: the sum of errors, and wafers."""

    def process(self, table: pa.Table) -> pa.Table:
        wafer = table["wafer"].to_numpy()
        if not len(wafer):
            return SCHEMA.empty_table()
        measured = table["measured"].combine_chunks().flatten().to_numpy().reshape(-1, WIDTH)
        actual = table["yield"].to_numpy()
        self._count(wafer // LOT, np.abs(measured @ self.weights - actual))
        self._learn(measured, actual)
        return self._complete(int(wafer[-1]))

    def _count(self, lots: npt.NDArray[np.int64], errors: Floats) -> None:
        """Lots come in order. Of some nothing may come: what is lost while nobody is there."""
        if not len(self._open):
            self._first = int(lots[0])
        place = lots - self._first
        new: Floats = np.column_stack([np.bincount(place, errors), np.bincount(place)]).astype(np.float64)
        new[: len(self._open)] += self._open
        self._open = new

    def _learn(self, measured: Floats, actual: Floats) -> None:
        fading = MEMORY ** np.arange(len(actual) - 1, -1, -1)
        self._moments *= MEMORY ** len(actual)
        self._moments += (measured * fading[:, None]).T @ np.column_stack([measured, actual])
        known = self._moments[:, :-1] + RIDGE * np.eye(WIDTH)
        self.weights = np.asarray(np.linalg.solve(known, self._moments[:, -1]), np.float64)

    def _complete(self, newest: int) -> pa.Table:
        done = min((newest + 1) // LOT - self._first, len(self._open))
        if done <= 0:
            return SCHEMA.empty_table()
        (sums, counts), first = self._open[:done].T, self._first
        self._open, self._first = self._open[done:], self._first + done
        seen = counts > 0
        return pa.table([np.arange(first, first + done)[seen], sums[seen] / counts[seen]], schema=SCHEMA)

    def save(self) -> bytes:
        return np.concatenate([[self._first], self.weights, self._moments.ravel(), self._open.ravel()]).tobytes()

    def restore(self, saved: bytes) -> None:
        first, values = np.frombuffer(saved)[0], np.frombuffer(saved)[1:]
        end = WIDTH + WIDTH * (WIDTH + 1)
        self._first = int(first)
        self.weights = values[:WIDTH].copy()
        self._moments = values[WIDTH:end].reshape(WIDTH, WIDTH + 1).copy()
        self._open = values[end:].reshape(-1, 2).copy()
