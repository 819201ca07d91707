"""A chain of three operators, the last with state: what `make bench-operators` measures."""

import os

import pyarrow as pa
import pyarrow.compute as pc

import understudy as us

FOLDER = os.environ.get("OPERATORS_ROWS")
FLOOD = int(os.environ.get("OPERATORS_FLOOD", "0"))
LAST = os.environ.get("OPERATORS_LAST", "h2")
SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.int64())])

job = us.Job("operators", epoch=os.environ.get("OPERATORS_EPOCH", "10ms"), ha=us.PassiveStandby(every="100ms"))
if FOLDER:
    source = us.sources.folder(FOLDER, schema=SCHEMA)
else:
    source = us.sources.rate(rows_per_second=None if FLOOD else 1000, keys=20, rows_per_epoch=FLOOD or None)
rows = job.source("rows", source, host="h1", standbys=["h2"])


@job.operator(rows, schema="id long, key long", stateless=True, host="h2", standbys=["h1"])
class Named:
    def process(self, rows):
        return rows.rename_columns({"road": "key"}) if "road" in rows.column_names else rows


@job.operator(Named, schema="id long, key long, twice long", stateless=True, host="h1", standbys=["h2"])
class Doubled:
    def process(self, rows):
        return rows.append_column("twice", pc.multiply(rows["key"], 2))


@job.operator(Doubled, schema="key long, rows long, newest long", host=LAST, standbys=["h2" if LAST == "h3" else "h1"])
class Counts:
    """Rows per key, and the newest of them."""

    def __init__(self):
        self.seen = pa.table({"key": pa.array([], pa.int64()), "rows": pa.array([], pa.int64())})

    def process(self, rows):
        found = rows.group_by("key").aggregate([("id", "count"), ("id", "max")])
        both = pa.concat_tables([self.seen, found.select(["key", "id_count"]).rename_columns(["key", "rows"])])
        self.seen = both.group_by("key").aggregate([("rows", "sum")]).rename_columns(["key", "rows"])
        return found.join(self.seen, "key").select(["key", "rows", "id_max"]).rename_columns(["key", "rows", "newest"])


job.sink(Counts, us.sinks.parquet(os.environ.get("OPERATORS_OUT", "out/operators")), name="counts")
