"""The Java that Spark runs on: which one it is, and the jar that hosts add to it."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from understudy.errors import SetupError

JAR = Path(__file__).parents[1] / "jvm" / "understudy.jar"


def java_path() -> str | None:
    """The Java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return java if java is not None and Path(java).exists() else None


def java_says() -> str:
    """What it calls itself; nothing where there is none."""
    java = java_path()
    return "" if java is None else _version_of(java)


@cache
def _version_of(java: str) -> str:
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


def java_version() -> int | None:
    """Its major version, or None."""
    text = java_says()
    digits = text.partition('version "')[2].partition('"')[0].split(".")
    return int(digits[1] if digits[0] == "1" else digits[0]) if digits[0].isdigit() else None


def require_java() -> None:
    version = java_version()
    if version is None:
        raise SetupError(
            "Java was not found; Spark needs Java 17 or newer: apt-get install openjdk-17-jre-headless, "
            "or set JAVA_HOME"
        )
    if version < 17:
        raise SetupError(f"Java {version} is too old; Spark needs Java 17 or newer; set JAVA_HOME to one")
