"""Tests that need a SparkSession and no hosts: one for all of them, because a JVM takes ten seconds to start."""
