"""A disk for parts that forgets as much as it may, and finds out who relies on more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Disk:
    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        """Of the newest save."""
        self._ever: dict[str, bytes] = {}
        self.written = 0
        """Bytes of the newest save that were new."""

    def keep(self, saved: Mapping[str, bytes | None]) -> None:
        """What ``save`` returned. A part without content must be one of the save before."""
        for name, body in saved.items():
            if body is None:
                assert name in self.parts, f"{name} was not part of the save before"
            else:
                assert self._ever.setdefault(name, body) == body, f"{name} is used again for something else"
                assert name not in self.parts, f"{name} is handed over again"
        self.written = sum(len(body) for body in saved.values() if body is not None)
        self.parts = {name: self._ever[name] for name in saved}

    def damaged(self, name: str, how: str) -> dict[str, bytes | None]:
        body: Any = self.parts[name]
        if how == "cut":
            body = body[: len(body) // 2]
        elif how == "flipped":
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        elif how == "missing":
            body = None
        else:
            return {other: body for other, body in self.parts.items() if other != name}
        return {**self.parts, name: body}


HOWS = ("cut", "flipped", "missing", "absent")
