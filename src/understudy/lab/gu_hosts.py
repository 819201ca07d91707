"""The experiments of Gu et al. 2009 on real hosts: four processes, each with a Spark of its own, on this machine.

Hosts are started once and stay warm: every experiment sends them another version of the job in ``gu_chain``. A host
*fails* by being stopped (SIGSTOP, with everything below it), so that only missing heartbeats tell, as when a machine
loses its power; afterwards it is let go on, finds itself replaced, and serves in the next experiment.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from understudy.cli import FAST_START
from understudy.errors import UnderstudyError
from understudy.lab import gu_chain
from understudy.lab.gu_claims import METHODS, Row
from understudy.runtime.coordinator import Coordinator
from understudy.runtime.session import LocalRun, wait_for
from understudy.verify import compare

EPOCH_S = 2.0
MISSES = 3
VICTIM, DOWNSTREAM = 1, 2
"""The unit that fails, and the one whose arrivals are its output."""
SINK = f"{gu_chain.UNITS[-1]}2"

SCALING: dict[str, str] = {
    "Machine": (
        "Four hosts, one per subjob, are processes on one machine, each the driver of a Spark of its own; in the paper "
        "they are machines of four cores. Everything competes for the same cores."
    ),
    "Elements": (
        "A row is an element and the rows of one micro-batch are an epoch. A micro-batch of a stage takes tenths of a "
        "second whatever it holds, so epochs are 2 s long, where the simulation has batches of 4 ms."
    ),
    "Times": (
        "Checkpoint intervals are 2 to 10 s (paper: 100 to 900 ms), heartbeats 0.5 to 2.5 s (paper: 100 to 500 ms), three "
        "misses as in the paper: about twenty and five times as long, because a busy machine keeps a healthy process "
        "waiting for a second now and then."
    ),
    "Rates": "750 to 3,000 rows a second (paper: 1,000 to 25,000 elements).",
    "State": (
        "A row for each of 20 keys per stage, in Spark's RocksDB store with changelogs. A checkpoint also carries "
        "Spark's own logs of offsets and commits, and what is sent is what the standby does not have yet."
    ),
    "Selectivity": "1, and the 20 rows of the state, which every stage adds to its output.",
    "What is counted": (
        "Bodies and headers of messages. Figures 2 and 3: checkpoints of all stages, in KB; totals scaled to 100 s. "
        "Figure 5: what the hosts of the third subjob receive from the second, and the checkpoints and "
        "acknowledgements that the second sends."
    ),
    "Redeployment": (
        "The standby's query was started before the failure and is held at the door, so nothing is deployed when it is "
        "needed."
    ),
    "Arrivals": "At the sink, two subjobs downstream of the one that fails. One failure per point, at no chosen phase.",
}


@dataclass(frozen=True)
class Measuring:
    """Points of the figures. The first rate and the first heartbeat interval are those of the other figures."""

    intervals_s: tuple[float, ...]
    rates: tuple[int, ...]
    heartbeats_s: tuple[float, ...]
    measure_s: float
    """At least; always several checkpoint intervals."""


FULL = Measuring((2.0, 6.0, 10.0), (1500, 750, 3000), (0.5, 1.5, 2.5), measure_s=40.0)
QUICK = Measuring((2.0, 8.0), (1500,), (0.5, 2.5), measure_s=16.0)


@dataclass(frozen=True)
class Experiment:
    name: str
    policies: tuple[str, ...]
    """One per unit, as Python that makes it."""
    rows_per_s: int
    interval_s: float
    heartbeat_s: float
    measure_s: float
    stop: bool = False
    """Whether the second unit's host is stopped in the end."""
    points: tuple[tuple[str, str, float], ...] = ()
    """Figure, series and x that the results count for."""


def plan(measuring: Measuring) -> list[Experiment]:
    found: list[Experiment] = []
    rates, intervals, heartbeats = measuring.rates, measuring.intervals_s, measuring.heartbeats_s
    short, long = intervals[0], intervals[-1]

    def add(name: str, policies: list[str], points: list[tuple[str, str, float]], **about: Any) -> None:
        interval_s = about.pop("interval_s", short)
        settings = {"rows_per_s": rates[0], "heartbeat_s": heartbeats[0], **about}
        measure_s = max(measuring.measure_s, 4 * interval_s)
        one = Experiment(
            name, tuple(policies), interval_s=interval_s, measure_s=measure_s, points=tuple(points), **settings
        )
        found.append(one)

    for method in METHODS:
        sweeping = method == "sweeping"
        for interval_s in intervals:
            points: list[tuple[str, str, float]] = [("2-3", method, interval_s)]
            if interval_s == long:
                points.append(("4", method, rates[0]))
            if sweeping:
                points.append(("8", "PS", interval_s))
                points += [("5", "PS", rates[0])] if interval_s == long else []
                points += [("7", "PS", heartbeats[0]), ("6", "PS", 0)] if interval_s == short else []
            policy = _passive(method, interval_s)
            add(f"{method} {interval_s:g}s", [policy] * 4, points, interval_s=interval_s, stop=sweeping)
    for heartbeat_s in heartbeats[1:]:
        policies, points = [_passive("sweeping", short)] * 4, [("7", "PS", heartbeat_s)]
        add(f"heartbeat {heartbeat_s:g}s", policies, points, heartbeat_s=heartbeat_s, stop=True)
    none, eager = "us.none", 'us.ActiveStandby(delivery="eager")'
    for rate in rates:
        add(f"NONE {rate}", [none] * 4, [("5", "NONE", rate)], rows_per_s=rate)
        add(f"None-AS {rate}", [none, eager, none, none], [("5", "None-AS", rate)], rows_per_s=rate)
        last = rate == rates[0]
        points = [("5", "AS-AS", rate), *([("6", "AS", 0.0)] if last else [])]
        add(f"AS-AS {rate}", [none, eager, eager, none], points, rows_per_s=rate, stop=last)
        if not last:
            for method in METHODS:
                points = [("4", method, rate), *([("5", "PS", rate)] if method == "sweeping" else [])]
                add(f"{method} {rate}", [_passive(method, long)] * 4, points, rows_per_s=rate, interval_s=long)
    return found


def _passive(method: str, interval_s: float) -> str:
    return f"us.PassiveStandby({method!r}, every={interval_s!r})"


# -- hosts ---------------------------------------------------------------------------------------------------------


class Bench:
    """Hosts that stay, and the job that they run at the moment."""

    def __init__(self, out: Path) -> None:
        shutil.rmtree(out, ignore_errors=True)
        (out / "jobs").mkdir(parents=True)
        self.out = out
        self.run: LocalRun | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        if self.run is not None:
            self.run.stop(drain=False)

    @property
    def coordinator(self) -> Coordinator:
        assert self.run is not None
        return self.run.coordinator

    def send(self, number: int, experiment: Experiment) -> Path:
        """Let the hosts run this job instead of the last one. Returns the folder of its sink."""
        name = f"{number:02d}"
        file = self.out / "jobs" / f"gu_{name}.py"
        policies = ", ".join(experiment.policies)
        file.write_text(
            f"import understudy as us\nfrom understudy.lab import gu_chain\n\n"
            f"job = gu_chain.build(rows_per_s={experiment.rows_per_s}, epoch={EPOCH_S!r}, policies=[{policies}])\n"
        )
        root = (self.out / "sinks" / name).resolve()
        options = {"sink_root": str(root)}
        self.events.clear()
        if self.run is None:
            self.run = LocalRun(
                file, self.out / "state", hosts=len(gu_chain.HOSTS), fresh=True, options=options, settings=FAST_START,
                heartbeat_s=experiment.heartbeat_s, heartbeat_misses=MISSES, on_event=self.events.append,
            )  # fmt: skip
            self.run.start()
        else:
            old = self.coordinator
            old._broadcast("reset", {})
            old.close(exit_hosts=False)
            config = replace(
                self.run.config, job_file=file, folder=self.out / "state" / name, listen=old.address,
                heartbeat_s=experiment.heartbeat_s, options=options,
            )  # fmt: skip
            self.run.coordinator = fresh = Coordinator(config, self.events.append)
            fresh.wait_for_hosts(len(gu_chain.HOSTS))
            fresh.begin()
        self.coordinator.wait_until_running()
        return root / SINK

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        wait_for(lambda: self.coordinator.failure is not None or condition(), timeout_s, what)
        self.coordinator.wait(0)

    # -- what was sent and spent

    def totals(self) -> Totals:
        status = self.coordinator.status()["hosts"]
        spent: Counter[str] = Counter()
        for about in status.values():
            for unit, counts in about.get("checkpoints", {}).items():
                spent.update({f"{unit} {name}": value for name, value in counts.items()})
        return Totals(time.monotonic(), {h: Counter(about["bytes"]) for h, about in status.items()}, spent)

    def stop_host(self, sink: Path) -> dict[str, Any]:
        """Stop the second unit's host, wait until output flows again, and let the host go on."""
        assert self.run is not None
        unit = gu_chain.UNITS[VICTIM]
        stages = (f"{unit}1", f"{unit}2")

        def armed() -> bool:
            plan = self.coordinator.failover.plan.units[unit]
            return all(self.coordinator.armed.get(stage) == plan.generation for stage in stages)

        self.until(armed, 180, f"a standby of {unit!r} that is ready")
        self.epochs(sink, 3)
        host = self.run.host_of(unit)
        stopped_at = self.run.hosts.signal(host, signal.SIGSTOP)
        try:
            self.epochs(sink, 6)
        finally:
            self.run.hosts.signal(host, signal.SIGCONT)
        arrivals = compare.arrivals(sink)
        after = [e for e in list(self.events) if e["t"] >= stopped_at]
        detected = next((e["t"] for e in after if e["kind"] == "host-lost"), None)
        resumed = [e["t"] for e in after if e["kind"] == "running" and e.get("unit") == unit]
        times = compare.recovery(
            arrivals, killed_at=stopped_at, detected_at=detected, resumed_at=max(resumed, default=None), epoch_s=EPOCH_S
        )
        self.until(lambda: host in self.coordinator.failover.alive, 60, f"the return of {host}")
        received, trace = 0, []
        for t, _, rows in sorted(arrivals):
            received += rows
            trace.append((round(t - stopped_at, 3), received))
        return {
            "detection_s": times.detection_s,
            "redeployment_s": times.redeployment_s,
            "reprocessing_s": times.reprocessing_s,
            "total_s": times.silence_s,
            "longest_pause_s": times.longest_silence_s,
            "usual_pause_s": times.usual_gap_s,
            "trace": [(t, n) for t, n in trace if t > -10 * EPOCH_S],
        }

    def epochs(self, sink: Path, count: int, timeout_s: float = 150.0) -> None:
        """Until ``count`` more epochs have come out."""
        goal = _newest(sink) + count
        self.until(lambda: _newest(sink) >= goal, timeout_s, f"epoch {goal}")


@dataclass(frozen=True)
class Totals:
    at: float
    bytes: dict[str, Counter[str]]
    """Host -> category -> bytes."""
    spent: Counter[str]
    """What checkpoints have cost, by unit."""


def _newest(sink: Path) -> int:
    return max((int(p.name.partition("=")[2]) for p in sink.glob("epoch=*")), default=-1)


# -- experiments ---------------------------------------------------------------------------------------------------


def perform(bench: Bench, number: int, experiment: Experiment) -> dict[str, Any]:
    """One experiment: begin, settle, measure and, where asked for, a failure."""
    sink = bench.send(number, experiment)
    bench.epochs(sink, 3)
    bench.coordinator.wait(3 * experiment.interval_s if "Passive" in experiment.policies[0] else EPOCH_S)
    before = bench.totals()
    bench.coordinator.wait(experiment.measure_s)
    after = bench.totals()
    found = _found(before, after, synchronous="synchronous" in experiment.policies[0])
    if experiment.stop:
        found |= bench.stop_host(sink)
    return found


def _found(before: Totals, after: Totals, *, synchronous: bool) -> dict[str, Any]:
    seconds = after.at - before.at
    sent = {host: counts - before.bytes[host] for host, counts in after.bytes.items()}
    copies = (gu_chain.HOSTS[DOWNSTREAM], gu_chain.STANDBYS[DOWNSTREAM])
    data = sum(sent[host][category] for host in copies for category in ("data", "duplicate"))
    mine = sent[gu_chain.HOSTS[VICTIM]]
    found: dict[str, Any] = {
        "seconds": seconds,
        "data_bytes_per_s": data / seconds,
        "checkpoint_bytes_per_s": mine["checkpoint"] / seconds,
        "ack_bytes_per_s": mine["ack"] / seconds,
        "bytes_per_s": (data + mine["checkpoint"] + mine["ack"]) / seconds,
    }
    spent: Counter[str] = Counter()
    for name, value in (after.spent - before.spent).items():
        spent[name.split()[-1]] += value
    if spent["checkpoints"]:
        messages = spent["checkpoints"] / (2 if synchronous else 1)
        found |= {
            "mean_size": spent["bytes"] / messages,
            "total_size": 100 / seconds * spent["bytes"],
            "checkpoints": messages,
            "mean_s": spent["seconds"] / spent["checkpoints"],
        }
    return found


def measure(out: Path, measuring: Measuring, progress: Callable[[str, int, int], None]) -> tuple[list[Row], list[str]]:
    """All experiments. Returns the rows of ``results.jsonl``, and what could not be measured, with the reason."""
    experiments = plan(measuring)
    rows: list[Row] = []
    failures: list[str] = []
    with Bench(out) as bench, open(out / "rows.jsonl", "w") as kept:
        for number, experiment in enumerate(experiments):
            progress(f"on hosts: {experiment.name}", number, len(experiments))
            try:
                found = perform(bench, number, experiment)
            except (UnderstudyError, TimeoutError) as error:
                failures.append(f"{experiment.name}: {error}")
                continue
            for row in _rows(experiment, found):
                rows.append(row)
                kept.write(json.dumps(row) + "\n")
                kept.flush()
        progress("on hosts", len(experiments), len(experiments))
    return rows, failures


def _rows(experiment: Experiment, found: dict[str, Any]) -> Iterator[Row]:
    parameters = asdict(experiment)
    parameters.pop("points")
    for figure, series, x in experiment.points:
        values = {name: value for name, value in found.items() if name != "trace" or figure == "6"}
        about = {"figure": figure, "how": "measured", "series": series, "x": x, "parameters": parameters}
        yield {**about, "values": values, "simulated": False}
