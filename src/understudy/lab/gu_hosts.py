"""The experiments of Gu et al. 2009 on real hosts: four processes, each with a Spark of its own, on this machine.

Hosts are started once. All experiments at one data rate are one run of the job in ``gu_chain``: its units are given
other policies while it runs, and its coordinator is replaced by one with another heartbeat. A host *fails* by being
stopped (SIGSTOP, with everything below it), so that only missing heartbeats tell, as when a machine
loses its power; afterwards it is let go on, finds itself replaced, and becomes the standby.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from understudy.cli import FAST_START
from understudy.core.policies import ActiveStandby, PassiveStandby, Policy, none
from understudy.core.policies.spelling import spell
from understudy.core.profile import SNAPSHOT_EPOCHS
from understudy.drill import copies_in_step
from understudy.errors import UnderstudyError
from understudy.lab import gu_chain
from understudy.lab.claims import Row
from understudy.lab.gu_claims import METHODS
from understudy.runtime.coordinator import Coordinator
from understudy.runtime.session import LocalRun, wait_for
from understudy.verify import silence

EPOCH_S = 3.0
MISSES = 3
WARM_EPOCHS = 12
"""Epochs before anything is measured: by then every query has been compiled."""
BEHIND_EPOCHS = 3
"""How far the sink may be behind the source while the chain keeps up: eight stages take that long."""
PHASES = 6
"""Checkpoints to wait for one whose middle is also the middle between two heartbeats."""
EPOCHS_MEASURED = 8
"""At least: a busy machine may not manage as many in the time that is meant for it."""
STAGES = 2 * len(gu_chain.UNITS)
VICTIM, FIRST_HOST, DOWNSTREAM_HOST = gu_chain.UNITS[1], gu_chain.HOSTS[0], gu_chain.HOSTS[2]
BEFORE_VICTIM, SINK = f"{gu_chain.UNITS[0]}2", f"{gu_chain.UNITS[-1]}2"

SCALING: dict[str, str] = {
    "Machine": (
        "Four hosts are processes on one machine, each the driver of a Spark of its own; in the paper every subjob has "
        "a machine of four cores. Everything competes for the same cores. The first and the last subjob share a host; "
        "the second one, which fails, has its host and its standby's for itself."
    ),
    "Elements": (
        "A row is an element and the rows of one micro-batch are an epoch. A micro-batch of a stage takes tenths of a "
        "second whatever it holds, so epochs are 3 s long, where the simulation has batches of 4 ms."
    ),
    "Times": (
        "Checkpoint intervals are 3 to 15 s (paper: 100 to 900 ms), heartbeats 1 to 4 s (paper: 100 to 500 ms), three "
        "misses as in the paper: ten times as long and more, because a busy machine keeps a healthy process waiting "
        "for a second now and then."
    ),
    "Rates": "1,500 to 6,000 rows a second (paper: 1,000 to 25,000 elements); 3,000 where the rate does not vary.",
    "State": (
        "A row for each of 20 keys per stage, in Spark's RocksDB store with changelogs. A checkpoint also carries "
        "Spark's own logs of offsets and commits, and what is sent is what the standby does not have yet."
    ),
    "Selectivity": "1, and the 20 rows of the state, which every stage adds to its output.",
    "What is counted": (
        "Bodies and headers of messages. Figures 2 and 3: checkpoints of all stages, in bytes; totals scaled to 100 s. "
        "Figure 4: from the order to capture until the checkpoint is safe at the standby; where stages are paused for "
        "it, from the order to pause until they go on. Figure 5: what the second subjob sends to the third, and its "
        "checkpoints, per epoch."
    ),
    "Redeployment": (
        "The standby's query was started before the failure and is held at the door, so nothing is deployed when it is "
        "needed."
    ),
    "Arrivals": (
        "At the sink, two subjobs downstream of the one that fails. One failure per point: about half a checkpoint "
        "interval after the last PE's checkpoint and half a heartbeat interval after a heartbeat, the mean that random "
        "failures scatter around. Figures 6 and 8 with the longest heartbeat interval: in the paper detection and "
        "redeployment, which do not depend on the checkpoint interval, take one to eight of them, and epochs are short."
    ),
}


@dataclass(frozen=True)
class Measuring:
    """Points of the figures. The first rate and the first heartbeat interval are those of the other figures."""

    intervals_s: tuple[int, ...]
    rates: tuple[int, ...]
    heartbeats_s: tuple[float, ...]
    measure_s: float
    """At least; always several checkpoint intervals."""
    bytes_s: float
    """For Figure 5, where what is on its way at the ends must not count for much."""


FULL = Measuring((3, 9, 15), (3000, 1500, 6000), (1.0, 2.0, 4.0), measure_s=60.0, bytes_s=90.0)
QUICK = Measuring((3, 9), (3000,), (1.0, 4.0), measure_s=30.0, bytes_s=60.0)

Point = tuple[str, str, float]
"""Figure, series and x."""


@dataclass(frozen=True)
class Experiment:
    name: str
    rows_per_s: int
    policies: tuple[Policy, ...]
    """One per unit."""
    heartbeat_s: float
    settle_s: float
    measure_s: float
    """0: nothing is measured but the failure."""
    stop: bool = False
    """Whether the second unit's host is stopped in the end."""
    points: tuple[Point, ...] = ()
    """What the results count for."""

    @property
    def every_s(self) -> float:
        """Between the second unit's checkpoints; 0 when there are none."""
        return self.policies[1].checkpoint_s or 0.0


def plan(measuring: Measuring) -> list[Experiment]:
    """In an order that changes little from one to the next."""
    found: list[Experiment] = []
    short, long, beat = measuring.intervals_s[0], measuring.intervals_s[-1], measuring.heartbeats_s[0]
    eager = ActiveStandby(delivery="eager")
    failing: dict[str, Any] = {"heartbeat_s": measuring.heartbeats_s[-1], "measure_s": 0.0, "stop": True}
    for rate in measuring.rates:
        main = rate == measuring.rates[0]

        def add(
            name: str, policies: list[Policy], points: list[Point], every_s: float = 0.0, rate: int = rate, **more: Any
        ) -> None:
            least_s = measuring.bytes_s if any(figure == "5" for figure, _, _ in points) else measuring.measure_s
            # As many epochs as Spark writes a snapshot of its state after, or a multiple of it.
            rounds = math.ceil(max(least_s, 4 * every_s) / (SNAPSHOT_EPOCHS * EPOCH_S))
            about = {"heartbeat_s": beat, "measure_s": rounds * SNAPSHOT_EPOCHS * EPOCH_S, **more}
            settle_s = max(3 * every_s, 2 * EPOCH_S)
            found.append(Experiment(f"{name}, {rate}/s", rate, tuple(policies), settle_s=settle_s,
                                    points=tuple(points), **about))  # fmt: skip

        add("NONE", [none] * 4, [("5", "NONE", rate)])
        add("None-AS", [none, eager, none, none], [("5", "None-AS", rate)])
        add("AS-AS", [none, eager, eager, none], [("5", "AS-AS", rate)])
        if main:
            add("AS-AS, failing", [none, eager, eager, none], [("6", "AS", 0.0)], **failing)
        for method in METHODS:
            passive = method == "sweeping" and main
            for every in measuring.intervals_s if main else (long,):
                points: list[Point] = [("2-3", method, every)] if main else []
                points += [("4", method, rate)] if every == long else []
                points += [("5", "PS", rate)] if every == long and method == "sweeping" else []
                points += [("7", "PS", beat)] if passive and every == short else []
                policies: list[Policy] = [PassiveStandby(method, every=f"{every}s")] * 4
                name = f"{method} every {every} s"
                add(name, policies, points, every_s=every, stop=passive and every == short)
                for other in measuring.heartbeats_s[1:] if passive else ():
                    points = [("7", "PS", other)] if every == short else []
                    if other == failing["heartbeat_s"]:
                        points += [("8", "PS", every), *([("6", "PS", 0.0)] if every == short else [])]
                    if points:
                        about = {**failing, "heartbeat_s": other}
                        add(f"{name}, heartbeats every {other:g} s", policies, points, every_s=every, **about)
    return found


# -- hosts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Totals:
    at: float
    epochs: dict[str, int]
    """Stage -> its newest epoch."""
    rows: int
    """That were sent to the second unit."""
    received: dict[str, int]
    """Host -> bytes of data that came from other hosts."""
    spent: dict[str, Counter[str]]
    """Unit -> how many checkpoints, their bytes and seconds."""


class Bench:
    """Hosts that stay, and the job that they run at the moment."""

    def __init__(self, out: Path) -> None:
        shutil.rmtree(out, ignore_errors=True)
        (out / "jobs").mkdir(parents=True)
        self.out = out
        self.run: LocalRun | None = None
        self.events: list[dict[str, Any]] = []
        self._running: int | None = None
        """The rate of the job that runs."""
        self._sent = 0
        self.sink = Path()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        if self.run is not None:
            self.run.stop(drain=False)

    @property
    def coordinator(self) -> Coordinator:
        assert self.run is not None
        return self.run.coordinator

    def prepare(self, experiment: Experiment) -> None:
        """Have the job run as the experiment wants it."""
        if self._running != experiment.rows_per_s:
            self._running = None
            self._send_job(experiment)
            self._running = experiment.rows_per_s
            self.epochs(WARM_EPOCHS, timeout_s=300)
        elif self.coordinator.config.heartbeat_s != experiment.heartbeat_s:
            self._replace_coordinator(heartbeat_s=experiment.heartbeat_s)
            self.until(self.coordinator.adopt, 60, "the adoption of the running job")
        self._switch(experiment.policies)

    def forget(self) -> None:
        """Something went wrong with the job that runs: the next experiment begins with a new one."""
        self._running = None

    def _send_job(self, experiment: Experiment) -> None:
        self._sent += 1
        name = f"gu_{self._sent}"
        file, root = self.out / "jobs" / f"{name}.py", (self.out / "sinks" / name).resolve()
        policies = [spell(policy) for policy in experiment.policies]
        file.write_text(
            "from understudy.lab import gu_chain\n\n"
            f"job = gu_chain.build(rows_per_s={experiment.rows_per_s}, epoch='{EPOCH_S:g}s', policies={policies})\n"
        )
        options = {"sink_root": str(root)}
        self.sink = root / SINK
        if self.run is None:
            self.run = LocalRun(
                file, self.out / "state", hosts=4, fresh=True, options=options, settings=FAST_START,
                heartbeat_s=experiment.heartbeat_s, heartbeat_misses=MISSES, on_event=self.events.append,
            )  # fmt: skip
            self.run.start()
        else:
            self.coordinator.reset_hosts()
            changes = {"job_file": file, "folder": self.out / "state" / name, "options": options}
            self._replace_coordinator(heartbeat_s=experiment.heartbeat_s, **changes)
            self.coordinator.wait_for_hosts(4)
            self.coordinator.begin()
        self.coordinator.wait_until_running()

    def _replace_coordinator(self, **changes: Any) -> None:
        """Another coordinator at the same address; hosts notice nothing but its questions."""
        assert self.run is not None
        old = self.coordinator
        old.close(exit_hosts=False)
        config = replace(old.config, listen=old.address, **changes)
        self.run.coordinator = Coordinator(config, self.events.append)

    def _switch(self, policies: tuple[Policy, ...]) -> None:
        """Give every unit its policy, and wait until it counts."""
        for unit, wanted in zip(gu_chain.UNITS, policies, strict=True):
            if self.coordinator.failover.topology.units[unit].policy != wanted:
                self.coordinator.switch(unit, wanted)

        def settled() -> bool:
            plans = self.coordinator.failover.plan.units
            return all(
                plans[unit].turn is None and len(plans[unit].ready) == policy.backups
                for unit, policy in zip(gu_chain.UNITS, policies, strict=True)
            )

        self.until(settled, 180, "the change of policies")
        for unit, policy in zip(gu_chain.UNITS, policies, strict=True):
            if policy.standby_runs:
                self.until(lambda unit=unit: self.armed(unit), 180, f"a copy of {unit!r} that runs")  # type: ignore[misc]

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        wait_for(lambda: self.coordinator.failure is not None or condition(), timeout_s, what)
        self.coordinator.wait(0)

    def epochs(self, count: int, timeout_s: float = 150.0) -> None:
        """Until ``count`` more epochs have come out."""
        goal = self.newest() + count
        self.until(lambda: self.newest() >= goal, timeout_s, f"epoch {goal}")

    def in_step(self, timeout_s: float = 300.0) -> None:
        """Until the sink and all copies have kept up for some epochs. While a chain catches up, its streams flow at
        different speeds, and what a failed unit has sent before goes on arriving for long."""
        since = -1

        def kept_up() -> bool:
            nonlocal since
            time.sleep(0.5)
            now = self.newest()
            if self.totals().epochs["source"] - now > BEHIND_EPOCHS or not copies_in_step(self.coordinator):
                since = -1
            elif since < 0:
                since = now
            return 0 <= since <= now - BEHIND_EPOCHS

        self.until(kept_up, timeout_s, "output that keeps up with the source: this machine is too slow or too busy")

    def newest(self) -> int:
        return max((int(p.name.partition("=")[2]) for p in self.sink.glob("epoch=*")), default=-1)

    def totals(self) -> Totals:
        """Once all stages run and all hosts answer."""
        hosts: dict[str, dict[str, Any]] = {}
        epochs: dict[str, int] = {}

        def known() -> bool:
            hosts.update(self.coordinator.status()["hosts"])
            stages = [item for about in hosts.values() for item in about.get("stages", {}).items()]
            epochs.update({name: stage["committed"] for name, stage in stages if stage["role"] == "primary"})
            return all("stages" in about for about in hosts.values()) and len(epochs) > STAGES

        self.until(known, 60, "an answer of every host")
        spent: dict[str, Counter[str]] = {unit: Counter() for unit in gu_chain.UNITS}
        for about in hosts.values():
            for unit, counts in about["checkpoints"].items():
                spent[unit].update(counts)
        received = {host: about["bytes"]["data"] + about["bytes"]["duplicate"] for host, about in hosts.items()}
        return Totals(time.monotonic(), epochs, hosts[FIRST_HOST]["rows"][BEFORE_VICTIM], received, spent)

    # -- failure

    def stop_host(self, every_s: float) -> dict[str, Any]:
        """Stop the second unit's host, wait until output flows again, and let the host go on. ``every_s``: between its
        checkpoints, if there are any."""
        assert self.run is not None
        self.until(lambda: self.armed(VICTIM), 300, f"a standby of {VICTIM!r} that is ready")
        self.in_step()
        host = self.run.host_of(VICTIM)
        self._await_phase(host, every_s)
        self.events.clear()
        stopped_at = self.run.hosts.signal(host, signal.SIGSTOP)
        try:
            self.until(lambda: any(e["kind"] == "promoted" for e in self.events), 60, "a takeover")
            self.epochs(6)
        finally:
            self.run.hosts.signal(host, signal.SIGCONT)
        arrivals = sorted(a for a in silence.arrivals(self.sink) if a[0] > stopped_at - 15 * EPOCH_S)
        detected = next((e["t"] for e in self.events if e["kind"] == "host-lost"), None)
        resumed = [e["t"] for e in self.events if e["kind"] == "running" and e.get("unit") == VICTIM]
        times = silence.recovery(
            arrivals, killed_at=stopped_at, detected_at=detected, resumed_at=max(resumed, default=None), epoch_s=EPOCH_S
        )
        self.until(lambda: host in self.coordinator.failover.alive, 60, f"the return of {host}")
        # Meanwhile another host has become the standby. Without protection there is none, and the next policy will
        # choose the host that has come back, because it is empty.
        self.coordinator.switch(VICTIM, none)
        received, trace = 0, []
        for t, _, rows in arrivals:
            received += rows
            trace.append((round(t - stopped_at, 3), received))
        return {
            "detection_s": times.detection_s,
            "redeployment_s": times.redeployment_s,
            "reprocessing_s": times.reprocessing_s,
            "total_s": times.silence_s,
            "longest_pause_s": times.longest_silence_s,
            "usual_pause_s": times.usual_gap_s,
            "trace": trace,
        }

    def _await_checkpoint(self) -> None:
        """Until the last stage has another one, with which a sweep begins."""
        unit = gu_chain.UNITS[-1]
        count = self.totals().spent[unit]["checkpoints"]
        self.until(lambda: self.totals().spent[unit]["checkpoints"] > count, 60, "another checkpoint")

    def _await_phase(self, host: str, every_s: float) -> None:
        """Until half of the time between two checkpoints has passed, and half of that between two heartbeats of a host:
        as nearly as both come together within some checkpoints."""
        beat_s = self.coordinator.watch.detector.interval_s
        left_s = 0.0
        for _ in range(PHASES):
            if every_s:
                self._await_checkpoint()
                self.coordinator.wait(every_s / 2)
            left_s = (self.coordinator.watch.detector.heard_at(host) + beat_s / 2 - time.monotonic()) % beat_s
            if not every_s or left_s < every_s / 6:
                break
        time.sleep(left_s)

    def armed(self, unit: str) -> bool:
        """The unit's standby holds its queries at the door, or runs them."""
        time.sleep(0.5)  # hosts are asked, and answering takes them some work
        standbys = self.coordinator.failover.plan.units[unit].ready
        hosts = self.coordinator.status()["hosts"]
        return bool(standbys) and all(
            hosts[standbys[0]].get("stages", {}).get(f"{unit}{n}", {}).get("armed") for n in (1, 2)
        )


# -- experiments ---------------------------------------------------------------------------------------------------


def perform(bench: Bench, experiment: Experiment) -> dict[str, Any]:
    """Prepare, settle and measure."""
    bench.prepare(experiment)
    bench.coordinator.wait(experiment.settle_s)
    bench.in_step()
    bench.events.clear()
    if not experiment.measure_s:
        return {}
    assert bench.run is not None
    victim, before, begin = bench.run.host_of(VICTIM), bench.totals(), bench.newest()
    bench.coordinator.wait(experiment.measure_s)
    bench.until(lambda: bench.newest() >= begin + EPOCHS_MEASURED, 150, f"{EPOCHS_MEASURED} epochs to measure")
    after = bench.totals()
    if lost := [e["text"] for e in bench.events if e["kind"] == "host-lost"]:
        raise TimeoutError(f"a host was given up though nothing had been done to it ({lost[0]})")
    return found_between(before, after, victim, experiment.rows_per_s)


def found_between(before: Totals, after: Totals, victim: str, rows_per_s: int) -> dict[str, Any]:
    seconds = after.at - before.at
    epochs = {stage: after.epochs[stage] - before.epochs[stage] for stage in after.epochs}
    epoch_s = (after.rows - before.rows) / rows_per_s / epochs[BEFORE_VICTIM]  # longer ones on a busy machine

    def per_s(host: str, stage: str) -> float:
        """What a host received, for the epochs that its stage took in: some are behind others, and catch up."""
        return (after.received[host] - before.received[host]) / (epochs[stage] * epoch_s)

    # The third unit's hosts receive what the second sends, one of them also the last unit's input.
    second, third, last = (f"{unit}1" for unit in gu_chain.UNITS[1:])
    data_per_s = per_s(DOWNSTREAM_HOST, third) + per_s(FIRST_HOST, last) - per_s(victim, second)
    flow_s = epochs[second] * epoch_s
    spent = {unit: counts - before.spent[unit] for unit, counts in after.spent.items()}
    whole: Counter[str] = sum(spent.values(), Counter())
    found: dict[str, Any] = {
        "seconds": seconds,
        "flow_s": flow_s,
        "data_bytes_per_s": data_per_s,
        "checkpoint_bytes_per_s": spent[VICTIM]["bytes"] / flow_s,
        "bytes_per_s": data_per_s + spent[VICTIM]["bytes"] / flow_s,
    }
    if whole["checkpoints"]:
        found |= {
            "mean_size": whole["bytes"] / whole["checkpoints"],
            "total_size": 100 / seconds * whole["bytes"],
            "checkpoints": whole["checkpoints"],
            "mean_s": whole["seconds"] / whole["checkpoints"],
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
            found: dict[str, Any] = {}
            try:
                found |= perform(bench, experiment)
                if experiment.stop:
                    found |= bench.stop_host(experiment.every_s)
            except (UnderstudyError, TimeoutError) as error:
                failures.append(f"{experiment.name}: {error}")
                bench.forget()
                if bench.run is None:
                    break  # no hosts, no experiments
            for row in _rows(experiment, found):
                rows.append(row)
                kept.write(json.dumps(row) + "\n")
                kept.flush()
        progress("on hosts", len(experiments), len(experiments))
    return rows, failures


_NEEDED = {"2-3": "mean_size", "4": "mean_s", "5": "bytes_per_s", "6": "trace", "7": "total_s", "8": "total_s"}
"""Figure -> what must have been found for a point of it."""


def _rows(experiment: Experiment, found: dict[str, Any]) -> Iterator[Row]:
    parameters = asdict(experiment)
    parameters["policies"] = [policy.describe() for policy in experiment.policies]
    parameters.pop("points")
    for figure, series, x in experiment.points:
        if found.get(_NEEDED[figure]) is not None:
            values = {name: value for name, value in found.items() if name != "trace" or figure == "6"}
            about = {"figure": figure, "how": "measured", "series": series, "x": x, "parameters": parameters}
            yield {**about, "values": values, "simulated": False}
