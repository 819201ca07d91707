"""Understudy: high availability for PySpark streaming jobs.

Public names are imported when first used: Spark's worker processes import this package several times per takeover,
and must not pay for what only a job's author needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy import errors, sinks, sources
    from understudy.core.policies import ActiveStandby, Checkpoint, Hybrid, PassiveStandby, UpstreamBackup, auto, none
    from understudy.job import Job
    from understudy.stages import Stream
    from understudy.windowed.spans import rows, seconds

__all__ = [
    "ActiveStandby",
    "Checkpoint",
    "Hybrid",
    "Job",
    "PassiveStandby",
    "Stream",
    "UpstreamBackup",
    "auto",
    "errors",
    "none",
    "rows",
    "seconds",
    "sinks",
    "sources",
]
__version__ = "0.1.0"

_POLICIES = ("ActiveStandby", "Checkpoint", "Hybrid", "PassiveStandby", "UpstreamBackup", "auto", "none")
_SPANS = dict.fromkeys(("rows", "seconds"), "windowed.spans")
_HOMES = {"Job": "job", "Stream": "stages", **_SPANS, **dict.fromkeys(_POLICIES, "core.policies")}


def __getattr__(name: str) -> Any:
    if name in ("errors", "sinks", "sources"):
        return import_module(f"understudy.{name}")
    if name in _HOMES:
        return getattr(import_module(f"understudy.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'understudy' has no attribute {name!r}")
