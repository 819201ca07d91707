"""The protocol, with no clock, thread, socket, file or Spark in it.

Two kinds of objects live here. *Positions* (``queue.py``, ``acks.py``) are numbers with a stated invariant and methods
that move them. *Machines* (``policies/``, ``detection.py``, ``failover/``) take ``handle(event, now)`` and answer
with a list of effects for the driver to carry out, in order. Nothing here reads a clock: ``now`` is given.
"""
