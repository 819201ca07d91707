"""When an inlet asks for the next epoch: when its query is about to want it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.core.pacing import LEAD_SPARE_S
from understudy.runtime.streams import Inlet


def inlet(*, received: int, granted: int, done_in_s: float) -> Inlet:
    stage: Any = SimpleNamespace(name="s", host=None, start_epoch=received, granted=granted)
    stage.done_in_s = lambda: done_in_s
    return Inlet(stage, "stream")


def test_a_query_with_nothing_to_do_asks_at_once() -> None:
    assert inlet(received=4, granted=4, done_in_s=0.0)._wanted_in_s() <= 0


def test_with_an_epoch_in_hand_nobody_asks() -> None:
    assert inlet(received=5, granted=4, done_in_s=0.0)._wanted_in_s() == math.inf


def test_during_a_batch_it_asks_as_much_earlier_as_an_epoch_takes_to_come() -> None:
    asking = inlet(received=4, granted=4, done_in_s=0.3)
    assert asking._wanted_in_s() == pytest.approx(0.3 - LEAD_SPARE_S)
    for _ in range(50):
        # 50 ms on the way, and 30 of the waiting was cutting
        asking._asking.came(took_s=0.25, waited_s=0.2, cut_s=0.03)
    assert asking._wanted_in_s() == pytest.approx(0.3 - 0.08 - LEAD_SPARE_S, abs=0.001)


def test_an_epoch_that_was_not_due_teaches_nothing() -> None:
    asking = inlet(received=4, granted=4, done_in_s=0.3)
    for _ in range(50):
        asking._asking.came(took_s=0.5, waited_s=0.5, cut_s=0.0)
    assert asking._wanted_in_s() == pytest.approx(0.3 - LEAD_SPARE_S)


def test_a_large_epoch_is_asked_for_as_soon_as_a_batch_begins() -> None:
    asking = inlet(received=4, granted=4, done_in_s=0.3)
    for _ in range(50):
        asking._asking.came(took_s=2.0, waited_s=0.0, cut_s=0.0)
    assert asking._wanted_in_s() < 0
