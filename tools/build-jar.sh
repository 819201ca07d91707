#!/usr/bin/env bash
# Builds src/understudy/jvm/understudy.jar from the Java beside it. Needs a JDK; users do not: the jar is part of the
# package. A test compares the hash of the source that the jar carries with the source.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
jars=$(.venv/bin/python -c 'import pyspark, pathlib; print(pathlib.Path(pyspark.__file__).parent / "jars")')
javac --release 17 -g:none -Werror -cp "$jars/*" -d "$work" src/understudy/jvm/*.java
.venv/bin/python - "$work" <<'PYTHON'
import hashlib, sys, zipfile
from pathlib import Path

home, classes = Path("src/understudy/jvm"), Path(sys.argv[1])
source = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(home.glob("*.java")))).hexdigest()
with zipfile.ZipFile(home / "understudy.jar", "w", zipfile.ZIP_DEFLATED) as jar:
    jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF"), "Manifest-Version: 1.0\n\n")
    jar.writestr(zipfile.ZipInfo("understudy/source.sha256"), source)
    for path in sorted(classes.rglob("*.class")):
        jar.writestr(zipfile.ZipInfo(path.relative_to(classes).as_posix()), path.read_bytes())
PYTHON
