"""Random jobs for `make soak-kills`, by seed: of operators, which need no JVM, and of queries on Spark."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

POLICIES = {
    "sweeping": 'us.PassiveStandby(every="{every}")',
    "individual": 'us.PassiveStandby("individual", every="{every}")',
    "synchronous": 'us.PassiveStandby("synchronous", every="{every}")',
    "sweeping-2": 'us.PassiveStandby(every="{every}", standbys=2)',
    "active": "us.ActiveStandby()",
    "eager": 'us.ActiveStandby(delivery="eager")',
    "active-2": "us.ActiveStandby(copies=3)",
    "hybrid": 'us.Hybrid(every="{every}")',
    "upstream": "us.UpstreamBackup()",
    "upstream-2": "us.UpstreamBackup(k=2)",
}
WINDOWED = 0.3
"""How many of the operators are those with windows."""

OPERATORS = '''"""Seed {seed}."""
import time
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import understudy as us

job = us.Job("soak-{seed}", epoch={epoch!r})


class Totals:
    """Remembers everything: a lost, repeated or altered epoch shows for ever."""

    def __init__(self):
        self.totals, self.epochs = {{}}, 0

    def process(self, *inputs):
        self.epochs += 1
        time.sleep({work_s})
        for number, rows in enumerate(inputs):
            sums = rows.group_by("road").aggregate([("speed", "sum"), ("id", "max")])
            for road, speed, newest in zip(*(sums[c].to_pylist() for c in ("road", "speed_sum", "id_max"))):
                before, mark = self.totals.get(road, (0.0, 0))
                self.totals[road] = (before + speed, (mark * 31 + newest + number) % (1 << 40))
        roads = sorted(self.totals)
        speeds = [self.totals[road][0] for road in roads]
        return pa.table({{"id": [self.totals[r][1] + self.epochs for r in roads], "road": roads, "speed": speeds}})


class Fast:
    """Remembers nothing."""

    def process(self, *inputs):
        rows = pa.concat_tables([table.select(["id", "road", "speed"]) for table in inputs])
        return rows.filter(pc.greater(rows["speed"], 10))


SCHEMA = "id long, road long, speed double"
'''

QUERIES = '''"""Seed {seed}: an auction house, after Nexmark."""
from pyspark.sql import functions as F
import understudy as us

job = us.Job("soak-{seed}", epoch="500ms")
bids = job.source("bids", us.sources.rate(rows_per_second=200, keys=20, seed={seed}))


def at(rows_per_second):
    """Event time by number; of a hundred rows one is too late, and one just in time."""
    age_s = F.expr("CASE id % 100 WHEN 0 THEN 20 WHEN 50 THEN 1 ELSE 0 END")
    return F.timestamp_seconds(1700000000 + F.col("id") / rows_per_second - age_s)


def bids_of(bids):
    made = bids.select(F.col("id").alias("bid"), F.col("road").alias("item"), F.col("speed").alias("price"),
                       at(200).alias("made"))
    return made.withWatermark("made", "2 seconds")


def auctions_of(auctions):
    opened = auctions.select(F.col("id").alias("auction"), F.col("road").alias("lot"), at(40).alias("opened"))
    return opened.withWatermark("opened", "2 seconds")
'''
SHAPES = {
    "tumbling": """
@job.stage(bids, output_mode="append", ha={ha})
def tumbling(bids):  # the highest bid of every item, and how many there were
    windows = bids_of(bids).groupBy(F.window("made", "3 seconds"), "item")
    return windows.agg(F.max("price").alias("highest"), F.count("*").alias("bids"), F.sum("bid").alias("check"))
""",
    "sliding": """
@job.stage(bids, ha={ha})
def sliding(bids):  # what is hot
    windows = bids_of(bids).groupBy(F.window("made", "4 seconds", "1 second"), "item")
    return windows.agg(F.count("*").alias("bids"), F.sum("bid").alias("check"))
""",
    "joined": """
auctions = job.source("auctions", us.sources.rate(rows_per_second=40, keys=20, seed={seed} + 1))

@job.stage(bids, auctions, output_mode="append", ha={ha})
def joined(bids, auctions):  # bids within three seconds of an auction's opening; an auction without one has none
    soon = F.expr("item = lot AND made BETWEEN opened AND opened + INTERVAL 3 SECONDS")
    return auctions_of(auctions).join(bids_of(bids).where("bid % 4 = 0"), soon, "leftOuter")
""",
    "sessions": """
@job.stage(bids, output_mode="append", ha={ha})
def sessions(bids):  # of a bidder, who is away now and then
    there = bids_of(bids).where((F.floor(F.col("bid") / 300) % 5) != F.col("item") % 5)
    return there.groupBy(F.session_window("made", "1 second"), (F.col("item") % 5).alias("bidder")).agg(
        F.count("*").alias("bids"), F.sum("price").alias("sum"))
""",
    "totals": """
@job.stage(bids, ha={ha})
def totals(bids):  # remembers everything: a lost, repeated or altered epoch shows for ever
    sums = F.count("*").alias("bids"), F.sum("id").alias("check"), F.avg("speed").alias("mean")
    return bids.groupBy("road").agg(*sums)
""",
}


@dataclass(frozen=True)
class Kind:
    """What jobs of a kind are like to whoever harms them."""

    name: str
    whole_s: float
    """Given to a job to become whole again. Much longer than it takes."""
    spark: bool


KINDS = {"operators": Kind("operators", 60.0, False), "spark": Kind("spark", 240.0, True)}


def write_job(path: Path, kind: str, seed: int, chance: random.Random) -> list[str]:
    """Returns what protects its units."""
    return write_queries(path, seed, chance) if KINDS[kind].spark else write_operators(path, seed, chance)


def write_operators(path: Path, seed: int, chance: random.Random) -> list[str]:
    """One or two sources, two to four operators, each reading something before it."""
    epoch, work_s = chance.choice(["20ms", "50ms", "100ms"]), chance.choice([0, 0, 0.002])
    text = OPERATORS.format(seed=seed, epoch=epoch, work_s=work_s)
    streams, read, labels = [], set(), []
    for name in ["left", "right"][: chance.choice([1, 1, 2])]:
        text += f'{name} = job.source("{name}", us.sources.rate(rows_per_second=1000, keys=10, seed={seed}))\n'
        streams.append(name)
    for number in range(chance.randint(2, 4)):
        label = chance.choice(list(POLICIES))
        unread = [s for s in streams if s not in read]
        inputs = chance.sample(streams, k=chance.choice([1, 1, 2]) if len(streams) > 1 else 1)
        if unread and not set(unread) & set(inputs):
            inputs[0] = chance.choice(unread)
        replayed = label.startswith("upstream")
        kind = "Fast" if replayed or chance.random() < 0.2 else "Totals"
        ha = POLICIES[label].format(every="100ms" if label.startswith(("sweeping", "hybrid")) else "150ms")
        if chance.random() < WINDOWED and not (replayed and len(inputs) == 1):
            made = _windowed(chance, inputs, replayed=replayed)
            text += f's{number} = job.{made}, name="s{number}", ha={ha})\n'
        else:
            about = f'schema=SCHEMA, name="s{number}", ha={ha}, stateless={kind == "Fast"}'
            text += f"s{number} = job.operator({', '.join(dict.fromkeys(inputs))}, {about})({kind})\n"
        read.update(inputs)
        streams.append(f"s{number}")
        labels.append(label)
    for name in [s for s in streams if s not in read]:
        text += f'job.sink({name}, us.sinks.parquet("out/{name}"))\n'
    path.write_text(text)
    return labels


def _windowed(chance: random.Random, inputs: list[str], *, replayed: bool) -> str:
    """A call of one of the operators that come with it, but for its end. Windows per key cannot be rebuilt by replay.
    Nor is a barrier settled, in which rows of the faster stream wait for ever, and their epochs are kept for them.
    Speeds stay multiples of a quarter: no mean of them is, and sums of those differ in the last bit by their order."""
    if len(inputs) == 1:
        outputs = 'id=("id", "max"), speed=("speed", "max")'
        return f'aggregate({inputs[0]}, by="road", window=us.rows(50, per="road"), {outputs}'
    streams = ", ".join(inputs)
    if chance.random() < 0.5 and not replayed:
        return f"barrier({streams}"
    return f'join({streams}, on="road", left=us.rows({chance.choice([20, 40])}, group=5), right=us.rows(0)'


def write_queries(path: Path, seed: int, chance: random.Random) -> list[str]:
    """Three of the queries. Windows may be rebuilt by replay; joins, sessions and what has no watermark may not."""
    text, labels = QUERIES.format(seed=seed), []
    for name in chance.sample(list(SHAPES), k=3):
        allowed = [p for p in POLICIES if not p.endswith("-2")]
        if name not in ("tumbling", "sliding"):
            allowed = [p for p in allowed if not p.startswith("upstream")]
        label = chance.choice(allowed)
        text += SHAPES[name].format(seed=seed, ha=POLICIES[label].format(every="1s"))
        text += f'\njob.sink({name}, us.sinks.parquet("out/{name}"))\n'
        labels.append(f"{name}: {label}")
    path.write_text(text)
    return labels
