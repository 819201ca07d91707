"""Making a host agree with a plan: of every stage it becomes primary, standby or neither, from what is on its disk."""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.flight as flight

from understudy.core import agreement, beginning, keeping
from understudy.core.agreement import Part, Standing
from understudy.core.failover import StageThrew
from understudy.core.plans import UnitPlan
from understudy.core.policies import Policy
from understudy.core.policies.upstream import Row
from understudy.errors import JobError
from understudy.runtime import blame, messages
from understudy.runtime.active import ActiveStandbyStage
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.keeper import Keeper
from understudy.runtime.source import EntryLog, SourceStage, StandbySource
from understudy.runtime.spare import Spare
from understudy.runtime.spark_source import SparkSourceStage
from understudy.runtime.stage import FRESH, RunningStage, position
from understudy.runtime.standby import StandbyStage, restored
from understudy.sources import SparkSource

if TYPE_CHECKING:
    from understudy.runtime.host import Host

STANDBYS = (StandbyStage, ActiveStandbyStage, StandbySource)
PRIMARIES = (RunningStage, SourceStage)


class Overtaken(Exception):
    """A newer plan has come while this one waited for another host."""


class Roles:
    """Changes ``host.stages``, which everybody else only reads."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._lock = threading.Lock()
        """One plan is carried out at a time."""
        self._units: Mapping[str, UnitPlan] = {}
        """The plan that is being carried out; the host may know a newer one."""
        self._holdings: dict[str, keeping.Holdings] = {}
        """Of units that are led from here."""

    def agree(self) -> None:
        """Become what the newest plan says, unit by unit, upstream first."""
        with self._lock:
            with self.host.changed:
                self._units = self.host.directory.units
            for unit, wanted in self._units.items():
                if wanted.primary == self.host.name:
                    self._judge_copies(unit)
                for stage in self.host.topology.units[unit].stages:
                    try:
                        self._agree(unit, stage, wanted)
                    except Overtaken:
                        return  # whoever carries out the newer plan waits for the lock
                    except Exception as error:
                        traceback.print_exc()
                        cause = f"cannot start on {self.host.name}: {error}"
                        self.host.report(StageThrew(unit, wanted.generation, stage, -1, cause, blame.of(error)))
                if wanted.primary == self.host.name:
                    self._protect(unit, wanted)
            self._keep_spares()

    def _keep_spares(self) -> None:
        """Have a spare query of every stage that would be rebuilt here, for the generation that runs."""
        wanted = {
            stage: (unit, self._units[unit].generation)
            for unit in self.host.spares_wanted
            if unit in self._units
            for stage in self.host.topology.units[unit].stages
            if stage not in self.host.stages
        }
        for stage, spare in list(self.host.spares.items()):
            if stage not in wanted or spare.generation != wanted[stage][1]:
                self._end_spare(self.host.spares.pop(stage))
        for stage, (unit, generation) in wanted.items():
            if stage not in self.host.spares:
                folder = self._stage_folder(stage)
                self.host.spares[stage] = Spare(self.host, stage, unit=unit, generation=generation, folder=folder)

    def _living_spare(self, stage: str) -> Spare | None:
        """The spare of a stage that is to begin from nothing, if it is ready; else it is ended."""
        spare = self.host.spares.pop(stage, None)
        if spare is not None and not spare.take():
            self._end_spare(spare)
            spare = None
        return spare

    def _end_spare(self, spare: Spare) -> None:
        """Not here: a query takes its time to end, and a takeover would wait for it."""
        threading.Thread(target=spare.stop, daemon=True).start()

    def _judge_copies(self, unit: str) -> None:
        """Copies that rose are promoted all together or not at all: one stage reads what another has sent."""
        mine = [self.host.stages.get(stage) for stage in self.host.topology.units[unit].stages]
        risen = [stage for stage in mine if isinstance(stage, StandbyStage) and stage.copy is not None]
        for stage in risen:
            stage.close()
        if not all(stage.copy_serves() for stage in risen):
            for stage in risen:
                stage.stand_down()

    def _agree(self, unit: str, stage: str, wanted: UnitPlan) -> None:
        standing = self._standing(self.host.stages.get(stage))
        for order in agreement.orders(self.host.name, standing, wanted, self.host.topology.units[unit].policy):
            self._carry_out(unit, stage, order)

    def _standing(self, mine: Any) -> Standing:
        if isinstance(mine, PRIMARIES):
            return Standing(Part.PRIMARY, mine.generation, over=mine.stopping)
        return Standing() if mine is None else Standing(Part.STANDBY, mine.generation, mine.since)

    def _carry_out(self, unit: str, stage: str, order: agreement.Order) -> None:
        mine: Any = self.host.stages.get(stage)
        match order:
            case agreement.TellFenced(generation):
                self.host.report(messages.Fenced(unit, generation, stage))
            case agreement.Begin(generation, start):
                self._begin(unit, stage, mine, generation, start)
            case agreement.Promote(generation):
                self._promote(unit, stage, mine, generation)
            case agreement.StandBy(generation, since, policy):
                self.discard(stage, mine)
                self._become_standby(unit, stage, generation, since, policy)
            case agreement.Follow(generation):
                mine.follow(generation)
            case agreement.Rise():
                mine.rise()
            case agreement.StandDown():
                mine.stand_down()
            case agreement.Forget():
                self.discard(stage, mine)
                shutil.rmtree(self._stage_folder(stage), ignore_errors=True)
            case _:
                raise TypeError(f"nobody can carry out {order}")

    def _protect(self, unit: str, wanted: UnitPlan) -> None:
        """Bring what protects a unit that is led from here in line with the plan."""
        names = self.host.topology.units[unit].stages
        mine = [self.host.stages.get(name) for name in names]
        stages = [s for s in mine if isinstance(s, PRIMARIES) and s.generation == wanted.generation]
        if len(stages) < len(names):
            return  # one of them could not start, and that has been reported
        charges = keeping.charges(wanted, self.host.topology.units[unit].policy, self.host.name)
        holdings = self._holdings.get(unit)
        if holdings is None or holdings.generation != wanted.generation:
            holdings = keeping.Holdings(self.host.name, unit, wanted.generation, names)
            self._holdings[unit] = holdings
        with self.host.changed:
            holdings.aim({key: at for charge in charges for key, at in charge.standbys.items()})
        kept: list[RunningStage] = []
        for stage in stages:
            if isinstance(stage, SourceStage):
                stage.set_standbys(keeping.standing(wanted), holdings)  # its own log is always written first
            elif isinstance(stage, SparkSourceStage):
                stage.set_standbys(charges[0].standbys, holdings)
            else:
                kept.append(stage)
        if kept:
            self._keep(unit, kept, charges, holdings)
        if wanted.ready:
            for stage in stages:
                stage.standby_is_known()

    def _keep(
        self, unit: str, stages: list[RunningStage], charges: list[keeping.Charge], holdings: keeping.Holdings
    ) -> None:
        """Have one keeper for each policy: those of policies that no longer count end, new ones begin where the stages
        are, and one that can go on does."""
        known = stages[0].keepers
        going = keeping.going_on(known, charges)
        over = [keeper for keeper in known if keeper not in going]
        if over:
            with self.host.changed:
                for stage in stages:
                    stage.keepers = tuple(keeper for keeper in going if keeper is not None)
                for keeper in over:
                    keeper.stop()
            for keeper in over:
                keeper.finish()
        keepers: list[Keeper] = []
        with self.host.changed:
            for goes_on, charge in zip(going, charges, strict=True):
                keepers.append(goes_on or Keeper(self.host, unit, charge.policy, stages, holdings))
                if goes_on is None:
                    keepers[-1].start()
            for stage in stages:
                stage.keepers = tuple(keepers)
        for keeper, charge in zip(keepers, charges, strict=True):
            keeper.agree(charge)
        copies = [key for charge in charges if charge.policy.standby_runs for key in charge.standbys]
        with self.host.changed:
            for stage in stages:
                stage.pace.watch(copies)

    def forget(self) -> None:
        """Stop all that runs, at once, and drop what is held. The plan is empty by now."""
        with self._lock:
            stages, spares = dict(self.host.stages), [self.host.spares.pop(stage) for stage in list(self.host.spares)]
            with ThreadPoolExecutor(max_workers=max(1, len(stages) + len(spares))) as pool:
                ended = [pool.submit(spare.stop) for spare in spares]
                list(pool.map(self.discard, stages, stages.values()))
                for end in ended:
                    end.result()
            self._holdings.clear()
            shutil.rmtree(self.host.folder / "stages", ignore_errors=True)

    def _stage_folder(self, stage: str) -> Path:
        return self.host.folder / "stages" / stage

    def _is_host_source(self, stage: str) -> bool:
        source = self.host.job.stages[stage].source
        return source is not None and not isinstance(source, SparkSource)

    def discard(self, stage: str, mine: Any) -> None:
        if mine is None:
            return
        with self.host.changed:
            self.host.stages.pop(stage, None)
        mine.stop()

    def _become_standby(self, unit: str, stage: str, generation: int, since: int, policy: Policy) -> None:
        folder = self._stage_folder(stage)
        standby: Any
        if self._is_host_source(stage):
            log = EntryLog(folder / "entries.jsonl", clear=True)
            standby = StandbySource(self.host, stage, unit=unit, generation=generation, since=since, log=log)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            kind = ActiveStandbyStage if policy.standby_runs else StandbyStage
            standby = kind(self.host, stage, unit=unit, generation=generation, since=since, folder=folder)
        self._register(stage, standby)

    def _promote(self, unit: str, stage: str, standby: Any, generation: int) -> None:
        """Lead a stage of which this host was a standby."""
        self._tell_becoming(stage, generation, "what it holds as standby")
        self.host.rehearsing.hold()
        copy = standby.take_copy()
        if copy is not None:
            self._register(stage, copy)
            copy.promote(generation)
            print(f"{time.time():.3f} {stage}: primary after epoch {copy.committed}", flush=True)
        elif isinstance(standby, StandbySource):
            standby.stop()
            self._start(stage, SourceStage(self.host, stage, unit=unit, generation=generation, log=standby.log))
        elif isinstance(standby, StandbyStage):
            manifest, ready, state = standby.take_over()
            self._start(stage, self._running(unit, stage, generation, manifest, ready, state), standby)
        else:  # a standby that was to run, and does not: what it was given is on disk
            self._begin_held(unit, stage, generation)

    def _begin(self, unit: str, stage: str, mine: Any, generation: int, start: str) -> None:
        """Lead a stage of which this host was nothing that counts."""
        self._tell_becoming(stage, generation, start)
        if stage in self.host.spares:
            self.host.rehearsing.hold()
        self.discard(stage, mine)
        if self._is_host_source(stage):
            log = EntryLog(self._stage_folder(stage) / "entries.jsonl", clear=start != "held")
            self._start(stage, SourceStage(self.host, stage, unit=unit, generation=generation, log=log))
        elif start == "held":
            self._begin_held(unit, stage, generation)
        else:
            self._begin_anew(unit, stage, generation, start)

    def _begin_anew(self, unit: str, stage: str, generation: int, start: str) -> None:
        """Without state. Where it begins is asked first: that may take long, and end in a newer plan; what is held must
        still be there then."""
        where: dict[str, Any] = {**FRESH}
        if start in ("newest", "replay"):
            found = self._begin_at(unit, stage, generation, newest=start == "newest")
            base = found.epoch
            if not found.promised:
                self.host.report(messages.Gone(unit, generation, stage, base - 1))
                return
            where = {"start_epoch": base - 1, "base": base, "gap": base if found.lost else 0, "row": found.row}
        spare = self._living_spare(stage)
        folder = self._stage_folder(stage)
        for other in folder.iterdir() if folder.is_dir() else []:
            if spare is None or other != spare.folder:
                shutil.rmtree(other, ignore_errors=True)
        state = _fresh(folder) if spare is None else spare.state
        running = self._kind(stage)(
            self.host, stage, unit=unit, generation=generation, folder=folder, state=state,
            ready=spare and spare.ready, **where,
        )  # fmt: skip
        self._start(stage, running, spare)

    def _begin_held(self, unit: str, stage: str, generation: int) -> None:
        """From the newest checkpoint in this host's folder, if there is one."""
        spare = self.host.spares.pop(stage, None)
        if spare is not None:
            self._end_spare(spare)
        manifest, state = self._held(unit, stage)
        self._start(stage, self._running(unit, stage, generation, manifest, None, state))

    def _running(
        self, unit: str, stage: str, generation: int, manifest: dict[str, Any] | None, ready: Any, state: Path
    ) -> RunningStage:
        where = FRESH if manifest is None else position(manifest)
        folder = self._stage_folder(stage)
        return self._kind(stage)(
            self.host, stage, unit=unit, generation=generation, folder=folder, state=state, ready=ready, **where
        )

    def _kind(self, stage: str) -> type[RunningStage]:
        return SparkSourceStage if self.host.job.stages[stage].source is not None else RunningStage

    def _start(self, stage: str, primary: Any, before: Any = None) -> None:
        """``before``: who has made ready what the new primary runs, and may let go of it now."""
        self._register(stage, primary)
        if before is not None:
            before.release()
        primary.start()
        print(f"{time.time():.3f} {stage}: primary after epoch {primary.start_epoch}", flush=True)

    def _register(self, stage: str, mine: Any) -> None:
        with self.host.changed:
            self.host.stages[stage] = mine
            self.host.changed.notify_all()

    def _tell_becoming(self, stage: str, generation: int, start: str) -> None:
        print(f"{time.time():.3f} {stage}: becoming primary of generation {generation} from {start}", flush=True)

    def _held(self, unit: str, stage: str) -> tuple[dict[str, Any] | None, Path]:
        """The manifest of the newest checkpoint in this host's folder, and the folder to go on in."""
        folder, store = self._stage_folder(stage), self._newest_store(stage)
        if store is None:
            return None, _fresh(folder)
        manifest, _ = restored(self.host, stage, unit, store)
        self._check_schema(stage, manifest)
        target = folder / f"held-{time.time_ns()}"
        store.folder.rename(target)
        store = CheckpointStore(target)
        for other in folder.iterdir():
            if other != target:
                shutil.rmtree(other, ignore_errors=True)
        store.clone(folder / "self")
        store.forget()
        return manifest, store.state

    def _check_schema(self, stage: str, manifest: dict[str, Any] | None) -> None:
        if manifest is None:
            return
        now = self.host.kind(stage).schema(stage)
        if now != manifest["schema"]:
            raise JobError(
                f"the schema of stage {stage!r} has changed from {manifest['schema']} to {now} since its "
                "checkpoint; restore the old columns, rename the stage, or start over with --fresh"
            )

    def _newest_store(self, stage: str) -> CheckpointStore | None:
        folder = self._stage_folder(stage)
        stores = [CheckpointStore(p) for p in folder.iterdir() if (p / "manifests").is_dir()] if folder.is_dir() else []
        stores = [s for s in stores if s.versions()]
        return max(stores, key=lambda s: s.versions()[-1], default=None)

    def holds(self) -> dict[str, int]:
        """Stage -> newest epoch of a whole checkpoint (or entry log) in this host's folder."""
        root = self.host.folder / "stages"
        holds: dict[str, int] = {}
        for folder in root.iterdir() if root.is_dir() else []:
            if (folder / "entries.jsonl").exists():
                with open(folder / "entries.jsonl", "rb") as file:
                    holds[folder.name] = sum(1 for line in file if line.endswith(b"\n")) - 1
            else:
                store = self._newest_store(folder.name)
                if store is not None:
                    holds[folder.name] = store.versions()[-1]
        return holds

    def _begin_at(self, unit: str, stage: str, generation: int, *, newest: bool) -> beginning.Start:
        """Where a stage without state begins. Asks every producer until it answers."""
        places = []
        for stream in self.host.job.stages[stage].inputs:
            call = messages.Position(stream, stage, self.host.name, unit, generation, newest)
            while True:
                producer = self.host.directory.primary_of(stream)
                try:
                    if producer is not None:
                        reply = self.host.peer(producer).call(call, timeout_s=5)
                        if not reply.refused:
                            break
                except flight.FlightError:
                    pass
                if self.host.directory.units is not self._units:
                    raise Overtaken  # perhaps the producer is to run here now, and cannot before this ends
                time.sleep(0.05)
            place = reply.answer
            above = None if place.row_hosts is None else Row(frozenset(place.row_hosts), place.row_k)
            places.append(beginning.Place(place.epoch, place.lost, above))
        tolerates = self.host.topology.units[unit].policy.tolerates
        return beginning.start(places, self.host.directory.lost_with.get(unit), tolerates, newest=newest)


def _fresh(folder: Path) -> Path:
    """A checkpoint folder of its own for every start: a stopped query's state store may still write to the one it
    had."""
    return folder / f"state-{time.time_ns()}"
