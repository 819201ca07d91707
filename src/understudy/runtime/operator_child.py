"""The process that an operator's object lives in: ``python -m understudy.runtime.operator_child CONNECTION LIFELINE``.

It answers its host over one connection, a request at a time. The lifeline is a pipe that nobody writes to: when the
host is gone it ends, and so does this process, whatever the user's code is doing.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import FunctionType, ModuleType
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from understudy.core.reach import Span
from understudy.runtime.operator_wire import receive_tables, send_tables
from understudy.windowed.base import StateDamaged, Windowed

REHEARSALS = 3


class Unfit(Exception):
    """The user's class did not throw, but what it gave cannot be used."""


class Child:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._make: Callable[[], Any] = object
        self._object: Any = None
        self._schema: pa.Schema | None = None
        self._rebuilt = False
        """The object's state can be rebuilt by replay."""

    def serve(self) -> None:
        while True:
            try:
                what, about = self._connection.recv()
            except (EOFError, OSError):
                return
            try:
                tables = receive_tables(self._connection, about) if what in ("process", "rehearse") else []
                answer = getattr(self, f"_on_{what}")(*(tables or about))
            except Unfit as error:
                self._connection.send(("unfit", str(error)))
                continue
            except StateDamaged as error:
                self._connection.send(("damaged", str(error)))
                continue
            except Exception:
                self._connection.send(("threw", traceback.format_exc()))
                continue
            if isinstance(answer, pa.Table):
                self._connection.send(("table", self._spans()))
                send_tables(self._connection, [answer])
            else:
                self._connection.send(("done", answer))

    def _on_make(self, pickled: bytes, schema: bytes) -> None:
        self._schema = pa.ipc.read_schema(pa.py_buffer(schema))
        self._make = pickle.loads(pickled)
        if isinstance(self._make, type):
            stand_in_for_module_of(self._make)
        self._object = self._make()
        self._rebuilt = isinstance(self._object, Windowed) and not self._object.judged().refusal

    def _on_process(self, *tables: pa.Table) -> pa.Table:
        assert self._schema is not None
        try:
            made = self._object.process(*tables)
        except (ValueError, OverflowError) as error:
            if not isinstance(self._object, Windowed):
                raise
            traceback.print_exc()
            raise Unfit(str(error)) from error  # of one that comes with it: its input is the job's
        return fitted(made, self._schema, type(self._object).__name__)

    def _spans(self) -> list[Span] | None:
        """Which rows of its input the object's state is made of, where it can tell."""
        return self._object.spans() if self._rebuilt else None

    def _on_spans(self) -> list[Span] | None:
        return self._spans()

    def _on_rehearse(self, *tables: pa.Table) -> None:
        """With another object, which nobody will hear of again: what is called first is slow, imports for example."""
        other = self._make()
        for _ in range(REHEARSALS):
            other.process(*tables)

    def _on_save(self) -> bytes | dict[str, bytes | None]:
        if isinstance(self._object, Windowed):
            return self._object.save(time.time())
        if not hasattr(self._object, "save"):
            return self._pickled()
        saved = self._object.save()
        if not isinstance(saved, (bytes, bytearray, memoryview)):
            raise Unfit(f"{type(self._object).__name__}.save returned {type(saved).__name__}, not bytes")
        return bytes(saved)

    def _pickled(self) -> bytes:
        try:
            found: bytes = cloudpickle.dumps(self._object.__getstate__())  # type: ignore[no-untyped-call]
            return found
        except Exception as error:
            raise Unfit(
                f"{type(self._object).__name__} cannot be saved: {error}; write methods save and restore, or keep what "
                "cannot be pickled out of its attributes"
            ) from error

    def _on_restore(self, saved: bytes | dict[str, bytes | None]) -> str | None:
        """Returns what is to be told of it, if anything."""
        if isinstance(saved, dict):
            restored = self._object.restore(saved)
            whole = not (restored.damaged or restored.fresh or restored.parts)
            if not whole and self._object.needs_all_input:  # nor can it do without what it has had of it
                raise StateDamaged(restored.words)
            return None if whole else restored.words
        self._restore(saved)
        return None

    def _on_missed(self, rows: list[tuple[str, int]], epochs: int) -> None:
        if isinstance(self._object, Windowed):
            self._object.missed([count for _, count in rows])
        elif hasattr(self._object, "missed"):
            self._object.missed(dict(rows), epochs)

    def _restore(self, saved: bytes) -> None:
        if hasattr(self._object, "restore"):
            self._object.restore(saved)
            return
        state = pickle.loads(saved)
        if hasattr(self._object, "__setstate__"):
            self._object.__setstate__(state)
            return
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        getattr(self._object, "__dict__", {}).clear()  # an attribute that is gone by then must not stay
        for name, value in {**(attributes or {}), **(slots or {})}.items():
            setattr(self._object, name, value)


class StandIn(ModuleType):
    """The job file's module, which cannot be imported here, as far as its names came along with a class."""

    def __init__(self, name: str, names: dict[str, Any]) -> None:
        super().__init__(name)
        self._names = names

    def __getattr__(self, name: str) -> Any:
        try:
            return self._names[name]
        except KeyError:
            raise AttributeError(f"{name} of the job file is not known here") from None


def stand_in_for_module_of(cls: type) -> None:
    """Let objects of the job file's classes be pickled by name, as in any script: restored elsewhere, they are of the
    class that the code there uses. Pickled whole, each state would bring a class of its own."""
    if cls.__module__ not in sys.modules:
        methods = (value for value in vars(cls).values() if isinstance(value, FunctionType))
        shared = next((method.__globals__ for method in methods), {})  # one for all that came of that module
        sys.modules[cls.__module__] = StandIn(cls.__module__, shared)


def fitted(made: Any, schema: pa.Schema, name: str) -> pa.Table:
    """What ``process`` returned as a table of the schema that the operator was declared with. Raises Unfit."""
    if made is None:
        return schema.empty_table()
    if isinstance(made, pa.RecordBatch):
        made = pa.Table.from_batches([made])
    elif type(made).__module__.partition(".")[0] == "pandas":
        made = pa.Table.from_pandas(made, preserve_index=False)
    if not isinstance(made, pa.Table):
        raise Unfit(f"{name}.process returned {type(made).__name__}; return an Arrow table, or None for no rows")
    missing = [field for field in schema.names if field not in made.column_names]
    if missing:
        raise Unfit(f"{name}.process returned columns {made.column_names}; its schema has {missing} too")
    twice = [field for field in schema.names if made.column_names.count(field) > 1]
    if twice:
        raise Unfit(f"{name}.process returned two columns named {twice[0]!r}; rename one, or leave it out")
    try:
        return made.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise Unfit(f"{name}.process returned rows that do not fit its schema: {error}") from error


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to deal with
    connection, lifeline = int(sys.argv[1]), int(sys.argv[2])

    def end_with_host() -> None:
        os.read(lifeline, 1)
        os._exit(0)

    def leave_alone() -> None:
        """In a process that the user's code forks: the host must see this one's end, and nothing must outlive both."""
        os.close(connection)
        os.close(lifeline)

    os.register_at_fork(after_in_child=leave_alone)
    threading.Thread(target=end_with_host, daemon=True).start()
    Child(Connection(connection)).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
