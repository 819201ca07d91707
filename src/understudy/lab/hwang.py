"""``understudy lab hwang``: the experiments of Hwang et al. 2003, Section 5, and how far they come out as printed.

``simulate`` is one run; ``plan`` lists the runs behind Figures 8 to 12 and Table 4; ``run`` lets Spark work through
them (a row per run in a DataFrame, the simulation in ``mapInPandas``) and writes the folder: ``results.jsonl``,
``summary.json``, figures and ``index.html``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from math import isqrt
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from understudy.lab.hwang_model import (
    DELAY_TOLERANCE_S,
    HORIZON_S,
    POLICIES,
    WATCHED_S,
    Node,
    Params,
    World,
)
from understudy.lab.hwang_page import Row, summarise, write_page

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int], None]

CHOICES: dict[str, str] = {
    "Relative overhead": (
        "Bytes sent for high availability by or for the downstream node, per byte of data that arrives at it. Counted "
        "per node, formulas (1) and (2) hold as printed; counted per system, the stream to the application would "
        "change every number."
    ),
    "Timers": (
        "Acknowledgements and checkpoints every M_s with a random phase per node and application; level-1 "
        "acknowledgements and trim messages are triggered by level-0 ones, as formula (4) assumes. Under active "
        "standby a node with two consumers sends at most one trim message per interval (Table 1)."
    ),
    "Passive standby: contents of a checkpoint": (
        "New output tuples, and 8 bytes for the head of each queue that changed since the last checkpoint: the output "
        "queue and the input queue of every box but the first. That is the only reading found that gives both rows of "
        "Table 4."
    ),
    "Passive standby: when tuples leave": (
        "At once, not after the checkpoint. If they waited for it, the delay before the failure would be longer by "
        "M/2, which shortens recovery by as much as Q = Mλ/2 lengthens it: Figure 10 would be flat for passive "
        "standby. The price is that the standby's queue never holds a tuple that the application has not got, as it "
        "did in the one run of Figure 9."
    ),
    "Passive standby: acknowledgements": (
        "Sent together with the checkpoint, without a confirmation by the standby: formula (1) has no bytes for one, "
        "and Q = Mλ/2 no round trip."
    ),
    "Selectivity": (
        "Acts once per chain, at the first box of the downstream node, by chance per tuple. Were it every box's, 25 "
        "boxes at 0.8 would let 0.8⁵ = 33 % through and cost about 50 %, where Table 4 has 98.8 %. Dropped tuples "
        "become flow tuples (Section 4.2.2), and acknowledgements are sent every interval, so that active standby and "
        "upstream backup stay constant, as Table 4 says."
    ),
    "Shape of n boxes": (
        "√n chains of √n boxes on the downstream node, each chain with a source and an application of its own "
        "(fan-out 1, “roughly the same width and depth”)."
    ),
    "CPU": "One per node; a tuple goes through all its boxes there before the next one starts, 10 µs for each.",
    "Bandwidth": (
        "8 Mbps in each direction for each stream between two nodes. Shared by the streams of a pair instead, Figure "
        "12 cannot come out: the 2.5 chains of a node of 16 would need 7 ms of transmission on top of 10 ms of "
        "latency, where the paper has 12 ms for both, and active standby would gain from distribution (15 to 11 ms "
        "from 4 to 16 nodes), which the paper denies. In the other experiments there is one stream per pair."
    ),
    "Full recovery": (
        f"From detection until the last tuple that is late by more than {DELAY_TOLERANCE_S * 1e3} ms. The first tuple "
        "that is on time comes up to 2 ms later, only because the next one has not been born yet."
    ),
    "Where recovery is seen": (
        "At the direct downstream neighbour. From the application, the nine links behind a failed node of 100 would "
        "take 45 ms, where Figure 12 has 7 ms."
    ),
    "Figure 12": (
        "10 chains of 10 boxes over √n × √n nodes, as evenly as whole numbers allow; any node fails. Upstream backup "
        "goes on at any live node that makes no cycle (Section 3), the standbys at spare ones. Bandwidth is that of "
        "the streams between nodes, with all that is sent for their sake."
    ),
    "Length of runs": (
        "The paper warmed up for 5 and measured for 10 minutes. The model forgets its past within a few intervals, so "
        "1 s and 6 s are enough (a test compares with longer runs); 6 s is a multiple of every interval, so that no "
        "run counts one tick more than another."
    ),
    "Instants of failure": (
        "The 25 runs of a point spread their failures evenly between two ticks of the timer that bounds the queue; "
        "everything else is random. The failed node does not come back within a run (100 s in Table 1)."
    ),
}
"""What the paper leaves open, what was taken, and why."""


# -- one run


@dataclass(frozen=True)
class Result:
    overhead: float
    """HA bytes sent by or for the nodes of the last column per byte of data that arrives there."""
    between_bytes_per_s: float
    """Data and HA bytes of the streams between nodes (neither sources' nor applications')."""
    events: int
    partial_s: float | None = None
    """From detection to the first new tuple downstream."""
    full_s: float | None = None
    """From detection to the last tuple that is late."""
    duplicates: float | None = None
    """Tuples that the downstream neighbours get a second time, per chain, not counting a passive standby's queue."""
    unacked: float | None = None
    """Tuples that the dead node had sent and its neighbours not acknowledged at level 0, per chain: formula (4)."""
    lost: int | None = None
    trace: tuple[tuple[float, float], ...] = ()
    """Seconds since the failure and delay in seconds of each new tuple at the downstream neighbour."""


def simulate(params: Params) -> Result:
    """Warm-up, measuring and, where asked for, a failure and what follows."""
    world = World(params)
    engine = world.engine
    engine.run(params.warmup_s)
    before = world.totals()
    end = params.warmup_s + params.measure_s
    node = host = None
    if params.fail != "none":
        engine.run(end - WATCHED_S)
        node, host = world.choose()
        for segment in node.segments:
            segment.consumers[0].seen = []
    engine.run(end)
    data, overhead, between = (now - then for now, then in zip(world.totals(), before))
    found: dict[str, Any] = {"overhead": overhead / data, "between_bytes_per_s": between / params.measure_s}
    if node is not None and host is not None:
        timer = node.segments[0] if params.policy == "passive" else node.segments[0].consumers[0]
        share = world.rng.random() if params.failure_phase is None else params.failure_phase
        heard_s = timer.phase_s + (0.0 if params.policy == "passive" else params.link_delay_s)
        failed_at = end + (heard_s + share * params.interval_s - end) % params.interval_s
        engine.run(failed_at)
        node.host.failed = True
        unacked = [len(s.queue) - bisect_right(s.queue, s.acks.trim("out", leaf=True)) for s in node.segments]
        engine.run(failed_at + params.detection_s)
        queued = sum(len(s.twin.queue) for s in node.segments if s.twin) if params.policy == "passive" else 0
        world.recover(node, host)
        engine.run(failed_at + params.detection_s + HORIZON_S)
        found |= {"unacked": fmean(unacked), **_recovery(world, node, failed_at, queued)}
    return Result(**found, events=engine.events)


def _recovery(world: World, node: Node, failed_at: float, queued: int) -> dict[str, Any]:
    detected_at = failed_at + world.params.detection_s
    partial_s, full_s, duplicates, lost = float("inf"), 0.0, -queued, 0
    trace: list[tuple[float, float]] = []
    for segment in node.segments:
        arrivals = segment.consumers[0].seen or []
        delays = [(at, at - world.born(segment.chain, number), new) for at, number, new in arrivals]
        on_time_s = fmean(delay for at, delay, _ in delays if at <= failed_at) + DELAY_TOLERANCE_S
        after = [(at, delay, new) for at, delay, new in delays if at > detected_at]
        late = [at for at, delay, new in after if new and delay > on_time_s]
        if not late or after[-1][1] > on_time_s:
            raise RuntimeError(f"no recovery within {HORIZON_S} s of detection: {world.params}")
        partial_s = min(partial_s, late[0] - detected_at)
        full_s = max(full_s, late[-1] - detected_at)
        duplicates += sum(not new for _, _, new in after)
        numbers = [number for _, number, new in arrivals if new]
        due = range(numbers[0], numbers[-1] + 1)
        lost += sum(segment.keep is None or segment.keep[number] for number in due) - len(numbers)
        trace += [(at - failed_at, delay) for at, delay, new in delays if new]
    return {
        "partial_s": partial_s,
        "full_s": full_s,
        "duplicates": duplicates / len(node.segments),
        "lost": lost,
        "trace": tuple(sorted(trace)),
    }


# -- all runs


@dataclass(frozen=True)
class Sweep:
    """The points of the figures, and how many runs each gets."""

    runs: int = 25
    intervals_ms: tuple[int, ...] = (10, 20, 40, 60, 80, 100)
    boxes: tuple[int, ...] = (1, 4, 9, 16, 25)
    selectivities: tuple[float, ...] = (1.0, 0.8, 0.6, 0.4, 0.2)
    nodes: tuple[int, ...] = (4, 16, 36, 64, 100)
    measure_s: float = 6.0
    """Figures 8 to 11; the larger networks of Table 4 and Figure 12 have as many tuples in less time."""

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise ValueError(f"runs={self.runs} must be at least 1")
        for name in ("intervals_ms", "boxes", "selectivities", "nodes"):
            if not getattr(self, name):
                raise ValueError(f"{name}=() must have a point at least")
        for name in ("boxes", "nodes"):
            if bad := [n for n in getattr(self, name) if n < 1 or isqrt(n) ** 2 != n]:
                raise ValueError(f"{name}={bad[0]} must be a square number, such as 4 or 9")


FULL = Sweep()
QUICK = Sweep(3, (10, 40, 80), (1, 4, 9, 25), (1.0, 0.6, 0.2), (4, 16, 100), measure_s=1.2)


@dataclass(frozen=True)
class Job:
    figure: str
    x: float
    """The point on the figure's axis: interval in ms, boxes, selectivity or nodes."""
    params: Params


def plan(sweep: Sweep, seed: int) -> list[Job]:
    """Run ``i`` of every point has the same seed, so that policies meet the same circumstances."""
    jobs: list[Job] = []
    for i in range(sweep.runs):
        common: dict[str, Any] = {"seed": seed * 100_000 + i, "failure_phase": (i + 0.5) / sweep.runs}
        for policy in POLICIES:
            basic = {"fail": "last", "measure_s": sweep.measure_s, **common}
            jobs += [Job("8-11", m, Params(policy, m / 1000, **basic)) for m in sweep.intervals_ms]
            if i == 0:
                jobs.append(Job("9", 10, Params(policy, **{**basic, "failure_phase": 0.5})))
            table: dict[str, Any] = {"warmup_s": 0.6, "measure_s": min(2.4, sweep.measure_s), "seed": common["seed"]}
            for n in sweep.boxes:
                jobs.append(Job("table4-boxes", n, Params(policy, chains=isqrt(n), depth=2 * isqrt(n), **table)))
            for s in sweep.selectivities:
                jobs.append(Job("table4-selectivity", s, Params(policy, chains=5, depth=10, selectivity=s, **table)))
            for n in sweep.nodes:
                grid: dict[str, Any] = {"rows": isqrt(n), "columns": isqrt(n), "chains": 10, "depth": 10}
                grid |= {"fail": "random", "failover": "live", "warmup_s": 0.3, "measure_s": 0.6}
                jobs.append(Job("12", n, Params(policy, **grid, **common)))
    return jobs


def _row(job: Job, result: Result) -> Row:
    parameters = asdict(job.params)
    values = asdict(result)
    if job.figure != "9":
        del values["trace"]
    return {
        "figure": job.figure,
        "policy": parameters.pop("policy"),
        "x": job.x,
        "seed": parameters.pop("seed"),
        "parameters": parameters,
        "values": values,
        "simulated": True,
    }


def _simulate_json(params: str) -> str:
    return json.dumps(asdict(simulate(Params(**json.loads(params)))))


def _simulate_frames(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(result=frame["params"].map(_simulate_json))[["id", "result"]]


def _results_here(params: list[str], progress: Progress) -> list[str]:
    results: list[str] = []
    for text in params:
        results.append(_simulate_json(text))
        progress(len(results), len(params))
    return results


def _results_by_spark(params: list[str], progress: Progress) -> list[str]:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark warns about the machine's name
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    spark = running or (
        SparkSession.builder.master("local[*]")
        .appName("understudy lab hwang")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    context = spark.sparkContext
    context.setLogLevel("ERROR")
    group = f"understudy-lab-hwang-{os.getpid()}-{time.monotonic_ns()}"

    def collect() -> pd.DataFrame:
        context.setJobGroup(group, "understudy lab hwang", interruptOnCancel=True)
        # Small tasks: they even out over the cores, and their number is what progress is read from.
        tasks = max(3, min(len(params), 240))
        frame = spark.createDataFrame(list(enumerate(params)), "id int, params string").repartition(tasks)
        # Sorted here: orderBy would have Spark simulate everything twice, once for a sample of the order.
        found: pd.DataFrame = frame.mapInPandas(_simulate_frames, "id int, result string").toPandas()
        return found.sort_values("id")

    try:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(collect)
            try:
                while not future.done():
                    wait([future], timeout=0.5)
                    progress(_runs_done(context, group, len(params)), len(params))
            except BaseException:
                context.cancelJobGroup(group)
                raise
        progress(len(params), len(params))
        return list(future.result()["result"])
    finally:
        if running is None:
            spark.stop()


def _runs_done(context: Any, group: str, runs: int) -> int:
    """From the tasks of the widest stage, which is the one that simulates."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    widest = max((stage for stage in stages if stage), key=lambda stage: stage.numTasks, default=None)
    return runs * widest.numCompletedTasks // widest.numTasks if widest and widest.numTasks > 2 else 0


# -- the lab


def run(
    out: Path,
    *,
    quick: bool,
    seed: int = 1,
    progress: Progress | None = None,
    use_spark: bool = True,
) -> dict[str, Any]:
    """All experiments; ``out`` gets the folder described in ``understudy.lab``.

    ``progress`` is called with the number of runs done and of all. Returns ``summary`` (what ``summary.json`` holds),
    ``runs``, ``events``, ``seconds`` and ``page``.
    """
    begin = time.monotonic()
    jobs = plan(QUICK if quick else FULL, seed)
    texts = [json.dumps(asdict(job.params)) for job in jobs]
    results = (_results_by_spark if use_spark else _results_here)(texts, progress or (lambda done, total: None))
    rows = [_row(job, Result(**json.loads(text))) for job, text in zip(jobs, results)]
    summary = summarise(rows)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (out / "summary.json").write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    page = write_page(out, rows, summary, CHOICES)
    return {
        "summary": summary,
        "runs": len(rows),
        "events": sum(row["values"]["events"] for row in rows),
        "seconds": time.monotonic() - begin,
        "page": str(page),
    }
