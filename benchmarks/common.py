"""What the benchmarks share: what a run has cost, where results go, and what they say about the machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from understudy.drill import Drill

HERE = Path(__file__).parent
JOBS = HERE / "jobs"
BEFORE = "8daaea5"
"""The commit that batches and arming are compared with: the one before any time was taken out of them."""
console = Console()


def code_of(commit: str, work: Path) -> Path:
    """The package as it was at a commit."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", str(HERE.parent), "archive", commit, "src"], capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(work)], input=archive, check=True)
    return (work / "src").resolve()


def save(name: str, result: dict[str, Any] | list[dict[str, Any]], out: Path) -> None:
    """Write ``out/NAME.json`` for scripts and append the run to ``out/history.jsonl``."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(result, indent=2))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    line = {
        "benchmark": name,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit.stdout.strip(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "kind": "measured",
        **(result if isinstance(result, dict) else {"results": result}),
    }
    with open(out / "history.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def window(drill: Drill, window_s: float) -> tuple[Counter[str], float]:
    """What a job takes while all is well: what was spent, as ``_spent`` counts it, and processor seconds per epoch."""
    before, busy_s, epoch = _spent(drill), _processor_s(drill), drill.newest()
    drill.coordinator.wait(window_s)
    costs, busy_s, epochs = _spent(drill), _processor_s(drill) - busy_s, drill.newest() - epoch
    costs.subtract(before)
    return costs, busy_s / epochs


def _processor_s(drill: Drill) -> float:
    """Processor time of all hosts and everything below them so far."""
    total = 0.0
    for pid in drill.coordinator.pids.values():
        for process in (host := psutil.Process(pid)), *host.children(recursive=True):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _spent(drill: Drill) -> Counter[str]:
    """Bytes by category and what checkpoints have cost, of all hosts together."""
    status = drill.coordinator.status()
    counts: Counter[str] = Counter(status["bytes"])
    for host in status["hosts"].values():
        for costs in host.get("checkpoints", {}).values():
            counts.update({f"checkpoint {what}": value for what, value in costs.items()})
    return counts
