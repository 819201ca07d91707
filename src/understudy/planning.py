"""What to expect of a job before it runs: per unit its operators, what is kept where, what a crash and what being
protected against it cost; and the policies that ``us.auto`` chooses.

A profile says what the job does while all is well: rows and bytes of every stream, time and state of every stage. It is
measured while the job runs (``runtime/profile.py``); before the first run there are stated defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from understudy.core.choice import Choice, NoPolicy, choose
from understudy.core.costs import Estimate, estimate, estimate_source, heard, reach_s
from understudy.core.operators import OperatorClass
from understudy.core.policies import Auto, Policy
from understudy.core.profile import Profile
from understudy.core.topology import Topology, UnitShape
from understudy.errors import JobError, SetupError
from understudy.job import Job
from understudy.sources import RATE_SCHEMA, RateSource, SparkSource

DEFAULT_ROWS_PER_S = 1000.0
DEFAULT_ROW_BYTES = 50.0
DEFAULT_STATE_BYTES = 10e6
"""State of a stage that keeps any: what Meteor Shower's applications have in each unit, on average."""
DEFAULT_STATE_SHARE = 0.1
"""Bytes of state changed per byte taken in. Sent packed, as logs and as tables, it is the tenth of Gu et al. 2009,
Figure 5."""


@dataclass
class Measured:
    """A profile file: what streams carry and stages do, and what protection sent beside it."""

    streams: dict[str, dict[str, float]] = field(default_factory=dict)
    """Stream -> ``rows_per_s``, ``bytes_per_s``."""
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    """Stage -> ``batch_s``, ``state_bytes``, ``delta_bytes``."""
    ha_ratio: float | None = None
    """Of the whole job: bytes sent for protection per byte of data."""
    seconds: float = 0.0
    """How long was measured."""

    @classmethod
    def read(cls, path: Path) -> Measured | None:
        """None when nothing was measured yet."""
        try:
            found = cls(**json.loads(path.read_text()))
            for numbers in (*found.streams.values(), *found.stages.values()):
                if not all(isinstance(n, (int, float)) and n >= 0 for n in numbers.values()):
                    raise ValueError("a number is not one")
            return found
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, AttributeError) as error:
            raise SetupError(f"{path} is damaged ({error}); delete it, and the next run measures anew") from None


def profiles(
    job: Job, topology: Topology, operators: Mapping[str, OperatorClass], measured: Measured | None
) -> dict[str, Profile]:
    """Unit -> profile: what was measured, and the defaults for the rest."""
    known = measured or Measured()
    streams = {name: {**_default_stream(job, name), **known.streams.get(name, {})} for name in topology.stages}
    found = {}
    for unit in topology.units.values():
        profile = _profile(job, topology, unit, operators, streams, known)
        hears = [
            how
            for stage, consumers in heard(topology, operators, profile.step_s).items() if stage in unit.stages
            for consumer, how in consumers.items() if consumer not in unit.stages
        ]  # fmt: skip
        found[unit.name] = replace(
            profile,
            behind_s=max((how.behind_s for how in hears), default=0.0),
            heard_every_s=max((how.every_s for how in hears), default=None),
        )
    return found


def _profile(
    job: Job,
    topology: Topology,
    unit: UnitShape,
    operators: Mapping[str, OperatorClass],
    streams: Mapping[str, Mapping[str, float]],
    known: Measured,
) -> Profile:
    inside = set(unit.stages)
    taken = [i for s in unit.stages for i in topology.stages[s].inputs if i not in inside]
    given = [s for s in unit.stages if not inside.issuperset(topology.consumers(s))]
    bytes_per_s = sum(streams[name]["bytes_per_s"] for name in taken)
    default = Profile()
    batch_s = state_bytes = delta_bytes = 0.0
    for name in unit.stages:
        stage, found = known.stages.get(name, {}), operators.get(name)
        keeps = found is not None and found.state != "stateless"
        changed = DEFAULT_STATE_SHARE * bytes_per_s * job.epoch_s if keeps else 0.0
        batch_s += stage.get("batch_s") or default.batch_s
        state_bytes += stage.get("state_bytes", DEFAULT_STATE_BYTES if keeps else 0.0)
        delta_bytes += stage.get("delta_bytes", changed)
    return Profile(
        epoch_s=job.epoch_s,
        rows_per_s=sum(streams[name]["rows_per_s"] for name in taken),
        bytes_per_s=bytes_per_s,
        output_bytes_per_s=sum(streams[name]["bytes_per_s"] for name in given),
        state_bytes=state_bytes,
        delta_bytes=delta_bytes,
        batch_s=batch_s,
    )


def _default_stream(job: Job, name: str) -> dict[str, float]:
    """As many rows as come out of the sources above it."""
    stage = job.stages[name]
    if stage.inputs:
        above = [_default_stream(job, i) for i in stage.inputs]
        return {key: sum(stream[key] for stream in above) for key in ("rows_per_s", "bytes_per_s")}
    if isinstance(stage.source, RateSource) and stage.source.rows_per_second is not None:
        row_bytes = sum(field.type.bit_width // 8 for field in RATE_SCHEMA)
        return {
            "rows_per_s": stage.source.rows_per_second, "bytes_per_s": stage.source.rows_per_second * row_bytes
        }  # fmt: skip
    return {"rows_per_s": DEFAULT_ROWS_PER_S, "bytes_per_s": DEFAULT_ROWS_PER_S * DEFAULT_ROW_BYTES}


# -- goals ------------------------------------------------------------------------------------------------------------


def goals(topology: Topology) -> list[UnitShape]:
    """The units that have a goal in the place of a policy."""
    return [unit for unit in topology.units.values() if unit.policy.is_goal]


def choices(
    job: Job, topology: Topology, operators: Mapping[str, OperatorClass], measured: Measured | None
) -> dict[str, Choice]:
    """The policy for every unit that has a goal in its place. Raises JobError."""
    chosen: dict[str, Choice] = {}
    for unit in reversed(goals(topology)):  # what protects those below counts
        topology = topology.under({name: choice.policy for name, choice in chosen.items()})
        profile = profiles(job, topology, operators, measured)[unit.name]
        try:
            fits = partial(_spoils_nothing, topology, unit.name)
            chosen[unit.name] = choose(cast(Auto, unit.policy), profile, _classes(unit, operators), fits)
        except NoPolicy as error:
            where = job.stages[unit.stages[0]].where
            raise JobError(f"{where}: us.auto for unit {unit.name!r}: {error}") from None
    return chosen


def _spoils_nothing(topology: Topology, unit: str, policy: Policy) -> bool:
    """Under that policy the unit takes no row from what needs them all: itself, or what it feeds."""
    return set(topology.under({unit: policy}).spoiled()) <= set(topology.spoiled())


def _classes(unit: UnitShape, operators: Mapping[str, OperatorClass]) -> list[OperatorClass]:
    return [operators[stage] for stage in unit.stages if stage in operators]


# -- outlook ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outlook:
    """What to expect of one unit."""

    unit: str
    stages: dict[str, OperatorClass | None]
    """None: a source that the host reads, without Spark."""
    policy: Policy
    why: tuple[str, ...]
    """Why ``us.auto`` chose this policy; empty where the user did."""
    kept: str
    recovery: str
    """``precise``, ``rollback`` or ``gap``."""
    recovery_cause: str
    saved: dict[str, str]
    """Of every stage whose state is saved now and then: what of it."""
    missing: dict[str, str]
    """Of every stage that may lose something: what may be wrong after a crash, and for how long."""
    stated: Estimate
    """By the formulas, with the stated defaults."""
    measured: Estimate | None
    """By the formulas, with what was measured."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "stages": {n: c.to_dict() if c else None for n, c in self.stages.items()},
            "policy": self.policy.describe(),
            "why": list(self.why),
            "kept": self.kept,
            "recovery": self.recovery,
            "recovery_cause": self.recovery_cause,
            "saved": self.saved,
            "missing": self.missing,
            "stated": _numbers(self.stated),
            "measured": _numbers(self.measured) if self.measured else None,
        }


def outlook(
    job: Job, topology: Topology, operators: Mapping[str, OperatorClass], measured: Measured | None
) -> list[Outlook]:
    """Unit by unit, upstream first. Goals are resolved as a run would resolve them; ``job`` is left as it is."""
    chosen = choices(job, topology, operators, measured)
    topology = topology.under({name: choice.policy for name, choice in chosen.items()})
    stated = profiles(job, topology, operators, None)
    known = profiles(job, topology, operators, measured) if measured else None
    found = []
    for unit in topology.units.values():
        choice, policy = chosen.get(unit.name), unit.policy
        classes = _classes(unit, operators)
        known_stages = {stage: operators[stage] for stage in unit.stages if stage in operators}
        missing = {} if policy.protected else {s: text for s, c in known_stages.items() if (text := policy.missing(c))}
        recovery, cause = _recovery(missing, classes)
        found.append(
            Outlook(
                unit=unit.name,
                stages={stage: operators.get(stage) for stage in unit.stages},
                policy=policy,
                why=choice.why if choice else (),
                kept=_kept(job, topology, unit, policy, classes, (known or stated)[unit.name]),
                recovery=recovery,
                recovery_cause=cause,
                saved={s: text for s, c in known_stages.items() if (text := policy.saved(c))},
                missing=missing,
                stated=_estimate(job, unit, policy, classes, stated[unit.name]),
                measured=_estimate(job, unit, policy, classes, known[unit.name]) if known else None,
            )
        )
    return found


def _estimate(job: Job, unit: UnitShape, policy: Policy, classes: list[OperatorClass], profile: Profile) -> Estimate:
    if len(unit.stages) == 1 and (source := job.stages[unit.stages[0]].source) is not None:
        return estimate_source(profile, preserved=isinstance(source, SparkSource))
    return estimate(policy, profile, reach_s=reach_s(classes, profile.rows_per_s))


def _recovery(missing: Mapping[str, str], classes: list[OperatorClass]) -> tuple[str, str]:
    """A plan is only as good as its weakest operator (D-Bobox 2014, Section II)."""
    if missing:
        named = [f"{stage}: {text}" for stage, text in missing.items()] if len(classes) > 1 else missing.values()
        return "gap", "; ".join(dict.fromkeys(named))
    weak = next((found for found in classes if found.determinism == "arbitrary"), None)
    if weak is not None:
        return "rollback", f"nothing is lost, but what is made again may differ: {weak.determinism_cause}"
    return "precise", "as if nothing had happened"


def _kept(
    job: Job, topology: Topology, unit: UnitShape, policy: Policy, classes: list[OperatorClass], profile: Profile
) -> str:
    sources = [job.stages[s].source for s in unit.stages if job.stages[s].source is not None]
    if sources and len(sources) == len(unit.stages):
        what = "its rows" if any(isinstance(s, SparkSource) for s in sources) else "what each epoch holds"
        return f"{what}, on a standby"
    inputs = sorted({i for s in unit.stages for i in topology.stages[s].inputs} - set(unit.stages))
    return policy.kept(profile, inputs, reach_s=reach_s(classes, profile.rows_per_s))


def _numbers(found: Estimate) -> dict[str, float]:
    names = ("silence_s", "worst_s", "full_recovery_s", "ha_ratio", "cpu_ratio", "overhead")
    return {name: round(getattr(found, name), 4) for name in names}
