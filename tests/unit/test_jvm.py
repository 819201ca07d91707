"""The Java that hosts run: what is in the jar is what is in the source."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import understudy

HOME = Path(understudy.__file__).parent / "jvm"


def test_the_jar_was_built_from_the_source() -> None:
    sources = sorted(HOME.glob("*.java"))
    with zipfile.ZipFile(HOME / "understudy.jar") as jar:
        built_from = jar.read("understudy/source.sha256").decode()
        assert {f"understudy/{path.stem}.class" for path in sources} <= set(jar.namelist())
    source = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    assert built_from == source, "run tools/build-jar.sh"
