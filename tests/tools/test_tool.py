"""A tool's schema comes from its function, and its arguments are validated strictly."""

from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import Field

from envgym.tools import ArgumentError, Tool, ToolCall, ToolResult, parse_calls
from envgym.tools.tool import as_result


class Color(Enum):
    RED = "red"


def move(
    place: str,
    steps: Annotated[int, Field(ge=1, le=5)] = 1,
    *,
    manner: Literal["walk", "run"] = "walk",
    heights: list[float] | None = None,
) -> str:
    """Moves to a place.

    It may take a while.

    Args:
        place: Where to go,
            by name.
        steps: How many steps.

    Returns:
        What happened.
    """
    return place


def test_the_schema_has_the_openai_function_form():
    schema = Tool(move).schema
    assert schema["type"] == "function"
    assert schema["function"]["name"] == "move"
    assert schema["function"]["description"] == "Moves to a place."
    parameters = schema["function"]["parameters"]
    assert parameters["type"] == "object" and parameters["required"] == ["place"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["place"] == {"type": "string", "description": "Where to go, by name."}
    steps = parameters["properties"]["steps"]
    assert steps == {"type": "integer", "minimum": 1, "maximum": 5, "default": 1, "description": "How many steps."}
    assert parameters["properties"]["manner"]["enum"] == ["walk", "run"]


def test_defaults_are_filled_in_and_numbers_widen_only_to_float():
    bound = Tool(move).bind(ToolCall("move", {"place": "home", "heights": [1, 2.5]}))
    assert bound == {"place": "home", "steps": 1, "manner": "walk", "heights": [1.0, 2.5]}
    assert isinstance(bound["heights"][0], float)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "'place' is missing"),
        ({"place": 3}, "'place' should be a valid string"),
        ({"place": "x", "steps": "2"}, "'steps' should be a valid integer"),
        ({"place": "x", "steps": 2.0}, "'steps' should be a valid integer"),
        ({"place": "x", "steps": True}, "'steps' should be a valid integer"),
        ({"place": "x", "steps": 9}, "'steps' should be less than or equal to 5"),
        ({"place": "x", "manner": "fly"}, "'manner' should be 'walk' or 'run'"),
        ({"place": "x", "pace": 1}, "there is no argument 'pace'"),
        ({"place": None}, "'place' should be a valid string"),
        ({"place": "\ud800"}, "not valid JSON"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    with pytest.raises(ArgumentError, match=r"move\(place, steps, manner, heights\): ") as caught:
        Tool(move).bind(ToolCall("move", arguments))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "bound"),
    [
        ("f(7, 7, 7, false)", ("7", 7, 7.0, False)),
        ("f(7, -7, 1e3, true)", ("7", -7, 1000.0, True)),
        ("f(true, 0, 0.5, null)", ("true", 0, 0.5, None)),
        ("f(word, flag=false, number=1, count=2)", ("word", 2, 1.0, False)),
    ],
)
def test_bare_words_take_the_type_of_the_schema(line, bound):
    def f(text: str, count: int, number: float, flag: bool | None): ...

    (call,) = parse_calls(line, "function")
    assert tuple(Tool(f).bind(call).values()) == bound


@pytest.mark.parametrize("word", ["4x", "07", "1.5", "NaN", "Infinity", "1e999", "9" * 6000, "true", '"4"', "None"])
def test_a_word_that_is_no_integer_is_refused(word):
    def f(count: int): ...

    (call,) = parse_calls(f"f({word})", "function")
    with pytest.raises(ArgumentError, match="'count' should be"):
        Tool(f).bind(call)


def test_an_argument_given_twice_or_too_many_are_refused():
    with pytest.raises(ArgumentError, match="'place' is given twice"):
        Tool(move).bind(ToolCall("move", {"place": "x"}, ("y",)))
    with pytest.raises(ArgumentError, match="takes 4 arguments, got 5"):
        Tool(move).bind(ToolCall("move", {}, ("y",) * 5))


def test_enums_come_from_their_values():
    def paint(color: Color): ...

    assert Tool(paint).bind(ToolCall("paint", {"color": "red"})) == {"color": Color.RED}


def test_parameters_may_have_names_that_pydantic_uses():
    def f(schema: str, copy: int, model_config: bool): ...

    assert Tool(f).bind(ToolCall("f", {"schema": "a", "copy": 1, "model_config": True})) == {
        "schema": "a",
        "copy": 1,
        "model_config": True,
    }


def test_a_function_that_is_no_tool_is_refused():
    def untyped(x): ...

    def variadic(*x: int): ...

    with pytest.raises(ValueError, match="'untyped': parameter 'x' needs a type annotation"):
        Tool(untyped)
    with pytest.raises(ValueError, match=r"'variadic': .*'x' cannot be passed by name"):
        Tool(variadic)


@pytest.mark.parametrize(("value", "text"), [("x", "x"), (None, "ok"), (0, "0"), ({"a": [1]}, '{"a": [1]}'), ("", "")])
def test_what_a_tool_returns_becomes_text(value, text):
    assert as_result(value).text == text


def test_a_tool_result_is_kept():
    result = ToolResult("x", {"a": 1.0}, terminal=True, success=True)
    assert as_result(result) is result
