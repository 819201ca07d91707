"""The Java that hosts run: what is in the jar is what is in the source."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import understudy

HOME = Path(understudy.__file__).parent / "jvm"


def test_the_jar_was_built_from_the_source() -> None:
    with zipfile.ZipFile(HOME / "understudy.jar") as jar:
        built_from = jar.read("understudy/source.sha256").decode()
        assert "understudy/HostFileSystem.class" in jar.namelist()
    source = hashlib.sha256((HOME / "HostFileSystem.java").read_bytes()).hexdigest()
    assert built_from == source, "run tools/build-jar.sh"
