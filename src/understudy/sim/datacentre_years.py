"""Years of a job in a data centre: the user's topology, the real placement machine, and what breaks there.

``core.failover.Failover`` places the units and is told what its coordinator would be told: hosts suspected, lost,
returned, standbys ready. Its plans are obeyed. Time jumps from event to event, so a year costs seconds. The rules:

- *Down.* A failure takes its hosts at once. A host that was cut off keeps its processes; any other starts anew with
  what its disk holds. It is suspected with the first missed heartbeat, lost with the last; the death of a process alone
  breaks its connections and is known at once. A host that answers before that simply goes on.
- *Takeover.* A plan with a new generation starts a takeover, which lasts as the policy's standby is prepared. If the
  chosen host is itself down, still unnoticed, the takeover stalls until that host is back, or lost too and replaced.
- *Running.* A unit runs while its primary can be reached and has finished its takeover (with an eager active standby,
  while any copy can). It is *available* while it and all units upstream of it run; the job, while every unit runs. Work
  that piled up meanwhile is not counted: a unit that runs again is taken to catch up.
- *none.* Rows that came between failure and restart pass the unit by, and its state is lost.
- *standby.* Upstream keeps what is not safe, so nothing is lost while a copy's disk survives. When the primary and all
  ready standbys are gone, the unit waits for one to return. If that one's disk had to be replaced, the state is lost.
- *replay.* A unit is rebuilt when those directly upstream run, by replay of what they kept. K in a row, itself counted,
  may be gone at once (``core.policies.upstream``); with more, the state cannot be rebuilt and is lost. A rebuilt unit
  keeps less than before until a window has passed, and counts as gone for those downstream until then. A unit with
  standbys keeps its output and breaks the row.
- A lost state costs the rows it stood for: ``state_bytes / row_bytes``. Rows that come again after a takeover are
  *repeated* work; their results are dropped by epoch number.
- Sources stay passive standby under any policy, as in ``Job``: what is kept of them is a few bytes. The coordinator
  does not fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from understudy.core.failover import Begin, Event, Failover, HostJoined, Publish, Say, StandbyReady
from understudy.core.numbers import Generation
from understudy.core.plans import Plan, UnitPlan
from understudy.core.topology import Topology, UnitShape
from understudy.sim.datacentre_page import Result
from understudy.sim.datacentre_setting import Setting
from understudy.sim.engine import Engine
from understudy.sim.failures import YEAR_S, Failure, Floor, Host, host_names

Progress = Callable[[str, float], None]
"""Told the policy's name and the share of its days that has passed."""


@dataclass(eq=False)
class Unit:
    shape: UnitShape
    plan: UnitPlan
    state_bytes: float
    runs: tuple[Generation, int]
    """Generation, and incarnation of the primary's host, that have taken over."""
    copies: dict[str, tuple[int, int]]
    """Host -> its disk and incarnation that hold the state."""
    before: list[Unit] = field(default_factory=list)
    """Directly upstream. Where units feed each other in a circle, only those that come first."""
    after: list[Unit] = field(default_factory=list)
    reaches: list[Unit] = field(default_factory=list)
    """Itself and everything downstream."""
    making: set[tuple[str, int, Generation]] = field(default_factory=set)
    """Standbys under way: host, since, generation."""
    running: bool = True
    down_since: float = 0.0
    rises_since: float = 0.0
    blocked: int = 0
    """How many do not run, of itself and everything upstream."""
    blocked_since: float = 0.0
    blocked_s: float = 0.0
    attempt: int = 0
    takeover_s: float = 0.0
    stalled: bool = False
    """The host that should take over is down itself."""
    waiting: bool = False
    """For those upstream, whose output it will replay."""
    doomed: bool = False
    fragile_until: float = -1.0


class Years:
    def __init__(self, topology: Topology, setting: Setting, story: Sequence[Failure]) -> None:
        self.setting, self.engine, self.failover = setting, Engine(), Failover(topology)
        self.floor = Floor(
            self.engine,
            host_names(setting.hosts, setting.racks, packed=setting.placement == "packed"),
            heartbeat_s=setting.heartbeat_s,
            misses=setting.misses,
            broken_s=setting.broken_s,
            tell=self._tell,
            on_down=self._down,
            on_back=self._back,
        )
        self.units: list[Unit] = []
        self.says: dict[str, int] = {}
        for name in self.floor.named:
            self._tell(HostJoined(name))
        self._tell(Begin())
        self.units = _connected(topology, self.failover.plan, setting)
        self.replays = any(u.shape.policy.recovery == "replay" for u in self.units)
        self.down = self.outages = self.states_lost = 0
        self.passed_by = self.state_rows_lost = self.repeated = self.made_bytes = self.longest_s = 0.0
        self.cause, self.silent_for, self.silent_since = "", "", 0.0
        self.silence_s: dict[str, float] = {}
        self.hits: dict[str, int] = {}
        self.recovery_s: list[float] = []
        for failure in story:
            self.engine.at(failure.at_s, self.floor.strike, failure)

    # -- hosts ----------------------------------------------------------------------------------------------------

    def _down(self, failure: Failure, names: frozenset[str]) -> None:
        touched = self._on(names)
        if not touched:
            return
        self.cause = failure.cause
        self.hits[failure.cause] = self.hits.get(failure.cause, 0) + 1
        for unit in touched:
            self._look(unit)
        self._count_gone()

    def _back(self, names: frozenset[str]) -> None:
        for unit in self._on(names):
            if unit.stalled and self._primary(unit).up:
                self._begin(unit, unit.takeover_s)
            self._make_standbys(unit)
            self._look(unit)

    def _on(self, names: frozenset[str]) -> list[Unit]:
        """Units with a copy on one of these hosts."""
        return [u for u in self.units if u.plan.primary in names or not names.isdisjoint(u.plan.standbys)]

    def _primary(self, unit: Unit) -> Host:
        assert unit.plan.primary is not None
        return self.floor.named[unit.plan.primary]

    # -- plans ----------------------------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        for effect in self.failover.handle(event, self.engine.now):
            if isinstance(effect, Publish):
                self._obey(effect.plan)
            elif isinstance(effect, Say):
                self.says[effect.kind] = self.says.get(effect.kind, 0) + 1

    def _obey(self, plan: Plan) -> None:
        moved = False
        for unit in self.units:
            old, new = unit.plan, plan.units[unit.shape.name]
            if new is old:
                continue
            unit.plan = new
            if new.rising and not old.rising:
                unit.rises_since = self.engine.now
            if new.generation != old.generation:
                self._begin(unit, self._takeover_s(unit, old))
                moved = True
            self._make_standbys(unit)
            self._look(unit)
        if moved:
            self._count_gone()

    def _takeover_s(self, unit: Unit, old: UnitPlan) -> float:
        setting, policy, start = self.setting, unit.shape.policy, unit.plan.start
        if start not in ("held", "saved"):
            return setting.replay_s if start == "replay" else setting.none_s
        if unit.plan.primary not in old.ready:
            return setting.passive_s  # a host that has returned to its own state
        if policy.standby_runs:
            return 0.0 if policy.eager else setting.active_s
        if old.rising:  # it has been at it since the first missed heartbeat
            risen_s = self.engine.now - unit.rises_since
            return max(setting.passive_s - risen_s, min(setting.active_s, setting.passive_s))
        return setting.passive_s

    def _begin(self, unit: Unit, takeover_s: float) -> None:
        unit.attempt, unit.takeover_s = unit.attempt + 1, takeover_s
        unit.stalled = unit.waiting = False
        if takeover_s == 0:
            self._taken(unit, unit.attempt)
        else:
            self.engine.after(takeover_s, self._taken, unit, unit.attempt)

    def _taken(self, unit: Unit, attempt: int, replayed: bool = False) -> None:
        """The takeover is through, or with ``replayed`` also the replay, unless something came between."""
        if attempt != unit.attempt:
            return
        if not self._primary(unit).up:
            unit.stalled = True
        elif unit.plan.start == "replay" and not all(u.running for u in unit.before):
            unit.waiting = True
        elif unit.plan.start == "replay" and not replayed:
            self._replay(unit)
        else:
            self._finish(unit)

    def _replay(self, unit: Unit) -> None:
        self.engine.after(self.setting.window_s / self.setting.replay_speed, self._taken, unit, unit.attempt, True)

    def _finish(self, unit: Unit) -> None:
        """The unit's new primary runs: settle what the failure has cost."""
        setting, now, host, start = self.setting, self.engine.now, self._primary(unit), unit.plan.start
        policy = unit.shape.policy
        lost = start == "newest" or (start == "replay" and unit.doomed)
        if start == "newest":
            self.passed_by += setting.rows_per_s * (now - unit.down_since)
        elif start == "replay":
            self.repeated += setting.rows_per_s * setting.window_s
        elif unit.copies.get(host.name, (-1, -1))[0] != host.disk:
            lost = True
        elif start == "saved":  # half an interval old, on average, and what came since is not in it
            self.passed_by += setting.rows_per_s * getattr(policy, "every_s", 0.0) / 2
        elif not policy.standby_runs:  # the checkpoint is half an interval old, on average
            self.repeated += setting.rows_per_s * getattr(policy, "every_s", 0.0) / 2
        if lost:
            self.states_lost += 1
            self.state_rows_lost += unit.state_bytes / setting.row_bytes
        if lost or start == "replay":
            unit.fragile_until = now + setting.window_s
        unit.doomed = False
        unit.copies = {h: v for h, v in unit.copies.items() if h in unit.plan.standbys}
        unit.copies[host.name] = (host.disk, host.incarnation)
        unit.runs = (unit.plan.generation, host.incarnation)
        self._look(unit)

    def _make_standbys(self, unit: Unit) -> None:
        """Bring the state to standbys that lack it. Tried again whenever the unit or a standby comes back."""
        plan = unit.plan
        for standby, since in zip(plan.standbys, plan.since, strict=True):
            key = (standby, since, plan.generation)
            if standby not in plan.ready and key not in unit.making:
                unit.making.add(key)
                carried_s = unit.state_bytes / self.setting.bandwidth_bytes_per_s
                self.engine.after(self.setting.standby_s + carried_s, self._made, unit, key)

    def _made(self, unit: Unit, key: tuple[str, int, Generation]) -> None:
        unit.making.discard(key)
        standby, since, generation = key
        host = self.floor.named[standby]
        if generation == unit.plan.generation and unit.running and host.up:
            self.made_bytes += unit.state_bytes
            unit.copies[standby] = (host.disk, host.incarnation)
            self._tell(StandbyReady(unit.shape.name, generation, standby, since))

    # -- what runs ------------------------------------------------------------------------------------------------

    def _holds(self, unit: Unit) -> bool:
        """The primary has the state, whether or not it can be reached."""
        return unit.runs == (unit.plan.generation, self._primary(unit).incarnation)

    def _look(self, unit: Unit) -> None:
        runs = self._holds(unit) and self._primary(unit).up
        if not runs and unit.shape.policy.eager:
            copies = [(self.floor.named[s], unit.copies.get(s)) for s in unit.plan.ready]
            runs = any(host.up and copy == (host.disk, host.incarnation) for host, copy in copies)
        if runs == unit.running:
            return
        now = self.engine.now
        unit.running = runs
        if runs:
            self.recovery_s.append(now - unit.down_since)
            self.down -= 1
            self._make_standbys(unit)
            for other in unit.after:
                if other.waiting and all(u.running for u in other.before):
                    other.waiting = False
                    self._replay(other)
        else:
            unit.down_since = now
            self.down += 1
            if self.down == 1:
                self.outages, self.silent_since, self.silent_for = self.outages + 1, now, self.cause
        for each in unit.reaches:
            each.blocked += -1 if runs else 1
            if runs and each.blocked == 0:
                each.blocked_s += now - each.blocked_since
            elif not runs and each.blocked == 1:
                each.blocked_since = now
        if self.down == 0:
            self._end_outage(now)

    def _end_outage(self, now: float) -> None:
        lasted_s = now - self.silent_since
        self.longest_s = max(self.longest_s, lasted_s)
        self.silence_s[self.silent_for] = self.silence_s.get(self.silent_for, 0.0) + lasted_s

    def _count_gone(self) -> None:
        """Whose state cannot be rebuilt, because too many in a row are gone at once."""
        if not self.replays:
            return
        row: dict[str, float] = {}
        for unit in self.units:  # upstream first
            policy, held = unit.shape.policy, self._holds(unit)
            if unit.fragile_until <= self.engine.now and (held or policy.recovery == "standby"):
                continue
            longest = max((row.get(u.shape.name, 0.0) for u in unit.before), default=0.0)
            row[unit.shape.name] = 1 + longest if policy.recovery == "replay" else math.inf
            if policy.recovery == "replay" and not held and row[unit.shape.name] > policy.tolerates:
                unit.doomed = True

    def run(self, label: str, progress: Progress | None) -> None:
        end_s = self.setting.days * 86400
        for percent in range(1, 101):
            self.engine.run(until=end_s * percent / 100)
            if progress is not None:
                progress(label, percent / 100)
        if self.down:  # what is still silent counts up to here, but has not recovered
            self._end_outage(end_s)
        for unit in self.units:
            if unit.blocked:
                unit.blocked_s += end_s - unit.blocked_since

    def result(self, label: str, story: Sequence[Failure], steady_share: float) -> Result:
        setting, recovery_s = self.setting, sorted(self.recovery_s)
        total_s, silence_s = setting.days * 86400, sum(self.silence_s.values())
        data_bytes = len(self.units) * setting.rows_per_s * setting.row_bytes * total_s
        nodes: dict[str, int] = {}
        for failure in story:
            nodes[failure.cause] = nodes.get(failure.cause, 0) + len(failure.hosts)

        def at(share: float) -> float:
            return recovery_s[max(0, math.ceil(share * len(recovery_s)) - 1)] if recovery_s else 0.0

        return Result(
            policy=label,
            availability=1 - silence_s / total_s,
            worst_unit_availability=1 - max(unit.blocked_s for unit in self.units) / total_s,
            silence_min_per_year=silence_s / 60 * (YEAR_S / total_s),
            outages=self.outages,
            longest_outage_s=self.longest_s,
            rows_lost=round(self.passed_by + self.state_rows_lost),
            rows_passed_by=round(self.passed_by),
            states_lost=self.states_lost,
            rows_repeated=round(self.repeated),
            recoveries=len(recovery_s),
            recovery_median_s=at(0.5),
            recovery_p95_s=at(0.95),
            recovery_p99_s=at(0.99),
            recovery_max_s=at(1.0),
            ha_share=steady_share + self.made_bytes / data_bytes,
            failures=len(story),
            failures_hit=sum(self.hits.values()),
            node_failures_by_cause=nodes,
            hits_by_cause=dict(self.hits),
            silence_min_by_cause={cause: s / 60 for cause, s in self.silence_s.items()},
            says=dict(sorted(self.says.items())),
            recovery_s=tuple(recovery_s),
        )


def upstream_of(topology: Topology, shape: UnitShape) -> list[str]:
    """The units directly upstream of one, each once."""
    streams = (i for stage in shape.stages for i in topology.stages[stage].inputs if i not in shape.stages)
    return list(dict.fromkeys(topology.unit_of[stream] for stream in streams))


def is_source(topology: Topology, shape: UnitShape) -> bool:
    return all(not topology.stages[stage].inputs for stage in shape.stages)


def _connected(topology: Topology, plan: Plan, setting: Setting) -> list[Unit]:
    units: dict[str, Unit] = {}
    feeds: dict[str, list[str]] = {name: [] for name in topology.units}
    for name, shape in topology.units.items():
        state = 0.0 if is_source(topology, shape) else setting.state_bytes
        now = plan.units[name]
        copies = dict.fromkeys((h for h in (now.primary, *now.standbys) if h is not None), (0, 0))
        unit = Unit(shape, now, state, (now.generation, 0), copies)
        for upstream in upstream_of(topology, shape):
            feeds[upstream].append(name)
            if upstream in units:
                unit.before.append(units[upstream])
                units[upstream].after.append(unit)
        units[name] = unit
    for name, unit in units.items():
        reached = [name]
        for each in reached:  # grows meanwhile
            reached += [other for other in dict.fromkeys(feeds[each]) if other not in reached]
        unit.reaches = [units[each] for each in reached]
    return list(units.values())
