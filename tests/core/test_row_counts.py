"""How many rows a restored state has missed: as its producers know, and else as was usual."""

from __future__ import annotations

from understudy.core.row_counts import KEPT, Counted, Missed, RowCounts, Usual, missed


def counts(*rows: int, first: int = 0) -> RowCounts:
    found = RowCounts()
    for epoch, count in enumerate(rows, first):
        found.came(epoch, count)
    return found


def test_a_producer_knows_the_epochs_that_it_has_made() -> None:
    found = counts(5, 0, 7).newest()
    assert found == Counted(0, (5, 0, 7))
    assert [found.of(epoch) for epoch in range(-1, 4)] == [None, 5, 0, 7, None]
    assert counts(5, 0, 7).newest(2) == Counted(1, (0, 7))


def test_one_that_took_over_knows_those_since() -> None:
    assert counts(3, 4, first=46).newest() == Counted(46, (3, 4))


def test_what_is_made_again_counts_once_and_a_gap_is_not_known() -> None:
    found = counts(5, 6)
    found.came(1, 6)
    assert found.newest() == Counted(0, (5, 6))
    found.came(9, 1)
    assert found.newest() == Counted(9, (1,)), "nobody knows what was between"


def test_only_recent_epochs_are_kept() -> None:
    found = counts(*range(KEPT + 3)).newest()
    assert (found.first, len(found.rows), found.of(KEPT + 2)) == (3, KEPT, KEPT + 2)


def test_what_was_counted_is_missed() -> None:
    """Saved after 40, goes on after 43: epochs 41 to 43 are missing, of every input."""
    answers = {"a": Counted(38, (1, 2, 3, 10, 20, 30, 99)), "b": Counted(41, (0, 0, 5))}
    assert missed(40, 43, answers, {"a": 1000.0}) == Missed(3, {"a": 60, "b": 5})


def test_where_nobody_has_counted_it_is_what_was_usual() -> None:
    """Jacques-Silva et al. 2009, Section 4: time that is missing, times rows per time."""
    assert missed(40, 44, {"a": Counted()}, {"a": 12.4}) == Missed(4, {"a": 50})
    assert missed(40, 44, {"a": Counted(43, (7, 9))}, {"a": 12.4}) == Missed(4, {"a": 16 + 25}), "half is known"
    assert missed(40, 44, {"a": Counted(43, (7, 9))}, {}) == Missed(4, {"a": 32})
    assert missed(40, 44, {"a": Counted()}, {}) == Missed(4, {"a": 0}), "from a state that does not say"


def test_nothing_is_missing_from_a_state_that_producers_go_on_from() -> None:
    assert missed(40, 40, {"a": Counted(39, (1, 2, 3))}, {"a": 5.0}) == Missed(0, {"a": 0})


def test_twice_missed_adds_up() -> None:
    assert Missed(2, {"a": 5}) + Missed(3, {"a": 1, "b": 4}) == Missed(5, {"a": 6, "b": 4})


def test_the_usual_follows_what_comes() -> None:
    usual = Usual()
    assert usual.rows == 0.0
    usual.came(100)
    assert usual.rows == 100.0
    for _ in range(200):
        usual.came(0)
    assert usual.rows < 0.1
