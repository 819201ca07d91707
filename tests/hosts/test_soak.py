"""A slice of `make soak-kills`: one random job, harmed a few times. The seed is printed when it goes wrong."""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import soak_jobs
import soak_kills
import soak_network

pytestmark = pytest.mark.timeout(240)


def test_a_random_job_under_random_harm(tmp_path: Path) -> None:
    seed = 7 if os.environ.get("CI") else int(time.time())
    soak = soak_kills.play(seed, tmp_path / "soak", 5, lambda *_: None)
    assert soak.wrong is None, f"seed {seed} ({', '.join(soak.policies)}): {soak.wrong}"
    assert sum(soak.done.values()) == 5 and soak.lost == soak.repeated == 0


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", list(soak_jobs.KINDS))
def test_every_seed_makes_a_job_that_can_run(tmp_path: Path, kind: str, seed: int) -> None:
    policies = soak_jobs.write_job(tmp_path / "job.py", kind, seed, random.Random(seed))
    topology = soak_kills.job_files.load(tmp_path / "job.py").topology()
    assert len(topology.units) >= 3 and len(policies) >= 2


def test_a_network_keeps_back_what_is_cut_and_brings_it_when_it_is_healed(tmp_path: Path) -> None:
    me = os.getpid()
    network = soak_network.Network(tmp_path, ["h1", "h2"], lambda: {"h2": me})
    hosts = soak_network.HostsBehindDoors(tmp_path, coordinator="127.0.0.1:1", token="t")
    words = hosts.command("h1")
    listen, advertise = (words[words.index(f"--{word}") + 1].rpartition(":")[2] for word in ("listen", "advertise"))
    server = socket.create_server(("127.0.0.1", int(listen)))
    try:
        with socket.create_connection(("127.0.0.1", int(advertise)), 5) as near, server.accept()[0] as far:
            for into, out in ((True, True), (True, False), (False, True)):
                network.cut("h1", ["h2"], into=into, out=out)
                far.settimeout(0.1)
                near.settimeout(0.1)
                near.sendall(b"to h1")
                far.sendall(b"from h1")
                for end, word, kept in ((far, b"to h1", into), (near, b"from h1", out)):
                    if kept:
                        with pytest.raises(TimeoutError):
                            end.recv(10)
                    else:
                        assert end.recv(10) == word
                network.heal(broken=False)
                far.settimeout(5)
                near.settimeout(5)
                assert not into or far.recv(10) == b"to h1"
                assert not out or near.recv(10) == b"from h1"
            network.cut("h1", ["coordinator"], into=True, out=True)
            near.sendall(b"others pass")
            assert far.recv(20) == b"others pass"
            network.heal(broken=True)
            near.sendall(b"still there")
            assert far.recv(20) == b"still there"
            network.cut("h1", ["h2"], into=True, out=True)
            network.heal(broken=True)
            with suppress(ConnectionResetError):
                assert near.recv(1) == b""
    finally:
        network.end()
        server.close()
