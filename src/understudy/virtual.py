"""The commands that run in virtual time: ``fuzz``, ``simulate`` and ``lab``. They start no host and need no Java, but
for the laboratory: one of its sweeps is a Spark job, one measures hosts beside the simulation, and one operators."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from understudy.errors import DrillFailed, JobError

console = Console()
lab = typer.Typer(no_args_is_help=True, help="Reproduce the experiments of the papers.")

JobFile = Annotated[Path, typer.Argument(metavar="JOB.py", help="Python file that defines one us.Job.")]


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )


def fuzz(
    seeds: Annotated[int, typer.Option(min=1, help="How many fault schedules to try.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; with --seeds 1 its story is told.")] = 0,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes to use; default one per core.")] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Instead: a crash before and after every effect of every machine.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Where the tally goes; default out/fuzz.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tally as JSON.")] = False,
) -> None:
    """Break random jobs under random policies with random faults, in virtual time, and judge every story."""
    from understudy.sim.fuzz import Tally, play, swarm

    if steps:
        _try_steps(processes or os.cpu_count() or 1, out or Path("out/fuzz-steps.json"))
        return
    if seeds == 1:
        _tell(play(seed, tell=True))
        return
    out = out or Path("out/fuzz.json")
    tally = Tally()
    with _bar() as bar:
        task = bar.add_task("stories", total=seeds)
        for part in swarm(seed, seeds, processes=processes or os.cpu_count() or 1):
            tally.add(part)
            bar.update(task, completed=tally.schedules, description=f"stories ({len(tally.failed)} failed)")
    found = tally.to_dict()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")
    if as_json:
        print(json.dumps(found))
    else:
        faults = ", ".join(f"{kind} {count:,}" for kind, count in sorted(tally.faults.items()))
        console.print(f"faults injected: {faults}", highlight=False)
        policies = ", ".join(f"{name} {count:,}" for name, count in sorted(tally.policies.items()))
        console.print(f"policies: {policies}", highlight=False)
        console.print(
            f"{tally.schedules:,} schedules, {tally.events:,} events, {len(tally.failed)} violations; in "
            f"{tally.beyond:,} more failed at once than was promised to survive",
            highlight=False,
        )
    if tally.failed:
        first = tally.failed[0]
        raise DrillFailed(
            f"{len(tally.failed)} stories went wrong; the first is seed {first.seed} ({first.policy}, {first.shape}): "
            f"{first.wrong[0]}. Have it told with: understudy fuzz --seeds 1 --seed {first.seed}"
        )


def _try_steps(processes: int, out: Path) -> None:
    from concurrent.futures import ProcessPoolExecutor

    from understudy.sim.steps import PLACES, TURNS, crash_everywhere

    tried: dict[str, int] = {}
    wrong: list[str] = []
    with _bar() as bar, ProcessPoolExecutor(max_workers=processes) as pool:
        task = bar.add_task("stories", total=len(PLACES) + len(TURNS))
        for place, count, found in pool.map(crash_everywhere, [*PLACES, *TURNS]):
            tried[str(place)] = count
            wrong += found
            bar.update(task, advance=1, description=f"{sum(tried.values()):,} crashes ({len(wrong)} wrong)")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"crashes": sum(tried.values()), "violations": wrong, "tried": tried}, indent=2) + "\n")
    console.print(f"{sum(tried.values()):,} crashes, one at each step of {len(tried)} stories; {len(wrong)} violations")
    if wrong:
        raise DrillFailed(f"{len(wrong)} crashes went wrong; the first: {wrong[0]}")


def _tell(story: Any) -> None:
    console.print(f"seed {story.seed}: {story.policy} on a {story.shape}, {story.hosts} hosts", highlight=False)
    for t, text in story.told:
        console.print(f"{t:9.3f} s {text}", highlight=False, markup=False, soft_wrap=True)
    faults = ", ".join(f"{k} {v}" for k, v in story.faults.items()) or "none"
    console.print(f"faults: {faults}; {story.events:,} events", highlight=False)
    if story.beyond:
        console.print("more failed at once than was promised to survive", style="yellow")
    if story.wrong:
        raise DrillFailed("; ".join(story.wrong[:5]))
    console.print("all is well", style="green")


POLICIES = ("job", "none", "passive", "active", "eager", "upstream", "hybrid", "all")


def _policy(name: str, k: int) -> Any:
    from understudy.core import policies

    known: dict[str, Callable[[], policies.Policy | None]] = {
        "job": lambda: None,
        "none": lambda: policies.none,
        "passive": lambda: policies.PassiveStandby(standbys=k),
        "active": lambda: policies.ActiveStandby(copies=k + 1),
        "eager": lambda: policies.ActiveStandby(copies=k + 1, delivery="eager"),
        "upstream": lambda: policies.UpstreamBackup(k=k),
        "hybrid": lambda: policies.Hybrid(standbys=k),
    }
    if name in known:
        return known[name]()
    try:
        return policies.parse(name)
    except ValueError as error:
        raise JobError(f"--policy {name!r}: {error}; in short: {', '.join(POLICIES)}") from None


def simulate(
    job_file: JobFile,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help=f"One of {', '.join(POLICIES)}, or spelled out: 'active-standby copies=3'; repeatable; default all.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="How many hosts may fail at once: standbys, or levels.")] = 1,
    roles: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Policies of units; hosts have names of their own here.")
    ] = None,
    hosts: Annotated[int, typer.Option(help="Hosts in the data centre.")] = 2400,
    racks: Annotated[int, typer.Option(help="Racks that they stand in.")] = 30,
    failures: Annotated[str, typer.Option(help="What fails how often: google, abe or none.")] = "google",
    days: Annotated[float, typer.Option(help="Days to live through.")] = 365.0,
    rows_per_s: Annotated[float, typer.Option(help="Rows that each unit takes in.")] = 1000.0,
    state_mb: Annotated[float, typer.Option(help="State of each unit, in MB.")] = 10.0,
    placement: Annotated[str, typer.Option(help="spread: over racks; packed: rack by rack.")] = "spread",
    seed: Annotated[int, typer.Option(help="One seed is one story; all policies live through the same.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the plot, the page and summary.json.")] = Path("out/simulate"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Let a year pass over a job in a data centre with the failures of Meteor Shower's Table I, per policy."""
    from understudy.job_files import load
    from understudy.roles import read
    from understudy.sim import datacentre, datacentre_page

    job = load(job_file)
    job.assign(read(roles) if roles else {})
    names = list(dict.fromkeys(policy or ["all"]))
    if "all" in names:
        names = [n for n in POLICIES if n not in ("job", "all")]
    try:
        chosen = [_policy(name, k) for name in names]
        if "job" in names and any(unit.policy.is_goal for unit in job.topology().units.values()):
            raise JobError("--policy job: what us.auto chooses is known where the job runs; name policies instead")
        setting = datacentre.Setting(
            hosts=hosts, racks=racks, failures=failures, days=days, seed=seed, placement=placement,  # type: ignore[arg-type]
            epoch_s=job.epoch_s, rows_per_s=rows_per_s, state_bytes=state_mb * 1e6,
        )  # fmt: skip
        with _bar() as bar:
            tasks: dict[str, Any] = {}

            def progress(label: str, share: float) -> None:
                if label not in tasks:
                    tasks[label] = bar.add_task(label, total=100)
                bar.update(tasks[label], completed=round(100 * share))

            results = datacentre.compare(job.topology(), setting, chosen, progress)
    except ValueError as error:
        raise JobError(str(error)) from None
    datacentre_page.write_page(out, results, setting.to_dict(), title=f"{job.name}: {days:g} days on {hosts:,} hosts")
    if as_json:
        print(json.dumps([r.to_dict() for r in results]))
        return
    heads, *rows = datacentre_page.describe(results)
    title = f"{job.name}: {days:g} days on {hosts:,} hosts in {racks} racks, failures as at {failures}"
    table = Table("", *names, title=title, title_justify="left")
    for number, head in enumerate(heads[1:], 1):  # a policy is a column: there are more measures than policies
        table.add_row(head, *(row[number] for row in rows))
    console.print(table)
    console.print(f"page: {out}/index.html   results: {out}/summary.json")


@lab.command()
def hwang(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer runs and points: half a minute.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the first run.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for plots, page, results.jsonl and summary.json.")] = Path(
        "out/lab/hwang"
    ),
    here: Annotated[bool, typer.Option("--here", help="Run in this process instead of as a Spark job.")] = False,
) -> None:
    """Hwang et al. 2003: Figures 8 to 12 and Table 4, beside the paper's own values."""
    from understudy.lab import hwang as study

    if not here:
        from understudy.runtime.spark_jvm import require_java

        require_java()
    with _bar() as bar:
        task = bar.add_task("runs", total=None)
        found = study.run(
            out,
            quick=quick,
            seed=seed,
            use_spark=not here,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    table = Table(title="Hwang et al. 2003, paper and simulation", title_justify="left")
    for head in ("value", "paper", "ours", "within"):
        table.add_column(head, justify="left" if head == "value" else "right")
    for value in found["summary"]:
        mark = "yes" if value["within"] else "[red]no[/]"
        table.add_row(value["name"], f"{value['paper']:g}", f"{value['ours']:.4g}", mark)
    console.print(table)
    missed = [v for v in found["summary"] if not v["within"]]
    for value in missed:
        console.print(f"{value['name']}: {value.get('why') or 'not within its tolerance'}", highlight=False)
    console.print(f"{found['runs']:,} runs, {found['events']:,} events, {found['seconds']:.0f} s; {found['page']}")
    unexplained = [v["name"] for v in missed if not v.get("why")]
    if unexplained:
        raise DrillFailed(f"not within tolerance, and no reason known: {', '.join(unexplained)}")


@lab.command()
def gu(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points and shorter runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the simulated runs.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for plots, page, results.jsonl and summary.json.")] = Path(
        "out/lab/gu"
    ),
    simulated_only: Annotated[
        bool, typer.Option("--simulated-only", help="Start no hosts: seconds instead of minutes, and no Java.")
    ] = False,
) -> None:
    """Gu et al. 2009: Figures 2 to 8, simulated at the paper's parameters and measured on hosts of this machine."""
    from understudy.lab import gu as study

    if not simulated_only:
        from understudy.runtime.spark_jvm import require_java

        require_java()
    with _bar() as bar:
        tasks: dict[bool, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            simulated = what.startswith("simulated")
            if simulated not in tasks:
                tasks[simulated] = bar.add_task(what)
            bar.update(tasks[simulated], description=what, completed=done, total=total)

        found = study.run(out, quick=quick, seed=seed, hosts=not simulated_only, progress=progress)
    _show_claims(found["summary"], "Gu et al. 2009, paper and ours")
    missed = [v for v in found["summary"] if not v["within"] or v.get("agrees") is False]
    _show_reasons(missed)
    console.print(f"{found['runs']:,} results, {found['seconds']:.0f} s; {found['page']}", highlight=False)
    if found["not_measured"]:
        raise DrillFailed(f"could not be measured: {'; '.join(found['not_measured'])}")
    opposed = [v["name"] for v in missed if v.get("agrees") is False]
    if opposed:
        raise DrillFailed(f"measured otherwise than simulated: {'; '.join(opposed)}")
    _fail_unexplained(missed)


@lab.command()
def spade(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer crashes, points and checkpoints: half a minute.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for plots, page, results.jsonl and summary.json.")] = Path(
        "out/lab/spade"
    ),
) -> None:
    """Jacques-Silva et al. 2009 (SPADE): crashes with and without checkpoints, and what checkpoints of joins cost."""
    from understudy.lab import spade as study

    with _bar() as bar:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        try:
            found = study.run(out, quick=quick, progress=progress)
        except ValueError as error:
            raise JobError(str(error)) from None
    _show_claims(found["summary"], "Jacques-Silva et al. 2009, paper and ours")
    missed = [v for v in found["summary"] if not v["within"]]
    _show_reasons(missed)
    console.print(f"{found['runs']:,} results, {found['seconds']:.0f} s; {found['page']}", highlight=False)
    _fail_unexplained(missed)


def _show_claims(summary: list[dict[str, Any]], title: str) -> None:
    """A line per claim, a column per way of finding out."""
    claims: dict[str, dict[str, Any]] = {}
    for value in summary:
        claims.setdefault(value["name"], {})[value["how"]] = value
    hows = {value["how"]: value["found"] for value in summary}
    table = Table(title=f"{title} (red: outside of the shape)", title_justify="left")
    table.add_column("shape")
    for head in ("paper", *hows.values()):
        table.add_column(head, justify="right", max_width=12)
    for name, values in claims.items():
        found = [values.get(how) for how in hows]
        cells = ["" if v is None else f"{v['ours']:.3g}" if v["within"] else f"[red]{v['ours']:.3g}[/]" for v in found]
        table.add_row(name, next(iter(values.values()))["says"], *cells)
    console.print(table)


def _show_reasons(missed: list[dict[str, Any]]) -> None:
    """What is not as in the paper, by why."""
    reasons: dict[str, list[str]] = {}
    for value in missed:
        reasons.setdefault(value.get("why") or "not explained", []).append(f"{value['name']} ({value['found']})")
    for why, where in reasons.items():
        console.print(f"{'; '.join(where)}:\n  {why}", highlight=False, soft_wrap=True)


def _fail_unexplained(missed: list[dict[str, Any]]) -> None:
    unexplained = [f"{v['name']}, {v['found']}" for v in missed if not v.get("why")]
    if unexplained:
        raise DrillFailed(f"not as in the paper, and no reason known: {'; '.join(unexplained)}")
