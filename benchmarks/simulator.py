"""`make bench-simulator`: how fast virtual time passes, and whether memory stays flat while it does.

Two kinds of story, each on one core: whole protocols epoch by epoch, and the laboratory's tuples one by one. Counted in
processor time, and as the best of several runs, because other processes' load is no property of the simulator. Exit
code 0 when every story passes 200,000 events a second and memory grew by less than a tenth over ten times the time.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import console, save
from understudy.lab import hwang
from understudy.sim.fuzz import POLICIES, SHAPES, uniform
from understudy.sim.nodes import Conditions, World

GOAL = 200_000


def protocols(policy: str, epochs: int) -> tuple[int, float]:
    world = World(uniform(SHAPES["chain"], POLICIES[policy]), hosts=4, conditions=Conditions(epochs=epochs))
    begin = time.process_time()
    world.engine.run(epochs * 0.1)
    return world.engine.events, time.process_time() - begin


def tuples(policy: str, seconds: float) -> tuple[int, float]:
    begin = time.process_time()
    result = hwang.simulate(hwang.Params(policy=policy, measure_s=seconds))
    return result.events, time.process_time() - begin


def best(story: Callable[[], tuple[int, float]], runs: int) -> float:
    """Events a second of the fastest run."""
    return max(events / spent for events, spent in (story() for _ in range(runs)))


def memory(epochs: int) -> int:
    """Bytes in use after that many epochs of sweeping checkpoints."""
    tracemalloc.start()
    world = World(uniform(SHAPES["chain"], POLICIES["sweeping"]), hosts=4, conditions=Conditions(epochs=epochs))
    world.remember = False
    world.engine.run(epochs * 0.1)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3, help="of each story; the fastest counts")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    rates: dict[str, float] = {}
    with console.status("letting time pass ..."):
        for policy in ("none", "sweeping", "active", "upstream"):
            rates[f"protocols, {policy}"] = best(partial(protocols, policy, arguments.epochs), arguments.runs)
        for policy in ("passive", "active", "upstream"):
            rates[f"tuples, {policy}"] = best(partial(tuples, policy, arguments.epochs / 200), arguments.runs)
        memory(100)  # what is made on first use is no growth
        growth = memory(4000) / memory(400)
    for name, rate in rates.items():
        console.print(f"{name}: {rate:,.0f} events/s", highlight=False)
    console.print(f"memory after ten times the time: {growth:.2f} times", highlight=False)
    slowest = {kind: min(r for name, r in rates.items() if name.startswith(kind)) for kind in ("protocols", "tuples")}
    save("bench-simulator", {"events_per_s": rates, "slowest": slowest, "memory_growth": growth}, arguments.out)
    return 0 if min(slowest.values()) >= GOAL and growth < 1.1 else 1


if __name__ == "__main__":
    sys.exit(main())
