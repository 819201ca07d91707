"""How much of the code the tests that start no JVM reach: `make coverage`. Fails below the bars.

Hosts are processes of their own and most of them end by ``os._exit``; Arrow's servers call Python on threads of their
own. All of it counts, except what a host did that was killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import coverage

ROOT = Path(__file__).parents[1]
SPARKS_OWN = (
    "armed",  # a query that waits at the door
    "class_archive",  # of the JVM's classes
    "opened",  # state that is opened ahead, through the JVM
    "python_daemon",  # forks Spark's workers
    "rehearsal",  # of a query
    "spark",
    "spark_engine",
    "spark_io",  # the data source, in Spark's own Python processes
    "spark_jvm",
    "spark_operators",  # reads Spark's plans
    "spark_source",
)
"""The files of `runtime` that do nothing without a JVM. End-to-end tests reach them."""
BARS = {"core": 98.0, "runtime": 80.0}
CONFIG = """
[run]
source = understudy
branch = true
parallel = true
data_file = {folder}/data
patch = subprocess, _exit
plugins = traced_servers
disable_warnings = no-data-collected, module-not-measured, couldnt-parse
"""


def measured(folder: Path) -> tuple[coverage.Coverage, int]:
    """Also pytest's exit status."""
    config = folder / "config"
    config.write_text(CONFIG.format(folder=folder))
    path = os.pathsep.join(filter(None, [str(ROOT / "tools"), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", "-m", "pytest", "-m", "not e2e"]
    tests = subprocess.run([*command, *sys.argv[1:]], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False)
    found = coverage.Coverage(config_file=str(config))
    found.combine()
    return found, tests.returncode


def figures(found: coverage.Coverage, part: str, out: Path) -> tuple[float, float]:
    """Percent of the branches; percent of lines and branches together."""
    folder = ROOT / "src/understudy" / part
    omit = [str(folder / f"{name}.py") for name in SPARKS_OWN] if part == "runtime" else []
    found.report(include=[f"{folder}/*"], omit=omit, show_missing=True, skip_covered=True)
    found.json_report(include=[f"{folder}/*"], omit=omit, outfile=str(out))
    totals = json.loads(out.read_text())["totals"]
    return 100 * totals["covered_branches"] / totals["num_branches"], totals["percent_covered"]


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        found, failed = measured(Path(temporary))
        reached = {part: figures(found, part, Path(temporary, "json")) for part in BARS}
    for part, (branches, both) in reached.items():
        without = f", without {', '.join(SPARKS_OWN)}" if part == "runtime" else ""
        print(f"{part}: {branches:.1f}% of branches, {both:.1f}% with lines{without}; the bar is {BARS[part]}%")
    return failed or int(any(min(reached[part]) < bar for part, bar in BARS.items()))


if __name__ == "__main__":
    sys.exit(main())
