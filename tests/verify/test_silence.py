"""When output arrived, on real files; and into which parts an interruption is split."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from sink_epochs import epoch_folder, put, put_json

from understudy.verify.silence import arrivals, recovery


def test_arrivals_are_the_newest_part_and_all_rows(tmp_path: Path) -> None:
    os.utime(put(tmp_path, 11, {"a": [1, 2]}, part=0), ns=(0, 1_700_000_000_250_000_000))
    os.utime(put(tmp_path, 11, {"a": [3]}, part=1), ns=(0, 1_700_000_000_500_000_000))
    os.utime(put(tmp_path, 2, {"a": pa.array([], pa.int64())}), ns=(0, 1_700_000_009_000_000_000))
    path = put_json(tmp_path, 3, ['{"a": 1}', "", '{"a": 2}'])
    path.write_text(path.read_text().rstrip("\n"))  # no newline at the end
    os.utime(path, ns=(0, 1_700_000_001_000_000_000))
    epoch_folder(tmp_path, 4)
    (epoch_folder(tmp_path, 3) / "_SUCCESS").write_text("")
    assert arrivals(tmp_path) == [(1_700_000_009.0, 2, 0), (1_700_000_001.0, 3, 2), (1_700_000_000.5, 11, 3)]
    assert arrivals(tmp_path / "nowhere") == []


def steady(*times: float, first: int = 0) -> list[tuple[float, int, int]]:
    return [(t, first + n, 10) for n, t in enumerate(times)]


def test_recovery_splits_the_silence() -> None:
    got = recovery(
        steady(1.0, 1.5, 2.0, 2.5, 4.5, 4.6, 5.0, 5.5, 6.0),
        killed_at=2.75, detected_at=3.0, promoted_at=3.125, resumed_at=4.0, epoch_s=0.5,
    )  # fmt: skip
    assert got.to_dict() == {
        "silence_s": 1.75, "detection_s": 0.25, "promotion_s": 0.125, "redeployment_s": 1.0,
        "reprocessing_s": 0.5, "longest_silence_s": 2.0, "full_recovery_s": 1.75,
        "first_output_at": 4.5, "usual_gap_s": 0.5,
    }  # fmt: skip


def test_an_epoch_seen_before_does_not_end_the_silence() -> None:
    seen = steady(1.0, 2.0, 3.0)
    again = [(3.5, 1, 10), (3.6, 2, 10), (5.0, 3, 10), (6.0, 4, 10)]
    assert recovery(seen + again, killed_at=3.2, epoch_s=1).silence_s == pytest.approx(1.8)


def test_what_was_on_its_way_does_not_end_the_silence() -> None:
    late = steady(1.0, 2.0, 3.0, 3.25, 8.0, 9.0)
    got = recovery(late, killed_at=3.125, detected_at=3.5, resumed_at=7.0, epoch_s=1)
    assert (got.silence_s, got.reprocessing_s, got.longest_silence_s) == (4.875, 1.0, 4.75)
    never_back = recovery(late[:4], killed_at=3.125, detected_at=3.5, resumed_at=7.0, epoch_s=1)
    assert (never_back.silence_s, never_back.reprocessing_s) == (None, None)


def test_output_that_never_stopped_has_no_reprocessing() -> None:
    """Active standby: the other copy's output goes on while the failure is still being noticed."""
    got = recovery(steady(*range(1, 10)), killed_at=3.5, detected_at=5.25, resumed_at=5.5, epoch_s=1)
    assert (got.silence_s, got.reprocessing_s, got.full_recovery_s) == (0.5, 0.0, 0.0)
    assert got.longest_silence_s == 1.0


def test_full_recovery_waits_for_the_last_unusual_pause() -> None:
    times = [1.0, 2.0, 3.0, 6.0, 6.5, 9.5, 10.0, 12.0, 13.0]  # 2.0 s is just within twice the usual
    got = recovery(steady(*times), killed_at=3.0, epoch_s=1)
    assert (got.silence_s, got.full_recovery_s, got.longest_silence_s) == (3.0, 6.5, 3.0)
    assert recovery(steady(*times[:6]), killed_at=3.0, epoch_s=1).full_recovery_s is None  # not seen to stay


def test_parts_that_cannot_be_told_are_none() -> None:
    nothing = recovery([], killed_at=5.0, epoch_s=1).to_dict()
    assert nothing.pop("usual_gap_s") == 1
    assert set(nothing.values()) == {None}
    dead = recovery(steady(1.0, 2.0), killed_at=3.0, detected_at=3.5, epoch_s=1)
    assert (dead.detection_s, dead.silence_s, dead.redeployment_s) == (0.5, None, None)
    assert (dead.longest_silence_s, dead.full_recovery_s) == (None, None)
    young = recovery(steady(4.0, 4.5, 5.0), killed_at=1.0, epoch_s=0.5)  # killed before any output
    assert (young.silence_s, young.longest_silence_s, young.full_recovery_s) == (3.0, 3.0, 3.0)
    with pytest.raises(ValueError, match="epoch_s"):
        recovery([], killed_at=5.0, epoch_s=0)
