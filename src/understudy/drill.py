"""Drills: break a running job on purpose, then prove what it cost.

A drill runs the job on local hosts with its sinks redirected to a folder of its own, does the harm, stops the job
cleanly, replays the very same source epochs through the same job without any failure, and compares the two
outputs epoch by epoch.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from understudy.runtime.coordinator import Coordinator
from understudy.runtime.session import LocalRun, wait_for
from understudy.sources import RecordedSource
from understudy.verify import compare, report
from understudy.verify.checkers import Written, check_sink

HA_CATEGORIES = ("checkpoint", "ack", "heartbeat", "duplicate")
SETTLE_EPOCHS = 8
"""Epochs seen before any harm is done: by then every query is warm and every standby has its checkpoint."""


class Drill:
    """One run with harm, one without. Use as a context manager; ``judge`` returns the result."""

    def __init__(
        self, job_file: Path, out: Path, *, hosts: int = 3, name: str = "drill", adopt: bool = False, **settings: Any
    ) -> None:
        """``adopt``: the job already runs in ``out``, left there by a coordinator that was killed."""
        self.job_file, self.out, self.name = job_file, out, name
        if not adopt:
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
        self.recorded = (out / "recorded").resolve()
        options = {"sink_root": str((out / "run").resolve()), "record": str(self.recorded), "opening_epochs": 4}
        self.run = LocalRun(job_file, out / "state", hosts=hosts, fresh=not adopt, options=options, **settings)
        self.killed_at: float | None = None
        self.harmed: list[str] = []

    @property
    def coordinator(self) -> Coordinator:
        return self.run.coordinator

    def __enter__(self) -> Drill:
        self.run.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.run.__exit__(*error)

    # -- steps ------------------------------------------------------------------------------------------------------

    def settle(self, epochs: int = SETTLE_EPOCHS) -> None:
        """Wait until all standbys are armed and ``epochs`` more epochs have come out."""
        self.coordinator.wait_until_running(armed=True)
        self.epochs(epochs)

    def epochs(self, count: int, timeout_s: float = 120.0) -> None:
        goal = self.newest() + count
        wait_for(lambda: self.coordinator.failure is not None or self.newest() >= goal, timeout_s, f"epoch {goal}")
        self.coordinator.wait(0)

    def newest(self) -> int:
        """The newest epoch that every sink has."""
        newest = []
        for sink in self.sinks():
            names = [p.parent.name for p in (self.out / "run" / sink).glob("epoch=*/part-*")]
            newest.append(max((int(n.partition("=")[2]) for n in names), default=-1))
        return min(newest, default=-1)

    def sinks(self) -> list[str]:
        return [name for stage in self.coordinator.job.stages.values() for name in stage.sinks]

    def signal(self, *targets: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Hit the hosts of these stages, all at the same moment."""
        hosts = list(dict.fromkeys(self.run.host_of(t) for t in targets))
        self.coordinator.status()  # what the victims have sent until now counts, also when they are dead
        for host in hosts:
            at = self.run.hosts.signal(host, number)
            if number != signal.SIGCONT:
                self.killed_at = at
                self.harmed.append(host)
            kind = {signal.SIGKILL: "killed", signal.SIGSTOP: "paused"}.get(number, "continued")
            self.coordinator.say(kind, f"{host} {kind} with {number.name}", host=host, t=at)

    def wait_event(self, kind: str, timeout_s: float = 60.0, **about: str) -> None:
        """Until the coordinator has said ``kind`` after the last harm."""
        since = self.killed_at or 0.0

        def said() -> bool:
            return self.coordinator.failure is not None or any(
                e["kind"] == kind and e["t"] >= since and all(e.get(k) == v for k, v in about.items())
                for e in list(self.coordinator.events)
            )

        wait_for(said, timeout_s, f"event {kind!r}")
        self.coordinator.wait(0)

    # -- judgement ----------------------------------------------------------------------------------------------------

    def judge(self, *, expected: str = "precise") -> dict[str, Any]:
        """Stop the run, replay it without failure, compare, and write ``result.json`` and ``report.html``."""
        status = self.coordinator.status()
        clean = self.coordinator.drain()
        self.coordinator.say(
            "stopped",
            "stopped cleanly; replaying the same epochs without failure"
            if clean
            else "stopped; replaying the same epochs without failure",
        )
        events = list(self.coordinator.events)
        self.replay()
        result = self._compare(status, events)
        result |= {"name": self.name, "expected": expected, "clean_stop": clean}
        (self.out / "result.json").write_text(json.dumps(result, indent=2))
        sink = self.out / "run" / self.sinks()[0]
        report.write_report(
            self.out / "report.html",
            title=f"{self.coordinator.job.name}: {self.name}",
            result=result,
            arrivals=compare.arrivals(sink),
            events=events,
        )
        return result

    def entries(self) -> dict[str, list[Any]]:
        """What every source epoch of the run held, from the hosts' logs; the longest copy is the whole story."""
        found: dict[str, list[Any]] = {}
        for path in (self.out / "state" / "hosts").glob("*/stages/*/entries.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            if len(lines) > len(found.get(path.parent.name, [])):
                found[path.parent.name] = lines
        for folder in self.recorded.glob("*"):
            found[folder.name] = RecordedSource(str(folder)).entries()
        return found

    def replay(self) -> None:
        """Run the job again on the living hosts from the recorded epochs, unprotected and unharmed."""
        entries = self.entries()
        last = self.newest()
        old = self.coordinator
        old._broadcast("reset", {})
        alive = list(old.failover.alive)
        old.close(exit_hosts=False)
        root = (self.out / "reference").resolve()
        config = replace(
            self.run.config,
            folder=self.out / "state" / "reference",
            listen=old.address,
            options={"sink_root": str(root), "replay": entries, "reference": str(self.recorded)},
        )
        fresh = Coordinator(config)
        self.run.coordinator = fresh
        fresh.wait_for_hosts(len(alive))
        fresh.begin()
        fresh.wait_until_running()

        def done() -> bool:
            if fresh.failure is not None:
                return True
            return all(any((root / sink / f"epoch={last:012d}").glob("part-*")) for sink in self.sinks())

        wait_for(done, 30 + 2.0 * (last + 1), "the reference run")
        fresh.wait(0)

    def _compare(self, status: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
        upto = max(
            (int(p.name.partition("=")[2]) for s in self.sinks() for p in (self.out / "run" / s).glob("epoch=*")),
            default=-1,
        )
        found = [
            compare.compare_sinks(self.out / "run" / sink, self.out / "reference" / sink, upto=upto)
            for sink in self.sinks()
        ]
        judged = compare.combine(found)
        arrived = {sink: sorted(compare.arrivals(self.out / "run" / sink)) for sink in self.sinks()}
        disorder = [
            f"{sink}: {text}"
            for sink, times in arrived.items()
            for text in check_sink([Written(t, epoch) for t, epoch, _ in times])
        ]
        job = self.coordinator.job
        data = status["bytes"]["data"]
        spent = sum(status["bytes"][c] for c in HA_CATEGORIES)
        memory = [h["rss"] for h in status["hosts"].values() if "rss" in h]
        result: dict[str, Any] = {
            **judged.to_dict(),
            "verdict": judged.verdict,
            "disorder": disorder,
            "job": job.name,
            "hosts": len(status["hosts"]),
            "policy": "; ".join(dict.fromkeys(job_policy.describe() for job_policy in map(job.policy, job.stages))),
            "bytes": status["bytes"],
            "ha_ratio": round(spent / data, 4) if data else None,
            "host_memory_bytes_max": max(memory, default=None),
        }
        if self.killed_at is not None:
            result |= self._times(events)
        return result

    def _times(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        killed = self.killed_at or 0.0
        after = [e for e in events if e["t"] >= killed - 0.001]
        detected = next((e["t"] for e in after if e["kind"] == "host-lost"), None)
        moved = {e["unit"] for e in after if e["kind"] in ("promoted", "restarted")}
        resumed = [e["t"] for e in after if e["kind"] == "running" and e.get("unit") in moved]
        times = compare.recovery(
            compare.arrivals(self.out / "run" / self.sinks()[0]),
            killed_at=killed,
            detected_at=detected,
            resumed_at=max(resumed, default=None),
            epoch_s=self.coordinator.job.epoch_s,
        )
        return {
            "killed_at": killed,
            "detected_at": detected,
            "resumed_at": max(resumed, default=None),
            "hosts_harmed": self.harmed,
            **times.to_dict(),
        }


def sentence(result: dict[str, Any]) -> str:
    """The verdict in one line."""
    text = f"{result['verdict']}: {result['lost']} lost, {result['repeated']} repeated"
    if result.get("different"):
        text += f", {result['different']} different"
    if result.get("disorder"):
        text += f", OUT OF ORDER ({result['disorder'][0]})"
    if result.get("silence_s") is not None:
        text += f"; silence {result['silence_s']:.2f} s"
        parts = [(n, result.get(f"{n}_s")) for n in ("detection", "redeployment", "reprocessing")]
        if all(value is not None for _, value in parts):
            text += " = " + " + ".join(f"{n} {value:.2f}" for n, value in parts)
    return text


def simple(
    job_file: Path,
    out: Path,
    *,
    kill: str,
    number: signal.Signals,
    after_s: float,
    pause_s: float,
    hosts: int,
    around: Callable[[Coordinator], Any],
    **settings: Any,
) -> dict[str, Any]:
    """The drill of the command line: one harm to one host or stage."""
    with Drill(job_file, out, hosts=hosts, name=f"{number.name} {kill}", **settings) as drill:
        with around(drill.coordinator):
            drill.coordinator.wait_until_running(armed=True)
            drill.run.host_of(kill)
            drill.epochs(2)
            drill.coordinator.wait(after_s)
            drill.signal(kill, number=number)
            if number == signal.SIGSTOP:
                victim = drill.harmed[-1]
                drill.coordinator.wait(pause_s)
                drill.signal(victim, number=signal.SIGCONT)
            drill.epochs(SETTLE_EPOCHS)
        expected = "precise" if all(u.protected for u in drill.coordinator.topology.units.values()) else "gap"
        return drill.judge(expected=expected)
