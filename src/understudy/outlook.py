"""``understudy plan``: look at a job on one host, without running it, and show what to expect of it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from understudy.core.costs import Estimate
from understudy.core.operators import OperatorClass, duration
from understudy.planning import Measured, Outlook, outlook

WIDTH = 100
"""Columns that the table fits into, whatever the terminal."""
_RECOVERY = {"precise": "green", "rollback": "yellow", "gap": "red"}


def inspect(
    job_file: Path, profile: Path, *, roles: dict[str, Any], master: str, settings: dict[str, str]
) -> dict[str, Any]:
    """Build the job's stages on a host of its own, in a folder of its own, and judge them."""
    from understudy.runtime.session import LocalRun

    with tempfile.TemporaryDirectory(prefix="understudy-plan-") as folder:
        options = {"sink_root": folder}
        run = LocalRun(job_file, Path(folder), hosts=1, roles=roles, options=options, master=master, settings=settings)
        try:
            run.hosts.start("h1")
            run.coordinator.wait_for_hosts(1)
            run.coordinator.inspect()
            job, topology, operators = run.coordinator.job, run.coordinator.topology, run.coordinator.operators
        finally:
            run.stop(drain=False)
    measured = Measured.read(profile)
    units = outlook(job, topology, operators, measured)
    return {"job": job.name, "measured": measured, "units": units}


def to_dict(found: dict[str, Any]) -> dict[str, Any]:
    measured: Measured | None = found["measured"]
    return {
        "job": found["job"],
        "measured_s": measured.seconds if measured else None,
        "ha_ratio": measured.ha_ratio if measured else None,
        "units": [unit.to_dict() for unit in found["units"]],
    }


def show(found: dict[str, Any], console: Console) -> None:
    units: Sequence[Outlook] = found["units"]
    measured: Measured | None = found["measured"]
    table = Table(box=box.SIMPLE_HEAD, show_lines=True, padding=(0, 1), pad_edge=False, width=min(WIDTH, console.width))
    table.add_column("unit", ratio=10, overflow="fold")
    table.add_column("stages", ratio=30)
    table.add_column("policy; what is kept", ratio=24)
    table.add_column("after a crash", ratio=18)
    table.add_column("cost", ratio=15)
    for unit in units:
        table.add_row(unit.unit, _stages(unit), _policy(unit), _crash(unit), _cost(unit))
    console.print(Text(f"job {found['job']}", style="bold"))
    console.print(table)
    for unit in units:
        if unit.why:
            console.print(f"us.auto for {unit.unit}", style="bold", highlight=False)
            for line in unit.why:
                console.print(Padding(Text(line), (0, 0, 0, 2)), width=min(WIDTH, console.width))
    console.print(_basis(measured), style="dim", highlight=False, width=min(WIDTH, console.width))


def _stages(unit: Outlook) -> Group:
    lines: list[Text] = []
    for name, found in unit.stages.items():
        if found is None:
            lines.append(Text.assemble((name, "bold"), ": a source"))
            continue
        lines.append(Text.assemble((name, "bold"), f": {found.state}, {found.determinism}"))
        lines += [Text(cause, style="dim") for cause in _causes(found)]
        if name in unit.saved:
            lines.append(Text(f"saved: {unit.saved[name]}", style="dim"))
    return Group(*lines)


def _causes(found: OperatorClass) -> list[str]:
    """A cause that explains both classes is told once."""
    causes = [] if found.state == "stateless" else [found.state_cause]
    if found.determinism_cause not in causes and found.determinism != "repeatable":
        causes.append(found.determinism_cause)
    return causes + [f"note: {note}" for note in found.notes]


def _policy(unit: Outlook) -> Group:
    goal = Text(" (us.auto)", style="dim") if unit.why else Text("")
    return Group(Text.assemble((unit.policy.describe(), "bold"), goal), Text(f"kept: {unit.kept}", style="dim"))


def _crash(unit: Outlook) -> Group:
    best = unit.measured or unit.stated
    first = Text.assemble((unit.recovery, _RECOVERY[unit.recovery]), f", in about {_time(best.silence_s)}")
    worst = "" if _time(best.worst_s) == _time(best.silence_s) else f"at worst {_time(best.worst_s)}, "
    later = Text(f"{worst}in step after {_time(best.full_recovery_s)}", style="dim")
    causes = [] if unit.recovery == "precise" else [Text(unit.recovery_cause, style="dim")]
    return Group(first, later, *causes)


def _cost(unit: Outlook) -> Group:
    """By the same formulas, with stated figures and with measured ones."""
    if unit.measured is None:
        return Group(*_ratios(unit.stated))
    stated = f"stated: +{_percent(unit.stated.ha_ratio)}, +{_percent(unit.stated.cpu_ratio)}"
    return Group(*_ratios(unit.measured), Text(stated, style="dim"))


def _ratios(found: Estimate) -> list[Text]:
    return [Text(f"bytes +{_percent(found.ha_ratio)}"), Text(f"CPU +{_percent(found.cpu_ratio)}")]


def _basis(measured: Measured | None) -> str:
    if measured is None:
        return (
            "Nothing was measured yet: figures are those of a small job on a small machine. Run the job for a minute, "
            "and this reckons with what it does. A drill measures what a crash costs."
        )
    spent = "" if measured.ha_ratio is None else f"; protection took {_percent(measured.ha_ratio)} of the data's bytes"
    return f"Measured over {duration(round(measured.seconds))} of running{spent}. A drill measures what a crash costs."


def _percent(ratio: float) -> str:
    return f"{ratio:.0%}" if ratio >= 0.1 else f"{ratio:.1%}"


def _time(s: float) -> str:
    return duration(float(f"{s:.2g}"))
