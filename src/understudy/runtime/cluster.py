"""Hosts as processes on this machine: start, signal, end. Only processes started here are ever touched."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from understudy.runtime.spark_io import TOKEN_VARIABLE

CALM_S = 5.0
"""A dead host is started again this long after its death: a JVM takes a core to start, and the takeover comes first."""
DEATHS_MAX, DEATHS_WITHIN_S = 3, 300.0
"""A host that dies this often within this time is left alone: something is wrong that starting it cannot mend."""


class LocalHosts:
    def __init__(
        self,
        folder: Path,
        *,
        coordinator: str,
        token: str,
        master: str = "local[*]",
        settings: dict[str, str] | None = None,
        queue_bytes: int = 256 << 20,
        lazy_spark: bool = False,
    ) -> None:
        self._folder = folder
        self._coordinator = coordinator
        self._token = token
        self._arguments = ["--master", master, "--queue-mb", str(queue_bytes >> 20)]
        if lazy_spark:
            self._arguments.append("--lazy-spark")
        for key, value in (settings or {}).items():
            self._arguments += ["--conf", f"{key}={value}"]
        self.processes: dict[str, psutil.Process] = {}

    def home(self, name: str) -> Path:
        return self._folder / "hosts" / name

    def command(self, name: str) -> list[str]:
        about = ["--name", name, "--folder", str(self.home(name)), "--coordinator", self._coordinator]
        return [sys.executable, "-m", "understudy", "host", *about, *self._arguments]

    def start(self, name: str) -> None:
        home = self.home(name)
        home.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            TOKEN_VARIABLE: self._token,
            "PYTHONUNBUFFERED": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with open(home / "host.log", "ab") as log:
            process = subprocess.Popen(
                self.command(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.processes[name] = psutil.Process(process.pid)

    def adopt(self, pids: dict[str, int]) -> None:
        """Hosts of an earlier run that still live."""
        for name, pid in pids.items():
            try:
                process = psutil.Process(pid)
                if "understudy" in process.cmdline() and name in process.cmdline():
                    self.processes[name] = process
            except psutil.Error:
                continue

    def find(self, name: str) -> bool:
        """Adopt a process of this host that nobody has told of: one that an earlier run started just before its end."""
        for process in psutil.process_iter():
            try:
                arguments = process.cmdline()
                if "understudy" not in arguments or "--folder" not in arguments[:-1]:
                    continue
                folder = Path(process.cwd(), arguments[arguments.index("--folder") + 1])
                if folder.resolve() == self.home(name).resolve() and _lives(process):
                    self.processes[name] = process
                    return True
            except psutil.Error:
                continue
        return False

    def signal(self, name: str, number: signal.Signals) -> float:
        return signal_tree(self.processes[name], number)

    def alive(self) -> list[str]:
        return [n for n, p in self.processes.items() if _lives(p)]

    def end(self, timeout_s: float = 3.0) -> None:
        """Wait for hosts that were told to exit; end what is left."""
        victims: list[psutil.Process] = []
        for process in self.processes.values():
            try:
                victims += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
        _, left = psutil.wait_procs(victims, timeout=timeout_s)
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=5)
        self.processes.clear()


class Reviver:
    """Starts hosts that died again, until ``end``."""

    def __init__(self, hosts: LocalHosts, say: Callable[..., Any]) -> None:
        self._hosts, self._say = hosts, say
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def watch(self, known: Iterable[str] = ()) -> None:
        """Watch every host that has a process, and those ``known`` from an earlier run that were started here: some of
        them may have died while nobody watched."""
        local = [name for name in known if self._hosts.home(name).is_dir()]
        for name in dict.fromkeys([*self._hosts.processes, *local]):
            threading.Thread(target=self._keep_alive, args=(name,), name=f"revive {name}", daemon=True).start()

    def _keep_alive(self, name: str) -> None:
        deaths: deque[float] = deque(maxlen=DEATHS_MAX)
        while True:
            self._wait_for_death(name)
            deaths.append(time.monotonic())
            if self._ended.is_set():
                return
            if len(deaths) == DEATHS_MAX and deaths[-1] - deaths[0] < DEATHS_WITHIN_S:
                log = self._hosts.home(name) / "host.log"
                text = f"{name} died {DEATHS_MAX} times in {deaths[-1] - deaths[0]:.0f} s and is not started again"
                self._say("given-up", f"{text}; see {log}", host=name)
                return
            if self._ended.wait(CALM_S):
                return
            with self._lock:
                if self._ended.is_set():
                    return
                if self._hosts.find(name):
                    deaths.pop()
                    continue
                self._say("restarting", f"{name} is started again", host=name)
                self._hosts.start(name)

    def _wait_for_death(self, name: str) -> None:
        """At once for a host without a process. One that is nobody's child may stay behind as a zombie."""
        process = self._hosts.processes.get(name)
        while process is not None and _lives(process):
            try:
                process.wait(timeout=1.0)
            except psutil.TimeoutExpired:
                continue
            except psutil.Error:
                return

    def end(self) -> None:
        with self._lock:
            self._ended.set()


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def signal_tree(process: psutil.Process, number: signal.Signals) -> float:
    """Signal a host and everything below it, as when a machine dies or freezes. Returns the instant."""
    victims = [process, *process.children(recursive=True)]
    at = time.time()
    for victim in victims:
        try:
            victim.send_signal(number)
        except psutil.NoSuchProcess:
            continue
    return at


def token_of(folder: Path) -> str:
    """The job's token, made on first use and readable by the owner only."""
    path = folder / "token"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(24))
    return path.read_text().strip()


def coordinator_of(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / "coordinator.json").read_text())["address"])
    except (OSError, ValueError, KeyError):
        return None
