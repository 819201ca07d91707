"""The job's owner: it watches hosts, decides with ``core.failover`` who runs what, and keeps a journal of it.

All decisions pass through one lock and one pair of machines. The journal is written before a plan is sent, so a
coordinator that is killed and started again sends the same plan and goes on; the job does not stop meanwhile.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

from understudy import job_files, planning, roles, telling
from understudy.core import detection, failover, monitoring
from understudy.core.failover import Failover
from understudy.core.monitoring import OWNER
from understudy.core.operators import OperatorClass
from understudy.core.plans import Plan, UnitPlan
from understudy.core.policies import Policy, parse, spell
from understudy.core.readiness import Readiness
from understudy.errors import HostsUnavailable, JobError, OwnFault, SetupError, StageFailed, UnderstudyError
from understudy.job import Job
from understudy.planning import Measured
from understudy.runtime import profile, wire
from understudy.runtime.journal import Journal
from understudy.runtime.wire import Refusal

UNLIMITED = 1 << 62
CONNECTIONS = 3
"""How often in a row a host's connection may break, without a pulse in between, while the host still listens."""
RECONNECT_S = 0.05
"""Pause before a broken connection is made again, lest one that breaks for ever be made all the time."""
OPENING_S = 1.0
"""Time between further epochs while a drill waits for its standbys."""


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
    options: dict[str, Any] = field(default_factory=dict)
    """Sent to hosts with the job: ``roles`` as read from a file; for drills ``sink_root``, ``record``, ``replay``,
    ``reference``, ``opening_epochs``."""
    tls: wire.Tls | None = None


class Coordinator:
    def __init__(self, config: CoordinatorConfig, on_event: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.config = config
        try:
            self.job: Job = job_files.load(config.job_file)
        finally:
            job_files.end_session()
        self._packed = job_files.pack(config.job_file)
        self.job.assign(config.options.get("roles", {}))
        if config.options.get("reference"):
            self.job.as_reference(Path(config.options["reference"]))
        self.topology = self.job.topology()
        self.journal = Journal(config.folder / "journal.json")
        self.events: list[dict[str, Any]] = []
        self.hosts: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        self.processes: dict[str, str] = {}
        """Host -> which process of it this is. A plan is for one process: another would have to begin anew."""
        self.policies: dict[str, str] = {}
        """Unit -> what was chosen for it in the place of a goal."""
        self.operators: dict[str, OperatorClass] = {}
        """Stage -> what kind of operator it is, known after ``check``."""
        self.failure: UnderstudyError | None = None
        self.go: int = 0
        """How many epochs sources may cut: none until every stage runs, then ``UNLIMITED``; a drill opens with a few
        and goes on when every standby is armed, so that harm is done to a job at rest, not to one starting up."""
        self._opened_at = 0.0
        self.changed = threading.Condition(threading.RLock())
        self.failover = Failover(self.topology)
        self.readiness = Readiness(self.failover)
        self.detector = detection.Detector(interval_s=config.heartbeat_s, misses=config.heartbeat_misses)
        self.evidence = monitoring.Evidence()
        self.pulses: dict[str, list[Any]] = {}
        self._late: dict[str, int] = {}
        """Hosts that have not said yet that they have the newest plan, and which that was."""
        self.meter = wire.Meter()
        self.started: dict[str, int] = {}
        """Stage -> generation whose query is running."""
        self._holds: dict[str, dict[str, int]] = {}
        self._spent: dict[str, dict[str, int]] = {}
        """Address -> bytes by category when last asked, so that a host that died since still counts."""
        self._on_event = on_event
        self._ident = uuid.uuid4().hex
        self._begun = False
        self._accepting = False
        """Hosts are turned away until it is known whether they belong to a job that still runs."""
        self._closed = False
        self._peers: dict[str, wire.Peer] = {}
        self._watching: set[str] = set()
        self._pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="coordinator")
        config.folder.mkdir(parents=True, exist_ok=True)
        service = wire.Service(calls={
            "join": self._on_join,
            "report": self._on_report,
            "status": self._on_status,
            "policy": self._on_policy,
            "turn": self._on_turn,
        })
        self.server = wire.Server(config.listen, config.token, service, config.tls)
        self.address = self.server.address
        address_file = config.folder / "coordinator.json"
        address_file.write_text(json.dumps({"address": self.address, "pid": os.getpid(), "job": self.job.name}))
        threading.Thread(target=self._tick, name="detector", daemon=True).start()

    # -- begin, adopt, stop ----------------------------------------------------------------------------------------

    def adopt(self) -> bool:
        """Take over a job that still runs from before this coordinator was killed. False when nothing runs."""
        journal = self.journal.read()
        if not journal or journal["state"] != "running":
            return False
        for address in journal["hosts"].values():
            peer = self._peer(address)
            try:
                status = peer.call("status", timeout_s=2)
            except flight.FlightError:
                continue
            if status.header["stages"]:
                break
        else:
            return False
        self._use_policies(self._chosen_before(journal))
        with self.changed:
            self.failover.adopt(Plan.from_dict(journal["plan"]))
            self.hosts, self.pids, self.processes = journal["hosts"], journal["pids"], journal["processes"]
            self._ident = journal["ident"]
            self._begun = self._accepting = True
            self.go = UNLIMITED
            self.started = {s: self.failover.plan.units[u].generation for s, u in self.topology.unit_of.items()}
            for host in self.hosts:
                self.failover.alive[host] = {}
        self.say("adopted", f"took over the running job with {len(self.hosts)} hosts")
        for host, address in list(self.hosts.items()):
            self._watch(host, address, joined=False)
        return True

    def wait_for_hosts(self, count: int, timeout_s: float = 90.0) -> None:
        with self.changed:
            self._accepting = True
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
        found = self._check({})
        self.operators = {n: OperatorClass.from_dict(operators) for n, operators in found["operators"].items()}

    def _check(self, header: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            address = next(self.hosts[host] for host in self.failover.alive)
        reply = self._peer(address).call("check", header, timeout_s=120)
        if reply.refused:
            kind = SetupError if reply.header.get("exit_code") == 3 else JobError
            raise kind(reply.header["text"])
        return reply.header

    def resolve(self) -> None:
        """Put policies in the place of goals (``us.auto``): those that the stopped job ran under, else chosen now. Call
        after ``check``, before ``begin``."""
        self._use_policies(self._chosen_before(self.journal.read() or {}))
        if not planning.goals(self.topology):
            return
        measured = Measured.read(self.config.folder / profile.FILE)
        chosen = planning.choices(self.job, self.topology, self.operators, measured)
        self._use_policies({**self.policies, **{unit: spell(c.policy) for unit, c in chosen.items()}})
        for unit, choice in chosen.items():
            self.say("chosen", f"{unit}: {choice.why[0]}", unit=unit)

    def _chosen_before(self, journal: dict[str, Any]) -> dict[str, str]:
        """For units that still have a goal, and stages that still allow it: the user may have changed either."""
        kept = {}
        for unit in planning.goals(self.topology):
            policy = journal.get("policies", {}).get(unit.name)
            found = [self.operators[s] for s in unit.stages if s in self.operators]
            if policy and not (parse(policy).recovery == "replay" and any(f.refusal for f in found)):
                kept[unit.name] = policy
        return kept

    def _use_policies(self, chosen: dict[str, str]) -> None:
        if chosen:
            self.policies = chosen
            self.job.resolve({unit: parse(policy) for unit, policy in chosen.items()})
            self.topology = self.job.topology()
            self.failover.define(self.topology)

    def begin(self) -> None:
        """Place all units: anew, or where a stopped job left its checkpoints."""
        journal = self.journal.read()
        resume = journal is not None
        with self.changed:
            if journal is not None:
                known = set(journal["plan"]["units"])
                if known != set(self.topology.units):
                    raise JobError(
                        f"the job's units changed from {sorted(known)} to {sorted(self.topology.units)} since it "
                        "stopped; start over with --fresh"
                    )
                self.failover.adopt(Plan.from_dict(journal["plan"]))
                self._require_holds(journal["state"] == "stopped")
            self._begun = True
            clean = journal is not None and journal["state"] == "stopped"
            self._handle(failover.Begin(resume=resume, clean=clean))
        if resume:
            self.say("resumed", "goes on where it stopped" if clean else "goes on from the last checkpoints")

    def _require_holds(self, clean: bool) -> None:
        for name, unit in self.topology.units.items():
            held = any(name in holds for holds in self.failover.alive.values())
            if not held and (unit.policy.recovery == "standby" or clean):
                raise HostsUnavailable(
                    f"no host holds a checkpoint of unit {name!r}; bring back the host folders of the "
                    "stopped job, or start over with --fresh"
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
        deadline = time.monotonic() + timeout_s
        replies = self._broadcast("drain", {})
        sources = [n for n, s in self.topology.stages.items() if not s.inputs]
        produced = {n: r["produced"][n] for r in replies.values() for n in sources if n in r.get("produced", {})}
        while produced and time.monotonic() < deadline and self.failure is None:
            replies = self._broadcast("drain", {"finals": self.topology.finals(produced)})
            if replies and all(r.get("done") for r in replies.values()):
                self._write_journal("stopped")
                return True
            time.sleep(0.1)
        return False

    def reset_hosts(self) -> None:
        """Let the hosts forget the job and keep Spark warm, for the next coordinator at this address. A query that is
        stopped finishes its batch first."""
        with self.changed:
            self._begun = False  # a host that has forgotten the plan has not missed it: it must not be sent again
        self._broadcast("reset", {}, timeout_s=120)

    def close(self, *, exit_hosts: bool = True) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        if exit_hosts:
            self._broadcast("exit", {})
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.server.shutdown()

    # -- hosts -----------------------------------------------------------------------------------------------------

    def _on_join(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        host, address = header["host"], header["address"]
        with self.changed:
            if not self._accepting:
                return {"refused": Refusal.LATER}
            if host in self._watching and self.processes.get(host) == header["process"]:
                return {}
            same = self.processes.get(host) == header["process"] and self._begun
            if host in self._watching and not same and self.hosts.get(host) == address:
                return {"refused": Refusal.LATER}  # its predecessor's connection has not been seen to break yet
            if self.processes.get(host) != header["process"]:
                self.readiness.replaced(host)
            self.processes[host] = header["process"]
            self.hosts[host] = address
            self.pids[host] = header["pid"]
            self._holds[host] = header["holds"]
        self._watch(host, address, joined=not same)
        return {}

    def _watch(self, host: str, address: str, *, joined: bool) -> None:
        with self.changed:
            self._watching.add(host)
        threading.Thread(target=self._follow, args=(host, address, joined), name=f"watch {host}", daemon=True).start()

    def _follow(self, host: str, address: str, joined: bool) -> None:
        """Read a host's pulses until its connection breaks. It is made again if the host still listens: a connection
        can be lost on the way, too, and perhaps a plan with it."""
        peer = self._peer(address)
        request = {"get": "pulse", "interval_s": self.config.heartbeat_s, "process": self.processes[host]}
        reason, broken = "the connection broke", 0
        while not self._closed and self.hosts.get(host) == address:
            first = True
            try:
                self._send_job(peer)
                for message in peer.stream(request):
                    if self._closed:
                        return
                    self._on_pulse(host, _pulse_in(message), first=first, joined=joined)
                    first, joined, broken = False, False, 0
            except ValueError as error:
                reason = f"it sent nonsense ({error})"
                break
            except (flight.FlightError, OSError):
                pass
            finally:
                peer.close()
            broken += 1
            if broken == CONNECTIONS or not wire.listens(address):
                break
            time.sleep(RECONNECT_S)
        with self.changed:
            if self._closed or self.hosts.get(host) != address:
                return
            self._watching.discard(host)
            if not self.detector.handle(detection.Broken(host, reason), time.monotonic()):
                self.detector.handle(detection.Connected(host), time.monotonic())  # it was never heard at all
                self.detector.handle(detection.Broken(host, reason), time.monotonic())
            self._weigh(OWNER, self.detector.view())

    def _on_pulse(self, host: str, pulse: list[Any], *, first: bool, joined: bool) -> None:
        with self.changed:
            self.pulses[host] = pulse
            event = detection.Connected(host) if first else detection.Beat(host)
            news = self.detector.handle(event, time.monotonic())
            if joined:
                self.evidence.joined(host, time.monotonic())
                self._handle(failover.HostJoined(host, self._unit_holds(host)))
            elif host in self.failover.alive and (first or self._missed_the_plan(host, pulse[2])):
                self._publish(self.failover.plan, only=host)
            if news or first:
                self._weigh(OWNER, self.detector.view())
            self.changed.notify_all()

    def _missed_the_plan(self, host: str, serial: int) -> bool:
        """A host still names an older plan a whole heartbeat after it was sent the newest: that call was lost."""
        newest = self.failover.plan.serial
        if not self._begun or serial >= newest:
            self._late.pop(host, None)
            return False
        if self._late.get(host) == newest:
            return True
        self._late[host] = newest
        return False

    def _send_job(self, peer: wire.Peer) -> None:
        file = self.config.job_file
        header = {
            "ident": self._ident,
            "file": file.name,
            "directory": str(file.parent.resolve()),
            "heartbeat": [self.config.heartbeat_s, self.config.heartbeat_misses],
            "policies": self.policies,
            **self.config.options,
        }
        # A file that needs a session to be read waits for the host's Spark.
        reply = peer.call("job", header, self._packed, timeout_s=120)
        if reply.refused:
            self._fail(JobError(reply.header["text"]))

    def _unit_holds(self, host: str) -> dict[str, int]:
        """A host holds a unit when it holds all of its stages; the unit is then as old as the oldest of them."""
        stages = self._holds.get(host, {})
        return {
            name: min(stages[s] for s in unit.stages)
            for name, unit in self.topology.units.items()
            if all(s in stages for s in unit.stages)
        }

    def _tick(self) -> None:
        while not self._closed:
            with self.changed:
                if self.detector.handle(detection.Tick(), time.monotonic()):
                    self._weigh(OWNER, self.detector.view())
                self._open_further()
                deadline = self.detector.next_deadline()
                wait = self.config.heartbeat_s if deadline is None else max(0.01, deadline - time.monotonic())
                self.changed.wait(wait)

    def _weigh(self, watcher: str, view: detection.View) -> None:
        """Act on what the coordinator itself or a monitor sees."""
        for effect in self.evidence.hear(watcher, view, time.monotonic()):
            if isinstance(effect, monitoring.Told):
                self._tell_sight(effect)
            elif isinstance(effect, monitoring.Doubted):
                text = f"{effect.monitor} cannot hear {' and '.join(effect.hosts)}, which answer the coordinator"
                self.say("doubted", f"{text}; its word does not count", host=effect.monitor)
            elif isinstance(effect, detection.Failed):
                self._handle(failover.HostLost(effect.host, effect.reason))
            elif isinstance(effect, detection.Missed):
                self._handle(failover.HostSuspected(effect.host))
            elif effect.host in self.failover.alive:
                self._handle(failover.HostCleared(effect.host))
            else:
                self.say("returned", f"{effect.host} answers again", host=effect.host)
                self._handle(failover.HostJoined(effect.host, returned=True))

    def _tell_sight(self, told: monitoring.Told) -> None:
        what, host = told.what, told.what.host
        mine = told.watcher == OWNER
        by = "" if mine else f", says {told.watcher}"
        about: dict[str, Any] = {"host": host, "by": told.watcher}
        if isinstance(what, detection.Missed):
            count = "a heartbeat" if what.misses == 1 else f"{what.misses} heartbeats"
            self.say("missed", f"{host} missed {count}{by}", **about)
        elif mine and (isinstance(what, detection.Failed) or host not in self.failover.alive):
            pass  # told with what comes of it
        elif isinstance(what, detection.Failed):
            self.say("failed", f"{host} has failed: {what.reason}{by}", **about)
        else:
            self.say("answers", f"{host} answers again{by}", **about)

    # -- decisions -------------------------------------------------------------------------------------------------

    def _handle(self, event: failover.Event) -> None:
        """Feed the machine and carry out its orders. Holds the lock; sending happens on other threads."""
        with self.changed:
            for effect in self.failover.handle(event, time.monotonic()):
                if isinstance(effect, failover.Publish):
                    self.readiness.planned()
                    if self._begun:
                        self._write_journal("running")
                        self._publish(effect.plan)
                elif isinstance(effect, failover.Say):
                    self.say(effect.kind, effect.text, unit=effect.unit, host=effect.host)
                else:
                    self._fail(self._stopped(effect))
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

    def _publish(self, plan: Plan, only: str | None = None) -> None:
        header = {
            **plan.to_dict(),
            "hosts": dict(self.hosts),
            "processes": dict(self.processes),
            "go": self.go,
            "policies": self.policies,
            "spares": self.failover.spares(),
        }
        for host in self.failover.alive:
            if only in (None, host):
                message = {**header, "process": self.processes[host]}
                self._pool.submit(self._send_plan, self._peer(self.hosts[host]), message)

    def _send_plan(self, peer: wire.Peer, header: dict[str, Any]) -> None:
        try:
            peer.call("plan", header, timeout_s=10)
        except flight.FlightError:
            pass  # its connection is watched; when it is back it is sent the newest plan

    def _write_journal(self, state: str) -> None:
        with self.changed:
            plan = self.failover.plan
            content = {
                "plan": plan.to_dict(),
                "hosts": self.hosts,
                "pids": self.pids,
                "processes": self.processes,
                "state": state,
                "policies": self.policies,
                "ident": self._ident,
                "address": self.address,
            }
            self.journal.write(content)

    def _on_report(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        kind, stage, unit = header["kind"], header.get("stage", ""), header.get("unit", "")
        generation, host = header.get("generation", 0), header["host"]
        with self.changed:
            if kind == "standby-ready":
                self._handle(failover.StandbyReady(unit, generation, header["standby"], header["since"]))
                self._maybe_go()
            elif kind == "standby-unusable":
                about = (unit, generation, header["standby"], header["since"])
                self._handle(failover.StandbyUnusable(*about, header["cause"]))
            elif kind == "turned":
                self._handle(failover.Turned(unit, generation, header["serial"]))
            elif kind == "threw":
                whose = header.get("whose", failover.CODE)
                self._handle(failover.StageThrew(unit, generation, stage, header["epoch"], header["cause"], whose))
            elif kind == "resumed":
                self.started[stage] = generation
                self.say(
                    "running",
                    f"{stage} runs on {host} after epoch {header['epoch']}",
                    unit=unit,
                    host=host,
                    t=header["t"],
                )
                self._tell_exposed(unit)
                self._maybe_go()
            elif kind == "armed":
                self.readiness.armed(stage, host, generation)
                what = "spare query" if header.get("spare") else "standby"
                self.say("armed", f"{stage}: {what} armed on {host}", unit=unit, host=host)
                self._maybe_go()
            elif kind == "warm":
                self.readiness.warm(stage, host, generation)
                self.say("warm", f"{stage}: rehearsed on {host} until it got no faster", unit=unit, host=host)
            elif kind == "fenced":
                self.say("fenced", f"{stage} on {host} found itself fenced and stopped", unit=unit, host=host)
            elif kind == "seen":
                view = {h: detection.Trouble(*t) for h, (p, *t) in header["view"].items() if self.processes.get(h) == p}
                self._weigh(host, view)
            elif kind == "damaged":
                self.say("damaged", header["text"], unit=unit, host=host)
            elif kind == "gone" and generation == self.failover.plan.units[unit].generation:
                what = f"needs epoch {header['epoch']} of {header['stream']!r}, which nobody has"
                if header["stream"] is None:
                    what = "cannot be rebuilt: so are those that it reads, and nobody has what they sent it before"
                text = f"stage {stage!r} {what}; more hosts failed at once than the job was protected against"
                self._fail(HostsUnavailable(text))
            elif kind == "spark-failed":
                self._fail(SetupError(f"Spark did not start on {host}: {header['cause']}"))
            self.changed.notify_all()
        return {}

    def _tell_exposed(self, unit: str) -> None:
        """A unit runs: say so if nobody could take it over at once."""
        plan, inner = self.failover.plan.units[unit], self.topology.inner(unit)
        runs = all(self.started.get(stage) == plan.generation for stage in inner)
        if inner and runs and plan.standbys and not self.readiness.armed_of(unit):
            text = f"{unit}: no standby is armed yet; until then a takeover would have to start its query first"
            self.say("exposed", text, unit=unit)

    def _maybe_go(self) -> None:
        inner = [s for s, shape in self.topology.stages.items() if shape.inputs]
        plan = self.failover.plan.units
        if not self.go and all(self.started.get(s) == plan[self.topology.unit_of[s]].generation for s in inner):
            self.go = UNLIMITED if self._arms_late() else int(self.config.options.get("opening_epochs", UNLIMITED))
            self._opened_at = time.monotonic()
            self.say("go", "every stage runs; sources are let go")
            self._publish(self.failover.plan)
        if 0 < self.go < UNLIMITED and self.readiness.all_armed():
            self.go = UNLIMITED
            self._publish(self.failover.plan)

    def _open_further(self) -> None:
        """Some standbys can only be armed when later epochs let checkpoints sweep up to them."""
        if 0 < self.go < UNLIMITED and time.monotonic() - self._opened_at >= OPENING_S:
            self.go += 1
            self._opened_at = time.monotonic()
            self._publish(self.failover.plan)

    def _arms_late(self) -> bool:
        """What feeds a window that is rebuilt by replay is trimmed, and so checkpointed, only when windows close."""
        replayed = (s for s, u in self.topology.unit_of.items() if self.topology.units[u].policy.recovery == "replay")
        return any(found.window for s in replayed if (found := self.operators.get(s)))

    # -- telling ---------------------------------------------------------------------------------------------------

    def say(self, kind: str, text: str, *, t: float | None = None, **about: Any) -> None:
        event = {"t": t or time.time(), "kind": kind, "text": text, **{k: v for k, v in about.items() if v is not None}}
        with self.changed:
            self.events.append(event)
            with open(self.config.folder / "events.jsonl", "a") as file:
                file.write(json.dumps(event) + "\n")
            self.changed.notify_all()
        if self._on_event:
            self._on_event(event)

    def _fail(self, error: UnderstudyError) -> None:
        with self.changed:
            if self.failure is None:
                self.failure = error
            self.changed.notify_all()

    def _on_policy(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        try:
            text = self.switch(header["unit"], parse(header["policy"]))
        except (UnderstudyError, ValueError) as error:
            return {"refused": Refusal.POLICY, "text": str(error)}
        return {"text": text, "turning": self.failover.plan.units[header["unit"]].turn is not None}

    def _on_turn(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        """Wait a while for a unit's turn to be done."""
        unit = header["unit"]
        with self.changed:
            self.changed.wait_for(lambda: self.failover.plan.units[unit].turn is None or self._closed, timeout=20)
            turning = self.failover.plan.units[unit].turn is not None
            policy = self.failover.topology.units[unit].policy
        return {"text": f"{unit}: now under {policy.describe()}", "turning": turning}

    def switch(self, unit: str, policy: Policy) -> str:
        """Begin to change a unit's policy. Returns what was said about it; raises JobError where it cannot be."""
        topology = self.failover.topology
        if unit not in topology.units:
            raise JobError(f"there is no unit {unit!r}; units are: {', '.join(topology.units)}")
        if any(not topology.stages[stage].inputs for stage in topology.units[unit].stages):
            raise JobError(f"unit {unit!r} has a source, and that is always a passive standby; choose another unit")
        if policy.is_goal:
            raise JobError("us.auto is a goal, met when a job is started; `understudy plan` shows with which policy")
        with self.changed:
            alive = len(self.failover.alive)
        if policy.backups >= alive:
            raise JobError(
                f"{policy.describe()} needs {policy.backups + 1} hosts and {alive} are there; "
                f"start more with `understudy host`, or ask for at most {alive - 1} besides the primary"
            )
        self._check({"policies": {unit: spell(policy)}})
        with self.changed:
            before = len(self.events)
            self._handle(failover.Switch(unit, policy))
            return str(next(e["text"] for e in self.events[before:] if e.get("unit") == unit))

    def _raise_failure(self) -> None:
        if self.failure:
            raise self.failure

    def wait(self, timeout_s: float | None = None) -> None:
        """Until ``timeout_s`` has passed; raises as soon as the job has failed."""
        with self.changed:
            self.changed.wait_for(lambda: self.failure is not None, timeout_s)
            self._raise_failure()

    def _on_status(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        return self.status()

    def status(self) -> dict[str, Any]:
        with self.changed:
            alive = set(self.failover.alive)
            units = {n: asdict(u) | self._about(n, u) for n, u in self.failover.plan.units.items()}
            hosts: dict[str, dict[str, Any]] = {
                h: {"address": a, "pid": self.pids.get(h), "alive": h in alive, "health": self._health(h)}
                for h, a in self.hosts.items()
            }
            recent = self.events[-20:]
        details = self._broadcast("status", {})
        for host, detail in details.items():
            hosts[host] |= detail
            self._spent[hosts[host]["address"]] = detail["bytes"]
        with self.changed:
            self._learn_armed(details)
            for name, about in units.items():
                about["armed"] = self.readiness.armed_of(name)
        total = {c: sum(s[c] for s in (self.meter.snapshot(), *self._spent.values())) for c in wire.CATEGORIES}
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
        plan = self.failover.plan.units[name]
        about = asdict(plan) | {"armed": self.readiness.armed_of(name)}
        return telling.standbys(about, self.failover.topology.units[name].policy)

    def _about(self, name: str, plan: UnitPlan) -> dict[str, Any]:
        shape = self.failover.topology.units[name]
        monitor = shape.monitor if shape.monitor not in (None, plan.primary) else OWNER
        return {"policy": spell(shape.policy), "monitor": monitor}

    def _health(self, host: str) -> dict[str, Any]:
        """As ``monitoring.Health``, with instants as seconds since 1970."""
        health = asdict(self.evidence.health(host))
        for key in ("since", "returned"):
            if health[key] is not None:
                health[key] += time.time() - time.monotonic()
        return health

    def _broadcast(
        self, action: str, header: dict[str, Any], *, timeout_s: float = 10.0
    ) -> dict[str, dict[str, Any]]:
        with self.changed:
            peers = {host: self._peer(self.hosts[host]) for host in self.failover.alive}

        def one(peer: wire.Peer) -> dict[str, Any] | None:
            try:
                return peer.call(action, header, timeout_s=timeout_s).header
            except flight.FlightError:
                return None

        with ThreadPoolExecutor(max_workers=max(1, len(peers))) as pool:
            answers = dict(zip(peers, pool.map(one, peers.values()), strict=True))
        return {host: answer for host, answer in answers.items() if answer is not None}

    def _peer(self, address: str) -> wire.Peer:
        with self.changed:
            if address not in self._peers:
                self._peers[address] = wire.Peer(address, self.config.token, self.meter, self.config.tls)
            return self._peers[address]


def _pulse_in(message: bytes) -> list[Any]:
    """What ``Host.pulse`` says. Raises ValueError when it is anything else."""
    pulse = json.loads(message)
    if not isinstance(pulse, list) or [type(part) for part in pulse] != [dict, int, int]:
        raise ValueError(f"a pulse of {len(message)} bytes that is none")
    return pulse
