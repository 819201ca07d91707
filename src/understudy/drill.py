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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from understudy.core.numbers import FIRST_EPOCH, NO_EPOCH, Epoch, after
from understudy.core.pacing import IN_STEP
from understudy.core.policies import Policy
from understudy.runtime.coordinator import Coordinator
from understudy.runtime.messages import Options
from understudy.runtime.session import LocalRun, wait_for
from understudy.runtime.wire import HA_CATEGORIES
from understudy.sources import RecordedSource
from understudy.verify import compare, report, silence
from understudy.verify.checkers import Written, check_sink

WARM_S = 60.0
"""How long standbys may take to rehearse all there is; a state that changes rarely has no snapshot for long."""
SETTLE_EPOCHS = 8
"""Epochs seen before any harm is done: by then every query is warm and every standby has its checkpoint."""


@dataclass
class Leg:
    """One harm of several in a run: what was done, when, and after which epoch."""

    name: str
    expected: str
    after: Epoch
    killed_at: float | None = None
    harmed: list[str] = field(default_factory=list)


def copies_in_step(coordinator: Coordinator) -> bool:
    """A copy that was just made is behind, and would have to catch up first if it were needed."""
    coordinator.wait(0)
    units, hosts = coordinator.failover.topology.units, coordinator.status()["hosts"].values()
    running = {n: s for host in hosts for n, s in host.get("stages", {}).items() if s["role"] == "primary"}
    return all(
        (stage["checkpoint"] or -1) >= running[name]["committed"] - IN_STEP
        for host in hosts
        for name, stage in host.get("stages", {}).items()
        if stage["role"] == "standby" and units[stage["unit"]].policy.standby_runs and name in running
    )


def newest_in(sink: Path) -> Epoch:
    """The newest epoch that a sink's folder has, -1 without any. Looks into the newest only: this is asked many times a
    second, of folders with thousands."""
    names = sorted((p.name for p in sink.glob("epoch=*")), reverse=True)
    return next((Epoch(int(n.partition("=")[2])) for n in names if any((sink / n).glob("part-*"))), NO_EPOCH)


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
        self.legs = [Leg(name, "precise", NO_EPOCH)]
        """The harms so far. Unless ``leg`` begins another, there is one."""

    @property
    def killed_at(self) -> float | None:
        return self.legs[-1].killed_at

    @property
    def harmed(self) -> list[str]:
        return self.legs[-1].harmed

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
        """Wait until all standbys are armed and warm, copies have caught up, and ``epochs`` more epochs came out."""
        self.coordinator.wait_until_running(armed=True)
        self.coordinator.wait_until_warm(WARM_S)
        if any(unit.policy.standby_runs for unit in self.coordinator.failover.topology.units.values()):
            wait_for(lambda: copies_in_step(self.coordinator), 180, "copies to catch up", every_s=0.5)
        self.epochs(epochs)

    def epochs(self, count: int, timeout_s: float = 120.0) -> None:
        goal = self.newest() + count
        wait_for(lambda: self.coordinator.failure is not None or self.newest() >= goal, timeout_s, f"epoch {goal}")
        self.coordinator.wait(0)

    def newest(self) -> Epoch:
        """The newest epoch that every sink has."""
        return min(map(self._newest_of, self.sinks()), default=NO_EPOCH)

    def _newest_of(self, sink: str) -> Epoch:
        """Sinks of parts of a job that have nothing in common need not be at the same epoch."""
        return newest_in(self.out / "run" / sink)

    def sinks(self) -> list[str]:
        return [name for stage in self.coordinator.job.stages.values() for name in stage.sinks]

    def signal(self, *targets: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Hit the hosts of these stages, all at the same moment."""
        hosts = list(dict.fromkeys(self.run.host_of(t) for t in targets))
        if number == signal.SIGKILL:
            self.coordinator.status()  # what the victims have sent until now counts, also when they are dead
        for host in hosts:
            at = self.run.hosts.signal(host, number)
            if number != signal.SIGCONT:
                self.legs[-1].killed_at = at
                self.harmed.append(host)
            kind = {signal.SIGKILL: "killed", signal.SIGSTOP: "paused"}.get(number, "continued")
            self.coordinator.say(kind, f"{host} {kind} with {number.name}", host=host, t=at)

    def switch(self, unit: str, policy: Policy) -> None:
        """Change a unit's policy, and wait until the new one counts."""
        if self.coordinator.failover.topology.units[unit].policy != policy:
            self.coordinator.switch(unit, policy)
            self.turned(unit)

    def turned(self, unit: str, timeout_s: float = 120.0) -> None:
        """Wait until a change of policy that was begun is done."""

        def done() -> bool:
            self.coordinator.wait(0)
            return self.coordinator.failover.plan.units[unit].turn is None

        wait_for(done, timeout_s, f"the new policy of {unit}")

    def leg(self, name: str, *, expected: str = "precise") -> None:
        """What follows is another harm, to be judged by itself (``judge_legs``): epochs from here on are its own."""
        leg = Leg(name, expected, self.newest())
        if self.legs[-1].killed_at is None:
            self.legs.pop()
        self.legs.append(leg)

    def restart(self) -> None:
        """Start the hosts that this leg has killed again, and wait until all is as it was."""
        for host in self.harmed:
            self.run.hosts.start(host)
        wait_for(lambda: self.coordinator.failure is not None or self._whole(), 120, "the return of the hosts")
        self.coordinator.wait(0)
        self.settle()

    def _whole(self) -> bool:
        plan, units = self.coordinator.failover.plan.units, self.coordinator.failover.topology.units
        filled = all(len(plan[n].ready) >= u.policy.backups for n, u in units.items())
        return filled and len(self.coordinator.failover.alive) >= len(self.coordinator.hosts)

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
        result = self._compare(status, events, self.legs[-1])
        result |= {"name": self.name, "expected": expected, "clean_stop": clean}
        (self.out / "result.json").write_text(json.dumps(result, indent=2))
        sink = self.out / "run" / self.sinks()[0]
        report.write_report(
            self.out / "report.html",
            title=f"{self.coordinator.job.name}: {self.name}",
            result=result,
            arrivals=silence.arrivals(sink),
            events=events,
        )
        return result

    def judge_legs(self) -> list[dict[str, Any]]:
        """As ``judge``, but one result per leg, each over the epochs from its harm to the next."""
        status, events = self.coordinator.status(), list(self.coordinator.events)
        whole = self.judge()
        results = []
        for leg, later in zip(self.legs, [*self.legs[1:], None], strict=True):
            result = self._compare(status, events, leg, upto=None if later is None else later.after)
            results.append({**result, "name": leg.name, "expected": leg.expected, "clean_stop": whole["clean_stop"]})
        return results

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
        last = {sink: self._newest_of(sink) for sink in self.sinks()}
        old = self.coordinator
        old.reset_hosts()
        alive = list(old.failover.alive)
        old.close(exit_hosts=False)
        root = (self.out / "reference").resolve()
        config = replace(
            self.run.config,
            folder=self.out / "state" / "reference",
            listen=old.address,
            options=Options(sink_root=str(root), replay=entries, reference=str(self.recorded)),
        )
        fresh = Coordinator(config)
        self.run.coordinator = fresh
        fresh.wait_for_hosts(len(alive))
        fresh.begin()
        fresh.wait_until_running()

        def done() -> bool:
            if fresh.failure is not None:
                return True
            return all(any((root / sink / f"epoch={e:012d}").glob("part-*")) for sink, e in last.items() if e >= 0)

        wait_for(done, 60 + 10.0 * (max(last.values()) + 1), "the reference run")
        fresh.wait(0)

    def _compare(
        self, status: dict[str, Any], events: list[dict[str, Any]], leg: Leg, *, upto: Epoch | None = None
    ) -> dict[str, Any]:
        """Judge the epochs from a leg's harm through ``upto``; without it, through the newest. The first leg has also
        what came before its harm."""
        if upto is None:
            folders = (p for s in self.sinks() for p in (self.out / "run" / s).glob("epoch=*"))
            upto = max((Epoch(int(p.name.partition("=")[2])) for p in folders), default=NO_EPOCH)
        since = FIRST_EPOCH if leg is self.legs[0] else after(leg.after)
        found = [
            compare.compare_sinks(self.out / "run" / sink, self.out / "reference" / sink, since=since, upto=upto)
            for sink in self.sinks()
        ]
        judged = compare.combine(found)
        arrived = {sink: sorted(silence.arrivals(self.out / "run" / sink)) for sink in self.sinks()}
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
        if leg.killed_at is not None:
            result |= self._times(events, leg, upto)
        return result

    def _times(self, events: list[dict[str, Any]], leg: Leg, upto: int) -> dict[str, Any]:
        killed = leg.killed_at or 0.0
        later = [other.killed_at for other in self.legs if (other.killed_at or 0.0) > killed]
        end = min(filter(None, later), default=float("inf"))
        since = [e for e in events if killed - 0.001 <= e["t"] < end]
        detected = next((e["t"] for e in since if e["kind"] == "host-lost"), None)
        moved = {e["unit"] for e in since if e["kind"] in ("promoted", "restarted")}
        resumed = [e["t"] for e in since if e["kind"] == "running" and e.get("unit") in moved]
        arrivals = silence.arrivals(self.out / "run" / self.sinks()[0])
        times = silence.recovery(
            [a for a in arrivals if (leg is self.legs[0] or a[1] > leg.after - SETTLE_EPOCHS) and a[1] <= upto],
            killed_at=killed,
            detected_at=detected,
            resumed_at=max(resumed, default=None),
            epoch_s=self.coordinator.job.epoch_s,
        )
        return {
            "killed_at": killed,
            "detected_at": detected,
            "resumed_at": max(resumed, default=None),
            "hosts_harmed": leg.harmed,
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
            drill.coordinator.wait_until_warm(WARM_S)
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
