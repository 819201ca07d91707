"""Checkpoints as files, and the store that keeps them.

Which files a version is made of, ``spark_files`` tells; how they are sent, ``parts``. A store keeps the newest version,
described by a manifest with every file's length and hash; what it does not name is deleted. Every file has a *twin*, a
second copy from which it is mended when it turns out to be damaged.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from understudy.core.numbers import Epoch
from understudy.runtime.parts import (
    About,
    CheckpointDamaged,
    CheckpointPart,
    Known,
    digest,
    inside,
    summed,
    twin_of,
    written,
)
from understudy.runtime.spark_files import Batch, move_in
from understudy.runtime.wire import Message, prepare

ALWAYS_READ_BYTES = 64 << 10
"""Files up to this size are read again before a version is used. Larger ones, tables of state, only if they are not as
they were when this process last read them: all of a large state would take seconds, while everybody waits."""

DISCARD_S = 3.0
"""How long what nobody needs any more lies about before it is deleted."""

SCRUB_BYTES = 16 << 20
"""How much of what a store holds is read again after each version, on average, so that damage is found while the other
twin is whole. More finds it sooner and costs the disk more."""


class Manifest(Message, frozen=True):
    """Which files a version is made of."""

    about: About
    files: dict[str, Known]


class _Signed(Message, frozen=True):
    """A manifest as it is on disk."""

    digest: str
    manifest: msgspec.Raw


prepare(_Signed, Manifest)


def _look(path: Path) -> tuple[int, ...]:
    """What a file looks like without reading it. Changes with everything that is done to its bytes."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


class CheckpointStore:
    """The newest version of one stage's state on this host's disk: ``state/`` is a checkpoint folder that Spark can
    open in place, ``twins/`` has the same files once more, and ``manifests/`` says which belong to which epoch."""

    def __init__(self, folder: Path, *, clear: bool = False) -> None:
        self.folder = folder
        self.state = folder / "state"
        self._twins = folder / "twins"
        self._manifests = folder / "manifests"
        self._incoming = folder / "incoming"
        self._aside = self._incoming / "ahead"
        if clear:
            shutil.rmtree(folder, ignore_errors=True)
        for discarded in folder.glob("discarded-*"):  # by a process that was killed before it got around to deleting
            shutil.rmtree(discarded, ignore_errors=True)
        for path in (self.state, self._twins, self._manifests, self._incoming):
            path.mkdir(parents=True, exist_ok=True)
        newest = self.versions()[-1:]
        try:
            self._files: dict[str, Known] = self._read(newest[0]).files if newest else {}
        except ValueError:
            self._files = {}  # the next delta will not fit, and the sender starts over with a whole version
        self._staged: dict[str, Known] = {}
        """What has come of the version under way."""
        self._ahead: dict[str, Known] = {}
        """What has come of versions after that one, and is kept aside until one of them names it."""
        self._lent: set[str] = set()
        """Files that somebody is reading, of a version that need not be the newest any more."""
        self._seen: dict[Path, tuple[int, ...]] = {}
        """What files looked like when they were read and found whole."""
        self._unscrubbed: list[str] = []
        self._scrubbed_ahead = 0
        """Bytes that were read beyond what was due: files are read whole."""

    def versions(self) -> list[Epoch]:
        """One, or two when the store was left in the middle of a change."""
        return sorted({Epoch(int(p.stem)) for p in self._manifests.iterdir()})

    def version(self) -> tuple[Batch, list[str]] | None:
        """The batch after which the newest version was taken, and the names of its files; None when it has no state of
        a query, or cannot be read."""
        return self.newest() if self.has_state() else None

    def newest(self) -> tuple[Batch, list[str]] | None:
        """The same of a version with any state, or none."""
        try:
            newest = self._read(self.versions()[-1])
            return Batch(newest.about.epoch - newest.about.base), list(newest.files)
        except (LookupError, ValueError):
            return None

    def shared_with(self, folder: Path) -> dict[str, Known]:
        """Those of its files that are the very same as in another checkpoint folder: links, not copies."""
        shared = {}
        for name, known in self._files.items():
            with suppress(OSError):
                if inside(self.state, name).samefile(folder / name):
                    shared[name] = known
        return shared

    def is_changing(self) -> bool:
        """CheckpointPart of the next version has come: its files are beside those of the newest."""
        return bool(self._staged)

    def has_state(self) -> bool:
        """The newest version has state, not only Spark's logs."""
        return any(name.startswith("state/") for name in self._files)

    def has_snapshot(self) -> bool:
        """The newest version has a whole image of some state, not only increments."""
        return any(name.endswith((".zip", ".snapshot")) for name in self._files)

    def paste(self, part: CheckpointPart, body: bytes) -> Epoch | None:
        """Apply one part. Returns the epoch once its last part made the version whole and durable.
        Raises OSError when the disk refuses and CheckpointDamaged when what came is not what was sent."""
        if part.ahead:
            self.came_ahead(self.write_ahead(part, body))
            return None
        if part.first:
            self._staged = {}
        for name, known in written(self._incoming, part, body).items():
            self._put(name, inside(self._incoming, name))
            self._staged[name] = known
        version = part.version
        if version is None:
            return None
        before = {} if version.whole else {k: v for k, v in self._files.items() if k not in version.drop}
        taken = {name: self._ahead[name] for name in version.take if name in self._ahead}
        files = {**before, **self._staged, **taken}
        if summed(files) != version.sum:
            raise CheckpointDamaged("this store lacks files that the version builds on")
        for name in taken:
            self._put(name, inside(self._aside, name))
            del self._ahead[name]
        if version.forgets:
            self._drop_ahead()
        return self._finish(Manifest(version.about, files))

    def write_ahead(self, part: CheckpointPart, body: bytes) -> dict[str, Known]:
        """Write a part of files that come ahead of the version that will name them. Takes long, and touches nothing
        that a version has: nobody need wait for it. Returns what is whole now, for ``came_ahead``."""
        return written(self._aside, part, body)

    def came_ahead(self, whole: dict[str, Known]) -> None:
        self._ahead.update(whole)

    def _drop_ahead(self) -> None:
        self._ahead = {}
        self._discard(self._aside)

    def _discard(self, folder: Path) -> None:
        """Out of the way at once, and deleted a little later: to delete a gigabyte takes the disk half a second, which
        a takeover does not have."""
        discarded = self.folder / f"discarded-{time.time_ns()}"
        with suppress(FileNotFoundError):
            folder.rename(discarded)
            timer = threading.Timer(DISCARD_S, shutil.rmtree, [discarded], {"ignore_errors": True})
            timer.daemon = True
            timer.start()

    def hand_over_ahead(self, heir: CheckpointStore) -> None:
        """What came ahead is another store's from now on, to which its versions will come."""
        if self._ahead:
            self._aside.rename(heir._aside)
            heir._ahead, self._ahead = self._ahead, {}

    def _put(self, name: str, came: Path) -> None:
        """A file that has come, and its twin, go where the version has them."""
        for each, root in ((twin_of(came), self._twins), (came, self.state)):
            place = inside(root, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            each.rename(place)
            self._seen[place] = _look(place)

    def _finish(self, manifest: Manifest) -> Epoch:
        epoch, body = manifest.about.epoch, msgspec.json.encode(manifest)
        text = msgspec.json.encode(_Signed(digest(body), msgspec.Raw(body)))
        temporary = self._incoming / "manifest"
        with open(temporary, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._manifests / f"{epoch}.json")
        (self._manifests / f"{epoch}.twin").write_bytes(text)
        *stale, newest = self.versions()
        dropped = {name for v in stale for name in self._names(v)}
        if newest == epoch:
            self._files = manifest.files
        self._delete(dropped - set(self._files) - self._lent)
        for version in stale:
            self._drop(version)
        self._staged = {}
        return epoch

    def _delete(self, names: set[str]) -> None:
        for name in names:
            for root in (self.state, self._twins):
                inside(root, name).unlink(missing_ok=True)
                self._seen.pop(root / name, None)

    def lend(self) -> None:
        """Somebody reads the files of the version: until ``take_back`` they stay, also when there is a newer one."""
        self._lent = set(self._files)

    def take_back(self) -> None:
        needed = set(self._files) | set(self._staged)  # before what is lent: see ``forget``
        lent, self._lent = self._lent, set()
        self._delete(lent - needed)

    def scrub_next(self) -> list[str]:
        """The files whose turn it is to be read again; all in turn over time."""
        names: list[str] = []
        left = SCRUB_BYTES - self._scrubbed_ahead
        while left > 0:
            if not self._unscrubbed:
                self._unscrubbed = list(self._files)
                if names or not self._unscrubbed:
                    break  # once around is enough
            name = self._unscrubbed.pop()
            if name in self._files:
                left -= 2 * self._files[name][0] + 1
                names.append(name)
        self._scrubbed_ahead = max(0, -left)
        return names

    def rotten(self, names: list[str]) -> list[str]:
        """Read files and their twins again. Returns those that are no longer what they were. Takes long, and changes
        nothing: nobody need wait for it."""
        known = self._files
        pairs = ((name, inside(root, name)) for name in names for root in (self.state, self._twins))
        return [name for name, path in pairs if name in known and self._wrong(name, path, known[name]) is not None]

    def mend(self, names: list[str]) -> list[str]:
        """Mend what has rotted from its twin. Returns what to tell the user about it. Raises CheckpointDamaged when
        both have: the sender has it still, and begins again with a whole version."""
        complaints: list[str] = []
        for name in names:
            if name in self._files:
                complaints += self._mend(name, self.state, self._twins)
                complaints += self._mend(name, self._twins, self.state)
        return complaints

    def restore(self, dispensable: Callable[[str], bool] | None = None) -> tuple[Manifest | None, list[str]]:
        """Make ``state/`` exactly the version. Returns its manifest, None when there is none that can be read, and what
        to tell the user about damage. ``dispensable``: files without which the version is worth having, though less."""
        complaints: list[str] = []
        for version in reversed(self.versions()):
            try:
                manifest = self._read(version)
                self._files = manifest.files
                for name in list(self._files):
                    try:
                        complaints += self._mend(name, self.state, self._twins, trusting=True)
                    except CheckpointDamaged as error:
                        if dispensable is None or not dispensable(name):
                            raise
                        complaints.append(f"{error}; goes on without it")
                        self._files = {other: known for other, known in self._files.items() if other != name}
            except (OSError, ValueError, CheckpointDamaged) as error:
                complaints.append(f"checkpoint of epoch {version} is damaged beyond repair ({error})")
                continue
            for other in self.versions():
                if other != version:
                    self._drop(other)
            self._keep_only(set(self._files))
            return Manifest(manifest.about, self._files), complaints
        self._files = {}
        self._keep_only(set())
        return None, complaints

    def clone(self, target: Path) -> CheckpointStore:
        """The version again in ``target``, as hard links: files here never change, they only come and go."""
        copy = CheckpointStore(target, clear=True)
        versions = self.versions()
        if versions:
            for name in self._files:
                for here, there in ((self.state, copy.state), (self._twins, copy._twins)):
                    source, place = inside(here, name), inside(there, name)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with suppress(FileNotFoundError):  # damage, to be mended by whoever reads the copy
                        os.link(source, place)
            for manifest in self._manifests.glob(f"{versions[-1]}.*"):
                shutil.copy(manifest, copy._manifests)
            copy._files = dict(self._files)
            copy._seen = {copy.folder / p.relative_to(self.folder): look for p, look in list(self._seen.items())}
        return copy

    def forget(self) -> None:
        """The files now belong to a query that is about to run; this store no longer vouches for any version."""
        for version in self.versions():
            self._drop(version)
        self._discard(self._twins)
        self._twins.mkdir(exist_ok=True)
        self._lent = set()  # first: nothing may be taken back from the query, whoever is reading still
        self._files, self._seen = {}, {}
        self._drop_ahead()
        move_in(self.state)

    def _drop(self, version: Epoch) -> None:
        for manifest in self._manifests.glob(f"{version}.*"):
            manifest.unlink()

    def _mend(self, name: str, damaged: Path, whole: Path, *, trusting: bool = False) -> list[str]:
        """Make sure of a file below ``damaged``, if need be with its twin below ``whole``. ``trusting``: a large one
        that this process has read, and that was not touched since, is not read again."""
        here = inside(damaged, name)
        if trusting and self._files[name][0] > ALWAYS_READ_BYTES and self._is_as_seen(here):
            return []
        cause = self._wrong(name, here, self._files[name])
        if cause is None:
            return []
        twin = inside(whole, name)
        if self._wrong(name, twin, self._files[name]) is not None:
            raise CheckpointDamaged(f"{cause}, and its twin is damaged too")
        mended = self._incoming / "mended"
        shutil.copyfile(twin, mended)
        here.parent.mkdir(parents=True, exist_ok=True)
        mended.rename(here)
        return [f"{cause}; mended from its twin"]

    def _wrong(self, name: str, path: Path, known: Known) -> str | None:
        """What is wrong with a file, if anything."""
        try:
            look, data = _look(path), path.read_bytes()
        except OSError as error:
            return f"{name}: {error.strerror or error}"
        if (len(data), digest(data)) != known:
            return f"{name} does not match its hash"
        self._seen[path] = look
        return None

    def _is_as_seen(self, path: Path) -> bool:
        try:
            return path in self._seen and self._seen[path] == _look(path)
        except OSError:
            return False

    def _keep_only(self, names: set[str]) -> None:
        names = names | self._lent
        for folder in (self.state, self._twins):
            for root, _dirs, files in os.walk(folder):
                for file in files:
                    path = Path(root, file)
                    relative = str(path.relative_to(folder))
                    # The running (armed) query has written its own metadata file; it must not lose it.
                    if relative not in names and relative != "metadata":
                        path.unlink()

    def _read(self, version: Epoch) -> Manifest:
        """A manifest, or its twin; raises ValueError when both are damaged."""
        wrong: Exception | None = None
        for kind in ("json", "twin"):
            try:
                text = (self._manifests / f"{version}.{kind}").read_bytes()
                signed = msgspec.json.decode(text, type=_Signed)
                if signed.digest != digest(bytes(signed.manifest)):
                    raise ValueError("it does not match its hash")
                return msgspec.json.decode(signed.manifest, type=Manifest)
            except (OSError, ValueError) as error:
                wrong = wrong or error
        raise ValueError(f"the manifest is damaged: {wrong!r}")

    def _names(self, version: Epoch) -> set[str]:
        try:
            return set(self._read(version).files)
        except ValueError:
            return set()
