"""The judgement of operators, from facts as ``runtime/spark_operators.py`` finds them."""

from __future__ import annotations

import json

import pytest

from understudy.core.operators import (
    KINDS,
    Call,
    Key,
    Operator,
    OperatorClass,
    Window,
    duration,
    judge,
    of_barrier,
    of_keys,
    of_object,
    of_rows,
    of_time,
)

INPUT = Operator("StreamingRelationV2")
TABLE = Operator("LogicalRelation", streaming=False)
MARK = Operator("EventTimeWatermark", children=(INPUT,))
TEN = Key("window", 5.0, window=True, window_s=10.0)


def above(name: str, *children: Operator, **facts: object) -> Operator:
    return Operator(name, children=children or (INPUT,), **facts)  # type: ignore[arg-type]


def test_a_stage_without_state_is_repeatable() -> None:
    found = judge(above("Project", above("Filter")))
    assert (found.state, found.determinism, found.refusal, found.window) == ("stateless", "repeatable", "", None)


def test_a_window_with_a_watermark_is_convergent_capable_and_names_what_it_needs() -> None:
    found = judge(above("Aggregate", MARK, keys=(Key("road"), TEN)))
    assert found.state == "windowed"
    assert found.state_cause == "window of 10 s with a watermark of 5 s lets go of input after 15 s"
    assert found.determinism == "convergent-capable"
    assert found.window == Window(10.0, 5.0)
    assert found.window.reach_s == 15.0
    assert found.refusal == ""


def test_the_watermarks_own_column_is_a_window_of_no_length() -> None:
    for name in ("Aggregate", "Deduplicate"):
        found = judge(above(name, MARK, keys=(Key("at", 5.0),)))
        assert found.window == Window(0.0, 5.0)
        assert found.state_cause.endswith("(at) with a watermark of 5 s lets go of input after 5 s")


@pytest.mark.parametrize(
    ("plan", "mode", "cause"),
    [
        (above("Aggregate", keys=(Key("road"),)), None, "groupBy(road) without a watermark keeps every key for ever"),
        (above("Aggregate"), None, "an aggregate over the whole stream never lets go of it"),
        (above("Aggregate", MARK, keys=(Key("road"),)), None, "groupBy(road) without the watermark's column"),
        (above("Aggregate", MARK, keys=(TEN,)), "complete", "groupBy(window) in output mode 'complete' keeps every"),
        (above("Aggregate", MARK, keys=(Key("s", 5.0, session=True),)), None, "a session can go on for ever"),
        (above("Deduplicate", keys=(Key("a"), Key("b"))), None, "dropDuplicates(a, b) without a watermark's column"),
        (above("Join", INPUT, INPUT), None, "a join of two streams keeps rows of both"),
        (above("FlatMapGroupsInPandasWithState"), None, "applyInPandasWithState keeps whatever"),
        (above("GlobalLimit"), None, "limit counts rows for ever"),
        (above("Whatever"), None, "Whatever is not known to let go of its input"),
    ],
)
def test_state_that_is_kept_for_ever(plan: Operator, mode: str | None, cause: str) -> None:
    found = judge(above("Project", plan), output_mode=mode)
    assert found.state == "unbounded"
    assert cause in found.state_cause
    assert found.refusal == found.state_cause
    assert found.determinism in ("deterministic", "arbitrary")


def test_a_join_with_a_static_table_keeps_nothing() -> None:
    counted = Operator("Aggregate", streaming=False, children=(TABLE,), keys=(Key("k"),))
    found = judge(above("Join", INPUT, counted))
    assert (found.state, found.determinism) == ("stateless", "repeatable")
    assert found.notes == ("a static table is read anew in every epoch; recovery is exact while it does not change",)


def test_duplicates_within_the_watermark_are_let_go_of_but_not_rebuilt() -> None:
    """A key that comes every 4 s with a delay of 5 s passes at 0, 8, 16, ...; begun at 4, it passes at 4, 12, ..."""
    found = judge(above("DeduplicateWithinWatermark", MARK, keys=(Key("k"),)))
    assert (found.state, found.determinism, found.window) == ("windowed", "deterministic", None)
    assert "depends on the first of them" in found.refusal


def test_what_cannot_be_rebuilt_is_told_with_the_remedy() -> None:
    window = above("Aggregate", MARK, keys=(TEN,))
    assert "make a stage of each" in judge(above("Aggregate", window, keys=(TEN,))).refusal
    two = above("Aggregate", above("Union", MARK, MARK), keys=(TEN,))
    assert "several watermarks" in judge(two).refusal
    reference = Operator("CTERelationRef")
    shared = above("WithCTE", above("CTERelationDef", window), above("Union", reference, reference))
    assert "several watermarks" in judge(shared).refusal
    unseen = above("Aggregate", MARK, keys=(Key("window", 5.0, window=True),))
    assert (judge(unseen).state, judge(unseen).window) == ("windowed", None)
    assert "length is not visible" in judge(unseen).refusal


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        (Call("rand", "random"), "rand() is random"),
        (Call("current_timestamp", "clock"), "current_timestamp() reads the clock"),
        (Call("collect_list", "order"), "collect_list() depends on the order of rows within an epoch"),
        (Call("spark_partition_id", "partition"), "spark_partition_id() depends on how Spark cuts an epoch"),
        (Call("dice", "declared"), "dice() is declared non-deterministic"),
    ],
)
def test_a_stage_is_as_good_as_its_weakest_operator(call: Call, cause: str) -> None:
    for plan in (above("Project", calls=(call,)), above("Aggregate", above("Project", MARK, calls=(call,)))):
        found = judge(plan)
        assert found.determinism == "arbitrary"
        assert found.determinism_cause.startswith(cause)


@pytest.mark.parametrize(
    ("plan", "cause"),
    [
        (above("MapInPandas"), "mapInPandas: a function Spark cannot look into"),
        (above("Sample"), "sample() is random"),
        (above("GlobalLimit"), "limit takes whichever rows come first"),
        (above("Deduplicate", keys=(Key("k"),), all_columns=False), "dropDuplicates keeps whichever row of a key"),
    ],
)
def test_operators_that_are_arbitrary_by_themselves(plan: Operator, cause: str) -> None:
    assert judge(plan).determinism == "arbitrary"
    assert judge(plan).determinism_cause.startswith(cause)


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        (
            Call("applyInPandasWithState", "timeouts"),
            "applyInPandasWithState() is time-dependent: its timeouts go by the wall clock of each batch",
        ),
        (
            Call("transformWithState", "timers"),
            "transformWithState() is time-dependent: its timers and its TTL go by the wall clock of each batch",
        ),
    ],
)
def test_what_goes_by_the_wall_clock_is_said_first(call: Call, cause: str) -> None:
    """Whatever else is arbitrary about the stage."""
    timed = above("TransformWithStateInPySpark", calls=(Call("f", "assumed"), call))
    found = judge(above("MapInPandas", above("Project", timed, calls=(Call("rand", "random"),))))
    assert (found.state, found.determinism, found.determinism_cause) == ("unbounded", "arbitrary", cause)
    assert found.state_cause == "transformWithState keeps whatever its function puts into its state"


def test_what_is_taken_for_granted_is_said_once() -> None:
    calls = (Call("f", "assumed"), Call("sum", "float"))
    found = judge(above("Project", above("Project", calls=calls), calls=calls))
    assert found.determinism == "repeatable"
    assert found.notes == (
        "f() is taken to be deterministic, as it is declared to be",
        "sum() of floating-point numbers can differ in the last bit with their order",
    )


def test_a_judgement_travels_as_json() -> None:
    for plan in (above("Project"), above("Aggregate", MARK, keys=(TEN,)), above("Aggregate", keys=(Key("k"),))):
        found = judge(plan)
        assert OperatorClass.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_every_kind_of_state_is_in_the_table() -> None:
    """And nothing else is: what a stage needs is told by its kind alone."""
    seen = {
        found.kind
        for found in (
            judge(above("Project")),
            judge(above("Aggregate", MARK, keys=(TEN,))),
            judge(above("DeduplicateWithinWatermark", MARK, keys=(Key("k"),))),
            judge(above("Aggregate", keys=(Key("k"),))),
            judge(above("WindowsPerKey")),
            judge(above("TransformWithState")),
            of_rows(5),
            of_time(Window(1.0, 0.0)),
            of_keys(),
            of_barrier(),
            of_object(stateless=True),
            of_object(stateless=False),
            of_object(stateless=False, needs_all_input=True),
        )
    }
    assert seen == set(KINDS)
    assert [kind for kind, needs in KINDS.items() if not needs.until] == ["nothing"]


def test_durations_are_written_as_people_write_them() -> None:
    assert [duration(s) for s in (0, 0.25, 1, 90, 120, 7200, 1.5)] == [
        "0 s", "250 ms", "1 s", "90 s", "2 min", "2 h", "1.5 s"
    ]  # fmt: skip
