"""How a host and an operator's process pass tables to each other."""

from __future__ import annotations

from collections.abc import Iterable
from multiprocessing.connection import Connection

import pyarrow as pa


def send_tables(connection: Connection, tables: Iterable[pa.Table]) -> None:
    for table in tables:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        connection.send_bytes(out.getvalue())


def receive_tables(connection: Connection, count: int) -> list[pa.Table]:
    return [pa.ipc.open_stream(connection.recv_bytes()).read_all() for _ in range(count)]
