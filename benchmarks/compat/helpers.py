"""What several job files share, as users have it beside their jobs."""

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

START = 1_700_000_000
"""Event time of the first row, in seconds since 1970."""


def event_time(rows_per_second: float = 50.0) -> Column:
    """Event time of a row: by its id, as rows come in the order of their ids."""
    return F.timestamp_seconds(START + F.col("id") / rows_per_second)


def late_time(rows_per_second: float = 50.0) -> Column:
    """The same, but every 17th row is half a minute late, and every 13th only by two seconds."""
    late = F.when(F.col("id") % 17 == 0, 30).when(F.col("id") % 13 == 0, 2).otherwise(0)
    return F.timestamp_seconds(START + F.col("id") / rows_per_second - late)


def tidy(text: str | None) -> str:
    """A road's name as people write it, in the one way that we keep it."""
    return " ".join((text or "unknown").strip().lower().split())


class Remembering(StatefulProcessor):
    """Base of processors that count their rows; a subclass says how large a row is."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "rows long, size double")

    def size(self, row) -> float:
        raise NotImplementedError

    def add(self, rows) -> tuple[int, float]:
        count, size = self.total.get() if self.total.exists() else (0, 0.0)
        for row in rows:
            count, size = count + 1, size + self.size(row)
        self.total.update((count, size))
        return count, size

    def close(self) -> None:
        pass
