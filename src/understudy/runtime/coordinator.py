"""The job's owner: it watches hosts, decides with ``core.failover`` who runs what, and keeps a journal of it.

All decisions pass through one lock and one machine. The journal is written before a plan is sent, so a coordinator that
is killed and started again sends the same plan and goes on; the job does not stop meanwhile. How hosts are watched is
in ``watching.py``, how they are reached in ``fleet.py``.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow.flight as flight

from understudy import job_files, roles, telling
from understudy.core import failover
from understudy.core.draining import Stop
from understudy.core.failover import Failover, StageThrew, StandbyReady, StandbyUnusable, Turned
from understudy.core.monitoring import OWNER
from understudy.core.opening import UNLIMITED, Opening
from understudy.core.operators import OperatorClass
from understudy.core.plans import UnitPlan
from understudy.core.policies import Policy, spell
from understudy.core.readiness import Readiness
from understudy.core.topology import Topology
from understudy.errors import HostsUnavailable, JobError, OwnFault, SetupError, StageFailed, UnderstudyError
from understudy.job import Job
from understudy.runtime import messages, wire
from understudy.runtime.choosing import Choosing
from understudy.runtime.event_log import EventLog
from understudy.runtime.fleet import Fleet
from understudy.runtime.journal import Journal, Kept
from understudy.runtime.watching import Watch
from understudy.runtime.wire import Refusal, Reply, refuse

A = TypeVar("A")

@dataclass(frozen=True)
class CoordinatorConfig:
    job_file: Path
    folder: Path
    """State folder of the job: journal, events, and the folders of local hosts."""
    token: str
    listen: str = "127.0.0.1:0"
    heartbeat_s: float = 0.5
    heartbeat_misses: int = 5
    """A small machine that starts several JVMs keeps healthy processes waiting for over a second; a false alarm is
    harmless but costs a takeover. A killed process is noticed by its broken connection, long before."""
    options: messages.Options = field(default_factory=messages.Options)
    """Sent to hosts with the job."""
    tls: wire.Tls | None = None


class Coordinator:
    def __init__(self, config: CoordinatorConfig, on_event: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.config = config
        try:
            self.job: Job = job_files.load(config.job_file)
        finally:
            job_files.end_session()
        self.packed = job_files.pack(config.job_file)
        self.job.assign(config.options.roles)
        if config.options.reference:
            self.job.as_reference(Path(config.options.reference))
        self.topology = self.job.topology()
        self.journal = Journal(config.folder / "journal.json")
        self.operators: dict[str, OperatorClass] = {}
        """Stage -> what kind of operator it is, known after ``check``."""
        self.failure: UnderstudyError | None = None
        self.changed = threading.Condition(threading.RLock())
        self.failover = Failover(self.topology)
        self.readiness = Readiness(self.failover)
        self.opening = Opening(config.options.opening_epochs)
        self.log = EventLog(config.folder / "events.jsonl", self.changed, on_event)
        self.fleet = Fleet(config.token, config.tls)
        self.watch = Watch(self)
        self.choosing = Choosing(self)
        self._spent: dict[str, dict[str, int]] = {}
        """Address -> bytes by category when last asked, so that a host that died since still counts."""
        self._ident = uuid.uuid4().hex
        self.begun = False
        """There is a plan that hosts have been sent."""
        self.closed = self._draining = False
        config.folder.mkdir(parents=True, exist_ok=True)
        service = wire.Service(calls={
            messages.Join: self.watch.join,
            messages.Report: self._on_report,
            messages.Status: lambda call, body: self.status(),
            messages.SwitchPolicy: self.choosing.switch_asked,
            messages.AwaitTurn: self.choosing.await_turn,
        })
        self.server = wire.Server(config.listen, config.token, service, config.tls)
        self.address = self.server.address
        address_file = config.folder / "coordinator.json"
        address_file.write_text(json.dumps({"address": self.address, "pid": os.getpid(), "job": self.job.name}))
        self.watch.begin()

    @property
    def hosts(self) -> dict[str, str]:
        """Host -> address."""
        return self.fleet.addresses

    @property
    def pids(self) -> dict[str, int]:
        return self.fleet.pids

    @property
    def processes(self) -> dict[str, str]:
        return self.fleet.processes

    def define(self, topology: Topology) -> None:
        """The same job under other policies."""
        self.topology = topology
        self.failover.define(topology)

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.log.events

    @property
    def go(self) -> int:
        """How many epochs sources may cut."""
        return self.opening.go

    # -- begin, adopt, stop ----------------------------------------------------------------------------------------

    def adopt(self) -> bool:
        """Take over a job that still runs from before this coordinator was killed. False when nothing runs."""
        kept = self.journal.read()
        if kept is None or kept.state != "running":
            return False
        for address in kept.hosts.values():
            try:
                if self.fleet.at(address).call(messages.Status(), timeout_s=2).answer["stages"]:
                    break
            except flight.FlightError:
                continue
        else:
            return False
        self.choosing.go_on_with(kept)
        with self.changed:
            self.failover.adopt(kept.plan, kept.defined)
            self.fleet.addresses, self.fleet.pids, self.fleet.processes = kept.hosts, kept.pids, kept.processes
            self._ident = kept.ident
            self.begun = self.watch.accepting = True
            self.opening.adopted(self.topology, self.failover.plan)
            for host in self.hosts:
                self.failover.alive[host] = {}
        self.say("adopted", f"took over the running job with {len(self.hosts)} hosts")
        for host in list(self.hosts):
            self.watch.watch(host, joined=False)
        return True

    def wait_for_hosts(self, count: int, timeout_s: float = 90.0) -> None:
        with self.changed:
            self.watch.accepting = True
            if not self.changed.wait_for(lambda: len(self.failover.alive) >= count or self.failure, timeout_s):
                raise HostsUnavailable(
                    f"only {len(self.failover.alive)} of {count} hosts came within {timeout_s:.0f} s; "
                    f"see {self.config.folder}/hosts/*/host.log"
                )
            self._raise_failure()

    def check_hosts(self, names: Iterable[str]) -> None:
        """The job may only ask for hosts that there are."""
        roles.check_hosts(self.topology, list(names))

    def check(self) -> None:
        """Let a host build every stage, so that a mistake in the job shows before anything runs."""
        with self.changed:
            self.check_hosts(self.hosts)
        self.inspect()

    def inspect(self) -> None:
        """Find out what kind of operators the stages are, on any host."""
        found = self.ask_check(messages.CheckJob())
        self.operators = {n: OperatorClass.from_dict(operators) for n, operators in found.operators.items()}

    def ask_check(self, call: messages.CheckJob) -> messages.Checked:
        with self.changed:
            address = next(self.hosts[host] for host in self.failover.alive)
        reply = self.fleet.at(address).call(call, timeout_s=120)
        if reply.refused:
            raise (SetupError if reply.refused == Refusal.SETUP else JobError)(reply.text)
        return reply.answer

    def begin(self) -> None:
        """Place all units: anew, or where a stopped job left its checkpoints."""
        journal = self.journal.read()
        clean = journal is not None and journal.state == "stopped"
        with self.changed:
            if journal is not None:
                known = set(journal.plan.units)
                if known != set(self.topology.units):
                    raise JobError(
                        f"the job's units changed from {sorted(known)} to {sorted(self.topology.units)} since it "
                        "stopped; start over with --fresh"
                    )
                self.failover.adopt(journal.plan, journal.defined)
                self._require_holds(clean)
            self.begun = True
            self.handle(failover.Begin(resume=journal is not None, clean=clean))
        if journal is not None:
            self.say("resumed", "goes on where it stopped" if clean else "goes on from the last checkpoints")

    def _require_holds(self, clean: bool) -> None:
        for unit in self.failover.lacking(clean=clean):
            raise HostsUnavailable(
                f"no host holds a checkpoint of unit {unit!r}; bring back the host folders of the stopped job, or "
                "start over with --fresh"
            )

    def wait_until_running(self, timeout_s: float = 240.0, *, armed: bool = False) -> None:
        """Until every stage's query runs and sources were let go; with ``armed``, until every standby is armed."""

        def there() -> bool:
            return self.failure is not None or (self.go > 0 and (not armed or self.readiness.all_armed()))

        with self.changed:
            if not self.changed.wait_for(there, timeout_s):
                raise HostsUnavailable(
                    f"the job did not start within {timeout_s:.0f} s; see {self.config.folder}/hosts/*/host.log"
                )
            self._raise_failure()

    def wait_until_warm(self, timeout_s: float) -> bool:
        """Until those who would take over have rehearsed all there is; False when they have not in that time."""
        with self.changed:
            self.changed.wait_for(lambda: self.failure is not None or self.readiness.all_warm(), timeout_s)
            self._raise_failure()
            return self.readiness.all_warm()

    def drain(self, timeout_s: float = 60.0) -> bool:
        """Let everything in flight finish and take the last checkpoints. True when it all was done in time."""
        deadline, stop = time.monotonic() + timeout_s, Stop(self.topology)
        with self.changed:
            self._draining = True
        while time.monotonic() < deadline and self.failure is None:
            for answer in self._ask_all(messages.Drain(stop.ask(self.failover.plan))).values():
                stop.answered(answer)
            if stop.over(self.failover.plan):
                self._write_journal("stopped")
                return True
            time.sleep(0.1)
        return False

    def reset_hosts(self) -> None:
        """Let the hosts forget the job and keep Spark warm, for the next coordinator at this address. A query that is
        stopped finishes its batch first."""
        with self.changed:
            self.begun = False  # a host that has forgotten the plan has not missed it: it must not be sent again
        self._ask_all(messages.Reset(), timeout_s=120)

    def close(self, *, exit_hosts: bool = True) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        if exit_hosts:
            self._ask_all(messages.Exit())
        self.fleet.close()
        self.server.shutdown()

    # -- decisions -------------------------------------------------------------------------------------------------

    def handle(self, event: failover.Event) -> None:
        """Feed the machine and carry out its orders. Holds the lock; sending happens on other threads."""
        with self.changed:
            for effect in self.failover.handle(event, time.monotonic()):
                if isinstance(effect, failover.Publish):
                    self.readiness.planned()
                    if self.begun:
                        self._write_journal("running")
                        self.publish()
                elif isinstance(effect, failover.Say):
                    self.say(effect.kind, effect.text, unit=effect.unit, host=effect.host)
                else:
                    self.fail(self._stopped(effect))
            self.changed.notify_all()

    def _stopped(self, stop: failover.StopJob) -> UnderstudyError:
        """What to tell the user when a stage has failed on two hosts, or there was no other to try."""
        host = self.failover.plan.units[self.topology.unit_of[stop.stage]].primary
        log = self.config.folder / "hosts" / str(host) / "host.log"
        where = str(log) if log.exists() else f"the log of host {host}"
        again = "run it again: it goes on with nothing lost"
        what = f"stage {stop.stage!r} at epoch {stop.epoch}: {stop.cause}"
        if stop.whose == failover.UNDERSTUDY:
            fault = "this is a fault of Understudy, please report it with"
            return OwnFault(f"Understudy itself failed in {what}; {fault} {where}; {again}")
        if stop.whose == failover.MACHINE:
            remedy = "see to its memory, disk and load"
            return SetupError(f"the machine of {host} failed {what}; {remedy} ({where}), and {again}")
        threw = f"stage {stop.stage!r} threw at epoch {stop.epoch}: {stop.cause}"
        return StageFailed(f"{threw}. The job stopped there; fix the code and {again}.")

    def publish(self, only: str | None = None) -> None:
        """Send the plan to all hosts, or to one. Holds the lock; sending happens on other threads."""
        for host in self.failover.alive:
            if only in (None, host):
                self.fleet.send(host, self._plan_for(host))

    def _plan_for(self, host: str) -> messages.TakePlan:
        return messages.TakePlan(
            plan=self.failover.plan,
            process=self.processes[host],
            hosts=dict(self.hosts),
            processes=dict(self.processes),
            go=self.go,
            policies=self.choosing.chosen,
            spares=self.failover.spares(),
            draining=self._draining,
        )

    def job_message(self) -> messages.TakeJob:
        """What a host is sent first, with ``packed``."""
        file = self.config.job_file
        return messages.TakeJob(
            ident=self._ident,
            file=file.name,
            directory=str(file.parent.resolve()),
            heartbeat_s=self.config.heartbeat_s,
            heartbeat_misses=self.config.heartbeat_misses,
            policies=self.choosing.chosen,
            options=self.config.options,
        )

    def _write_journal(self, state: Literal["running", "stopped"]) -> None:
        with self.changed:
            self.journal.write(Kept(
                state=state, ident=self._ident, address=self.address,
                hosts=self.hosts, pids=self.pids, processes=self.processes,
                policies=self.choosing.chosen,
                plan=self.failover.plan,
                defined=self.failover.defined,
            ))

    def _on_report(self, report: messages.Report, body: bytes) -> Reply[Any] | None:
        host = report.host
        with self.changed:
            if not self.begun and report.kind != messages.SparkFailed.__name__:
                return refuse(Refusal.LATER)  # it has yet to read its journal, and knows no units
            match report.what():
                case StandbyReady() as event:
                    self.handle(event)
                    self._look_whether_to_open()
                case StandbyUnusable() | Turned() | StageThrew() as event:
                    self.handle(event)
                case messages.Runs(unit, generation, stage) as runs:
                    self.opening.runs(stage, generation)
                    about: dict[str, Any] = {"unit": unit, "host": host, "stage": stage, "missing": runs.missing}
                    self.say("running", telling.runs(runs, host), t=report.t, **about)
                    self._tell_exposed(unit)
                    self._look_whether_to_open()
                case messages.Armed(unit, generation, stage, spare):
                    self.readiness.armed(stage, host, generation)
                    what = "spare query" if spare else "standby"
                    self.say("armed", f"{stage}: {what} armed on {host}", unit=unit, host=host)
                    self._look_whether_to_open()
                case messages.Warm(unit, generation, stage):
                    self.readiness.warm(stage, host, generation)
                    self.say("warm", f"{stage}: rehearsed on {host} until it got no faster", unit=unit, host=host)
                case messages.Fenced(unit, _, stage):
                    self.say("fenced", f"{stage} on {host} found itself fenced and stopped", unit=unit, host=host)
                case messages.Seen() as seen:
                    self.watch.seen(host, seen)
                case messages.Notice(what, unit, text):
                    self.say(what, text, unit=unit, host=host)
                case messages.Gone() as gone:
                    self._on_gone(gone)
                case messages.SparkFailed(cause):
                    self.fail(SetupError(f"Spark did not start on {host}: {cause}"))
            self.changed.notify_all()
        return None

    def _on_gone(self, gone: messages.Gone) -> None:
        if gone.generation != self.failover.plan.units[gone.unit].generation:
            return
        what = f"needs epoch {gone.epoch} of {gone.stream!r}, which nobody has"
        if gone.stream is None:
            what = "cannot be rebuilt: so are those that it reads, and nobody has what they sent it before"
        text = f"stage {gone.stage!r} {what}; more hosts failed at once than the job was protected against"
        self.fail(HostsUnavailable(text))

    def _tell_exposed(self, unit: str) -> None:
        """A unit runs: say so if nobody could take it over at once."""
        plan, inner = self.failover.plan, self.topology.inner(unit)
        runs = self.opening.all_run(self.topology, plan, unit)
        if inner and runs and plan.units[unit].standbys and not self.readiness.armed_of(unit):
            text = f"{unit}: no standby is armed yet; until then a takeover would have to start its query first"
            self.say("exposed", text, unit=unit)

    def _look_whether_to_open(self) -> None:
        closed = self.go == 0
        about = {"armed": self.readiness.all_armed(), "arms_late": self._arms_late()}
        if self.opening.look(self.topology, self.failover.plan, time.monotonic(), **about):
            if closed:
                self.say("go", "every stage runs; sources are let go")
            self.publish()

    def open_further(self) -> None:
        """Time has passed."""
        if 0 < self.go < UNLIMITED:
            self._look_whether_to_open()

    def _arms_late(self) -> bool:
        """What feeds a window that is rebuilt by replay is trimmed, and so checkpointed, only when windows close."""
        replayed = (s for s, u in self.topology.unit_of.items() if self.topology.units[u].policy.recovery == "replay")
        return any(found.lets_go for s in replayed if (found := self.operators.get(s)))

    # -- telling ---------------------------------------------------------------------------------------------------

    def say(self, kind: str, text: str, *, t: float | None = None, **about: Any) -> None:
        self.log.say(kind, text, t=t, **about)

    def fail(self, error: UnderstudyError) -> None:
        with self.changed:
            if self.failure is None:
                self.failure = error
            self.changed.notify_all()

    def switch(self, unit: str, policy: Policy) -> str:
        """Begin to change a unit's policy. Returns what was said about it; raises JobError where it cannot be."""
        return self.choosing.switch(unit, policy)

    def _raise_failure(self) -> None:
        if self.failure:
            raise self.failure

    def wait(self, timeout_s: float | None = None) -> None:
        """Until ``timeout_s`` has passed; raises as soon as the job has failed."""
        with self.changed:
            self.changed.wait_for(lambda: self.failure is not None, timeout_s)
            self._raise_failure()

    def status(self) -> dict[str, Any]:
        with self.changed:
            alive = set(self.failover.alive)
            units = {n: asdict(u) | self._about(n, u) for n, u in self.failover.plan.units.items()}
            hosts: dict[str, dict[str, Any]] = {
                h: {"address": a, "pid": self.pids.get(h), "alive": h in alive, "health": self._health(h)}
                for h, a in self.hosts.items()
            }
            recent = self.events[-20:]
        details = self._ask_all(messages.Status())
        for host, detail in details.items():
            hosts[host] |= detail
            self._spent[hosts[host]["address"]] = detail["bytes"]
        with self.changed:
            self._learn_armed(details)
            for name, about in units.items():
                about["armed"] = self.readiness.armed_of(name)
        total = {c: sum(s[c] for s in (self.fleet.meter.snapshot(), *self._spent.values())) for c in wire.CATEGORIES}
        return {
            "job": self.job.name,
            "go": self.go,
            "units": units,
            "hosts": hosts,
            "events": recent,
            "bytes": total,
        }

    def _learn_armed(self, details: dict[str, dict[str, Any]]) -> None:
        """From hosts themselves: queries that were armed before this coordinator came will not be reported again."""
        for host, detail in details.items():
            for stage, about in (*detail["stages"].items(), *detail.get("spares", {}).items()):
                if about.get("armed"):
                    self.readiness.armed(stage, host, about["generation"])
        self.readiness.planned()
        self.changed.notify_all()

    def standbys(self, name: str) -> str:
        """The standbys of a unit, in words."""
        about = asdict(self.failover.plan.units[name]) | {"armed": self.readiness.armed_of(name)}
        return telling.standbys(about, self.failover.topology.units[name].policy)

    def _about(self, name: str, plan: UnitPlan) -> dict[str, Any]:
        shape = self.failover.topology.units[name]
        watched_by = shape.monitor not in (None, plan.primary)
        return {"policy": spell(shape.policy), "monitor": shape.monitor if watched_by else OWNER}

    def _health(self, host: str) -> dict[str, Any]:
        """As ``monitoring.Health``, with instants as seconds since 1970."""
        health = asdict(self.watch.evidence.health(host))
        for key in ("since", "returned"):
            if health[key] is not None:
                health[key] += time.time() - time.monotonic()
        return health

    def _ask_all(self, call: wire.Call[A], *, timeout_s: float = 10.0) -> dict[str, A]:
        with self.changed:
            hosts = list(self.failover.alive)
        return self.fleet.ask(hosts, call, timeout_s=timeout_s)
