"""The world that hosts live in: time, the network between them, disks that survive, and everything that can go wrong.

A node's code runs only within its current ``Life``, which a crash ends at once and a pause freezes. Messages carry the
name of the method that takes them; one sent to a process that has died since is lost, as a connection would be.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from understudy.core.directory import Policies
from understudy.core.numbers import Epoch
from understudy.sim.engine import Died, Engine, Life

if TYPE_CHECKING:
    from understudy.core.failover import StopJob
    from understudy.sim.coordinator import Coordinator
    from understudy.sim.hosts import Host
    from understudy.sim.model import SimJob


@dataclass(frozen=True)
class Conditions:
    """The world's constants. Times in seconds."""

    epoch_s: float = 0.1
    """A source cuts an epoch this often, if it is wanted."""
    process_s: float = 0.01
    delay_s: float = 0.001
    """Of every message, plus up to ``jitter_s``, so that messages overtake each other."""
    jitter_s: float = 0.002
    disk_s: float = 0.002
    heartbeat_s: float = 0.1
    misses: int = 3
    retry_s: float = 0.25
    """What got no answer is sent again after this time."""
    asks_late: bool = False
    """Stages ask for an epoch when they are about to want it, as on real hosts; else as soon as there is room."""
    epochs: int = 30
    """Sources stop after this many."""

    def __post_init__(self) -> None:
        for name in ("epoch_s", "process_s", "heartbeat_s", "retry_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be longer than nothing")
        for name in ("delay_s", "jitter_s", "disk_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r} cannot be negative")
        if self.epochs < 1 or self.misses < 1:
            raise ValueError(f"epochs={self.epochs}, misses={self.misses}: both must be at least 1")


class World:
    """One story. ``job`` says what runs, ``conditions`` how fast, ``seed`` everything that is left to chance."""

    def __init__(self, job: SimJob, *, hosts: int, seed: int = 0, conditions: Conditions | None = None) -> None:
        from understudy.sim.coordinator import Coordinator
        from understudy.sim.hosts import Host
        from understudy.sim.sinks import SinkStore

        self.job, self.topology = job, job.topology
        self.seed = seed
        self.conditions = conditions or Conditions()
        self.epochs = self.conditions.epochs
        """How many epochs sources cut; may be raised."""
        self.engine = Engine()
        self.random = random.Random(seed)
        self._chance = self.random.random
        self.story: list[tuple[float, str]] | None = None
        """Set to a list to have the story told; costs time."""
        self.violations: list[str] = []
        self.acknowledged: dict[str, Epoch] = {}
        """Stage -> the newest epoch of its input that any of its primaries has acknowledged."""
        self.saved: dict[tuple[str, str], Epoch] = {}
        """Stage, and standby as its primary knows it -> the newest state that the primary knows to be safe there."""
        self.effects = 0
        """Orders of machines carried out so far; each is a place to crash at."""
        self.crash_at: dict[tuple[int, str], Callable[[Node], None]] = {}
        """(number of the effect, "before" or "after") -> what to do to the node that carries it out."""
        self._delay_s, self._jitter_s = self.conditions.delay_s, self.conditions.jitter_s
        self.loss = 0.0
        self.late = 0.0
        """Shares of messages that get lost, or come half a second late."""
        self.cut: set[frozenset[str]] = set()
        """Pairs of nodes that cannot hear each other."""
        self.on_trim: Callable[[str, Epoch], None] | None = None
        self.on_decision: Callable[[Any], None] | None = None
        """Told of every event that the coordinator is about to decide on."""
        self.on_stopped: Callable[[], None] | None = None
        """Told that a clean stop is done: the job is to end now."""
        self.on_giving_up: Callable[[StopJob], bool] | None = None
        """Told that the job stops because a stage throws; whether that is as it should be."""
        self.throws: Callable[[str, str, Epoch], bool] | None = None
        """Whether the code of a stage on a host throws at an epoch; None: no code does."""
        self.remember = True
        """Whether all that was cut and written is kept, for checkers; else only the newest, so that memory is flat."""
        self.cuts: dict[str, dict[Epoch, int]] = {n: {} for n, s in self.topology.stages.items() if not s.inputs}
        """What every source has shown to its consumers."""
        self.monitors = sorted({u.monitor for u in self.topology.units.values() if u.monitor})
        """Hosts that watch others. Everybody's heartbeats go to them too."""
        self.number = {name: i for i, name in enumerate(self.topology.stages)}
        self.policies = Policies(self.topology)
        """As the job defines them."""
        self.sinks = {
            f"sink:{s}": SinkStore(f"sink:{s}", self) for shape in self.topology.stages.values() for s in shape.sinks
        }
        self.coordinator: Coordinator = Coordinator(self)
        self.hosts: dict[str, Host] = {f"h{i + 1}": Host(f"h{i + 1}", self) for i in range(hosts)}
        self.nodes: dict[str, Node] = {self.coordinator.name: self.coordinator, **self.hosts}
        self.coordinator.start()
        for host in self.hosts.values():
            host.start()

    # -- telling ------------------------------------------------------------------------------------------------------

    def tell(self, who: str, text: str) -> None:
        if self.story is not None:
            self.story.append((self.engine.now, f"{who:>11}  {text}"))

    def violate(self, text: str) -> None:
        self.tell("CHECK", text)
        self.violations.append(f"{self.engine.now:.3f} s: {text}")

    def shown(self, source: str, epoch: Epoch, value: int) -> None:
        """A source lets its consumers see an epoch, perhaps not for the first time."""
        cuts = self.cuts[source]
        if cuts.setdefault(epoch, value) != value:
            self.violate(f"{source} showed epoch {epoch} as {cuts[epoch]} and again as {value}")
        if not self.remember:
            cuts.pop(Epoch(epoch - 100), None)

    def stopped(self) -> None:
        """A clean stop is done; told to whoever has asked for it."""
        if self.on_stopped is not None:
            self.engine.after(0.0, self.on_stopped)

    def gave_up(self, stop: StopJob) -> None:
        """The coordinator stops the job because of a stage."""
        self.tell("JOB", f"stops: {stop.stage} threw at epoch {stop.epoch}")
        if self.on_giving_up is None or not self.on_giving_up(stop):
            self.violate(f"stage {stop.stage} stopped the job: {stop.cause}")

    def end(self) -> None:
        """Every process ends; what is on disks stays."""
        for node in self.nodes.values():
            node.crash(quietly=True)

    def begin_again(self) -> None:
        """Every process is started again."""
        for node in self.nodes.values():
            node.restart()

    def trimmed(self, stream: str, epoch: Epoch) -> None:
        """A queue was trimmed up to ``epoch``; told to whoever checks."""
        if self.on_trim is not None:
            self.on_trim(stream, epoch)

    # -- the network --------------------------------------------------------------------------------------------------

    def send(self, source: Node, to: str, unit: str | None, method: str, arguments: tuple[Any, ...]) -> None:
        """A message to a node, or to a unit on it."""
        target = self.nodes[to]
        if not target.alive or (self.cut and frozenset((source.name, target.name)) in self.cut):
            return
        if self.loss and self._chance() < self.loss:
            return
        delay = self._delay_s + self._jitter_s * self._chance() + source.lag_s
        if self.late and self._chance() < self.late:
            delay += 0.5
        target.living.after(delay, target.receive, unit, method, arguments)


class Node:
    """A process: it lives, pauses, dies and lives again, with its disk but without its memory."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world, self._engine = name, world, world.engine
        self.life = 0
        """Which one this is: raised by every death and every start."""
        self.living = Life(self._engine)
        """What is planned for this node is planned here: only this life of it will do it."""
        self.alive = True
        self.died_at = -1.0
        self.paused = False
        self.lag_s = 0.0
        """How much slower than others this node is to send."""
        self.units: Mapping[str, object] = {}
        """Those that run here, by name."""

    @property
    def now(self) -> float:
        return self._engine.now

    def start(self) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        """Lose everything that is not on disk."""
        raise NotImplementedError

    def receive(self, unit: str | None, method: str, arguments: tuple[Any, ...]) -> None:
        """A message has come, for this node or for a unit that is or was on it."""
        receiver = self if unit is None else self.units.get(unit)
        if receiver is not None:
            getattr(receiver, method)(*arguments)

    def tell(self, text: str) -> None:
        if self.world.story is not None:
            self.world.tell(self.name, text)

    # -- what can go wrong --------------------------------------------------------------------------------------------

    def crash(self, *, quietly: bool = False) -> None:
        """End this life. ``quietly``: no connection tells anybody, as when a machine loses power."""
        if not self.alive:
            return
        self.tell("DIES" + (" without a sound" if quietly else ""))
        self.life += 1
        self.died_at = self.now
        self.alive = self.paused = False
        self.living.end()
        self.forget()
        if not quietly:
            self.world.coordinator.hear_of_death(self.name, self.life - 1)

    def restart(self) -> None:
        if self.alive:
            return
        self.tell("is started again")
        self.life += 1
        self.living = Life(self._engine)
        self.alive = True
        self.start()

    def pause(self) -> None:
        if self.alive:
            self.tell("freezes")
            self.paused = True
            self.living.freeze()

    def resume(self) -> None:
        if not self.paused:
            return
        self.tell("thaws")
        self.paused = False
        self.living.thaw()

    def carry_out(self, effect: Any, act: Callable[[Any], None]) -> None:
        """Carry out one order of a machine; before and after each, the world may end this life."""
        world = self.world
        world.effects += 1
        if world.crash_at:
            number = world.effects
            self._perhaps(number, "before")
            act(effect)
            self._perhaps(number, "after")
        else:
            act(effect)

    def _perhaps(self, number: int, when: str) -> None:
        harm = self.world.crash_at.get((number, when))
        if harm is not None:
            life = self.life
            harm(self)
            if self.life != life:
                raise Died
