"""The cost model against the papers' formulas and ratios, and against what was measured here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy.core.costs import estimate, estimate_source, heard, reach_s
from understudy.core.operators import Key, Operator, judge
from understudy.core.policies import ActiveStandby, Hybrid, PassiveStandby, Policy, UpstreamBackup, none
from understudy.core.profile import ACK_BYTES, CHECKPOINT_BYTES, PACKED_SHARE, SNAPSHOT_BYTES, Heard, Profile
from understudy.core.topology import StageShape, Topology, UnitShape

BUSY = Profile(rows_per_s=20_000, bytes_per_s=1e6, output_bytes_per_s=1e6, delta_bytes=50_000, state_bytes=1e7)
"""For ten bytes that come in, one is sent of what changed in the state: half of it as logs, half as tables."""
INNER = replace(BUSY, heard_every_s=0.5)
"""Another unit reads what it makes."""
INPUT = Operator("StreamingRelationV2")
MARK = Operator("EventTimeWatermark", children=(INPUT,))
WINDOW = judge(Operator("Aggregate", children=(MARK,), keys=(Key("window", 5.0, window=True, window_s=10.0),)))


def test_upstream_backup_sends_an_id_per_interval() -> None:
    """Hwang et al. 2003, formula (2): 2x/(λcM); overhead halves when the interval doubles (Section 5.3). Deviation: of
    the two acknowledgements, the one of level 0 is free."""
    for every_s in (1.0, 2.0, 4.0):
        expected = ACK_BYTES / (1e6 * every_s)
        assert estimate(UpstreamBackup(ack_every=every_s), BUSY).ha_ratio == pytest.approx(expected)


def test_passive_standby_with_its_queue_sends_everything_once_more() -> None:
    """Hwang et al. 2003, formula (1): 1 + 2x/(λcM), for a stage without state and selectivity 1. Deviation: the head
    position is part of a checkpoint, which has a size of its own."""
    stateless = replace(BUSY, delta_bytes=0, state_bytes=0)
    for every_s in (0.5, 5.0):
        expected = 1 + (ACK_BYTES + CHECKPOINT_BYTES) / (1e6 * every_s)
        assert estimate(PassiveStandby("individual", every=every_s), stateless).ha_ratio == pytest.approx(expected)


def test_bytes_compare_as_in_gu_figure_5() -> None:
    """Gu et al. 2009, Figure 5: NONE : None-AS : AS-AS : PS = 1 : 2 : 4 : 1.1."""
    policies: list[Policy] = [none, ActiveStandby(), ActiveStandby(delivery="eager"), PassiveStandby(every="500ms")]
    total = [1 + estimate(policy, INNER).ha_ratio for policy in policies]
    assert total == pytest.approx([1, 2, 4, 1.1], rel=0.02)


def test_policies_recover_in_the_papers_order() -> None:
    """Hwang et al. 2003, Figure 11: active standby before passive standby before upstream backup."""
    order: list[Policy] = [ActiveStandby(delivery="eager"), ActiveStandby(), PassiveStandby(), UpstreamBackup()]
    silences = [estimate(policy, INNER).silence_s for policy in order]
    assert silences == sorted(silences)
    assert len(set(silences)) == len(order)
    assert estimate(Hybrid(), INNER) == estimate(PassiveStandby(), INNER), "which rises where a host hangs only"


def test_recovery_grows_linearly_with_the_interval() -> None:
    """Hwang et al. 2003, Figure 10: Q = Mλ/2. In epochs: half an interval's epochs are made again."""
    for make in (lambda s: PassiveStandby(every=s), lambda s: UpstreamBackup(ack_every=s)):
        one, two, three = (estimate(make(s), BUSY).silence_s for s in (2.0, 4.0, 6.0))
        assert two - one == pytest.approx(three - two) == pytest.approx(2.0 / 2 / 0.5 * BUSY.batch_s)
        assert estimate(make(4.0), BUSY).worst_s - two == pytest.approx(4.0 / 2 / 0.5 * BUSY.batch_s)


def test_only_sweeps_wait_for_those_below() -> None:
    for queued in ("individual", "synchronous"):
        policy = PassiveStandby(queued)
        assert estimate(policy, Profile(behind_s=5.0, heard_every_s=1.0)) == estimate(policy, Profile())


def test_how_often_a_sweep_comes_is_up_to_those_below() -> None:
    inner = Profile(behind_s=10.0, heard_every_s=5.0)
    assert estimate(PassiveStandby(every="500ms"), inner) == estimate(PassiveStandby(every="10s"), inner)
    assert estimate(PassiveStandby(), inner).worst_s == pytest.approx(
        estimate(PassiveStandby(every="5s"), Profile()).worst_s + 10.0 / inner.step_s * inner.batch_s
    )


def below(**policies: Policy) -> dict[str, dict[str, Heard]]:
    """Of a chain, from its first stage on."""
    names = list(policies)
    shapes = [StageShape(name, tuple(names[i - 1 : i])) for i, name in enumerate(names)]
    topology = Topology.build(shapes, [UnitShape(name, (name,), policy) for name, policy in policies.items()])
    return heard(topology, {"window": WINDOW}, 0.5)


def test_what_a_stage_hears_from_those_below() -> None:
    slow, fast = PassiveStandby(every="5s"), PassiveStandby(every="100ms")
    assert below(a=none, b=fast, c=fast, d=slow) == {
        "a": {"b": Heard(0.0, 5.0)}, "b": {"c": Heard(0.0, 5.0)}, "c": {"d": Heard(0.0, 5.0)}, "d": {}
    }  # fmt: skip
    assert below(a=none, b=fast)["a"]["b"] == Heard(0.0, 0.5)
    assert below(a=none, b=PassiveStandby("individual", every="2s"), c=slow)["a"]["b"] == Heard(0.0, 2.0)
    assert below(a=none, b=fast, window=UpstreamBackup(ack_every="2s"))["a"]["b"] == Heard(2.0 + 15.0, 2.0)
    assert below(a=none, b=ActiveStandby(), c=slow)["a"]["b"] == below(a=none, b=none)["a"]["b"] == Heard(0.0, 0.5)
    assert below(a=none, window=UpstreamBackup(ack_every="2s"))["a"]["window"] == Heard(2.0 + 15.0, 2.0)


def test_eager_delivery_needs_units_to_deliver_to() -> None:
    eager, lazy = ActiveStandby(delivery="eager"), ActiveStandby()
    assert estimate(eager, Profile()) == estimate(lazy, Profile())
    inner = Profile(heard_every_s=0.5)
    assert estimate(eager, inner).silence_s < estimate(lazy, inner).silence_s
    assert estimate(eager, inner).ha_ratio > estimate(lazy, inner).ha_ratio


def test_what_changed_is_sent_as_logs_and_as_tables() -> None:
    plain = Profile(bytes_per_s=100_000.0, delta_bytes=5000.0)
    kept = replace(plain, state_bytes=1e6)
    for every_s, tables_every_s in ((0.5, 5.0), (5.0, 5.0), (20.0, 20.0)):
        policy = PassiveStandby(every=every_s)
        more_per_s = (estimate(policy, kept).ha_ratio - estimate(policy, plain).ha_ratio) * 100_000.0
        assert more_per_s == pytest.approx((SNAPSHOT_BYTES + PACKED_SHARE * 50_000.0) / tables_every_s)


def test_a_window_is_made_again_by_a_replay_and_by_nobody_else() -> None:
    without, window = (estimate(UpstreamBackup(), BUSY, reach_s=s).silence_s for s in (0.0, 15.0))
    assert window - without == pytest.approx(15 / 0.5 * BUSY.batch_s)
    assert estimate(PassiveStandby(), BUSY, reach_s=15.0) == estimate(PassiveStandby(), BUSY)


def test_overhead_grows_linearly_with_k() -> None:
    """Hwang et al. 2003, Section 4.4."""
    makers = (
        lambda k: PassiveStandby(standbys=k),
        lambda k: ActiveStandby(copies=k + 1),
        lambda k: UpstreamBackup(k=k),
    )
    for make in makers:
        one, three = estimate(make(1), BUSY), estimate(make(3), BUSY)
        assert three.ha_ratio == pytest.approx(3 * one.ha_ratio)
        assert three.cpu_ratio == pytest.approx(3 * one.cpu_ratio)


@pytest.mark.parametrize(
    ("batch_s", "state_bytes", "delta_bytes", "measured_s"),
    [(0.20, 102_500, 10_200, 0.351), (0.22, 1_502_000_000, 140_000, 0.515), (0.27, 1_502_000_000, 140_000, 0.42)],
)
def test_an_estimate_is_within_half_of_what_was_measured(
    batch_s: float, state_bytes: float, delta_bytes: float, measured_s: float
) -> None:
    """Medians of kills at different phases of an epoch: `jobs/pair.py` and `jobs/ten_million.py`, on two cores."""
    profile = Profile(epoch_s=0.5, batch_s=batch_s, state_bytes=state_bytes, delta_bytes=delta_bytes)
    assert abs(estimate(PassiveStandby(), profile).silence_s - measured_s) < 0.5 * measured_s


def test_what_was_measured_here_is_about_what_is_estimated() -> None:
    """`make demo` and `make drills` on two cores: 0.14 s active, 4 to 8 % of the bytes."""
    demo = Profile(rows_per_s=3000, bytes_per_s=90_000, output_bytes_per_s=20_000, delta_bytes=5000, batch_s=0.2)
    assert 0.02 < estimate(PassiveStandby(every="500ms"), demo).ha_ratio < 0.1
    assert 0.1 < estimate(ActiveStandby(), demo).silence_s < 0.25
    assert estimate(none, demo).silence_s > 2


def test_a_unit_that_is_slower_than_its_epochs_gets_larger_ones() -> None:
    """It makes no more again than an interval's worth, and its CPU is no busier than busy."""
    slow = replace(BUSY, batch_s=2.0)
    assert estimate(PassiveStandby(every=10.0), slow).worst_s < 10 + 2 + 1
    assert estimate(ActiveStandby(), slow).cpu_ratio == 1.0
    assert estimate(PassiveStandby(), slow).ha_ratio < estimate(PassiveStandby(), BUSY).ha_ratio


def test_full_recovery_takes_longer_the_busier_the_unit_is() -> None:
    times = [estimate(none, replace(BUSY, rows_per_s=rate)).full_recovery_s for rate in (0, 1e5, 5e5, 9e5, 1e9)]
    assert times == sorted(times)
    assert times[0] > estimate(none, BUSY).silence_s


def test_nothing_costs_nothing() -> None:
    found = estimate(none, BUSY)
    assert (found.ha_ratio, found.cpu_ratio, found.overhead) == (0, 0, 0)


def test_sources_keep_entries_or_rows() -> None:
    assert estimate_source(BUSY, preserved=False).ha_ratio < 0.01
    assert 1 < estimate_source(BUSY, preserved=True).ha_ratio < 1.01


def test_reaches_add_up() -> None:
    mark = Operator("EventTimeWatermark", children=(Operator("StreamingRelationV2"),))
    ten = judge(Operator("Aggregate", children=(mark,), keys=(Key("w", 5.0, window=True, window_s=10.0),)))
    assert reach_s([ten, judge(mark), ten]) == 30.0


@pytest.mark.parametrize("wrong", [{"epoch_s": 0}, {"batch_s": 0}, {"rows_per_s": -1}, {"state_bytes": float("nan")}])
def test_a_profile_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Profile(**wrong)
