"""Commands of `understudy`, each in a process of its own that is forked from one which has imported everything: they
begin at once, instead of after a second."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

TIMEOUT_S = 60


class Commands:
    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def run(self, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """``understudy`` with these arguments, in ``folder``."""
        assert self._server.stdin is not None and self._server.stdout is not None
        print(json.dumps([str(folder), arguments, environment]), file=self._server.stdin, flush=True)
        code, output, errors = json.loads(self._server.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, output, errors)


@contextmanager
def commands() -> Iterator[Commands]:
    environment = {**os.environ, "COLUMNS": "200"}
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    with server:  # ends when there are no more requests
        yield Commands(server)


def _carry_out(folder: str, arguments: list[str], environment: dict[str, str], outputs: list[Any]) -> NoReturn:
    """In the forked process."""
    from understudy.cli import main

    signal.alarm(TIMEOUT_S)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, output in enumerate(outputs, start=1):
        os.dup2(output.fileno(), number)
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv = ["understudy", *arguments]
    main()
    raise AssertionError("it exits")


def _answer(folder: str, arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        pid = os.fork()
        if pid == 0:
            try:
                _carry_out(folder, arguments, environment, [output, errors])
            finally:
                os._exit(99)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        texts = [(file.seek(0), file.read())[1] for file in (output, errors)]
    return code, texts[0], texts[1]


def _serve() -> None:
    for name in ("cli", "live", "outlook", "runtime.host", "runtime.session"):
        importlib.import_module(f"understudy.{name}")
    for line in sys.stdin:
        print(json.dumps(_answer(*json.loads(line))), flush=True)


if __name__ == "__main__":
    _serve()
