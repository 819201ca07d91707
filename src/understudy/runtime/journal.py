"""What a coordinator must not forget: the last plan and where everybody was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from understudy.core.plans import Plan
from understudy.errors import SetupError


class Kept(msgspec.Struct, frozen=True):
    state: Literal["running", "stopped"]
    ident: str
    """Of the job as it was sent to hosts."""
    address: str
    """The coordinator's."""
    hosts: dict[str, str]
    pids: dict[str, int]
    processes: dict[str, str]
    policies: dict[str, str]
    """Unit -> what was chosen for it in the place of a goal."""
    plan: Plan
    defined: dict[str, str] = {}
    """Unit -> what protects it as the job said when it ran. The job may be edited before it runs again."""


class Journal:
    """A file that is replaced as a whole, atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Kept | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Kept)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SetupError(f"{self._path} is damaged ({error}); start over with --fresh") from None

    def write(self, kept: Kept) -> None:
        temporary = self._path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._path)
