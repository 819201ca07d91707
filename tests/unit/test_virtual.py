"""The commands that run in virtual time, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from understudy.cli import app
from understudy.errors import DrillFailed, JobError, UnderstudyError
from understudy.sim import fuzz

JOB = """
import understudy as us

job = us.Job("small", epoch="500ms")
cars = job.source("cars", us.sources.rate(rows_per_second=10))

@job.stage(cars)
def a(cars):
    return cars

@job.stage(a)
def b(a):
    return a

job.sink(b, us.sinks.parquet("out"))
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def test_fuzz_tallies_what_it_did(tmp_path: Path) -> None:
    found = run("fuzz", "--seeds", 40, "--seed", 7, "--processes", 1, "--out", tmp_path / "fuzz.json")
    assert found.exit_code == 0, found.output
    tally = json.loads((tmp_path / "fuzz.json").read_text())
    assert (tally["schedules"], tally["violations"], tally["failed_seeds"]) == (40, 0, [])
    assert sum(tally["policies"].values()) == 40 and sum(tally["faults"].values()) > 20
    assert "40 schedules" in found.output and "0 violations" in found.output


def test_fuzz_as_json(tmp_path: Path) -> None:
    found = run("fuzz", "--seeds", 5, "--processes", 1, "--json", "--out", tmp_path / "fuzz.json")
    assert json.loads(found.output.splitlines()[-1])["schedules"] == 5


def test_one_seed_is_told() -> None:
    found = run("fuzz", "--seeds", 1, "--seed", 3)
    assert found.exit_code == 0 and "becomes primary" in found.output and "all is well" in found.output


def test_a_story_that_goes_wrong_names_its_seed_and_how_to_have_it_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fuzz.judge
    monkeypatch.setattr(fuzz, "judge", lambda world, *rest: [*right(world, *rest), "epoch 3 is different"])
    found = run("fuzz", "--seeds", 3, "--seed", 5, "--processes", 1, "--out", tmp_path / "fuzz.json")
    assert isinstance(found.exception, DrillFailed)
    assert "understudy fuzz --seeds 1 --seed 5" in str(found.exception)
    assert json.loads((tmp_path / "fuzz.json").read_text())["violations"] == 3
    told = run("fuzz", "--seeds", 1, "--seed", 5)
    assert isinstance(told.exception, DrillFailed) and "epoch 3 is different" in str(told.exception)


def test_simulate_writes_a_page_and_a_table(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "sim"
    found = run("simulate", job, "--hosts", 60, "--racks", 6, "--days", 30, "--policy", "passive", "--out", out)
    assert found.exit_code == 0, found.output
    assert "silence" in found.output and "passive" in found.output
    summary = json.loads((out / "summary.json").read_text())
    assert [r["policy"] for r in summary["results"]] == ["passive standby, sweeping every 500ms"]
    assert {p.name for p in out.iterdir()} >= {"index.html", "datacentre.png", "datacentre.svg"}


def test_simulate_all_policies_as_json(job: Path, tmp_path: Path) -> None:
    found = run("simulate", job, "--hosts", 60, "--racks", 6, "--days", 5, "--json", "--out", tmp_path)
    assert len(json.loads(found.output.splitlines()[-1])) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "brave"], ["--policy 'brave': unknown policy 'brave'", "in short: job, none, passive"]),
        (["--hosts", 0], ["hosts=0"]),
        (["--racks", 99, "--hosts", 20], ["racks=99 is more than hosts=20"]),
        (["--days", -1], ["days=-1"]),
        (["--failures", "gremlins"], ["gremlins", "google"]),
        (["--policy", "upstream", "--k", 9], ["k=9", "longest path"]),
        (["--policy", "passive", "--k", 30, "--hosts", 20, "--racks", 2], ["30"]),
        (["--placement", "anywhere"], ["placement='anywhere' is not known"]),
    ],
)
def test_simulate_refuses_what_cannot_be(job: Path, tmp_path: Path, arguments: list[object], words: list[str]) -> None:
    found = run("simulate", job, "--out", tmp_path / "sim", *arguments)
    assert isinstance(found.exception, JobError), found.output
    assert all(word in str(found.exception) for word in words), found.exception
    assert not (tmp_path / "sim").exists()


def test_simulate_takes_policies_from_a_roles_file_and_in_words(job: Path, tmp_path: Path) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text('[units.b]\nha = "active-standby copies=3"\nhost = "h1"\n')
    small = ("--hosts", 60, "--racks", 6, "--days", 5, "--json", "--out", tmp_path / "sim")
    words = ("--policy", "job", "--policy", "active-standby copies=3 eager")
    found = run("simulate", job, *small, "--roles", roles, *words)
    first, second = json.loads(found.output.splitlines()[-1])
    plain = run("simulate", job, *small, "--policy", "job")
    assert first["policy"] == "as written" and first != json.loads(plain.output.splitlines()[-1])[0]
    assert second["policy"] == "active standby, eager, 3 copies"
    roles.write_text("[units.nobody]\n")
    found = run("simulate", job, *small, "--roles", roles)
    assert isinstance(found.exception, JobError) and "unknown unit 'nobody'" in str(found.exception)


def test_simulate_does_not_guess_what_a_goal_will_become(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(
        'import understudy as us\njob = us.Job("goal", ha=us.auto())\n'
        'b = job.stage(job.source("a", us.sources.rate()), name="b")(lambda a: a)\n'
        "job.sink(b, us.sinks.console())\n"
    )
    found = run("simulate", path, "--policy", "job", "--out", tmp_path / "sim")
    assert isinstance(found.exception, JobError) and "us.auto" in str(found.exception)


def test_simulate_refuses_a_cycle(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(
        'import understudy as us\njob = us.Job("round")\n'
        'job.stage("b", name="a")(lambda b: b)\njob.stage("a", name="b")(lambda a: a)\n'
    )
    found = run("simulate", path)
    assert isinstance(found.exception, UnderstudyError) and "cycle" in str(found.exception)
