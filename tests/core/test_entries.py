"""What a standby of a source makes of the entries that it is sent."""

from __future__ import annotations

import random

import pytest

from understudy.core.entries import Follower, Taken


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
