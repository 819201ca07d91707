"""Shared by the tests of failover: machines in a known state, and plans and effects written short.

One unit "u" of one stage "s"; hosts A, B, C. A unit is written generation:primary/standbys; behind each standby the
serial of the plan that made it one, and + when it is ready; then what the primary starts from, whether a standby is
rising, a policy that was changed to, and behind => the one that it changes to with its standbys. #n is the serial of
the plan."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from understudy.core.failover import (
    Begin,
    Effect,
    Event,
    Failover,
    HostJoined,
    HostLost,
    Publish,
    StopJob,
)
from understudy.core.plans import Plan, Standbys, UnitPlan
from understudy.core.policies import PassiveStandby, Policy, none
from understudy.core.topology import StageShape, Topology, UnitShape

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines
PASSIVE = PassiveStandby()


def chain(first: Policy = PASSIVE, second: Policy = PASSIVE, third: Policy = none) -> Topology:
    """Two protected units and an unprotected one, in a row."""
    stages = [StageShape("cars"), StageShape("means", ("cars",)), StageShape("alarms", ("means",), ("alarms",))]
    units = [
        UnitShape("cars", ("cars",), first),
        UnitShape("means", ("means",), second),
        UnitShape("alarms", ("alarms",), third),
    ]
    return Topology.build(stages, units)


def on(topology: Topology, *hosts: str) -> Failover:
    machine = Failover(topology)
    for host in hosts:
        assert machine.handle(HostJoined(host), 0.0) == []
    return machine


def one_unit(policy: Policy, hosts: str, *, primary: str | None = None, standbys: str = "") -> Failover:
    unit = UnitShape("u", ("s",), policy, primary, tuple(standbys))
    return on(Topology.build([StageShape("s")], [unit]), *hosts)


def begun(policy: Policy, hosts: str) -> Failover:
    return after(one_unit(policy, hosts), Begin())


def adopted(policy: Policy, hosts: str, unit: UnitPlan) -> Failover:
    machine = one_unit(policy, hosts)
    machine.adopt(Plan(7, {"u": unit}))
    return machine


def plan(serial: int, **units: UnitPlan) -> Publish:
    return Publish(Plan(serial, units))


def held_by(
    generation: int,
    primary: str,
    standby: str | None = None,
    since: int = 0,
    *,
    ready: bool = False,
    start: str = "fresh",
) -> UnitPlan:
    """A unit with at most one standby."""
    if standby is None:
        return UnitPlan(generation, primary, start=start)
    return UnitPlan(generation, primary, (standby,), (standby,) if ready else (), start, (since,))


def after(machine: Failover, *events: Event) -> Failover:
    for event in events:
        machine.handle(event, 0.0)
    return machine


def lost(host: str) -> HostLost:
    return HostLost(host, "x")


def shown(plan: Plan) -> str:
    unit = plan.units["u"]
    where = f"{unit.generation}:{unit.primary or '-'}/{_standing(unit)}"
    under = f" under {unit.policy}" if unit.policy else ""
    turn = f" => {unit.turn.policy}/{_standing(unit.turn)}" if unit.turn else ""
    return f"#{plan.serial} {where} {unit.start}{' rising' if unit.rising else ''}{under}{turn}"


def _standing(some: Standbys) -> str:
    pairs = zip(some.standbys, some.since, strict=True)
    return "".join(f"{s}{since}{'+' if s in some.ready else ''}" for s, since in pairs) or "-"


def render(effects: list[Effect]) -> str:
    """All of the effects but the text for people."""
    words = []
    for effect in effects:
        if isinstance(effect, Publish):
            words.append(shown(effect.plan))
        elif isinstance(effect, StopJob):
            words.append(f"STOP {effect.stage}@{effect.epoch} {effect.cause}")
        else:
            assert effect.unit == (None if effect.kind == "host-lost" else "u")
            words.append(effect.kind + (f" {effect.host}" if effect.host else ""))
    return " | ".join(words)
