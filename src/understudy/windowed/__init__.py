"""Operators with windows, on Arrow: joins, aggregates, barriers, whose checkpoints write only what has changed.

``spans`` says what a window is, ``rows`` and ``keyed`` keep one, ``join``, ``aggregate`` and ``barrier`` use them.
Nothing is imported here: the spans are part of a job file, which must not need Arrow to be read.
"""
