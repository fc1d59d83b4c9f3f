"""Calls are read exactly or not at all; nothing is evaluated, guessed or slow."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.tools import CallError, ToolCall, format_call, parse_calls
from envgym.tools.parsing import BareWord

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
scalars = st.none() | st.booleans() | st.integers() | st.text()
arguments = st.dictionaries(names, scalars, max_size=3)


def hermes(body):
    return f"<tool_call>{body}</tool_call>"


def error(text, call_format):
    (call,) = parse_calls(text, call_format)
    assert isinstance(call, CallError), call
    return call.message


def test_hermes_calls_are_read_in_order_with_text_around_them():
    text = (
        'I look.\n<tool_call>\n{"name": "get", "arguments": {"key": "k7"}}\n</tool_call> and '
        '<tool_call>{"arguments": {}, "name": "list"}</tool_call>'
    )
    assert parse_calls(text, "hermes") == [ToolCall("get", {"key": "k7"}), ToolCall("list", {})]


def test_function_calls_are_read_one_to_a_line():
    text = "get(k7)\n\n  get( key = \"k 7\" )  \nadd(1, right='it\\'s')\nlist()"
    assert parse_calls(text, "function") == [
        ToolCall("get", {}, ("k7",)),
        ToolCall("get", {"key": "k 7"}),
        ToolCall("add", {"right": "it's"}, ("1",)),
        ToolCall("list"),
    ]


def test_only_unquoted_words_are_open_to_another_type():
    (call,) = parse_calls('f(42, "42")', "function")
    assert isinstance(call.positional[0], BareWord)
    assert not isinstance(call.positional[1], BareWord)


@pytest.mark.parametrize("call_format", ["hermes", "function"])
@settings(max_examples=80, deadline=None)
@given(calls=st.lists(st.tuples(names, arguments), max_size=4))
def test_formatted_calls_are_read_back(call_format, calls):
    text = "\n".join(format_call(name, args, call_format) for name, args in calls)
    parsed = parse_calls(text, call_format)
    assert [call.name for call in parsed] == [name for name, _ in calls]
    for call, (_, args) in zip(parsed, calls, strict=True):
        if call_format == "hermes":
            assert call.arguments == args
        else:
            values = [*call.positional, *call.arguments.values()]
            assert values == [value if isinstance(value, str) else json.dumps(value) for value in args.values()]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "invalid JSON"),
        ("get(k7)", "invalid JSON"),
        ('{"name": "get", "arguments": {"key": }', "Expecting value at character 37"),
        ('{"name": "get"}', '"arguments"'),
        ('{"name": "get", "arguments": {}, "parameters": {}}', 'keys "name" and "arguments"'),
        ('{"name": 3, "arguments": {}}', '"name" must be a string'),
        ('{"name": "get", "arguments": "{}"}', '"arguments" must be a JSON object'),
        ('{"name": "get", "arguments": null}', '"arguments" must be a JSON object'),
        ('[{"name": "get", "arguments": {}}]', "JSON object"),
        ('{"name": "a", "name": "b", "arguments": {}}', "a key appears twice"),
        ('{"name": "a", "arguments": {"x": 1, "x": 2}}', "a key appears twice"),
        ('{"name": "a", "arguments": {"x": NaN}}', "NaN is not allowed"),
        ("[" * 200_000, "nested too deeply"),
        (f'{{"name": "a", "arguments": {{"x": {"9" * 5000}}}}}', "invalid JSON"),
    ],
)
def test_a_malformed_hermes_call_says_what_is_wrong(body, reason):
    assert reason in error(hermes(body), "hermes")


def test_an_unclosed_hermes_call_is_not_run():
    assert "</tool_call> is missing" in error('<tool_call>{"name": "get", "arguments": {}}', "hermes")


@pytest.mark.parametrize(
    "line",
    [
        "get(k7",
        "get k7",
        "get",
        "(k7)",
        "3(k7)",
        "get(k7))",
        "get((k7))",
        "get(k7,)",
        "get(,)",
        "get(k 7)",
        "get(key=)",
        "get('k7)",
        "get(k7) now",
        "get(a=1, a=2)",
        "get(a=1, 2)",
        "get(k7); get(m2)",
        "os.system(1)",
        "get(key==1)",
        "gét(1)",
    ],
)
def test_a_malformed_function_call_is_an_error(line):
    assert error(line, "function").startswith("Malformed call")


def test_code_is_a_word_or_an_error_but_never_runs():
    assert parse_calls("get(__import__)", "function") == [ToolCall("get", {}, ("__import__",))]
    assert error("get(__import__('os').getcwd())", "function").startswith("Malformed call: cannot read argument 1")


def test_reading_stops_at_the_first_malformed_call():
    calls = parse_calls("get(a)\nget(\nget(b)", "function")
    assert calls[0] == ToolCall("get", {}, ("a",))
    assert isinstance(calls[1], CallError) and len(calls) == 2


@pytest.mark.parametrize(
    ("call_format", "call"), [("function", "f()\n"), ("hermes", hermes('{"name": "f", "arguments": {}}'))]
)
def test_calls_beyond_the_limit_are_refused(call_format, call):
    assert len(parse_calls(call * 3, call_format, max_calls=3)) == 3
    calls = parse_calls(call * 4, call_format, max_calls=3)
    assert calls[-1] == CallError("Too many calls: at most 3 in a message.")
    assert len(calls) == 4


@pytest.mark.parametrize("call_format", ["hermes", "function"])
@pytest.mark.parametrize("text", ["", " \n\n\t"])
def test_a_blank_message_holds_no_call(call_format, text):
    assert parse_calls(text, call_format) == []


@pytest.mark.parametrize("call_format", ["hermes", "function"])
@settings(max_examples=200, deadline=None)
@given(text=st.text() | st.text(alphabet="ag(),=\"' \\\n<>/tool_call{}:"))
def test_any_text_is_answered(call_format, text):
    calls = parse_calls(text, call_format)
    assert all(isinstance(call, ToolCall) for call in calls[:-1])


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "f(" + "a," * 400_000,
        "f(" + '"' * 1_000_000,
        "f(" + "a=" * 400_000 + ")",
        "f(" + " " * 1_000_000 + ")",
        'f("' + "\\" * 1_000_001 + ")",
        "<tool_call>" * 90_000,
        hermes("{" * 500_000),
        hermes('{"a":' * 100_000),
        "\x00" * 1_000_000,
        "f(" + "(" * 500_000 + ")" * 500_000 + ")",
        "f(" + "a " * 500_000 + ")",
    ],
    ids=range(12),
)
@pytest.mark.parametrize("call_format", ["hermes", "function"])
def test_a_megabyte_of_anything_is_read_in_linear_time(call_format, text):
    start = time.perf_counter()
    parse_calls(text, call_format)
    assert time.perf_counter() - start < 2.0


def test_an_unknown_format_names_the_known_ones():
    with pytest.raises(ValueError, match="'xml'; choose one of hermes, function"):
        parse_calls("x", "xml")
    with pytest.raises(ValueError, match="'xml'; choose one of hermes, function"):
        format_call("f", {}, "xml")


def test_a_list_cannot_be_written_in_the_function_format():
    with pytest.raises(ValueError, match=r"cannot express \[1\]"):
        format_call("f", {"x": [1]}, "function")
