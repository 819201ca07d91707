"""Who is alive: scripts, the paper's claims, and a naive watcher beside the real one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.core.detection import (
    GRACE,
    Beat,
    Broken,
    Connected,
    Detector,
    Effect,
    Event,
    Failed,
    Missed,
    Returned,
    Tick,
)

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines


def play(detector: Detector, *script: tuple[float, Event, list[Effect]]) -> None:
    for step, (now, event, expected) in enumerate(script):
        assert detector.handle(event, now) == expected, f"step {step}: {event} at {now}"


def failed(host: str, misses: int) -> Failed:
    return Failed(host, f"{misses} heartbeats of 1000 ms missed")


def test_three_misses_in_a_row_are_a_failure_and_the_number_of_misses_is_told() -> None:
    """Gu et al. 2009, Section 4: upon misses the owner is told how many; 3 indicate the failure of a machine."""
    play(
        Detector(interval_s=1.0, misses=3),
        (0, Connected("a"), []),
        (1.4, Tick(), []),
        (1.5, Tick(), [Missed("a", 1)]),
        (2.4, Tick(), []),
        (2.5, Tick(), [Missed("a", 2)]),
        (3.5, Tick(), [failed("a", 3)]),
        (4.5, Tick(), []),
        (99, Tick(), []),
    )


def test_a_host_that_answers_again_is_reported() -> None:
    """Gu et al. 2009, Section 4: when a machine comes back, that is notified too."""
    play(
        Detector(interval_s=1.0, misses=3),
        (0, Connected("a"), []),
        (1.5, Tick(), [Missed("a", 1)]),
        (2, Beat("a"), [Returned("a")]),
        (5.5, Tick(), [failed("a", 3)]),
        (9, Beat("a"), [Returned("a")]),
        (9.5, Beat("a"), []),
        (11, Tick(), [Missed("a", 1)]),
    )


def test_a_beat_that_is_a_little_late_is_no_miss() -> None:
    """Gu et al. 2009, Section 4 leaves open when a heartbeat counts as missed; here after half an interval, so that
    the jitter of a network is none."""
    detector = Detector(interval_s=1.0, misses=1)
    play(detector, (0, Connected("a"), []))
    for now in (1.3, 2.7, 3.9, 5.2):
        play(detector, (now, Tick(), []), (now, Beat("a"), []))
    assert GRACE == 0.5
    play(detector, (6.6, Tick(), []), (6.7, Tick(), [failed("a", 1)]))


def test_misses_are_counted_in_a_row() -> None:
    detector = Detector(interval_s=1.0, misses=3)
    play(detector, (0, Connected("a"), []))
    for now in range(0, 50, 2):
        play(detector, (now + 1.6, Tick(), [Missed("a", 1)]), (now + 2, Beat("a"), [Returned("a")]))


def test_a_late_tick_counts_every_miss() -> None:
    play(Detector(interval_s=1.0, misses=4), (0, Connected("a"), []), (3.7, Tick(), [Missed("a", 3)]))
    play(Detector(interval_s=1.0, misses=4), (0, Connected("a"), []), (7.5, Tick(), [failed("a", 7)]))


def test_a_broken_connection_counts_at_once_and_once() -> None:
    play(
        Detector(interval_s=1.0, misses=3),
        (0, Connected("a"), []),
        (0.1, Broken("a", "it was killed"), [Failed("a", "it was killed")]),
        (0.2, Broken("a", "it was killed"), []),
        (9, Tick(), []),
        (10, Connected("a"), [Returned("a")]),
        (11.5, Tick(), [Missed("a", 1)]),
    )


def test_a_stranger_cannot_break() -> None:
    play(Detector(interval_s=1.0, misses=3), (0, Broken("a", "x"), []), (9, Tick(), []))


def test_a_beat_is_as_good_as_a_connection() -> None:
    play(Detector(interval_s=1.0, misses=1), (5, Beat("a"), []), (6.5, Tick(), [failed("a", 1)]))


def test_hosts_are_judged_one_by_one_in_the_order_they_came() -> None:
    play(
        Detector(interval_s=1.0, misses=2),
        (0, Connected("b"), []),
        (0, Connected("a"), []),
        (0.5, Connected("c"), []),
        (1.5, Tick(), [Missed("b", 1), Missed("a", 1)]),
        (1.7, Beat("a"), [Returned("a")]),
        (2.5, Tick(), [failed("b", 2), Missed("c", 1)]),
    )


def test_the_deadline_is_the_next_miss_of_anyone_alive() -> None:
    detector = Detector(interval_s=1.0, misses=2)
    assert detector.next_deadline() is None
    detector.handle(Connected("a"), 0.0)
    detector.handle(Connected("b"), 0.5)
    assert detector.next_deadline() == 1.5
    detector.handle(Tick(), 1.5)
    assert detector.next_deadline() == 2.0
    detector.handle(Broken("b", "x"), 1.7)
    assert detector.next_deadline() == 2.5
    detector.handle(Tick(), 2.5)
    assert detector.next_deadline() is None


@pytest.mark.parametrize(("interval_s", "misses"), [(0, 3), (-1, 3), (1, 0), (1, -2)])
def test_nonsense_is_refused(interval_s: float, misses: int) -> None:
    with pytest.raises(ValueError, match=f"interval_s={interval_s}, misses={misses}: both must be positive"):
        Detector(interval_s=interval_s, misses=misses)


def test_a_watcher_that_was_held_up_itself_blames_nobody() -> None:
    """It was to come back after 1.5 s and came after 8.5: what it did not hear in the 7 s between counts for
    nothing."""
    detector = Detector(interval_s=1.0, misses=3)
    play(detector, (0, Connected("a"), []), (0.5, Connected("b"), []))
    assert detector.next_deadline() == 1.5
    play(detector, (8.5, Tick(), [Missed("a", 1)]))
    assert detector.next_deadline() == 9.0
    play(detector, (9, Tick(), [Missed("b", 1)]))
    assert detector.next_deadline() == 9.5
    play(detector, (9.5, Tick(), [Missed("a", 2)]))
    assert detector.next_deadline() == 10.0
    play(detector, (10, Tick(), [Missed("b", 2)]))
    assert detector.next_deadline() == 10.5
    play(detector, (10.5, Tick(), [failed("a", 3)]))


def test_a_little_late_is_on_time() -> None:
    detector = Detector(interval_s=1.0, misses=3)
    play(detector, (0, Connected("a"), []))
    for misses in (1, 2):
        assert detector.next_deadline() == misses + 0.5
        play(detector, (misses + 0.9, Tick(), [Missed("a", misses)]))
    assert detector.next_deadline() == 3.5
    play(detector, (4.0, Tick(), [failed("a", 3)]))


def test_a_host_heard_after_the_delay_gets_no_credit_for_it() -> None:
    detector = Detector(interval_s=1.0, misses=3)
    play(detector, (0, Connected("a"), []))
    assert detector.next_deadline() == 1.5
    play(detector, (60, Beat("a"), []), (60, Tick(), []), (61.5, Tick(), [Missed("a", 1)]))


HOSTS = st.sampled_from(["a", "b"])
FACTS = st.one_of(
    st.builds(Connected, HOSTS),
    st.builds(Beat, HOSTS),
    st.builds(Broken, HOSTS, st.just("broken")),
    st.just(Tick()),
)


class Naive:
    """Remembers the whole story of every host and reads it from the beginning each time."""

    def __init__(self, misses: int) -> None:
        self.misses = misses
        self.story: dict[str, list[tuple[float, str]]] = {}

    def handle(self, event: Event, now: float) -> list[Effect]:
        hosts = list(self.story) if isinstance(event, Tick) else [event.host]
        effects: list[Effect] = []
        for host in hosts:
            story = self.story.get(host, [])
            alive_at = max((t for t, kind in story if kind == "alive"), default=None)
            since = [kind for t, kind in story[len(story) - story[::-1].index((alive_at, "alive")) :]] if story else []
            silent = 0
            while alive_at is not None and alive_at + silent + 1 + GRACE <= now:
                silent += 1
            if isinstance(event, (Connected, Beat)):
                if since:
                    effects.append(Returned(host))
                self.story.setdefault(host, []).append((now, "alive"))
            elif not story or "failed" in since:
                continue
            elif isinstance(event, Broken):
                effects.append(Failed(host, event.reason))
                story.append((now, "failed"))
            elif silent >= self.misses:
                effects.append(failed(host, silent))
                story.append((now, "failed"))
            elif silent and f"missed {silent}" not in since:
                effects.append(Missed(host, silent))
                story.append((now, f"missed {silent}"))
        return effects


@settings(PATIENT, max_examples=300)
@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 6), FACTS), max_size=40))
def test_the_detector_agrees_with_a_naive_one(misses: int, script: list[tuple[int, Event]]) -> None:
    detector, naive, now = Detector(interval_s=1.0, misses=misses), Naive(misses), 0.0
    for quarters, event in script:
        now += quarters / 4  # quarters are exact in binary: no rounding to argue about
        assert detector.handle(event, now) == naive.handle(event, now)


@settings(PATIENT)
@given(st.lists(st.tuples(st.integers(0, 6), FACTS), max_size=30))
def test_failures_and_returns_take_turns(script: list[tuple[int, Event]]) -> None:
    detector, now = Detector(interval_s=1.0, misses=2), 0.0
    dead: set[str] = set()
    for quarters, event in script:
        now += quarters / 4
        for effect in detector.handle(event, now):
            assert isinstance(effect, Returned) or effect.host not in dead
            if isinstance(effect, Failed):
                dead.add(effect.host)
            elif isinstance(effect, Returned):
                dead.discard(effect.host)


@settings(PATIENT)
@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 6), FACTS), max_size=30))
def test_a_tick_at_the_deadline_always_finds_something(misses: int, script: list[tuple[int, Event]]) -> None:
    detector, now = Detector(interval_s=0.25, misses=misses), 0.0
    for sixteenths, event in script:
        now += sixteenths / 16
        detector.handle(event, now)
    detector.handle(Tick(), now)
    for _ in range(20):
        deadline = detector.next_deadline()
        if deadline is None:
            return
        assert deadline > now
        now = deadline
        assert detector.handle(Tick(), now) != []


@pytest.mark.parametrize(("connected", "interval_s"), [(0.7, 0.1), (1.1, 0.1), (123456.789, 0.1), (3.3, 0.3)])
def test_a_tick_at_the_deadline_finds_something_with_any_float(connected: float, interval_s: float) -> None:
    detector = Detector(interval_s=interval_s, misses=3)
    detector.handle(Connected("a"), connected)
    for misses in (1, 2, 3):
        deadline = detector.next_deadline()
        assert deadline is not None
        assert [type(e) for e in detector.handle(Tick(), deadline)] == [Failed if misses == 3 else Missed]
