"""What sinks have, as hosts tell each other."""

from __future__ import annotations

from understudy.core.landed import Landed
from understudy.core.queue import OutputQueue


def test_newer_news_say_more_and_older_ones_nothing() -> None:
    landed = Landed()
    landed.has("sink:a", 3)
    landed.hears({"sink:a": 2, "sink:b": 7})
    landed.has("sink:b", 6)
    assert landed.known == {"sink:a": 3, "sink:b": 7}


def test_what_is_on_its_way_does_not_change() -> None:
    landed = Landed()
    landed.has("sink:a", 3)
    sent = landed.known
    landed.has("sink:a", 4)
    landed.hears({"sink:b": 1})
    assert sent == {"sink:a": 3} and landed.known == {"sink:a": 4, "sink:b": 1}


def test_sinks_are_not_given_again_what_they_have() -> None:
    """Rebuilt from epoch 5 on, for a sink that has all up to 7 and a stage that says itself what it wants."""
    queue, landed = OutputQueue(["a", "sink:out"], start=5, rebuilt=True), Landed()
    landed.hears({"sink:out": 7, "sink:other": 9})
    landed.skip(queue)
    assert queue.progress["sink:out"].acked == 7 and queue.progress["a"].acked == 4
    assert [queue.append(epoch) for epoch in (5, 6)] == [True, True], "the stage may want them"


def test_for_sinks_alone_nothing_is_kept_of_what_they_have() -> None:
    queue, landed = OutputQueue(["sink:out"], start=5, rebuilt=True), Landed()
    landed.hears({"sink:out": 6})
    landed.skip(queue)
    assert [queue.append(epoch) for epoch in (5, 6, 7)] == [False, False, True]
    assert not queue.owes("sink:out")


def test_what_a_sink_had_before_its_stage_began_is_no_news() -> None:
    queue, landed = OutputQueue(["sink:out"], start=5), Landed()
    landed.hears({"sink:out": 2})
    landed.skip(queue)
    assert queue.progress["sink:out"].acked == 4
