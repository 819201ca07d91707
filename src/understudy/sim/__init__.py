"""The second driver of ``core``: the same machines in virtual time, with a modelled network and seeded faults.

``engine`` is the clock, ``nodes`` the world and its network; ``hosts``, ``disks``, ``units``, ``sources``,
``preserved``, ``copies`` and ``coordinator`` run a job; ``faults`` break it, ``checks`` judge it; ``fuzz`` does all of
that by the hundred thousand, ``steps`` at every step; ``datacentre`` lets years pass over thousands of hosts. One seed
is one story, on any machine.
"""
