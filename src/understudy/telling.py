"""How hosts and standbys stand, in words that cannot be misread: for ``understudy status`` and the live view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from understudy.core.monitoring import OWNER
from understudy.core.policies import Policy

if TYPE_CHECKING:
    from understudy.runtime.messages import Runs

UNPROTECTED = "UNPROTECTED"


def health(about: Mapping[str, Any], now: float) -> str:
    """``about``: a host's health as the coordinator tells it. For example: "well", "well; failed once, back for 12 s",
    "suspected: 2 heartbeats missed, silent for 1.2 s (h3 says so)", "dead for 28 s: the connection broke (the
    coordinator says so)"."""
    by, failures = about["by"], about["failures"]
    if about["state"] == "failed":
        sure = [watcher for watcher, trouble in by.items() if trouble["failed"] is not None]
        reason = "".join(f": {by[watcher]['failed']}" for watcher in sure[:1])
        words = f"dead for {_duration(now - about['since'])}{reason} ({_say_so(sure or list(by))})"
        return words if failures < 2 else f"{words}; failed {_times(failures - 1)} before"
    words = str(about["state"])
    if about["state"] == "suspected":
        missed = "1 heartbeat" if about["misses"] == 1 else f"{about['misses']} heartbeats"
        words = f"suspected: {missed} missed, silent for {_duration(now - about['since'])} ({_say_so(list(by))})"
    if failures:
        words += f"; failed {_times(failures)}"
        if about["returned"] is not None:
            words += f", back for {_duration(now - about['returned'])}"
    return words


def runs(stage: Runs, host: str) -> str:
    """For example: "speeds runs on h2 after epoch 40, with a state that lacks the last 3"."""
    text = f"{stage.stage} runs on {host} after epoch {stage.epoch}"
    if not stage.missing:
        return text
    return f"{text}, with a state that lacks {'that epoch' if stage.missing == 1 else f'the last {stage.missing}'}"


def late(stage: str, late_s: float, policy: Policy) -> str:
    """For example: "Yield: its checkpoints come late, the last one by 0.45 s: saving and sending its state takes longer
    than its period leaves (checkpoint every 200ms); choose a longer one"."""
    why = f"saving and sending its state takes longer than its period leaves ({policy.describe()}); choose a longer one"
    return f"{stage}: its checkpoints come late, the last one by {late_s:.2g} s: {why}"


def long_save(stage: str, took_s: float, policy: Policy) -> str:
    """For example: "Yield: saving its state takes 0.5 s, longer than its period (checkpoint every 200ms), and nothing
    is processed meanwhile; choose a longer one"."""
    what = f"saving its state takes {took_s:.2g} s, longer than its period ({policy.describe()})"
    return f"{stage}: {what}, and nothing is processed meanwhile; choose a longer one"


def lost(stage: str, first: int, last: int) -> str:
    """For example: "speeds: epochs 14 to 17 were lost in a crash, and come out empty"."""
    if first == last:
        return f"{stage}: epoch {first} was lost in a crash, and comes out empty"
    return f"{stage}: epochs {first} to {last} were lost in a crash, and come out empty"


def punctuality(checkpoints: Mapping[str, Any]) -> str:
    """What a primary says of its unit's checkpoints. For example: "; 12 of 40 checkpoints late", ""."""
    late = checkpoints.get("late", 0)
    return f"; {late} of {max(late, checkpoints.get('checkpoints', 0))} checkpoints late" if late else ""


def standbys(unit: Mapping[str, Any], policy: Policy) -> str:
    """``unit``: a unit as the coordinator tells it. For example: "h1 (armed), h2 (arming)", "UNPROTECTED"."""
    turn = unit.get("turn") or {}
    coming = [_standby(host, turn, unit["armed"], f", for {turn['policy']}") for host in turn.get("standbys", ())]
    if policy.recovery == "gap":
        return ", ".join([f"{UNPROTECTED}, as its policy says", *coming])
    if not policy.backups:
        return ", ".join(["none: rebuilt by replay", *coming])
    words = [*(_standby(host, unit, unit["armed"]) for host in unit["standbys"]), *coming]
    if unit["ready"]:
        return ", ".join(words)
    return f"{UNPROTECTED}: {', '.join(words)}" if words else UNPROTECTED


def _standby(host: str, some: Mapping[str, Any], armed: Sequence[str], after: str = "") -> str:
    """Armed: it takes over at once. Arming: it has what it needs, but would have to start its query first."""
    state = "no state yet" if host not in some["ready"] else "armed" if host in armed else "arming"
    return f"{host} ({state}{after})"


def _say_so(watchers: Sequence[str]) -> str:
    names = [f"the {OWNER}" if watcher == OWNER else watcher for watcher in watchers]
    return f"{' and '.join(names)} {'says' if len(names) == 1 else 'say'} so"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _duration(seconds: float) -> str:
    """Tenths of a second matter while a host is suspected, and nobody counts hours in seconds."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
