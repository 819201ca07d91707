"""The end of a whole job and how it begins again: clean stops, everything dying at once, and code that throws."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy.core.directory import Policies
from understudy.core.draining import Stop
from understudy.core.failover import Effect, StageThrew, StopJob
from understudy.core.operators import Window
from understudy.core.plans import Plan, UnitPlan
from understudy.core.policies import Policy, UpstreamBackup
from understudy.core.topology import Topology
from understudy.sim.checks import judge, undrained, unended
from understudy.sim.coordinator import Coordinator
from understudy.sim.copies import Copy
from understudy.sim.disks import Version
from understudy.sim.faults import ALL_KILLED, ENDINGS, POISON, STOP, THROW, Fault, Saboteur, Switching
from understudy.sim.fuzz import POLICIES, SHAPES, Story, finish, finish_and_judge, play, play_many, shape, uniform
from understudy.sim.model import SimJob
from understudy.sim.nodes import Conditions, World

PROTECTED = [name for name, policy in POLICIES.items() if policy.protected]
ON_DISKS = [name for name, policy in POLICIES.items() if policy.keeps_on_disk]


def world_of(policy: Policy, shape: str = "chain", *, epochs: int = 30, seed: int = 1) -> World:
    hosts = 3 + max(1, policy.backups)
    world = World(uniform(SHAPES[shape], policy), hosts=hosts, seed=seed, conditions=Conditions(epochs=epochs))
    world.story = []
    return world


def told(world: World, text: str) -> int:
    return sum(text in line for _, line in world.story or [])


def ended(world: World, *faults: Fault) -> Story:
    story = Story(0, "", "", 0)
    finish_and_judge(world, Saboteur(world, list(faults)), story)
    assert story.faults.total() == len(faults)
    return story


# -- clean stops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_stopped_cleanly_goes_on_where_it_stopped(policy: str, shape: str) -> None:
    """Under every policy, and also without one: all is on disks then."""
    world = world_of(POLICIES[policy], shape)
    story = ended(world, Fault(STOP, 1.0, 0.5, 0))
    assert told(world, "begins again after a clean stop") == 1
    assert story.wrong == [] and not story.beyond


def test_a_job_can_be_stopped_twice() -> None:
    world = world_of(POLICIES["upstream"])
    assert ended(world, Fault(STOP, 0.8, 0.3, 0), Fault(STOP, 1.6, 0.3, 0)).wrong == []
    assert told(world, "begins again after a clean stop") == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_when_a_job_has_stopped_every_sink_has_all_that_was_cut(policy: str) -> None:
    """Two parts that have nothing in common end at epochs of their own."""
    parts = shape({"s": (), "a": ("s",), "t": (), "b": ("t",)})
    world = World(uniform(parts, POLICIES[policy]), hosts=4, conditions=Conditions(epochs=99))
    world.engine.run(0.95)
    slow = world.coordinator.failover.plan.units["t"].primary
    assert slow is not None
    world.hosts[slow].pause()
    world.engine.run(1.2)
    world.hosts[slow].resume()
    world.on_stopped = world.end
    assert world.coordinator.stop()
    world.engine.run(9.0)
    assert not any(host.alive for host in world.hosts.values())
    ends = {source: max(cuts) for source, cuts in world.cuts.items()}
    assert {n: sink.newest for n, sink in world.sinks.items()} == {"sink:out-a": ends["s"], "sink:out-b": ends["t"]}


@pytest.mark.parametrize("unit", ["s", "a", "b"])
@pytest.mark.parametrize("policy", PROTECTED)
def test_a_host_that_dies_while_the_job_is_stopping(policy: str, unit: str) -> None:
    for ms in range(0, 120, 10):
        world = world_of(POLICIES[policy])
        saboteur = Saboteur(world, [Fault(STOP, 1.03, 0.3, 0)])
        world.engine.run(1.03 + ms / 1000)
        victim = world.coordinator.journalled.units[unit].primary
        assert victim is not None
        world.hosts[victim].crash()
        world.engine.after(0.5, world.hosts[victim].restart)
        finish(world, saboteur)
        assert [*judge(world), *unended(world), *undrained(world)] == [], f"{ms} ms"
        assert told(world, "begins again after a clean stop") == 1


def test_a_coordinator_that_dies_while_the_job_is_stopping_goes_on_with_it() -> None:
    for ms in range(0, 60, 5):
        world = world_of(POLICIES["active"])
        saboteur = Saboteur(world, [Fault(STOP, 1.03, 0.3, 0)])
        world.engine.run(1.031 + ms / 1000)
        if world.coordinator.alive:
            world.coordinator.crash()
            world.engine.after(0.5, world.coordinator.restart)
        finish(world, saboteur)
        assert [*judge(world), *unended(world)] == [], f"{ms} ms"


@pytest.mark.parametrize("switched", ["sweeping", "individual", "active"])
def test_a_unit_that_left_upstream_backup_is_safe_when_the_job_begins_again(switched: str) -> None:
    """It is under upstream backup again only when its producers keep enough: a host dies in the first moment."""
    world = world_of(UpstreamBackup())
    saboteur = Saboteur(world, [Fault(STOP, 1.4, 0.2, 0)], [Switching("b", POLICIES[switched], 0.5)])
    while not told(world, "begins again"):
        world.engine.run(world.engine.now + 0.01)
    world.engine.run(world.engine.now + 0.05)
    host = world.coordinator.failover.plan.units["b"].primary
    assert host is not None
    world.hosts[host].crash()
    world.engine.after(0.5, world.hosts[host].restart)
    finish(world, saboteur)
    assert not saboteur.beyond and judge(world) == []
    assert world.coordinator.failover.topology.units["b"].policy == UpstreamBackup()


@pytest.mark.parametrize("was", ["sweeping", "individual", "active", "hybrid", "none"])
def test_a_unit_whose_policy_was_edited_while_the_job_stood_still_is_safe_when_it_begins_again(was: str) -> None:
    """Under upstream backup, the file says now. It is when its producers keep enough: a host dies in the first
    moment."""
    job = replace(uniform(SHAPES["chain"], UpstreamBackup()), windows={"b": Window(0.5, 0.3)})
    edited = job.topology
    world = World(
        replace(job, topology=edited.under({"b": POLICIES[was]})), hosts=4, conditions=Conditions(epochs=30)
    )
    world.story = []
    saboteur = Saboteur(world, [])

    def edit() -> None:
        world.job, world.topology, world.policies = job, edited, Policies(edited)
        world.end()
        world.engine.after(0.2, world.begin_again)

    world.engine.run(1.4)
    world.on_stopped = edit
    assert world.coordinator.stop()
    while not told(world, "begins again"):
        world.engine.run(world.engine.now + 0.01)
    world.engine.run(world.engine.now + 0.05)
    host = world.coordinator.failover.plan.units["b"].primary
    assert host is not None
    world.hosts[host].crash()
    world.engine.after(0.5, world.hosts[host].restart)
    finish(world, saboteur)
    assert judge(world, saboteur.unprotected) == []
    assert world.coordinator.failover.topology.units["b"].policy == UpstreamBackup()


# -- everything dies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", ON_DISKS)
def test_when_everything_dies_what_is_on_disks_is_enough(policy: str, shape: str) -> None:
    for ms in range(0, 100, 20):
        world = world_of(POLICIES[policy], shape)
        story = ended(world, Fault(ALL_KILLED, 2.0 + ms / 1000, 0.5, 0))
        assert told(world, "begins again after everything died") == 1
        assert story.wrong == [] and not story.beyond


@pytest.mark.parametrize("policy", ["sweeping", "sweeping-2"])
def test_a_log_of_an_earlier_primary_is_not_taken_for_the_newest(policy: str) -> None:
    """A source dies with an epoch that nobody has seen, another cuts the same epoch otherwise, and everything dies: the
    first one's log is as long as any."""
    job = uniform(SHAPES["chain"], POLICIES[policy])
    units = [replace(u, primary="h4") if u.name == "s" else u for u in job.topology.units.values()]
    job = replace(job, topology=Topology.build(job.topology.stages.values(), units))
    world = World(job, hosts=4, conditions=Conditions(epochs=40))
    saboteur = Saboteur(world, [])
    world.engine.run(2.0)
    plan = world.coordinator.journalled.units["s"]
    first, second = world.hosts["h4"], world.hosts[plan.standbys[0]]
    world.cut = {frozenset((first.name, second.name))}
    while first.disk.logs["s"].end == second.disk.logs["s"].end:
        world.engine.run(world.engine.now + 0.001)
    first.crash()
    world.cut = set()
    world.engine.run(world.engine.now + 0.01)
    first.restart()
    while second.units["s"].outputs()["s"].queue.next < first.disk.logs["s"].end:
        world.engine.run(world.engine.now + 0.001)
    world.engine.run(world.engine.now + 0.03)
    assert first.disk.logs["s"].entries[-1] != second.disk.logs["s"].entries[-1]
    world.coordinator.nothing_runs = True
    world.end()
    world.begin_again()
    finish(world, saboteur)
    assert judge(world) == []


def test_without_protection_a_job_that_died_goes_on_with_rows_lost() -> None:
    world = world_of(POLICIES["none"])
    saboteur = Saboteur(world, [Fault(ALL_KILLED, 1.0, 0.5, 0)])
    finish(world, saboteur)
    assert saboteur.unprotected == {"a", "b"} and judge(world, saboteur.unprotected) == []


# -- code that throws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", PROTECTED)
def test_code_that_throws_once_costs_one_takeover(policy: str) -> None:
    for pick in range(3):  # the source, the stage in the middle, the last
        world = world_of(POLICIES[policy])
        story = ended(world, Fault(THROW, 1.0, 1.5, pick))
        assert told(world, "throws in") == told(world, "trying once more on") == 1
        assert story.wrong == [] and not story.beyond


@pytest.mark.parametrize("stage", ["s", "a", "b"])
@pytest.mark.parametrize("policy", POLICIES)
def test_code_that_throws_again_at_the_same_epoch_stops_the_job(policy: str, stage: str) -> None:
    world = world_of(POLICIES[policy])
    stops: list[StopJob] = []
    world.throws = lambda host, name, epoch: (name, epoch) == (stage, 9)
    world.on_giving_up = lambda stop: stops.append(stop) is None
    world.engine.run(8.0)
    assert [(stop.stage, stop.epoch) for stop in stops] == [(stage, 9)]
    assert told(world, "trying once more on") <= 1
    assert world.violations == []
    assert world.sinks["sink:out-b"].newest == 8, "all that came before is there, and nothing after"


@pytest.mark.parametrize("policy", ON_DISKS)
def test_when_the_code_was_mended_the_job_goes_on_with_nothing_lost(policy: str) -> None:
    for pick in range(3):
        world = world_of(POLICIES[policy])
        story = ended(world, Fault(POISON, 1.0, 0.5, pick))
        assert told(world, "begins again after everything died") == 1
        assert story.wrong == [] and not story.beyond


def test_a_copy_that_throws_alone_is_not_waited_for() -> None:
    world = world_of(POLICIES["active"])
    world.engine.run(1.0)
    (copy,) = world.coordinator.failover.plan.units["a"].standbys
    world.throws = lambda host, name, epoch: (host, name) == (copy, "a")
    finish(world, Saboteur(world, []))
    assert judge(world) == [] and undrained(world) == []
    assert copy not in world.coordinator.failover.plan.units["a"].standbys


# -- by chance, and broken on purpose ---------------------------------------------------------------------------------


def test_a_swarm_of_stories_that_end() -> None:
    tally = play_many(range(0, 2800, 7))
    assert [(s.seed, s.wrong[0]) for s in tally.failed] == []
    assert set(ENDINGS) <= set(tally.faults), "every kind was tried"
    assert tally.beyond < tally.schedules // 10


@pytest.mark.parametrize("seed", [12299, 12943, 15008, 16292, 20496])
def test_stories_that_once_went_wrong(seed: int) -> None:
    """A coordinator that was started again had forgotten that the code threw; a source whose rows cannot be read again
    was called safe when those that kept them had just been replaced."""
    assert play(seed).wrong == []


def complaints(job: SimJob, *faults: Fault, hosts: int = 4, stories: int = 30) -> list[str]:
    found: list[str] = []
    for seed in range(stories):
        world = World(job, hosts=hosts, seed=seed, conditions=Conditions(epochs=25))
        story = Story(seed, "", "", hosts)
        moved = [Fault(f.kind, f.at + 0.017 * seed, f.lasts_s, f.pick + seed) for f in faults]
        finish_and_judge(world, Saboteur(world, moved), story)
        found += story.wrong
    return found


def test_a_stop_that_counts_silence_as_an_answer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    job = uniform(SHAPES["chain"], POLICIES["active"])
    harm = (Fault("isolation", 0.5, 1.0, 0), Fault(STOP, 0.55, 0.2, 0))
    assert complaints(job, *harm) == []
    asked_of_all = Stop.over

    def over(self: Stop, plan: Plan) -> bool:
        answered = {name: unit for name, unit in plan.units.items() if name in self._done}
        return bool(answered) and asked_of_all(self, Plan(plan.serial, answered))

    monkeypatch.setattr(Stop, "over", over)
    assert complaints(job, *harm)


def killed_after_a_stop(victim: str) -> list[str]:
    """The first host that dies does so as soon as the job has begun again."""
    world = world_of(UpstreamBackup())
    saboteur = Saboteur(world, [Fault(STOP, 1.0, 0.2, 0)])
    while not told(world, "begins again"):
        world.engine.run(world.engine.now + 0.01)
    world.engine.run(world.engine.now + 0.05)
    host = world.coordinator.failover.plan.units[victim].primary
    assert host is not None
    world.hosts[host].crash()
    finish(world, saboteur)
    assert not saboteur.beyond
    return judge(world)


@pytest.mark.parametrize("unit", ["a", "b"])
def test_a_last_checkpoint_without_the_output_is_caught(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that is rebuilt by replay after the stop needs what was sent before it."""
    assert killed_after_a_stop(unit) == []
    version = Copy.version
    monkeypatch.setattr(Copy, "version", lambda self, epoch, *, queue: version(self, epoch, queue=False))
    assert unit == "a" or killed_after_a_stop(unit)


def test_a_last_checkpoint_that_is_not_the_last_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(self: Copy, epoch: int, *, queue: bool) -> Version | None:
        return Version(epoch, self.world.job.fresh(self.name), epoch + 1)

    monkeypatch.setattr(Copy, "version", stale)
    assert complaints(uniform(SHAPES["chain"], POLICIES["none"], span=0), Fault(STOP, 0.8, 0.2, 0))


def test_calling_a_job_clean_that_died_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units without protection have left nothing."""
    job = uniform(SHAPES["chain"], POLICIES["none"])
    assert complaints(job, Fault(ALL_KILLED, 0.8, 0.2, 0)) == []
    begin = Coordinator._begin

    def clean(self: Coordinator) -> None:
        if self.journal is not None:
            self.journal = replace(self.journal, state="stopped")
        begin(self)

    monkeypatch.setattr(Coordinator, "_begin", clean)
    assert any("nobody holds" in text for text in complaints(job, Fault(ALL_KILLED, 0.8, 0.2, 0)))


def test_code_that_is_tried_for_ever_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from understudy.core.failover import Failover

    job = uniform(SHAPES["chain"], POLICIES["sweeping-2"])
    assert complaints(job, Fault(POISON, 0.8, 0.2, 0), stories=3) == []
    threw = Failover._stage_threw

    def forgets(self: Failover, event: StageThrew, unit: UnitPlan) -> list[Effect]:
        return threw(self, event, replace(unit, threw=None))

    monkeypatch.setattr(Failover, "_stage_threw", forgets)
    found = complaints(job, Fault(POISON, 0.8, 0.2, 0), stories=1)
    assert any("again and again" in text for text in found)


def test_a_throw_that_nobody_hears_of_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    job = uniform(SHAPES["chain"], POLICIES["sweeping"])
    assert complaints(job, Fault(THROW, 0.8, 1.5, 0), stories=3) == []
    monkeypatch.setattr("understudy.sim.members.Member.threw", lambda self, stage, epoch: None)
    assert any("no progress" in text for text in complaints(job, Fault(THROW, 0.8, 1.5, 0), stories=3))




def test_a_stage_that_begins_anew_while_the_job_is_stopped_comes_to_its_end() -> None:
    """Found by the fuzzer: without protection it began after the newest epoch of one input, beyond the last that its
    other input would ever make, and there was no state of the epoch that it was asked to end at."""
    assert play(3_009_636).wrong == []


def test_a_stage_whose_consumer_ends_earlier_comes_to_its_own_end() -> None:
    """Found by the fuzzer: the sources of a join had stopped at different epochs, and the stage before it waited for
    the join to take what it had made, which the join never would."""
    assert play(3_001_747).wrong == []
