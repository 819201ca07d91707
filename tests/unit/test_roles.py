"""Who does what for a unit: in the job, and in a TOML file that overrides it. One clear line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import understudy as us
from understudy.core.policies import Policy
from understudy.core.topology import StageShape, Topology, UnitShape
from understudy.errors import JobError
from understudy.roles import check_hosts, read

CARS = us.sources.rate(10)
HOSTS = ("h1", "h2", "h3")


def identity(df: Any) -> Any:
    return df


def traffic(**roles: Any) -> us.Job:
    """A source, and two stages in a unit."""
    job = us.Job("traffic")
    cars = job.source("cars", CARS)
    with job.unit("ingest", **roles):
        job.stage(cars, name="a")(identity)
        job.stage("a", name="b")(identity)
    return job


def ingest(job: us.Job) -> UnitShape:
    return job.topology().units["ingest"]


def file(folder: Path, text: str) -> Path:
    path = folder / "roles.toml"
    path.write_text(text)
    return path


def mistake(caught: pytest.ExceptionInfo[JobError], *words: str) -> None:
    text = str(caught.value)
    for word in words:
        assert word in text, text
    assert "\n" not in text
    assert caught.value.exit_code == 2


# -- in the job -----------------------------------------------------------------------------------------------------


def test_a_unit_names_its_hosts() -> None:
    job = traffic(ha=us.PassiveStandby(standbys=2), host="h1", standbys=["h2", "h3"], state="h3", monitor="h3")
    policy = us.PassiveStandby(standbys=2)
    assert ingest(job) == UnitShape("ingest", ("a", "b"), policy, "h1", ("h3", "h2"), "h3"), "the state host is first"


def test_what_is_not_said_is_left_to_the_placement() -> None:
    assert ingest(traffic()) == UnitShape("ingest", ("a", "b"), us.PassiveStandby(), None, (), None)


def test_sources_and_stages_name_hosts_too_and_one_standby_needs_no_list() -> None:
    job = us.Job("traffic")
    cars = job.source("cars", CARS, host="h1", standbys="h2", state="h2", monitor="h3")
    job.stage(cars, name="a", host="h2", standbys=("h3", "h1"), monitor="h1")(identity)
    units = job.topology().units
    assert units["cars"] == UnitShape("cars", ("cars",), us.PassiveStandby(), "h1", ("h2",), "h3")
    assert units["a"] == UnitShape("a", ("a",), us.PassiveStandby(), "h2", ("h3", "h1"), "h1")


def test_a_unit_and_its_stages_may_each_say_a_part() -> None:
    job = us.Job("traffic")
    with job.unit("u", monitor="h3"):
        cars = job.source("cars", CARS, host="h1")
        job.stage(cars, name="a", standbys=["h2"], host="h1")(identity)
    assert job.topology().units["u"] == UnitShape("u", ("cars", "a"), us.PassiveStandby(), "h1", ("h2",), "h3")


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ({"host": "h1", "standbys": ["h2", "h1"]}, ["names 'h1' twice", "different hosts"]),
        ({"standbys": ["h2", "h2"]}, ["names 'h2' twice"]),
        ({"host": "h1", "monitor": "h1"}, ["monitor='h1' is the host that it would watch", "name another"]),
        (
            {"standbys": ["h2", "h3"], "state": "h1"},
            ["state='h1' is not one of its standbys", "from its own disk", "name one of 'h2', 'h3'"],
        ),
        ({"state": "h2"}, ["state='h2' is not one of its standbys", "name it in standbys= too"]),
        ({"standbys": 2}, ["standbys=2 is not a list of hosts", '["h2", "h3"]']),
        ({"standbys": ["h2", 3]}, ["standbys=['h2', 3] is not a list of hosts"]),
        ({"host": ["h1"]}, ["host=['h1'] is not a host"]),
        ({"monitor": ""}, ["monitor='' is not a host"]),
    ],
)
def test_roles_that_contradict_each_other_are_refused_where_they_are_written(
    roles: dict[str, Any], words: list[str]
) -> None:
    for write in (
        lambda: traffic(**roles),
        lambda: us.Job("traffic").source("cars", CARS, **roles),
        lambda: us.Job("traffic").stage("cars", name="a", **roles)(identity),
    ):
        with pytest.raises(JobError, match=r"^test_roles\.py:\d+: (unit|source|stage) ") as caught:
            write()
        mistake(caught, *words)


def test_a_unit_is_placed_as_one() -> None:
    job = us.Job("traffic")
    with job.unit("u", standbys=["h2"]):
        cars = job.source("cars", CARS)
        job.stage(cars, name="a", standbys=["h3"])(identity)
    with pytest.raises(JobError) as caught:
        job.topology()
    mistake(caught, "unit 'u' is asked for standbys=['h3'] and standbys=['h2']", "say each role once")


# -- in a file ------------------------------------------------------------------------------------------------------


def test_a_file_overrides_the_job_and_leaves_the_rest(tmp_path: Path) -> None:
    job = traffic(ha=us.ActiveStandby(), host="h1", standbys=["h2"], monitor="h2")
    roles = read(
        file(
            tmp_path,
            """
            [units.ingest]
            standbys = ["h3", "h2"]
            state = "h2"
            ha = "passive-standby individual 200ms standbys=2"

            [units.cars]
            host = "h3"
            """,
        )
    )
    job.assign(json.loads(json.dumps(roles)))  # as it is sent to hosts
    units = job.topology().units
    policy = us.PassiveStandby("individual", every="200ms", standbys=2)
    assert units["ingest"] == UnitShape("ingest", ("a", "b"), policy, "h1", ("h2", "h3"), "h2")
    assert units["cars"] == UnitShape("cars", ("cars",), us.PassiveStandby(), "h3")
    assert job.policy("a") == job.policy("b") == policy


def test_a_file_may_leave_standbys_to_the_placement_again(tmp_path: Path) -> None:
    job = traffic(standbys=["h2"])
    job.assign(read(file(tmp_path, "[units.ingest]\nstandbys = []")))
    assert ingest(job).standbys == ()


def test_a_files_policy_comes_before_a_stages_own(tmp_path: Path) -> None:
    job = us.Job("traffic")
    cars = job.source("cars", CARS)
    job.stage(cars, name="a", ha=us.none)(identity)
    job.assign(read(file(tmp_path, '[units.a]\nha = "active-standby"')))
    assert job.policy("a") == us.ActiveStandby()


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    job = traffic(host="h1")
    before = job.topology()
    job.assign(read(file(tmp_path, "")))
    assert job.topology() == before


def test_a_reference_run_knows_no_roles(tmp_path: Path) -> None:
    job = traffic(host="h1")
    job.assign(read(file(tmp_path, '[units.ingest]\nhost = "h2"\nha = "active-standby"')))
    job.as_reference(tmp_path)
    assert job.topology().units["a"] == UnitShape("a", ("a",), us.none)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[units.ingest]\nhost = "h1"\nmonitor = h3\n', ["roles.toml:3: not TOML", "Invalid value"]),
        ('[units.ingest]\nhost = "h1', ["roles.toml:2: not TOML"]),
        ("units.ingest]", ["roles.toml:1: not TOML"]),
        ('[unit.ingest]\nhost = "h1"', ["roles.toml: 'unit' is no table of a unit", "[units.NAME]"]),
        ('host = "h1"\n[units.ingest]', ["roles.toml: 'host' is no table of a unit"]),
        ("units = 3", ["roles.toml: 'units' is no table of a unit"]),
        ('[units]\ningest = "h1"', ["roles.toml: 'units' is no table of a unit"]),
        ('[units.ingets]\nhost = "h1"', ["roles.toml: unknown unit 'ingets'; units are: cars, ingest"]),
        ('[units.a]\nhost = "h1"', ["roles.toml: unknown unit 'a'; units are: cars, ingest"]),
        (
            '[units.ingest]\nbackup = "h1"',
            ["roles.toml: unit 'ingest': unknown role 'backup'; roles are: host, standbys, state, monitor, and ha"],
        ),
        ("[units.ingest]\nhost = 1", ["roles.toml: unit 'ingest': host=1 is not a host"]),
        ('[units.ingest]\nhost = "h1"\nstandbys = ["h1"]', ["roles.toml: unit 'ingest' names 'h1' twice"]),
        ('[units.ingest]\nhost = "h2"\nmonitor = "h2"', ["roles.toml: unit 'ingest': monitor='h2' is the host"]),
        ('[units.ingest]\nstate = "h2"', ["roles.toml: unit 'ingest': state='h2' is not one of its standbys"]),
        (
            '[units.ingest]\nha = "brave"',
            ["roles.toml: unit 'ingest': ha='brave': unknown policy 'brave'; policies are: none, passive-standby"],
        ),
        (
            '[units.ingest]\nha = "active-standby k=2"',
            ["active-standby: unknown option 'k'; options are: copies, delivery"],
        ),
        ("[units.ingest]\nha = 3", ["ha=3: unknown policy '3'"]),
        ('[units.cars]\nha = "none"', ["roles.toml: unit 'cars': source 'cars' cannot have ha='none'"]),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(JobError) as caught:
        traffic().assign(read(file(tmp_path, text)))
    mistake(caught, *words)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        read(tmp_path / "nowhere.toml")
    mistake(caught, "nowhere.toml", "No such file")


# -- against the hosts that there are -------------------------------------------------------------------------------


def shape(policy: Policy, **roles: Any) -> Topology:
    units = [UnitShape("cars", ("cars",), us.PassiveStandby()), UnitShape("ingest", ("a",), policy, **roles)]
    return Topology.build([StageShape("cars"), StageShape("a", ("cars",))], units)


@pytest.mark.parametrize("role", ["primary", "monitor", "standbys"])
def test_an_unknown_host_is_answered_with_those_that_there_are(role: str) -> None:
    asked: Any = ("h2", "h9") if role == "standbys" else "h9"
    with pytest.raises(JobError) as caught:
        check_hosts(shape(us.PassiveStandby(), **{role: asked}), HOSTS)
    mistake(caught, "unknown host h9; hosts are: h1, h2, h3")


@pytest.mark.parametrize(
    ("policy", "hosts", "words"),
    [
        (
            us.PassiveStandby("individual", standbys=4),
            3,
            "unit 'ingest' with passive-standby checkpoint=individual standbys=4 needs at least 5 hosts and there are "
            "3; start 5 (--hosts 5), or protect it with passive-standby checkpoint=individual standbys=2",
        ),
        (
            us.ActiveStandby(copies=4, delivery="eager"),
            3,
            "needs at least 4 hosts and there are 3; start 4 (--hosts 4), or protect it with "
            "active-standby copies=3 delivery=eager",
        ),
        (us.ActiveStandby(copies=3), 2, "(--hosts 3), or protect it with active-standby"),
        (us.ActiveStandby(), 1, "needs at least 2 hosts and there is 1; start 2 (--hosts 2), or protect it with none"),
        (us.Hybrid(standbys=3), 2, "start 4 (--hosts 4), or protect it with hybrid"),
    ],
)
def test_more_copies_than_hosts(policy: Policy, hosts: int, words: str) -> None:
    with pytest.raises(JobError) as caught:
        check_hosts(shape(policy), HOSTS[:hosts])
    mistake(caught, words)


@pytest.mark.parametrize(
    ("policy", "hosts"),
    [
        (us.PassiveStandby(standbys=2), 3),
        (us.ActiveStandby(copies=3), 3),
        (us.UpstreamBackup(k=3), 1),
        (us.none, 1),
        (us.PassiveStandby(), 1),
    ],
    ids=lambda value: str(value),
)
def test_as_many_as_there_are_will_do(policy: Policy, hosts: int) -> None:
    """On a single host a job runs too, and is said to be UNPROTECTED."""
    check_hosts(shape(policy), HOSTS[:hosts])
