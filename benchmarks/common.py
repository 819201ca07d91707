"""What the benchmarks share: where results go and what they say about the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from rich.console import Console

HERE = Path(__file__).parent
JOBS = HERE / "jobs"
console = Console()


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
