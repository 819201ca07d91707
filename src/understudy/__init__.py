"""Understudy: high availability for PySpark streaming jobs."""

from understudy import errors, sinks, sources
from understudy.job import Job, Stream
from understudy.policies import PassiveStandby, none

__all__ = ["Job", "PassiveStandby", "Stream", "errors", "none", "sinks", "sources"]
__version__ = "0.1.0"
