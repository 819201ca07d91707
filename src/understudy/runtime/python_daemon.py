"""Spark's Python worker daemon, with what our readers need imported before it forks.

A worker that Spark forks while a standby takes over then starts in milliseconds instead of importing Arrow first.
"""

import numpy  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.sql.worker.plan_data_source_read  # noqa: F401
from pyspark.daemon import manager

import understudy.runtime.spark_io
import understudy.runtime.wire  # noqa: F401

if __name__ == "__main__":
    manager()
