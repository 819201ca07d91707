"""Payloads: in memory up to the budget, on disk beyond it, and gone when dropped."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.runtime.payloads import Payloads

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines

KILO = pa.table({"x": pa.array(range(128), pa.int64())})
assert KILO.nbytes == 1024


def kilo(n: int) -> pa.Table:
    return pa.table({"x": pa.array([n] * 128, pa.int64())})


def files(payloads: Payloads) -> list[str]:
    """What is on disk, each file without the number that tells it from earlier ones of its epoch."""
    payloads._deleting.submit(lambda: None).result()
    return sorted(f"{path.name.rsplit('.', 2)[0]}.arrow" for path in payloads._folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queues"


def test_what_was_put_is_there(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=10_000)
    payloads.put("a", 0, kilo(7))
    assert payloads.get("a", 0) == kilo(7)
    assert payloads.get("a", 1) is None and payloads.get("b", 0) is None
    assert (payloads.memory_bytes, payloads.spilled_bytes, files(payloads)) == (1024, 0, [])


def test_the_newest_goes_to_disk_when_the_budget_is_spent(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=2048)
    for epoch in range(4):
        payloads.put("a", epoch, kilo(epoch))
    assert files(payloads) == ["a.2.arrow", "a.3.arrow"]
    assert (payloads.memory_bytes, payloads.memory_bytes_peak, payloads.spilled_bytes) == (2048, 2048, 2048)
    assert [payloads.get("a", e) for e in range(4)] == [kilo(e) for e in range(4)]


def test_the_budget_is_the_hosts_not_the_streams(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=1024)
    payloads.put("a", 0, kilo(1))
    payloads.put("in:b<a/c", 0, kilo(2))
    assert files(payloads) == ["in:b<a~c.0.arrow"]
    assert payloads.get("in:b<a/c", 0) == kilo(2)


def test_no_budget_keeps_nothing_in_memory_but_works(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=0)
    payloads.put("a", 0, kilo(1))
    payloads.put("a", 1, pa.table({}))
    assert payloads.get("a", 0) == kilo(1)
    assert payloads.memory_bytes_peak == 0


def test_empty_tables_keep_their_columns_through_disk(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=0)
    payloads.put("a", 0, kilo(1))
    empty = KILO.schema.empty_table()
    payloads.put("a", 1, empty)
    assert payloads.get("a", 1) == empty


def test_dropping_frees_memory_and_disk(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=2048)
    for epoch in range(4):
        payloads.put("a", epoch, kilo(epoch))
    payloads.drop("a", 2)
    assert [payloads.get("a", e) is None for e in range(4)] == [True, True, True, False]
    assert (payloads.memory_bytes, files(payloads)) == (0, ["a.3.arrow"])
    payloads.put("a", 4, kilo(4))
    assert payloads.memory_bytes == 1024, "what was freed can be used again"
    payloads.drop("a", 2)
    payloads.drop("nobody", 99)
    payloads.drop("a", 99)
    assert (payloads.memory_bytes, files(payloads)) == (0, [])


def test_a_table_in_use_survives_its_dropping(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=0)
    payloads.put("a", 0, kilo(5))
    table = payloads.get("a", 0)
    payloads.drop("a", 0)
    assert table == kilo(5)


def test_drop_all_takes_every_epoch_of_exactly_one_stream(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=2048)
    for stream in ("in:b<a", "in:b<c", "in:bb<a", "out:b"):
        payloads.put(stream, 0, kilo(1))
        payloads.put(stream, 1 << 40, kilo(1))
    payloads.drop_all("in:b<")  # no stream of that name
    assert all(payloads.get(s, e) == kilo(1) for s in ("in:b<a", "in:b<c", "in:bb<a", "out:b") for e in (0, 1 << 40))
    payloads.drop_all("in:b<a")
    assert payloads.get("in:b<a", 0) is payloads.get("in:b<a", 1 << 40) is None
    assert all(payloads.get(s, e) == kilo(1) for s in ("in:b<c", "in:bb<a", "out:b") for e in (0, 1 << 40))
    payloads.drop_all("in:b<c")
    assert payloads.get("in:b<c", 0) is payloads.get("in:b<c", 1 << 40) is None


def test_stopping_one_stage_leaves_the_output_of_another(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=10_000)
    payloads.put("out:cars", 0, kilo(1))
    payloads.put("out:cars_by_road", 0, kilo(2))
    payloads.drop_all("out:cars")  # as PrimaryStage.stop and SourceStage.stop do
    assert payloads.get("out:cars", 0) is None
    assert payloads.get("out:cars_by_road", 0) == kilo(2)


def test_putting_again_replaces(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=10_000)
    payloads.put("a", 0, kilo(1))
    payloads.put("a", 0, kilo(2))
    assert payloads.get("a", 0) == kilo(2) and payloads.memory_bytes == 1024
    payloads.drop("a", 0)
    assert payloads.memory_bytes == 0 and payloads.get("a", 0) is None


def test_putting_again_replaces_what_is_on_disk(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=1024)
    payloads.put("a", 0, kilo(1))
    payloads.put("a", 1, kilo(1))
    payloads.put("a", 1, kilo(2))
    assert payloads.get("a", 1) == kilo(2) and files(payloads) == ["a.1.arrow"]
    payloads.drop("a", 0)
    payloads.put("a", 1, kilo(3))
    assert payloads.get("a", 1) == kilo(3) and files(payloads) == [] and payloads.memory_bytes == 1024


def test_what_an_earlier_process_left_is_removed(folder: Path) -> None:
    payloads = Payloads(folder, memory_bytes_max=0)
    payloads.put("a", 0, KILO)
    assert files(payloads) == ["a.0.arrow"]
    payloads = Payloads(folder, memory_bytes_max=0)
    assert files(payloads) == [] and payloads.get("a", 0) is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "put", "again"]), st.sampled_from(["a", "ab"]), st.integers(0, 60)),
        st.tuples(st.just("drop"), st.sampled_from(["a", "ab"]), st.integers(0, 12)),
        st.tuples(st.just("drop_all"), st.sampled_from(["a", "ab", ""]), st.just(0)),
    ),
    max_size=25,
)


@settings(PATIENT, max_examples=40)
@given(st.integers(0, 1500), STEPS)
def test_the_budget_holds_and_nothing_is_mixed_up(
    tmp_path_factory: pytest.TempPathFactory, budget: int, steps: list[tuple[str, str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("p") / "queues"
    payloads = Payloads(folder, memory_bytes_max=budget)
    kept: dict[tuple[str, int], pa.Table] = {}
    following = {"a": 0, "ab": 0}
    for kind, stream, number in steps:
        if kind in ("put", "again"):
            epoch = max(0, following[stream] - (kind == "again"))
            following[stream] = epoch + 1
            kept[stream, epoch] = pa.table({"x": pa.array([epoch] * number, pa.int64())})
            payloads.put(stream, epoch, kept[stream, epoch])
        elif kind == "drop":
            kept = {k: t for k, t in kept.items() if k[0] != stream or k[1] > number}
            payloads.drop(stream, number)
        else:
            kept = {k: t for k, t in kept.items() if k[0] != stream}
            payloads.drop_all(stream)
        assert payloads.memory_bytes <= budget and payloads.memory_bytes_peak <= budget
        on_disk = {f"{s}.{e}.arrow" for s, e in kept} & set(files(payloads))
        assert on_disk == set(files(payloads)), "no file without its epoch"
        in_memory = sum(t.nbytes for (s, e), t in kept.items() if f"{s}.{e}.arrow" not in on_disk)
        assert payloads.memory_bytes == in_memory
        for stream_name, count in following.items():
            for epoch in range(count):
                assert payloads.get(stream_name, epoch) == kept.get((stream_name, epoch))
