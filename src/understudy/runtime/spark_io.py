"""The door between a host and its Spark: a Python data source that hands epochs to a streaming query.

``latestOffset`` blocks in the host until the next epoch may be processed, so a query never polls, several inputs
agree on the epoch without more protocol, and a pause is simply an answer that does not come. The constructor
blocks too while the stage is an armed standby: Spark reads the checkpoint folder only after it has returned.

Spark runs this in processes of its own (a planner, a source runner per query, workers), so only plain values
travel in these objects and each process keeps one connection. Import as little as possible here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from understudy.core.numbers import Epoch
    from understudy.runtime.wire import Peer

TOKEN_VARIABLE = "UNDERSTUDY_TOKEN"
TLS_VARIABLE = "UNDERSTUDY_TLS"
_ONE_WAIT_S = 3600.0
_INSIST_S = 60.0
ALONG_BYTES = 4 << 20
"""Epochs up to this size go along with their partition, through the driver's memory."""

T = TypeVar("T")

_peers: dict[str, Peer] = {}


def _peer(address: str) -> Peer:
    if address not in _peers:
        from understudy.runtime.wire import Peer, Tls

        tls = os.environ.get(TLS_VARIABLE)
        _peers[address] = Peer(address, os.environ[TOKEN_VARIABLE], tls=Tls(*json.loads(tls)) if tls else None)
    return _peers[address]


def _insist(ask: Callable[[], T]) -> T:
    """Ask the host again when it could not be reached. It lives as long as this process does, so it is only busy; and
    whatever is asked here may be asked twice."""
    from pyarrow.flight import FlightUnavailableError

    deadline = time.monotonic() + _INSIST_S
    while True:
        try:
            return ask()
        except FlightUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Stopped(Exception):
    pass


class EpochPartition(InputPartition):
    def __init__(self, session: str, epoch: Epoch, part: int, parts: int) -> None:
        self.session, self.epoch, self.part, self.parts = session, epoch, part, parts


class EpochReader(_SimpleStreamReaderWrapper):
    """Of this private class of PySpark, the same in 4.2 and 4.3, because only of its kind Spark takes the rows of an
    epoch along with its partition, if they are few: then no Python worker has to read them."""

    simple_reader = None  # type: ignore[assignment]

    def __init__(self, host: str, stage: str, input: str, schema: StructType) -> None:
        self._host, self._stage, self._input, self._schema = host, stage, input, schema
        self._declared: pa.Schema | None = None
        """The schema in Arrow, once it was needed."""
        self._along: tuple[Epoch, pa.Table] | None = None
        """The epoch that was asked for last, and its rows, if they are few."""
        self._session: str = self._ask("Arm")
        """Whom this reader reads for: the running stage, or one rehearsal of it. Spark keeps the pickled reader that
        it uses for ``read`` from query to query, so there the partition's session counts."""

    def initialOffset(self) -> dict[str, Any]:
        return {"epoch": self._ask("Initial", session=self._session)}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return {"epoch": self._ask("Grant", session=self._session, after=start["epoch"])}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[EpochPartition]:
        epoch = end["epoch"]
        if epoch <= start["epoch"]:
            return []
        found = self._ask("Parts", session=self._session, epoch=epoch)
        parts = found.parts
        planned = [EpochPartition(self._session, epoch, part, parts) for part in range(parts)]
        if parts == 1 and found.bytes <= ALONG_BYTES and (self._along is None or self._along[0] != epoch):
            self._along = (epoch, self._read(planned[0]))
        return planned

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any] | None:
        """Rows that go along with the partition of the epoch up to ``end``."""
        if end["epoch"] <= start["epoch"] or self._along is None or self._along[0] != end["epoch"]:
            return None
        batches: list[Any] = self._along[1].to_batches()
        return iter(batches)

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from self._read(partition).to_batches()

    def _read(self, partition: InputPartition) -> pa.Table:
        assert isinstance(partition, EpochPartition)
        from understudy.runtime import arrow_types
        from understudy.runtime.messages import Input

        of = (partition.session, partition.epoch, partition.part, partition.parts)
        request = Input(self._stage, self._input, *of)
        table = _insist(lambda: _peer(self._host).get(request, timeout_s=120))[1]
        if self._declared is None:
            self._declared = arrow_types.as_declared(self._schema)
        return arrow_types.taken_back(table, self._declared)

    def _ask(self, kind: str, **about: Any) -> Any:
        from understudy.runtime import messages

        call = getattr(messages, kind)(stage=self._stage, input=self._input, **about)
        reply = _insist(lambda: _peer(self._host).call(call, timeout_s=_ONE_WAIT_S))
        if reply.refused:
            raise Stopped(reply.refused)
        return reply.answer


class EpochSource(DataSource):
    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.options["schema"]))

    def streamReader(self, schema: StructType) -> EpochReader:
        return EpochReader(self.options["host"], self.options["stage"], self.options["input"], schema)


def source_called(name: str) -> type[EpochSource]:
    """The data source under a name to register it by."""
    return type("EpochSource", (EpochSource,), {"name": classmethod(lambda cls: name)})
