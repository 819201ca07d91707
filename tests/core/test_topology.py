"""The shape of a job: order, units, consumers, and loops found and named."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.core.policies import ActiveStandby, PassiveStandby, Policy, StageRole, UpstreamBackup, none
from understudy.core.topology import CycleError, StageShape, Topology, UnitShape, topological_order

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines


def unit(name: str, *stages: str, policy: Policy = PassiveStandby()) -> UnitShape:
    return UnitShape(name, stages or (name,), policy)


def diamond() -> Topology:
    """cars -> (fast, slow) -> both -> sinks, defined from the bottom up."""
    stages = [
        StageShape("both", ("fast", "slow"), ("out", "out-1")),
        StageShape("slow", ("cars",), ("slow",)),
        StageShape("fast", ("cars",)),
        StageShape("cars"),
    ]
    return Topology.build(stages, [unit("both"), unit("middle", "slow", "fast"), unit("cars", policy=none)])


def test_stages_come_upstream_first_whatever_the_order_of_definition() -> None:
    assert list(diamond().stages) == ["cars", "fast", "slow", "both"]


def test_units_come_in_the_order_of_their_most_upstream_stage() -> None:
    assert list(diamond().units) == ["cars", "middle", "both"]


def test_every_stage_knows_its_unit() -> None:
    assert diamond().unit_of == {"both": "both", "slow": "middle", "fast": "middle", "cars": "cars"}


def test_what_is_fed_by_stages() -> None:
    assert diamond().fed_by(["fast"]) == {"fast", "both"}
    assert diamond().fed_by(["cars"]) == set(diamond().stages)
    assert diamond().fed_by([]) == set()


def test_consumers_are_stages_then_sinks() -> None:
    topology = diamond()
    assert topology.consumers("cars") == ("fast", "slow")
    assert topology.consumers("slow") == ("both", "sink:slow")
    assert topology.consumers("both") == ("sink:out", "sink:out-1")


def test_a_stage_that_reads_a_stream_twice_is_one_consumer() -> None:
    topology = Topology.build([StageShape("a"), StageShape("b", ("a", "a"))], [unit("a"), unit("b")])
    assert topology.consumers("a") == ("b",)


def test_a_stream_may_have_no_consumer() -> None:
    assert Topology.build([StageShape("a")], [unit("a")]).consumers("a") == ()


def test_last_is_a_stage_that_no_stage_reads() -> None:
    topology = diamond()
    assert [name for name in topology.stages if topology.is_last(name)] == ["both"]


def test_a_unit_is_protected_when_its_policy_keeps_anything() -> None:
    units = [unit("a", policy=p) for p in (none, PassiveStandby(), ActiveStandby(), UpstreamBackup())]
    assert [u.protected for u in units] == [False, True, True, True]


def test_roles_are_the_stages_of_a_unit_where_they_start() -> None:
    stages = [
        StageShape("cars"),
        StageShape("bikes"),
        StageShape("clean", ("cars",)),
        StageShape("join", ("clean", "bikes", "cars")),
        StageShape("mean", ("join", "clean"), ("mean",)),
        StageShape("alarm", ("mean",)),
    ]
    units = [unit("cars"), unit("bikes"), unit("u", "clean", "join", "mean"), unit("alarm")]
    topology = Topology.build(stages, units)
    assert topology.roles("u", {"clean": 9, "join": 8, "mean": 7, "other": 0}) == [
        StageRole("clean", 9, ("cars",), last=False),
        StageRole("join", 8, ("clean", "bikes", "cars"), last=False),
        StageRole("mean", 7, ("join", "clean"), last=False),
    ]
    assert topology.roles("alarm", {"alarm": -1}) == [StageRole("alarm", -1, ("mean",), last=True)]
    assert topology.roles("bikes", {"bikes": 3}) == [StageRole("bikes", 3, (), last=False)]


def test_a_role_needs_to_know_where_its_stage_is() -> None:
    with pytest.raises(KeyError, match="both"):
        diamond().roles("both", {"fast": 1})


def test_build_takes_any_iterables() -> None:
    topology = Topology.build((s for s in [StageShape("a")]), [unit("a")])
    assert list(topology.stages) == ["a"]


def test_build_takes_units_from_an_iterator() -> None:
    topology = Topology.build([StageShape("a")], (u for u in [unit("a")]))
    assert list(topology.units) == ["a"]


def test_a_loop_is_named_without_what_leads_to_it() -> None:
    with pytest.raises(CycleError) as caught:
        topological_order({"lead": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]})
    assert caught.value.path == ["a", "b", "c", "a"]
    assert str(caught.value) == "a -> b -> c -> a"


def test_a_stage_that_reads_itself_is_a_loop() -> None:
    with pytest.raises(CycleError) as caught:
        topological_order({"a": ["a"]})
    assert caught.value.path == ["a", "a"]


def test_a_loop_stops_the_building_of_a_topology() -> None:
    with pytest.raises(CycleError):
        Topology.build([StageShape("a", ("b",)), StageShape("b", ("a",))], [unit("a"), unit("b")])


graphs = st.integers(1, 7).flatmap(
    lambda n: st.fixed_dictionaries(
        {f"s{i}": st.lists(st.sampled_from([f"s{j}" for j in range(n)]), max_size=3) for i in range(n)}
    )
)


def has_loop(inputs: dict[str, list[str]]) -> bool:
    """Naive: take away stages whose inputs are all gone until nothing changes."""
    left = dict(inputs)
    while ready := [name for name, needs in left.items() if not set(needs) & set(left)]:
        for name in ready:
            del left[name]
    return bool(left)


@settings(PATIENT)
@given(graphs)
def test_every_graph_is_either_ordered_or_its_loop_is_shown(inputs: dict[str, list[str]]) -> None:
    if has_loop(inputs):
        with pytest.raises(CycleError) as caught:
            topological_order(inputs)
        path = caught.value.path
        assert path[0] == path[-1] and len(path) > 1
        assert all(reads in inputs[name] for name, reads in pairwise(path))
    else:
        order = topological_order(inputs)
        assert sorted(order) == sorted(inputs)
        assert all(order.index(u) < order.index(name) for name, needs in inputs.items() for u in needs)


@pytest.mark.parametrize(
    ("hosts", "k", "shares"),
    [("AA", 1, True), ("AB", 1, False), ("ABA", 1, False), ("ABA", 2, True), ("ABBA", 2, True), ("ABCA", 2, False),
     ("ABCA", 3, True)],
)  # fmt: skip
def test_a_stage_shares_the_fate_of_a_producer_when_no_further_host_need_fail(hosts: str, k: int, shares: bool) -> None:
    stages = [StageShape(str(i), (str(i - 1),) if i else ()) for i in range(len(hosts))]
    units = [UnitShape(f"u{i}", (str(i),), UpstreamBackup(k=k)) for i in range(len(hosts))]
    last = len(hosts) - 1
    placed = {f"u{i}": host for i, host in enumerate(hosts)}
    assert Topology.build(stages, units).shares_fate(str(last), str(last - 1), placed) is shares


def test_parts_of_a_job_that_have_nothing_in_common_end_at_epochs_of_their_own() -> None:
    shapes = [
        StageShape("left", (), ()), StageShape("right", (), ()), StageShape("a", ("left",), ()),
        StageShape("b", ("right",), ("out",)), StageShape("both", ("a", "b"), ()), StageShape("c", ("a",), ()),
    ]  # fmt: skip
    topology = Topology.build(shapes, [UnitShape(s.name, (s.name,), PassiveStandby()) for s in shapes])
    assert topology.finals({"left": 9, "right": 7}) == {"left": 9, "right": 7, "a": 9, "b": 7, "both": 7, "c": 9}
    assert topology.finals({"right": 7})["left"] == 7 and topology.finals({})["left"] == -1
