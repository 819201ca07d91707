"""Judging a simulated story: the shared checkers on every sink, trim safety while it runs, liveness at its end."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from understudy.core.numbers import FIRST_EPOCH, Epoch, after
from understudy.core.topology import Topology
from understudy.sim.coordinator import STOPPING
from understudy.sim.model import kept_for, kept_for_rows
from understudy.sim.sources import SourceUnit
from understudy.sim.units import Unit
from understudy.verify.checkers import check_sink

if TYPE_CHECKING:
    from understudy.sim.nodes import World


def judge(world: World, unprotected: Collection[str] = ()) -> list[str]:
    """All that is wrong with the story: what was seen on the way, what sinks have and what they lack. Below units that
    were lost when they were ``unprotected`` rows may be missing or differ; the rest holds there too."""
    wrong = list(world.violations)
    epochs = world.epochs
    short = [name for name, cuts in world.cuts.items() if len(cuts) < epochs]
    if short:
        shown = [len(world.cuts[s]) for s in short]
        return [*wrong, f"no progress: {', '.join(short)} showed only {shown} of {epochs} epochs"]
    logs = {name: [cuts[Epoch(e)] for e in range(epochs)] for name, cuts in world.cuts.items()}
    last = Epoch(epochs - 1)
    expected = world.job.expected(logs, last)
    may_differ = _below(world.topology, unprotected)
    for name, shape in world.topology.stages.items():
        for sink in shape.sinks:
            store = world.sinks[f"sink:{sink}"]
            right = None if name in may_differ else {Epoch(e): value for e, value in enumerate(expected[name])}
            found = check_sink(store.written, expected=right)
            wrong += [f"{sink}: {text}" for text in (found if right is None else [*store.rewritten, *found])]
            if last not in store.values:
                wrong.append(f"no progress: {sink} has no epoch {last}")
    return wrong


def _below(topology: Topology, units: Collection[str]) -> set[str]:
    """The stages of ``units``, and all that is fed by them; not those that need all their input, which they get."""
    stages = topology.stages
    return topology.fed_by(s for unit in units for s in topology.units[unit].stages if not stages[s].needs_all_input)


def unturned(world: World) -> list[str]:
    """Units that are still between two policies."""
    plan = world.coordinator.journalled.units
    return [f"no progress: {name} is still to come under {u.turn.policy}" for name, u in plan.items() if u.turn]


def unended(world: World) -> list[str]:
    """A clean stop that was asked for, and never came to its end."""
    journal = world.coordinator.journal
    return ["no progress: the job does not stop"] if journal is not None and journal.state == STOPPING else []


def undrained(world: World) -> list[str]:
    """Queues that hold more than their last few epochs: a checkpoint's worth for every stage below, each as many epochs
    as go by while one is written."""
    writing = world.conditions.disk_s / world.conditions.epoch_s
    slack = len(world.topology.stages) * (1 + int(writing)) + 6
    slack += sum(kept_for(window) for window in world.job.windows.values())
    slack += sum(kept_for_rows(count) for count in world.job.rows.values())
    found: list[str] = []
    for host in world.hosts.values():
        for unit in host.units.values():
            if not unit.primary or unit.fenced:
                continue
            for stream, output in unit.outputs().items():
                held = output.queue.next - 1 - output.queue.trimmed
                if held > slack:
                    found.append(f"no progress: {stream} on {host.name} still holds {held} epochs")
    return found


def watch_trims(world: World) -> None:
    """From now on, complain when something is trimmed that a permitted failure would still need.

    Checked for the failure of each consumer's primary: its ready standbys' version, or their running copy,
    must not need what is gone.
    """

    def on_trim(stream: str, epoch: Epoch) -> None:
        plan = world.coordinator.journalled.units
        for consumer in world.topology.consumers(stream):
            unit = world.topology.unit_of.get(consumer)
            if unit is None or unit == world.topology.unit_of[stream]:
                continue
            turn = plan[unit].turn
            for name in (*plan[unit].ready, *(turn.ready if turn else ())):
                needed = _needs_after(world, name, unit, consumer)
                if needed is not None and needed <= epoch:
                    world.violate(
                        f"{stream} was trimmed to {epoch}, but {consumer}'s standby {name} would need {needed}"
                    )

    world.on_trim = on_trim


def _needs_after(world: World, host: str, unit: str, stage: str) -> Epoch | None:
    """The first input epoch that a standby would ask for; None when it is dead or not set up, so not counted on."""
    node = world.hosts[host]
    here = node.units.get(unit)
    if not node.alive or here is None or here.primary or isinstance(here, SourceUnit):
        return None
    assert isinstance(here, Unit)
    if here.policy.recovery == "saved" and not world.topology.stages[stage].needs_all_input:
        return None  # it goes on with what its producers still have
    if here.policy.standby_runs:
        copy = here.copies.get(stage)
        return FIRST_EPOCH if copy is None else after(copy.done)
    held = node.disk.newest(stage)
    return FIRST_EPOCH if held is None else after(held.epoch)
