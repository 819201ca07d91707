"""Spark as a host uses it: one session, one streaming query per stage, and schemas found by asking Spark."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from understudy.core.operators import OperatorClass, judge
from understudy.errors import JobError, SetupError
from understudy.job import Job
from understudy.runtime import arrow_types, blame, class_archive, spark_operators
from understudy.runtime.opened import Stores
from understudy.runtime.spark_io import source_called
from understudy.runtime.spark_jvm import JAR
from understudy.schemas import spark_schema
from understudy.sources import SparkSource
from understudy.stages import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from understudy.runtime.spark_files import Batch

TICK = "~tick"
"""Name of the input without rows that clocks a source read by Spark."""

_STATE = "spark.sql.streaming.stateStore"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "700m",
    # Every shuffle partition costs a task, a state store and files per batch; a host's batches are small.
    "spark.sql.shuffle.partitions": "2",
    # An epoch without rows is still an epoch; Spark must not make extra batches of its own between them.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # For ever, by default: a query that does not end would hold up whoever stops it.
    "spark.sql.streaming.stopTimeout": "30s",
    # The default writes through FileContext, which forks a process per file: 45 ms instead of 10 per log entry.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
    # State that opens in place: a takeover with a million keys need not read them all (docs/design.md).
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting keys makes every write read first, and a takeover count all of them.
    f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",
    f"{_STATE}.minDeltasForSnapshot": "10",
    f"{_STATE}.maintenanceInterval": "5s",
    # It makes a store write an image when none of its query has been seen for long: right after a takeover, always.
    f"{_STATE}.coordinatorReportSnapshotUploadLag": "false",
    f"{_STATE}.forceSnapshotUploadOnLag": "false",
    # It checks that whoever is given a batch looks at all of it. Our callback does.
    f"{_STATE}.commitValidation.enabled": "false",
    # Spark describes every execution for its pages, which nobody looks at here; the short form takes less time.
    "spark.sql.ui.explainMode": "simple",
    # Files without a process per file, and tables that are linked, not copied (jvm/HostFileSystem.java).
    "spark.hadoop.fs.file.impl": "understudy.HostFileSystem",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.python.daemon.module": "understudy.runtime.python_daemon",
    "spark.sql.session.timeZone": "UTC",
}
_JVM_OPTIONS = "-XX:+UseSerialGC"
_OPTIONS = "spark.driver.extraJavaOptions"
_CLASS_PATH = "spark.driver.extraClassPath"


def _worker_python(folder: Path, imports: Path) -> Path:
    """The Python that Spark starts for its planners, source runners and workers: this one, told to import PySpark from
    where it is installed. Spark has its workers import it from an archive, where nothing is compiled: 1.5 s of
    processor time for each instead of 0.5, and a query starts several. ``imports``: where they may import from too."""
    path = os.pathsep.join(filter(None, [str(imports), os.environ.get("PYTHONPATH")]))
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    try:
        subprocess.run([script, "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return Path(sys.executable)  # a file system from which nothing may be run
    return script


def _own_options(local_dir: Path) -> str:
    """What every JVM is told, whatever else the user tells it."""
    return (
        # Native libraries are unpacked there, and a JVM that is killed leaves them behind.
        f'"-Djava.io.tmpdir={local_dir}" '
        # Spark copies an array of numbers first, and marks what is null afterwards; Arrow would throw in between.
        "-Darrow.enable_null_check_for_get=false "
        f"{class_archive.options()}"
    )


def start_session(name: str, *, master: str, settings: dict[str, str], local_dir: Path, imports: Path) -> SparkSession:
    """``imports``: see ``_worker_python``."""
    local_dir.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = str(_worker_python(local_dir, imports))
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name).config("spark.local.dir", str(local_dir))
    merged = {
        **_SETTINGS,
        "spark.sql.warehouse.dir": str(local_dir / "warehouse"),
        **settings,
        _OPTIONS: f"{_own_options(local_dir)} {settings.get(_OPTIONS, _JVM_OPTIONS)}",
        _CLASS_PATH: os.pathsep.join(filter(None, [str(JAR), settings.get(_CLASS_PATH)])),
    }
    for key, value in merged.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if session.sparkContext.getConf().get("spark.local.dir") != str(local_dir):
        raise SetupError("a module beside the job file starts a Spark session when it is imported; start none there")
    session.sparkContext.setLogLevel("OFF")
    return session


# -- plans --------------------------------------------------------------------------------------------------------


_numbers = count(1)


class Plans:
    """The DataFrames of a job's stages on this host, and the schemas of its streams."""

    def __init__(self, spark: SparkSession, job: Job, host: str) -> None:
        self._spark, self._job, self._host = spark, job, host
        self._schemas: dict[str, StructType] = {}
        self._frames: dict[str, DataFrame] = {}
        self._operators: dict[str, OperatorClass] = {}
        self.rehearsed: set[str] = set()
        """Stages whose query was rehearsed in this process: their classes are loaded and compiled."""
        self.stores: dict[str, Stores] = {}
        """What the state of such stages consists of."""

    def found_stores(self, stage: str, rehearsed: StreamingQuery, folder: Path) -> None:
        """A query of the stage has run on a checkpoint folder, and still does."""
        found = Stores(self._spark, stage, rehearsed, folder)
        if stage not in self.stores or self.stores[stage].settings != found.settings:
            self.stores[stage] = found

    def schema(self, stream: str) -> StructType:
        if stream not in self._schemas:
            declared = self._job.stages[stream].declared_schema()
            if declared is not None:
                self._schemas[stream] = spark_types(self._job.stages[stream], declared)
            else:
                self._schemas[stream] = self.frame(stream).schema
        return self._schemas[stream]

    def arrow_schema(self, stream: str) -> pa.Schema:
        return arrow_types.as_sent(self.schema(stream))

    def require_sendable(self, stream: str) -> None:
        """Raises JobError where a column's type cannot leave the stage, or cannot be written by one of its sinks."""
        from pyspark.sql.pandas.types import to_arrow_type

        stage = self._job.stages[stream]
        for field in self.schema(stream).fields:
            try:
                found = pa.schema([pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC"))])
                for sink in stage.sinks.values():
                    sink.try_on(found.empty_table())
            except Exception as error:
                kind = field.dataType.simpleString()
                raise JobError(
                    f"{stage.where}: column {field.name!r} of stage {stream!r} is of type {kind}, which cannot be sent "
                    f"or written ({first_line(error)}); convert it at the end of the stage, for example to a string"
                ) from error

    def frame(self, stage: str) -> DataFrame:
        """The stage's streaming DataFrame. The same object every time: what Spark found out about its inputs while
        one query ran serves the next, which is what makes a rehearsed takeover fast."""
        if stage not in self._frames:
            frame = self._build(self._job.stages[stage])
            if self._job.policy(stage).recovery == "replay":
                require_replayable(self._job.stages[stage], self._judged(stage, frame))
            self._frames[stage] = frame
        return self._frames[stage]

    def operators(self, stage: str) -> OperatorClass | None:
        """What kind of operator the stage is; None for a source that the host reads without Spark."""
        source = self._job.stages[stage].source
        if source is not None and not isinstance(source, SparkSource):
            return None
        return self._judged(stage, self.frame(stage))

    def _judged(self, stage: str, frame: DataFrame) -> OperatorClass:
        """Once, and only when asked: a takeover must not wait for it."""
        if stage not in self._operators:
            mode = self._job.stages[stage].output_mode
            self._operators[stage] = judge(spark_operators.read(frame), output_mode=mode)
        return self._operators[stage]

    def _build(self, stage: Stage) -> DataFrame:
        from pyspark.sql import DataFrame, SparkSession

        # As in a script, where the thread that made the session builds the query: SparkSession.getActiveSession().
        active = SparkSession._get_j_spark_session_class(self._spark._jvm)
        active.setActiveSession(self._spark._jsparkSession)
        try:
            if isinstance(stage.source, SparkSource):
                frame: object = stage.source.function(self._spark)
            else:
                assert stage.function is not None
                frame = stage.function(*(self._input(stage.name, name, self.schema(name)) for name in stage.inputs))
        except JobError:
            raise
        except Exception as error:
            raise JobError(f"{stage.where}: stage {stage.name!r} cannot be built: {first_line(error)}") from error
        if not isinstance(frame, DataFrame):
            raise JobError(
                f"{stage.where}: stage {stage.name!r} returned {type(frame).__name__}, not a DataFrame; "
                "end the function with `return ...`"
            )
        if not frame.isStreaming:
            raise JobError(
                f"{stage.where}: stage {stage.name!r} returned a DataFrame that does not stream; derive it "
                "from the inputs, and use spark.readStream in a source"
            )
        if isinstance(stage.source, SparkSource):
            # Without rows of its own, the tick makes Spark cut an epoch when one is due, also when nothing came.
            frame = frame.unionByName(self._input(stage.name, TICK, frame.schema))
        return frame

    def _input(self, stage: str, name: str, schema: StructType) -> DataFrame:
        options = {"host": self._host, "stage": stage, "input": name, "schema": json.dumps(schema.jsonValue())}
        # A source of its own for every input: Spark writes to a registered source's environment as a query starts, and
        # two queries that share one can catch each other in the middle (java.io.OptionalDataException in a task).
        source = source_called(f"understudy_{next(_numbers)}")
        self._spark.dataSource.register(source)
        return self._spark.readStream.format(source.name()).options(**options).load()

    def start(self, stage: str, checkpoint: Path, publish: Callable[[DataFrame, Batch], None]) -> StreamingQuery:
        """Start the stage's query. Without a mode from the user, the first that Spark accepts is taken."""
        from pyspark.errors import AnalysisException

        asked = self._job.stages[stage].output_mode
        refusals = []
        for mode in [asked] if asked else ["update", "append"]:
            writer = self.frame(stage).writeStream.outputMode(mode).foreachBatch(publish)  # type: ignore[arg-type]
            try:
                return writer.option("checkpointLocation", str(checkpoint)).start()
            except AnalysisException as error:
                refusals.append(f"{mode}: {first_line(error)}")
        raise JobError(
            f"{self._job.stages[stage].where}: Spark refuses the output mode of stage {stage!r}: " + "; ".join(refusals)
        )


def spark_types(stage: Stage, declared: pa.Schema) -> StructType:
    """Of a stream whose columns the job says. Whoever reads it on Spark, and every checkpoint, has them in Spark's
    types. Raises JobError."""
    try:
        return spark_schema(declared)
    except ValueError as error:
        raise JobError(f"{stage.where}: stage {stage.name!r}: {error}") from None


def require_replayable(stage: Stage, found: OperatorClass | None) -> None:
    """Upstream backup rebuilds a stage by replay, so its state must let go of old input. Raises JobError."""
    if found is not None and found.refusal:
        raise JobError(
            f"{stage.where}: us.UpstreamBackup cannot rebuild stage {stage.name!r} by replay: {found.refusal}; "
            "use us.PassiveStandby() or us.ActiveStandby() for it"
        )


def first_line(error: BaseException) -> str:
    """The part of a Spark or Python error that a user can act on."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


WORKER_LATE = "Python worker failed to connect back"
"""What Spark says when a Python process that it has started does not answer within 10 s, as on a machine that is very
busy: many queries that start at once are enough."""


def root_cause(text: str) -> str:
    """What the user's code said, out of a StreamingQueryException's text: the last Python error line, else the last one
    that names an error of Spark's which says more than that something failed, else the first that names any."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    python = [
        line for line in lines if line.split(":")[0].endswith(("Error", "Exception")) and "." not in line.split(":")[0]
    ]
    if python:
        return python[-1]
    telling = [line for line in lines if set(blame.CLASS.findall(line)) - set(blame.WRAPPERS)]
    if telling and WORKER_LATE not in text:
        return telling[-1].removeprefix("Caused by: ")[:400]
    classes = [line for line in lines if line.startswith("[") or "] " in line]
    return (classes or lines or ["unknown"])[-1 if not classes else 0][:400]
