"""Virtual time: order, jumps, limits."""

from __future__ import annotations

import pytest

from understudy.sim.engine import Died, Engine, Life, Link


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


def test_a_run_that_is_cut_short_does_not_jump_ahead() -> None:
    engine, seen = Engine(), []
    for i in range(4):
        engine.at(float(i), seen.append, i)
    engine.run(10.0, events_max=2)
    assert seen == [0, 1] and engine.now == 1.0 and engine.events == 2
    engine.run(10.0, events_max=2)
    assert seen == [0, 1, 2, 3] and engine.now == 10.0, "nothing was left to do"


def test_a_frozen_life_makes_up_for_what_it_missed() -> None:
    engine, seen = Engine(), []
    life = Life(engine)
    for i in range(4):
        life.after(float(i), lambda n: seen.append((engine.now, n)), i)
    engine.run(0.5)
    life.freeze()
    life.freeze()
    engine.run(2.5)
    assert seen == [(0.0, 0)] and engine.events == 3, "a call that has to wait was an event all the same"
    life.thaw()
    life.thaw()
    assert seen == [(0.0, 0), (2.5, 1), (2.5, 2)]
    engine.run()
    assert seen[-1] == (3.0, 3) and len(seen) == 4


def test_what_was_planned_for_a_life_ends_with_it() -> None:
    engine, seen = Engine(), []
    life, other = Life(engine), Life(engine)

    def die(n: int) -> None:
        seen.append(n)
        life.end()
        raise Died

    life.after(1.0, die, 1)
    life.after(2.0, die, 2)
    other.after(3.0, seen.append, 3)
    engine.run()
    life.thaw()
    assert seen == [1, 3] and engine.events == 3


def test_who_dies_while_it_catches_up_does_no_more() -> None:
    engine, seen = Engine(), []
    life = Life(engine)
    for n in range(3):
        life.after(1.0, lambda n: (seen.append(n), life.end()), n)
    life.freeze()
    engine.run()
    life.thaw()
    assert seen == [0]


def test_messages_queue_for_a_link() -> None:
    link = Link(delay_s=0.5, bytes_per_s=100.0)
    assert link.arrival(0.0, 50) == pytest.approx(1.0)
    assert link.arrival(0.0, 50) == pytest.approx(1.5)
    assert link.arrival(10.0, 100) == pytest.approx(11.5)
    assert Link(delay_s=0.1).arrival(2.0, 10**9) == pytest.approx(2.1)
