"""What kind of operator a stage is, judged from what Spark's analysed plan says of it.

Two questions decide how a stage can be protected, and each answer comes with its cause, so that a user can act on it.

*State*: does the stage remember input (``stateless``), only for a while (``windowed``), or for ever (``unbounded``)?
Upstream backup rebuilds a state by replaying what producers kept, so it needs one that lets go.

*Determinism* (D-Bobox 2014, Section II.A), from the weakest to the strongest class: ``arbitrary`` operators may give
other results from the same input; ``deterministic`` ones give the same from the same state; ``convergent-capable`` ones
come to give the same also from an empty state; ``repeatable`` ones do so at once. A stage is as good as its weakest
operator. Of the paper's three causes of non-determinism (time, arrival order over inputs, randomness) lockstep epochs
leave order only where it matters within an epoch: ``first``, ``collect_list`` and their like.

Here are plain facts (``Operator``) and their judgement; ``runtime/spark_operators.py`` reads the facts out of Spark.
A user's own object (``@job.operator``) is judged by what it is declared to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

State = Literal["stateless", "windowed", "unbounded"]
Determinism = Literal["arbitrary", "deterministic", "convergent-capable", "repeatable"]
CallKind = Literal["random", "clock", "order", "partition", "declared", "assumed", "float", "timeouts", "timers"]

STATES: tuple[State, ...] = ("stateless", "windowed", "unbounded")
"""From the lightest to the heaviest."""


# -- kinds of state -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Needs:
    """What partial fault tolerance takes for one kind of state (Jacques-Silva et al. 2009, Section 4)."""

    saved: str
    """What a checkpoint has of it."""
    until: str
    """How long it is wrong when input is lost; of what nothing is wrong nothing."""


Kind = Literal["nothing", "time", "while", "rows", "keys", "pairs", "lasting", "own"]
KINDS: dict[Kind, Needs] = {
    "nothing": Needs("nothing", ""),
    "time": Needs("what is in its open windows", "until {reach} have passed: what was open then has closed"),
    "while": Needs("what the watermark has not passed", "until the watermark has passed what was there then"),
    "rows": Needs("the rows in its windows; stale ones are dropped", "until {rows} newer rows have come"),
    "keys": Needs("the newest rows of each key", "until the window of each key has newer rows"),
    "pairs": Needs("what waits for partners; producers keep what came since", "from then on"),
    "lasting": Needs("all that it remembers", "for as long as what it remembers counts"),
    "own": Needs("what its code keeps", "for as long as what its code keeps counts"),
}
"""The stateless functor; aggregates and joins by time and by rows, of whole streams and per key; the barrier, whose
rows on their way are kept for it alone; what remembers for ever; and what users write."""


# -- facts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """What rows are grouped or compared by. ``delay_s`` when Spark drops such keys behind a watermark."""

    name: str
    delay_s: float | None = None
    window: bool = False
    window_s: float | None = None
    """The window's length; None where the plan does not show it."""
    session: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A function whose results need not be the same again, and why."""

    name: str
    kind: CallKind


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the plan. ``streaming`` is false on the static side of a join."""

    name: str
    streaming: bool = True
    children: tuple[Operator, ...] = ()
    keys: tuple[Key, ...] = ()
    calls: tuple[Call, ...] = ()
    all_columns: bool = True
    """Of a deduplication: the keys are all the columns there are."""

    def walk(self) -> Iterator[Operator]:
        yield self
        for child in self.children:
            yield from child.walk()


# -- judgement ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """How long a windowed state needs its input: an input row is in no open window once the watermark has passed it by
    ``length_s``, and the watermark follows the newest row by ``delay_s``."""

    length_s: float
    delay_s: float

    @property
    def reach_s(self) -> float:
        return self.length_s + self.delay_s


@dataclass(frozen=True, slots=True)
class OperatorClass:
    """The judgement of a stage."""

    state: State
    state_cause: str
    determinism: Determinism
    determinism_cause: str
    window: Window | None = None
    """Set when the state can be rebuilt by replaying the input that this window reaches back to."""
    rows: int | None = None
    """Set when it can be by replaying so many of the newest rows."""
    kind: Kind = "lasting"
    """Of its state: a key of ``KINDS``."""
    refusal: str = ""
    """Why upstream backup cannot rebuild it; empty when it can."""
    notes: tuple[str, ...] = ()
    """What the judgement takes for granted."""

    @property
    def needs_all_input(self) -> bool:
        return self.kind == "pairs"

    @property
    def saved(self) -> str:
        """In words: what a checkpoint has of its state."""
        return KINDS[self.kind].saved

    @property
    def wrong_until(self) -> str:
        """In words: how long its results are wrong after input was lost; empty where they only lack something."""
        reach = duration(self.window.reach_s) if self.window is not None else ""
        return KINDS[self.kind].until.format(reach=reach, rows=f"{self.rows or 0:,}")

    @property
    def lets_go(self) -> bool:
        """Of old input, while newer comes."""
        return self.window is not None or self.rows is not None

    def reach_s(self, rows_per_s: float = 0.0) -> float:
        """How far back the state reaches into its input. Where nobody knows how many rows come, a window by rows is
        taken to be short."""
        if self.rows is not None:
            return float(f"{self.rows / rows_per_s:.2g}") if rows_per_s else 0.0
        return self.window.reach_s if self.window is not None else 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> OperatorClass:
        window = data["window"]
        return cls(**{**data, "window": Window(**window) if window else None, "notes": tuple(data["notes"])})


@dataclass(frozen=True, slots=True)
class _Keeps:
    """What one stateful operator keeps, and for how long."""

    operator: str
    state: State
    cause: str
    window: Window | None = None
    refusal: str = ""
    converges: bool = False
    kind: Kind = "lasting"


_NOTHING = _Keeps("", "stateless", "keeps nothing from one epoch to the next", kind="nothing")
_STATELESS = {
    "Project", "Filter", "Union", "SubqueryAlias", "View", "WithCTE", "CTERelationDef", "CTERelationRef", "Expand",
    "Generate", "LocalLimit", "Sample", "EventTimeWatermark", "StreamingRelation", "StreamingRelationV2",
    "StreamingExecutionRelation", "StreamingDataSourceV2Relation", "StreamingDataSourceV2ScanRelation", "Repartition",
    "RepartitionByExpression", "RebalancePartitions", "ResolvedHint", "Sort", "CollectMetrics", "MapInPandas",
    "MapInArrow", "MapPartitions", "MapElements", "TypedFilter", "SerializeFromObject", "LogicalRDD",
    "DeserializeToObject", "FlatMapGroupsInPandas", "FlatMapGroupsInArrow", "UpdateEventTimeWatermarkColumn",
}  # fmt: skip
"""Operators without state. One that is not listed anywhere counts as unbounded: better refused than lost."""
OPAQUE = {
    "MapInPandas": "mapInPandas",
    "MapInArrow": "mapInArrow",
    "MapPartitions": "mapPartitions",
    "MapElements": "map",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
    "TransformWithStateInPandas": "transformWithStateInPandas",
}
"""Operators that run a function of the user's, and how users call them."""
WINDOWS_PER_KEY = "WindowsPerKey"
"""Understudy's own, of ``job.join`` and ``job.aggregate``."""
KEYS_FOR_EVER = "a window per key keeps the newest rows of every key, however old they are"
_STATIC_DATA = ("LocalRelation", "Range", "LogicalRDD", "OneRowRelation")
_REASONS: dict[CallKind, str] = {
    "random": "is random",
    "clock": "reads the clock",
    "order": "depends on the order of rows within an epoch",
    "partition": "depends on how Spark cuts an epoch into partitions",
    "declared": "is declared non-deterministic",
}
_WALL_CLOCK: dict[CallKind, str] = {
    "timeouts": "is time-dependent: its timeouts go by the wall clock of each batch",
    "timers": "is time-dependent: its timers and its TTL go by the wall clock of each batch",
}


def judge(plan: Operator, *, output_mode: str | None = None) -> OperatorClass:
    """The class of a stage with this plan."""
    kept = [found for operator in plan.walk() if (found := _keeps(operator, plan, output_mode)) is not None]
    heaviest = max(kept, key=lambda found: STATES.index(found.state), default=_NOTHING)
    window, refusal = _rebuilt(plan, kept)
    determinism, why = _determinism(plan, kept)
    notes = tuple(_notes(plan))
    known: dict[str, Any] = {"kind": heaviest.kind, "refusal": refusal, "notes": notes}
    return OperatorClass(heaviest.state, heaviest.cause, determinism, why, window, **known)


def _keeps(operator: Operator, plan: Operator, output_mode: str | None) -> _Keeps | None:
    if not operator.streaming or operator.name in _STATELESS:
        return None
    if operator.name == "Join":
        if all(child.streaming for child in operator.children):
            return _forever("join", "a join of two streams keeps rows of both for matches to come")
        return None
    if operator.name == WINDOWS_PER_KEY:
        return _forever("window per key", KEYS_FOR_EVER, kind="keys")
    if operator.name in OPAQUE:
        name = OPAQUE[operator.name]
        return _forever(name, f"{name} keeps whatever its function puts into its state", kind="own")
    if operator.name == "Aggregate":
        return _aggregate(operator, plan, output_mode)
    if operator.name in ("Deduplicate", "Distinct"):
        return _deduplicate(operator)
    if operator.name == "DeduplicateWithinWatermark":
        return _within_watermark(operator)
    if operator.name == "GlobalLimit":
        return _forever("limit", "limit counts rows for ever")
    return _forever(operator.name, f"{operator.name} is not known to let go of its input")


def _aggregate(operator: Operator, plan: Operator, output_mode: str | None) -> _Keeps:
    what = f"groupBy({', '.join(key.name for key in operator.keys)})"
    if not operator.keys:
        return _forever("aggregate", "an aggregate over the whole stream never lets go of it")
    if output_mode == "complete":
        return _forever(what, f"{what} in output mode 'complete' keeps every result for ever")
    timed = next((key for key in operator.keys if key.delay_s is not None), None)
    if timed is None:
        if any(o.name == "EventTimeWatermark" for o in plan.walk()):
            missing = "without the watermark's column, or a window over it, among its keys"
            return _forever(what, f"{what} {missing} keeps every key for ever")
        return _forever(what, f"{what} without a watermark keeps every key for ever")
    if timed.session:
        return _forever(what, "session_window: a session can go on for ever, and its first row is needed until it ends")
    return _timed(what, timed)


def _deduplicate(operator: Operator) -> _Keeps:
    what = f"dropDuplicates({', '.join(key.name for key in operator.keys)})"
    timed = next((key for key in operator.keys if key.delay_s is not None and not key.session), None)
    if timed is None:
        return _forever(what, f"{what} without a watermark's column among its keys remembers every key for ever")
    return _timed(what, timed)


def _within_watermark(operator: Operator) -> _Keeps:
    """Its state is small, but not a function of recent input: the first of a chain of duplicates, however long ago,
    decides which of them pass."""
    what = f"dropDuplicatesWithinWatermark({', '.join(key.name for key in operator.keys)})"
    cause = f"{what} lets go of a key after the watermark's delay"
    why = f"which of many duplicates {what} lets pass depends on the first of them, however long ago"
    return _Keeps(what, "windowed", cause, refusal=why, kind="while")


def _timed(what: str, key: Key) -> _Keeps:
    """State that Spark drops behind the watermark, by the end of a window or by the column itself."""
    assert key.delay_s is not None
    delay = duration(key.delay_s)
    if key.window and key.window_s is None:
        cause = f"a window with a watermark of {delay} is let go of when the watermark has passed it"
        refusal = "the window's length is not visible in Spark's plan"
        return _Keeps(what, "windowed", cause, refusal=refusal, kind="while")
    window = Window(key.window_s or 0.0, key.delay_s)
    name = f"window of {duration(window.length_s)}" if key.window else what
    cause = f"{name} with a watermark of {delay} lets go of input after {duration(window.reach_s)}"
    return _Keeps(what, "windowed", cause, window, converges=True, kind="time")


def _forever(operator: str, cause: str, kind: Kind = "lasting") -> _Keeps:
    return _Keeps(operator, "unbounded", cause, refusal=cause, kind=kind)


def _rebuilt(plan: Operator, kept: list[_Keeps]) -> tuple[Window | None, str]:
    """Over which window the state can be rebuilt, or why it cannot be."""
    if not kept:
        return None, ""
    for found in kept:
        if found.refusal:
            return None, found.refusal
    if len(kept) > 1:
        names = " and ".join(found.operator for found in kept)
        return None, f"it has {len(kept)} operators with state ({names}); make a stage of each"
    marks = sum(o.name == "EventTimeWatermark" for o in plan.walk())
    used = max(1, sum(o.name == "CTERelationRef" for o in plan.walk()))
    if marks * used != 1:
        return None, "it has several watermarks; unite its inputs in a stage before, and give that one's stream one"
    return kept[0].window, ""


def _determinism(plan: Operator, kept: list[_Keeps]) -> tuple[Determinism, str]:
    for call in (call for operator in plan.walk() for call in operator.calls):
        if call.kind in _WALL_CLOCK:  # before all others: that a function cannot be looked into says less
            return "arbitrary", f"{call.name}() {_WALL_CLOCK[call.kind]}"
    for operator in plan.walk():
        if operator.name in OPAQUE:
            return "arbitrary", f"{OPAQUE[operator.name]}: a function Spark cannot look into"
        if operator.name == "Sample":
            return "arbitrary", "sample() is random"
        if operator.streaming and operator.name == "GlobalLimit":
            return "arbitrary", "limit takes whichever rows come first"
        if operator.streaming and operator.name.startswith("Deduplicate") and not operator.all_columns:
            return "arbitrary", "dropDuplicates keeps whichever row of a key comes first within an epoch"
        for call in operator.calls:
            if call.kind in _REASONS:
                return "arbitrary", f"{call.name}() {_REASONS[call.kind]}"
    if not kept:
        return "repeatable", "no state, and every function gives the same result again"
    lasting = next((found for found in kept if not found.converges), None)
    if lasting is not None:
        return "deterministic", lasting.refusal or lasting.cause
    return "convergent-capable", kept[0].cause


def _notes(plan: Operator) -> list[str]:
    notes: dict[str, None] = {}
    for operator in plan.walk():
        for call in operator.calls:
            if call.kind == "assumed":
                notes[f"{call.name}() is taken to be deterministic, as it is declared to be"] = None
            elif call.kind == "float":
                notes[f"{call.name}() of floating-point numbers can differ in the last bit with their order"] = None
        if not operator.streaming and not operator.children and operator.name not in _STATIC_DATA:
            notes["a static table is read anew in every epoch; recovery is exact while it does not change"] = None
    return list(notes)


def duration(seconds: float) -> str:
    """As people write it: ``500 ms``, ``10 s``, ``2 min``."""
    for unit, size_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size_s and seconds % size_s == 0:
            return f"{seconds / size_s:g} {unit}"
    return f"{seconds:g} s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:g} ms"


# -- a user's own object ----------------------------------------------------------------------------------------------


def of_object(
    *, stateless: bool, needs_all_input: bool = False, query: OperatorClass | None = None
) -> OperatorClass:
    """The judgement of an object that is given its input, or what a ``query`` has made of it. Its code is not looked
    at."""
    trusted = "its code is trusted to give the same again"
    if not stateless:
        cause = "an object keeps what it likes"
        return OperatorClass(
            state="unbounded", state_cause=cause, determinism="deterministic", determinism_cause=trusted,
            kind="pairs" if needs_all_input else "own", notes=(trusted,),
            refusal=f"{cause}; if it keeps nothing, say @job.operator(..., stateless=True)",
        )  # fmt: skip
    if query is not None:
        return replace(query, notes=(*query.notes, trusted))
    return OperatorClass(
        state="stateless", state_cause="declared with stateless=True", determinism="repeatable", kind="nothing",
        determinism_cause=trusted, notes=(trusted,),
    )  # fmt: skip


# -- operators that come with it --------------------------------------------------------------------------------------


def of_rows(*counts: int) -> OperatorClass:
    """Of windows over whole streams, the newest so many rows of each."""
    count = max(counts)
    cause = f"a window of {count:,} rows lets go of a row when so many have come after it"
    return _own("windowed", cause, rows=count, kind="rows")


def of_time(window: Window) -> OperatorClass:
    """Of windows by time, whose newest is the newest row's, or that at which the newest epoch was cut."""
    late = f" and {duration(window.delay_s)} for late rows" if window.delay_s else ""
    cause = f"window of {duration(window.length_s)}{late} lets go of input after {duration(window.reach_s)}"
    return _own("windowed", cause, window=window, kind="time")


def of_keys() -> OperatorClass:
    """Of windows per key."""
    return _own("unbounded", KEYS_FOR_EVER, refusal=KEYS_FOR_EVER, kind="keys")


def of_barrier() -> OperatorClass:
    """Its state is what waits for partners. Which partner a row has is told by how many came before it, so it converges
    only where that is known (``core.reach``)."""
    cause = "a barrier keeps the rows that wait for their partners"
    return OperatorClass("windowed", cause, "deterministic", cause, kind="pairs")


def _own(state: State, cause: str, **known: Any) -> OperatorClass:
    converges = not known.get("refusal")
    return OperatorClass(state, cause, "convergent-capable" if converges else "deterministic", cause, **known)
