"""States that are saved now and then (Jacques-Silva et al. 2009): one scheduler for a unit, and what it lets go of."""

from __future__ import annotations

import pytest
from placements import after, begun, lost, on, render
from protections import at, play

import understudy as us
from understudy.core.beginning import Place, Resumed, resumed, start
from understudy.core.failover import Begin, HostJoined, StandbyReady, StandbyUnusable
from understudy.core.policies import Checkpoint, parse, spell
from understudy.core.policies.base import (
    AckUpstream,
    Capture,
    CaptureFailed,
    Committed,
    Drain,
    Late,
    Pasted,
    StageRole,
    StandbysChanged,
    Tick,
    Want,
)
from understudy.core.policies.checkpoint import OFTEN, Scheduled
from understudy.core.policies.passive import RETRY_S
from understudy.core.topology import StageShape, Topology, UnitShape

EVERY_S = 10.0


def unit(*stages: str, needs: str = "") -> Scheduled:
    """With one standby, which has all of it."""
    roles = [StageRole(s, -1, ("in",), needs_all_input=s in needs) for s in stages]
    machine = Checkpoint(every=EVERY_S).protect(roles)
    at(machine, 0, StandbysChanged(("b",)), *(Pasted(s, "b", -1) for s in stages))
    return machine


def test_input_is_let_go_of_as_soon_as_it_was_processed_and_the_state_is_saved_by_its_period() -> None:
    play(
        unit("s"),
        (1, Committed("s", 0), [AckUpstream("s", 0)]),
        (2, Committed("s", 1), [AckUpstream("s", 1)]),
        (9, Committed("s", 2), [AckUpstream("s", 2), Capture("s", "b", 2, queue=False)]),
        (10, Pasted("s", "b", 2), []),
        (11, Committed("s", 3), [AckUpstream("s", 3)]),
        (19, Tick(), [Capture("s", "b", 3, queue=False)]),
    )


def test_a_stage_that_needs_all_its_input_lets_go_of_what_is_saved_only_and_saves_its_output_too() -> None:
    """Section 4: for a barrier in-flight tuples must be kept, for this operator only."""
    play(
        unit("s", needs="s"),
        (1, Committed("s", 0), []),
        (10, Committed("s", 1), [Capture("s", "b", 1, queue=True)]),
        (11, Committed("s", 2), []),
        (11, Pasted("s", "b", 1), [AckUpstream("s", 1)]),
    )


def test_stages_are_saved_one_after_the_other_the_next_deadline_first() -> None:
    """Section 4.2: a queue of operators by their next checkpoint, and one thread."""
    machine = Checkpoint(every=EVERY_S).protect([StageRole(s, -1, ("in",)) for s in ("a", "b")])
    play(machine, (0, StandbysChanged(("x",)), [Capture("a", "x", -1, queue=False)]))
    play(
        machine,
        (1, Pasted("a", "x", -1), [Capture("b", "x", -1, queue=False)]),
        (1, Pasted("b", "x", -1), []),
        (12, Committed("b", 0), [AckUpstream("b", 0), Capture("b", "x", 0, queue=False)]),
        (12, Committed("a", 0), [AckUpstream("a", 0)]),
        (13, Pasted("b", "x", 0), [Capture("a", "x", 0, queue=False)]),
        (13, Pasted("a", "x", 0), []),
    )


def test_a_checkpoint_that_comes_late_is_said_and_the_next_one_is_not_late_for_that() -> None:
    machine = unit("a", "b")
    at(machine, 10, Committed("a", 0), Committed("b", 0))
    late = at(machine, 17, Committed("b", 1)).handle(Pasted("a", "b", 0), 17)
    assert late == [Late("b", 7), Capture("b", "b", 1, queue=False)]
    at(machine, 18, Pasted("b", "b", 1))
    assert machine.late == 1
    assert machine.handle(Committed("b", 2), 25) == [AckUpstream("b", 2), Capture("b", "b", 2, queue=False)]


def test_where_many_come_late_the_user_is_told_once_and_again_when_they_have_come_in_time_meanwhile() -> None:
    machine = unit("s")
    told: list[bool] = []
    for epoch in range(40):
        due = machine.stages["s"].next_at = 100.0 * (epoch + 1)
        now = due + (5.0 if epoch < 10 or epoch >= 30 else 0.0)
        said = at(machine, due - 1, Committed("s", epoch, version=False)).handle(Committed("s", epoch), now)
        at(machine, now, Pasted("s", "b", epoch))
        told.append(any(isinstance(effect, Late) and effect.often for effect in said))
    assert [epoch for epoch, said in enumerate(told) if said] == [OFTEN - 1, 30 + OFTEN - 1]


def test_a_state_that_cannot_be_had_later_is_wanted_when_it_is_due() -> None:
    machine = unit("s")
    assert machine.wants("s", 1) is Want.NOTHING
    assert machine.wants("s", 9) is Want.NOW
    play(
        machine,
        (9, Committed("s", 0, version=False), [AckUpstream("s", 0)]),
        (10, Committed("s", 1, version=True), [AckUpstream("s", 1), Capture("s", "b", 1, queue=False)]),
        (10, Committed("s", 2, version=False), [AckUpstream("s", 2)]),
    )
    assert machine.wants("s", 11) is Want.NOTHING
    assert machine.wants("s", 18) is Want.NOTHING, "the one before is on its way"
    at(machine, 18, Pasted("s", "b", 1))
    assert machine.wants("s", 18) is Want.NOW


def test_a_new_standby_is_brought_what_there_is_at_once() -> None:
    machine = at(unit("s"), 9, Committed("s", 4), Pasted("s", "b", 4))
    play(
        machine,
        (10, Committed("s", 5, version=False), [AckUpstream("s", 5)]),
        (10, StandbysChanged(("c",)), [Capture("s", "c", 4, queue=False)]),
        (10, Pasted("s", "c", 4), []),
    )


def test_a_capture_that_fails_is_tried_again_and_a_standby_that_cannot_store_is_left_alone() -> None:
    machine = at(unit("s"), 9, Committed("s", 4))
    play(
        machine,
        (10, CaptureFailed("s", "b", lost_standby=False), []),
        (10 + RETRY_S / 2, Tick(), []),
    )
    assert machine.next_deadline() == 10 + RETRY_S
    play(
        machine,
        (10 + RETRY_S, Tick(), [Capture("s", "b", 4, queue=False)]),
        (19, CaptureFailed("s", "b", lost_standby=True), []),
        (60, Committed("s", 5), [AckUpstream("s", 5)]),
    )
    assert machine.next_deadline() is None


def test_a_state_that_can_never_be_had_is_not_asked_for_for_ever() -> None:
    """A restored one that lacked a part, say. By the time that it is tried again there is to be a newer one."""
    machine = unit("s")
    at(machine, 9, Committed("s", 4), CaptureFailed("s", "b", lost_standby=False))
    assert machine.wants("s", 9 + RETRY_S) is Want.NOW
    found = machine.handle(Committed("s", 5), 9 + RETRY_S)
    assert found == [AckUpstream("s", 5), Capture("s", "b", 5, queue=False)]


def test_new_standbys_do_not_put_off_the_next_checkpoint() -> None:
    machine = at(unit("s"), 9, Committed("s", 4), Pasted("s", "b", 4))
    for now, standby in ((10, "c"), (11, "d"), (12, "e")):
        at(machine, now, StandbysChanged((standby,)), Pasted("s", standby, 4))
    assert machine.wants("s", 16) is Want.NOTHING
    assert machine.wants("s", 18) is Want.NOW


def test_what_is_saved_at_a_clean_stop_is_saved_with_its_output_also_where_it_has_been_already() -> None:
    """A consumer that also reads another source may end before it, and goes on there."""
    machine = at(unit("s"), 9, Committed("s", 4), Pasted("s", "b", 4))
    play(machine, (10, Drain(), [Capture("s", "b", 4, queue=True)]), (11, Pasted("s", "b", 4), []))
    assert machine.safe()


def test_a_deadline_that_has_passed_is_not_a_deadline() -> None:
    """Found by the simulator: one stage was to be tried again a little later than another one could have come early,
    and the machine was ticked for ever."""
    machine = unit("a", "b")
    at(machine, 7.5, Committed("a", 0))  # its capture begins, a quarter of the period early
    at(machine, 7.6, Committed("b", 0), CaptureFailed("a", "b", lost_standby=False))
    now = 7.6
    for _ in range(20):
        deadline = machine.next_deadline()
        if deadline is None:
            break
        assert deadline > now or machine.handle(Tick(), now), "nothing comes of a deadline that has passed"
        now = max(now, deadline)


def test_a_standby_that_is_lost_in_the_middle_does_not_hold_up_the_others() -> None:
    machine = at(unit("s"), 9, Committed("s", 4))
    play(
        machine,
        (10, StandbysChanged(("c",)), [Capture("s", "c", 4, queue=False)]),
    )


def test_a_clean_stop_saves_the_last_state_and_nothing_is_lost() -> None:
    machine = at(unit("s"), 1, Committed("s", 4, version=False))
    play(
        machine,
        (2, Drain(), [Capture("s", "b", 4, queue=True)]),
        (2, Committed("s", 5), [AckUpstream("s", 5)]),
        (3, Pasted("s", "b", 4), [Capture("s", "b", 5, queue=True)]),
    )
    assert not machine.safe()
    at(machine, 4, Pasted("s", "b", 5))
    assert machine.safe()


@pytest.mark.parametrize(
    ("saved", "kept", "found"),
    [
        (10, 11, Resumed(10, 0)),  # the producer has all that came since
        (10, 8, Resumed(10, 0)),  # and more
        (10, 15, Resumed(14, 4)),  # epochs 11 to 14 were acknowledged, and are in no state
        (-1, 3, Resumed(2, 3)),  # nothing was ever saved
    ],
)
def test_it_goes_on_at_the_oldest_epoch_that_its_producers_have(saved: int, kept: int, found: Resumed) -> None:
    assert resumed(saved, start([Place(kept, lost=False)], None, 1, newest=False)) == found


def test_it_is_spelled_and_refuses_nonsense() -> None:
    assert us.Checkpoint("2s") == parse("checkpoint 2s")
    assert spell(us.Checkpoint(every="2s", standbys=2)) == "checkpoint every=2s standbys=2"
    for wrong in ({"every": "soon"}, {"every": 0}, {"standbys": 0}):
        with pytest.raises(ValueError):
            us.Checkpoint(**wrong)  # type: ignore[arg-type]
    assert not us.Checkpoint().protected, "rows may be lost"


def test_what_needs_every_row_is_not_behind_what_may_lose_some() -> None:
    """An empty epoch on one side of a barrier would shift all later pairs."""
    stages = [
        StageShape("source"), StageShape("a", ("source",)), StageShape("b", ("a",)),
        StageShape("barrier", ("source", "b"), ("out",), needs_all_input=True),
    ]  # fmt: skip

    def spoiled(a: us.Checkpoint | us.PassiveStandby, barrier: object = None) -> list[tuple[str, str]]:
        policies = {"a": a, "barrier": barrier or us.Checkpoint()}
        units = [UnitShape(s.name, (s.name,), policies.get(s.name, us.PassiveStandby())) for s in stages]  # type: ignore[arg-type]
        return Topology.build(stages, units).spoiled()

    assert spoiled(us.PassiveStandby()) == []
    assert spoiled(us.Checkpoint()) == [("barrier", "a")]
    assert spoiled(us.PassiveStandby(), us.none) == [("barrier", "barrier")]


def test_what_needs_every_row_waits_for_its_state_and_never_begins_anew() -> None:
    """All else may begin with nothing when every copy of its state is gone; a barrier would pair the wrong rows."""
    found = {}
    for needs in (False, True):
        shape = Topology.build([StageShape("s", needs_all_input=needs)], [UnitShape("u", ("s",), us.Checkpoint())])
        machine = after(on(shape, *"ABC"), Begin())
        (name,) = machine.plan.units["u"].standbys
        machine.handle(StandbyReady("u", 1, name, 1), 0.0)
        machine.handle(StandbyUnusable("u", 1, name, 1, "damaged"), 0.0)
        machine.handle(lost("A"), 0.0)
        left = machine.plan.units["u"]
        found[needs] = left.primary, left.start, render(machine.handle(HostJoined("A", {"u": 7}), 0.0))
    assert found[False][:2] == ("C", "newest")
    assert found[True] == ("A", "fresh", "#3 2:A/C3 saved | restored A | new-standby C"), "from what is on its own disk"


def test_a_host_whose_disk_was_full_is_better_than_nobody() -> None:
    """Found by a drill: what begins anew needs no room for a state, and the job was stopped instead."""
    machine = begun(us.Checkpoint(), "AB")
    machine.handle(StandbyUnusable("u", 1, "B", 1, "full"), 0.0)
    machine.handle(lost("A"), 0.0)
    assert (machine.plan.units["u"].primary, machine.plan.units["u"].start) == ("B", "newest")
