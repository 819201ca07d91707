"""What a process says, where nobody may fail for saying it: its log may be on the very disk that is full."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, TextIO, cast


class Unfailing:
    """A stream to write to; what cannot be written is lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def never_fail() -> None:
    """From now on, of this process."""
    sys.stdout, sys.stderr = cast(TextIO, Unfailing(sys.stdout)), cast(TextIO, Unfailing(sys.stderr))
