"""``understudy lab gu``: Figures 2 to 8 of Gu et al. 2009, in virtual time at the paper's own parameters and on hosts.

``simulate`` is one run of the model; ``plan`` lists the runs behind the figures; ``run`` works through them, has
``gu_hosts`` measure the same on real hosts unless told not to, and writes the folder: ``results.jsonl``,
``summary.json``, figures and ``index.html``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from understudy.lab.claims import Row
from understudy.lab.gu_claims import METHODS, summarise
from understudy.lab.gu_model import World
from understudy.lab.gu_page import write_page
from understudy.lab.gu_params import Method, Params, Protocol

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much."""

WATCHED_S = 0.5
"""How long before a failure arrivals are recorded."""
HORIZON_S = 2.0
"""How long a run goes on after the takeover. The longest reprocessing takes half a second."""

CHOICES: dict[str, str] = {
    "An element and an epoch": (
        "Elements travel in batches of what arrives in 4 ms, and a batch is an epoch of Understudy's machines: 12 "
        "elements at 3,000 a second. The paper's sending threads send what has gathered in a queue too. Shorter "
        "batches make the sweeping checkpoints of the paper's protocol smaller (one batch is always on its way); "
        "nothing else depends on it."
    ),
    "Processing and sending": (
        "20 µs and 30 µs per element. The paper's PEs manage “over 25K” elements a second, which leaves 40 µs for each "
        "of the two threads, and Figure 5 goes up to 25,000."
    ),
    "What a checkpoint takes": (
        "Five remote calls (pause, paused, checkpoint, store, resume: Section 4.1) of 1/700 s each, because a PE that "
        "makes a call per element manages about 700 a second; and 20 µs for each element serialised and stored. The "
        "latter is chosen so that the paper's protocol gives Figure 4's 1/4 on average. A machine has four cores: the "
        "PEs of a subjob are serialised side by side."
    ),
    "What a synchronous checkpoint is": (
        "One call for the whole subjob (Section 4.2), whose time is that of Figure 4. Sizes in Figure 2 are those of "
        "one PE: the paper finds the same 1/30 for synchronous and individual checkpoints, which two PEs could not be."
    ),
    "Intervals of Figures 2 and 3": "100 to 900 ms as in Figure 8; the paper's text does not name them.",
    "Figures 6 to 8": (
        "3,000 elements a second; the second of the four subjobs fails, as in the paper's Figure 1. Its machine just "
        "stops answering: only missing heartbeats tell. All subjobs have the same protection. A failure is three "
        "missed heartbeats, the last one half an interval late."
    ),
    "Redeployment": "500 ms, the paper's own measurement; it is an input of the simulation, not a result.",
    "Figure 5": (
        "Bytes that the second subjob sends to other machines, all copies together: counted with what it receives, "
        "AS-AS would be three times NONE and not four. AS is eager delivery, both copies sending; the acknowledgements "
        "are 8 bytes, at most 20 a second per PE."
    ),
    "Bytes": "100 per element. Ratios of checkpoints to data do not depend on it.",
    "Length of runs": (
        "The paper's totals are over 100 s. The model forgets its past within a few intervals, so shorter runs are "
        "measured and scaled."
    ),
}
"""What the paper leaves open, what was taken in the simulation, and why."""


# -- one run -------------------------------------------------------------------------------------------------------


def simulate(params: Params) -> dict[str, Any]:
    """Warm-up, measuring and, where asked for, a failure and what follows."""
    world = World(params)
    engine = world.engine
    engine.run(params.warmup_s)
    world.checkpoints.clear()
    for unit in world.units:
        unit.bytes.clear()
    if params.fail is not None:
        return _failure(world, params.fail)
    engine.run(params.warmup_s + params.measure_s)
    sent = world.units[1 if len(world.units) > 1 else 0].bytes
    found: dict[str, Any] = {f"{name}_bytes_per_s": sent[name] / params.measure_s for name in sorted(sent)}
    found["bytes_per_s"] = sum(sent.values()) / params.measure_s
    if world.checkpoints:
        elements = sum(c.elements for c in world.checkpoints)
        found |= {
            "mean_size": elements / sum(len(c.pes) for c in world.checkpoints),
            "total_size": 100 / params.measure_s * elements,
            "checkpoints": len(world.checkpoints),
            "mean_s": fmean(c.end - c.begin for c in world.checkpoints),
        }
    return found | {"events": engine.events}


def _failure(world: World, number: int) -> dict[str, Any]:
    params, engine = world.params, world.engine
    first = world.units[number + 1].pes[0]
    watched = world.units[number + 1].primary.pes[first]
    watched.seen = []
    world.watch(number)
    engine.run(engine.now + max(WATCHED_S, 2 * params.heartbeat_s))
    timed = [c.end for c in world.checkpoints if world.last_pe in c.pes]
    since = timed[-1] if timed else engine.now
    engine.run(engine.now + (since + params.failure_phase * params.interval_s - engine.now) % params.interval_s)
    lowest = min((epoch for epoch, _ in world.units[number].stored.values()), default=watched.received)
    seen_before = watched.received
    world.fail(number)
    failed_at = world.failed_at
    detection_max_s = (params.misses + 2) * params.heartbeat_s
    engine.run(failed_at + detection_max_s + params.redeploy_s + HORIZON_S)
    new = [t for t, epoch in watched.seen if t > failed_at]
    # What the dead machine had sent still arrives within a link's delay; recovery is what comes after it.
    resumed = [t for t in new if t >= world.resumed_at] if params.methods[number] not in ("eager",) else new
    if not resumed or world.sink.received <= seen_before:
        raise RuntimeError(f"nothing new came within {HORIZON_S} s of the takeover: {params}")
    pauses = [b - a for a, b in zip([t for t, _ in watched.seen], [t for t, _ in watched.seen][1:])]
    usual_s = sorted(pauses)[len(pauses) // 2]
    first_new = resumed[0]
    return {
        "detection_s": world.detected_at - failed_at,
        "redeployment_s": world.resumed_at - world.detected_at,
        "reprocessing_s": first_new - world.resumed_at,
        "total_s": first_new - failed_at,
        "longest_pause_s": max(pauses),
        "usual_pause_s": usual_s,
        "reprocessed": (seen_before - lowest) * world.batch,
        "trace": [(round(t - failed_at, 4), round(epoch * world.batch)) for t, epoch in watched.seen[::5]],
        "events": engine.events,
    }


# -- all runs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """The points of the figures, and how many failures each point of Figures 7 and 8 gets."""

    intervals_ms: tuple[int, ...] = (100, 300, 500, 700, 900)
    checkpoint_rates: tuple[int, ...] = (1000, 3000, 5000, 7000)
    rates: tuple[int, ...] = (1000, 5000, 10_000, 15_000, 20_000, 25_000)
    heartbeats_ms: tuple[int, ...] = (100, 200, 300, 400, 500)
    failures: int = 10
    measure_s: float = 31.5

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ValueError(f"failures={self.failures} must be at least 1")
        for name in ("intervals_ms", "checkpoint_rates", "rates", "heartbeats_ms"):
            if len(getattr(self, name)) < 2:
                raise ValueError(f"{name}={getattr(self, name)} must have two points at least")


FULL = Sweep()
QUICK = Sweep((100, 500, 900), (1000, 3000, 7000), (1000, 25_000), (100, 300, 500), failures=3, measure_s=4.5)

CONFIGURATIONS: dict[str, tuple[Method, ...]] = {
    "NONE": ("none",) * 4,
    "None-AS": ("none", "eager", "none", "none"),
    "AS-AS": ("none", "eager", "eager", "none"),
    "PS": ("sweeping",) * 4,
}
"""Figure 5's, as the policies of the four subjobs."""


@dataclass(frozen=True)
class Job:
    figure: str
    series: str
    x: float
    params: Params


def plan(sweep: Sweep, seed: int) -> list[Job]:
    jobs: list[Job] = []
    for protocol in get_args(Protocol):
        common = Params(protocol=protocol, seed=seed, measure_s=sweep.measure_s)
        for method in METHODS:
            every = replace(common, methods=(method,) * 4)
            for ms in sweep.intervals_ms:
                jobs.append(Job("2-3", method, ms, _at(every, ms / 1000)))
            for rate in sweep.checkpoint_rates:
                jobs.append(Job("4", method, rate, _at(replace(every, rate_per_s=rate), 0.5)))
        for name, configured in CONFIGURATIONS.items():
            for rate in sweep.rates:
                short = replace(common, methods=configured, rate_per_s=rate, measure_s=min(4.0, sweep.measure_s))
                jobs.append(Job("5", name, rate, _at(short, 0.5)))
        failing = replace(common, fail=1)
        jobs.append(Job("6", "AS", 0, _at(replace(failing, methods=("eager",) * 4), 0.5)))
        jobs.append(Job("6", "PS", 0, _at(replace(failing, methods=("sweeping",) * 4), 0.5)))
        for i in range(sweep.failures):
            one = replace(failing, seed=seed * 1000 + i, failure_phase=(i + 0.5) / sweep.failures)
            jobs += [Job("7", "PS", ms, _at(replace(one, heartbeat_s=ms / 1000), 0.5)) for ms in sweep.heartbeats_ms]
            jobs += [Job("8", "PS", ms, _at(one, ms / 1000)) for ms in sweep.intervals_ms]
    return jobs


def _at(params: Params, interval_s: float) -> Params:
    """Long enough a warm-up that every PE has a version to go back to."""
    return replace(params, interval_s=interval_s, warmup_s=2 * interval_s + 0.5)


def _row(job: Job, values: dict[str, Any]) -> Row:
    parameters = asdict(job.params)
    if job.figure != "6":
        values.pop("trace", None)
    how = parameters.pop("protocol")
    about = {"figure": job.figure, "how": how, "series": job.series, "x": job.x, "seed": parameters.pop("seed")}
    return {**about, "parameters": parameters, "values": values, "simulated": True}


def simulated(sweep: Sweep, seed: int, progress: Progress, processes: int | None = None) -> list[Row]:
    jobs = plan(sweep, seed)
    rows: list[Row] = []
    workers = processes or os.cpu_count() or 1
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for job, values in zip(jobs, pool.map(simulate, [job.params for job in jobs], chunksize=4)):
            rows.append(_row(job, values))
            progress("simulated runs", len(rows), len(jobs))
    return rows


# -- the lab -------------------------------------------------------------------------------------------------------


def run(
    out: Path,
    *,
    quick: bool,
    seed: int = 1,
    hosts: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """All experiments; ``out`` gets the folder described in ``understudy.lab``. ``hosts``: measure on real ones too.

    Returns ``summary`` (what ``summary.json`` holds), ``not_measured`` (experiments that failed, with the reason),
    ``runs``, ``seconds`` and ``page``.
    """
    begin = time.monotonic()
    told = progress or (lambda what, done, total: None)
    out.mkdir(parents=True, exist_ok=True)
    rows = simulated(QUICK if quick else FULL, seed, told)
    scaling: dict[str, str] = {}
    failures: list[str] = []
    if hosts:
        from understudy.lab import gu_hosts

        measured, failures = gu_hosts.measure(out / "hosts", gu_hosts.QUICK if quick else gu_hosts.FULL, told)
        rows += measured
        scaling = dict(gu_hosts.SCALING)
        if failures:
            scaling["Not measured"] = "; ".join(failures)
    found = write(out, rows, scaling)
    return {**found, "not_measured": failures, "runs": len(rows), "seconds": time.monotonic() - begin}


def write(out: Path, rows: list[Row], scaling: dict[str, str]) -> dict[str, Any]:
    """Everything that follows from the results."""
    summary = summarise(rows)
    (out / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (out / "summary.json").write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    page = write_page(out, rows, summary, CHOICES, scaling)
    return {"summary": summary, "page": str(page)}
