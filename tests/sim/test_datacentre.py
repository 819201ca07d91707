"""Years in a data centre: the failure model against the paper's numbers, and policies against scripted failures."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from understudy.core.policies import ActiveStandby, Hybrid, PassiveStandby, Policy, UpstreamBackup, none
from understudy.core.topology import StageShape, Topology, UnitShape
from understudy.sim.datacentre import POLICIES, Setting, bandwidth_share, compare, simulate, tell_story, under
from understudy.sim.datacentre_page import Result, describe, write_page
from understudy.sim.failures import CAUSES, MODELS, Failure, FailureModel, failure_model

PROTECTED = [p for p in POLICIES if p.protected] + [ActiveStandby(delivery="eager"), PassiveStandby(standbys=2)]
EVERY = [none, *PROTECTED, UpstreamBackup(k=2)]


def named(policy: Policy) -> str:
    return policy.describe().replace(" ", "-")


def chain(length: int, policy: Policy = none) -> Topology:
    """A source s0 and stages s1, s2, ... each reading the one before, each a unit."""
    stages = [StageShape(f"s{i}", (f"s{i - 1}",) if i else ()) for i in range(length)]
    return Topology.build(stages, [UnitShape(s.name, (s.name,), policy) for s in stages])


# With ``spread`` names and few units, unit i's primary is host i of a floor where every host is a rack of its own,
# and its standby host length + i.
SMALL: dict[str, Any] = {"hosts": 12, "racks": 12, "days": 1.0, "failures": "none"}


def run(policy: Policy, story: Sequence[Failure], *, length: int = 4, **changes: Any) -> Result:
    return simulate(chain(length), Setting(**{**SMALL, **changes}, policy=policy), story)


def crash(*hosts: int, at_s: float = 1000.0, lasts_s: float = 3600.0, **rest: Any) -> Failure:
    return Failure(at_s, hosts, lasts_s, rest.pop("cause", "ooops"), **rest)


# -- failures -----------------------------------------------------------------------------------------------------


def test_models_are_table_1() -> None:
    """Meteor Shower, Table I, and the arithmetic in Section II-B1: 7,640 network failures a year in 2,400 nodes."""
    google = MODELS["google"].afn100()
    assert google["network"] == pytest.approx(7640 / 2400 * 100)
    assert [google[c] for c in CAUSES[1:]] == pytest.approx([125, 100, 5, 1.3])
    assert list(MODELS["abe"].afn100().values()) == pytest.approx([250, 0, 40, 4, 0])
    assert MODELS["none"].story(hosts=2400, racks=30, days=365, seed=1) == []


@pytest.mark.parametrize(
    ("hosts", "racks", "days"), [(2400, 30, 365.0), (100, 7, 3650.0), (7200, 60, 120.0), (5, 2, 9e4)]
)
@pytest.mark.parametrize("model", ["google", "abe"])
def test_as_much_fails_as_the_table_says(model: str, hosts: int, racks: int, days: float) -> None:
    """At any size, the year's node failures per 100 nodes are the table's, within 5 standard deviations."""
    story = MODELS[model].story(hosts=hosts, racks=racks, days=days, seed=7)
    assert all(0 <= f.at_s < days * 86400 for f in story)
    assert [f.at_s for f in story] == sorted(f.at_s for f in story)
    for cause, afn100 in MODELS[model].afn100().items():
        kinds = [k for k in MODELS[model].kinds if k.cause == cause]
        expected = afn100 / 100 * hosts * days / 365
        variance = sum(k.events(hosts, racks, days) * (k.size(hosts, racks) + 1) ** 2 for k in kinds)
        failed = sum(len(f.hosts) for f in story if f.cause == cause)
        assert abs(failed - expected) <= 5 * math.sqrt(variance) + 1e-9, (cause, failed, expected)


def test_events_have_their_shapes() -> None:
    """Section II-B1: a rack failure disconnects 80 nodes for 1-6 hours; routers a tenth; only a disk loses a disk."""
    story = MODELS["google"].story(hosts=2400, racks=30, days=3650, seed=3)
    by_kind: dict[str, list[Failure]] = {}
    for failure in story:
        by_kind.setdefault(failure.kind, []).append(failure)
    racks = by_kind["rack failure"]
    assert {f.hosts for f in racks} == {tuple(range(80 * r, 80 * r + 80)) for r in range(30)}
    assert all(3600 <= f.duration_s <= 6 * 3600 and f.process_survives for f in racks)
    assert {len(f.hosts) for f in by_kind["router failure"] + by_kind["maintenance"]} == {240}
    assert {len(f.hosts) for f in by_kind["rewiring"]} == {120}
    assert {len(f.hosts) for f in by_kind["power failure"]} == {750}
    assert all(len(f.hosts) == 1 for kind in ("ooops", "disk", "memory", "overheated") for f in by_kind[kind])
    assert {f.kind for f in story if not f.disk_survives} == {"disk"}
    assert {f.cause for f in story if f.process_survives} == {"network"}
    assert {f.kind for f in story if f.announced} == {"ooops"}


def test_bursts_share() -> None:
    """What the docstring says of the paper's 10 %: 69 % of the table's node failures, and 1 % of its events."""
    burst = [k for k in MODELS["google"].kinds if k.reach != "host"]
    assert sum(k.afn100 for k in burst) / sum(k.afn100 for k in MODELS["google"].kinds) == pytest.approx(0.69, abs=0.01)
    events = [k.events(2400, 30, 365) for k in MODELS["google"].kinds]
    assert sum(k.events(2400, 30, 365) for k in burst) == pytest.approx(51)
    assert 51 / sum(events) == pytest.approx(0.012, abs=0.001)


def test_one_seed_is_one_story_under_any_hash_seed() -> None:
    script = (
        "import json\n"
        "from test_datacentre import chain\n"
        "from understudy.sim.datacentre import Setting, compare\n"
        "setting = Setting(hosts=40, racks=5, days=60, seed=11)\n"
        "print(json.dumps([r.to_dict() for r in compare(chain(6), setting)]))\n"
    )
    here = Path(__file__).parent
    paths = os.pathsep.join((str(here), str(here.parents[1] / "src")))
    told = []
    for hash_seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        told.append(done.stdout)
    assert told[0] == told[1] == told[2]
    assert sum(r["recoveries"] for r in json.loads(told[0])) > 0
    assert tell_story(Setting(seed=1)) != tell_story(Setting(seed=2))


# -- what policies make of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", EVERY, ids=named)
def test_nothing_fails(policy: Policy) -> None:
    result = run(policy, [])
    assert (result.availability, result.worst_unit_availability, result.nines) == (1.0, 1.0, math.inf)
    assert (result.outages, result.rows_lost, result.states_lost, result.rows_repeated) == (0, 0, 0, 0)
    assert (result.failures, result.recovery_s, result.to_dict()["nines"]) == (0, (), None)


def test_none_loses_rate_times_outage() -> None:
    """A dead process is known at once: 0.05 s, and 0.6 s to start anew; what came meanwhile passed it by."""
    result = run(none, [crash(2, announced=True)], state_bytes=1000.0, row_bytes=100.0)
    assert result.recovery_s == pytest.approx([0.65])
    assert (result.rows_passed_by, result.rows_lost, result.states_lost, result.outages) == (650, 660, 1, 1)
    assert result.availability == pytest.approx(1 - 0.65 / 86400)
    assert result.silence_min_per_year == pytest.approx(0.65 / 60 * 365)


def test_takeover_by_policy() -> None:
    """The same cut-off host: detection is common, and what comes after depends on how the standby is prepared."""
    took = {named(p): run(p, [crash(2)]).recovery_median_s for p in EVERY}
    detection = took["active-standby"] - 0.1
    assert 4 * 0.5 <= detection <= 5 * 0.5
    assert took["none"] == pytest.approx(detection + 0.6)
    assert took[named(PassiveStandby())] == pytest.approx(detection + 0.6)
    assert took[named(Hybrid())] == pytest.approx(detection + 0.1)  # it rose with the first missed heartbeat
    assert took["upstream-backup"] == pytest.approx(detection + 0.6 + 60 / 20)
    eager = run(ActiveStandby(delivery="eager"), [crash(2)])
    assert (eager.availability, eager.outages, eager.says["promoted"]) == (1.0, 0, 1)


def test_a_blip_is_not_a_failure() -> None:
    for policy in EVERY:
        result = run(policy, [crash(2, lasts_s=1.2, process_survives=True)])
        assert "host-lost" not in result.says and result.rows_lost == 0
        if not policy.eager:
            assert result.recovery_s == pytest.approx([1.2])


@pytest.mark.parametrize("policy", PROTECTED, ids=named)
@pytest.mark.parametrize("seed", range(4))
def test_one_at_a_time_loses_nothing(policy: Policy, seed: int) -> None:
    """Any host, any kind of failure, one after the other was repaired: a protected job loses nothing."""
    random = Random(seed).random
    story = [
        crash(
            int(random() * 12),
            at_s=3600.0 * i,
            lasts_s=0.5 + 1800 * random() ** 3,
            process_survives=random() < 0.3,
            disk_survives=random() < 0.7,
            announced=random() < 0.3,
        )
        for i in range(1, 200)
    ]
    result = run(policy, story, days=10.0)
    assert (result.rows_lost, result.states_lost) == (0, 0)
    assert "waiting" not in result.says and result.recoveries > 20 * (not policy.eager)
    assert result.recovery_max_s < 10


def test_standby_and_primary_at_once_wait_for_the_first_to_return() -> None:
    """Unit s2 is on host 2 with its standby on 6: cut off together, it stands still until they are back."""
    for policy in (PassiveStandby(), ActiveStandby(), Hybrid()):
        both = run(policy, [crash(2, 6, process_survives=True)])
        assert (both.says["waiting"], both.outages, both.rows_lost, both.states_lost) == (1, 1, 0, 0)
        assert 3600 <= both.recovery_max_s <= 3601
        first = run(policy, [crash(2), crash(6, lasts_s=600.0)])
        assert 600 <= first.recovery_max_s <= 601 and first.states_lost == 0
    assert run(PassiveStandby(standbys=2), [crash(2, 4)]).recovery_max_s < 4
    assert run(none, [crash(2, 6)]).recovery_max_s < 4


def test_disks_gone_with_both_copies_lose_the_state() -> None:
    gone = run(PassiveStandby(), [crash(2, 6, disk_survives=False)], state_bytes=5000.0, row_bytes=100.0)
    assert (gone.states_lost, gone.rows_lost, gone.rows_passed_by) == (1, 50, 0)


def test_upstream_backup_survives_k_in_a_row() -> None:
    """Units s1, s2, s3 on hosts 1, 2, 3: neighbours that fail at once are beyond K = 1, not beyond K = 2."""
    assert run(UpstreamBackup(), [crash(1, 3)]).states_lost == 0
    assert run(UpstreamBackup(), [crash(2, 3)]).states_lost == 1
    assert run(UpstreamBackup(k=2), [crash(2, 3)]).states_lost == 0
    assert run(UpstreamBackup(k=2), [crash(1, 2, 3)]).states_lost == 1
    assert run(UpstreamBackup(k=3), [crash(1, 2, 3)]).states_lost == 0
    assert run(UpstreamBackup(), [crash(0, 1)]).states_lost == 0  # the source keeps its output at its standby
    # Upstream first: s3 can only be rebuilt after s2, so its recovery takes a second replay.
    one, two = run(UpstreamBackup(k=2), [crash(3)]), run(UpstreamBackup(k=2), [crash(2, 3)])
    assert two.recovery_max_s >= one.recovery_max_s + 2.5


def test_upstream_backup_is_fragile_until_its_window_has_passed() -> None:
    """A rebuilt unit keeps less than before: its consumer cannot be rebuilt from it until a window later."""
    soon = [crash(1), crash(2, at_s=1020.0)]
    assert run(UpstreamBackup(), soon).states_lost == 1
    assert run(UpstreamBackup(k=2), soon).states_lost == 0
    assert run(UpstreamBackup(), [crash(1), crash(2, at_s=1100.0)]).states_lost == 0


@pytest.mark.parametrize("policy", EVERY, ids=named)
def test_the_successor_dies_in_the_middle(policy: Policy) -> None:
    """Whoever took over dies while it does: the next one is found, or the unit waits, and it runs in the end."""
    plain = run(policy, [crash(2, announced=True)])
    for offset_s in (0.0, 0.06, 0.3, 0.64, 0.7, 2.0, 5.0):
        # Host 6 is s2's standby; 8 is where a replay or a fresh start goes, the first that has nothing to do.
        second = crash(5, 6, 8, at_s=1000 + offset_s, announced=True)
        result = run(policy, [crash(2, announced=True, lasts_s=1200.0), second])
        assert result.recoveries >= plain.recoveries and result.recovery_max_s <= 3700
        assert result.silence_min_by_cause.get("ooops", 0.0) * 60 <= 3700
        if policy.recovery != "standby":
            assert result.recovery_max_s < 12


@pytest.mark.parametrize("policy", EVERY, ids=named)
def test_everything_runs_once_all_is_repaired(policy: Policy) -> None:
    """Hard days on few hosts, then peace: nothing is left standing still. (Every open outage would end at 9 days.)"""
    hot = FailureModel("hot", tuple(replace(k, afn100=80 * k.afn100) for k in MODELS["google"].kinds))
    for seed in range(6):
        story = hot.story(hosts=5, racks=2, days=5, seed=seed)
        settled = [run(policy, story, hosts=5, racks=2, days=days) for days in (9.0, 20.0)]
        assert settled[0].silence_min_by_cause == settled[1].silence_min_by_cause
        assert settled[0].recovery_s == settled[1].recovery_s
        assert settled[0].availability <= settled[0].worst_unit_availability + 1e-12


def test_order_of_policies_and_a_small_year_is_quick() -> None:
    begun = time.process_time()
    results = compare(chain(8), Setting(hosts=240, racks=30, seed=5))
    assert time.process_time() - begun < 5
    unprotected, passive, active, replay, hybrid = results
    assert active.silence_min_per_year <= hybrid.silence_min_per_year <= passive.silence_min_per_year
    assert unprotected.rows_lost > 0 and unprotected.states_lost > replay.states_lost
    assert (passive.rows_lost, active.rows_lost) == (0, 0)
    assert unprotected.ha_share < replay.ha_share < passive.ha_share < active.ha_share
    assert len({(r.failures, tuple(r.node_failures_by_cause.items())) for r in results}) == 1  # the same story
    assert 0 < passive.failures_hit <= passive.failures


def test_a_packed_job_dies_with_its_rack() -> None:
    rack = [crash(*range(10), process_survives=True)]
    floor: dict[str, Any] = {"hosts": 100, "racks": 10}
    assert run(PassiveStandby(), rack, **floor).recovery_max_s < 4
    assert run(PassiveStandby(), rack, placement="packed", **floor).recovery_max_s >= 3600


def test_as_written_and_progress() -> None:
    seen: list[tuple[str, float]] = []
    topology = chain(3, UpstreamBackup())
    setting = Setting(**SMALL)
    (own, passive) = compare(topology, setting, [None, PassiveStandby()], lambda *told: seen.append(told))
    assert (own.policy, passive.policy) == ("as written", PassiveStandby().describe())
    assert seen[0] == ("as written", 0.01) and seen[-1] == (PassiveStandby().describe(), 1.0)
    kept = under(topology, none).units
    assert [type(kept[name].policy) for name in ("s0", "s1")] == [PassiveStandby, type(none)]


def test_bandwidth_is_hwangs() -> None:
    """Hwang et al. 2003, formulas (1) and (2): 500 rows/s of 50 bytes, 8-byte ids, a message every 100 ms."""
    setting = Setting(rows_per_s=500.0, row_bytes=50.0, epoch_s=0.1, state_share=0.0)
    ids = 2 * 8 / (500 * 50 * 0.1)
    assert bandwidth_share(chain(1, UpstreamBackup()), setting) == pytest.approx(ids)
    assert bandwidth_share(chain(1, UpstreamBackup(k=3)), setting) == pytest.approx(2 * ids)
    assert bandwidth_share(chain(1, ActiveStandby()), setting) == pytest.approx(1 + 1.5 * ids)
    with_queue = PassiveStandby(checkpoint="individual", every=0.1)
    two = under(chain(2, none), with_queue)  # the source's own part is its ids
    assert bandwidth_share(two, setting) == pytest.approx(((1 + ids) + ids) / 2)
    swept = under(chain(2, none), PassiveStandby(every=0.1))
    assert bandwidth_share(swept, setting) == pytest.approx(ids)
    assert bandwidth_share(swept, replace(setting, state_share=0.1)) == pytest.approx(ids + 0.05)
    assert bandwidth_share(chain(3, none), setting) == 0


# -- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hosts": 0}, "hosts=0 must be a whole number of at least 1"),
        ({"hosts": 2.5}, "hosts=2.5 must be a whole number"),
        ({"racks": -1}, "racks=-1 must be"),
        ({"hosts": 3, "racks": 4}, "racks=4 is more than hosts=3; use at most one rack per host"),
        ({"days": 0.0}, "days=0 must be more than nothing; the default is 365"),
        ({"days": math.inf}, "days=inf must be a number"),
        ({"days": "1y"}, "days='1y' must be a number"),
        ({"state_bytes": -1.0}, "state_bytes=-1.0 must be a number, and not negative"),
        ({"heartbeat_s": 0.0}, "heartbeat_s=0 must be more than nothing"),
        ({"bandwidth_bytes_per_s": 0.0}, "bandwidth_bytes_per_s=0 must be more"),
        ({"misses": 0}, "misses=0 must be"),
        ({"failures": "goggle"}, "failures='goggle' is not a known failure model; use one of 'google', 'abe', 'none'"),
        ({"failures": None}, "failures=None is not a known failure model"),
        ({"placement": "wide"}, "placement='wide' is not known; use 'spread' or 'packed'"),
        ({"seed": 1.5}, "seed=1.5 must be a whole number"),
        ({"policy": "passive"}, "policy='passive' is not a policy"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_settings(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as error:
        Setting(**changes)
    assert says in str(error.value)


def test_k_beyond_hosts_or_path() -> None:
    with pytest.raises(ValueError, match=r"hosts=3: unit 's1' wants 3 standbys .* use hosts=4 or more, or a smaller k"):
        simulate(chain(2), Setting(hosts=3, racks=1, policy=ActiveStandby(copies=4)))
    with pytest.raises(ValueError, match=r"k=5: .* longest path has, which is 4; use k=4 or less"):
        compare(chain(4), Setting(), [none, UpstreamBackup(k=5)])
    assert failure_model("abe") is failure_model(MODELS["abe"])


# -- pages --------------------------------------------------------------------------------------------------------


def test_page(tmp_path: Path) -> None:
    setting = Setting(hosts=60, racks=6, days=40, seed=2)
    results = compare(chain(5), setting)
    files = write_page(tmp_path / "out", results, setting.to_dict(), title="a <job>")
    assert [f.name for f in files] == ["datacentre.png", "datacentre.svg", "summary.json", "index.html"]
    assert all(f.stat().st_size > 1000 for f in files)
    assert files[0].read_bytes().startswith(b"\x89PNG") and "recoveries" in files[1].read_text()
    summary = json.loads(files[2].read_text())
    assert summary["setting"]["hosts"] == 60 and summary["setting"]["failures"] == "google"
    assert [r["policy"] for r in summary["results"]] == [p.describe() for p in POLICIES]
    page = files[3].read_text()
    assert "a &lt;job&gt;" in page and "<job>" not in page
    rows = describe(results)
    assert len(rows) == 6 and len({len(row) for row in rows}) == 1
    assert all(cell in page for cell in rows[2])
    write_page(tmp_path / "quiet", [run(none, [])], Setting(**SMALL).to_dict())
