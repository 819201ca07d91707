"""Spark settings and masters that a job may not have: with them a takeover would lose rows, or a host would not be one.

Everything else is the user's to set. A setting that is here may still be set to what Understudy sets itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from understudy.errors import SetupError

_STATE = "spark.sql.streaming.stateStore"
_UNIT_S = {"us": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LOCAL = re.compile(r"local(\[([1-9]\d*|\*)(\s*,\s*[1-9]\d*)?\])?")
RETAINED_MIN = 20
"""Batches whose files a query must keep: a checkpoint is shipped while the query goes on."""
MAINTENANCE_MAX_S = 60.0
"""Spark's own default. Snapshots of the state are made this often, and a takeover replays what changed since."""
STOP_MAX_S = 120.0


@dataclass(frozen=True)
class Rule:
    """``allows`` says which values are harmless; ``reason`` why others are not, ``remedy`` what to do instead."""

    allows: Callable[[str], bool]
    reason: str
    remedy: str = "leave it out"


def _only(value: str) -> Callable[[str], bool]:
    return lambda given: given.strip().lower() == value.lower()


def _never(given: str) -> bool:
    return False


def _at_least(least: int) -> Callable[[str], bool]:
    return lambda given: given.strip().isdigit() and int(given) >= least


def _longer_than_nothing_until(most_s: float) -> Callable[[str], bool]:
    """For durations as Spark reads them: ``5s``, ``1min``; a number alone is of milliseconds."""

    def allows(given: str) -> bool:
        found = re.fullmatch(r"(\d+)\s*([a-z]*)", given.strip().lower())
        unit_s = _UNIT_S.get(found[2] or "ms") if found else None
        return found is not None and unit_s is not None and 0 < int(found[1]) * unit_s <= most_s

    return allows


PROTECTION: dict[str, Rule] = {
    f"{_STATE}.checkpointFormatVersion": Rule(
        _only("1"), "state files of another format are not sent to standbys, which could then not take over"
    ),
    f"{_STATE}.providerClass": Rule(
        _only("org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"),
        "a standby takes over by opening RocksDB's files in place",
    ),
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": Rule(
        _only("true"), "without changelogs every epoch would have to send the whole state to its standby"
    ),
    f"{_STATE}.maintenanceInterval": Rule(
        _longer_than_nothing_until(MAINTENANCE_MAX_S),
        "the state is snapshot that often, and a takeover replays all that changed since the last snapshot",
        "leave it out, or use at most 60s",
    ),
    "spark.databricks.streaming.statefulOperator.asyncCheckpoint.enabled": Rule(
        _only("false"), "an epoch counts as safe when its state is written, not some time after"
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": Rule(
        _only("false"), "an epoch is one micro-batch; extra ones would number epochs differently from host to host"
    ),
    "spark.sql.streaming.unsupportedOperationCheck": Rule(
        _only("true"), "the output mode of a stage is the first that Spark does not refuse"
    ),
    "spark.sql.streaming.minBatchesToRetain": Rule(
        _at_least(RETAINED_MIN),
        "files could be deleted while they are on their way to a standby",
        f"leave it out, or use at least {RETAINED_MIN}",
    ),
    "spark.sql.streaming.stopTimeout": Rule(
        _longer_than_nothing_until(STOP_MAX_S),
        "a query that does not end would keep its host from taking over anything else",
        "leave it out, or use at most 120s",
    ),
    "spark.sql.streaming.checkpointLocation": Rule(
        _never, "checkpoints are kept in the hosts' folders", "leave it out; --state or --folder says where those are"
    ),
    "spark.sql.streaming.checkpointFileManagerClass": Rule(
        _only("org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"),
        "standbys are sent the files that this one writes",
    ),
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": Rule(
        _only("false"), "no checkpoint folder may be deleted when its query ends"
    ),
    "spark.hadoop.fs.defaultFS": Rule(
        lambda given: given.strip().startswith("file:"),
        "checkpoints would be written there, and are taken from the hosts' own disks",
        "leave it out, and write paths with their scheme",
    ),
    "spark.sql.execution.arrow.useLargeVarTypes": Rule(
        _only("false"), "streams would have other column types than their schemas say"
    ),
    "spark.python.daemon.module": Rule(
        _only("understudy.runtime.python_daemon"), "Understudy's own makes workers start at once in a takeover"
    ),
    "spark.python.worker.module": Rule(_never, "Understudy's own makes workers start at once in a takeover"),
    "spark.pyspark.python": Rule(
        _never, "workers need the Python that runs the host", "start the hosts with that Python instead"
    ),
    "spark.api.mode": Rule(_only("classic"), "a host is the driver of its own Spark, not a client of another"),
    "spark.remote": Rule(_never, "a host is the driver of its own Spark, not a client of another"),
}
"""What takeovers rely upon, however it came to be set. A name that ends with a dot stands for all that begin so."""

PLACE: dict[str, Rule] = {
    "spark.master": Rule(_never, "each host is started with its master", "use --master"),
    "spark.submit.": Rule(_never, "hosts are started by Understudy, not submitted", "leave it out"),
    "spark.driver.host": Rule(_only("127.0.0.1"), "a host's Spark talks to nobody but itself"),
    "spark.driver.bindAddress": Rule(_only("127.0.0.1"), "a host's Spark talks to nobody but itself"),
    "spark.local.dir": Rule(
        _never, "it is in the host's folder, which is cleaned up", "leave it out; --state or --folder is where that is"
    ),
}
"""What a host sets itself when it starts its Spark."""


def check(settings: Mapping[str, str]) -> None:
    """Raises SetupError for settings of a user that break what Understudy promises."""
    _check(settings, {**PROTECTION, **PLACE}, "--conf ")


def check_session(settings: Mapping[str, str]) -> None:
    """The same for the settings of a session that has started: a ``spark-defaults.conf`` may have added some."""
    _check(settings, PROTECTION, "")


def check_master(master: str) -> None:
    """Raises SetupError for a master that runs tasks elsewhere: tasks are told by their host where their input is."""
    if not _LOCAL.fullmatch(master):
        raise SetupError(
            f"--master {master} is refused: a host's tasks run in the host's own process tree for now; use local[*] or "
            "local[N], and run a host on every machine instead (`understudy host`)"
        )


def _check(settings: Mapping[str, str], rules: Mapping[str, Rule], before: str) -> None:
    for name, value in settings.items():
        rule = next((r for n, r in rules.items() if name == n or (n.endswith(".") and name.startswith(n))), None)
        if rule is not None and not rule.allows(value):
            raise SetupError(f"{before}{name}={value} is refused: {rule.reason}; {rule.remedy}")
