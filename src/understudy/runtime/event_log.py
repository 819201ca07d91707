"""What happens to a job, in words: kept for ``status``, written to ``events.jsonl``, handed to whoever listens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class EventLog:
    def __init__(
        self, file: Path, changed: threading.Condition, on_event: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self._file, self._changed, self._on_event = file, changed, on_event

    def say(self, kind: str, text: str, *, t: float | None = None, **about: Any) -> None:
        event = {"t": t or time.time(), "kind": kind, "text": text, **{k: v for k, v in about.items() if v is not None}}
        with self._changed:
            self.events.append(event)
            with open(self._file, "a") as file:
                file.write(json.dumps(event) + "\n")
            self._changed.notify_all()
        if self._on_event:
            self._on_event(event)
