"""An operator: what a class must have, and its object in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark import cloudpickle

import understudy as us
from understudy.core.failover import CODE, MACHINE
from understudy.errors import JobError
from understudy.operators import Operator, checked, windowed
from understudy.runtime.operator_engine import cause_of
from understudy.runtime.operator_process import Died, OperatorProcess, StateDamaged, Threw, Unfit
from understudy.windowed.aggregate import Aggregate
from understudy.windowed.barrier import Barrier

ROWS = pa.table({"x": [1, 2, 3]})


class Sum:
    def __init__(self) -> None:
        self.total = 0

    def process(self, rows: pa.Table) -> pa.Table:
        self.total += sum(rows["x"].to_pylist())
        if self.total > 1000:
            raise ValueError(f"{self.total} is too much")
        return pa.table({"more": [True], "total": [self.total]})


class OwnWords(Sum):
    def save(self) -> bytes:
        return str(self.total).encode()

    def restore(self, saved: bytes) -> None:
        self.total = int(saved)


class Slots:
    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 5

    def process(self, rows: Any) -> pa.Table:
        self.total += 1
        return pa.table({"total": [self.total]})


@pytest.fixture(autouse=True)
def by_value() -> None:
    """As the module of a job file is sent."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture
def living(tmp_path: Path) -> Any:
    processes: list[OperatorProcess] = []

    def start(cls: type, schema: str = "total long", inputs: int = 1) -> OperatorProcess:
        processes.append(OperatorProcess("op", checked(cls, schema, inputs=inputs, stateless=False), tmp_path))
        return processes[-1]

    yield start
    for process in processes:
        process.end()


def test_an_object_keeps_its_state_from_epoch_to_epoch(living: Any) -> None:
    process = living(Sum)
    assert process.process([ROWS]).to_pydict() == {"total": [6]}
    assert process.process([ROWS]) == pa.table({"total": [12]}), "columns that the schema does not name are left out"
    assert process.pid != os.getpid()


@pytest.mark.parametrize("cls", [Sum, OwnWords, Slots])
def test_another_process_goes_on_from_what_was_saved(living: Any, cls: type) -> None:
    first, second = living(cls), living(cls)
    first.process([ROWS])
    saved = first.save()
    expected = first.process([ROWS])
    second.restore(saved)
    assert second.process([ROWS]) == expected
    second.restore(saved)
    assert second.process([ROWS]) == expected, "a standby restores again and again"


def test_what_an_operator_that_comes_with_it_is_given_is_the_jobs(tmp_path: Path) -> None:
    """A sum that is too large, or a column that a Spark stage does not have after all, is not Understudy's failure."""
    operator = windowed(partial(Aggregate, "k", us.rows(5), total=("v", "sum")), None, "k long, total long")
    process = OperatorProcess("sums", operator, tmp_path)
    try:
        with pytest.raises(Unfit, match=r"^aggregate\(total=\('v', 'sum'\)\): the sum is more than int64") as told:
            process.process([pa.table({"k": [1, 1], "v": [2**62, 2**62]})])
        assert cause_of(told.value) == (str(told.value), CODE)
        with pytest.raises(Unfit, match=r"^the input of the aggregate has no column 'v'"):
            process.process([pa.table({"k": [1, 1]})])
    finally:
        process.end()


class Sheds:
    """An attribute of it comes and goes."""

    def process(self, rows: pa.Table) -> pa.Table:
        was = hasattr(self, "seen")
        if was:
            del self.seen
        else:
            self.seen = True
        return pa.table({"total": [int(was)]})


def test_what_is_not_in_a_state_is_not_there_after_it_was_restored(living: Any) -> None:
    first, second = living(Sheds), living(Sheds)
    without = first.save()
    second.process([ROWS])
    second.restore(without)
    assert second.process([ROWS]).to_pydict() == {"total": [0]}


JOB_FILE = """
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
import pyarrow as pa

class Colour(Enum):
    RED = 1

@dataclass
class Seen:
    count: int = 0
    colour: Colour = Colour.RED

def fresh():
    return Seen()

class Watch:
    def __init__(self):
        self.seen, self.total = defaultdict(fresh), defaultdict(lambda: 0)
    def process(self, rows):
        for x in rows["x"].to_pylist():
            self.seen[x].count += 1
            self.total[x] += x
        assert all(type(s) is Seen and s.colour is Colour.RED for s in self.seen.values())
        return pa.table({"total": [sum(s.count for s in self.seen.values()) + sum(self.total.values())]})
"""


def test_state_of_the_job_files_own_classes_is_of_the_same_classes_elsewhere(living: Any) -> None:
    """Dataclasses, enumerations, functions, lambdas, of a module that no operator's process can import. Every host
    sends a copy of the class of its own."""

    def loaded() -> type:
        module = ModuleType("understudy_job_tried")
        sys.modules[module.__name__] = module
        exec(JOB_FILE, vars(module))
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        found: type = module.Watch
        return found

    first, second = living(loaded()), living(loaded())
    first.process([ROWS])
    saved = first.save()
    assert b"understudy_job_tried" in saved and len(saved) < 2000, "classes by name"
    expected = first.process([ROWS])
    second.restore(saved)
    assert second.process([ROWS]) == expected
    second.restore(second.save())


def test_several_inputs(living: Any) -> None:
    class Both:
        def process(self, left: pa.Table, right: pa.Table) -> pa.Table:
            return pa.table({"total": [left.num_rows * 10 + right.num_rows]})

    assert living(Both, inputs=2).process([ROWS, ROWS.slice(1)]).to_pydict() == {"total": [32]}


def test_what_process_may_return(living: Any) -> None:
    class Nothing:
        def process(self, rows: Any) -> None:
            return None

    class Pandas:
        def process(self, rows: pa.Table) -> Any:
            return rows.to_pandas()

    class Batch:
        def process(self, rows: pa.Table) -> Any:
            return rows.to_batches()[0]

    assert living(Nothing, "x long").process([ROWS]).num_rows == 0
    assert living(Pandas, "x double").process([ROWS]) == pa.table({"x": [1.0, 2.0, 3.0]})
    assert living(Batch, "x int").process([ROWS]).schema == pa.schema([("x", pa.int32())])


def test_code_that_throws_is_told_with_its_traceback_and_can_be_asked_again(living: Any) -> None:
    process = living(Sum)
    with pytest.raises(Threw, match=r"(?s)test_operator_process.py.*ValueError: 1001 is too much"):
        process.process([pa.table({"x": [1001]})])
    assert process.lives and int.from_bytes(process.save()[:1]) == 0x80


@pytest.mark.parametrize(
    ("answer", "schema", "words"),
    [
        ("rows.to_pylist()", "x long", "Odd.process returned list; return an Arrow table, or None for no rows"),
        ("rows", "x long, y long", r"returned columns \['x'\]; its schema has \['y'\] too"),
        ("rows", "x date", "Unsupported cast"),
        ("rows.append_column('x', rows['x'])", "x long", "Odd.process returned two columns named 'x'; rename one"),
    ],
)
def test_answers_that_do_not_fit(living: Any, answer: str, schema: str, words: str) -> None:
    made: dict[str, Any] = {}
    exec(f"class Odd:\n    def process(self, rows):\n        return {answer}", made)
    with pytest.raises(Threw, match=words):
        living(made["Odd"], schema).process([ROWS])


def test_a_process_that_is_killed_says_so(living: Any) -> None:
    process = living(Sum)
    process.process([ROWS])
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(Died, match="the process of operator 'op' was killed by SIGKILL"):
        process.process([ROWS])
    assert not process.lives


def test_a_process_that_exits_says_so(living: Any) -> None:
    class Quits:
        def process(self, rows: Any) -> None:
            os._exit(3)

    with pytest.raises(Died, match="ended by itself, with exit code 3"):
        living(Quits).process([ROWS])


def test_ending_it_does_not_wait_for_the_users_code(living: Any) -> None:
    class Hangs:
        def process(self, rows: Any) -> None:
            time.sleep(600)

    import threading

    process = living(Hangs)
    process.make()
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            process.process([ROWS])
        except Died as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)
    begin = time.monotonic()
    process.end()
    thread.join(5)
    assert time.monotonic() - begin < 2 and len(errors) == 1
    assert not psutil.pid_exists(process.pid)


def test_a_class_that_cannot_be_sent(living: Any) -> None:
    import threading

    lock = threading.Lock()

    class Locked:
        def process(self, rows: Any) -> Any:
            with lock:
                return rows

    with pytest.raises(JobError, match=r"operator 'op' cannot be sent to its process \(TypeError: cannot pickle"):
        living(Locked, "x long")


@pytest.mark.parametrize("missing", ["input1.head", "head", "input1.0-"])
def test_a_barrier_goes_on_from_a_whole_state_only(tmp_path: Path, missing: str) -> None:
    """And that it cannot is neither the user's fault nor ours. Whatever reads a checkpoint finds damage before, and
    mends it; but a standby's object takes up files as they lie there."""
    numbers = pa.table({"n": range(9)})
    operator = windowed(partial(Barrier, 2), [numbers.schema] * 2, None)
    processes = [OperatorProcess("pairs", operator, tmp_path) for _ in range(2)]
    try:
        first, second = processes
        first.process([numbers, numbers.slice(0, 4)])
        first.process([numbers, numbers.slice(4, 2)])
        saved = first.save()
        assert isinstance(saved, dict)
        parts = {name: None if missing in name else body for name, body in saved.items()}
        with pytest.raises(StateDamaged, match=f"the state of operator 'pairs' is damaged: .*{missing}") as caught:
            second.restore(parts)
        assert cause_of(caught.value) == (str(caught.value), MACHINE)
        assert second.restore(saved) is None, "a whole one is as good as ever"
        assert second.process([numbers.slice(0, 0), numbers.slice(6, 1)])["n_2"].to_pylist() == [6]
    finally:
        for process in processes:
            process.end()


# -- what is refused where it is written ----------------------------------------------------------------------------


class NoProcess:
    pass


class WantsMore:
    def process(self, left: Any, right: Any) -> Any: ...


class NeedsArguments(Sum):
    def __init__(self, size: int) -> None: ...


class SavesOnly(Sum):
    def save(self) -> bytes: ...


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (NoProcess, "class NoProcess has no method process(self, table)"),
        (WantsMore, "WantsMore.process must take one table for every input"),
        (NeedsArguments, "NeedsArguments.__init__ must take nothing: the object is made anew on every host"),
        (SavesOnly, "class SavesOnly has save but no restore; write both, or neither"),
        (len, "decorates a class with a method process"),
    ],
)
def test_mistakes_in_a_class(cls: Any, words: str) -> None:
    job = us.Job("j")
    rows = job.source("rows", us.sources.rate(10))
    with pytest.raises(JobError) as caught:
        job.operator(rows, schema="total long")(cls)
    assert words in str(caught.value) and str(caught.value).startswith("test_operator_process.py:")


def test_mistakes_in_a_call() -> None:
    job = us.Job("j")
    rows = job.source("rows", us.sources.rate(10))
    with pytest.raises(JobError, match="an operator needs an input"):
        job.operator(schema="total long")
    with pytest.raises(JobError, match="operator 'Sum': schema 'total lang' has the unknown type 'lang'"):
        job.operator(rows, schema="total lang")(Sum)


def test_a_job_of_operators_needs_no_spark() -> None:
    job = us.Job("j")
    rows = job.source("rows", us.sources.rate(10))
    totals = job.operator(rows, schema="total long")(Sum)
    job.sink(totals, us.sinks.parquet("out"))
    assert not job.needs_spark
    assert isinstance(job.stages["Sum"].operator, Operator) and job.stages["Sum"].inputs == ("rows",)
    job.sink(totals, us.sinks.foreach_epoch(print))
    assert job.needs_spark
    other = us.Job("k")
    rows = other.source("rows", us.sources.rate(10))
    other.operator(rows, schema="total long", prepare=lambda rows: rows)(Sum)
    assert other.needs_spark


class Lossy(Sum):
    def missed(self, rows: dict[str, int], epochs: int) -> None:
        self.total += 100 * epochs + rows["left"] + 10 * rows["right"]


def test_it_is_told_what_is_missing_from_its_state(living: Any) -> None:
    first, second = living(Lossy), living(Lossy)
    first.process([ROWS])
    second.restore(first.save())
    second.missed([("left", 3), ("right", 4)], 2)
    assert second.process([ROWS]).to_pydict() == {"total": [6 + 200 + 43 + 6]}


def test_one_that_does_not_ask_is_not_told(living: Any) -> None:
    process = living(Sum)
    process.missed([("left", 3)], 2)
    assert process.process([ROWS]).to_pydict() == {"total": [6]}


class Mistaken(Sum):
    def missed(self, rows: dict[str, int]) -> None: ...


def test_it_must_take_both_rows_and_epochs() -> None:
    with pytest.raises(ValueError, match=r"Mistaken.missed must take the rows that are missing, by input"):
        checked(Mistaken, "total long", inputs=1, stateless=False)
