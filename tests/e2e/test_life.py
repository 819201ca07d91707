"""Real hosts, real JVMs, real signals. Few tests, each telling a whole story, because every JVM costs ten seconds."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest
from processes import end, start

from authority import Authority
from jobs import DIAMOND, IN_ORDER, NOTED, PAIR, RARELY, REPLAYED, SPARKED, THROWS, write_job
from understudy.cli import FAST_START
from understudy.drill import Drill
from understudy.errors import StageFailed
from understudy.runtime import messages, wire
from understudy.runtime.cluster import signal_tree
from understudy.runtime.session import LocalRun, wait_for
from understudy.sources import generate_rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def epochs_in(sink: Path) -> list[int]:
    return sorted(int(p.name.partition("=")[2]) for p in sink.glob("epoch=*"))


def expected_counts(rows: int, keys: int) -> dict[int, int]:
    table = generate_rows(0, rows, keys=keys)
    return {r["road"]: r["id_count"] for r in table.group_by("road").aggregate([("id", "count")]).to_pylist()}


def final_counts(sink: Path) -> dict[int, int]:
    """The newest count of every road, from an update-mode sink."""
    table = ds.dataset(sink, format="parquet", partitioning="hive", exclude_invalid_files=True).to_table()
    newest = table.sort_by("epoch").group_by("road", use_threads=False).aggregate([("cars", "last")])
    return {r["road"]: r["cars_last"] for r in newest.to_pylist()}


def test_killed_primary_killed_everything_and_clean_stop(tmp_path: Path) -> None:
    """One job's life: a takeover; every process killed at once; resumed; stopped cleanly. The counts at the end are
    exactly those of the rows that the source made, each counted once. Jobs that go on after a clean stop: below, and
    in ``test_plan.py``."""
    sink = tmp_path / "out"
    job = write_job(tmp_path, PAIR, sink=sink)
    state = tmp_path / "state"
    with LocalRun(job, state, hosts=2, fresh=True, settings=FAST_START) as run:
        run.coordinator.wait_until_running(armed=True, timeout_s=180)
        with pytest.raises(flight.FlightUnauthenticatedError):
            wire.Peer(run.coordinator.address, "not the token").call(messages.Status())
        with pytest.raises(flight.FlightUnauthenticatedError):
            wire.Peer(run.coordinator.hosts["h1"], "").call(messages.Exit())
        rehearsed = re.findall(r"speeds: rehearsed on (\d+) rows", (state / "hosts" / "h1" / "host.log").read_text())
        assert rehearsed and all(map(int, rehearsed)), "what comes from a stream of this host's own"
        before = epochs_in(sink)[-1]
        run.hosts.signal(run.host_of("speeds"), signal.SIGKILL)
        wait_for(lambda: epochs_in(sink)[-1] > before + 5, 120, "output after the takeover")
        assert run.coordinator.failover.plan.units["speeds"].primary == "h1"
        for name in run.hosts.alive():
            run.hosts.signal(name, signal.SIGKILL)
        run.coordinator.close(exit_hosts=False)
    crashed = epochs_in(sink)[-1]
    with LocalRun(job, state, hosts=2, settings=FAST_START) as run:
        wait_for(lambda: epochs_in(sink)[-1] > crashed + 5, 120, "output after everything was killed")
        assert run.stop(), "a clean stop"
    assert epochs_in(sink) == list(range(epochs_in(sink)[-1] + 1))
    logs = sorted(state.glob("hosts/*/stages/positions/entries.jsonl"), key=lambda p: p.stat().st_size)
    entries = [json.loads(line) for line in logs[-1].read_text().splitlines()]
    assert [e["first"] for e in entries[1:]] == [e["first"] + e["count"] for e in entries[:-1]]
    rows = entries[-1]["first"] + entries[-1]["count"]
    assert final_counts(sink) == expected_counts(rows, keys=50)


def test_code_that_throws_stops_the_job_and_can_be_fixed(tmp_path: Path) -> None:
    """It throws on every host, so it is tried on one other and not bounced for ever; after the fix the job goes on
    with nothing lost."""
    sink = tmp_path / "out"
    job = write_job(tmp_path, THROWS, sink=sink, broken=True)
    with pytest.raises(StageFailed, match=r"'speeds'.*epoch \d+.*ZeroDivisionError") as failure:
        with LocalRun(job, tmp_path / "state", hosts=2, fresh=True, settings=FAST_START) as run:
            run.coordinator.wait(150)
    assert failure.value.exit_code == 5
    job = write_job(tmp_path, THROWS, sink=sink, broken=False)
    before = epochs_in(sink)[-1] if epochs_in(sink) else -1
    with LocalRun(job, tmp_path / "state", hosts=2, settings=FAST_START) as run:
        wait_for(lambda: (epochs_in(sink) or [-1])[-1] > before + 5, 120, "output after the fix")
        assert run.stop()
    table = ds.dataset(sink, format="parquet", partitioning="hive", exclude_invalid_files=True).to_table()
    newest = table.sort_by("epoch").group_by("road", use_threads=False).aggregate([("n", "last")])
    log = max((tmp_path / "state").glob("hosts/*/stages/positions/entries.jsonl"), key=lambda p: p.stat().st_size)
    last = json.loads(log.read_text().splitlines()[-1])
    assert sum(newest["n_last"].to_pylist()) == last["first"] + last["count"]


def standby_store(drill: Drill) -> Path:
    host = drill.coordinator.failover.plan.units["speeds"].standby
    return next((drill.out / "state" / "hosts" / str(host) / "stages" / "speeds").glob("standby-*"))


def test_a_standby_with_bad_files_and_one_with_a_full_disk(tmp_path: Path) -> None:
    """A file and its twin are damaged: the standby reads its store again and again, notices, and gets them anew. A file
    is damaged, then the primary dies: the twin is used, and it says so. No space is left where the next standby stores:
    the job goes on and says loudly that it is unprotected. Nothing is lost."""
    job = write_job(tmp_path, RARELY, sink=tmp_path / "out")
    with Drill(job, tmp_path / "drill", hosts=2, settings=FAST_START) as drill:
        drill.settle(4)
        store = standby_store(drill)
        for folder in ("state", "twins"):
            (store / folder / "metadata").write_bytes(b"rotten")
        wait_for(lambda: said(drill, "damaged"), 30, "the warning")
        wait_for(lambda: (store / "state" / "metadata").read_bytes() != b"rotten", 30, "the whole version")

        seen = {p.stem for p in (store / "manifests").glob("*.json")}
        wait_for(lambda: bool({p.stem for p in (store / "manifests").glob("*.json")} - seen), 20, "a new version")
        time.sleep(0.3)  # until it was read again, as after every paste; the next one is 3 s away
        newest = max(int(p.stem) for p in (store / "manifests").glob("*.json"))
        (store / "state" / "commits" / str(newest)).write_bytes(b"nonsense")
        drill.signal("speeds")
        drill.wait_event("damaged")
        damage = said(drill, "damaged")[-1]
        assert damage == f"speeds: commits/{newest} does not match its hash; mended from its twin"
        drill.epochs(8)

        drill.run.hosts.start(drill.harmed[0])
        drill.wait_event("standby-ready", timeout_s=90, unit="speeds")
        commits = standby_store(drill) / "incoming" / "commits"
        wait_for(commits.is_dir, 30, "a checkpoint")
        for epoch in range(drill.newest(), drill.newest() + 500):
            (commits / str(epoch)).symlink_to("/dev/full")  # every write there fails with ENOSPC
        full = os.strerror(errno.ENOSPC)
        wait_for(lambda: any(full in text for text in said(drill, "unprotected")), 30, "the warning")
        assert "speeds is UNPROTECTED" in said(drill, "unprotected")[-1]
        drill.epochs(5)
        result = drill.judge()
    assert result["verdict"] == "precise", result


def said(drill: Drill, kind: str) -> list[str]:
    return [event["text"] for event in drill.coordinator.events if event["kind"] == kind]


def read_sink(path: Path) -> pa.Table:
    return ds.dataset(path, format="parquet", partitioning="hive", exclude_invalid_files=True).to_table()


def test_upstream_backup_rebuilds_stages_and_windows_by_replay(tmp_path: Path) -> None:
    """Windows that emit when they close and windows that emit as they grow, with rows that come late for them, and a
    stage without state that feeds one with state; rebuilt elsewhere, and once more together with the source and the
    stages around them."""
    job = write_job(tmp_path, REPLAYED, sink=tmp_path / "closed", other=tmp_path / "open", third=tmp_path / "counts")
    with Drill(job, tmp_path / "drill", hosts=2, settings=FAST_START) as drill:
        drill.settle(20)  # windows have closed
        drill.signal("closed")
        for unit in ("closed", "moving"):
            drill.wait_event("restarted", unit=unit)
        drill.epochs(10)
        status = drill.coordinator.status()["hosts"]
        kept = next(h["stages"]["timed"] for h in status.values() if h.get("stages", {}).get("timed"))
        assert 0 < kept["trimmed"] < kept["produced"] - 5, "it keeps what an open window may hold, and not all"
        drill.run.hosts.start(drill.harmed[0])
        for unit in ("timed", "speeds"):
            drill.wait_event("standby-ready", timeout_s=90, unit=unit)
        drill.epochs(4)
        drill.signal("closed")  # now on one host with all the others
        drill.epochs(20)
        result = drill.judge()
    assert result["verdict"] == "precise", result
    assert result["disorder"] == []
    closed = read_sink(tmp_path / "drill" / "run" / "closed").to_pylist()
    keys = {(row["window"]["start"], row["road"]) for row in closed}
    assert len(closed) == len(keys) > 100, "each window closes once"
    whole = [sum(r["cars"] for r in closed if r["window"]["start"] == start) for start in sorted({s for s, _ in keys})]
    assert all(0 < rows < 4000 for rows in whole), "rows came late for them"


def test_a_sink_is_given_windows_that_are_rebuilt_only_as_they_were(tmp_path: Path) -> None:
    """A sink that cannot know what it has: what comes again, comes with the same rows."""
    notes = tmp_path / "notes"
    notes.mkdir()
    job = write_job(tmp_path, NOTED, notes=notes)

    def noted() -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for path in notes.glob("[0-9]*"):
            found.setdefault(int(path.name.split()[0]), set()).add(path.read_text())
        return found

    with LocalRun(job, tmp_path / "state", hosts=2, fresh=True, settings=FAST_START) as run:
        wait_for(lambda: len(noted()) > 20, 180, "epochs of open windows")
        last = max(noted())
        run.hosts.signal(run.host_of("open"), signal.SIGKILL)
        wait_for(lambda: max(noted()) > last + 5, 120, "output after the takeover")
        assert run.stop(), "a clean stop"
    epochs = noted()
    assert sorted(epochs) == list(range(max(epochs) + 1))
    assert [epoch for epoch, versions in epochs.items() if len(versions) > 1] == []


def test_windows_are_rebuilt_also_right_after_a_clean_stop(tmp_path: Path) -> None:
    """What an open window was made of was read before the stop, and is still there after it."""
    sink = tmp_path / "out"
    job = write_job(tmp_path, IN_ORDER, sink=sink)
    with LocalRun(job, tmp_path / "state", hosts=2, fresh=True, settings=FAST_START) as run:
        wait_for(lambda: len(epochs_in(sink)) > 25, 180, "output")
        assert run.stop(), "a clean stop"
    stopped = epochs_in(sink)[-1]
    with LocalRun(job, tmp_path / "state", hosts=2, settings=FAST_START) as run:
        wait_for(lambda: epochs_in(sink)[-1] > stopped + 2, 180, "output after the stop")
        run.hosts.signal(run.host_of("closed"), signal.SIGKILL)
        after = epochs_in(sink)[-1]
        wait_for(lambda: epochs_in(sink)[-1] > after + 25, 180, "output after the takeover")
        assert run.stop(), "a clean stop"
    windows = read_sink(sink).sort_by("ids").to_pylist()
    rows = 4 * 2000
    assert len(windows) >= 4
    for number, window in enumerate(windows):
        assert window["cars"] == rows, "every window is whole"
        assert window["ids"] == sum(range(number * rows, (number + 1) * rows)), "and comes once, in its turn"


def test_spark_source_diamond_and_two_sinks(tmp_path: Path) -> None:
    """A source read by Spark, a fork, a join of two streams and two sinks, through the death of the source's host."""
    folder = tmp_path / "in"
    folder.mkdir()
    job = write_job(tmp_path, DIAMOND, files=folder, sink=tmp_path / "out", other=tmp_path / "even")

    def drop(first: int) -> None:
        temporary = tmp_path / f"{first}.tmp"
        pq.write_table(pa.table({"n": list(range(first, first + 100))}), temporary)
        os.rename(temporary, folder / f"{first:09d}.parquet")

    drop(0)
    with Drill(job, tmp_path / "drill", hosts=2, settings=FAST_START) as drill:
        drill.coordinator.wait_until_running(timeout_s=180, armed=True)
        for i in range(1, 6):
            drop(i * 100)
            drill.epochs(1)
        drill.signal("numbers")
        for i in range(6, 11):
            drop(i * 100)
            drill.epochs(1)
        drill.epochs(3)
        result = drill.judge()
    assert result["verdict"] == "precise", result
    even = ds.dataset(tmp_path / "drill" / "run" / "even-copy", format="parquet", exclude_invalid_files=True).to_table()
    assert sorted(even["n"].to_pylist()) == list(range(0, 1100, 2))


def test_a_source_that_spark_reads_is_stopped_before_its_first_epoch(tmp_path: Path) -> None:
    """And resumed: nothing was read, and nothing is missing."""
    folder, sink = tmp_path / "files", tmp_path / "out"
    folder.mkdir()
    pq.write_table(pa.table({"n": list(range(100))}), folder / "a.parquet")
    job = write_job(tmp_path, SPARKED, files=folder, sink=sink)
    with LocalRun(job, tmp_path / "state", hosts=2, fresh=True, settings=FAST_START) as run:
        assert run.stop(), "a clean stop"
    assert epochs_in(sink) == []
    with LocalRun(job, tmp_path / "state", hosts=2, settings=FAST_START) as run:
        wait_for(lambda: len(epochs_in(sink)) > 2, 120, "output after the job was resumed")
        assert run.stop(), "a clean stop"
    table = ds.dataset(sink, format="json", exclude_invalid_files=True).to_table()
    assert sorted(table["c"].to_pylist()) == [10] * 10


ROLES = """
[units.speeds]
host = "h1"
standbys = ["h2"]
state = "h2"
monitor = "h2"
ha = "passive-standby individual 400ms"
"""


def test_command_line_run_roles_status_and_ctrl_c(tmp_path: Path) -> None:
    """`understudy run`, `understudy status --json` beside it: roles from a file are kept; a primary that is paused is
    missed, given up and welcomed back by its monitor; a host that dies is started again; Ctrl-C: a clean end, no
    process left, and every row counted once."""
    job = write_job(tmp_path, PAIR, sink=tmp_path / "out")
    (tmp_path / "roles.toml").write_text(ROLES)
    command = [sys.executable, "-m", "understudy"]
    conf = [x for k, v in FAST_START.items() for x in ("--conf", f"{k}={v}")]
    state = str(tmp_path / "state")
    roles = ["--hosts", "2", "--roles", "roles.toml"]
    process = start("run", str(job), *roles, "--state", state, *conf, folder=tmp_path)
    try:
        wait_for(lambda: len(epochs_in(tmp_path / "out")) > 5, 150, "output")

        def status() -> dict[str, Any]:
            asked = [*command, "status", "--state", state, "--json"]
            return json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)

        answer = status()
        assert set(answer["hosts"]) == {"h1", "h2"}
        speeds = answer["units"]["speeds"]
        assert (speeds["primary"], speeds["standbys"], speeds["monitor"]) == ("h1", ["h2"], "h2")
        assert speeds["policy"] == "passive-standby checkpoint=individual every=400ms"
        wait_for(lambda: all(u["ready"] for u in status()["units"].values()), 90, "standbys")
        _pause_and_return(psutil.Process(answer["hosts"]["h1"]["pid"]), tmp_path / "state", status)
        victim = status()["units"]["speeds"]["standbys"][0]
        assert victim == "h1", "the former primary"
        signal_tree(psutil.Process(answer["hosts"][victim]["pid"]), signal.SIGKILL)
        wait_for(lambda: not status()["hosts"][victim]["alive"], 30, "the death to be noticed")
        wait_for(lambda: status()["units"]["speeds"]["ready"], 90, "the host to be back as standby")
        policy = [*command, "policy", str(job), "--state", state]
        changed = subprocess.run([*policy, "speeds", "hybrid", "1s"], capture_output=True, text=True, check=True)
        assert changed.stdout == "speeds: now under hybrid, sweeping every 1s\n"
        assert status()["units"]["speeds"]["policy"] == "hybrid every=1s"
        wrong = subprocess.run([*policy, "speeds", "hybris"], capture_output=True, text=True, check=False)
        assert (wrong.returncode, "policies are: none, passive-standby" in wrong.stderr) == (2, True), wrong
        pids = [h["pid"] for h in status()["hosts"].values()]
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
    finally:
        end(process)
    assert process.returncode == 0, text
    assert "stopped; run it again to go on" in text
    assert "Traceback" not in text
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(p) for p in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(psutil.pid_exists(p) for p in pids)
    after = subprocess.run([*command, "status", "--state", state], capture_output=True, text=True, check=False)
    assert after.returncode == 3
    assert "is not running" in after.stderr
    log = max((tmp_path / "state").glob("hosts/*/stages/positions/entries.jsonl"), key=lambda p: p.stat().st_size)
    last = json.loads(log.read_text().splitlines()[-1])
    assert final_counts(tmp_path / "out") == expected_counts(last["first"] + last["count"], keys=50)


def _pause_and_return(primary: psutil.Process, state: Path, status: Callable[[], dict[str, Any]]) -> None:
    """Pause h1, which runs everything, until h2, its monitor and standby, has taken over; then let it go on."""

    def told(kind: str, by: str = "h2") -> bool:
        events = [json.loads(line) for line in (state / "events.jsonl").read_text().splitlines()]
        return any(e["t"] > paused_at and (e["kind"], e.get("host"), e.get("by")) == (kind, "h1", by) for e in events)

    paused_at = signal_tree(primary, signal.SIGSTOP)
    try:
        wait_for(lambda: told("missed"), 10, "the first miss")
        wait_for(lambda: told("failed"), 10, "the failure")
        health = status()["hosts"]["h1"]["health"]
        assert health["state"] == "failed" and health["failures"] == 1 and "h2" in health["by"]
        assert health["misses"] >= 5 and paused_at < health["since"] < time.time()
        wait_for(lambda: status()["units"]["speeds"]["primary"] == "h2", 10, "the takeover")
    finally:
        signal_tree(primary, signal.SIGCONT)
    wait_for(lambda: told("answers"), 20, "the return")
    wait_for(lambda: status()["units"]["speeds"]["ready"] == ["h1"], 90, "the former primary to be standby")
    health = status()["hosts"]["h1"]["health"]
    assert health["state"] == "well" and health["returned"] > paused_at
    assert status()["units"]["speeds"]["monitor"] == "coordinator", "h2 cannot watch itself"


def test_hosts_started_apart_speak_tls(tmp_path: Path) -> None:
    """`understudy host` twice and `understudy run --coordinator`, all with certificates; `status` needs one too."""
    job = write_job(tmp_path, PAIR, sink=tmp_path / "out")
    tls = Authority(tmp_path / "tls").tls()
    token = tmp_path / "token"
    token.write_text("a token that both sides were given")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "understudy"]
    secure = ["--token-file", str(token), "--tls-cert", tls.cert, "--tls-key", tls.key, "--tls-ca", tls.ca]
    conf = [x for k, v in FAST_START.items() for x in ("--conf", f"{k}={v}")]
    state = ["--state", str(tmp_path / "state")]

    hosts = [["host", "--name", name, "--coordinator", address, *secure, *conf] for name in ("h1", "h2")]
    run = ["run", str(job), "--hosts", "2", "--coordinator", address, *state, *secure]
    processes = [start(*arguments, folder=tmp_path) for arguments in (run, *hosts)]
    try:
        wait_for(lambda: len(epochs_in(tmp_path / "out")) > 5, 150, "output")
        asked = [*command, "status", *state, "--json"]
        answer = json.loads(subprocess.run([*asked, *secure], capture_output=True, text=True, check=True).stdout)
        assert set(answer["hosts"]) == {"h1", "h2"}
        plain = subprocess.run([*asked, *secure[:2]], capture_output=True, text=True, check=False)
        assert plain.returncode == 3
        processes[0].send_signal(signal.SIGINT)
        text, _ = processes[0].communicate(timeout=60)
        assert processes[0].returncode == 0, text
        assert [p.wait(timeout=30) for p in processes[1:]] == [0, 0]
    finally:
        for process in processes:
            end(process)
    assert epochs_in(tmp_path / "out") == list(range(epochs_in(tmp_path / "out")[-1] + 1))
