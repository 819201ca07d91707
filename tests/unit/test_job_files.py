"""Job files: what is wrong with one is a JobError that names the file and the line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import understudy as us
from understudy.errors import JobError
from understudy.job_files import is_same, link_imports, load, pack, unpack

GOOD = """
import understudy as us

job = us.Job("traffic")
cars = job.source("cars", us.sources.rate(10)); job.sink(cars, us.sinks.console())
"""


def write(tmp_path: Path, text: str, name: str = "traffic.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def mistake(caught: pytest.ExceptionInfo[JobError], *words: str) -> None:
    for word in words:
        assert word in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_job_file_is_loaded(tmp_path: Path) -> None:
    path = list(sys.path)
    loaded = load(str(write(tmp_path, GOOD)))
    assert loaded.name == "traffic" and list(loaded.stages) == ["cars"]
    assert sys.path == path


def test_a_job_file_may_import_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "RATE = 12", "neighbour_of_traffic.py")
    loaded = load(write(tmp_path, "from neighbour_of_traffic import RATE\n" + GOOD.replace("10", "RATE")))
    assert loaded.stages["cars"].source == us.sources.rate(12)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        load(tmp_path / "nowhere.py")
    mistake(caught, f"{tmp_path}/nowhere.py: there is no such job file")
    with pytest.raises(JobError, match="there is no such job file"):
        load(tmp_path)


def test_a_syntax_error(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        load(write(tmp_path, GOOD + "def broken(:\n"))
    mistake(caught, "traffic.py:6: syntax error: ")


def test_code_that_raises(tmp_path: Path) -> None:
    text = GOOD + "\ndef f():\n    return {}['x']\n\nf()\n"
    with pytest.raises(JobError) as caught:
        load(write(tmp_path, text))
    mistake(caught, "traffic.py:8: KeyError: 'x'")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("us.auto(recovery_time='-1s')", "recovery_time='-1s' is not a duration"),
        ("us.auto(overhead=-0.5)", "overhead=-0.5 must be a number and not negative"),
        ("us.auto(loss='much')", "loss='much' is not known; use one of 'none', 'some'"),
        ("us.UpstreamBackup(ack_every=0)", "ack_every=0 must be longer than nothing"),
    ],
)
def test_a_wrong_goal_in_a_file_says_where(tmp_path: Path, policy: str, words: str) -> None:
    with pytest.raises(JobError) as caught:
        load(write(tmp_path, GOOD.replace('Job("traffic")', f'Job("traffic", ha={policy})')))
    mistake(caught, f"traffic.py:4: ValueError: {words}")


def test_a_wrong_policy_in_a_file_says_where(tmp_path: Path) -> None:
    text = GOOD.replace('Job("traffic")', 'Job("traffic", ha=us.PassiveStandby(every="soon"))')
    with pytest.raises(JobError) as caught:
        load(write(tmp_path, text))
    mistake(caught, "traffic.py:4: ValueError: every='soon' is not a duration", "such as '500ms'")
    text = GOOD.replace('Job("traffic")', 'Job("traffic", ha=us.PassiveStandby(checkpoint="never"))')
    with pytest.raises(JobError) as caught:
        load(write(tmp_path, text))
    mistake(caught, "traffic.py:4: ValueError: checkpoint='never' is not known; use one of 'sweeping', ")
    text = GOOD.replace('Job("traffic")', 'Job("traffic", ha=us.UpstreamBackup(k=0))')
    with pytest.raises(JobError) as caught:
        load(write(tmp_path, text))
    mistake(caught, "traffic.py:4: ValueError: k=0 must be a whole number of at least 1")


def test_a_mistake_found_by_the_job_itself_says_where(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        load(write(tmp_path, GOOD + 'job.source("cars", us.sources.rate(10))\n'))
    mistake(caught, "traffic.py:6: there is a stream 'cars' already (defined at traffic.py:5)")


def test_a_mistake_in_the_whole_job_is_found_on_loading(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        load(write(tmp_path, GOOD + '\n@job.stage("bikes")\ndef a(df):\n    return df\n'))
    mistake(caught, "traffic.py:7: stage 'a' reads unknown stream 'bikes'")


def test_a_stream_that_goes_nowhere_is_found_on_loading(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        load(write(tmp_path, GOOD + "\n@job.stage(cars)\ndef fast(df):\n    return df\n"))
    mistake(caught, "traffic.py:7: nobody reads 'fast': send it out with job.sink(fast, ...)")


def test_two_jobs(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        load(write(tmp_path, GOOD + 'other = us.Job("other")\n'))
    assert str(caught.value).startswith("traffic.py: ")
    mistake(caught, "traffic.py: found 2 jobs at the top of the file; define exactly one, job = us.Job(...)")


def test_no_job(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="found 0 jobs at the top of the file; define exactly one"):
        load(write(tmp_path, "x = 1\n"))


def test_an_empty_job_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"job 'traffic' is empty; add job\.source"):
        load(write(tmp_path, 'import understudy as us\njob = us.Job("traffic")\n'))


def test_a_failed_load_leaves_the_path_as_it_was(tmp_path: Path) -> None:
    path = list(sys.path)
    for text in ("def broken(:", "1 / 0", GOOD + "job = 5\n"):
        with pytest.raises(JobError):
            load(write(tmp_path, text))
    assert sys.path == path


def test_one_job_under_two_names_is_one_job(tmp_path: Path) -> None:
    assert load(write(tmp_path, GOOD + "main = job\n")).name == "traffic"


def test_code_that_raises_behind_a_symbolic_link(tmp_path: Path) -> None:
    """As with this project's own examples/, which is a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "real", GOOD + "1 / 0\n")
    with pytest.raises(JobError, match=r"traffic\.py:6: ZeroDivisionError"):
        load(tmp_path / "link" / "traffic.py")


def test_a_syntax_error_in_a_neighbour(tmp_path: Path) -> None:
    write(tmp_path, "x = 1\ny = (\n", "broken_neighbour_of_traffic.py")
    with pytest.raises(JobError, match=r"broken_neighbour_of_traffic\.py:2"):
        load(write(tmp_path, "import broken_neighbour_of_traffic\n" + GOOD))


def test_a_wrong_source_in_a_file_says_where(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"^traffic\.py:5: .*rows_per_second=0"):
        load(write(tmp_path, GOOD.replace("rate(10)", "rate(0)")))


# -- functions and classes of the file, and what is beside it -----------------------------------------------------


def test_functions_of_a_job_file_travel_without_it(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    text = "LIMIT = 3\nclass Over:\n    def __call__(self, x):\n        return x > LIMIT\n"
    text += "def over(x):\n    return Over()(x)\n"
    load(write(tmp_path, GOOD + text, "travelling.py"))
    pickled = cloudpickle.dumps(sys.modules["understudy_job_travelling"].over)
    script = "import pickle, sys; over = pickle.loads(sys.stdin.buffer.read()); print(over(2), over(4))"
    elsewhere = subprocess.run([sys.executable, "-c", script], input=pickled, capture_output=True, cwd="/", check=True)
    assert elsewhere.stdout.decode().split() == ["False", "True"]


@pytest.mark.parametrize(
    "text",
    [
        'from pyspark.sql import functions as F\nFAST = F.col("speed") > 30\n',
        'from pyspark.sql import functions as F\n@F.pandas_udf("double")\ndef twice(x):\n    return x * 2\n',
    ],
)
def test_a_file_that_needs_a_session_is_read_again_with_one(tmp_path: Path, text: str) -> None:
    asked = []

    class NoSession(Exception):
        pass

    def session() -> None:
        asked.append(1)
        raise NoSession  # what would follow needs a JVM: tests/e2e/test_compat.py

    with pytest.raises(JobError, match="NoSession"):
        load(write(tmp_path, text + GOOD), session)
    assert asked


def test_a_session_is_there_before_a_file_makes_one(tmp_path: Path) -> None:
    asked = []
    text = GOOD + "def get():\n    import pyspark.sql as q\n    return q.SparkSession.builder.getOrCreate()\n"
    load(write(tmp_path, text), lambda: asked.append(1))
    load(write(tmp_path, GOOD), lambda: asked.append(2))
    assert asked == [1]


def beside(tmp_path: Path) -> Path:
    (tmp_path / "fleet" / "__pycache__").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    for name in ("helpers.py", "types.py", "fleet/__init__.py", "fleet/limits.py", "fleet/limits.json"):
        (tmp_path / name).write_text(f"# {name}\n")
    for name in ("fleet/__pycache__/x.pyc", "data/large.csv", "notes.txt"):
        (tmp_path / name).write_text("not taken along")
    return write(tmp_path, GOOD)


def test_modules_and_packages_beside_a_job_file_are_taken_along(tmp_path: Path) -> None:
    file = beside(tmp_path / "home")
    packed = pack(file)
    unpack(packed, tmp_path / "there")
    found = {str(p.relative_to(tmp_path / "there")) for p in (tmp_path / "there").rglob("*") if p.is_file()}
    assert found == {
        "traffic.py", "helpers.py", "types.py", "fleet/__init__.py", "fleet/limits.py", "fleet/limits.json"
    }  # fmt: skip
    assert pack(file) == packed
    assert is_same(file.parent, packed) and is_same(tmp_path / "there", packed)
    (tmp_path / "there" / "fleet" / "limits.json").write_text("changed")
    assert not is_same(tmp_path / "there", packed) and not is_same(tmp_path / "nowhere", packed)


def test_a_module_called_like_one_of_pythons_own_is_not_imported_by_workers(tmp_path: Path) -> None:
    file = beside(tmp_path)
    link_imports(tmp_path, pack(file), tmp_path / "imports")
    assert {p.name for p in (tmp_path / "imports").iterdir()} == {"traffic.py", "helpers.py", "fleet"}
    assert (tmp_path / "imports" / "fleet" / "limits.json").read_text() == "# fleet/limits.json\n"
    link_imports(tmp_path, pack(file), tmp_path / "imports")  # the next job replaces it


def test_of_a_large_folder_only_what_was_imported_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.job_files.PACK_BYTES_MAX", 10)
    write(tmp_path, "X = 1", "imported_by_traffic.py")
    write(tmp_path, "X = 1", "not_imported_by_traffic.py")
    file = write(tmp_path, "import imported_by_traffic\n" + GOOD)
    load(file)
    unpack(pack(file), tmp_path / "there")
    assert {p.name for p in (tmp_path / "there").iterdir()} == {"traffic.py", "imported_by_traffic.py"}
