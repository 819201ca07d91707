"""What a coordinator must not forget: the last plan and where everybody was."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from understudy.errors import SetupError


class Journal:
    """A file that is replaced as a whole, atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._path.read_text())
            return found
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SetupError(f"{self._path} is damaged ({error}); start over with --fresh") from None

    def write(self, content: dict[str, Any]) -> None:
        temporary = self._path.with_suffix(".tmp")
        with open(temporary, "w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._path)
