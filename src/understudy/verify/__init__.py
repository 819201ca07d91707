"""Checkers that judge a run from what it left behind. They know no internals: only sink folders and times.

``compare`` says what kind of recovery a run showed (precise, rollback, gap) and how long its output was
silent; ``report`` turns such a judgement into one page for people.
"""

from understudy.verify.compare import Comparison, Recovery, arrivals, combine, compare_sinks, recovery
from understudy.verify.report import write_report

__all__ = ["Comparison", "Recovery", "arrivals", "combine", "compare_sinks", "recovery", "write_report"]
