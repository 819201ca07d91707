"""Sources on a host: epochs are cut on demand, and what each holds is safe before it is sent.

A source that the host reads by itself is recovered from its entries (``understudy.sources``). One that Spark reads
keeps its rows: each epoch goes to the standby, with Spark's offsets, before anyone downstream may see it.
"""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from understudy.core.beginning import Start
from understudy.core.entries import Follower, Leader
from understudy.core.failover import StageThrew
from understudy.core.keeping import Charge, Holdings, counted, standing
from understudy.core.numbers import NO_EPOCH, Epoch, Generation, after
from understudy.core.plans import UnitPlan
from understudy.cut_times import entry_time, plain_entry, timed_entry, with_time
from understudy.runtime import blame, messages, wire
from understudy.runtime.role import Primary, Standby, Succession
from understudy.runtime.spark import first_line
from understudy.runtime.streams import SinkWriter, Stream
from understudy.runtime.wire import Refusal
from understudy.sources import Entry

if TYPE_CHECKING:
    from understudy.runtime.host import Host
    from understudy.runtime.stage import RunningStage


class EntryLog:
    """Entries of one source on disk, one JSON line per epoch. A torn last line, from a crash, is dropped."""

    def __init__(self, path: Path, *, clear: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if clear:
            path.unlink(missing_ok=True)
        self.entries: list[Entry] = []
        if path.exists():
            whole = 0
            for line in path.read_bytes().splitlines(keepends=True):
                try:
                    entry = json.loads(line)
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                self.entries.append(entry)
                whole += len(line)
            os.truncate(path, whole)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open for the log's life
        self.trimmed = NO_EPOCH
        """The newest epoch that no consumer needs any more. Not on disk: after all hosts have died, more may be needed
        than was thought while some were alive."""

    def append(self, entries: list[Entry]) -> None:
        """All of them or none. Raises OSError when the disk refuses; what it took by then is cut off again, since they
        will be appended once more."""
        lines = b"".join(json.dumps(e, separators=(",", ":")).encode() + b"\n" for e in entries)
        before = os.fstat(self._file.fileno()).st_size
        try:
            while lines:
                lines = lines[self._file.write(lines) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(before)
            raise
        self.entries += entries

    def truncate(self, count: int) -> None:
        """Forget entries beyond the first ``count``."""
        if count < len(self.entries):
            lines = Path(self._file.name).read_bytes().splitlines(keepends=True)
            self._file.truncate(sum(map(len, lines[:count])))
            os.fsync(self._file.fileno())
            del self.entries[count:]

    def close(self) -> None:
        self._file.close()


class SourceStage(Primary):
    """A source read by the host. ``log`` holds the entries so far; the next epoch is ``len(log.entries)``."""

    def __init__(self, host: Host, name: str, *, unit: str, generation: Generation, log: EntryLog) -> None:
        self.host, self.name, self.unit, self.generation, self.log = host, name, unit, generation, log
        self.start_epoch = NO_EPOCH  # sinks on a source begin at its first entry; folder sinks skip what they have
        self.stopping = False
        self._cutting = False
        """An epoch has been begun that is not published yet."""
        self.resumed_at: float | None = None
        # Any epoch so far can be read again from its entry; a consumer that asks where to begin need not go back to
        # those that are done with.
        self._inherited = len(log.entries)
        self._leader = Leader(self._inherited, certain=log.trimmed + 1)
        self.output = Stream(self, start=Epoch(self._leader.shows(self._inherited)), first=after(log.trimmed))
        own = [plain_entry(entry) for entry in log.entries]
        self._cursor = host.job.stages[name].source.open(own)  # type: ignore[union-attr]
        self._timed = host.job.needs_cut_times
        self._cut_us = max((us for us in map(entry_time, log.entries) if us is not None), default=0)
        """When the newest epoch was cut, as far as anybody wants to know."""
        self._replay: list[Entry] = host.options.replay.get(name, [])
        self._standbys: list[EntriesAt] | None = None
        """None until a plan has named them. Nothing is cut before: it would be seen by somebody before they have it."""
        self._threads = [threading.Thread(target=self._run, name=f"source {name}", daemon=True)]
        self._threads += [SinkWriter(self, s) for s in host.job.stages[name].sinks]
        self.error: str | None = None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        host = self.host
        try:
            with host.changed:
                host.changed.wait_for(lambda: self.stopping or host.go > 0)
            self.resumed_at = time.time()
            host.report(messages.Runs(self.unit, self.generation, self.name, Epoch(len(self.log.entries) - 1)))
            opened = time.monotonic() - host.job.epoch_s
            while True:
                epoch = Epoch(len(self.log.entries))
                replaying = epoch < len(self._replay)
                if not replaying:
                    self._wait(opened + (0.0 if host.options.replay else host.job.epoch_s))
                with host.changed:
                    host.changed.wait_for(lambda: self.stopping or self._may_close())
                    if self.stopping:
                        return
                    self._cutting = True
                now = time.monotonic()
                entry = self._replay[epoch] if replaying else self._cut(now - opened)
                opened = now
                self.log.append([entry])
                if not self._share():
                    return
                rows = self._read(entry)
                self.output.cut_s = time.monotonic() - now
                self.output.append(epoch, rows)
                with host.changed:
                    self._cutting = False
        except Exception as error:
            traceback.print_exc()
            self.error = first_line(error)
            cause, epoch = f"source {self.name!r}: {first_line(error)}", Epoch(len(self.log.entries))
            host.report(StageThrew(self.unit, self.generation, self.name, epoch, cause, blame.of(error)))

    def _cut(self, elapsed_s: float) -> Entry:
        entry = self._cursor.take(elapsed_s)
        if not self._timed:
            return entry
        # No clock agrees with another, and this may be the log of a host whose clock was ahead.
        self._cut_us = max(self._cut_us, time.time_ns() // 1000)
        return timed_entry(entry, self._cut_us)

    def _read(self, entry: Entry) -> pa.Table:
        rows, cut_us = self._cursor.read(plain_entry(entry)), entry_time(entry)
        return with_time(rows, cut_us) if self._timed and cut_us is not None else rows

    def _wait(self, until: float) -> None:
        with self.host.changed:
            while not self.stopping and (left := until - time.monotonic()) > 0:
                self.host.changed.wait(left)

    def _may_close(self) -> bool:
        if self.host.options.replay and len(self.log.entries) >= len(self._replay):
            return False  # a replay ends where the recording ended
        may_cut = self._standbys is not None and len(self.log.entries) < self.host.go and not self.host.draining
        seen = self.output.queue.next == len(self.log.entries)
        return may_cut and seen and self.output.queue.ahead == 0

    def _show_inherited(self) -> None:
        """Call with ``host.changed`` held."""
        while self.output.queue.next < self._leader.shows(self._inherited):
            self.output.show(self.output.queue.next)

    def _share(self) -> bool:
        """Bring every standby's log up to date before anyone sees the epoch. False when this source was fenced."""
        while not self.stopping:
            with self.host.changed:
                behind = [s for s in self._standbys or () if s.has != len(self.log.entries)]
                behind.sort(key=lambda s: not s.counted)  # who is waited for, before who has just come
                serial = self.host.serial
            if not behind:
                return True
            for standby in behind:
                refused = standby.bring_up_to_date()
                if refused == Refusal.FENCED:
                    self.fence()
                    return False
                if refused:
                    self.host.wait_for_newer_plan(serial, self, 0.1)
        return False

    def told(self, standby: str, has: int) -> None:
        """A standby has said how many entries it has. Call with ``host.changed`` held."""
        self._leader.has(standby, has)
        self._show_inherited()

    @property
    def running(self) -> RunningStage | None:
        return None

    @property
    def begun(self) -> Epoch:
        return Epoch(max(len(self.log.entries) - 1, self.output.queue.next - 1 + self._cutting))

    def regenerate(self, epoch: Epoch) -> pa.Table | None:
        return self._read(self.log.entries[epoch]) if 0 <= epoch < len(self.log.entries) else None

    def on_trimmed(self, epoch: Epoch) -> None:
        self.log.trimmed = epoch

    def on_progress(self) -> None:
        pass

    def protect(self, wanted: UnitPlan, charges: list[Charge], holdings: Holdings) -> RunningStage | None:
        standbys = standing(wanted)  # its own log is always written first
        with self.host.changed:
            known = {s.key: s for s in self._standbys or ()}
            self._standbys = [known.get(key) or EntriesAt(self, key, at[0], holdings) for key, at in standbys.items()]
            ready = counted(wanted)
            for standby in self._standbys:
                standby.counted = standby.key in ready
            self._leader.aim(standbys, ready)
            self._show_inherited()
            self.host.changed.notify_all()
        threading.Thread(target=self._share, daemon=True).start()
        return None

    def standby_is_known(self) -> None:
        pass

    def fence(self) -> None:
        if not self.stopping:
            self.host.report(messages.Fenced(self.unit, self.generation, self.name))
            self.stop()

    def drain(self, final: Epoch) -> bool:
        return self.output.queue.trimmed >= final or not self.host.job.stages[self.name].sinks

    def stop(self) -> None:
        with self.host.changed:
            self.stopping = True
            self.host.changed.notify_all()
        self.host.payloads.drop_all(self.output.key)

    def status(self) -> dict[str, Any]:
        queue = self.output.queue
        return {
            "role": "primary",
            "unit": self.unit,
            "generation": self.generation,
            "committed": queue.next - 1,
            "produced": queue.next - 1,
            "trimmed": queue.trimmed,
            "started": self.resumed_at is not None,
            "checkpoint": min((s.has or 0 for s in self._standbys or ()), default=0) - 1,
            "error": self.error,
            "source": True,
        }


class EntriesAt:
    """What one standby has of a source's entries."""

    def __init__(self, source: SourceStage, key: str, host: str, holdings: Holdings) -> None:
        self.source, self.key, self.host, self._holdings = source, key, host, holdings
        self.has: int | None = None
        """How many; None until it has said so itself."""
        self.counted = False
        """The plan counts on it."""

    def bring_up_to_date(self) -> Refusal | None:
        """Send what it lacks. Returns why that did not work, if so."""
        source = self.source
        entries = list(source.log.entries)
        certain = min(source.log.trimmed + 1, len(entries))
        after = certain if self.has is None else self.has
        about = (source.unit, source.name, source.generation)
        call = messages.Entries(*about, after, certain, dict(source.host.landed.known), entries[after:])
        try:
            reply = source.host.peer(self.host).call(call, category="checkpoint", timeout_s=2)
        except (flight.FlightError, pa.ArrowException, OSError):
            return Refusal.UNREACHABLE
        with source.host.changed:
            if reply.refused == Refusal.DISK:
                source.host.report_all(self._holdings.unusable(self.key, reply.text))
            elif not reply.refused:
                self.has = reply.answer
                source.told(self.key, reply.answer)
                if self.has == len(entries):
                    source.host.report_all(self._holdings.held(self.key, source.name))
        return reply.refused


class StandbySource(Standby):
    """Standby of a source read by the host: a copy of its entries."""

    def __init__(self, host: Host, name: str, *, unit: str, generation: Generation, since: int, log: EntryLog) -> None:
        self.host, self.name, self.unit, self.generation, self.log = host, name, unit, generation, log
        self.since = since
        self.stopping = False
        self._lock = threading.Lock()
        self._follower = Follower()

    @property
    def running(self) -> RunningStage | None:
        """Nothing runs before the primary is given up: two would cut different epochs."""
        return None

    def follow(self, generation: Generation) -> None:
        with self._lock:
            self.generation = generation

    def succeed(self, generation: Generation, found: Start | None = None) -> Succession | None:
        self.stop()
        primary = SourceStage(self.host, self.name, unit=self.unit, generation=generation, log=self.log)
        return primary, primary.start

    def add(self, call: messages.Entries) -> int | wire.Reply[Any]:
        try:
            with self._lock:
                if self.stopping:
                    return wire.refuse(Refusal.FENCED)
                if call.generation != self.generation:
                    return wire.refuse(Refusal.ELSEWHERE)
                have = len(self.log.entries)
                taken = self._follower.take(call.generation, have, certain=call.certain, after=call.after)
                if taken is None:
                    return wire.refuse(Refusal.FENCED)
                with self.host.changed:
                    self.host.landed.hears(call.landed)
                self.log.truncate(taken.keep)
                if taken.skip is not None and (new := call.entries[taken.skip :]):
                    self.log.append(new)
                self.log.trimmed = Epoch(min(call.certain, len(self.log.entries)) - 1)
                return len(self.log.entries)
        except OSError as error:
            return wire.refuse(Refusal.DISK, f"{error.strerror or error} on {self.host.name}")

    def stop(self) -> None:
        with self._lock:
            self.stopping = True

    def status(self) -> dict[str, Any]:
        return {
            "role": "standby",
            "unit": self.unit,
            "generation": self.generation,
            "armed": True,
            "checkpoint": len(self.log.entries) - 1,
        }
