"""An operator's object, in a process of its own beside the host."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.core.numbers import Epoch
from understudy.core.reach import Span
from understudy.cut_times import without_time
from understudy.errors import JobError
from understudy.operators import Operator
from understudy.runtime.operator_saves import State
from understudy.runtime.operator_wire import receive_tables, send_tables


class Threw(Exception):
    """The user's code threw in its process. The text is the traceback there."""


class Unfit(Threw):
    """It did not throw, but what it gave cannot be used. The text says why."""


class StateDamaged(Threw):
    """Nor did the user's code throw: of the state that it was to take up, parts are missing or damaged that it cannot
    do without. The text says which."""


class Died(Exception):
    """The process is gone."""


class OperatorProcess:
    """Safe to use from several threads: one request is answered at a time."""

    def __init__(self, name: str, operator: Operator, imports: Path) -> None:
        """``imports``: a folder that the user's code may import from. Returns before the object is made; what is asked
        first waits for it."""
        self.name = name
        self.version: Epoch | None = None
        """The version that the object's state is of, as long as nobody has it process anything."""
        self.spans: list[Span] | None = None
        """Which rows of its input the object's state is made of, after the newest epoch; None where it cannot tell."""
        self._stateless, self._timed = operator.stateless, operator.needs_cut_times
        self._lock = threading.Lock()
        self._ended, self._ending = False, threading.Lock()
        self._about: tuple[bytes, bytes] | None = (pickled(name, operator), operator.schema.serialize().to_pybytes())
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        path = os.pathsep.join(filter(None, [str(imports), os.environ.get("PYTHONPATH")]))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "understudy.runtime.operator_child", str(theirs.fileno()), str(lifeline)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), lifeline),
                env={**os.environ, "PYTHONPATH": path},
            )
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self._socket, self._connection = ours, Connection(os.dup(ours.fileno()))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return not self._ended and self._process.poll() is None

    def process(self, tables: list[pa.Table]) -> pa.Table:
        with self._lock:
            self._make()
            self._send(("process", len(tables)), tables)
            return self._answer()

    def rehearse(self, tables: list[pa.Table]) -> None:
        """Have another object of the same class process a few rows, for nothing."""
        with self._lock:
            self._make()
            self._send(("rehearse", len(tables)), tables)
            self._answer()

    def save(self) -> State:
        """Nothing, of an object that keeps nothing."""
        saved: State = b"" if self._stateless else self._ask("save")
        return saved

    def restore(self, saved: State) -> str | None:
        """Returns what is to be told of it, if anything."""
        told: str | None = None if self._stateless else self._ask("restore", saved)
        return told

    def missed(self, rows: list[tuple[str, int]], epochs: int) -> None:
        """So many rows of each input are not in the state that was restored."""
        if not self._stateless:
            self._ask("missed", rows, epochs)

    def spans_now(self) -> list[Span] | None:
        """As ``spans``, before the first epoch."""
        found: list[Span] | None = self._ask("spans")
        return found

    def make(self) -> None:
        """Wait until the object is there."""
        with self._lock:
            self._make()

    def _ask(self, what: str, *about: Any) -> Any:
        with self._lock:
            self._make()
            self._send((what, about))
            return self._answer()

    def _make(self) -> None:
        about, self._about = self._about, None
        if about is not None:
            self._send(("make", about))
            self._answer()

    def _send(self, request: tuple[str, Any], tables: list[pa.Table] | None = None) -> None:
        try:
            self._connection.send(request)
            send_tables(self._connection, [t if self._timed else without_time(t) for t in tables or ()])
        except OSError:
            raise self._died() from None

    def _answer(self) -> Any:
        try:
            kind, answer = self._connection.recv()
            if kind == "table":
                self.spans = answer
                return receive_tables(self._connection, 1)[0]
        except (EOFError, OSError):
            raise self._died() from None
        if kind == "damaged":
            raise StateDamaged(f"the state of operator {self.name!r} is damaged: {answer}")
        if kind in ("threw", "unfit"):
            raise (Threw if kind == "threw" else Unfit)(answer)
        return answer

    def _died(self) -> Died:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return Died(f"the process of operator {self.name!r} does not answer")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended by itself, with exit code {code}"
        return Died(f"the process of operator {self.name!r} {how}")

    def end(self) -> None:
        """At once, whatever it is doing."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
        self._process.kill()
        self._process.wait()
        os.close(self._lifeline)
        with suppress(OSError):  # whoever waits for an answer gets none, also where the object has left children behind
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            self._connection.close()


def pickled(name: str, operator: Operator) -> bytes:
    """The operator's class as it travels: by value, as Spark's functions do. Raises JobError."""
    from pyspark import cloudpickle

    try:
        found: bytes = cloudpickle.dumps(operator.make)  # type: ignore[no-untyped-call]
        return found
    except Exception as error:
        raise JobError(
            f"operator {name!r} cannot be sent to its process ({type(error).__name__}: {error}); its class must not "
            "use what belongs to one process, such as a Spark session, a lock or an open file of the job file's"
        ) from None
