"""A job from start to a clean end: what ``run``, drills, benchmarks and tests share."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from understudy.errors import JobError
from understudy.runtime.cluster import LocalHosts, Reviver, token_of
from understudy.runtime.coordinator import Coordinator, CoordinatorConfig
from understudy.runtime.messages import Options
from understudy.runtime.profile import Profiler
from understudy.runtime.spark_jvm import require_java
from understudy.runtime.wire import Tls
from understudy.settings import check, check_master
from understudy.sinks import FolderSink


class Run:
    """A coordinator and its job. ``with Run(...) as run:`` starts it; leaving it ends every process it started."""

    def __init__(
        self,
        config: CoordinatorConfig,
        *,
        hosts: int,
        fresh: bool,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.config = config
        self.count = hosts
        if fresh:
            for name in ("journal.json", "events.jsonl", "hosts"):
                path = config.folder / name
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        self.coordinator = Coordinator(config, on_event)
        self._profiler = Profiler(config.folder, self.coordinator.status)
        self._sinks_ready(fresh)

    def _sinks_ready(self, fresh: bool) -> None:
        """A run that starts from nothing must find its sinks empty: epochs that are there count as written."""
        if self.coordinator.journal.read() is not None:
            return
        root = self.config.options.sink_root
        for stage in self.coordinator.job.stages.values():
            for name, sink in stage.sinks.items():
                target = FolderSink(str(Path(root, name)), "parquet") if root else sink
                if fresh:
                    target.clear()
                elif (held := target.holds()) is not None:
                    self.coordinator.close(exit_hosts=False)
                    raise JobError(
                        f"sink {name!r}: {held} of another run; use --fresh to replace them, or write elsewhere"
                    )

    def start(self) -> None:
        """Adopt the running job, or wait for hosts and begin (or resume) it."""
        if self.coordinator.adopt():
            self._adopted()
            self._profiler.start()
            return
        self._start_hosts()
        self.coordinator.wait_for_hosts(self.count)
        self.coordinator.check()
        self.coordinator.choosing.resolve()
        self.coordinator.begin()
        self._profiler.start()

    def _start_hosts(self) -> None:
        self.coordinator.say("listening", f"waiting for {self.count} hosts at {self.coordinator.address}")

    def _adopted(self) -> None:
        pass

    def wait(self, timeout_s: float | None) -> None:
        """Until the time is over; raises as soon as the job has failed."""
        self.coordinator.wait(timeout_s)

    def stop(self, *, drain: bool = True) -> bool:
        """End the job. With ``drain``, let epochs in flight finish and take a last checkpoint first."""
        self._profiler.end()
        clean = self.coordinator.drain() if drain else False
        self.coordinator.close()
        return clean

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop(drain=False)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(drain=False)


class LocalRun(Run):
    """Hosts as processes on this machine."""

    def __init__(
        self,
        job_file: Path,
        folder: Path,
        *,
        hosts: int = 3,
        fresh: bool = False,
        options: dict[str, Any] | None = None,
        roles: dict[str, Any] | None = None,
        master: str = "local[*]",
        settings: dict[str, str] | None = None,
        queue_bytes: int = 256 << 20,
        heartbeat_s: float = 0.5,
        heartbeat_misses: int = 5,
        revive: bool = False,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """``roles``: as read from a file (``understudy.roles``). ``revive``: start a host that died again. Drills do
        not: the harm is theirs to measure."""
        check_master(master)
        check(settings or {})
        config = CoordinatorConfig(
            job_file=job_file,
            folder=folder,
            token=token_of(folder),
            listen=_last_address(folder),
            heartbeat_s=heartbeat_s,
            heartbeat_misses=heartbeat_misses,
            options=Options(**(options or {}), roles=roles or {}),
        )
        super().__init__(config, hosts=hosts, fresh=fresh, on_event=on_event)
        self.hosts = LocalHosts(
            folder,
            coordinator=self.coordinator.address,
            token=config.token,
            master=master,
            settings=settings,
            queue_bytes=queue_bytes,
            lazy_spark=not self.coordinator.job.needs_spark,
        )
        self._reviver = Reviver(self.hosts, self.coordinator.say) if revive else None

    def start(self) -> None:
        if self.coordinator.job.needs_spark:
            require_java()
        super().start()
        if self._reviver:
            self._reviver.watch(list(self.coordinator.hosts))

    def _start_hosts(self) -> None:
        names = [f"h{i + 1}" for i in range(self.count)]
        self.coordinator.check_hosts(names)
        for name in names:
            self.hosts.start(name)

    def _adopted(self) -> None:
        self.hosts.adopt(self.coordinator.pids)

    def host_of(self, target: str) -> str:
        """The host called ``target``, or the primary of the stage or unit of that name."""
        if target in self.coordinator.hosts:
            return target
        topology = self.coordinator.topology
        unit = topology.unit_of.get(target, target)
        plan = self.coordinator.failover.plan.units.get(unit)
        if plan is None or plan.primary is None:
            known = [*self.coordinator.hosts, *topology.stages]
            raise JobError(f"nothing called {target!r} to kill; choose a host or stage: {', '.join(known)}")
        return plan.primary

    def stop(self, *, drain: bool = True) -> bool:
        if self._reviver:
            self._reviver.end()
        clean = super().stop(drain=drain)
        self.hosts.end()
        return clean


class RemoteRun(Run):
    """Hosts that were started elsewhere with ``understudy host --coordinator``."""

    def __init__(
        self,
        job_file: Path,
        folder: Path,
        *,
        listen: str,
        token: str,
        hosts: int,
        fresh: bool,
        tls: Tls | None,
        heartbeat_s: float,
        heartbeat_misses: int,
        roles: dict[str, Any] | None = None,
    ) -> None:
        config = CoordinatorConfig(
            job_file=job_file,
            folder=folder,
            token=token,
            listen=listen,
            heartbeat_s=heartbeat_s,
            heartbeat_misses=heartbeat_misses,
            options=Options(roles=roles or {}),
            tls=tls,
        )
        super().__init__(config, hosts=hosts, fresh=fresh)


def _last_address(folder: Path) -> str:
    """The address of a coordinator that was killed is taken again, so that its hosts find it."""
    try:
        journal = json.loads((folder / "journal.json").read_text())
        return str(journal["address"]) if journal["state"] == "running" else "127.0.0.1:0"
    except (OSError, ValueError, KeyError):
        return "127.0.0.1:0"


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str, *, every_s: float = 0.02) -> None:
    """Wait until ``condition``; for conditions that nobody announces (files of other processes)."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout_s:.0f} s")
        time.sleep(every_s)
