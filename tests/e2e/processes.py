"""The command line in processes of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """`understudy` with these arguments, as from a terminal: Ctrl-C reaches it, whatever the tests were started by."""
    return subprocess.Popen(
        [sys.executable, "-m", "understudy", *arguments], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> None:
    """Leave nothing of it behind, however the test went."""
    if process.poll() is None:
        for one in psutil.Process(process.pid).children(recursive=True):
            one.kill()
        process.kill()
    process.communicate()
