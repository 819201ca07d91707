"""State that is open before its query runs, so that the first batch after a takeover costs what a usual one does.

Spark opens a state in the first task that needs it. A rehearsal has shown which stores a stage has; so the same stores
are opened for the query at the door, and follow what is pasted (``jvm/OpenedState.java``). Wherever that is not
possible, Spark opens them itself, later.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.spark_files import Batch, settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FAILURES = 3
"""So many in a row, and it is not tried again."""


class Stores:
    """The stores of one stage's state, as a query that runs on ``folder`` has them."""

    def __init__(self, spark: SparkSession, stage: str, rehearsed: StreamingQuery, folder: Path) -> None:
        self._stage, self._failures = stage, 0
        self.settings = settings_of(folder)
        """What Spark has written down for the query: with others it might encode its state otherwise."""
        self._opener: Any = None
        try:
            opener = spark._jvm.understudy.OpenedState(rehearsed._jsq)  # type: ignore[union-attr]
            self._opener = opener if opener.size() else None
        except Py4JError as error:
            self._complain(error)

    def open(self, armed: StreamingQuery, version: tuple[Batch, list[str]]) -> bool:
        """Open the state of a query at the door, or take it on, to a ``CheckpointStore.version``. Whether it is open
        now."""
        batch, files = version
        if self._opener is not None and self._failures < FAILURES:
            try:
                self._opener.open(armed._jsq, batch + 1, "\n".join(files))
                self._failures = 0
                return True
            except Py4JError as error:
                self._complain(error)
                self.close(armed)
        return False

    def let_go(self, armed: StreamingQuery) -> None:
        """The query is about to run: what is being opened for it will be, and nothing else."""
        self._tell("letGo", armed)

    def close(self, armed: StreamingQuery) -> None:
        """Of what was opened for a query nothing counts any more: it shall open its state itself."""
        self._tell("close", armed)

    def _tell(self, what: str, armed: StreamingQuery) -> None:
        if self._opener is not None:
            try:
                getattr(self._opener, what)(armed._jsq)
            except Py4JError as error:
                self._complain(error)

    def suit(self, store: CheckpointStore) -> bool:
        return self.settings == settings_of(store.state)

    def _complain(self, error: Py4JError) -> None:
        self._failures += 1
        cause = str(getattr(error, "java_exception", None) or error).splitlines()[0]
        print(f"{self._stage}: its state is not opened ahead of a takeover: {cause}", flush=True)
