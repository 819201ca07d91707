"""The terminal view of a running job: hosts, units, epochs, rows per second, and the story so far."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from understudy import telling
from understudy.runtime.coordinator import Coordinator
from understudy.runtime.messages import Beat

_STYLES = {
    "host-lost": "bold red",
    "killed": "bold red",
    "paused": "bold yellow",
    "missed": "yellow",
    "failed": "red",
    "doubted": "bold yellow",
    "promoted": "bold green",
    "running": "green",
    "unprotected": "bold yellow",
    "waiting": "bold red",
    "damaged": "bold yellow",
    "late": "bold yellow",
    "lost": "bold yellow",
    "threw": "bold red",
    "restarted": "yellow",
    "fenced": "yellow",
}
_STORY_LINES = 12


class View:
    """``with View(coordinator):`` redraws four times a second on a terminal; elsewhere it prints events as lines."""

    def __init__(self, coordinator: Coordinator, *, title: str, console: Console | None = None) -> None:
        self._coordinator = coordinator
        self._title = title
        self._console = console or Console(stderr=False)
        self._begin = time.time()
        self._rates: dict[str, tuple[float, int, float]] = {}
        self._live: Live | None = None
        self._stop = threading.Event()
        self._printed = 0

    def __enter__(self) -> View:
        if self._console.is_terminal:
            self._live = Live(self._draw(), console=self._console, refresh_per_second=4, transient=False)
            self._live.start()
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._refresh()
        if self._live:
            self._live.stop()

    def _run(self) -> None:
        while not self._stop.wait(0.25):
            self._refresh()

    def _refresh(self) -> None:
        if self._live:
            self._live.update(self._draw())
            return
        with self._coordinator.changed:
            fresh = self._coordinator.events[self._printed :]
            self._printed += len(fresh)
        for event in fresh:
            self._console.print(self._line(event), highlight=False)
        sys.stdout.flush()

    def _line(self, event: dict[str, Any]) -> Text:
        style = _STYLES.get(event["kind"], "")
        return Text(f"{event['t'] - self._begin:7.2f} s  ").append(event["text"], style=style)

    def _draw(self) -> Group:
        coordinator = self._coordinator
        with coordinator.changed:
            plan = dict(coordinator.failover.plan.units)
            alive = set(coordinator.failover.alive)
            hosts = sorted(coordinator.hosts)
            beats = dict(coordinator.watch.beats)
            story = coordinator.events[-_STORY_LINES:]
            standbys = {name: coordinator.standbys(name) for name in plan}
            missing = {h for h in alive if coordinator.watch.evidence.health(h).misses}
        table = Table(title=f"{self._title}  {time.time() - self._begin:5.1f} s", title_justify="left", expand=False)
        for column in ("unit", "runs on", "standby", "generation", "epoch", "rows/s"):
            table.add_column(column, justify="right" if column in ("generation", "epoch", "rows/s") else "left")
        for name, unit in plan.items():
            last = coordinator.topology.units[name].stages[-1]
            beat = beats.get(unit.primary or "")
            produced = beat and beat.produced.get(last)
            exposed = standbys[name].startswith(telling.UNPROTECTED)
            table.add_row(
                name,
                unit.primary or "[red]waiting[/]",
                Text(standbys[name], style="bold yellow" if exposed else ""),
                str(unit.generation),
                "-" if produced is None else str(produced),
                self._rate(unit.primary, beats),
            )
        marks = Text("hosts: ")
        for host in hosts:
            well = "black on yellow" if host in missing else "black on green"
            marks.append(f" {host} ", style=well if host in alive else "white on red").append(" ")
        return Group(table, marks, *(self._line(event) for event in story))

    def _rate(self, host: str | None, beats: dict[str, Beat]) -> str:
        if host is None or host not in beats:
            return "-"
        now, rows = time.monotonic(), beats[host].rows
        then, before, rate = self._rates.get(host, (now, rows, 0.0))
        if now - then >= 1.0:
            rate = max(0.0, (rows - before) / (now - then))
            self._rates[host] = (now, rows, rate)
        elif host not in self._rates:
            self._rates[host] = (now, rows, 0.0)
        return f"{rate:,.0f}"
