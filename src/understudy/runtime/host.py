"""A host: one process standing for one machine, with a Flight server, the queues, and one SparkSession.

It is sent whole plans and makes itself agree with the newest: becomes primary, standby or neither of each unit.
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
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.flight as flight

from understudy import job_files
from understudy.core import beginning
from understudy.core.directory import Directory
from understudy.core.failover import StandbyReady, StandbyUnusable, Turned
from understudy.core.keeping import Report
from understudy.core.plans import Plan
from understudy.core.policies import Policy, parse
from understudy.errors import SetupError, UnderstudyError
from understudy.job import Job
from understudy.runtime import wire
from understudy.runtime.kinds import Kind, OperatorKind, PreparedKind, SparkKind
from understudy.runtime.monitor import MonitorRole
from understudy.runtime.payloads import Payloads
from understudy.runtime.rehearsal import Rehearsal, Turns
from understudy.runtime.roles import STANDBYS, Roles
from understudy.runtime.spare import Spare
from understudy.runtime.spark import Plans, require_replayable, start_session
from understudy.runtime.spark_engine import RUN, SparkEngine
from understudy.runtime.spark_io import TLS_VARIABLE, TOKEN_VARIABLE
from understudy.runtime.spark_jvm import require_java
from understudy.runtime.stage import RunningStage
from understudy.runtime.streams import POLL_S, Stream
from understudy.runtime.wire import Refusal
from understudy.settings import check, check_master, check_session
from understudy.sinks import FolderSink, Sink

ORPHAN_S = 600.0
"""A host that has not heard from any coordinator for this long ends itself, so that none is left behind for ever.
Shorter would end a job whose coordinator is being repaired."""
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
        self.cores = os.cpu_count() or 1
        self.job: Job = Job("none-yet")
        self.directory = Directory(self.name)
        self.go = 0
        self.draining = False
        self.hosts: dict[str, str] = {}
        self.processes: dict[str, str] = {}
        self.replay: dict[str, list[Any]] = {}
        self.options: dict[str, Any] = {}
        self._chosen: dict[str, str] = {}
        self.stages: dict[str, Any] = {}
        self.spares: dict[str, Spare] = {}
        """Stages that would be rebuilt here by replay."""
        self.spares_wanted: set[str] = set()
        """Units that would."""
        self._peers: dict[str, wire.Peer] = {}
        self._plans: Plans | None = None
        self._spark: Any = None
        self._spark_begun = False
        self._spark_error: str | None = None
        self._reports: deque[dict[str, Any]] = deque()
        self._process = uuid.uuid4().hex
        """Tells this process from an earlier one of the same name and address."""
        self._watched_at = time.monotonic()
        self._watchers = 0
        self._resetting = False
        """What this host holds is of a job that is being forgotten."""
        self._coordinator = wire.Peer(config.coordinator, config.token, self.meter, config.tls)
        self.roles = Roles(self)
        self.monitor = MonitorRole(self)
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
        service = wire.Service(
            calls={
                "job": self._on_job,
                "plan": self._on_plan,
                "check": self._on_check,
                "ack": self._on_ack,
                "paste": self._on_paste,
                "copy-at": self._on_copy_at,
                "entries": self._on_entries,
                "arm": self._on_arm,
                "initial": self._on_initial,
                "grant": self._on_grant,
                "parts": self._on_parts,
                "drain": self._on_drain,
                "status": self._on_status,
                "position": self._on_position,
                "reset": self._on_reset,
                "exit": self._on_exit,
            },
            gets={"epoch": self._get_epoch, "peek": self._get_peek, "input": self._get_input, "pulse": self._get_pulse},
        )
        self.server = wire.Server(config.listen, config.token, service, config.tls)
        self.address = self.server.address

    # -- life ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        if not self.config.lazy_spark:
            self._begin_spark()
        for work in (self._membership, self._send_reports):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        threading.Event().wait()  # until _end

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
            self.report("spark-failed", cause=self._spark_error)
        with self.changed:
            self.changed.notify_all()

    def wait_for_spark(self) -> Any:
        self._begin_spark()
        with self.changed:
            self.changed.wait_for(lambda: self._spark is not None or self._spark_error is not None)
        if self._spark is None:
            raise SetupError(f"Spark did not start on {self.name}: {self._spark_error}")
        return self._spark

    def wait_for_plans(self) -> Plans:
        spark = self.wait_for_spark()
        with self.changed:
            if self._plans is None:
                self._plans = Plans(spark, self.job, self.address)
            return self._plans

    def _membership(self) -> None:
        """Join the coordinator, and join again whenever nobody has been watching."""
        refused = 0
        while True:
            if self._watchers == 0 and not self._resetting:
                try:
                    header = {
                        "host": self.name,
                        "address": self.config.advertise or self.address,
                        "holds": self.roles.holds(),
                        "pid": os.getpid(),
                        "process": self._process,
                        "serial": self.serial,
                    }
                    self._coordinator.call("join", header, timeout_s=5)
                except OSError as error:
                    print(f"did not join yet: {error}", flush=True)  # a plan is changing what this host holds
                except flight.FlightError as error:
                    if wire.is_refused(error):
                        refused += 1
                        if refused >= 3:
                            print(
                                f"the coordinator at {self.config.coordinator} refused this host: {error}", flush=True
                            )
                            self._end(4)
                    self._coordinator.close()
            if self._watchers == 0 and time.monotonic() - self._watched_at > ORPHAN_S:
                print(f"no coordinator for {ORPHAN_S:.0f} s; ending", flush=True)
                self._end(6)
            time.sleep(0.3)

    def _end(self, code: int) -> None:
        """End this process and all of its children, at once: Spark's own shutdown can hang on a busy query."""
        for child in psutil.Process().children(recursive=True):
            try:
                child.kill()
            except psutil.NoSuchProcess:
                pass
        os._exit(code)

    # -- telling the coordinator -----------------------------------------------------------------------------------

    def report(self, kind: str, **about: Any) -> None:
        """Tell the coordinator, now or as soon as there is one."""
        with self.changed:
            self._reports.append({"kind": kind, "host": self.name, "t": time.time(), **about})
            self.changed.notify_all()

    def report_all(self, reports: Iterable[Report]) -> None:
        for report in reports:
            self.report_event(report.event)

    def report_event(self, event: StandbyReady | StandbyUnusable | Turned) -> None:
        about = {"standby" if name == "host" else name: value for name, value in asdict(event).items()}
        self.report(_KINDS[type(event)], **about)

    def wake(self) -> None:
        """Let everyone who waits on this host look again."""
        with self.changed:
            self.changed.notify_all()

    def wait_for_newer_plan(self, serial: int, stage: Any, timeout_s: float) -> None:
        """Until there is a plan newer than ``serial``, the stage stops, or the time is over: for who cannot go on as
        things are."""
        with self.changed:
            self.changed.wait_for(lambda: stage.stopping or self.serial != serial, timeout=timeout_s)

    def trace(self, stage: str, what: str, epoch: int) -> None:
        """With $UNDERSTUDY_TRACE set, one line per step of every epoch in the host's log: where the time goes."""
        if _TRACE:
            print(f"trace {time.time():.3f} {stage} {what} {epoch}", flush=True)

    def _send_reports(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: bool(self._reports))
                report = self._reports[0]
            try:
                self._coordinator.call("report", report, timeout_s=5)
            except flight.FlightError:
                time.sleep(0.2)
                continue
            with self.changed:
                if self._reports and self._reports[0] is report:  # not forgotten meanwhile
                    self._reports.popleft()

    def _get_pulse(self, request: dict[str, Any]) -> flight.FlightDataStream:
        schema = pa.schema([("beat", pa.int8())])
        beat = pa.record_batch([pa.array([], pa.int8())], schema=schema)
        interval_s = float(request["interval_s"])

        if request["process"] != self._process:
            raise flight.FlightUnavailableError("this process took the place of the one that is asked for")
        if request.get("monitor"):  # a host that watches this one does not make up for a coordinator
            return flight.GeneratorStream(schema, self._monitor_beats(beat, interval_s))

        def beats() -> Iterator[Any]:
            self._watchers += 1
            try:
                while True:
                    yield beat, json.dumps(self.pulse(), separators=(",", ":")).encode()
                    time.sleep(interval_s)
            finally:
                self._watchers -= 1
                self._watched_at = time.monotonic()

        return flight.GeneratorStream(schema, beats())

    def _monitor_beats(self, beat: Any, interval_s: float) -> Iterator[Any]:
        while True:
            yield beat, b"[]"
            time.sleep(interval_s)

    def pulse(self) -> list[Any]:
        """Kept tiny: it is sent several times a second. ``status`` has the rest."""
        with self.changed:
            produced = {n: s.output.queue.next - 1 for n, s in self.stages.items() if hasattr(s, "output")}
            return [produced, sum(self.rows.values()), self.serial]

    # -- plans -----------------------------------------------------------------------------------------------------

    def _on_job(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        """The job's code and options. A host runs one job at a time."""
        if header["ident"] == self.options.get("ident"):
            return {}
        folder = Path(header["directory"])
        if not job_files.is_same(folder, body):
            folder = self.folder / "job"
            job_files.unpack(body, folder)
        job_files.link_imports(folder, body, self.imports)
        try:
            job = job_files.load(folder / header["file"], self.wait_for_spark)
            job.assign(header.get("roles", {}))
        except UnderstudyError as error:
            return {"refused": Refusal.JOB, "text": str(error)}
        if header.get("reference"):
            job.as_reference(Path(header["reference"]))
        with self.changed:
            self.job = job
            self._define()
            self._chosen = {}
            self.options = header
            self.replay = header.get("replay") or {}
            self._plans = None
            self.rows.clear()
            self.published.clear()
            self._use_policies(header.get("policies") or {})
        return {}

    def _use_policies(self, chosen: dict[str, str]) -> None:
        """What was chosen for units with a goal. Plans carry it too: a host may have been sent the job before."""
        if chosen != self._chosen:
            self._chosen = chosen
            self.job.resolve(_policies(chosen))
            self._define()

    def _define(self) -> None:
        self._defined = self.topology = self.job.topology()
        self.directory.define(self.topology)

    def _on_check(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        """Build every stage once, so that mistakes show before anything runs. With ``policies``, as if units were under
        these."""
        try:
            if self.job.needs_spark:
                check_session(self.wait_for_spark().conf.getAll)  # a job file may change settings of the session
            schemas = {name: self.kind(name).schema(name) for name in self.job.stages}
            for name in self.job.stages:
                self.kind(name).check(name)
            found = {name: self.kind(name).judged(name) for name in self.job.stages}
            for unit in self.topology.under(_policies(header.get("policies") or {})).units.values():
                for stage in unit.stages if unit.policy.recovery == "replay" else ():
                    require_replayable(self.job.stages[stage], found[stage])
            return {
                "schemas": schemas,
                "operators": {name: operators.to_dict() for name, operators in found.items() if operators},
            }
        except UnderstudyError as error:
            return {"refused": Refusal.JOB, "text": str(error), "exit_code": error.exit_code}

    def _on_plan(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        if header["process"] != self._process:
            return {"refused": Refusal.STRANGER}  # made for an earlier process, which was in the middle of what it says
        with self.changed:
            if header["serial"] < self.serial:
                return {"refused": Refusal.STALE}
            self._use_policies(header["policies"])
            self.directory.take(Plan.from_dict(header))
            self.topology = self._defined.under(self.directory.policies.of)
            self.hosts, self.processes = header["hosts"], header["processes"]
            self.spares_wanted = {unit for unit, host in header["spares"].items() if host == self.name}
            self.go = max(self.go, header["go"])
            self.changed.notify_all()
        threading.Thread(target=self.roles.agree, daemon=True).start()
        self.monitor.agree()
        return {}

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

    def stream(self, name: str) -> Stream | None:
        """The producing end of a stream that is sent from here."""
        mine = self.stages.get(name)
        if isinstance(mine, STANDBYS):
            sends = self.topology.units[mine.unit].policy.eager
            return self.output(name) if sends else None
        return self.output(name)

    def output(self, name: str) -> Stream | None:
        """The producing end of a stream here, of a primary or of a copy, whether or not it is sent."""
        mine = self.stages.get(name)
        return getattr(getattr(mine, "copy", None) or mine, "output", None)

    def sink(self, name: str) -> Sink:
        sink = next(s.sinks[name] for s in self.job.stages.values() if name in s.sinks)
        root = self.options.get("sink_root")
        if root:  # a drill: nothing may reach the user's real outputs, and everything must be comparable
            return FolderSink(str(Path(root, name)), "parquet")
        return sink

    def running(self, stage: str) -> RunningStage | None:
        """What runs a stage's query here: a primary, or the copy of a standby that runs."""
        mine = self.stages.get(stage)
        return mine if isinstance(mine, RunningStage) else getattr(mine, "copy", None)

    def spark_engine(self, stage: str) -> SparkEngine | None:
        """What answers the readers of a stage's query here."""
        running = self.running(stage)
        return running.engine if running is not None and isinstance(running.engine, SparkEngine) else None

    def publish(self, stage: str, frame: Any, batch: int) -> None:
        engine = self.spark_engine(stage)
        if engine is not None:
            engine.publish(frame, batch)

    def kind(self, stage: str) -> Kind:
        """What this host knows of the kind of stages that this one is of."""
        defined = self.job.stages[stage]
        if defined.operator is None:
            return self._queries
        return self._operators if defined.function is None else self._prepared

    # -- calls from other hosts ------------------------------------------------------------------------------------

    def _stale(self, header: dict[str, Any]) -> bool:
        return self.directory.stale(header["unit"], header["generation"])

    def _get_epoch(self, request: dict[str, Any]) -> flight.FlightDataStream:
        stream = self.stream(request["stream"])
        if self._stale(request):
            return wire.epoch_stream(wire.EMPTY, {"refused": Refusal.FENCED})
        if stream is None or request["consumer"] not in stream.queue.progress:
            return wire.epoch_stream(wire.EMPTY, {"refused": Refusal.ELSEWHERE})
        if request["counts"]:
            if not stream.hears(request["consumer"], request["generation"], near=self._near(request)):
                return wire.epoch_stream(wire.EMPTY, {"refused": Refusal.FENCED})
            for level, epoch in request["acks"]:
                stream.ack(request["consumer"], epoch, level)
        asked = time.monotonic()
        refusal, table = stream.take(request["consumer"], request["epoch"], POLL_S, counts=request["counts"])
        if table is None:
            return wire.epoch_stream(wire.EMPTY, {"refused": refusal})
        header = {
            "stream": request["stream"],
            "epoch": request["epoch"],
            "generation": stream.owner.generation,
            "rows": table.num_rows,
            "bytes": table.nbytes,
            "waited": round(time.monotonic() - asked, 4),
            "cut": round(stream.cut_s, 4),
        }
        return wire.epoch_stream(table, header)

    def _get_peek(self, request: dict[str, Any]) -> flight.FlightDataStream:
        table = self.peek(request["stream"])
        if table is None:
            return wire.epoch_stream(wire.EMPTY, {"refused": Refusal.NOTHING})
        return wire.epoch_stream(table, {})

    def peek(self, name: str) -> pa.Table | None:
        """Rows of a stream that is sent from here: of its newest epoch, as far as there are any soon."""
        stream = self.stream(name)
        if stream is None:
            return None
        with self.changed:
            self.changed.wait_for(lambda: stream.queue.next > stream.queue.first, timeout=3)
            epoch = stream.queue.next - 1
        table = self.payloads.get(stream.key, epoch)
        return None if table is None else table.slice(0, 10_000)

    def _near(self, header: dict[str, Any]) -> bool:
        return self.directory.near(header["stream"], header["consumer"], header["host"])

    def _on_position(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        stream = self.stream(header["stream"])
        if stream is None:
            return {"refused": Refusal.ELSEWHERE}
        consumer = header["consumer"]
        with self.changed:
            if self._stale(header):
                return {"refused": Refusal.FENCED}
            if not stream.queue.hears(consumer, header["generation"], near=self._near(header)):
                return {"refused": Refusal.FENCED}
            gap, row = getattr(stream.owner, "gap", 0), getattr(stream.owner, "row", None)  # a source has none
            found = beginning.place(stream.queue, consumer, newest=header["newest"], gap=gap, row=row)
        return {"epoch": found.epoch, "lost": found.lost, "row": found.row and [list(found.row.hosts), found.row.k]}

    def _on_ack(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        if self._stale(header):
            return {"refused": Refusal.FENCED}
        stream = self.stream(header["stream"])
        if stream is None:
            return {"refused": Refusal.ELSEWHERE}
        if not stream.hears(header["consumer"], header["generation"], near=self._near(header)):
            return {"refused": Refusal.FENCED}
        for level, epoch in header["acks"]:
            stream.ack(header["consumer"], epoch, level)
        return {}

    def _on_paste(self, header: dict[str, Any], body: bytes) -> wire.Reply | dict[str, Any]:
        return self._standby_call(header, lambda standby: standby.paste(header, body))

    def _on_entries(self, header: dict[str, Any], body: bytes) -> wire.Reply | dict[str, Any]:
        return self._standby_call(header, lambda standby: standby.add(header))

    def _standby_call(
        self, header: dict[str, Any], act: Callable[[Any], wire.Reply | dict[str, Any]]
    ) -> wire.Reply | dict[str, Any]:
        if self._stale(header):
            return {"refused": Refusal.FENCED}
        standby = self.stages.get(header["stage"])
        if not isinstance(standby, STANDBYS) or standby.generation != header["generation"]:
            return {"refused": Refusal.ELSEWHERE}
        return act(standby)

    def _on_copy_at(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        if self._stale(header):
            return {"refused": Refusal.FENCED}
        primary = self.stages.get(header["stage"])
        if not isinstance(primary, RunningStage) or primary.generation != header["generation"]:
            return {"refused": Refusal.ELSEWHERE}
        return primary.copy_is_at(header["standby"], header["epoch"])

    # -- calls from this host's Spark ------------------------------------------------------------------------------

    def _on_arm(self, header: dict[str, Any], body: bytes) -> Any:
        mine = self.stages.get(header["stage"]) or self.spares.get(header["stage"])
        if isinstance(mine, RunningStage):
            mine = self.spark_engine(header["stage"])
        return wire.refuse(Refusal.STOPPED) if mine is None else mine.arm()

    def _spark_call(self, header: dict[str, Any]) -> Any:
        """Whoever answers a reader: the engine of the running stage or a rehearsal; None when it is over."""
        if header["session"] != RUN:
            return self.rehearsals.get(header["session"])
        return self.spark_engine(header["stage"])

    def _on_initial(self, header: dict[str, Any], body: bytes) -> Any:
        engine = self._spark_call(header)
        return engine.initial() if engine else wire.refuse(Refusal.STOPPED)

    def _on_grant(self, header: dict[str, Any], body: bytes) -> Any:
        engine = self._spark_call(header)
        return engine.grant(header["after"]) if engine else wire.refuse(Refusal.STOPPED)

    def _on_parts(self, header: dict[str, Any], body: bytes) -> Any:
        engine = self._spark_call(header)
        return engine.parts(header["input"], header["epoch"]) if engine else wire.refuse(Refusal.STOPPED)

    def _get_input(self, request: dict[str, Any]) -> flight.FlightDataStream:
        engine = self._spark_call(request)
        if engine is None:
            raise flight.FlightServerError("stage has moved")
        table = engine.input_slice(request["input"], request["epoch"], request["part"], request["parts"])
        return wire.epoch_stream(table, {})

    # -- calls from the coordinator --------------------------------------------------------------------------------

    def _on_drain(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        """First without ``finals``: stop cutting epochs. Then, with it: take the last checkpoints, of every stage after
        its last epoch."""
        with self.changed:
            self.draining = True
            self.changed.notify_all()
            stages = [s for s in self.stages.values() if hasattr(s, "drain")]
        if header.get("finals") is None:
            return {"produced": {s.name: s.begun for s in stages}}
        return {"done": all([s.drain(header["finals"][s.name]) for s in stages])}

    def _on_status(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        with self.changed:
            stages = {name: stage.status() for name, stage in self.stages.items()}
            spares = {name: spare.status() for name, spare in self.spares.items()}
            keepers = {k.unit: k for stage in self.stages.values() for k in getattr(stage, "keepers", ())}
            checkpoints = {unit: dict(keeper.spent) for unit, keeper in keepers.items()}
            running = {name: stage for name, stage in self.stages.items() if isinstance(stage, RunningStage)}
        for name, stage in running.items():
            stages[name] |= stage.measured()
        return {
            "stages": stages,
            "spares": spares,
            "checkpoints": checkpoints,
            "bytes": self.meter.snapshot(),
            "rows": dict(self.rows),
            "published": dict(self.published),
            "spark": self._spark is not None,
            "queues": {
                "memory": self.payloads.memory_bytes,
                "memory_peak": self.payloads.memory_bytes_peak,
                "spilled": self.payloads.spilled_bytes,
            },
            "rss": tree_memory(psutil.Process()),
        }

    def _on_reset(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        """Forget the job but keep Spark warm: the next job can be sent."""
        with self.changed:
            self._resetting = True
            self.directory.forget()
            self.spares_wanted = set()
        try:
            self.roles.forget()
            self.monitor.forget()
            with self.changed:
                self.directory = Directory(self.name)
                self.go, self.draining = 0, False
                self.options, self.replay, self._plans, self._chosen = {}, {}, None, {}
                self._reports.clear()
        finally:
            self._resetting = False
        return {}

    def _on_exit(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        threading.Timer(0.1, self._end, args=(0,)).start()
        return {}


_KINDS: dict[type, str] = {StandbyReady: "standby-ready", StandbyUnusable: "standby-unusable", Turned: "turned"}


def _policies(spelled: dict[str, str]) -> dict[str, Policy]:
    return {unit: parse(text) for unit, text in spelled.items()}


def tree_memory(process: psutil.Process) -> int:
    """Bytes of memory of a process and all below it, shared pages counted once (PSS)."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def serve(config: HostConfig) -> None:
    """Run a host until it is told to exit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the coordinator, which stops hosts in order
    host = Host(config)
    signal.signal(signal.SIGTERM, lambda *_: host._end(0))
    host.run()
