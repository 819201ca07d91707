"""Who runs what, whatever becomes of the hosts: a careful driver tells facts that can be facts and checks every plan
that comes out, with an account of its own of who is alive, who holds what, and who is suspected."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from placements import PASSIVE, PATIENT, on

from understudy.core.failover import (
    Begin,
    Effect,
    Event,
    Failover,
    HostCleared,
    HostJoined,
    HostLost,
    HostSuspected,
    Publish,
    Say,
    StageThrew,
    StandbyReady,
    StandbyUnusable,
    StopJob,
)
from understudy.core.plans import Plan, UnitPlan
from understudy.core.policies import ActiveStandby, Hybrid, PassiveStandby, Policy, UpstreamBackup, none
from understudy.core.topology import StageShape, Topology, UnitShape

HOSTS = [f"h{i}" for i in range(4)]


class World:
    def __init__(self, policies: list[Policy], wishes: list[tuple[str | None, tuple[str, ...]]]) -> None:
        names = [f"u{i}" for i in range(len(policies))]
        stages = [StageShape(n, (names[i - 1],) if i else ()) for i, n in enumerate(names)]
        units = [UnitShape(n, (n,), p, *w) for n, p, w in zip(names, policies, wishes)]
        self.machine = Failover(Topology.build(stages, units))
        self.policies = dict(zip(names, policies))
        self.alive: set[str] = set()
        self.life: dict[str, int] = {}
        """Host -> how many processes it has had."""
        self.standby_life: dict[tuple[str, str, int], int] = {}
        """(unit, standby, since) -> which process of the host that was."""
        self.disk: dict[str, set[str]] = {}
        """Host -> units of which it has a whole checkpoint."""
        self.full: set[tuple[str, str]] = set()
        """(unit, host) pairs that could not store a checkpoint."""

    def feed(self, event: Event) -> list[Effect]:
        if isinstance(event, HostJoined) and not event.returned and event.host in self.alive:
            return self.replace_process(event)
        before, was_alive = self.machine.plan, set(self.alive)
        if isinstance(event, HostJoined):
            self.alive.add(event.host)
            self.full = {pair for pair in self.full if pair[1] != event.host}
            if not event.returned:
                self.life[event.host] = self.life.get(event.host, 0) + 1
        elif isinstance(event, HostLost):
            self.alive.discard(event.host)
        elif isinstance(event, StandbyUnusable):
            self.full.add((event.unit, event.host))
        effects = self.machine.handle(event, 0.0)
        self.check(event, before, was_alive, effects)
        for name, unit in self.machine.plan.units.items():
            for host in (unit.primary, *unit.ready):
                if host in self.alive:
                    self.disk.setdefault(host, set()).add(name)
        return effects

    def join(self, host: str, *, returned: bool, wiped: bool) -> list[Effect]:
        """A host comes: the same process, or a new one that finds what is on its disk, if that is still there."""
        if returned and host in self.life:
            return self.feed(HostJoined(host, returned=True))
        units = self.machine.plan.units.values()
        alone = host not in self.alive and any(u.primary == host and u.ready for u in units)
        if wiped and not alone:  # see test_a_primary_that_lost_its_disk_gives_way
            self.disk[host] = set()
        return self.feed(HostJoined(host, dict.fromkeys(self.disk.get(host, ()), 1)))

    def replace_process(self, event: HostJoined) -> list[Effect]:
        """A new process of a host not known to be lost is that host's loss, and then its joining; only the plan in
        between is not sent."""
        twin = deepcopy(self.machine)
        lost = self.feed(HostLost(event.host, "its process was replaced"))
        effects = [e for e in lost if not isinstance(e, Publish)] + self.feed(event)
        assert twin.handle(event, 0.0) == effects
        assert vars(twin) | {"topology": None} == vars(self.machine) | {"topology": None}
        return effects

    # -- checks -------------------------------------------------------------------------------------------------------

    def check(self, event: Event, before: Plan, was_alive: set[str], effects: list[Effect]) -> None:
        plan = self.machine.plan
        published = [e.plan for e in effects if isinstance(e, Publish)]
        assert len(published) <= 1
        if published:
            assert published == [plan] and plan.serial == before.serial + 1
        else:
            assert plan == before, "a decision that nobody is told"
        for name, unit in plan.units.items():
            old = before.units.get(name, UnitPlan())
            self.check_shape(name, unit, old, plan.serial)
            self.check_standbys(name, unit)
            if unit.generation > old.generation and not isinstance(event, Begin):
                self.check_succession(name, unit, old, event, was_alive)
            elif unit.primary not in self.alive:
                self.check_waiting(name, unit, old, event)
            news = isinstance(event, (HostSuspected, HostCleared, HostJoined)) and event.host == old.primary
            assert unit.rising == old.rising or news or unit.generation > old.generation
            assert not unit.rising or self.policies[name].rises

    def check_shape(self, name: str, unit: UnitPlan, old: UnitPlan, serial: int) -> None:
        assert unit.generation >= old.generation
        if unit.primary != old.primary or unit.start != old.start:
            assert unit.generation > old.generation, "another primary, or another beginning, needs a new fence"
        assert len({unit.primary, *unit.standbys}) == 1 + len(unit.standbys), "a host in two roles"
        assert len(unit.since) == len(unit.standbys) <= self.policies[name].backups
        assert unit.ready == tuple(s for s in unit.standbys if s in unit.ready)
        before = dict(zip(old.standbys, old.since))
        for standby, since in zip(unit.standbys, unit.since):
            assert since == before.get(standby) or since == serial, "a standby is one since a plan said so"
            if since == serial:
                self.standby_life[name, standby, since] = self.life[standby]

    def check_standbys(self, name: str, unit: UnitPlan) -> None:
        if unit.primary not in self.alive:
            return
        assert set(unit.standbys) <= self.alive
        spare = self.alive - {unit.primary, *unit.standbys} - {h for n, h in self.full if n == name}
        assert len(unit.standbys) == self.policies[name].backups or not spare, "a host could have been its standby"
        for standby, since in zip(unit.standbys, unit.since):
            told_apart = self.standby_life[name, standby, since] == self.life[standby]
            assert told_apart, "a new process passes for the one before"

    def armed(self, name: str, old: UnitPlan, event: Event) -> set[str]:
        """Who could take over: the ready standbys, less one that comes back with an empty disk, and one that is just
        being reported."""
        news = isinstance(event, StandbyReady) and (event.unit, event.generation) == (name, old.generation)
        wiped = isinstance(event, HostJoined) and not event.returned and name not in event.holds
        ready = {s for s in old.ready if not (wiped and s == event.host)}  # type: ignore[union-attr]
        return ready | ({event.host} if news else set())  # type: ignore[union-attr]

    def check_succession(self, name: str, unit: UnitPlan, old: UnitPlan, event: Event, was_alive: set[str]) -> None:
        assert not unit.rising, "whoever takes over is suspected of nothing yet"
        assert unit.generation == old.generation + 1
        if self.policies[name].recovery != "standby":
            assert unit.start == ("replay" if self.policies[name].recovery == "replay" else "newest")
            return
        assert unit.start == "held"
        able = [s for s in old.standbys if s in self.armed(name, old, event) and s in self.alive]
        if unit.primary == old.primary:
            assert unit.primary not in was_alive and not able, "only a primary that came back goes on by itself"
            assert unit.ready == ()
        else:
            assert unit.primary == able[0], "the first ready standby, and nobody else, has the state"
            assert [s for s in unit.ready] == able[1:], "what the others hold stays good"
            kept = dict(zip(unit.standbys, unit.since))
            assert all(kept[s] == since for s, since in zip(old.standbys, old.since) if s in able[1:])

    def check_waiting(self, name: str, unit: UnitPlan, old: UnitPlan, event: Event) -> None:
        if self.policies[name].recovery != "standby":
            assert not self.alive, "such a unit waits only when nobody is there"
            return
        armed = self.armed(name, old, event)
        assert not armed & self.alive & set(unit.standbys), "waits though it could be taken over"
        expected = replace(old, ready=tuple(s for s in old.standbys if s in armed), rising=unit.rising)
        if isinstance(event, HostJoined) and not event.returned:
            if event.host in old.standbys:  # another process in its place, with an empty disk or never ready
                expected = expected.without(event.host)
            if event.host == old.primary:  # with an empty disk, while somebody who is away has the state
                assert unit.ready
                expected = replace(expected, primary=None)
        assert unit == expected, "a waiting unit is left alone"

    # -- facts --------------------------------------------------------------------------------------------------------

    def report(self, kind: str, unit: str, number: int) -> None:
        """A report that a living primary may send. That its standby is ready may be heard after its death."""
        plan = self.machine.plan.units.get(unit)
        if plan is None or (plan.primary not in self.alive and kind != "ready"):
            return
        if kind == "threw":
            self.feed(StageThrew(unit, plan.generation, unit, number, "boom"))
        elif plan.standbys:
            place = number % len(plan.standbys)
            host, since = plan.standbys[place], plan.since[place]
            if kind == "ready":
                self.feed(StandbyReady(unit, plan.generation, host, since))
                assert self.feed(StandbyReady(unit, plan.generation, host, since)) == [], "once is enough"
            else:
                self.feed(StandbyUnusable(unit, plan.generation, host, since, "full"))

    def stale(self, unit: str, host: str) -> None:
        """Anything that a fenced generation, or about a process that was replaced, still says is not heard."""
        plan = self.machine.plan.units.get(unit, UnitPlan(1))
        since = dict(zip(plan.standbys, plan.since)).get(host, 1)
        for event in (
            StandbyReady(unit, plan.generation, host, since - 1),
            StandbyReady(unit, plan.generation - 1, host, since),
            StandbyUnusable(unit, plan.generation - 1, host, since, "full"),
            StandbyUnusable(unit, plan.generation, host, since - 1, "full"),
            StageThrew(unit, plan.generation - 1, unit, 0, "boom"),
        ):
            assert self.machine.handle(event, 0.0) == []

    def suspect(self, host: str, *, cleared: bool) -> None:
        if host in self.alive:
            self.feed(HostCleared(host) if cleared else HostSuspected(host))
            for name, unit in self.machine.plan.units.items():
                if unit.primary == host and unit.ready and self.policies[name].rises:
                    assert unit.rising != cleared


WISH = st.one_of(st.none(), st.sampled_from([*HOSTS, "h9"]))
WISHES = st.lists(st.sampled_from([*HOSTS, "h9"]), max_size=2, unique=True).map(tuple)
HOST = st.sampled_from(HOSTS)
UNIT = st.sampled_from(["u0", "u1", "u2"])
POLICY = st.sampled_from(
    [
        none,
        PASSIVE,
        PassiveStandby(standbys=2),
        ActiveStandby(),
        ActiveStandby(copies=3),
        Hybrid(),
        Hybrid(standbys=2),
        UpstreamBackup(),
    ]
)
LIVES = st.one_of(
    st.tuples(st.just("join"), HOST, st.booleans(), st.sampled_from([False, False, True])),
    st.tuples(st.just("lose"), HOST),
    st.tuples(st.sampled_from(["ready", "ready", "unusable"]), UNIT, st.integers(0, 1)),
    st.tuples(st.just("threw"), UNIT, st.integers(0, 1)),
    st.tuples(st.just("stale"), UNIT, HOST),
    st.tuples(st.just("suspect"), HOST, st.booleans()),
)


@settings(PATIENT, max_examples=500)
@given(
    st.lists(POLICY, min_size=1, max_size=3),
    st.lists(st.tuples(WISH, WISHES), min_size=3, max_size=3),
    st.lists(HOST, unique=True, min_size=1),
    st.tuples(st.booleans(), st.booleans()),
    st.dictionaries(HOST, st.dictionaries(UNIT, st.integers(0, 9))),
    st.lists(LIVES, max_size=40),
)
def test_whatever_becomes_of_the_hosts_the_plan_is_sound(
    policies: list[Policy],
    wishes: list[tuple[str | None, tuple[str, ...]]],
    first: list[str],
    begin: tuple[bool, bool],
    holds: dict[str, dict[str, int]],
    lives: list[tuple],
) -> None:
    world = World(policies, wishes)
    for host in first:
        assert world.feed(HostJoined(host, holds.get(host, {}))) == []
        world.disk[host] = set(holds.get(host, {}))
    world.feed(Begin(*begin))
    assert all(unit.primary in world.alive for unit in world.machine.plan.units.values())
    for kind, who, *about in lives:
        if kind == "join":
            world.join(who, returned=about[0], wiped=about[1])
        elif kind == "lose":
            known = who in world.alive
            effects = world.feed(HostLost(who, "x"))
            assert bool(effects) == known
        elif kind == "stale":
            world.stale(who, about[0])
        elif kind == "suspect":
            world.suspect(who, cleared=about[0])
        else:
            world.report(kind, who, about[0])

    # Heal: when everybody is back, everything runs again and everything protected has its standbys.
    for host in HOSTS:
        world.join(host, returned=host in world.alive, wiped=False)
    for name, unit in world.machine.plan.units.items():
        assert unit.primary in world.alive, f"{name} waits for ever"
        assert len(unit.standbys) == world.policies[name].backups


@settings(PATIENT, max_examples=200)
@given(st.integers(0, 3), st.permutations(HOSTS), st.lists(st.booleans(), min_size=4, max_size=4))
def test_k_standbys_survive_k_losses(k: int, order: list[str], at_once: list[bool]) -> None:
    """Hwang et al. 2003, Section 4.4: with K backups for each primary, any K concurrent failures are survived."""
    policy = PassiveStandby(standbys=k) if k else UpstreamBackup()
    machine = on(Topology.build([StageShape("s")], [UnitShape("u", ("s",), policy)]), *HOSTS)
    machine.handle(Begin(), 0.0)
    lives = [host for host in order if host in HOSTS][: k or 3]
    for host, report in zip(lives, at_once):
        machine.handle(HostLost(host, "x"), 0.0)
        unit = machine.plan.units["u"]
        assert unit.primary in machine.alive
        if report:  # its primary has had the time to bring the newest standby up to date
            for standby, since in zip(unit.standbys, unit.since):
                machine.handle(StandbyReady("u", unit.generation, standby, since), 0.0)


def chain() -> Topology:
    names = ["cars", "means", "alarms"]
    stages = [StageShape(n, tuple(names[i - 1 : i])) for i, n in enumerate(names)]
    return Topology.build(stages, [UnitShape(n, (n,), p) for n, p in zip(names, [PASSIVE, PASSIVE, none])])


@settings(PATIENT, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["join", "lose", "suspect", "clear"]), HOST), max_size=20))
def test_before_the_beginning_only_losses_are_told(lives: list[tuple[str, str]]) -> None:
    machine = on(chain())
    alive: set[str] = set()
    for kind, host in lives:
        if kind == "join":
            told = [Say("host-lost", f"{host} is lost: its process was replaced", None, host)] if host in alive else []
            assert machine.handle(HostJoined(host), 0.0) == told
            alive.add(host)
        elif kind == "lose":
            told = [Say("host-lost", f"{host} is lost: x", None, host)] if host in alive else []
            assert machine.handle(HostLost(host, "x"), 0.0) == told
            alive.discard(host)
        else:
            assert machine.handle(HostSuspected(host) if kind == "suspect" else HostCleared(host), 0.0) == []
    assert machine.plan == Plan()
    assert set(machine.alive) == alive


@settings(PATIENT)
@given(st.permutations(HOSTS))
def test_the_order_of_joining_does_not_change_the_placement(order: list[str]) -> None:
    machine = on(chain(), *order)
    machine.handle(Begin(), 0.0)
    assert machine.plan == Plan(
        1,
        {
            "cars": UnitPlan(1, "h0", ("h3",), ("h3",), since=(1,)),
            "means": UnitPlan(1, "h1", ("h3",), ("h3",), since=(1,)),
            "alarms": UnitPlan(1, "h2"),
        },
    )


@settings(PATIENT, max_examples=200)
@given(st.lists(LIVES, max_size=30))
def test_a_job_that_stopped_decides_nothing_more_by_itself(lives: list[tuple]) -> None:
    """StopJob comes with no plan: whatever else is told, hosts are not set to work on code that throws."""
    world = World([PASSIVE], [(None, ())])
    for host in HOSTS:
        world.feed(HostJoined(host))
    world.feed(Begin())
    for kind, who, *about in lives:
        if kind == "threw" and who == "u0":
            unit = world.machine.plan.units["u0"]
            if unit.primary in world.alive:
                effects = world.feed(StageThrew("u0", unit.generation, "u0", about[0], "boom"))
                stops = [e for e in effects if isinstance(e, StopJob)]
                assert stops in ([], [StopJob("u0", about[0], "boom")])
                assert bool(stops) == (effects == stops), "a stop is all that is said"
        elif kind == "lose":
            world.feed(HostLost(who, "x"))
        elif kind == "join":
            world.join(who, returned=about[0], wiped=about[1])
