"""A job running on local hosts, from start to a clean end: what ``run``, ``drill`` and the tests share."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from understudy.errors import JobError
from understudy.runtime.cluster import LocalHosts, token_of
from understudy.runtime.coordinator import Coordinator, CoordinatorConfig
from understudy.sinks import FolderSink


class LocalRun:
    """``with LocalRun(...) as run:`` starts hosts, coordinator and job; leaving it ends every process."""

    def __init__(
        self, job_file: Path, folder: Path, *, hosts: int = 3, fresh: bool = False, options: dict[str, Any] | None = None,
        master: str = "local[*]", settings: dict[str, str] | None = None, queue_bytes: int = 256 << 20,
        heartbeat_s: float = 0.25, heartbeat_misses: int = 4, on_event: Callable[[dict[str, Any]], None] | None = None,
        keep_hosts: LocalHosts | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.names = [f"h{i + 1}" for i in range(hosts)]
        if fresh:
            for name in ("journal.json", "events.jsonl", "hosts"):
                path = folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        token = token_of(folder)
        config = CoordinatorConfig(
            job_file=job_file, folder=folder, token=token, heartbeat_s=heartbeat_s, heartbeat_misses=heartbeat_misses,
            options=options or {}, listen=self._last_listen(),
        )  # fmt: skip
        self._on_event = on_event
        self.config = config
        self.coordinator = Coordinator(config, on_event)
        self._sinks_ready(fresh, options or {})
        self.hosts = LocalHosts(
            folder, coordinator=self.coordinator.address, token=token, master=master, settings=settings, queue_bytes=queue_bytes
        )
        self.adopted = False

    def _last_listen(self) -> str:
        """The address of a coordinator that was killed is taken again, so that its hosts find it."""
        import json

        try:
            journal = json.loads((self.folder / "journal.json").read_text())
            return str(journal["address"]) if journal["state"] == "running" else "127.0.0.1:0"
        except (OSError, ValueError, KeyError):
            return "127.0.0.1:0"

    def _sinks_ready(self, fresh: bool, options: dict[str, Any]) -> None:
        if self.coordinator.journal.read() is not None:
            return
        for stage in self.coordinator.job.stages.values():
            for name, sink in stage.sinks.items():
                if options.get("sink_root"):
                    sink = FolderSink(str(Path(options["sink_root"], name)), "parquet")
                if not isinstance(sink, FolderSink):
                    continue
                if fresh:
                    sink.clear()
                elif any(Path(sink.path).glob("epoch=*")):
                    self.coordinator.close(exit_hosts=False)
                    raise JobError(f"sink {name!r}: {sink.path} holds epochs of another run; use --fresh to replace them, "
                                   "or write to another folder")  # fmt: skip

    def start(self) -> None:
        """Adopt the running job, or start hosts and begin (or resume) it."""
        self.adopted = self.coordinator.adopt()
        if self.adopted:
            self.hosts.adopt(self.coordinator.pids)
            return
        for name in self.names:
            self.hosts.start(name)
        self.coordinator.wait_for_hosts(len(self.names))
        self.coordinator.check()
        self.coordinator.begin()

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
        clean = self.coordinator.drain() if drain else False
        self.coordinator.close()
        self.hosts.end()
        return clean

    def __enter__(self) -> LocalRun:
        try:
            self.start()
        except BaseException:
            self.stop(drain=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop(drain=False)


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until ``condition``; for conditions that nobody announces (files of other processes)."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout_s:.0f} s")
        time.sleep(0.02)
