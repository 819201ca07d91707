"""State that is open before its query runs, so that the first batch after a takeover costs what a usual one does.

Spark opens a state in the first task that needs it. A rehearsal has shown which stores a stage has; so the same stores
are opened for the query at the door, and follow what is pasted (``jvm/OpenedState.java``). Wherever that is not
possible, Spark opens them itself, later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Stores:
    """The stores of one stage's state, as a query that runs has them."""

    def __init__(self, spark: SparkSession, stage: str, rehearsed: StreamingQuery) -> None:
        self._stage = stage
        self._opener: Any = None
        try:
            opener = spark._jvm.understudy.OpenedState(rehearsed._jsq)  # type: ignore[union-attr]
            self._opener = opener if opener.size() else None
        except Py4JError as error:
            self._give_up(error)

    def open(self, armed: StreamingQuery, batch: int) -> None:
        """Open the state of a query at the door, or take it on, to where it goes on after ``batch``."""
        if self._opener is not None:
            try:
                self._opener.open(armed._jsq, batch + 1)
            except Py4JError as error:
                self.close(armed)
                self._give_up(error)

    def close(self, armed: StreamingQuery) -> None:
        """The files of a query at the door have changed: it shall open them itself."""
        if self._opener is not None:
            try:
                self._opener.close(armed._jsq)
            except Py4JError as error:
                self._give_up(error)

    def _give_up(self, error: Py4JError) -> None:
        cause = str(getattr(error, "java_exception", None) or error).splitlines()[0]
        print(f"{self._stage}: its state is not opened ahead of a takeover: {cause}", flush=True)
        self._opener = None
