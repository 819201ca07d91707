"""Job files: what is wrong with one is a JobError that names the file and the line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import understudy as us
from understudy.errors import JobError
from understudy.job import load

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
