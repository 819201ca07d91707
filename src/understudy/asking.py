"""Asking the coordinator of a running job, from its state folder: who it is, and with which token."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from understudy.errors import JobError, Refused, SetupError

if TYPE_CHECKING:
    from understudy.runtime.wire import Call

A = TypeVar("A")


def ask(folder: Path, token_file: Path | None, tls: Any, call: Call[A]) -> A:
    """Ask the coordinator of the job in ``folder``."""
    import pyarrow.flight as flight

    from understudy.runtime import wire
    from understudy.runtime.cluster import coordinator_of, token_of

    address = coordinator_of(folder)
    if address is None:
        raise SetupError(f"{folder}: no job has run there; pass --state")
    token = token_of(folder) if token_file is None and (folder / "token").exists() else token_in(token_file)
    try:
        reply = wire.Peer(address, token, tls=tls).call(call, timeout_s=150)
    except flight.FlightUnauthenticatedError as error:
        raise Refused(f"the coordinator at {address} refused: {error}") from None
    except flight.FlightError:
        raise SetupError(f"no coordinator answers at {address}; the job of {folder} is not running") from None
    if reply.refused:
        raise JobError(reply.text)
    return reply.answer


def token_in(file: Path | None) -> str:
    """The job's token: in a file, else in the environment."""
    if file is not None:
        try:
            return file.read_text().strip()
        except OSError as error:
            raise SetupError(f"--token-file: {error}") from None
    token = os.environ.get("UNDERSTUDY_TOKEN", "")
    if not token:
        raise Refused("no job token: pass --token-file, or set UNDERSTUDY_TOKEN to the token of the job")
    return token


def only_state() -> Path:
    """The state folder of the only job here."""
    root = Path(".understudy")
    found = sorted(p.parent for p in root.glob("*/coordinator.json")) if root.is_dir() else []
    if len(found) != 1:
        names = ", ".join(map(str, found)) or "none"
        raise SetupError(f"found {len(found)} jobs under .understudy ({names}); say which one with --state")
    return found[0]
