"""Shared by all tests. A failing property test prints the seed that replays it (Hypothesis does so by itself)."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from hypothesis import settings

settings.register_profile("ci", deadline=None, print_blob=True)
settings.load_profile("ci")


def pytest_configure() -> None:
    """Told to end, as by tools/test.sh when it is interrupted, tests end what they have started, as after Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind():
    """Every process that a test started is gone when the tests are over."""
    yield
    left = [
        p
        for p in psutil.Process(os.getpid()).children(recursive=True)
        if p.is_running() and p.status() != psutil.STATUS_ZOMBIE
    ]
    for process in left:
        process.kill()
    assert not left, f"processes left behind: {left}"
