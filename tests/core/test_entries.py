"""What a standby of a source makes of the entries that it is sent."""

from __future__ import annotations

import random

import pytest

from understudy.core.entries import Follower, Leader, Taken


def test_what_a_dead_primary_showed_nobody_is_forgotten() -> None:
    """Seven are certain. It has an eighth of a primary that died; another was cut in its place since."""
    follower = Follower()
    follower.take(1, 0, certain=0, after=0)
    assert follower.take(2, 8, certain=7, after=7) == Taken(7, 0)


def test_a_late_first_message_takes_nothing_back() -> None:
    follower = Follower()
    assert follower.take(2, 5, certain=5, after=5) == Taken(5, 0)
    assert follower.take(2, 7, certain=6, after=7) == Taken(7, 0)
    assert follower.take(2, 8, certain=5, after=5) == Taken(8, 3), "all that it brings is there"
    assert follower.take(1, 8, certain=0, after=0) is None


def test_what_is_missing_in_between_is_asked_for() -> None:
    follower = Follower()
    assert follower.take(1, 2, certain=6, after=6) == Taken(2, None)
    assert follower.take(1, 2, certain=6, after=2) == Taken(2, 0)


@pytest.mark.parametrize("seed", range(300))
def test_what_was_seen_is_in_every_log_whatever_is_lost_late_or_repeated(seed: int) -> None:
    """Three hosts with a log each; primaries die after any step; messages come late, again, or never. A host takes only
    those of the generation that its newest plan names."""
    dice = random.Random(seed)
    logs: list[list[int]] = [[], [], []]
    followers = [Follower() for _ in logs]
    seen: list[int] = []
    certain = leader = 0
    has: dict[int, int] = {}
    knows = [0, 0, 0]
    late: list[tuple[int, int, int, int, list[int]]] = []
    for generation in range(1, 8):
        knows[leader] = generation
        others = [host for host in range(3) if host != leader]
        for _ in range(dice.randrange(12)):
            if len(logs[leader]) == len(seen):
                logs[leader].append(dice.randrange(1 << 30))
            for host in others:
                knows[host] = generation if dice.random() < 0.5 else knows[host]
                after = has.get(host, certain)
                late.append((host, generation, certain, after, logs[leader][after:]))
            dice.shuffle(late)
            for message in late[: dice.randrange(len(late) + 1)]:
                host, of, same, after, entries = message
                if dice.random() < 0.7:
                    late.remove(message)
                if host == leader or of != knows[host]:
                    continue
                taken = followers[host].take(of, len(logs[host]), certain=same, after=after)
                assert taken is not None
                del logs[host][taken.keep :]
                if taken.skip is not None:
                    logs[host] += entries[taken.skip :]
                if of == generation:
                    has[host] = len(logs[host])
            if all(has.get(host) == len(logs[leader]) for host in others):
                seen = list(logs[leader])
                certain = dice.randint(certain, len(seen))
            assert all(log[: len(seen)] == seen for log in logs)
        leader = dice.randrange(3)
        has.clear()


# -- what a primary shows ---------------------------------------------------------------------------------------------


def test_what_is_cut_is_seen_when_every_standby_has_it() -> None:
    leader = Leader(0)
    assert leader.shows(1) == 0, "no plan has named the standbys yet"
    leader.aim(["b#1", "c#1"], ["b#1"])
    leader.has("b#1", 1)
    assert leader.shows(1) == 0
    leader.has("c#1", 1)
    assert leader.shows(1) == 1


def test_of_what_is_inherited_only_the_newest_may_be_unseen() -> None:
    assert Leader(5).shows(5) == 4
    assert Leader(5, certain=5).shows(5) == 5
    assert Leader(0).shows(0) == 0


def test_what_is_inherited_waits_for_those_that_the_plan_counts_on() -> None:
    leader = Leader(5)
    leader.aim(["b#1", "c#7"], ["b#1"])
    assert leader.shows(5) == 4
    leader.has("b#1", 4)
    assert leader.shows(5) == 4
    leader.has("b#1", 5)
    assert leader.shows(5) == 5, "c has just come"
    assert leader.shows(6) == 5, "what is cut now is another matter"


def test_with_nobody_left_that_counts_all_is_seen_at_once() -> None:
    leader = Leader(5)
    leader.aim(["c#7"], [])
    assert leader.shows(5) == 5 and leader.shows(6) == 5


def test_whoever_is_lost_is_not_waited_for_and_what_was_seen_stays_so() -> None:
    leader = Leader(5)
    leader.aim(["b#1"], ["b#1"])
    leader.aim([], [])
    assert leader.shows(6) == 6
    leader.aim(["d#9"], ["d#9"])
    assert leader.shows(6) == 6


def test_a_late_word_of_one_that_began_anew_counts_nothing() -> None:
    leader = Leader(5)
    leader.aim(["b#4"], ["b#4"])
    leader.has("b#1", 5)
    assert leader.shows(5) == 4 and leader.at("b#4") == 0
