"""How a rehearsal goes on."""

from __future__ import annotations

import pytest

from understudy.runtime.rehearsal import Course


def rows_of(course: Course, batches_s: list[float]) -> list[int]:
    rows = []
    for batch_s in batches_s:
        rows.append(course.rows)
        course.took(batch_s)
    return rows


def test_a_rehearsal_takes_more_rows_while_they_are_cheap() -> None:
    assert rows_of(Course(1500), [5.0, 0.3, 0.2, 0.2, 0.2]) == [10, 100, 1000, 1500, 1500]


def test_a_rehearsal_of_rows_that_cost_much_stays_with_few() -> None:
    """Every row may become a thousand: the running stages would go without the processor meanwhile."""
    assert rows_of(Course(1000), [5.0, 1.5, 1.2, 1.1, 1.1]) == [10, 100, 100, 100, 100]


def test_few_rows_are_all_taken_at_once() -> None:
    assert rows_of(Course(7), [5.0, 0.1]) == [7, 7]
    assert rows_of(Course(0), [5.0, 0.1]) == [0, 0]


@pytest.mark.parametrize(
    ("batches_s", "warm"),
    [
        ([], False),
        ([4.0, 0.5, 0.4, 0.3], False),
        ([4.0, 0.5, 0.4, 0.3, 0.3, 0.3], False),
        ([4.0, 0.5, 0.4, 0.3, 0.3, 0.3, 0.3], True),
        ([4.0, 0.5, 0.4, 0.3, 0.2, 0.3, 0.3], False),
        ([0.3, 0.3, 0.3, 0.3], True),
    ],
)
def test_it_is_warm_when_it_gets_no_faster(batches_s: list[float], warm: bool) -> None:
    course = Course(10)
    rows_of(course, batches_s)
    assert course.is_warm() == warm


def test_batches_of_fewer_rows_do_not_count_for_that() -> None:
    """They were faster because they were smaller."""
    course = Course(10_000)
    rows_of(course, [4.0, 0.1, 0.2, 0.4, 0.4, 0.4])
    assert course.rows == 10_000 and not course.is_warm()
    course.took(0.4)
    assert course.is_warm()
