"""A source that Spark reads (Kafka, files, ...). Its rows are preserved before anyone downstream sees them.

Spark cannot be asked to read the same rows again from another host, so each epoch is written to disk and shipped to
the standby, with Spark's own offsets, before it is published: what was seen once can always be sent again. This is
Meteor Shower's source preservation with the standby as the stable storage.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.core.keeping import Charge, Holdings, counted
from understudy.core.numbers import Epoch
from understudy.core.plans import UnitPlan
from understudy.core.preserving import Preserving
from understudy.core.queue import AHEAD_MAX
from understudy.cut_times import with_time
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
        """None until a plan has named the standbys."""
        self.newest = stage.start_epoch

    @property
    def aimed(self) -> bool:
        return self._holdings is not None

    def inherit(self) -> None:
        """An earlier primary has cut the newest epoch."""
        self._preserving.begin(inherited=True)

    def set_standbys(
        self, standbys: Mapping[str, tuple[str, int]], ready: Collection[str], holdings: Holdings
    ) -> bool:
        """Returns whether the newest epoch may be seen."""
        with self.host.changed:
            self._holdings = holdings
            self._shippers.aim(standbys)
            self._preserving.aim(standbys, ready)
            self.host.changed.notify_all()
            return self._preserving.may_be_seen()

    def preserve(self, epoch: Epoch, needed: dict[str, Path]) -> bool:
        """Return once the epoch is safe at every standby. False when this source was fenced or stopped."""
        with self.host.changed:
            self._preserving.begin()
        return self.bring(epoch, needed)

    def bring(self, epoch: Epoch, needed: dict[str, Path]) -> bool:
        """Return once the epoch may be seen. False when this source was fenced or stopped."""
        name = self.stage.name
        while not self.stage.stopping:
            with self.host.changed:
                self.host.changed.wait_for(lambda: self.stage.stopping or self._shippers.of(name))
                serial, done = self.host.serial, self._preserving.may_be_seen()
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

    _inherited: Epoch | None = None
    """The newest epoch of an earlier primary, until it may be seen."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._queue_folder = self.state / "queue"
        self._cut_folder = self.state / "cut"
        """A file with the name of the time at which the newest epoch was cut: its rows may be gone by the next."""
        self._opened = time.monotonic()
        self._preserver = Preserver(self)
        if self._inherited is not None:
            self._preserver.inherit()

    def may_be_seen(self, epoch: Epoch) -> bool:
        if epoch < self.start_epoch:
            return True
        self._inherited = epoch
        return False

    def protect(self, wanted: UnitPlan, charges: list[Charge], holdings: Holdings) -> RunningStage | None:
        with self.host.changed:
            first = not self._preserver.aimed
            if self._preserver.set_standbys(charges[0].standbys, counted(wanted), holdings):
                self._show_inherited()
            waits = first and self._inherited is not None
        if waits:
            threading.Thread(target=self._bring_inherited, name=f"inherited of {self.name}", daemon=True).start()
        return None

    def _bring_inherited(self) -> None:
        """Those that the plan counts on may lack it."""
        if self._preserver.bring(self.start_epoch, self._files(self.batch_of(self.start_epoch))):
            with self.host.changed:
                self._show_inherited()

    def _show_inherited(self) -> None:
        if self._inherited is not None:
            self._inherited = None
            self.output.show(self.start_epoch)

    def next_epoch(self, done: Epoch, *, version: bool = True) -> Epoch | None:
        with self.host.changed:
            while not self.stopping and (left := self._opened + self.host.job.epoch_s - time.monotonic()) > 0:
                self.host.changed.wait(left)
        epoch = super().next_epoch(done, version=version)
        self._opened = time.monotonic()
        return epoch

    def _may_run(self, epoch: Epoch) -> bool:
        wanted = self._inherited is None and self.output.queue.ahead < AHEAD_MAX
        return wanted and epoch < self.host.go and not self.host.draining

    def input_table(self, input: str, epoch: Epoch) -> pa.Table:
        return self.host.kind(self.name).arrow_schema(self.name).empty_table()

    def publish(self, epoch: Epoch, table: pa.Table) -> None:
        if self.stopping or epoch <= self.start_epoch or epoch < self.output.queue.next:
            return
        self._queue_folder.mkdir(parents=True, exist_ok=True)
        table = self._cut(table)
        write_table(self._queue_folder / f"{epoch}.arrow", table)
        record = self.host.options.record
        if record:
            folder = Path(record, self.name)
            folder.mkdir(parents=True, exist_ok=True)
            write_table(folder / f"{epoch}.arrow", table)
        if self._preserver.preserve(epoch, self._files(self.batch_of(epoch))):
            self.output.append(epoch, table)

    def _cut(self, table: pa.Table) -> pa.Table:
        """With its time, where anybody wants to know. It is kept with the rows, and never goes back."""
        if not self.host.job.needs_cut_times:
            return table
        self._cut_folder.mkdir(exist_ok=True)
        before = [path for path in self._cut_folder.iterdir() if path.name.isdigit()]
        cut_us = max([time.time_ns() // 1000, *(int(path.name) for path in before)])
        (self._cut_folder / str(cut_us)).touch()
        for path in before:
            if path.name != str(cut_us):
                path.unlink()
        return with_time(table, cut_us)

    def _files(self, batch: Batch) -> dict[str, Path]:
        """What the standby needs to go on after ``batch``, as if it were committed: it has its rows. Before the first
        one that is where the source begins to read, if the query has looked by then."""
        needed = {"metadata": self.state / "metadata"}
        if batch < 0:
            return {name: path for name, path in needed.items() if path.exists()} | self._files_of("sources")
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
        return needed | self._files_of("sources") | self._files_of("queue") | self._files_of("cut")

    def _files_of(self, folder: str) -> dict[str, Path]:
        files = (path for path in sorted((self.state / folder).rglob("*")) if not path.name.startswith("."))
        return {str(path.relative_to(self.state)): path for path in files if path.is_file()}

    def on_trimmed(self, epoch: Epoch) -> None:
        self.host.later(self._drop_rows, epoch)

    def _drop_rows(self, epoch: Epoch) -> None:
        for path in list(self._queue_folder.glob("*.arrow")):
            if int(path.stem) <= epoch:
                path.unlink(missing_ok=True)

    def drain(self, final: Epoch) -> bool:
        """Whoever came to keep the rows since the last epoch has yet to be brought it. Also before the first: without
        a version the job could not be resumed."""
        if self.committed < self.granted or self._inherited is not None:
            return False
        return self._preserver.is_safe(self.committed, self._files(self.batch_of(self.committed)))

    def status(self) -> dict[str, Any]:
        return {**super().status(), "checkpoint": self._preserver.newest}
