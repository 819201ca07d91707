"""Monitors and the owner that weighs their word: scripts, the paper's claims, and what must hold whatever is said."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.core.detection import Failed, Missed, Returned, Tick, Trouble, View
from understudy.core.monitoring import (
    OWNER,
    Assigned,
    Doubted,
    Effect,
    Evidence,
    Health,
    Heard,
    Monitor,
    Report,
    Told,
    monitored,
)
from understudy.core.policies import PassiveStandby
from understudy.core.topology import StageShape, Topology, UnitShape

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines
PROCESSES = {"a": "a1", "b": "b1", "m": "m1"}
GONE = "3 heartbeats of 1000 ms missed"


# -- whom to watch --------------------------------------------------------------------------------------------------


def test_a_monitor_watches_the_primaries_of_its_units_but_never_itself() -> None:
    units = [UnitShape(n, (n,), PassiveStandby(), monitor=m) for n, m in zip("vwxyz", ["m", "m", None, "n", "m"])]
    topology = Topology.build([StageShape(n) for n in "vwxyz"], units)
    primaries = {"v": "a", "w": "m", "x": "b", "y": "b", "z": "a"}
    assert monitored(topology, primaries, "m") == ("a",)
    assert monitored(topology, primaries, "n") == ("b",)
    assert monitored(topology, primaries, "a") == ()
    assert monitored(topology, {"v": None}, "m") == ()


# -- the one who watches --------------------------------------------------------------------------------------------


def watching(*hosts: str, misses: int = 3) -> Monitor:
    monitor = Monitor(interval_s=1.0, misses=misses)
    assert monitor.handle(Assigned(hosts, PROCESSES), 0.0) == []
    return monitor


def report(**troubles: Trouble) -> list[Report]:
    return [Report(troubles, {host: PROCESSES[host] for host in troubles})]


def test_a_monitor_reports_how_many_misses_then_the_failure_then_the_return() -> None:
    """Gu et al. 2009, Section 4: the owner is told how many heartbeats were missed, and when a machine comes back."""
    monitor = watching("a")
    assert monitor.handle(Heard("a", "a1"), 1.0) == []
    assert monitor.handle(Tick(), 2.5) == report(a=Trouble(1))
    assert monitor.handle(Tick(), 2.6) == []
    assert monitor.handle(Tick(), 3.5) == report(a=Trouble(2))
    assert monitor.handle(Tick(), 4.5) == report(a=Trouble(3, GONE))
    assert monitor.handle(Tick(), 5.5) == []
    assert monitor.handle(Heard("a", "a1"), 6.0) == report()


def test_a_host_that_was_never_heard_is_missed_from_the_day_it_was_to_be_watched() -> None:
    assert watching("a", misses=1).handle(Tick(), 1.5) == report(a=Trouble(1, "1 heartbeats of 1000 ms missed"))


def test_a_plan_makes_a_monitor_say_again_what_it_sees() -> None:
    """The owner may be another one, which knows of nothing."""
    monitor = watching("a", "b")
    monitor.handle(Heard("b", "b1"), 1.0)
    assert monitor.handle(Tick(), 1.5) == report(a=Trouble(1))
    assert monitor.handle(Assigned(("a", "b"), PROCESSES), 1.6) == report(a=Trouble(1))


def test_a_host_that_is_no_longer_wanted_is_watched_until_it_is_well() -> None:
    """The paper has returns reported too, of a host that others have long replaced."""
    monitor = watching("a", "b")
    monitor.handle(Heard("b", "b1"), 1.0)
    monitor.handle(Tick(), 1.5)
    assert monitor.handle(Assigned((), PROCESSES), 2.0) == report(a=Trouble(1))
    assert monitor.watched == {"a": "a1"}
    assert monitor.handle(Tick(), 9.0) == report(a=Trouble(8, "8 heartbeats of 1000 ms missed"))
    assert monitor.handle(Heard("a", "a1"), 9.1) == report()
    assert monitor.watched == {}
    assert monitor.handle(Heard("a", "a1"), 9.2) == []
    assert monitor.next_deadline() is None


def test_another_process_is_another_host() -> None:
    monitor = watching("a")
    monitor.handle(Tick(), 9.0)
    assert monitor.handle(Assigned(("a",), {"a": "a2"}), 10.0) == report()
    assert monitor.handle(Heard("a", "a1"), 11.4) == [], "its predecessor's last words"
    assert monitor.handle(Tick(), 11.5) == [Report({"a": Trouble(1)}, {"a": "a2"})]
    assert monitor.handle(Assigned(("a",), {}), 12.0) == report(), "nobody is there"


# -- the one who decides --------------------------------------------------------------------------------------------


def told(watcher: str, *what: Missed | Failed | Returned) -> list[Effect]:
    return [Told(watcher, each) for each in what]


def acts(effects: list[Effect]) -> list[Effect]:
    return [e for e in effects if not isinstance(e, Told)]


def test_without_monitors_the_owner_believes_itself() -> None:
    evidence = Evidence()
    missed, failed, back = Missed("a", 1), Failed("a", GONE), Returned("a")
    assert evidence.hear(OWNER, {}, 0) == []
    assert evidence.hear(OWNER, {"a": Trouble(1)}, 1) == [*told(OWNER, missed), missed]
    assert evidence.hear(OWNER, {"a": Trouble(2)}, 2) == [Missed("a", 2)]
    assert evidence.health("a") == Health("suspected", 2, since=1, by={OWNER: Trouble(2)})
    assert evidence.hear(OWNER, {"a": Trouble(3, GONE)}, 3) == [*told(OWNER, failed), failed]
    assert evidence.hear(OWNER, {"a": Trouble(3, GONE)}, 4) == []
    assert evidence.health("a") == Health("failed", 3, since=1, failures=1, by={OWNER: Trouble(3, GONE)})
    assert evidence.hear(OWNER, {}, 5) == [*told(OWNER, back), back]
    assert evidence.health("a") == Health(failures=1, returned=5)
    assert evidence.hear(OWNER, {"a": Trouble(1)}, 6) == [*told(OWNER, missed), missed]
    assert evidence.hear(OWNER, {}, 7) == [*told(OWNER, back), back]
    assert evidence.health("a") == Health(failures=1, returned=5), "a suspicion is no failure"


def test_a_monitors_word_is_acted_upon_though_the_owner_hears_the_host() -> None:
    """Gu et al. 2009, Section 4: the owner starts a recovery when the monitoring machine reports the failure."""
    evidence = Evidence()
    assert evidence.hear("m", {"a": Trouble(1)}, 1) == [*told("m", Missed("a", 1)), Missed("a", 1)]
    failed = Failed("a", GONE)
    assert evidence.hear("m", {"a": Trouble(3, GONE)}, 3) == [*told("m", failed), Failed("a", f"{GONE}, says m")]
    assert evidence.hear("m", {}, 9) == [*told("m", Returned("a")), Returned("a")]


def test_a_host_is_back_when_everybody_who_gave_it_up_hears_it() -> None:
    evidence = Evidence()
    evidence.hear("m", {"a": Trouble(3, GONE)}, 1)
    assert evidence.hear(OWNER, {"a": Trouble(0, "the connection broke")}, 2) == told(
        OWNER, Failed("a", "the connection broke")
    )
    assert set(evidence.health("a").by) == {OWNER, "m"}
    assert evidence.hear("m", {}, 3) == told("m", Returned("a"))
    assert evidence.hear(OWNER, {}, 4) == [*told(OWNER, Returned("a")), Returned("a")]


def test_given_up_by_one_and_suspected_by_another_is_suspected_when_the_first_hears_it() -> None:
    evidence = Evidence()
    evidence.hear(OWNER, {"a": Trouble(1)}, 1)
    evidence.hear("m", {"a": Trouble(3, GONE)}, 2)
    assert acts(evidence.hear("m", {}, 3)) == [Returned("a"), Missed("a", 1)]
    assert acts(evidence.hear(OWNER, {}, 4)) == [Returned("a")]


def test_misses_count_as_the_worse_of_two_watchers() -> None:
    evidence = Evidence()
    evidence.hear("m", {"a": Trouble(2)}, 1)
    assert acts(evidence.hear(OWNER, {"a": Trouble(1)}, 2)) == []
    assert evidence.health("a").misses == 2
    assert acts(evidence.hear("m", {}, 3)) == []
    assert evidence.health("a").misses == 1


def test_the_word_of_a_monitor_that_was_given_up_does_not_count() -> None:
    evidence = Evidence()
    evidence.hear("m", {"a": Trouble(3, GONE)}, 1)
    assert acts(evidence.hear(OWNER, {"m": Trouble(0, "x")}, 2)) == [Failed("m", "x"), Returned("a")]
    assert evidence.hear("m", {"a": Trouble(3, GONE)}, 3) == []
    assert acts(evidence.hear(OWNER, {}, 4)) == [Returned("m")]
    assert acts(evidence.hear("m", {"a": Trouble(3, GONE)}, 5)) == [Failed("a", f"{GONE}, says m")]


def test_of_two_that_cannot_hear_each_other_the_first_to_speak_is_believed() -> None:
    evidence = Evidence()
    assert acts(evidence.hear("a", {"b": Trouble(3, GONE)}, 1)) == [Failed("b", f"{GONE}, says a")]
    assert evidence.hear("b", {"a": Trouble(3, GONE)}, 1) == []


def test_a_monitor_that_hears_nobody_is_doubted_and_costs_one_takeover() -> None:
    """Its network is broken, not theirs: the owner hears them all."""
    evidence = Evidence()
    one: View = {"a": Trouble(3, GONE)}
    both: View = {"a": Trouble(3, GONE), "b": Trouble(3, GONE)}
    assert acts(evidence.hear("m", one, 1)) == [Failed("a", f"{GONE}, says m")]
    assert acts(evidence.hear("m", both, 2)) == [Doubted("m", ("a", "b")), Returned("a")]
    assert acts(evidence.hear("m", {**both, "c": Trouble(3, GONE)}, 3)) == []
    assert acts(evidence.hear("m", one, 4)) == [], "not before it has taken all of it back"
    assert acts(evidence.hear("m", {}, 5)) == []
    assert acts(evidence.hear("m", one, 6)) == [Failed("a", f"{GONE}, says m")]


def test_a_monitor_that_agrees_with_the_owner_is_not_doubted() -> None:
    evidence = Evidence()
    both: View = {"a": Trouble(3, GONE), "b": Trouble(3, GONE)}
    evidence.hear(OWNER, {"a": Trouble(2), "b": Trouble(2)}, 1)
    assert acts(evidence.hear("m", both, 2)) == [Failed("a", f"{GONE}, says m"), Failed("b", f"{GONE}, says m")]
    assert acts(evidence.hear(OWNER, {}, 3)) == [Doubted("m", ("a", "b")), Returned("a"), Returned("b")]
    assert acts(evidence.hear(OWNER, both, 4)) == [Failed("a", GONE), Failed("b", GONE)]


def test_another_process_begins_with_a_clean_slate() -> None:
    evidence = Evidence()
    evidence.hear("m", {"a": Trouble(3, GONE)}, 1)
    evidence.hear(OWNER, {"a": Trouble(0, "x"), "b": Trouble(1)}, 2)
    evidence.joined("a", 3)
    assert evidence.health("a") == Health(failures=1, returned=3)
    assert evidence.hear(OWNER, {"b": Trouble(1)}, 4) == []
    evidence.joined("b", 5)
    assert evidence.health("b") == Health()
    evidence.hear("m", {"a": Trouble(3, GONE), "b": Trouble(3, GONE)}, 6)
    evidence.joined("m", 7)
    assert acts(evidence.hear("m", {"a": Trouble(3, GONE)}, 8)) == [Failed("a", f"{GONE}, says m")], "no longer doubted"


NAMES = st.sampled_from(["a", "b", "c", "m"])
TROUBLES = st.builds(Trouble, st.integers(1, 3), st.sampled_from([None, None, "x"]))
WORDS = st.tuples(st.sampled_from([OWNER, "a", "b", "m"]), st.dictionaries(NAMES, TROUBLES, max_size=3))


@settings(PATIENT, max_examples=300)
@given(st.lists(WORDS, max_size=30))
def test_whatever_is_said_failures_and_returns_take_turns_and_the_owner_has_the_last_word(
    words: list[tuple[str, dict[str, Trouble]]],
) -> None:
    evidence, owner = Evidence(), {}
    dead: set[str] = set()
    for now, (watcher, view) in enumerate(words):
        view.pop(watcher, None)  # nobody watches himself
        effects = evidence.hear(watcher, view, float(now))
        owner = view if watcher == OWNER else owner
        for effect in effects:
            if isinstance(effect, Failed):
                assert effect.host not in dead
                dead.add(effect.host)
            elif isinstance(effect, Returned):
                dead.discard(effect.host)
            elif isinstance(effect, Missed):
                assert effect.host not in dead
        assert {h for h in "abcm" if evidence.health(h).state == "failed"} == dead
        assert {h for h, t in owner.items() if t.failed} <= dead
        assert all(bool(evidence.health(h).by) == (evidence.health(h).state != "well") for h in "abcm")
        assert all(w not in dead for h in "abcm" for w in evidence.health(h).by), "nobody believes the dead"
    evidence.hear(OWNER, {}, 1e3)
    for watcher in ("a", "b", "m", "a", "b", "m"):  # when all hear all, all are well; the first may not be heard yet
        evidence.hear(watcher, {}, 1e3)
    assert {evidence.health(h).state for h in "abcm"} == {"well"}
