"""Which policy each unit of a job is under, where its file leaves that open or its user changes it while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy import planning
from understudy.core import failover
from understudy.core.policies import Policy, parse, spell
from understudy.errors import JobError, UnderstudyError
from understudy.planning import Measured
from understudy.runtime import messages, profile, wire
from understudy.runtime.journal import Kept
from understudy.runtime.wire import Refusal

if TYPE_CHECKING:
    from understudy.runtime.coordinator import Coordinator


class Choosing:
    """Lives under its coordinator's lock."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.chosen: dict[str, str] = {}
        """Unit -> what was chosen for it in the place of a goal."""

    # -- goals -----------------------------------------------------------------------------------------------------

    def go_on_with(self, journal: Kept | None) -> None:
        """Use what was chosen before."""
        self._use(self._chosen_before(journal))

    def resolve(self) -> None:
        """Put policies in the place of goals (``us.auto``): those that the stopped job ran under, else chosen now."""
        coordinator = self.coordinator
        self.go_on_with(coordinator.journal.read())
        if not planning.goals(coordinator.topology):
            return
        measured = Measured.read(coordinator.config.folder / profile.FILE)
        chosen = planning.choices(coordinator.job, coordinator.topology, coordinator.operators, measured)
        self._use({**self.chosen, **{unit: spell(c.policy) for unit, c in chosen.items()}})
        for unit, choice in chosen.items():
            coordinator.say("chosen", f"{unit}: {choice.why[0]}", unit=unit)

    def _chosen_before(self, journal: Kept | None) -> dict[str, str]:
        """For units that still have a goal, and stages that still allow it: the user may have changed either."""
        kept, operators = {}, self.coordinator.operators
        for unit in planning.goals(self.coordinator.topology):
            policy = journal and journal.policies.get(unit.name)
            found = [operators[s] for s in unit.stages if s in operators]
            if policy and not (parse(policy).recovery == "replay" and any(f.refusal for f in found)):
                kept[unit.name] = policy
        return kept

    def _use(self, chosen: dict[str, str]) -> None:
        if chosen:
            self.chosen = chosen
            job = self.coordinator.job
            job.resolve({unit: parse(policy) for unit, policy in chosen.items()})
            self.coordinator.define(job.topology())

    # -- changes while the job runs --------------------------------------------------------------------------------

    def switch_asked(self, call: messages.SwitchPolicy, body: bytes) -> messages.Switching | wire.Reply[Any]:
        try:
            text = self.switch(call.unit, parse(call.policy))
        except (UnderstudyError, ValueError) as error:
            return wire.refuse(Refusal.POLICY, str(error))
        return messages.Switching(text, turning=self._turns(call.unit))

    def await_turn(self, call: messages.AwaitTurn, body: bytes) -> messages.Switching:
        coordinator, unit = self.coordinator, call.unit
        with coordinator.changed:
            coordinator.changed.wait_for(lambda: coordinator.closed or not self._turns(unit), timeout=20)
            policy = coordinator.failover.topology.units[unit].policy
            return messages.Switching(f"{unit}: now under {policy.describe()}", self._turns(unit))

    def _turns(self, unit: str) -> bool:
        return self.coordinator.failover.plan.units[unit].turn is not None

    def switch(self, unit: str, policy: Policy) -> str:
        """Begin to change a unit's policy. Returns what was said about it; raises JobError where it cannot be."""
        coordinator = self.coordinator
        topology = coordinator.failover.topology
        if unit not in topology.units:
            raise JobError(f"there is no unit {unit!r}; units are: {', '.join(topology.units)}")
        if any(not topology.stages[stage].inputs for stage in topology.units[unit].stages):
            raise JobError(f"unit {unit!r} has a source, and that is always a passive standby; choose another unit")
        if policy.is_goal:
            raise JobError("us.auto is a goal, met when a job is started; `understudy plan` shows with which policy")
        with coordinator.changed:
            alive = len(coordinator.failover.alive)
        if policy.backups >= alive:
            raise JobError(
                f"{policy.describe()} needs {policy.backups + 1} hosts and {alive} are there; "
                f"start more with `understudy host`, or ask for at most {alive - 1} besides the primary"
            )
        for stage, lossy in topology.under({unit: policy}).spoiled():
            raise JobError(
                f"{stage!r} needs every row of its input, and unit {lossy!r} may lose some under {policy.describe()}"
            )
        coordinator.ask_check(messages.CheckJob({unit: spell(policy)}))
        with coordinator.changed:
            before = len(coordinator.events)
            coordinator.handle(failover.Switch(unit, policy))
            return str(next(e["text"] for e in coordinator.events[before:] if e.get("unit") == unit))
