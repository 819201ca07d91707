"""What processes say, and what a coordinator keeps: as it comes back from JSON."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from understudy.core.failover import StageThrew, StandbyReady, StandbyUnusable, Turned
from understudy.core.plans import Plan, Turn, UnitPlan
from understudy.core.policies import ActiveStandby, spell
from understudy.errors import SetupError
from understudy.runtime import messages
from understudy.runtime.journal import Journal, Kept

TURN = Turn(spell(ActiveStandby()), serial=6, standbys=("d",), ready=("d",), since=(6,))
UNITS = {
    "fresh": UnitPlan(),
    "led": UnitPlan(3, "a", ("b", "c"), ("b",), "held", (2, 5), rising=True, policy=spell(ActiveStandby())),
    "turning": UnitPlan(4, "b", turn=TURN),
}
PLAN = Plan(7, UNITS)


def test_a_plan_is_the_same_at_the_other_end() -> None:
    sent = messages.TakePlan(PLAN, "p", {"a": "127.0.0.1:1"}, {"a": "p"}, 3, {"led": "none"}, {"fresh": "c"})
    assert msgspec.json.decode(msgspec.json.encode(sent), type=messages.TakePlan) == sent


REPORTS: list[messages.Reported] = [
    StandbyReady("u", 1, "h2", 5),
    StandbyUnusable("u", 1, "h2", 5, "no room"),
    Turned("u", 1, 4),
    StageThrew("u", 1, "s", 9, "boom", "machine"),
    messages.Runs("u", 1, "s", 3),
    messages.Armed("u", 1, "s", spare=True),
    messages.Warm("u", 1, "s"),
    messages.Fenced("u", 1, "s"),
    messages.Gone("u", 1, "s", 4, "rows"),
    messages.Notice("damaged", "u", "text"),
    messages.Notice("late", "u", "text"),
    messages.Notice("lost", "u", "text"),
    messages.Seen({"h1": ("p", 2, None), "h2": ("q", 9, "gone")}),
    messages.SparkFailed("no memory"),
]


def test_every_report_is_the_same_at_the_other_end() -> None:
    assert {type(what) for what in REPORTS} == set(get_args(messages.Reported))
    for what in REPORTS:
        sent = msgspec.json.encode(messages.Report.of("h1", 1.5, what))
        report = msgspec.json.decode(sent, type=messages.Report)
        assert (report.host, report.t, report.what()) == ("h1", 1.5, what)


@pytest.mark.parametrize(
    ("kind", "about", "why"), [("Nonsense", b"{}", "which there is not"), ("Turned", b'{"unit": 1}', "Expected `str`")]
)
def test_a_report_that_is_none_is_an_error(kind: str, about: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        messages.Report("h1", 0.0, kind, msgspec.Raw(about)).what()


def test_a_journal_keeps_what_it_was_given_and_says_when_it_is_damaged(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    assert journal.read() is None
    kept = Kept("running", "i", "127.0.0.1:2", {"a": "127.0.0.1:1"}, {"a": 17}, {"a": "p"}, {}, PLAN)
    journal.write(kept)
    assert journal.read() == kept
    said = msgspec.structs.replace(kept, defined={"u": "passive-standby"})
    journal.write(said)
    assert journal.read() == said
    for nonsense in ("{", "{}", "[]"):
        (tmp_path / "journal.json").write_text(nonsense)
        with pytest.raises(SetupError, match=r"journal\.json is damaged .*start over with --fresh"):
            journal.read()


STORM = """
import sys, threading
sys.setswitchinterval(1e-6)
import msgspec
from understudy.runtime import messages
from understudy.runtime.parts import About, CheckpointPart, Version
sent = msgspec.json.encode(messages.Paste("u", "s", 1, CheckpointPart(version=Version(About(1), "x"))))
at_once = threading.Barrier(8)
def decode():
    at_once.wait()
    msgspec.json.decode(sent, type=messages.Paste)
threads = [threading.Thread(target=decode) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_messages_that_come_at_once_to_a_new_process_do_not_end_it() -> None:
    """msgspec works out how a type is decoded when it is first asked to, and crashed where two threads asked at once:
    one host in some thousands died of it. Without ``wire.prepare`` one in a dozen of these does."""
    for _ in range(4):
        assert subprocess.run([sys.executable, "-c", STORM], check=False).returncode == 0
