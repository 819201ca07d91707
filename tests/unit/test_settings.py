"""Settings of Spark that would break what Understudy promises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from understudy.errors import SetupError
from understudy.runtime import spark
from understudy.runtime.host import Host, HostConfig
from understudy.runtime.session import LocalRun
from understudy.settings import PLACE, PROTECTION, check, check_master, check_session

STREAMING = "spark.sql.streaming"
STATE = f"{STREAMING}.stateStore"


@pytest.mark.parametrize(
    ("name", "refused", "fine"),
    [
        (f"{STATE}.checkpointFormatVersion", ["2", ""], ["1"]),
        (f"{STATE}.providerClass", ["org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"], []),
        (f"{STATE}.rocksdb.changelogCheckpointing.enabled", ["false"], ["true", "TRUE"]),
        (f"{STATE}.maintenanceInterval", ["61s", "2m", "1h", "0", "soon", "70000"], ["5s", "1min", "60000", "100ms"]),
        ("spark.databricks.streaming.statefulOperator.asyncCheckpoint.enabled", ["true"], ["false"]),
        (f"{STREAMING}.noDataMicroBatches.enabled", ["true"], ["false"]),
        (f"{STREAMING}.unsupportedOperationCheck", ["false"], ["true"]),
        (f"{STREAMING}.minBatchesToRetain", ["1", "19", "-1", "many"], ["20", "100"]),
        (f"{STREAMING}.stopTimeout", ["0", "10min"], ["30s", "5s", "30000"]),
        (f"{STREAMING}.checkpointLocation", ["/tmp/x"], []),
        (f"{STREAMING}.checkpointFileManagerClass", ["org.example.Mine"], []),
        (f"{STREAMING}.forceDeleteTempCheckpointLocation", ["true"], ["false"]),
        ("spark.hadoop.fs.defaultFS", ["hdfs://names:8020", "s3a://bucket"], ["file:///"]),
        ("spark.sql.execution.arrow.useLargeVarTypes", ["true"], ["false"]),
        ("spark.python.daemon.module", ["mine"], ["understudy.runtime.python_daemon"]),
        ("spark.python.worker.module", ["mine"], []),
        ("spark.pyspark.python", ["python3.9"], []),
        ("spark.api.mode", ["connect"], ["classic"]),
        ("spark.remote", ["sc://localhost"], []),
        ("spark.master", ["local[2]", "yarn"], []),
        ("spark.submit.", [], []),
        ("spark.driver.host", ["10.0.0.1"], ["127.0.0.1"]),
        ("spark.driver.bindAddress", ["0.0.0.0"], ["127.0.0.1"]),
        ("spark.local.dir", ["/tmp"], []),
    ],
)
def test_what_is_refused_and_what_is_not(name: str, refused: list[str], fine: list[str]) -> None:
    rule = {**PROTECTION, **PLACE}[name]
    for value in refused:
        with pytest.raises(SetupError) as error:
            check({"spark.ui.enabled": "true", name: value})
        assert str(error.value) == f"--conf {name}={value} is refused: {rule.reason}; {rule.remedy}"
    for value in fine:
        check({name: value})


def test_every_rule_is_tried() -> None:
    tried = test_what_is_refused_and_what_is_not.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {name for name, *_ in tried} == {*PROTECTION, *PLACE}


def test_a_rule_may_be_for_all_settings_of_a_prefix() -> None:
    with pytest.raises(SetupError, match=r"spark\.submit\.deployMode=cluster is refused"):
        check({"spark.submit.deployMode": "cluster"})
    check({"spark.submission": "x", "spark.masters": "y"})


def test_what_understudy_sets_itself_is_fine() -> None:
    check(spark._SETTINGS)


def test_most_settings_are_the_users() -> None:
    check({
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
        f"{STATE}.minDeltasForSnapshot": "5",
        f"{STATE}.rocksdb.trackTotalNumberOfRows": "true",
        "spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
    })


def test_a_session_that_has_started_has_a_place() -> None:
    ours = {"spark.master": "local[*]", "spark.local.dir": "/x", "spark.submit.deployMode": "client"}
    check_session(ours)
    with pytest.raises(SetupError, match=r"^spark\.sql\.streaming\.stateStore\.checkpointFormatVersion=2 is refused"):
        check_session(ours | {f"{STATE}.checkpointFormatVersion": "2"})


@pytest.mark.parametrize("master", ["local", "local[1]", "local[16]", "local[*]", "local[*,2]", "local[4, 3]"])
def test_masters_that_run_tasks_in_the_host(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master",
    ["spark://m:7077", "yarn", "k8s://https://m", "local-cluster[2,1,1024]", "local[0]", "local[]", "locally", ""],
)
def test_masters_that_do_not(master: str, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"own process tree for now.*run a host on every machine instead") as error:
        check_master(master)
    assert f"--master {master} is refused" in str(error.value)
    with pytest.raises(SetupError, match="process tree"):
        LocalRun(tmp_path / "job.py", tmp_path / "state", master=master)
    with pytest.raises(SetupError, match="process tree"):
        Host(HostConfig("h1", tmp_path / "host", "127.0.0.1:1", "t", master=master))
    assert os.listdir(tmp_path) == []


def test_nothing_is_begun_with_such_a_setting(tmp_path: Path) -> None:
    wrong = {f"{STREAMING}.noDataMicroBatches.enabled": "true"}
    with pytest.raises(SetupError, match="noDataMicroBatches"):
        LocalRun(tmp_path / "job.py", tmp_path / "state", settings=wrong)
    with pytest.raises(SetupError, match="noDataMicroBatches"):
        Host(HostConfig("h1", tmp_path / "host", "127.0.0.1:1", "t", settings=wrong))
    assert os.listdir(tmp_path) == []
