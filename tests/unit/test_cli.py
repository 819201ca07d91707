"""Mistakes on the command line and in the job file: one clear message, the right exit code, no stack trace, no
process started."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands import commands

Command = Callable[..., subprocess.CompletedProcess[str]]
GOOD = """
import understudy as us
job = us.Job("good")
positions = job.source("positions", us.sources.rate())
@job.stage(positions{extra})
def copy(positions):
    return positions
job.sink(copy, us.sinks.parquet("out"))
"""


@pytest.fixture(scope="module")
def understudy() -> Iterator[Command]:
    with commands() as found:
        yield found.run


def failed(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result
    assert "Traceback" not in result.stdout + result.stderr
    assert result.stderr.startswith("error: ")
    for word in words:
        assert word in result.stderr, (word, result.stderr)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("job = us.Job(\n", ["job.py:1", "syntax error"]),
        ("1 / 0\n", ["job.py:1", "ZeroDivisionError"]),
        ("x = 1\n", ["0 jobs", "job = us.Job(...)"]),
        (
            'import understudy as us\njob = us.Job("j")\n'
            '@job.stage("b")\ndef a(b): return b\n@job.stage("a")\ndef b(a): return a\n',
            ["job.py:3", "cycle", "a -> b -> a"],
        ),
        (GOOD.format(extra=', host="h9"'), ["unknown host h9", "h1, h2"]),
        (GOOD.format(extra=', output_mode="overwrite"'), ["job.py:5", "output_mode='overwrite'", "'append'"]),
        (
            GOOD.format(extra=', ha=us.PassiveStandby(checkpoint="never")'),
            ["job.py:5", "checkpoint='never' is not known", "'sweeping', 'individual', 'synchronous'"],
        ),
        (GOOD.format(extra=", ha=us.ActiveStandby(copies=1)"), ["job.py:5", "copies=1: a standby needs at least 2"]),
    ],
    ids=["syntax", "raises", "no job", "cycle", "unknown host", "output mode", "checkpoint timing", "no standby"],
)
def test_a_job_file_that_cannot_run(understudy: Command, tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "job.py").write_text(text)
    failed(understudy(tmp_path, "run", "job.py", "--hosts", "2"), 2, *words)
    assert not list(tmp_path.glob(".understudy/*/hosts/*"))


def test_a_job_file_that_is_not_there(understudy: Command, tmp_path: Path) -> None:
    failed(understudy(tmp_path, "run", "nowhere.py"), 2, "nowhere.py", "no such job file")


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ('[units.copy]\nmonitor = h2\n', ["roles.toml:2: not TOML"]),
        ('[units.copies]\nhost = "h1"\n', ["roles.toml: unknown unit 'copies'; units are: positions, copy"]),
        ('[units.copy]\nmonitor = "h9"\n', ["unknown host h9; hosts are: h1"]),
        ('[units.copy]\nha = "active-standby"\n', ["needs at least 2 hosts and there is 1", "--hosts 2"]),
    ],
    ids=["syntax", "unknown unit", "unknown host", "too few hosts"],
)
def test_roles_that_cannot_be(understudy: Command, tmp_path: Path, roles: str, words: list[str]) -> None:
    (tmp_path / "job.py").write_text(GOOD.format(extra=""))
    (tmp_path / "roles.toml").write_text(roles)
    failed(understudy(tmp_path, "run", "job.py", "--hosts", "1", "--roles", "roles.toml"), 2, *words)
    drill = ("drill", "job.py", "--kill", "copy", "--hosts", "1", "--roles", "roles.toml")
    failed(understudy(tmp_path, *drill), 2, *words)
    assert not list(tmp_path.glob("**/hosts/*"))


def test_no_java(understudy: Command, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(GOOD.format(extra=""))
    result = understudy(tmp_path, "run", "job.py", JAVA_HOME=str(tmp_path))
    failed(result, 3, "Java was not found", "openjdk-17", "JAVA_HOME")


def test_outputs_of_another_run_are_not_mixed_with_new_ones(understudy: Command, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(GOOD.format(extra=""))
    (tmp_path / "out" / "epoch=000000000000").mkdir(parents=True)
    failed(understudy(tmp_path, "run", "job.py"), 2, "holds epochs of another run", "--fresh")


def test_a_taken_port(understudy: Command, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(GOOD.format(extra=""))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = understudy(tmp_path, "run", "job.py", "--coordinator", address, UNDERSTUDY_TOKEN="t")
        failed(result, 3, address, "taken")
        arguments = ("--name", "h1", "--coordinator", "127.0.0.1:1", "--listen", address)
        failed(understudy(tmp_path, "host", *arguments, UNDERSTUDY_TOKEN="t"), 3, address, "taken")


def test_the_network_is_not_let_in_without_tls(understudy: Command, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(GOOD.format(extra=""))
    result = understudy(tmp_path, "run", "job.py", "--coordinator", "0.0.0.0:0", UNDERSTUDY_TOKEN="t")
    failed(result, 4, "without TLS", "--tls-cert")


def test_no_token(understudy: Command, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(GOOD.format(extra=""))
    result = understudy(tmp_path, "run", "job.py", "--coordinator", "127.0.0.1:0", UNDERSTUDY_TOKEN="")
    failed(result, 4, "no job token", "--token-file")


def test_a_host_with_the_wrong_token_is_turned_away(understudy: Command, tmp_path: Path) -> None:
    from understudy.runtime.wire import Server, Service

    server = Server("127.0.0.1:0", "the right one", Service())
    try:
        arguments = ("--name", "h1", "--coordinator", server.address)
        result = understudy(tmp_path, "host", *arguments, UNDERSTUDY_TOKEN="a wrong one")
    finally:
        server.shutdown()
    assert result.returncode == 4, result
    assert "refused this host" in result.stdout and "token" in result.stdout


def test_status_of_nothing_and_with_the_wrong_token(understudy: Command, tmp_path: Path) -> None:
    from understudy.runtime.wire import Server, Service

    failed(understudy(tmp_path, "status"), 3, "found 0 jobs", "--state")
    state = tmp_path / ".understudy" / "job"
    state.mkdir(parents=True)
    server = Server("127.0.0.1:0", "the right one", Service())
    try:
        (state / "coordinator.json").write_text(json.dumps({"address": server.address}))
        (state / "token").write_text("a wrong one")
        failed(understudy(tmp_path, "status"), 4, "refused", "token")
    finally:
        server.shutdown()
    failed(understudy(tmp_path, "status"), 3, "not running")


def test_status_names_every_standby(understudy: Command, tmp_path: Path) -> None:
    from understudy.runtime.messages import Status
    from understudy.runtime.wire import Server, Service

    units = {
        "both": {
            "policy": "passive-standby standbys=2",
            "generation": 3,
            "primary": "h1",
            "standbys": ["h2", "h3"],
            "ready": ["h3"],
            "armed": ["h3"],
            "monitor": "h3",
        },
        "alone": {
            "policy": "none", "generation": 1, "primary": None, "standbys": [], "ready": [], "armed": [],
            "monitor": "coordinator", "turn": {"policy": "hybrid", "standbys": ["h3"], "ready": []},
        },
    }  # fmt: skip
    well = {"state": "well", "misses": 0, "since": None, "failures": 0, "returned": None, "by": {}}
    by = {"coordinator": {"misses": 1, "failed": None}, "h3": {"misses": 2, "failed": None}}
    now = time.time()
    hosts = {
        "h1": {"alive": True, "health": well},
        "h2": {"alive": True, "health": well | {"state": "suspected", "misses": 2, "since": now - 1.5, "by": by}},
        "h3": {"alive": True, "health": well | {"failures": 2, "returned": now - 60}},
    }
    answer = {"job": "j", "units": units, "hosts": hosts, "bytes": {"data": 1234}}
    state = tmp_path / ".understudy" / "job"
    state.mkdir(parents=True)
    server = Server("127.0.0.1:0", "t", Service(calls={Status: lambda call, body: answer}))
    try:
        (state / "coordinator.json").write_text(json.dumps({"address": server.address}))
        (state / "token").write_text("t")
        result = understudy(tmp_path, "status")
        as_json = understudy(tmp_path, "status", "--json")
    finally:
        server.shutdown()
    assert result.returncode == 0, result
    rows = [[cell.strip() for cell in row.split("│")[1:-1]] for row in result.stdout.splitlines() if "│" in row]
    assert rows[:2] == [
        ["both", "passive-standby standbys=2", "3", "h1", "h2 (no state yet), h3 (armed)", "h3"],
        [
            "alone", "none -> hybrid", "1", "waiting", "UNPROTECTED, as its policy says, h3 (no state yet, for hybrid)",
            "coordinator",
        ],
    ]  # fmt: skip
    health = {row[0]: row[1] for row in rows[2:]}
    assert health["h1"] == "well"
    suspected = r"suspected: 2 heartbeats missed, silent for \d+\.?\d* s \(the coordinator and h3 say so\)"
    assert re.fullmatch(suspected, health["h2"])
    assert re.fullmatch(r"well; failed twice, back for 6\d s", health["h3"])
    assert "bytes: data 1,234" in result.stdout
    assert json.loads(as_json.stdout) == answer


def test_options_that_make_no_sense(understudy: Command, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(GOOD.format(extra=""))
    failed(understudy(tmp_path, "run", "job.py", "--conf", "nonsense"), 3, "KEY=VALUE")
    failed(understudy(tmp_path, "run", "job.py", "--heartbeat", "soon"), 3, "--heartbeat", "500ms")
    failed(understudy(tmp_path, "drill", "job.py", "--kill", "copy", "--signal", "HUP"), 3, "KILL or STOP")
    failed(understudy(tmp_path, "run"), 2, "JOB.py")
    failed(understudy(tmp_path, "run", "job.py", "--hosts", "0"), 2, "--hosts")
    arguments = ("--name", "coordinator", "--coordinator", "127.0.0.1:1")
    failed(understudy(tmp_path, "host", *arguments, UNDERSTUDY_TOKEN="t"), 3, "--name coordinator", "another name")


def test_settings_and_masters_that_would_break_protection(understudy: Command, tmp_path: Path) -> None:
    """Whatever is started: at once, before Java is looked for."""
    (tmp_path / "job.py").write_text(GOOD.format(extra=""))
    wrong = ("--conf", "spark.sql.streaming.stateStore.checkpointFormatVersion=2")
    for command in (
        ("run", "job.py"),
        ("run", "job.py", "--coordinator", "127.0.0.1:0"),
        ("plan", "job.py"),
        ("drill", "job.py", "--kill", "copy"),
        ("host", "--name", "h1", "--coordinator", "127.0.0.1:1"),
    ):
        result = understudy(tmp_path, *command, *wrong, JAVA_HOME=str(tmp_path), UNDERSTUDY_TOKEN="t")
        failed(result, 3, "checkpointFormatVersion=2 is refused", "not sent to standbys", "leave it out")
    result = understudy(tmp_path, "run", "job.py", "--master", "yarn", JAVA_HOME=str(tmp_path))
    failed(result, 3, "--master yarn is refused", "run a host on every machine")
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["job.py"]


def test_a_host_says_where_others_reach_it(understudy: Command, tmp_path: Path) -> None:
    from understudy.runtime.messages import Join
    from understudy.runtime.wire import Server, Service

    joined: list[Join] = []

    def join(call: Join, body: bytes) -> None:
        joined.append(call)
        os.kill(call.pid, signal.SIGTERM)

    server = Server("127.0.0.1:0", "t", Service(calls={Join: join}))
    try:
        arguments = ("--name", "h1", "--coordinator", server.address, "--lazy-spark")
        failed(understudy(tmp_path, "host", *arguments, "--advertise", "here", UNDERSTUDY_TOKEN="t"), 3, "HOST:PORT")
        understudy(tmp_path, "host", *arguments, "--advertise", "127.0.0.1:7777", UNDERSTUDY_TOKEN="t")
        understudy(tmp_path, "host", *arguments, "--listen", "127.0.0.1:0", UNDERSTUDY_TOKEN="t")
    finally:
        server.shutdown()
    addresses = [call.address for call in joined]
    assert addresses[0] == "127.0.0.1:7777" != addresses[-1]
