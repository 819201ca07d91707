"""Making a host agree with a plan: of every stage it becomes primary, standby or neither, from what is on its disk."""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.flight as flight

from understudy.core.policies import Policy, parse
from understudy.core.policies.base import standby_key
from understudy.core.policies.upstream import Row
from understudy.errors import JobError
from understudy.runtime import blame
from understudy.runtime.active import ActiveStandbyStage
from understudy.runtime.armed import Spare
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.keeper import Keeper
from understudy.runtime.source import EntryLog, SourceStage, StandbySource
from understudy.runtime.spark_source import SparkSourceStage
from understudy.runtime.stage import RunningStage, position
from understudy.runtime.standby import StandbyStage, restored
from understudy.sources import SparkSource

if TYPE_CHECKING:
    from understudy.runtime.host import Host

STANDBYS = (StandbyStage, ActiveStandbyStage, StandbySource)
PRIMARIES = (RunningStage, SourceStage)


Standing = list[tuple[str, int]]
"""Standbys, each with since when."""


def _standing(some: dict[str, Any]) -> Standing:
    return list(zip(some["standbys"], some["since"], strict=True))


class Overtaken(Exception):
    """A newer plan has come while this one waited for another host."""


class Roles:
    """Changes ``host.stages``, which everybody else only reads."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._lock = threading.Lock()
        """One plan is carried out at a time."""
        self._plan: dict[str, Any] = {}
        """The one that is being carried out; the host may know a newer one."""

    def agree(self) -> None:
        """Become what the newest plan says, unit by unit, upstream first."""
        with self._lock:
            with self.host.changed:
                self._plan = self.host.plan
            for unit, wanted in self._plan.items():
                if wanted["primary"] == self.host.name:
                    self._judge_copies(unit)
                for stage in self.host.topology.units[unit].stages:
                    try:
                        self._agree(unit, stage, wanted)
                    except Overtaken:
                        return  # whoever carries out the newer plan waits for the lock
                    except Exception as error:
                        traceback.print_exc()
                        self.host.report(
                            "threw",
                            stage=stage,
                            unit=unit,
                            generation=wanted["generation"],
                            epoch=-1,
                            cause=f"cannot start on {self.host.name}: {error}",
                            whose=blame.of(error),
                        )
                if wanted["primary"] == self.host.name:
                    self._protect(unit, wanted)
            self._keep_spares()

    def _keep_spares(self) -> None:
        """Have a spare query of every stage that would be rebuilt here, for the generation that runs."""
        wanted = {
            stage: (unit, self._plan[unit]["generation"])
            for unit in self.host.spares_wanted
            if unit in self._plan
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

    def _spare_of(self, stage: str, start: str) -> Spare | None:
        """The spare of a stage that is to begin from nothing, if its query lives; any other is ended."""
        spare = self.host.spares.pop(stage, None)
        if spare is not None and (start == "held" or not spare.take()):
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

    def _agree(self, unit: str, stage: str, wanted: dict[str, Any]) -> None:
        mine = self.host.stages.get(stage)
        generation = wanted["generation"]
        if isinstance(mine, PRIMARIES) and mine.generation < generation and not mine.stopping:
            self.host.report("fenced", stage=stage, unit=unit, generation=mine.generation)
        if wanted["primary"] == self.host.name:
            if not isinstance(mine, PRIMARIES) or mine.generation < generation:
                self._become_primary(unit, stage, mine, generation, wanted["start"])
        elif (role := self._standby_role(unit, wanted)) is not None:
            since, policy = role
            keeps = isinstance(mine, STANDBYS) and mine.since == since
            if keeps and mine.generation < generation:
                mine.follow(generation)
            if not keeps and wanted["primary"] is not None:
                self.discard(stage, mine)
                self._become_standby(unit, stage, generation, since, policy)
            elif isinstance(mine, StandbyStage):
                rises = wanted["rising"] and wanted["ready"][:1] == [self.host.name]
                mine.rise() if rises else mine.stand_down()
        elif mine is not None:
            self.discard(stage, mine)
            shutil.rmtree(self._stage_folder(stage), ignore_errors=True)

    def _protect(self, unit: str, wanted: dict[str, Any]) -> None:
        """Bring what protects a unit that is led from here in line with the plan."""
        names = self.host.topology.units[unit].stages
        mine = [self.host.stages.get(name) for name in names]
        stages = [s for s in mine if isinstance(s, PRIMARIES) and s.generation == wanted["generation"]]
        if len(stages) < len(names):
            return  # one of them could not start, and that has been reported
        # Until the coordinator knows of a standby's version, this host's own disk is what to go back to.
        own = [(self.host.name, -1)]
        standbys = _standing(wanted) + ([] if wanted["ready"] else own)
        kept: list[RunningStage] = []
        for stage in stages:
            if isinstance(stage, SourceStage):
                stage.set_standbys(_standing(wanted))  # its own log is always written first
            elif isinstance(stage, SparkSourceStage):
                stage.set_standbys(standbys)
            else:
                kept.append(stage)
        if kept:
            turn = wanted["turn"]
            wants = [(self.host.topology.units[unit].policy, standbys, None)]
            if turn is not None:
                wants.append((parse(turn["policy"]), _standing(turn) or own, turn["serial"]))
            self._keep(unit, kept, wants)
        if wanted["ready"]:
            for stage in stages:
                stage.standby_is_known()

    def _keep(self, unit: str, stages: list[RunningStage], wants: list[tuple[Policy, Standing, int | None]]) -> None:
        """Have one keeper for each policy: those of policies that no longer count end, new ones begin where the stages
        are, and one that can go on does."""
        known = stages[0].keepers
        going = {policy: k for policy, *_ in wants for k in known if k.serves(policy)}
        over = [k for k in known if k not in going.values()]
        if over:
            with self.host.changed:
                for stage in stages:
                    stage.keepers = tuple(going.values())
                for keeper in over:
                    keeper.stop()
            for keeper in over:
                keeper.finish()
        with self.host.changed:
            for policy, *_ in wants:
                if policy not in going:
                    going[policy] = Keeper(self.host, unit, policy, stages)
                    going[policy].start()
            for stage in stages:
                stage.keepers = tuple(going[policy] for policy, *_ in wants)
        for policy, standbys, turn in wants:
            going[policy].agree(policy, standbys, turn)
        running = (standbys for policy, standbys, _ in wants if policy.standby_runs)
        copies = [standby_key(host, since) for standbys in running for host, since in standbys]
        with self.host.changed:
            for stage in stages:
                stage.pace.watch(copies)

    def _standby_role(self, unit: str, wanted: dict[str, Any]) -> tuple[int, Policy] | None:
        """Since when this host is a standby of the unit, and under which policy; None when it is not."""
        turn = wanted["turn"]
        for some, policy in ((wanted, None), (turn, turn and turn["policy"])):
            if some is not None and self.host.name in some["standbys"]:
                since = some["since"][some["standbys"].index(self.host.name)]
                return since, self.host.topology.units[unit].policy if policy is None else parse(policy)
        return None

    def forget(self) -> None:
        """Stop all that runs, at once, and drop what is held. The plan is empty by now."""
        with self._lock:
            stages, spares = dict(self.host.stages), [self.host.spares.pop(stage) for stage in list(self.host.spares)]
            with ThreadPoolExecutor(max_workers=max(1, len(stages) + len(spares))) as pool:
                ended = [pool.submit(spare.stop) for spare in spares]
                list(pool.map(self.discard, stages, stages.values()))
                for end in ended:
                    end.result()
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
        with self.host.changed:
            self.host.stages[stage] = standby
            self.host.changed.notify_all()

    def _become_primary(self, unit: str, stage: str, mine: Any, generation: int, start: str) -> None:
        folder = self._stage_folder(stage)
        print(f"{time.time():.3f} {stage}: becoming primary of generation {generation} from {start}", flush=True)
        if isinstance(mine, STANDBYS) or stage in self.host.spares:
            self.host.rehearsing.hold()
        if isinstance(mine, PRIMARIES) or start != "held":
            # Fenced by its own next generation; or it was being made a standby, and does not count as one yet.
            self.discard(stage, mine)
            mine = None
        if isinstance(mine, (ActiveStandbyStage, StandbyStage)):
            copy = mine.take_copy()
            if copy is not None:
                with self.host.changed:
                    self.host.stages[stage] = copy
                    self.host.changed.notify_all()
                copy.promote(generation)
                print(f"{time.time():.3f} {stage}: primary after epoch {copy.committed}", flush=True)
                return
        if isinstance(mine, ActiveStandbyStage):
            mine = None
        primary: Any
        if self._is_host_source(stage):
            if mine is not None:
                mine.stop()
                log = mine.log
            else:
                log = EntryLog(folder / "entries.jsonl", clear=start != "held")
            primary = SourceStage(self.host, stage, unit=unit, generation=generation, log=log)
        else:
            where: dict[str, Any] = {"start_epoch": -1, "base": 0}
            if start in ("newest", "replay"):
                # First: it may take long, and end in a newer plan; what is held must still be there then.
                base, gap, row = self._begin_at(unit, stage, generation, "next" if start == "newest" else "oldest")
                where = {"start_epoch": base - 1, "base": base, "gap": base if gap else 0}
                if start == "replay" and not gap:
                    where["row"] = row
                    if not row.promised:
                        about = {"unit": unit, "generation": generation, "epoch": base - 1, "stream": None}
                        self.host.report("gone", stage=stage, **about)
                        return
            spare = self._spare_of(stage, start)
            manifest, query, state = self._held(unit, stage, mine, folder, start, spare)
            if manifest is not None:
                where = dict(position(manifest))
            mine = mine or spare
            kind = SparkSourceStage if self.host.job.stages[stage].source is not None else RunningStage
            primary = kind(
                self.host,
                stage,
                unit=unit,
                generation=generation,
                folder=folder,
                state=state,
                query=query,
                **where,
            )
        with self.host.changed:
            self.host.stages[stage] = primary
            self.host.changed.notify_all()
        if mine is not None and not self._is_host_source(stage):
            mine.release()
        primary.start()
        print(f"{time.time():.3f} {stage}: primary after epoch {primary.start_epoch}", flush=True)

    def _held(
        self, unit: str, stage: str, mine: Any, folder: Path, start: str, spare: Spare | None
    ) -> tuple[dict[str, Any] | None, Any, Path]:
        """What the new primary starts from: (manifest, armed query, checkpoint folder)."""
        if isinstance(mine, StandbyStage):
            return mine.take_over()
        # A folder of its own for every start: a stopped query's state store may still write to the one it had.
        fresh = folder / f"state-{time.time_ns()}"
        if start != "held":
            for other in folder.iterdir() if folder.is_dir() else []:
                if spare is None or other != spare.folder:
                    shutil.rmtree(other, ignore_errors=True)
            return None, spare and spare.query, fresh if spare is None else spare.state
        store = self._newest_store(stage)
        if store is None:
            return None, None, fresh
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
        return manifest, None, store.state

    def _check_schema(self, stage: str, manifest: dict[str, Any] | None) -> None:
        if manifest is None:
            return
        now = self.host.wait_for_plans().schema(stage).simpleString()
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

    def holds(self) -> dict[str, dict[str, int]]:
        """Stage -> newest epoch of a whole checkpoint (or entry log) in this host's folder."""
        root = self.host.folder / "stages"
        holds: dict[str, Any] = {}
        for folder in root.iterdir() if root.is_dir() else []:
            if (folder / "entries.jsonl").exists():
                with open(folder / "entries.jsonl", "rb") as file:
                    holds[folder.name] = sum(1 for line in file if line.endswith(b"\n")) - 1
            else:
                store = self._newest_store(folder.name)
                if store is not None:
                    holds[folder.name] = store.versions()[-1]
        return holds

    def _begin_at(self, unit: str, stage: str, generation: int, where: str) -> tuple[int, bool, Row]:
        """Where a stage without state begins: at the ``next`` epoch that it was not given before (no protection), or at
        the ``oldest`` that its producers have kept for it (replay). And whether what was before that is lost for good,
        not only no longer needed: here, or above, where a producer was without protection. And who is being rebuilt
        above it, so that it may lack what this one needs."""
        firsts: list[tuple[int, bool]] = []
        row = Row(frozenset([self.host.lost_with.get(unit)]), max(1, self.host.topology.units[unit].policy.tolerates))
        for stream in self.host.job.stages[stage].inputs:
            header = {
                "stream": stream, "consumer": stage, "unit": unit, "generation": generation, "host": self.host.name
            }  # fmt: skip
            while True:
                producer = self.host.primary_of_stream(stream)
                try:
                    if producer is not None:
                        reply = self.host.peer(producer).call("position", header, timeout_s=5)
                        if not reply.refused:
                            first = reply.header[where]
                            firsts.append((first, where == "next" or first <= reply.header["gap"]))
                            if "hosts" in reply.header:
                                row = row.joined_by(Row(frozenset(reply.header["hosts"]), reply.header["k"]))
                            break
                except flight.FlightError:
                    pass
                if self.host.plan is not self._plan:
                    raise Overtaken  # perhaps the producer is to run here now, and cannot before this ends
                time.sleep(0.05)
        return *max(firsts), row
