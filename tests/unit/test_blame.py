"""Whose failure it is, from texts as Spark 4.3 writes them (``failures/``) and from exceptions that are thrown here."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from understudy.errors import JobError, SetupError
from understudy.runtime import blame
from understudy.runtime.blame import CODE, MACHINE, UNDERSTUDY, whose
from understudy.runtime.parts import CheckpointDamaged
from understudy.runtime.spark import WORKER_LATE, root_cause
from understudy.sinks import foreach_epoch, parquet
from understudy.sources import folder, rate

FAILURES = Path(__file__).parent / "failures"
HOME = "/venv/lib/python3.11/site-packages/understudy"
"""Where it is installed, as any other library is."""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("udf", CODE),
        ("map_in_pandas", CODE),
        ("result_rows", CODE),  # no frame of the user's: Spark's worker does not like what the function returned
        ("ansi", CODE),
        ("too_large", CODE),  # a sum, in a window per key on Spark
        ("users_flight", CODE),  # the user's function asks a Flight server of its own
        ("publishing", UNDERSTUDY),
        ("converting", UNDERSTUDY),
        ("reading", UNDERSTUDY),
        ("no_token", UNDERSTUDY),
        ("stopped", UNDERSTUDY),
        ("no_answer", UNDERSTUDY),
        ("state_gone", UNDERSTUDY),
        ("out_of_memory", MACHINE),
        ("full_disk", MACHINE),
        ("worker_died", MACHINE),
    ],
)
def test_a_query_that_ended(name: str, expected: str) -> None:
    text = (FAILURES / f"{name}.txt").read_text().replace("{home}", HOME)
    assert whose(text, HOME) == expected


def test_every_text_is_tried() -> None:
    tried = test_a_query_that_ended.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {name for name, _ in tried} == {path.stem for path in FAILURES.glob("*.txt")}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ansi", "[DIVIDE_BY_ZERO] Division by zero."),
        ("result_rows", "[RESULT_ROWS_MISMATCH] The number of output rows (12)"),
        ("too_large", "Reason: aggregate(total=('v', 'sum')): the sum is more than int64 can hold; make 'v' a double"),
        ("udf", "ZeroDivisionError: integer division"),
        ("worker_died", "[STREAM_FAILED] Query"),
    ],
)
def test_what_is_said_of_it(name: str, said: str) -> None:
    found = root_cause((FAILURES / f"{name}.txt").read_text())
    assert said in found and not found.startswith("Caused by")


def test_a_worker_that_came_too_late_is_always_known_as_that() -> None:
    """Whoever is told tries again."""
    text = f"{FAILED}Job aborted: {WORKER_LATE}\nCaused by: org.apache.spark.SparkException: [SOME_ERROR] {WORKER_LATE}"
    assert WORKER_LATE in root_cause(text)


def test_without_understudys_frames_its_reader_is_anybodys() -> None:
    """So that the tests above do not pass because of something else in the texts."""
    text = (FAILURES / "publishing.txt").read_text().replace("{home}", "/jobs/understudy")
    assert whose(text, HOME) == CODE


FAILED = "[STREAM_FAILED] Query [id = 7d1c, runId = 7d1c] terminated with exception: "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FAILED + "[CAST_INVALID_INPUT] The value 'x' of the type \"STRING\" cannot be cast to \"INT\"", CODE),
        (FAILED + "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match", CODE),
        (FAILED + "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.", UNDERSTUDY),
        (FAILED + "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when running latestOffset", UNDERSTUDY),
        (FAILED + "java.lang.IllegalStateException: batch 7 doesn't exist", UNDERSTUDY),
        (FAILED + "org.apache.kafka.common.errors.TopicAuthorizationException: not authorized: [cars]", CODE),
        (FAILED + "java.net.ConnectException: Connection refused", MACHINE),
        (FAILED + "java.lang.OutOfMemoryError: Java heap space", MACHINE),
        (FAILED + "java.io.IOException: No space left on device", MACHINE),
        (FAILED + "java.io.IOException: File too large", MACHINE),
        (FAILED + "Job aborted due to stage failure: Python worker failed to connect back.", MACHINE),
        (FAILED + "Job 5 cancelled because SparkContext was shut down", MACHINE),
        ("py4j does not exist in the JVM", MACHINE),
        ("[Errno 111] Connection refused", MACHINE),
        ("the query ended by itself", UNDERSTUDY),
        ("job.py:5: stage 'a' cannot be built: AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] no", CODE),
        ("job.py:5: Spark refuses the output mode of stage 'a': update: AnalysisException: no", CODE),
        ("ValueError: this is all there is", CODE),
        ("", CODE),
        # What is named in the plan that Spark prints along, or in a line of code, was not said by anybody.
        (FAILED + "[DIVIDE_BY_ZERO] no\n=== Streaming Query ===\njava.lang.OutOfMemoryError", CODE),
        (
            "Traceback (most recent call last):\n"
            '  File "/jobs/job.py", line 3, in f\n'
            '    raise ValueError if full else OSError("No space left on device")\n'
            "ValueError\n",
            CODE,
        ),
    ],
)
def test_texts_without_a_traceback_and_texts_that_mislead(text: str, expected: str) -> None:
    assert whose(text, HOME) == expected


# -- exceptions that are caught ---------------------------------------------------------------------------------------


def caught(function: object, *arguments: object) -> str:
    with pytest.raises(Exception) as error:
        function(*arguments)  # type: ignore[operator]
    return blame.of(error.value)


def test_sources_and_sinks(tmp_path: Path) -> None:
    """What fails in them is the user's function or files, or the disk; a mistake of their own is ours."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").write_bytes(b"no parquet at all")
    schema = pa.schema([("n", pa.int64())])
    cursor = folder(str(tmp_path / "in"), schema=schema).open([])
    entry = cursor.take(1.0)
    assert caught(cursor.read, entry) == CODE
    (tmp_path / "in" / "a.parquet").unlink()
    assert caught(cursor.read, entry) == MACHINE
    assert caught(rate(10).open([]).read, {"nonsense": 1}) == UNDERSTUDY

    (tmp_path / "file").touch()
    table = pa.table({"n": [1]})
    assert caught(lambda: parquet(str(tmp_path / "file" / "out")).open(1, lambda: None).write(0, table)) == MACHINE

    class Session:
        def createDataFrame(self, table: pa.Table) -> pa.Table:
            return table

    def throws(frame: object, epoch: int) -> None:
        raise KeyError(epoch)

    assert caught(lambda: foreach_epoch(throws).open(1, Session).write(0, table)) == CODE


def test_errors_that_say_themselves_what_they_are() -> None:
    assert blame.of(JobError("the schema has changed")) == CODE
    assert blame.of(SetupError("Spark did not start")) == MACHINE
    assert blame.of(CheckpointDamaged("a file and its twin do not match")) == MACHINE
