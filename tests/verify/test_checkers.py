"""What must hold of any sink, simulated or real."""

from __future__ import annotations

from understudy.verify.checkers import Written, check_sink


def story(*epochs: int, generation: int = 1) -> list[Written]:
    return [Written(float(i), epoch, generation, epoch * 10) for i, epoch in enumerate(epochs)]


def test_nothing_is_wrong_with_epochs_in_order() -> None:
    assert check_sink(story(0, 1, 2), expected={0: 0, 1: 10, 2: 20}) == []
    assert check_sink([], expected={}) == []


def test_a_missing_epoch_is_lost() -> None:
    assert check_sink(story(0, 2), expected={0: 0, 1: 10, 2: 20}) == ["1 epochs lost, the first is 1"]


def test_an_epoch_twice_is_repeated() -> None:
    assert check_sink(story(0, 1, 1, 2)) == ["epoch 1 was written twice"]


def test_an_epoch_out_of_order() -> None:
    assert check_sink(story(0, 2, 1)) == ["epoch 1 was written after epoch 2"]


def test_other_content_is_different() -> None:
    assert check_sink(story(0, 1), expected={0: 0, 1: 11}) == ["epoch 1 is different"]


def test_an_old_generation_after_a_new_one() -> None:
    written = [Written(0.0, 0, 1), Written(1.0, 1, 2), Written(2.0, 2, 1)]
    assert check_sink(written) == ["generation 1 wrote epoch 2 after generation 2"]


def test_without_generations_or_contents_only_order_counts() -> None:
    assert check_sink([Written(0.0, 0), Written(1.0, 1)], expected={0: 5, 1: 6}) == []
