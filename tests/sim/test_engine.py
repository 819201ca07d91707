"""Virtual time: order, jumps, limits."""

from __future__ import annotations

import pytest

from understudy.sim.engine import Engine, Link


def test_calls_come_in_order_of_time_and_of_planning() -> None:
    engine, seen = Engine(), []
    for time, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        engine.at(time, lambda n: seen.append((engine.now, n)), name)
    engine.run()
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert engine.events == 3 and len(engine) == 0


def test_a_call_may_plan_more_and_none_is_in_the_past() -> None:
    engine, seen = Engine(), []

    def first() -> None:
        engine.at(0.0, seen.append, "late")
        engine.after(1.0, seen.append, "later")

    engine.at(5.0, first)
    engine.run()
    assert seen == ["late", "later"] and engine.now == 6.0


def test_a_run_stops_where_it_is_told() -> None:
    engine, seen = Engine(), []
    for i in range(10):
        engine.at(float(i), seen.append, i)
    engine.run(3.5)
    assert seen == [0, 1, 2, 3] and engine.now == 3.5
    engine.run(events_max=2)
    assert seen == [0, 1, 2, 3, 4, 5] and engine.now == 5.0
    engine.run(100.0)
    assert seen == list(range(10)) and engine.now == 100.0


def test_messages_queue_for_a_link() -> None:
    link = Link(delay_s=0.5, bytes_per_s=100.0)
    assert link.arrival(0.0, 50) == pytest.approx(1.0)
    assert link.arrival(0.0, 50) == pytest.approx(1.5)
    assert link.arrival(10.0, 100) == pytest.approx(11.5)
    assert Link(delay_s=0.1).arrival(2.0, 10**9) == pytest.approx(2.1)
