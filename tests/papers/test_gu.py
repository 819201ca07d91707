"""Gu et al. 2009, Section 5, on the quick version of ``understudy lab gu``: one test per claim, in virtual time.

Each claim is asserted for both protocols that are simulated, the paper's and Understudy's. Where Understudy's differs
on purpose (a sweeping checkpoint is smaller than the paper's), that is asserted too.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from understudy.lab import claims, gu, gu_chain, gu_claims, gu_hosts, gu_page
from understudy.lab.claims import View, means
from understudy.lab.gu_claims import METHODS
from understudy.lab.gu_model import World
from understudy.lab.gu_params import Params

PROTOCOLS = ("paper", "understudy")
BIG = ("individual", "synchronous")


class Lab:
    """The quick sweep, run once."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.calls: list[tuple[str, int, int]] = []
        self.returned = gu.run(out, quick=True, hosts=False, progress=lambda *call: self.calls.append(call))
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in (out / "results.jsonl").open()]
        self.views = {how: View(means(self.rows), how) for how in PROTOCOLS}


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("gu"))


@pytest.fixture(params=PROTOCOLS)
def view(request: pytest.FixtureRequest, lab: Lab) -> View:
    return lab.views[request.param]


def rises(line: dict[float, float]) -> bool:
    return all(a < b for a, b in pairwise(line.values()))


# -- checkpointing methods (Section 5.2) ---------------------------------------------------------------------------


@pytest.mark.parametrize("other", BIG)
def test_sweeping_checkpoints_are_a_small_fraction(view: View, other: str) -> None:
    """Figure 2: roughly 1/30 of the two others at 500 ms, and at every interval the smallest by far."""
    sweeping, others = (view.line("2-3", method, "mean_size") for method in ("sweeping", other))
    assert all(others[x] > 4 * sweeping[x] for x in others)
    ratio = view.middle("2-3", other, "mean_size") / view.middle("2-3", "sweeping", "mean_size")
    assert ratio > 15 if view.how == "understudy" else 15 < ratio < 60


@pytest.mark.parametrize("other", BIG)
def test_sizes_grow_with_the_interval_and_sweeping_more_slowly(view: View, other: str) -> None:
    """Figure 2: proportionally for the two others, sub-linearly for sweeping."""
    line = view.line("2-3", other, "mean_size")
    assert rises(line)
    assert view.growth("2-3", other, "mean_size") / view.span("2-3", other, "mean_size") > 0.6
    assert view.growth("2-3", "sweeping", "mean_size") < 0.5 * view.growth("2-3", other, "mean_size")


@pytest.mark.parametrize("other", BIG)
def test_totals_are_flat_for_the_two_others(view: View, other: str) -> None:
    """Figure 3: fewer messages, each as much larger."""
    assert 0.6 < view.growth("2-3", other, "total_size") < 1.4


def test_the_total_of_sweeping_falls(view: View) -> None:
    """Figure 3: inversely to the interval, because sizes hardly grow."""
    line = view.line("2-3", "sweeping", "total_size")
    assert rises({-x: y for x, y in sorted(line.items(), reverse=True)})
    assert view.growth("2-3", "sweeping", "total_size") < 0.3


@pytest.mark.parametrize("other", BIG)
def test_the_total_of_sweeping_is_a_small_fraction(view: View, other: str) -> None:
    """Figure 3: 1/13 to 1/30."""
    ratio = view.middle("2-3", other, "total_size") / view.middle("2-3", "sweeping", "total_size")
    assert ratio > 13 if view.how == "understudy" else 13 < ratio < 30


def test_a_sweeping_checkpoint_of_understudy_is_the_state_alone(lab: Lab) -> None:
    """Section 3.1 looks for a small queue; at the trim point it is empty."""
    sizes = lab.views["understudy"].line("2-3", "sweeping", "mean_size")
    assert set(sizes.values()) == {Params().state_elements}
    in_paper = lab.views["paper"].line("2-3", "sweeping", "mean_size")
    assert all(size > Params().state_elements for size in in_paper.values())


@pytest.mark.parametrize("other", BIG)
def test_sweeping_takes_a_quarter_of_the_time(view: View, other: str) -> None:
    """Figure 4: about 1/4 over all rates, and less than the others at each."""
    assert 2 < view.ratio("4", "mean_s", other, "sweeping") < 8
    sweeping, others = (view.line("4", method, "mean_s") for method in ("sweeping", other))
    assert all(sweeping[rate] < others[rate] for rate in others)


def test_synchronous_takes_longest(view: View) -> None:
    """Figure 4: it has to suspend and resume all PEs of a subjob."""
    synchronous, individual = (view.line("4", method, "mean_s") for method in ("synchronous", "individual"))
    assert all(synchronous[rate] > individual[rate] for rate in individual)


# -- active and passive standby (Section 5.3) ----------------------------------------------------------------------


@pytest.mark.parametrize(("name", "times"), [("None-AS", 2), ("AS-AS", 4)])
def test_active_standby_multiplies_messages(view: View, name: str, times: float) -> None:
    """Figure 5: both copies receive and send; and each to two, when the downstream subjob has two as well."""
    bytes_per_s, none = (view.line("5", series, "bytes_per_s") for series in (name, "NONE"))
    assert all(bytes_per_s[rate] / none[rate] == pytest.approx(times, rel=0.02) for rate in none)


def test_passive_standby_costs_a_tenth(view: View) -> None:
    """Figure 5: about 10 % more than none, a magnitude less than active standby."""
    passive, active, none = (view.line("5", series, "bytes_per_s") for series in ("PS", "None-AS", "NONE"))
    assert all(1 < passive[rate] / none[rate] < 1.2 for rate in none)
    assert all(passive[rate] - none[rate] < 0.2 * (active[rate] - none[rate]) for rate in none)


def _pauses(lab: Lab, how: str, series: str) -> tuple[float, float]:
    (row,) = (r for r in lab.rows if (r["figure"], r["how"], r["series"]) == ("6", how, series))
    return row["values"]["longest_pause_s"], row["values"]["usual_pause_s"]


@pytest.mark.parametrize("how", PROTOCOLS)
def test_active_standby_hides_a_failure_and_passive_standby_does_not(lab: Lab, how: str) -> None:
    """Figure 6: the sequence number goes on under AS, and is flat for a while under PS."""
    longest, usual = _pauses(lab, how, "AS")
    assert longest < 1.5 * usual
    longest, usual = _pauses(lab, how, "PS")
    assert longest > 100 * usual


def test_detection_grows_linearly_and_dominates(view: View) -> None:
    """Figure 7: about three and a half heartbeats less the share of one that had passed."""
    detection, total = (view.line("7", "PS", value) for value in ("detection_s", "total_s"))
    for ms, found in detection.items():
        assert found == pytest.approx(3 * ms / 1000, rel=0.2)
    shares = {ms: detection[ms] / total[ms] for ms in detection}
    assert rises(shares) and max(shares.values()) > 0.5


def test_reprocessing_grows_with_the_checkpoint_interval(view: View) -> None:
    """Figure 8: more data to send and process again."""
    line = view.line("8", "PS", "reprocessing_s")
    assert rises(line) and view.growth("8", "PS", "reprocessing_s") > 2


def test_the_whole_recovery_hardly_changes(view: View) -> None:
    """Figure 8: detection and redeployment are far larger."""
    assert 0.9 < view.growth("8", "PS", "total_s") < 1.1


def test_summary_says_what_holds(lab: Lab) -> None:
    """Everything holds with the paper's protocol; where Understudy's differs, the reason is known."""
    summary = json.loads((lab.out / "summary.json").read_text())
    assert summary == lab.returned["summary"]
    assert all(row["within"] for row in summary if row["how"] == "paper")
    assert all(row["within"] or row["why"] for row in summary)
    assert {row["name"].split(":")[0] for row in summary} == {f"Fig {n}" for n in range(2, 9)}


# -- the lab itself ------------------------------------------------------------------------------------------------


def test_a_run_depends_on_its_parameters_only() -> None:
    params = Params(fail=1, warmup_s=2.0)
    assert gu.simulate(params) == gu.simulate(params)
    assert gu.simulate(params) != gu.simulate(replace(params, seed=2))


ALIKE = [((method,) * 4, fail) for method in (*METHODS, "lazy", "eager") for fail in range(3)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("methods", "fail"), [*ALIKE, (("none", "eager", "lazy", "none"), 1)])
def test_nothing_is_lost(protocol: Any, methods: Any, fail: int) -> None:
    """Theorem 3.1: whichever subjob fails, under whichever protection, the sink goes on with the next element."""
    found = gu.simulate(Params(methods, protocol, interval_s=0.1, fail=fail, warmup_s=1.0, rate_per_s=1000))
    assert found["total_s"] < 1.0


def test_longer_runs_have_the_same_totals() -> None:
    """Figure 3 counts 100 s; the model forgets faster."""
    for method in METHODS:
        params = Params((method,) * 4, interval_s=0.1, rate_per_s=1000, warmup_s=1.0, measure_s=4.5)
        short, long = gu.simulate(params), gu.simulate(replace(params, measure_s=18.0))
        assert short["total_size"] == pytest.approx(long["total_size"], rel=0.05)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("methods", ("hope",) * 4), ("methods", ()), ("protocol", "gossip"), ("rate_per_s", 0), ("rate_per_s", 50_000),
        ("interval_s", 0.0), ("heartbeat_s", -0.1), ("misses", 0), ("fail", 3), ("fail", -1), ("failure_phase", 1.0),
        ("batch_s", 0.0), ("element_bytes", 0), ("state_elements", -1), ("redeploy_s", -1.0),
    ],
)  # fmt: skip
def test_bad_parameters_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}="):
        Params(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("failures", 0), ("intervals_ms", (100,)), ("heartbeats_ms", ())])
def test_bad_sweeps_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}="):
        gu.Sweep(**{name: value})


def test_machines_are_those_of_the_core() -> None:
    """The protections that decide are the runtime's, not copies."""
    from understudy.core.policies import passive
    from understudy.core.policies.active import Active
    from understudy.core.policies.none import Unprotected

    world = World(Params(("none", "eager", "sweeping", "synchronous")))
    kinds = [type(machine) for unit in world.units for machine in unit.primary.machines.values()]
    expected = [Unprotected, Active, passive.Sweeping, passive.Synchronous]
    assert kinds == [kind for kind in expected for _ in range(2)]


def test_progress_counts_every_run(lab: Lab) -> None:
    assert lab.calls == [("simulated runs", i + 1, len(lab.rows)) for i in range(len(lab.rows))]


def test_what_the_folder_holds(lab: Lab) -> None:
    page = (lab.out / "index.html").read_text()
    for name in gu_page._CAPTIONS:
        assert (lab.out / f"{name}.png").stat().st_size > 10_000 and (lab.out / f"{name}.svg").exists()
        assert f'src="{name}.svg"' in page
    assert "http" not in page and "<script" not in page, "one page that needs nothing else"
    assert all(text.split(".")[0][:30] in unescape(page) for text in gu.CHOICES.values())


# -- measured on hosts: what can be tried without any ---------------------------------------------------------------


@pytest.mark.parametrize("measuring", [gu_hosts.QUICK, gu_hosts.FULL])
def test_every_figure_is_measured(measuring: gu_hosts.Measuring) -> None:
    experiments = gu_hosts.plan(measuring)
    assert len({e.name for e in experiments}) == len(experiments)
    points = [point for e in experiments for point in e.points]
    assert len(set(points)) == len(points)
    assert {figure for figure, _, _ in points} == {"2-3", "4", "5", "6", "7", "8"}
    for figure in ("5", "6", "7", "8"):
        simulated = {job.series for job in gu.plan(gu.QUICK, 1) if job.figure == figure}
        assert {series for f, series, _ in points if f == figure} == simulated


@pytest.mark.parametrize("stretch", [1.0, 1.5])
def test_bytes_are_counted_for_the_epochs_that_were_taken_in(stretch: float) -> None:
    """Stages that are behind others, and epochs that a busy machine makes longer, change nothing."""
    units, size = gu_chain.UNITS, 1000.0 * stretch
    nothing = {unit: Counter[str]() for unit in units}
    stages = [f"{unit}{n}" for unit in units for n in (1, 2)]
    before = gu_hosts.Totals(0.0, dict.fromkeys(stages, 5), 0, dict.fromkeys(("h1", "h2", "h3"), 0), nothing)
    epochs = {**dict.fromkeys(stages, 15), "three1": 14, "four1": 12}
    # The second unit runs twice, and sends twice.
    received = {"h2": int(10 * size), "h3": int(2 * 9 * size), "h1": int(7 * size)}
    spent = nothing | {"two": Counter(bytes=int(600 * stretch), checkpoints=3, seconds=1.5)}
    after = gu_hosts.Totals(30.0, epochs, int(10 * 3 * 100 * stretch), received, spent)
    found = gu_hosts.found_between(before, after, "h2", 100)
    assert found["data_bytes_per_s"] == pytest.approx(2 * 1000 / 3)
    assert found["bytes_per_s"] == pytest.approx(2 * 1000 / 3 + 600 / 30)
    assert (found["checkpoints"], found["mean_s"]) == (3, 0.5)


def test_simulation_and_measurement_are_compared_by_direction() -> None:
    claim = claims.Claim("Fig 0", "ratio", "larger", 2, 1.5, 2.5, lambda view: 2.0, turning=1)
    assert claims._agree(claim, 1.2, 30.0) and not claims._agree(claim, 1.2, 0.9)
    flat = replace(claim, turning=None)
    assert claims._agree(flat, 2.0, 1.6) and not claims._agree(flat, 2.0, 3.0)


def test_a_page_with_measurements(lab: Lab, tmp_path: Path) -> None:
    """Measured rows get panels and columns of their own; nothing else has to be there."""
    measured = [{**row, "how": "measured", "simulated": False} for row in lab.rows if row["how"] == "understudy"]
    found = gu.write(tmp_path, lab.rows + measured, {"Machine": "this one"})
    compared = [row["agrees"] for row in found["summary"] if row["how"] == "measured" and "agrees" in row]
    assert all(compared) and len(compared) == sum(not claim.given for claim in gu_claims.CLAIMS)
    assert "How the measurement was scaled" in (tmp_path / "index.html").read_text()
