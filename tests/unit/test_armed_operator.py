"""A standby's operator: whatever it is in the middle of, who takes over finds the object in the state taken over."""

from __future__ import annotations

import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import understudy as us
from stores import Primary
from understudy.operators import checked
from understudy.runtime import armed_operator, messages
from understudy.runtime.armed_operator import ArmedOperator
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.operator_saves import FOLDER
from understudy.runtime.session import wait_for

ROWS = pa.table({"x": [1]})


class Slow:
    """Restores as long as the state says, and tells what it is."""

    def __init__(self) -> None:
        self.number = -1

    def process(self, rows: Any) -> pa.Table:
        return pa.table({"number": [self.number]})

    def save(self) -> bytes:
        raise NotImplementedError

    def restore(self, saved: bytes) -> None:
        import pickle
        import time

        number, takes_s = pickle.loads(saved)
        if takes_s < 0:
            raise ValueError(f"{number} is nothing to go on from")
        time.sleep(takes_s)
        self.number = number


class Host:
    """What an armed operator wants of its host."""

    name = "h2"

    def __init__(self, imports: Path) -> None:
        self.imports, self.reports = imports, []  # type: ignore[var-annotated]
        self.job = us.Job("j")
        self.job.operator("rows", schema="number long", name="op")(Slow)

    def report(self, what: messages.Reported) -> None:
        self.reports.append(what)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    return Host(tmp_path)


@pytest.fixture
def armed(host: Host, store: CheckpointStore) -> Any:
    operator = checked(Slow, "number long", inputs=1, stateless=False)
    made = ArmedOperator(host, "op", operator, store, told=messages.Armed("u", 1, "op"))  # type: ignore[arg-type]
    made._rehearsed = True  # nobody has rows here
    yield made
    made.stop()


def paste(armed: ArmedOperator, primary: Primary, epoch: int, takes_s: float = 0.0) -> None:
    with armed.lock:
        primary.ship(epoch, {f"{FOLDER}/{epoch}": pickle.dumps((epoch, takes_s))})
    armed.pasted()


def taken_over(armed: ArmedOperator, *, mended: bool = False) -> int:
    """As ``StandbyStage.take_over`` does. Returns what state the object is in."""
    armed.abandon()
    with armed.lock:
        process, caught_up = armed.take(), armed.catch_up()
        armed._store.forget()  # the files are the running stage's from here on
        caught_up(mended)
    assert process is not None
    number: int = process.process([ROWS])["number"][0].as_py()
    process.end()
    return number


def test_it_follows_what_is_pasted(armed: ArmedOperator, primary: Primary, host: Host) -> None:
    for epoch in (3, 5, 9):
        paste(armed, primary, epoch)
        wait_for(lambda epoch=epoch: armed.open_at == epoch, 10, f"version {epoch}")  # type: ignore[misc]
    assert armed.armed and host.reports == [messages.Armed("u", 1, "op")]
    assert taken_over(armed) == 9


def test_a_takeover_in_the_middle_of_restoring_an_older_version(armed: ArmedOperator, primary: Primary) -> None:
    paste(armed, primary, 1)
    wait_for(lambda: armed.armed, 10, "arming")
    paste(armed, primary, 2, takes_s=1.0)
    wait_for(armed._acting.locked, 10, "restoring")
    paste(armed, primary, 3)
    assert taken_over(armed) == 3


def test_many_takeovers_right_after_a_version_came(host: Host, tmp_path: Path) -> None:
    operator = checked(Slow, "number long", inputs=1, stateless=False)
    for number in range(8):
        store = CheckpointStore(tmp_path / f"store-{number}")
        primary = Primary(tmp_path / f"primary-{number}", store)
        armed = ArmedOperator(host, "op", operator, store, told=messages.Armed("u", 1, "op"))  # type: ignore[arg-type]
        armed._rehearsed = True
        paste(armed, primary, 1)
        wait_for(lambda armed=armed: armed.armed, 10, "arming")  # type: ignore[misc]
        for epoch in range(2, 6):
            paste(armed, primary, epoch, takes_s=0.01)
            threading.Event().wait(0.004 * number)
        assert taken_over(armed) == 5


def test_files_that_were_mended_are_read_again(armed: ArmedOperator, primary: Primary, store: CheckpointStore) -> None:
    paste(armed, primary, 4)
    wait_for(lambda: armed.open_at == 4, 10, "version 4")
    (store.state / FOLDER / "4").write_bytes(pickle.dumps((44, 0.0)))
    assert taken_over(armed, mended=True) == 44


def test_a_state_that_cannot_be_restored_is_told_once_and_at_the_takeover(
    armed: ArmedOperator, primary: Primary, host: Host
) -> None:
    paste(armed, primary, 1)
    wait_for(lambda: armed.armed, 10, "arming")
    paste(armed, primary, 2, takes_s=-1)
    wait_for(lambda: not armed.armed, 10, "its failure")
    told = [what.text for what in host.reports if isinstance(what, messages.Notice)]
    assert told == ["op: its standby on h2 cannot take over what was saved: ValueError: 2 is nothing to go on from"]


def test_a_takeover_to_a_state_that_cannot_be_restored_leaves_no_process(
    armed: ArmedOperator, primary: Primary
) -> None:
    """Whoever takes over makes one, which fails the same way, and says so."""
    paste(armed, primary, 1)
    wait_for(lambda: armed.armed, 10, "arming")
    with armed._acting:  # it has not got around to the newest
        paste(armed, primary, 2, takes_s=-1)
        armed.abandon()
    with armed.lock:
        process, caught_up = armed.take(), armed.catch_up()
        armed._store.forget()
        caught_up(False)
    assert process is not None and not process.lives


def test_a_rehearsal_touches_nothing_and_is_not_waited_for(
    armed: ArmedOperator, primary: Primary, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(armed_operator, "sample", lambda host, stream: ROWS)
    paste(armed, primary, 1)
    wait_for(lambda: armed.armed, 10, "arming")
    first = armed.take()
    armed._rehearsed = False
    armed.pasted()
    wait_for(lambda: armed._rehearsed, 10, "the rehearsal")
    assert first is not None and not first.lives, "the one that has rehearsed took its place"
    assert host.reports == [messages.Armed("u", 1, "op"), messages.Warm("u", 1, "op")]
    paste(armed, primary, 2)
    assert taken_over(armed) == 2
