"""The text space accepts any string and samples reproducibly."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.spaces import TextSpace


@given(st.text())
def test_any_string_is_contained(text):
    assert text in TextSpace()


@pytest.mark.parametrize("value", [None, 3, b"bytes", ["x"]])
def test_anything_else_is_not_contained(value):
    assert value not in TextSpace()


def test_samples_are_examples_and_follow_the_seed():
    left, right = TextSpace(["a", "b", "c"], seed=3), TextSpace(["a", "b", "c"], seed=3)
    drawn = [left.sample() for _ in range(50)]
    assert drawn == [right.sample() for _ in range(50)]
    assert set(drawn) == {"a", "b", "c"}


def test_without_examples_samples_are_random_text():
    space = TextSpace(seed=1)
    drawn = {space.sample() for _ in range(20)}
    assert len(drawn) > 15 and all(1 <= len(text) <= 32 for text in drawn)


def test_a_copy_samples_on_its_own():
    space = TextSpace(["a", "b"], seed=5)
    twin = copy.deepcopy(space)
    expected = [twin.sample() for _ in range(20)]
    assert [space.sample() for _ in range(20)] == expected


def test_an_example_that_is_no_string_is_refused():
    with pytest.raises(ValueError, match="got 3"):
        TextSpace(["a", 3])


def test_masks_are_refused():
    with pytest.raises(ValueError, match="mask"):
        TextSpace().sample(mask=1)


def test_equality_is_that_of_the_examples():
    assert TextSpace(["a"]) == TextSpace(["a"])
    assert TextSpace(["a"]) != TextSpace(["b"])


def test_jsonable_round_trip():
    space = TextSpace()
    assert space.from_jsonable(space.to_jsonable(["x", "y"])) == ["x", "y"]
