"""A host: one process standing for one machine, with a Flight server, the queues, and one SparkSession.

It is sent whole plans and makes itself agree with the newest: becomes primary, standby or neither of each unit
(``roles.py``). What others ask of it is in ``door.py``, what it tells its coordinator in ``membership.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from understudy import job_files
from understudy.core.directory import Directory
from understudy.core.keeping import Report
from understudy.core.landed import Landed
from understudy.core.numbers import Epoch, Generation, before
from understudy.core.policies import Policy, parse
from understudy.core.policies.upstream import Row
from understudy.errors import SetupError
from understudy.job import Job
from understudy.runtime import messages, wire
from understudy.runtime.door import Door
from understudy.runtime.kinds import Kind, OperatorKind, PreparedKind, SparkKind
from understudy.runtime.membership import Membership
from understudy.runtime.monitor import MonitorRole
from understudy.runtime.payloads import Payloads
from understudy.runtime.rehearsal import Rehearsal, Turns
from understudy.runtime.role import Primary, Role, Standby
from understudy.runtime.roles import Roles
from understudy.runtime.spare import Spare
from understudy.runtime.spark import Plans, require_replayable, start_session
from understudy.runtime.spark_engine import SparkEngine
from understudy.runtime.spark_files import Batch
from understudy.runtime.spark_io import TLS_VARIABLE, TOKEN_VARIABLE
from understudy.runtime.spark_jvm import require_java
from understudy.runtime.spark_source import SparkSourceStage
from understudy.runtime.stage import Position, RunningStage
from understudy.runtime.streams import Stream
from understudy.settings import check, check_master, check_session
from understudy.sinks import FolderSink, Sink

STARTING_S = 1.0
"""How long a request for a stream waits for its stage, which is just starting."""
_TRACE = bool(os.environ.get("UNDERSTUDY_TRACE"))


@dataclass(frozen=True)
class HostConfig:
    name: str
    folder: Path
    coordinator: str
    token: str
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    """Where others reach it, if that is not where it listens: behind a proxy, a container's port or NAT."""
    master: str = "local[*]"
    settings: dict[str, str] = field(default_factory=dict)
    """Spark settings that override Understudy's."""
    queue_bytes: int = 256 << 20
    tls: wire.Tls | None = None
    lazy_spark: bool = False
    """Start Spark when a job first needs it, not at once."""


class Host:
    def __init__(self, config: HostConfig) -> None:
        check_master(config.master)
        check(config.settings)
        self.config = config
        self.name = config.name
        self.folder = config.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.imports = self.folder.resolve() / "imports"
        """Stages, and what they hand to Spark's workers, may import what is beside the job file."""
        sys.path.insert(0, str(self.imports))
        self.changed = threading.Condition(threading.RLock())
        self.meter = wire.Meter()
        self.payloads = Payloads(self.folder / "queues", memory_bytes_max=config.queue_bytes)
        self.rows: Counter[str] = Counter()
        self.published: Counter[str] = Counter()
        """Rows and bytes of every stream that were produced here."""
        self.landed = Landed()
        """What sinks have. Under ``changed``."""
        self.cores = os.cpu_count() or 1
        self.job: Job = Job("none-yet")
        self.directory = Directory(self.name)
        self.go = 0
        self.draining = False
        self.hosts: dict[str, str] = {}
        self.processes: dict[str, str] = {}
        self.taken: messages.TakeJob | None = None
        """The job, as it was sent."""
        self._chosen: dict[str, str] = {}
        self.stages: dict[str, Role] = {}
        """What this host is of which stages."""
        self.spares: dict[str, Spare] = {}
        """Stages that would be rebuilt here by replay."""
        self.spares_wanted: set[str] = set()
        """Units that would."""
        self._peers: dict[str, wire.Peer] = {}
        self._plans: Plans | None = None
        self._spark: Any = None
        self._spark_begun = False
        self._spark_error: str | None = None
        self.process = uuid.uuid4().hex
        """Tells this process from an earlier one of the same name and address."""
        self.resetting = False
        """What this host holds is of a job that is being forgotten."""
        self._chores = ThreadPoolExecutor(1, thread_name_prefix="chores")
        self.roles = Roles(self)
        self.monitor = MonitorRole(self)
        self.membership = Membership(self)
        self.starting = threading.BoundedSemaphore(max(2, self.cores))
        """Held while a query starts. Each starts Python processes, to which Spark gives 10 s; a dozen at once take
        longer, and begin again."""
        self._queries, self._operators, self._prepared = SparkKind(self), OperatorKind(self), PreparedKind(self)
        self.rehearsing = Turns()
        self.rehearsals: dict[str, Rehearsal] = {}
        """By session, for the readers of their queries."""
        os.environ[TOKEN_VARIABLE] = config.token
        if config.tls:
            os.environ[TLS_VARIABLE] = json.dumps([config.tls.cert, config.tls.key, config.tls.ca])
        self.server = wire.Server(config.listen, config.token, Door(self).service(), config.tls)
        self.address = self.server.address

    # -- life ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        if not self.config.lazy_spark:
            self._begin_spark()
        self.membership.begin()
        threading.Event().wait()  # until ``end``

    def _begin_spark(self) -> None:
        with self.changed:
            begun, self._spark_begun = self._spark_begun, True
        if not begun:
            threading.Thread(target=self._start_spark, name="spark", daemon=True).start()

    def _start_spark(self) -> None:
        try:
            require_java()
            local = self.folder / "spark"
            shutil.rmtree(local, ignore_errors=True)
            session = start_session(
                f"understudy-{self.name}",
                master=self.config.master,
                settings=self.config.settings,
                local_dir=local,
                imports=self.imports,
            )
            check_session(dict(session.sparkContext.getConf().getAll()))
            self._spark = session
        except Exception as error:
            traceback.print_exc()
            self._spark_error = str(error).splitlines()[0]
            self.report(messages.SparkFailed(self._spark_error))
        with self.changed:
            self.changed.notify_all()

    def wait_for_spark(self) -> Any:
        self._begin_spark()
        with self.changed:
            self.changed.wait_for(lambda: self._spark is not None or self._spark_error is not None)
        if self._spark is None:
            raise SetupError(f"Spark did not start on {self.name}: {self._spark_error}")
        return self._spark

    @property
    def has_spark(self) -> bool:
        return self._spark is not None

    def wait_for_plans(self) -> Plans:
        spark = self.wait_for_spark()
        with self.changed:
            if self._plans is None:
                self._plans = Plans(spark, self.job, self.address)
            return self._plans

    def end(self, code: int) -> None:
        """End this process and all of its children, at once: Spark's own shutdown can hang on a busy query."""
        for child in psutil.Process().children(recursive=True):
            try:
                child.kill()
            except psutil.NoSuchProcess:
                pass
        os._exit(code)

    # -- telling and waking ----------------------------------------------------------------------------------------

    def report(self, what: messages.Reported) -> None:
        """Tell the coordinator, now or as soon as there is one."""
        self.membership.report(what)

    def report_all(self, reports: Iterable[Report]) -> None:
        for report in reports:
            self.report(report.event)

    def later(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something slow that nobody waits for, such as deleting files; in order."""
        self._chores.submit(_told, work, *arguments)

    def wake(self) -> None:
        """Let everyone who waits on this host look again."""
        with self.changed:
            self.changed.notify_all()

    def wait_for_newer_plan(self, serial: int, stage: Any, timeout_s: float) -> None:
        """Until there is a plan newer than ``serial``, the stage stops, or the time is over: for who cannot go on as
        things are."""
        with self.changed:
            self.changed.wait_for(lambda: stage.stopping or self.serial != serial, timeout=timeout_s)

    def trace(self, stage: str, what: str, epoch: Epoch) -> None:
        """With $UNDERSTUDY_TRACE set, one line per step of every epoch in the host's log: where the time goes."""
        if _TRACE:
            print(f"trace {time.time():.3f} {stage} {what} {epoch}", flush=True)

    # -- plans -----------------------------------------------------------------------------------------------------

    def take_job(self, sent: messages.TakeJob, packed: bytes) -> None:
        """The job's code and options. A host runs one job at a time."""
        if self.taken is not None and sent.ident == self.taken.ident:
            return
        folder, options = Path(sent.directory), sent.options
        if not job_files.is_same(folder, packed):
            folder = self.folder / "job"
            job_files.unpack(packed, folder)
        job_files.link_imports(folder, packed, self.imports)
        job = job_files.load(folder / sent.file, self.wait_for_spark)
        job.assign(options.roles)
        if options.reference:
            job.as_reference(Path(options.reference))
        with self.changed:
            self.job = job
            self._define()
            self._chosen = {}
            self.taken = sent
            self._plans = None
            self.rows.clear()
            self.published.clear()
            self.landed = Landed()
            self._use_policies(sent.policies)

    @property
    def heartbeat(self) -> tuple[float, int]:
        """How often hosts are heard, and after how many misses they are given up."""
        assert self.taken is not None
        return self.taken.heartbeat_s, self.taken.heartbeat_misses

    @property
    def options(self) -> messages.Options:
        return messages.Options() if self.taken is None else self.taken.options

    def _use_policies(self, chosen: dict[str, str]) -> None:
        """What was chosen for units with a goal. Plans carry it too: a host may have been sent the job before."""
        if chosen != self._chosen:
            self._chosen = chosen
            self.job.resolve(_policies(chosen))
            self._define()

    def _define(self) -> None:
        self._defined = self.topology = self.job.topology()
        self.directory.define(self.topology)

    def check_job(self, policies: dict[str, str]) -> messages.Checked:
        """Build every stage once, so that mistakes show before anything runs; as if units were under these policies."""
        if self.job.needs_spark:
            check_session(self.wait_for_spark().conf.getAll)  # a job file may change settings of the session
        schemas = {name: self.kind(name).schema(name) for name in self.job.stages}
        for name in self.job.stages:
            self.kind(name).check(name)
        found = {name: self.kind(name).judged(name) for name in self.job.stages}
        for unit in self.topology.under(_policies(policies)).units.values():
            for stage in unit.stages if unit.policy.recovery == "replay" else ():
                require_replayable(self.job.stages[stage], found[stage])
        operators = {name: operators.to_dict() for name, operators in found.items() if operators}
        return messages.Checked(schemas, operators)

    def take_plan(self, sent: messages.TakePlan) -> bool:
        """Begin to become what a plan says. False when there is a newer one."""
        with self.changed:
            if sent.plan.serial < self.serial:
                return False
            self._use_policies(sent.policies)
            self.directory.take(sent.plan)
            self.topology = self._defined.under(self.directory.policies.of)
            self.hosts, self.processes = sent.hosts, sent.processes
            self.spares_wanted = {unit for unit, host in sent.spares.items() if host == self.name}
            self.go, self.draining = max(self.go, sent.go), sent.draining
            self.changed.notify_all()
        self.roles.agree()
        self.monitor.agree()
        return True

    def reset(self) -> None:
        """Forget the job but keep Spark warm: the next job can be sent."""
        with self.changed:
            self.resetting = True
            self.directory.forget()
            self.spares_wanted = set()
        try:
            self.roles.forget()
            self.monitor.forget()
            with self.changed:
                self.directory = Directory(self.name)
                self.go, self.draining = 0, False
                self.taken, self._plans, self._chosen = None, None, {}
                self.membership.forget_reports()
        finally:
            self.resetting = False

    # -- where things are ------------------------------------------------------------------------------------------

    @property
    def serial(self) -> int:
        """Of the newest plan."""
        return self.directory.serial

    def delivers_eagerly(self, consumer: str) -> bool:
        """Whether copies of a stage send what they make as well. Sinks have none."""
        unit = self.topology.unit_of.get(consumer)
        return unit is not None and self.topology.units[unit].policy.eager

    def peer(self, host: str) -> wire.Peer:
        with self.changed:
            address = self.hosts[host]
            if address not in self._peers:
                self._peers[address] = wire.Peer(address, self.config.token, self.meter, self.config.tls)
            return self._peers[address]

    def primary(self, stage: str) -> Primary | None:
        mine = self.stages.get(stage)
        return mine if isinstance(mine, Primary) else None

    def primaries(self) -> list[Primary]:
        return [mine for mine in self.stages.values() if isinstance(mine, Primary)]

    def standby(self, stage: str) -> Standby | None:
        mine = self.stages.get(stage)
        return mine if isinstance(mine, Standby) else None

    def stream(self, name: str) -> Stream | None:
        """The producing end of a stream that is sent from here."""
        standby = self.standby(name)
        if standby is not None and not self.topology.units[standby.unit].policy.eager:
            return None
        return self.output(name)

    def coming_stream(self, name: str) -> Stream | None:
        """The same; waits a moment where the plan says that it is sent from here, and its stage is just starting."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.stream(name) is not None or self.directory.primary_of(name) != self.name, STARTING_S
            )
            return self.stream(name)

    def output(self, name: str) -> Stream | None:
        """The producing end of a stream here, of a primary or of a copy, whether or not it is sent."""
        mine = self.stages.get(name)
        return None if mine is None else mine.out

    def sink(self, name: str) -> Sink:
        sink = next(s.sinks[name] for s in self.job.stages.values() if name in s.sinks)
        root = self.options.sink_root
        if root:  # a drill: nothing may reach the user's real outputs, and everything must be comparable
            return FolderSink(str(Path(root, name)), "parquet")
        return sink

    def running(self, stage: str) -> RunningStage | None:
        """What runs a stage's query here: a primary, or the copy of a standby that runs."""
        mine = self.stages.get(stage)
        return None if mine is None else mine.running

    def lead(
        self,
        stage: str,
        *,
        unit: str,
        generation: Generation,
        state: Path,
        where: Position,
        ready: Any = None,
        row: Row | None = None,
    ) -> RunningStage:
        """A primary that goes on with a state. ``ready``: what was made ready of its engine."""
        kind = SparkSourceStage if self.job.stages[stage].source is not None else RunningStage
        folder = self.stage_folder(stage)
        return kind(
            self, stage, unit=unit, generation=generation, folder=folder, state=state, ready=ready, row=row, **where
        )

    def stage_folder(self, stage: str) -> Path:
        return self.folder / "stages" / stage

    def spark_engine(self, stage: str) -> SparkEngine | None:
        """What answers the readers of a stage's query here."""
        running = self.running(stage)
        return running.engine if running is not None and isinstance(running.engine, SparkEngine) else None

    def publish(self, stage: str, frame: Any, batch: Batch) -> None:
        engine = self.spark_engine(stage)
        if engine is not None:
            engine.publish(frame, batch)

    def kind(self, stage: str) -> Kind:
        """What this host knows of the kind of stages that this one is of."""
        defined = self.job.stages[stage]
        if defined.operator is None:
            return self._queries
        return self._operators if defined.function is None else self._prepared

    def peek(self, name: str) -> pa.Table | None:
        """Rows of a stream that is sent from here: of its newest epoch, as far as there are any soon."""
        stream = self.stream(name)
        if stream is None:
            return None
        with self.changed:
            self.changed.wait_for(lambda: stream.queue.next > stream.queue.first, timeout=3)
            epoch = before(stream.queue.next)
        table = self.payloads.get(stream.key, epoch)
        return None if table is None else table.slice(0, 10_000)


def _told(work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except Exception:
        traceback.print_exc()


def _policies(spelled: dict[str, str]) -> dict[str, Policy]:
    return {unit: parse(text) for unit, text in spelled.items()}


def serve(config: HostConfig) -> None:
    """Run a host until it is told to exit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the coordinator, which stops hosts in order
    host = Host(config)
    signal.signal(signal.SIGTERM, lambda *_: host.end(0))
    host.run()
