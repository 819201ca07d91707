"""A source that Spark reads (Kafka, files, ...). Its rows are preserved before anyone downstream sees them.

Spark cannot be asked to read the same rows again from another host, so each epoch is written to disk and shipped to
the standby, with Spark's own offsets, before it is published: what was seen once can always be sent again. This is
Meteor Shower's source preservation with the standby as the stable storage.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.core.keeping import Charge, Holdings
from understudy.core.numbers import Epoch
from understudy.core.plans import UnitPlan
from understudy.core.preserving import Preserving
from understudy.core.queue import AHEAD_MAX
from understudy.runtime.shipping import Shippers
from understudy.runtime.spark_files import Batch
from understudy.runtime.stage import RunningStage
from understudy.runtime.streams import write_table

_FIRST_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'


class Preserver:
    """Stands where a stage's keeper stands, but ships every epoch at once, rows and all."""

    def __init__(self, stage: SparkSourceStage) -> None:
        self.stage, self.host = stage, stage.host
        self._shippers = Shippers([stage])
        self._pool = ThreadPoolExecutor(thread_name_prefix=f"preserver {stage.name}")
        self._preserving = Preserving()
        self._holdings: Holdings | None = None
        self.newest = stage.start_epoch

    def set_standbys(self, standbys: Mapping[str, tuple[str, int]], holdings: Holdings) -> None:
        with self.host.changed:
            self._holdings = holdings
            self._shippers.aim(standbys)
            self._preserving.aim(standbys)
            self.host.changed.notify_all()

    def preserve(self, epoch: Epoch, needed: dict[str, Path]) -> bool:
        """Return once the epoch is safe at every standby. False when this source was fenced or stopped."""
        name = self.stage.name
        with self.host.changed:
            self._preserving.begin()
        while not self.stage.stopping:
            with self.host.changed:
                self.host.changed.wait_for(lambda: self.stage.stopping or self._shippers.of(name))
                serial, done = self.host.serial, self._preserving.done()
            if done:
                self.newest = epoch
                return True
            failures = self._bring(epoch, needed)
            if "fenced" in failures.values():
                self.stage.fence()
                return False
            if any(failures.values()):
                self.host.wait_for_newer_plan(serial, self.stage, 0.2)  # it may name other standbys, or none
        return False

    def is_safe(self, epoch: Epoch, needed: dict[str, Path]) -> bool:
        """Whether all that keep the rows have the newest epoch; brings it to those that came since, once."""
        if self.newest == epoch:
            self._bring(epoch, needed)
        with self.host.changed:
            return self.newest == epoch and self._preserving.done()

    def _bring(self, epoch: Epoch, needed: dict[str, Path]) -> dict[str, str | None]:
        """To those that lack it. Returns for each what failed."""
        with self.host.changed:
            shippers, holdings = self._shippers.of(self.stage.name), self._holdings
            left = {key: shippers[key] for key in self._preserving.left()}
        failures = dict(zip(left, self._pool.map(lambda s: s.ship(epoch, needed), left.values()), strict=True))
        with self.host.changed:
            for key in (key for key, failure in failures.items() if failure is None):
                self._preserving.safe_at(key)
        if holdings is not None:
            self._tell(holdings, failures)
        return failures

    def _tell(self, holdings: Holdings, failures: Mapping[str, str | None]) -> None:
        with self.host.changed:
            for key, failure in failures.items():
                if failure is None:
                    self.host.report_all(holdings.held(key, self.stage.name))
                elif failure.startswith("disk"):
                    self.host.report_all(holdings.unusable(key, failure))


class SparkSourceStage(RunningStage):
    """Its one input is the tick, which lets Spark cut an epoch when one is due and wanted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._queue_folder = self.state / "queue"
        self._opened = time.monotonic()
        self._preserver = Preserver(self)

    def protect(self, wanted: UnitPlan, charges: list[Charge], holdings: Holdings) -> RunningStage | None:
        self._preserver.set_standbys(charges[0].standbys, holdings)
        return None

    def next_epoch(self, done: Epoch, *, version: bool = True) -> Epoch | None:
        with self.host.changed:
            while not self.stopping and (left := self._opened + self.host.job.epoch_s - time.monotonic()) > 0:
                self.host.changed.wait(left)
        epoch = super().next_epoch(done, version=version)
        self._opened = time.monotonic()
        return epoch

    def _may_run(self, epoch: Epoch) -> bool:
        return epoch < self.host.go and not self.host.draining and self.output.queue.ahead < AHEAD_MAX

    def input_table(self, input: str, epoch: Epoch) -> pa.Table:
        return self.host.kind(self.name).arrow_schema(self.name).empty_table()

    def publish(self, epoch: Epoch, table: pa.Table) -> None:
        if self.stopping or epoch < self.output.queue.next:
            return
        self._queue_folder.mkdir(parents=True, exist_ok=True)
        write_table(self._queue_folder / f"{epoch}.arrow", table)
        record = self.host.options.record
        if record:
            folder = Path(record, self.name)
            folder.mkdir(parents=True, exist_ok=True)
            write_table(folder / f"{epoch}.arrow", table)
        if self._preserver.preserve(epoch, self._files(self.batch_of(epoch))):
            self.output.append(epoch, table)

    def _files(self, batch: Batch) -> dict[str, Path]:
        """What the standby needs to go on after ``batch``, as if it were committed: it has its rows."""
        needed = {"metadata": self.state / "metadata"}
        for number in (batch - 1, batch):
            if number >= 0:
                needed[f"offsets/{number}"] = self.state / "offsets" / str(number)
        before = self.state / "commits" / str(batch - 1)
        commit = self.folder / f"commit-{batch}"
        commit.write_bytes(before.read_bytes() if batch > 0 else _FIRST_COMMIT)
        (self.folder / f"commit-{batch - 1}").unlink(missing_ok=True)
        if batch > 0:
            needed[f"commits/{batch - 1}"] = before
        needed[f"commits/{batch}"] = commit
        for root in ("sources", "queue"):
            for path in sorted((self.state / root).rglob("*")):
                if path.is_file() and not path.name.startswith("."):
                    needed[str(path.relative_to(self.state))] = path
        return needed

    def on_trimmed(self, epoch: Epoch) -> None:
        self.host.later(self._drop_rows, epoch)

    def _drop_rows(self, epoch: Epoch) -> None:
        for path in list(self._queue_folder.glob("*.arrow")):
            if int(path.stem) <= epoch:
                path.unlink(missing_ok=True)

    def drain(self, final: Epoch) -> bool:
        """Whoever came to keep the rows since the last epoch has yet to be brought it. Before the first there is
        nothing to bring."""
        if self.committed < self.granted:
            return False
        return self.committed < 0 or self._preserver.is_safe(self.committed, self._files(self.batch_of(self.committed)))

    def status(self) -> dict[str, Any]:
        return {**super().status(), "checkpoint": self._preserver.newest}
