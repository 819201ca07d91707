"""Making a host agree with a plan: of every stage it becomes primary, standby or neither, from what is on its disk."""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.flight as flight

from understudy.core import agreement, beginning, keeping
from understudy.core.agreement import Standing
from understudy.core.failover import StageThrew
from understudy.core.numbers import FIRST_EPOCH, NO_EPOCH, Epoch, Generation, before
from understudy.core.plans import UnitPlan
from understudy.core.policies import Policy
from understudy.core.policies.upstream import Row
from understudy.core.reach import numbered
from understudy.core.row_counts import Counted, Missed
from understudy.errors import JobError
from understudy.runtime import blame, messages
from understudy.runtime.active import ActiveStandbyStage
from understudy.runtime.checkpoints import CheckpointStore
from understudy.runtime.keeper import Keeper
from understudy.runtime.parts import About
from understudy.runtime.role import Primary, Role, Standby
from understudy.runtime.source import EntryLog, SourceStage, StandbySource
from understudy.runtime.spare import Spare
from understudy.runtime.stage import FRESH, RunningStage, position
from understudy.runtime.standby import StandbyStage, restored
from understudy.sources import SparkSource

if TYPE_CHECKING:
    from understudy.runtime.host import Host

AGREEING = 1000
"""How many units become what a plan says at once: all. One may wait for another, which must not wait for a thread."""


class Overtaken(Exception):
    """A newer plan has come while this one waited for another host."""


class Member:
    """A unit, as far as this host has to do with it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """One plan is carried out at a time."""
        self.holdings: keeping.Holdings | None = None
        """Where the unit is led from here."""


class Roles:
    """Changes ``host.stages``, which everybody else only reads. Every unit becomes what the plan says by itself: one
    that waits, for another host or for a query to end, holds up no other."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._members: dict[str, Member] = {}
        self._sparing = threading.Lock()
        """Held by whoever changes ``host.spares``."""
        self._agreeing = ThreadPoolExecutor(AGREEING, thread_name_prefix="agree")

    def agree(self) -> None:
        """Begin to become what the newest plan says."""
        with self.host.changed:
            units = list(self.host.directory.units)
            for unit in units:
                self._members.setdefault(unit, Member())
        for unit in units:
            self._agreeing.submit(self._agree_unit, unit)

    def _agree_unit(self, unit: str) -> None:
        """Become what the newest plan says of a unit: one that has come since is carried out already here."""
        with self._members[unit].lock:
            plan = self.host.directory.units
            wanted = plan.get(unit)
            if wanted is None:
                return  # the job is being forgotten
            if wanted.primary == self.host.name:
                self._judge_copies(unit)
            for stage in self.host.topology.units[unit].stages:
                try:
                    self._agree(unit, stage, wanted, plan)
                except Overtaken:
                    return  # whoever carries out the newer plan waits for the lock
                except Exception as error:
                    traceback.print_exc()
                    cause = f"cannot start on {self.host.name}: {error}"
                    self.host.report(StageThrew(unit, wanted.generation, stage, NO_EPOCH, cause, blame.of(error)))
            try:
                if wanted.primary == self.host.name:
                    self._protect(unit, wanted)
                self._keep_spares()
            except Exception:
                traceback.print_exc()

    def _keep_spares(self) -> None:
        """Have a spare query of every stage that would be rebuilt here, for the generation that runs."""
        with self._sparing:
            units = self.host.directory.units
            wanted = {
                stage: (unit, units[unit].generation)
                for unit in self.host.spares_wanted
                if unit in units
                for stage in self.host.topology.units[unit].stages
                if stage not in self.host.stages
            }
            for stage, spare in list(self.host.spares.items()):
                if stage not in wanted or spare.generation != wanted[stage][1]:
                    self._end_spare(self.host.spares.pop(stage))
            for stage, (unit, generation) in wanted.items():
                if stage not in self.host.spares:
                    folder = self.host.stage_folder(stage)
                    self.host.spares[stage] = Spare(self.host, stage, unit=unit, generation=generation, folder=folder)

    def _living_spare(self, stage: str) -> Spare | None:
        """The spare of a stage that is to begin from nothing, if it is ready; else it is ended."""
        with self._sparing:
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
        standbys = [s for stage in self.host.topology.units[unit].stages if (s := self.host.standby(stage)) is not None]
        judged = [(standby, standby.risen_serves()) for standby in standbys]
        risen = [(standby, serves) for standby, serves in judged if serves is not None]
        if not all(serves for _, serves in risen):
            for standby, _ in risen:
                standby.stand_down()

    def _agree(self, unit: str, stage: str, wanted: UnitPlan, plan: Mapping[str, UnitPlan]) -> None:
        mine = self.host.stages.get(stage)
        standing = Standing() if mine is None else mine.standing()
        for order in agreement.orders(self.host.name, standing, wanted, self.host.topology.units[unit].policy):
            self._carry_out(unit, stage, order, plan)

    def _carry_out(self, unit: str, stage: str, order: agreement.Order, plan: Mapping[str, UnitPlan]) -> None:
        match order:
            case agreement.TellFenced(generation):
                self.host.report(messages.Fenced(unit, generation, stage))
            case agreement.Begin(generation, start):
                self._begin(unit, stage, generation, start, plan)
            case agreement.Promote(generation, saved):
                self._promote(unit, stage, generation, plan, saved=saved)
            case agreement.StandBy(generation, since, policy):
                self.discard(stage)
                self._become_standby(unit, stage, generation, since, policy)
            case agreement.Follow(generation):
                self._as_standby(stage).follow(generation)
            case agreement.Rise():
                self._as_standby(stage).rise()
            case agreement.StandDown():
                self._as_standby(stage).stand_down()
            case agreement.Forget():
                self.discard(stage)
                shutil.rmtree(self.host.stage_folder(stage), ignore_errors=True)
            case _:
                raise TypeError(f"nobody can carry out {order}")

    def _as_standby(self, stage: str) -> Standby:
        found = self.host.standby(stage)
        if found is None:
            raise agreement.IllegalMove(f"{self.host.name} is no standby of {stage}")
        return found

    def _protect(self, unit: str, wanted: UnitPlan) -> None:
        """Bring what protects a unit that is led from here in line with the plan."""
        names = self.host.topology.units[unit].stages
        stages = [p for n in names if (p := self.host.primary(n)) is not None and p.generation == wanted.generation]
        if len(stages) < len(names):
            return  # one of them could not start, and that has been reported
        charges = keeping.charges(wanted, self.host.topology.units[unit].policy, self.host.name)
        member = self._members[unit]
        holdings = member.holdings
        if holdings is None or holdings.generation != wanted.generation:
            holdings = member.holdings = keeping.Holdings(self.host.name, unit, wanted.generation, names)
        with self.host.changed:
            holdings.aim({key: at for charge in charges for key, at in charge.standbys.items()})
        kept = [k for stage in stages if (k := stage.protect(wanted, charges, holdings)) is not None]
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
        copies = [key for charge in charges if charge.policy.standby_runs for key in charge.standbys]
        with self.host.changed:  # all at once: a keeper without standbys would let be acknowledged what nobody holds
            for goes_on, charge in zip(going, charges, strict=True):
                keepers.append(goes_on or Keeper(self.host, unit, charge.policy, stages, holdings))
                keepers[-1].agree(charge)
                if goes_on is None:
                    keepers[-1].start()
            for stage in stages:
                stage.keepers = tuple(keepers)
                stage.pace.watch(copies)

    def forget(self) -> None:
        """Stop all that runs, at once, and drop what is held. The plan is empty by now."""
        with ExitStack() as held:
            for member in self._members.values():
                held.enter_context(member.lock)
            with self._sparing:
                spares = [self.host.spares.pop(stage) for stage in list(self.host.spares)]
            stages = list(self.host.stages)
            with ThreadPoolExecutor(max_workers=max(1, len(stages) + len(spares))) as pool:
                ended = [pool.submit(spare.stop) for spare in spares]
                ended += [pool.submit(self.discard, stage) for stage in stages]
            for end in ended:
                end.result()
            for member in self._members.values():
                member.holdings = None
            shutil.rmtree(self.host.folder / "stages", ignore_errors=True)

    def _is_host_source(self, stage: str) -> bool:
        source = self.host.job.stages[stage].source
        return source is not None and not isinstance(source, SparkSource)

    def discard(self, stage: str) -> None:
        """Be nothing of a stage any more."""
        with self.host.changed:
            mine = self.host.stages.pop(stage, None)
        if mine is not None:
            mine.stop()

    def _become_standby(self, unit: str, stage: str, generation: Generation, since: int, policy: Policy) -> None:
        folder = self.host.stage_folder(stage)
        standby: Standby
        if self._is_host_source(stage):
            log = EntryLog(folder / "entries.jsonl", clear=True)
            standby = StandbySource(self.host, stage, unit=unit, generation=generation, since=since, log=log)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            kind = ActiveStandbyStage if policy.standby_runs else StandbyStage
            standby = kind(self.host, stage, unit=unit, generation=generation, since=since, folder=folder)
        self._register(stage, standby)

    def _promote(
        self, unit: str, stage: str, generation: Generation, plan: Mapping[str, UnitPlan], *, saved: bool
    ) -> None:
        """Lead a stage of which this host was a standby."""
        self._tell_becoming(stage, generation, "what it holds as standby")
        self.host.rehearsing.hold()
        found = self._go_on_at(unit, stage, generation, plan) if saved else None
        succession = self._as_standby(stage).succeed(generation, found)
        if succession is None:  # a standby that was to run, and does not: what it was given is on disk
            self._begin_held(unit, stage, generation)
        else:
            self._start(stage, *succession)

    def _begin(self, unit: str, stage: str, generation: Generation, start: str, plan: Mapping[str, UnitPlan]) -> None:
        """Lead a stage of which this host was nothing that counts."""
        self._tell_becoming(stage, generation, start)
        if stage in self.host.spares:
            self.host.rehearsing.hold()
        found = self._go_on_at(unit, stage, generation, plan) if start == "saved" else None
        self.discard(stage)
        if self._is_host_source(stage):
            log = EntryLog(self.host.stage_folder(stage) / "entries.jsonl", clear=start != "held")
            primary = SourceStage(self.host, stage, unit=unit, generation=generation, log=log)
            self._start(stage, primary, primary.start)
        elif start in ("held", "saved"):
            self._begin_held(unit, stage, generation, found)
        else:
            self._begin_anew(unit, stage, generation, start, plan)

    def _begin_anew(
        self, unit: str, stage: str, generation: Generation, start: str, plan: Mapping[str, UnitPlan]
    ) -> None:
        """Without state. Where it begins is asked first: that may take long, and end in a newer plan; what is held must
        still be there then."""
        where, row = FRESH, None
        if start in ("newest", "replay"):
            found = self._begin_at(unit, stage, generation, plan, newest=start == "newest")
            base, row = found.epoch, found.row
            if not found.promised:
                self.host.report(messages.Gone(unit, generation, stage, before(base)))
                return
            missed = Missed()
            if (operator := self.host.job.stages[stage].operator) is not None and operator.pairs:
                base, missed = self._numbered(stage, base, newest=start == "newest")
                if base < found.epoch:
                    self.host.report(messages.Gone(unit, generation, stage, before(found.epoch)))
                    return
            where = {**FRESH, "start_epoch": before(base), "base": base, "missed": missed}
            where["gap"] = base if found.lost else FIRST_EPOCH
        spare = self._living_spare(stage)
        folder = self.host.stage_folder(stage)
        for other in folder.iterdir() if folder.is_dir() else []:
            if spare is None or other != spare.folder:
                shutil.rmtree(other, ignore_errors=True)
        state = _fresh(folder) if spare is None else spare.state
        ready = spare and spare.ready
        primary = self.host.lead(
            stage, unit=unit, generation=generation, state=state, ready=ready, where=where, row=row
        )

        with self.host.changed:
            self.host.landed.skip(primary.output.queue)

        def begin() -> None:
            if spare is not None:
                spare.release()
            primary.start()

        self._start(stage, primary, begin)

    def _numbered(self, stage: str, begin: Epoch, *, newest: bool) -> tuple[Epoch, Missed]:
        """Where a barrier begins without state, and how many rows of each input have come before."""
        inputs = self.host.job.stages[stage].inputs
        with self.host.changed:
            epoch, totals = numbered(self.host.landed.known, stage, len(inputs))
        if newest:  # what waited is lost; numbers only grow, so that those that somebody was told before do not count
            epoch, totals = begin, (max(totals),) * len(inputs)
        return epoch, Missed(max(1, epoch), dict(zip(inputs, totals, strict=True)))

    def _begin_held(self, unit: str, stage: str, generation: Generation, found: beginning.Start | None = None) -> None:
        """From the newest checkpoint in this host's folder, if there is one. ``found``: see ``Standby.succeed``."""
        with self._sparing:
            spare = self.host.spares.pop(stage, None)
        if spare is not None:
            self._end_spare(spare)
        about, state = self._held(unit, stage)
        where = position(about, found)
        primary = self.host.lead(stage, unit=unit, generation=generation, state=state, where=where)
        self._start(stage, primary, primary.start)

    def _start(self, stage: str, primary: Primary, begin: Callable[[], None]) -> None:
        self._register(stage, primary)
        begin()
        print(f"{time.time():.3f} {stage}: primary after epoch {primary.start_epoch}", flush=True)

    def _register(self, stage: str, mine: Role) -> None:
        with self.host.changed:
            self.host.stages[stage] = mine
            self.host.changed.notify_all()

    def _tell_becoming(self, stage: str, generation: Generation, start: str) -> None:
        print(f"{time.time():.3f} {stage}: becoming primary of generation {generation} from {start}", flush=True)

    def _held(self, unit: str, stage: str) -> tuple[About | None, Path]:
        """What is known of the newest checkpoint in this host's folder, and the folder to go on in."""
        folder, store = self.host.stage_folder(stage), self._newest_store(stage)
        if store is None:
            return None, _fresh(folder)
        about, _ = restored(self.host, stage, unit, store)
        self._check_schema(stage, about)
        target = folder / f"held-{time.time_ns()}"
        store.folder.rename(target)
        store = CheckpointStore(target)
        for other in folder.iterdir():
            if other != target:
                shutil.rmtree(other, ignore_errors=True)
        store.clone(folder / "self")
        store.forget()
        return about, store.state

    def _check_schema(self, stage: str, about: About | None) -> None:
        if about is None:
            return
        now = self.host.kind(stage).schema(stage)
        if now != about.schema:
            raise JobError(
                f"the schema of stage {stage!r} has changed from {about.schema} to {now} since its "
                "checkpoint; restore the old columns, rename the stage, or start over with --fresh"
            )

    def _newest_store(self, stage: str) -> CheckpointStore | None:
        folder = self.host.stage_folder(stage)
        stores = [CheckpointStore(p) for p in folder.iterdir() if (p / "manifests").is_dir()] if folder.is_dir() else []
        stores = [s for s in stores if s.versions()]
        return max(stores, key=lambda s: s.versions()[-1], default=None)

    def holds(self) -> dict[str, Epoch]:
        """Stage -> newest epoch of a whole checkpoint (or entry log) in this host's folder."""
        root = self.host.folder / "stages"
        holds: dict[str, Epoch] = {}
        for folder in root.iterdir() if root.is_dir() else []:
            if (folder / "entries.jsonl").exists():
                with open(folder / "entries.jsonl", "rb") as file:
                    holds[folder.name] = Epoch(sum(1 for line in file if line.endswith(b"\n")) - 1)
            else:
                store = self._newest_store(folder.name)
                if store is not None:
                    holds[folder.name] = store.versions()[-1]
        return holds

    def _go_on_at(
        self, unit: str, stage: str, generation: Generation, plan: Mapping[str, UnitPlan]
    ) -> beginning.Start | None:
        """What producers still have for a stage whose state is from some while ago; None where they have all of it."""
        if self.host.topology.stages[stage].needs_all_input:
            return None
        return self._begin_at(unit, stage, generation, plan, newest=False, counted=True)

    def _begin_at(
        self,
        unit: str,
        stage: str,
        generation: Generation,
        plan: Mapping[str, UnitPlan],
        *,
        newest: bool,
        counted: bool = False,
    ) -> beginning.Start:
        """Where a stage without state begins. Asks every producer until it answers. ``counted``: also how many rows
        their recent epochs had."""
        places, counts = [], {}
        for stream in self.host.job.stages[stage].inputs:
            call = messages.Position(stream, stage, self.host.name, unit, generation, newest, counted)
            while True:
                producer = self.host.directory.primary_of(stream)
                try:
                    if producer is not None:
                        reply = self.host.peer(producer).call(call, timeout_s=5)
                        if not reply.refused:
                            break
                except flight.FlightError:
                    pass
                if self.host.directory.units is not plan:
                    raise Overtaken
                time.sleep(0.05)
            place = reply.answer
            with self.host.changed:
                self.host.landed.hears(place.landed)
            above = None if place.row_hosts is None else Row(frozenset(place.row_hosts), place.row_k)
            places.append(beginning.Place(place.epoch, place.lost, above))
            counts[stream] = Counted(place.counted_from, place.counted)
        tolerates = self.host.topology.units[unit].policy.tolerates
        found = beginning.start(places, self.host.directory.lost_with.get(unit), tolerates, newest=newest)
        return replace(found, counted=counts)


def _fresh(folder: Path) -> Path:
    """A checkpoint folder of its own for every start: a stopped query's state store may still write to the one it
    had."""
    return folder / f"state-{time.time_ns()}"
