"""Which files make a version at its target, and how a newer image of a large state gets there.

The target is the own disk: what is said about it is said about standbys too.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from files import put
from spark_folders import image, spark_folder
from understudy.runtime import shipping
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.parts import About, CheckpointPart
from understudy.runtime.shipping import Shipper

STORE = "state/0/0"
TABLE_BYTES = 1000
TABLES = ["SSTs/6-a.sst", "SSTs/6-b.sst"]


class Primary:
    """A stage's checkpoint folder as Spark fills it: changes with every batch, now and then an image in which all
    tables are new."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state-1"
        self.host = SimpleNamespace(name="h1", changed=threading.Condition(), report=lambda *_, **__: None)
        self.unit = self.name = "speeds"
        self.generation, self.started_at, self.batch = 1, time.monotonic() - 60, -1

    def about(self, epoch: int) -> About:
        return About(epoch)

    def run(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.batch += 1
            put(self.state / STORE, f"{self.batch + 1}.changelog", b"c" * 10)
        spark_folder(self.state, self.batch + 1)

    def save(self) -> None:
        version = self.batch + 1
        image(self.state / STORE / f"{version}.zip", tables=(f"{version}-a.sst", f"{version}-b.sst"))
        for table in "ab":
            put(self.state / STORE, f"SSTs/{version}-{table}.sst", table.encode() * TABLE_BYTES)

    def clean_up(self) -> None:
        """As Spark does: what only versions before the newest image need is gone."""
        here = self.state / STORE
        newest = max(int(path.stem) for path in here.glob("*.zip"))
        for path in [*here.glob("*.changelog"), *here.glob("*.zip")]:
            if int(path.stem) < newest:
                path.unlink()
        for path in here.glob("SSTs/*.sst"):
            if int(path.name.partition("-")[0]) < newest:
                path.unlink()


@pytest.fixture
def primary(tmp_path: Path) -> Primary:
    return Primary(tmp_path)


@pytest.fixture
def shipper(primary: Primary, monkeypatch: pytest.MonkeyPatch) -> Shipper:
    monkeypatch.setattr(shipping, "AT_ONCE_BYTES", TABLE_BYTES)
    monkeypatch.setattr(shipping, "CHANGES_BYTES", 45)
    return Shipper(primary, "h1")  # type: ignore[arg-type]


def ship(shipper: Shipper, primary: Primary) -> int:
    """Returns how many bytes were sent."""
    sent: list[int] = []
    assert shipper.ship(primary.batch, shipper.files_of_query(primary.batch), sent.append) is None
    return sum(sent)


def held(primary: Primary) -> list[str]:
    store = CheckpointStore(primary.folder / "self")
    manifest, complaints = store.restore()
    assert manifest is not None and complaints == [] and manifest.about.epoch == primary.batch
    return sorted(name.removeprefix(f"{STORE}/") for name in manifest.files if name.startswith("state/"))


def arrived(shipper: Shipper) -> None:
    assert shipper._newer is not None
    shipper._newer.join(10)


def test_a_small_image_goes_with_its_version(shipper: Shipper, primary: Primary, monkeypatch: Any) -> None:
    monkeypatch.setattr(shipping, "AT_ONCE_BYTES", 10 * TABLE_BYTES)
    primary.run(2)
    ship(shipper, primary)
    primary.save()
    primary.run()
    ship(shipper, primary)
    assert held(primary) == ["2.zip", "3.changelog", "SSTs/2-a.sst", "SSTs/2-b.sst"]


def test_instead_of_a_large_image_only_changes_are_sent(shipper: Shipper, primary: Primary) -> None:
    primary.run()
    primary.save()
    primary.run()
    ship(shipper, primary)
    primary.run()
    primary.save()
    primary.run()
    assert ship(shipper, primary) < TABLE_BYTES
    assert held(primary) == ["1.zip", "2.changelog", "3.changelog", "4.changelog", "SSTs/1-a.sst", "SSTs/1-b.sst"]


def test_what_the_target_has_need_not_be_here_any_more(shipper: Shipper, primary: Primary) -> None:
    test_instead_of_a_large_image_only_changes_are_sent(shipper, primary)
    primary.clean_up()
    primary.run()
    ship(shipper, primary)
    assert [*held(primary)][:5] == ["1.zip", "2.changelog", "3.changelog", "4.changelog", "5.changelog"]


def test_where_changes_are_gone_the_image_is_sent_after_all(shipper: Shipper, primary: Primary) -> None:
    primary.run()
    primary.save()
    ship(shipper, primary)
    primary.run(3)
    primary.save()
    primary.clean_up()
    primary.run()
    ship(shipper, primary)
    assert held(primary) == ["4.zip", "5.changelog", "SSTs/4-a.sst", "SSTs/4-b.sst"]


def changed_much(shipper: Shipper, primary: Primary) -> None:
    """The target has an old image and many changes; a newer one is on its way."""
    primary.run()
    primary.save()
    ship(shipper, primary)
    primary.run(5)
    ship(shipper, primary)
    primary.save()
    primary.run()
    ship(shipper, primary)


def test_after_many_changes_a_newer_image_is_brought_beside_the_versions(shipper: Shipper, primary: Primary) -> None:
    changed_much(shipper, primary)
    assert "1.zip" in held(primary)
    arrived(shipper)
    primary.run()
    primary.save()  # another one, which is not meant
    primary.clean_up()
    primary.run()
    assert ship(shipper, primary) < TABLE_BYTES
    assert held(primary) == ["6.zip", "7.changelog", "8.changelog", "9.changelog", *TABLES]
    assert not list(primary.folder.glob("image-*"))


def test_a_target_that_lost_what_was_brought_is_sent_everything(shipper: Shipper, primary: Primary) -> None:
    changed_much(shipper, primary)
    arrived(shipper)
    shipper._own = CheckpointStore(primary.folder / "self")  # as a host that was started again
    primary.run()
    failure = shipper.ship(primary.batch, shipper.files_of_query(primary.batch))
    assert failure is not None and failure.startswith("damaged")
    ship(shipper, primary)
    assert held(primary) == ["6.zip", "7.changelog", "8.changelog", *TABLES]


def test_an_image_that_did_not_arrive_is_forgotten(
    shipper: Shipper, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = shipper._send

    def refuses(part: CheckpointPart, body: bytes) -> str | None:
        if part.ahead:
            raise OSError("no space left")
        return send(part, body)

    monkeypatch.setattr(shipper, "_send", refuses)
    changed_much(shipper, primary)
    arrived(shipper)
    assert not list(primary.folder.glob("image-*"))
    primary.run()
    ship(shipper, primary)
    assert "1.zip" in held(primary) and shipper._newer is None
    assert not list(primary.folder.glob("image-*"))


def test_when_another_target_is_chosen_nothing_is_left_behind(shipper: Shipper, primary: Primary) -> None:
    shipper.over = False
    changed_much(shipper, primary)
    newer = shipper._newer
    assert newer is not None
    shipper.over = True
    newer.join(10)
    assert not list(primary.folder.glob("image-*"))
