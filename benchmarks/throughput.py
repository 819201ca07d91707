"""`make bench-throughput`: rows per second at full speed, and what protection takes away from it.

One stateful stage behind Understudy against the same query in plain Structured Streaming with the same generator;
then a chain of three stages with and without passive standby, and the protected chain with the code before
(``--before COMMIT``). All in one run, what is compared in turn; ratios are what counts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from pathlib import Path

from common import BEFORE, HERE, JOBS, code_of, console, save
from plain_failover import Child, die_with_parent
from plain_throughput import plain_rows_per_s
from understudy.cli import interrupt_on_sigterm
from understudy.runtime.session import LocalRun, wait_for
from understudy.verify import silence

GENERATOR = "understudy.sources:generate_rows"


def flood(*, stages: int, protected: bool, rows: int, warm: int, epochs: int, hosts: int, work: Path) -> float:
    """Rows per second through the job, over ``epochs`` epochs after ``warm`` ones."""
    os.environ |= {"FLOOD_ROWS": str(rows), "FLOOD_STAGES": str(stages), "FLOOD_PROTECTED": str(int(protected))}
    shutil.rmtree(work, ignore_errors=True)
    sink = work / "run" / "speeds"
    options = {"sink_root": str((work / "run").resolve())}
    settings = {"spark.driver.memory": "1500m"}
    with LocalRun(
        JOBS / "flood.py",
        work / "state",
        hosts=hosts,
        fresh=True,
        options=options,
        settings=settings,
        queue_bytes=1 << 30,
    ) as run:
        run.coordinator.wait_until_running(armed=protected, timeout_s=240)
        begin = len(list(sink.glob("epoch=*"))) + warm
        goal = begin + epochs

        def done() -> bool:
            run.coordinator.wait(0)
            return any((sink / f"epoch={goal:012d}").glob("part-*"))

        wait_for(done, 600, f"epoch {goal}")
    times = {epoch: at for at, epoch, _ in silence.arrivals(sink)}
    return rows * epochs / (times[goal] - times[begin])


def flood_before(source: Path, work: Path, *, rows: int, warm: int, epochs: int) -> float:
    """The protected chain with other code, in a process of its own."""
    work = work.resolve()
    call = f"rows={rows}, warm={warm}, epochs={epochs}, work={str(work / 'flood')!r}"
    script = f"import sys; sys.path.insert(0, {str(HERE)!r}); from throughput import child; child({call})"
    child = Child(["-c", script], work=work, log=work / "log", python_path=[str(source)])
    try:
        if child.process.wait(900) != 0:
            raise RuntimeError(f"the code before failed:\n{child.log_tail()}")
    finally:
        child.end()
    return float(child.log.read_text().rpartition("rows per second ")[2].split()[0])


def child(*, rows: int, warm: int, epochs: int, work: str) -> None:
    die_with_parent()
    found = flood(stages=3, protected=True, rows=rows, warm=warm, epochs=epochs, hosts=2, work=Path(work))
    print("rows per second", found, flush=True)
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows per epoch of the single stage")
    parser.add_argument("--chain-rows", type=int, default=500_000, help="rows per epoch of the chain")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--warm", type=int, default=40, help="epochs until the JVMs have compiled what they run")
    parser.add_argument("--rounds", type=int, default=2, help="of the chain; medians count")
    parser.add_argument("--before", default=BEFORE, help="commit to compare the chain with; 'none' leaves that out")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    interrupt_on_sigterm()
    work = arguments.out / "bench-throughput"
    rows, epochs, warm = arguments.rows, arguments.epochs, arguments.warm
    with console.status("plain Structured Streaming ..."):
        plain = plain_rows_per_s(
            rows_per_epoch=rows, epochs=epochs, keys=1000, work=work / "plain", generator=GENERATOR
        )
    console.print(f"plain Structured Streaming: {plain:,.0f} rows/s", highlight=False)
    with console.status("one stage behind Understudy ..."):
        stage = flood(stages=1, protected=False, rows=rows, warm=warm, epochs=epochs, hosts=1, work=work / "stage")
    console.print(f"one stage behind Understudy: {stage:,.0f} rows/s, ratio {stage / plain:.2f}", highlight=False)
    size = {"rows": arguments.chain_rows, "warm": warm, "epochs": epochs}
    kinds = {
        "none": lambda: flood(stages=3, protected=False, hosts=2, work=work / "chain-none", **size),
        "passive standby": lambda: flood(stages=3, protected=True, hosts=2, work=work / "chain-passive", **size),
    }
    if arguments.before != "none":
        source = code_of(arguments.before, work / "code-before")
        kinds["passive standby, before"] = lambda: flood_before(source, work / "chain-before", **size)
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(arguments.rounds):
        for name, kind in kinds.items():
            with console.status(f"chain of three, {name} ..."):
                found[name].append(kind())
            console.print(f"chain, {name}: {found[name][-1]:,.0f} rows/s", highlight=False)
    chain = {name: statistics.median(rates) for name, rates in found.items()}
    result = {
        "plain_rows_per_s": plain,
        "stage_rows_per_s": stage,
        "ratio": stage / plain,
        "chain_none_rows_per_s": chain["none"],
        "chain_passive_rows_per_s": chain["passive standby"],
        "passive_chain_ratio": chain["passive standby"] / chain["none"],
        "chain_before_ratio": chain["passive standby"] / chain["passive standby, before"] if len(chain) > 2 else None,
        "rows_per_epoch": rows,
        "chain_rows_per_epoch": arguments.chain_rows,
    }
    save("bench-throughput", result, arguments.out)
    console.print(
        f"ratio {result['ratio']:.2f}, chain with passive standby {result['passive_chain_ratio']:.2f} of none"
        + (f", {result['chain_before_ratio']:.2f} of the code before" if result["chain_before_ratio"] else ""),
        style="bold",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
