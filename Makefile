# Every target first makes sure that .venv is up to date (tools/setup.sh: well under a second when it is).
# ARGS reaches the command: make demo ARGS="--help", make test ARGS="-k queue -x".

ARGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast coverage drills compat oldest bench-failover bench-latency bench-throughput bench-policies bench-auto bench-operators bench-windows bench-windows-spark bench-simulator soak soak-kills fuzz lab lint clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

setup: ## create or update .venv, check Java
	@tools/setup.sh

demo: setup ## run a job, kill a host, watch it go on
	@$(BIN)/understudy demo $(ARGS)

# With ARGS pytest runs in one lane.
test: lint ## lint, types, then all tests
	$(if $(ARGS),$(BIN)/pytest $(ARGS),tools/test.sh tests/e2e)

test-fast: setup ## only the tests that need no JVM
	$(if $(ARGS),$(BIN)/pytest -m "not e2e" $(ARGS),tools/test.sh)

coverage: setup ## how much of core and runtime the tests without a JVM reach; fails below 98 % and 80 %
	$(BIN)/python tools/measure_coverage.py $(ARGS)

drills: setup ## break a running job in every way and judge the result
	$(BIN)/python benchmarks/drills.py $(ARGS)

compat: setup ## stages of about a hundred shapes, killed in the middle, against plain Spark
	$(BIN)/python benchmarks/compat.py $(ARGS)

oldest: setup ## the quick part of compat, and Spark's internals, with the oldest PySpark that is supported
	tools/oldest.sh $(ARGS)

bench-latency: setup ## from a row's being there to its result being durable, against plain Spark
	$(BIN)/python benchmarks/latency.py $(ARGS)

bench-failover: setup ## kill to first new output, against a cold restart of plain Spark
	$(BIN)/python benchmarks/failover.py $(ARGS)

bench-throughput: setup ## rows per second, against plain Spark and without protection
	$(BIN)/python benchmarks/throughput.py $(ARGS)

bench-policies: setup ## what each policy costs and saves, all on one job
	$(BIN)/python benchmarks/policies.py $(ARGS)

bench-auto: setup ## what us.auto chooses for three jobs, against what is measured
	$(BIN)/python benchmarks/auto.py $(ARGS)

bench-operators: setup ## latency, takeover and throughput of operators, which need no JVM
	$(BIN)/python benchmarks/operators.py $(ARGS)

soak-kills: setup ## a thousand kills and hundreds of pauses of real hosts, on random jobs, by seed
	$(BIN)/python benchmarks/soak_kills.py $(ARGS)

soak: setup ## ten minutes at full speed against a slow sink
	$(BIN)/python benchmarks/soak.py $(ARGS)

fuzz: setup ## 100,000 random fault schedules in virtual time, and a crash at every step
	$(BIN)/understudy fuzz --steps
	$(BIN)/understudy fuzz --seeds 100000 $(ARGS)

lab: setup ## the papers' experiments beside the papers' values
	$(BIN)/understudy lab hwang $(ARGS)
	$(BIN)/understudy lab gu $(ARGS)
	$(BIN)/understudy lab spade $(ARGS)

bench-windows: setup ## operators with windows: rows per second, and what their checkpoints write
	$(BIN)/python benchmarks/windows.py $(ARGS)

bench-windows-spark: setup ## what us.Checkpoint takes from a join per key on Spark
	$(BIN)/python benchmarks/windows_on_spark.py $(ARGS)

bench-simulator: setup ## simulated events per second on one core
	$(BIN)/python benchmarks/simulator.py $(ARGS)

lint: setup ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/mypy

clean: ## remove what runs and tools left behind (keeps .venv)
	rm -rf out .understudy spark-warehouse metastore_db derby.log .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .coverage htmlcov build dist
	find . -path ./.venv -prune -o -type d -name __pycache__ -exec rm -rf {} +
