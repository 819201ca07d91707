"""Whose failure is it? Told from the text of an exception: that of the user's code, of Understudy itself, or of the
machine.

Such a text is what Spark says of a query that ended, or a traceback. Tracebacks are nested in it: one of the process
that ran the batch, and in its error one of the worker that ran the user's function. The innermost one that tells
counts, and of it the innermost frame that is in nobody's library. A failure without one is judged by what Spark calls
it.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import Path

import understudy
from understudy.core.failover import CODE, MACHINE, UNDERSTUDY
from understudy.errors import JobError, SetupError

HOME = str(Path(understudy.__file__).parent)
_GUESTS = ("examples/", "lab/")
"""Below our home, but jobs."""
_DOORS = ("sources.py", "sinks.py")
"""Ours, but at work on the user's files: what fails there is mostly in the files."""
_BUGS = ("AssertionError", "AttributeError", "IndexError", "KeyError", "NameError", "UnboundLocalError")
_LIBRARY = re.compile(r"site-packages/|dist-packages/|/lib/python\d|pyspark\.zip|^<frozen|\.(pyx|pxi)$")

_MACHINE = re.compile(
    r"Python worker failed to connect back|Python worker exited unexpectedly|PYTHON_WORKER_EXITED"
    r"|OutOfMemoryError|^MemoryError|Cannot allocate memory|unable to create native thread|GC overhead limit exceeded"
    r"|No space left on device|Disk quota exceeded|File too large|Read-only file system"
    r"|Input/output error|Too many open files|Permission denied|Mkdirs failed to create"
    r"|SparkContext was shut down|Answer from Java side is empty|Py4JNetworkError|does not exist in the JVM"
    r"|\bCheckpointDamaged\b"
    r"|java\.net\.(ConnectException|UnknownHostException|NoRouteToHostException|SocketTimeoutException)"
)
_OS_ERRORS = (
    "OSError", "PermissionError", "FileNotFoundError", "FileExistsError", "IsADirectoryError", "NotADirectoryError"
)  # fmt: skip
_JVM_GONE = ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")
_SPARKS_OWN = ("pyspark.errors.", "py4j.")
CLASS = re.compile(r"\[([A-Z][A-Z0-9]*_[A-Z0-9_.]+)\]")
"""What Spark calls an error: ``[DIVIDE_BY_ZERO]``."""
WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "PYTHON_EXCEPTION")
"""Of them those that only say that something else failed."""
_FROM_STATE = re.compile(r"CANNOT_LOAD_STATE_STORE|CANNOT_WRITE_STATE_STORE|STATE_STORE_|BATCH_METADATA|CHECKPOINT")
_CHANGED_CODE = re.compile(r"SCHEMA_NOT_COMPATIBLE|SCHEMA_.*MISMATCH|NUM_PARTITIONS|INCOMPATIBLE|STREAMING_SOURCE")
_OF_THE_DOOR = re.compile(r"PYTHON_(STREAMING_)?DATA_SOURCE")
_JAVA = re.compile(r"\b((?:[a-z][\w]*\.)+[A-Z][\w$]*(?:Exception|Error))\b")
_SPARKS_JAVA = ("java.", "javax.", "scala.", "org.apache.spark.", "org.apache.hadoop.", "org.rocksdb.")
_PLAIN = re.compile(r"^the query ended by itself|pyarrow\._flight|\bFlight\w*Error\b|\bgRPC\b")


@dataclass(frozen=True)
class _Trace:
    """One traceback: the files of its frames, outermost first, and its error's line."""

    files: tuple[str, ...]
    error: str

    def whose(self, home: str) -> str | None:
        """None where it does not tell."""
        guests = tuple(f"{home}/{guest}" for guest in _GUESTS)
        ours = [f for f in self.files if f.startswith(f"{home}/") and not f.startswith(guests)]
        known = [f for f in self.files if f in ours or not _LIBRARY.search(f)]
        if known and known[-1] not in ours:
            return CODE
        if self.error.startswith(_SPARKS_OWN):
            return None  # Spark failed while somebody called it
        if not known:  # in a worker, under the user's function or our reader
            return UNDERSTUDY if any("datasource" in f or "data_source" in f for f in self.files) else CODE
        if self.error.startswith(_JVM_GONE):  # hosts speak Flight to each other, which has errors of its own
            return MACHINE
        if known[-1].endswith(_DOORS):
            bug = self.files[-1] == known[-1] and self.error.startswith(_BUGS)
            return MACHINE if self.error.startswith(_OS_ERRORS) else UNDERSTUDY if bug else CODE
        return UNDERSTUDY


def whose(text: str, home: str = HOME) -> str:
    """``code``, ``understudy`` or ``machine``. ``home``: where Understudy's own files are."""
    text = text.partition("=== Streaming Query ===")[0]
    said = [line for line in text.splitlines() if line[:1].strip()]  # frames and their lines of code are indented
    if any(_MACHINE.search(line) for line in said) or text.startswith("[Errno "):
        return MACHINE
    for trace in reversed(_traces(text)):
        found = trace.whose(home)
        if found is not None:
            return found
    return _spark("\n".join(said))


def of(error: BaseException) -> str:
    """The same for an exception that was just caught."""
    if isinstance(error, JobError):
        return CODE
    if isinstance(error, SetupError):
        return MACHINE
    return whose("".join(traceback.format_exception(error)))


def _traces(text: str) -> list[_Trace]:
    """All tracebacks but those of errors that came of an earlier one: that one is the cause."""
    before, *parts = text.split("Traceback (most recent call last):")
    found = []
    for part in parts:
        consequence = before.rstrip().endswith((
            "During handling of the above exception, another exception occurred:",
            "The above exception was the direct cause of the following exception:",
        ))
        before = part
        if consequence:
            continue
        files = re.findall(r'^\s+File "([^"]+)", line', part, flags=re.MULTILINE)
        error = next((line for line in part.splitlines() if line[:1].strip()), "")
        found.append(_Trace(tuple(files), error))
    return found


def _spark(said: str) -> str:
    """Without a word from Python: by Spark's name for it, else by Java's."""
    classes = [c for c in CLASS.findall(said) if c not in WRAPPERS]
    if classes:
        ours = any((_FROM_STATE.search(c) and not _CHANGED_CODE.search(c)) or _OF_THE_DOOR.search(c) for c in classes)
        return UNDERSTUDY if ours else CODE
    thrown = _JAVA.findall(said)
    if thrown:
        return UNDERSTUDY if all(name.startswith(_SPARKS_JAVA) for name in thrown) else CODE
    return UNDERSTUDY if _PLAIN.search(said) else CODE
