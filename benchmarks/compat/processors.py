"""Shapes of stages: arbitrary state by key, with both of Spark's interfaces to it and with timers."""

from collections.abc import Iterator

import helpers
import pandas as pd
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import understudy as us

HOUR_MS = 3_600_000
KNOWN = [(road, 1000 + road) for road in range(0, 24, 3)]

# -- applyInPandasWithState ---------------------------------------------------------------------------------------


def count_rows(key, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    (count,) = state.get if state.exists else (0,)
    count += sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"key": [key[0]], "cars": [count]})


def count_bursts(key, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Rows of a key until none came for three seconds of event time."""
    if state.hasTimedOut:
        count, last = state.get
        state.remove()
        yield pd.DataFrame({"burst": [key[0]], "cars": [count], "last": [last]})
        return
    count, last = state.get if state.exists else (0, 0)
    for frame in frames:
        count += len(frame)
        last = max(last, int(frame["time"].max().timestamp() * 1000))
    state.update((count, last))
    state.setTimeoutTimestamp(max(last + 3000, state.getCurrentWatermarkMs() + 1))


def keep_an_hour(key, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        state.remove()
        return
    least, most = state.get if state.exists else (1e9, -1e9)
    for frame in frames:
        least, most = min(least, float(frame["speed"].min())), max(most, float(frame["speed"].max()))
    state.update((least, most))
    state.setTimeoutDuration(HOUR_MS)
    yield pd.DataFrame({"road": [key[0]], "side": [key[1]], "least": [least], "most": [most]})


def keep_several(key, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    name, rows, speeds, often, seen = state.get if state.exists else (f"district {key[0]}", 0, 0.0, False, None)
    for frame in frames:
        rows, speeds = rows + len(frame), speeds + float(frame["speed"].sum())
        seen = frame["time"].max() if seen is None else max(seen, frame["time"].max())
    often = often or rows > 30
    state.update((name, rows, speeds, often, seen))
    yield pd.DataFrame({"name": [name], "rows": [rows], "speeds": [speeds], "often": [often], "seen": [seen]})


# -- transformWithState -------------------------------------------------------------------------------------------


class Several(StatefulProcessor):
    """Three kinds of state: rows so far, the fastest three, how many of each grade."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.rows = handle.getValueState("rows", "n long")
        self.fastest = handle.getListState("fastest", "speed double, id long")
        self.grades = handle.getMapState("grades", "grade string", "n long")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        n = self.rows.get()[0] if self.rows.exists() else 0
        fastest = [tuple(kept) for kept in self.fastest.get()]
        for frame in rows:
            n += len(frame)
            fastest += [(float(s), int(i)) for s, i in zip(frame["speed"], frame["id"])]
            for grade, count in frame["speed"].map(lambda s: "fast" if s > 64 else "slow").value_counts().items():
                before = self.grades.getValue((grade,))[0] if self.grades.containsKey((grade,)) else 0
                self.grades.updateValue((grade,), (before + int(count),))
        self.rows.update((n,))
        self.fastest.put(sorted(fastest, reverse=True)[:3])
        grades = ",".join(sorted(f"{g[0]}={c[0]}" for g, c in self.grades.iterator()))
        top = " ".join(f"{s}@{i}" for s, i in sorted(fastest, reverse=True)[:3])
        yield pd.DataFrame({"road": [key[0]], "cars": [n], "fastest": [top], "grades": [grades]})

    def close(self) -> None:
        pass


class Quiet(StatefulProcessor):
    """Tells of a group when event time is three seconds past its newest row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "cars long, last long")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        cars, last = self.seen.get() if self.seen.exists() else (0, 0)
        for frame in rows:
            cars += len(frame)
            last = max(last, int(frame["time"].max().timestamp() * 1000))
        self.seen.update((cars, last))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + 3000)
        yield pd.DataFrame({"burst": pd.Series([], dtype="int64"), "cars": pd.Series([], dtype="int64")})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[pd.DataFrame]:
        cars, _ = self.seen.get()
        self.seen.clear()
        yield pd.DataFrame({"burst": [key[0]], "cars": [cars]})

    def close(self) -> None:
        pass


class Forgetful(StatefulProcessor):
    """Forgets after an hour, by time to live and by a timer that is set with the first row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "speeds double", ttlDurationMs=HOUR_MS)
        self.bands = handle.getMapState("bands", "band int", "n long", ttlDurationMs=HOUR_MS)

    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        if not self.total.exists():
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + HOUR_MS)
        total = self.total.get()[0] if self.total.exists() else 0.0
        for frame in rows:
            total += float(frame["speed"].sum())
            for band, count in (frame["speed"] // 32).astype(int).value_counts().items():
                before = self.bands.getValue((int(band),))
                self.bands.updateValue((int(band),), ((before[0] if before else 0) + int(count),))
        self.total.update((total,))
        bands = sum(count[0] * 1000 ** band[0] for band, count in self.bands.iterator())
        yield pd.DataFrame({"road": [key[0]], "speeds": [total], "bands": [bands]})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"road": [key[0]], "speeds": [-1.0], "bands": [-1]})

    def close(self) -> None:
        pass


class CountOn(StatefulProcessor):
    """Goes on from counts that were known before."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        n = self.count.get()[0] if self.count.exists() else 0
        n += sum(len(frame) for frame in rows)
        self.count.update((n,))
        yield pd.DataFrame({"road": [key[0]], "cars": [n]})

    def handleInitialState(self, key, initialState, timerValues) -> None:
        self.count.update((int(initialState["known"].iloc[0]),))

    def close(self) -> None:
        pass


class Energy(helpers.Remembering):
    """One row at a time; what it keeps is its base class's business."""

    def size(self, row: Row) -> float:
        return row.speed * row.speed

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        cars, energy = self.add(rows)
        yield Row(road=key[0], cars=cars, energy=energy)


class QuietByRow(StatefulProcessor):
    """As Quiet, with rows; it also keeps which roads it has seen."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.roads = handle.getMapState("roads", "road long", "cars long")
        self.speeds = handle.getListState("speeds", "speed double")
        self.due = handle.getValueState("due", "at long")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        due = self.due.get()[0] if self.due.exists() else 0
        for row in rows:
            before = self.roads.getValue((row.road,))[0] if self.roads.containsKey((row.road,)) else 0
            self.roads.updateValue((row.road,), (before + 1,))
            self.speeds.appendValue((row.speed,))
            at = int(row.time.timestamp() * 1000) + 3000
            if at > due:
                if due:
                    self.handle.deleteTimer(due)
                self.handle.registerTimer(at)
                due = at
        self.due.update((due,))
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[Row]:
        roads = ",".join(f"{r[0]}:{n[0]}" for r, n in sorted(self.roads.iterator()))
        speeds = sum(speed[0] for speed in self.speeds.get())
        for state in (self.roads, self.speeds, self.due):
            state.clear()
        yield Row(burst=key[0], roads=roads, speeds=speeds, at=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        pass


class CountOnByRow(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long, was long")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        n, was = self.count.get() if self.count.exists() else (0, -1)
        n += sum(1 for _ in rows)
        self.count.update((n, was))
        yield Row(road=key[0], side=key[1], cars=n, was=was)

    def handleInitialState(self, key, initialState, timerValues) -> None:
        self.count.update((initialState.known, initialState.known))

    def close(self) -> None:
        pass


job = us.Job("compat-processors", epoch="1s")
positions = job.source("positions", us.sources.rate(rows_per_second=60, keys=20, seed=13), host="h1", standbys=["h2"])
rare = job.source("rare", us.sources.rate(rows_per_second=0.4, keys=3, seed=14), host="h1", standbys=["h2"])


def bursts(positions):
    """Groups that come and go: rows of 2 s belong to one, every 16th to the one before."""
    burst = F.floor(F.col("id") / 60) - F.when(F.col("id") % 16 == 0, 1).otherwise(0)
    timed = positions.select("id", "road", "speed", burst.alias("burst"), helpers.event_time(30).alias("time"))
    return timed.withWatermark("time", "1 second")


@job.stage(positions, output_mode="update", host="h2", standbys=["h1"])
def pandas_with_state(positions):
    grouped = positions.groupBy("road")
    return grouped.applyInPandasWithState(
        count_rows, "key long, cars long", "cars long", "update", GroupStateTimeout.NoTimeout
    )


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def pandas_with_event_time_timeout(positions):
    return (
        bursts(positions)
        .groupBy("burst")
        .applyInPandasWithState(
            count_bursts,
            "burst long, cars long, last long",
            "cars long, last long",
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
    )


@job.stage(positions, output_mode="update", host="h2", standbys=["h1"])
def pandas_with_processing_time_timeout(positions):
    # Keys are columns of the input here: Spark would look for one that is made in groupBy, by its name.
    sides = positions.withColumn("side", F.col("id") % 2 == 0)
    return sides.groupBy("road", "side").applyInPandasWithState(
        keep_an_hour,
        "road long, side boolean, least double, most double",
        "least double, most double",
        "update",
        GroupStateTimeout.ProcessingTimeTimeout,
    )


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def pandas_with_state_of_several_types(positions):
    columns = "name string, rows long, speeds double, often boolean, seen timestamp"
    timed = positions.withColumns({"district": F.col("road") % 8, "time": helpers.event_time(30)})
    return timed.groupBy("district").applyInPandasWithState(
        keep_several, columns, columns, "append", GroupStateTimeout.NoTimeout
    )


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def value_list_and_map_state(positions):
    columns = "road long, cars long, fastest string, grades string"
    return positions.groupBy("road").transformWithStateInPandas(Several(), columns, "append", "none")


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def event_time_timers(positions):
    grouped = bursts(positions).groupBy("burst")
    return grouped.transformWithStateInPandas(Quiet(), "burst long, cars long", "append", "eventTime")


@job.stage(positions, output_mode="update", host="h2", standbys=["h1"])
def processing_time_timer_and_time_to_live(positions):
    columns = "road long, speeds double, bands long"
    return positions.groupBy("road").transformWithStateInPandas(Forgetful(), columns, "update", "processingTime")


@job.stage(positions, output_mode="update", host="h2", standbys=["h1"])
def initial_state(positions):
    known = positions.sparkSession.createDataFrame(KNOWN, "road long, known long").groupBy("road")
    return positions.groupBy("road").transformWithStateInPandas(
        CountOn(), "road long, cars long", "update", "none", initialState=known
    )


@job.stage(positions, output_mode="update", host="h2", standbys=["h1"])
def rows_with_a_base_class(positions):
    columns = "road long, cars long, energy double"
    return positions.groupBy("road").transformWithState(Energy(), columns, "update", "none")


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def rows_with_event_time_timers(positions):
    columns = "burst long, roads string, speeds double, at long"
    return bursts(positions).groupBy("burst").transformWithState(QuietByRow(), columns, "append", "eventTime")


@job.stage(positions, output_mode="append", host="h2", standbys=["h1"])
def rows_with_initial_state(positions):
    known = positions.sparkSession.createDataFrame(KNOWN, "road long, known long")
    known = known.withColumn("side", F.lit("left")).groupBy("road", "side")
    sides = positions.withColumn("side", F.when(F.col("id") % 2 == 0, "left").otherwise("right"))
    return sides.groupBy("road", "side").transformWithState(
        CountOnByRow(), "road long, side string, cars long, was long", "append", "none", initialState=known
    )


@job.stage(rare, output_mode="update", host="h2", standbys=["h1"])
def seldom_with_state(rare):
    everything = rare.withColumn("all", F.lit(1).cast("long")).groupBy("all")
    return everything.applyInPandasWithState(
        count_rows, "key long, cars long", "cars long", "update", GroupStateTimeout.NoTimeout
    )


PLACES = {"host": "h2", "standbys": ["h1"]}
newest_of_each_key = job.aggregate(
    positions, by="road", window=us.rows(50, group="auto", per="road"), engine="spark", name="newest_of_each_key",
    roles=PLACES, cars=("*", "count"), mean=("speed", "mean"), slowest=("speed", "min"), last=("id", "last"),
)  # fmt: skip
pairs_of_each_key = job.join(
    positions, rare, on="road", left=us.rows(20, group=4, per="road"), right=us.rows(3, per="road"), engine="spark",
    name="pairs_of_each_key", **PLACES,
)  # fmt: skip


for shape in (
    newest_of_each_key,
    pairs_of_each_key,
    pandas_with_state,
    pandas_with_event_time_timeout,
    pandas_with_processing_time_timeout,
    pandas_with_state_of_several_types,
    value_list_and_map_state,
    event_time_timers,
    processing_time_timer_and_time_to_live,
    initial_state,
    rows_with_a_base_class,
    rows_with_event_time_timers,
    rows_with_initial_state,
    seldom_with_state,
):
    job.sink(shape, us.sinks.parquet(f"out/compat/processors/{shape.name}"))
