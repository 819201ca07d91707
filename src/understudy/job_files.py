"""Job files: reading one, and taking it to hosts together with the modules and packages beside it.

A job file is an ordinary PySpark script. Some of what people write at the top of a script needs a Spark session when
the file is read: ``@F.pandas_udf("double")``, a column as a constant, ``SparkSession.builder.getOrCreate()``. On a host
that is the host's own session. Elsewhere a small one is started, only for such files, and ended by ``end_session``.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from understudy.errors import JobError, UnderstudyError
from understudy.job import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACK_BYTES_MAX = 32 << 20
"""Of what is beside a job file. Beyond, only those modules are taken along that the file has imported."""
_MAKES_SESSION = ("getOrCreate", "SparkContext")


# -- reading ------------------------------------------------------------------------------------------------------


def load(path: str | Path, session: Callable[[], object] | None = None) -> Job:
    """The one Job defined at the top of a Python file. ``session`` returns when this process has a Spark session; it is
    called only for files that need one to be read."""
    file = Path(path)
    if not file.is_file():
        raise JobError(f"{file}: there is no such job file")
    session = session or _start_session
    folder = str(file.parent.resolve())
    sys.path.insert(0, folder)
    try:
        code = compile(file.read_bytes(), str(file.absolute()), "exec", dont_inherit=True)
        if _names(code).intersection(_MAKES_SESSION):
            session()
        try:
            module = _run(file, code)
        except Exception as error:
            if not _lacks_session(error):
                raise
            session()
            module = _run(file, code)
    except SyntaxError as error:
        raise JobError(f"{Path(error.filename or file).name}:{error.lineno}: syntax error: {error.msg}") from None
    except JobError as error:
        if str(error).startswith(f"{file.name}:"):
            raise
        raise JobError(f"{_line_in(file, error)}: {error}") from None
    except UnderstudyError:
        raise
    except Exception as error:
        raise JobError(f"{_line_in(file, error)}: {type(error).__name__}: {error}") from error
    finally:
        with suppress(ValueError):  # the file may have changed the path itself
            sys.path.remove(folder)
    jobs = list({id(value): value for value in vars(module).values() if isinstance(value, Job)}.values())
    if len(jobs) != 1:
        raise JobError(
            f"{file.name}: found {len(jobs)} jobs at the top of the file; define exactly one, job = us.Job(...)"
        )
    jobs[0].check_ends()
    return jobs[0]


def _run(file: Path, code: CodeType) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"understudy_job_{file.stem}", file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)
    _pickle_by_value(module)
    return module


def _pickle_by_value(module: ModuleType) -> None:
    """Spark's workers cannot import the job file, so its functions and classes travel whole, as a script's do."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _names(code: CodeType) -> set[str]:
    """Every name that a file's code mentions, also inside its functions."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _lacks_session(error: BaseException) -> bool:
    """PySpark threw while there was no session: it says so in many ways, one of them being a bare AssertionError."""
    from pyspark import SparkContext

    frames = traceback.extract_tb(error.__traceback__)
    return SparkContext._active_spark_context is None and "pyspark" in Path(frames[-1].filename).parts


def _line_in(file: Path, error: BaseException) -> str:
    """Where in the job file an error came up: the innermost line of it."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    line = next((f.lineno for f in frames if Path(f.filename).resolve() == file.resolve()), "?")
    return f"{file.name}:{line}"


# -- a session for reading ----------------------------------------------------------------------------------------


_started: list[SparkSession] = []


def _start_session() -> None:
    """A session for the process that only reads the job. Nothing will ever run on it."""
    if _started:
        return
    from understudy.runtime import class_archive
    from understudy.runtime.spark_jvm import JAR, require_java

    require_java()
    from pyspark.sql import SparkSession

    print("the job file needs a Spark session to be read: starting one ...", file=sys.stderr, flush=True)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[1]").appName("understudy-reads-a-job")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",  # less is refused
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {class_archive.options()}",
        "spark.driver.extraClassPath": str(JAR),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "OFF",
    }.items():
        builder = builder.config(key, value)
    with _quiet():
        _started.append(builder.getOrCreate())


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing that a JVM started here says reaches the user: it would be Spark's own greetings."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def end_session() -> None:
    """End the session that ``load`` started, if it did, and its JVM."""
    if _started:
        from pyspark import SparkContext

        _started.pop().stop()
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.kill()
            gateway.proc.wait()


# -- taking it to hosts -------------------------------------------------------------------------------------------


def pack(file: Path) -> bytes:
    """The job file and the modules and packages beside it. The same bytes for the same files."""
    folder = file.parent.resolve()
    beside: dict[Path, bytes] = {}
    size = 0
    for path in _beside(folder):
        with suppress(OSError):  # others may have files there that are not ours to read, or come and go
            size += path.stat().st_size
            if size > PACK_BYTES_MAX:
                beside = {}
                break
            beside[path] = path.read_bytes()
    for path in (folder / file.name, *_imported(folder)):
        beside[path] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(beside):
            archive.writestr(zipfile.ZipInfo(path.relative_to(folder).as_posix()), beside[path])
    return buffer.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Replace ``folder`` by what was packed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(folder)


def is_same(folder: Path, packed: bytes) -> bool:
    """This machine has the very files that were packed: then they are used in place, with what data is beside them."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        try:
            return all((folder / name).read_bytes() == archive.read(name) for name in archive.namelist())
        except OSError:
            return False


def link_imports(folder: Path, packed: bytes, target: Path) -> None:
    """Make ``target`` a folder to import from: links to what was packed. A module that is called like one of Python's
    own (``types.py``) is left out: Spark's workers would take it for that one, and not even start."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        names = {name.partition("/")[0] for name in archive.namelist()}
    for name in names:
        if name.removesuffix(".py") not in sys.stdlib_module_names:
            (target / name).symlink_to(folder / name)


def _beside(folder: Path) -> Iterator[Path]:
    """Modules, and packages with all their files."""
    for path in sorted(folder.iterdir()):
        with suppress(OSError):
            if path.suffix == ".py" and path.is_file():
                yield path
            elif (path / "__init__.py").is_file():
                yield from (p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def _imported(folder: Path) -> Iterator[Path]:
    """What this process has imported from there, packages without an ``__init__`` included."""
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if name and name.endswith(".py") and "site-packages" not in name:
            path = Path(name).resolve()
            if path.is_relative_to(folder) and not any(p.startswith(".") for p in path.relative_to(folder).parts):
                yield path
