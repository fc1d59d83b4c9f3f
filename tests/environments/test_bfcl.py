"""BFCL multi-turn: recorded answers score 1, each mistake loses exactly its part, and the verdict is BFCL's own."""

from __future__ import annotations

import copy
import decimal
import functools
import importlib
import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import mpmath
import pytest

from envgym.environments.bfcl import BfclMultiTurn, tasks
from envgym.environments.bfcl.calls import read_calls, read_list, write_calls
from envgym.environments.bfcl.environment import ADDED, STEP_LIMIT, _weight
from envgym.environments.bfcl.players import ANSWER, call_arguments
from envgym.environments.bfcl.tasks import SUBSETS, load_tasks
from envgym.tools import CallError, ToolCall

REFERENCE = "bfcl_eval.eval_checker.multi_turn_eval"


@functools.lru_cache
def shared_env(subset, call_format="python"):
    return BfclMultiTurn(subset=subset, call_format=call_format)


def subset_of(task_id):
    return task_id.removeprefix("multi_turn_").rsplit("_", 1)[0]


def env_of(task_id, **kwargs):
    subset = subset_of(task_id)
    return BfclMultiTurn(subset=subset, **kwargs) if kwargs else shared_env(subset)


def start(task_id, **kwargs):
    env = env_of(task_id, **kwargs)
    return env, env.reset(options={"task": task_id})[0]


def start_calculator():
    return start(next(task.id for task in load_tasks("base").values() if "MathAPI" in task.classes))[0]


def play(env, task_id, script=None):
    """Steps of an episode. A script has, for each user turn, the messages before the answer; None is the solver's."""
    observation, info = env.reset(options={"task": task_id})
    if script is None:
        player, steps = env.solver(), []
        while not steps or not steps[-1].terminated:
            steps.append(env.step(player.act(observation, info)))
            observation, info = steps[-1].observation, steps[-1].info
        return steps
    steps = [env.step(message) for turn in script for message in [*turn, ANSWER]]
    assert steps[-1].terminated and not any(step.terminated for step in steps[:-1])
    return steps


def total(steps):
    return sum(step.reward for step in steps)


def sums(steps):
    totals = Counter()
    for step in steps:
        totals.update(step.info["reward_components"])
    return {name: value for name, value in totals.items() if value}


def recorded(task_id):
    """The recorded calls of each user turn, as (name, arguments by name)."""
    task = env_of(task_id)._tasks[task_id]
    return [[call_arguments(task, call) for call in turn] for turn in task.ground_truth]


def messages(turns):
    return [[write_calls(turn, "python")] if turn else [] for turn in turns]


# The recorded answers


@pytest.mark.parametrize("call_format", ["hermes", "python"])
@pytest.mark.parametrize("subset", SUBSETS)
def test_the_recorded_answer_of_every_task_earns_exactly_one_and_leaves_the_task_as_it_was(subset, call_format):
    env = shared_env(subset, call_format)
    before = copy.deepcopy(dict(env._tasks))
    assert env.num_tasks == len(env.task_ids) == 200
    for task_id in env.task_ids:
        steps = play(env, task_id)
        info = steps[-1].info
        assert (total(steps), info["success"], info["bfcl_valid"]) == (1.0, True, True), task_id
        assert set(sums(steps)) <= {"state", "response", "irrelevance"} and info["task"] == task_id
    assert dict(env._tasks) == before


def test_the_recorded_answers_given_one_call_a_message_earn_one_too():
    for subset in SUBSETS:
        env = shared_env(subset)
        for task_id in env.task_ids[::10]:
            script = [[write_calls([call], "python") for call in turn] for turn in recorded(task_id)]
            if max(map(len, script)) <= 20:
                assert total(play(env, task_id, script)) == 1.0, task_id


@pytest.mark.parametrize("num_turns", range(1, 9))
def test_weights_of_user_turns_are_near_equal_and_every_sum_of_them_is_exact(num_turns):
    weights = [_weight(turn, num_turns) / 2**20 for turn in range(num_turns)]
    assert weights == pytest.approx([1 / num_turns] * num_turns, abs=1e-5)
    for order in itertools.islice(itertools.permutations(weights), 50):
        assert sum(order) == 1.0
        assert sum(half for weight in order for half in (weight / 2, weight / 2)) == 1.0


# What each mistake costs. The task has four user turns: w = 1/4.

TASK = "multi_turn_base_0"


def test_results_are_paid_as_they_are_seen_and_the_state_at_the_end_of_its_user_turn():
    steps = play(shared_env("base"), TASK)
    assert [step.info["reward_components"] for step in steps] == [{"response": 0.125}, {"state": 0.125}] * 4
    assert [step.info["role"] for step in steps] == ["tool", "user"] * 4
    assert [step.info["user_turn"] for step in steps] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert steps[0].observation == (
        '{"current_working_directory": "document"}\nNone\n'
        "{\"result\": \"'final_report.pdf' moved to 'temp/final_report.pdf'\"}"
    )
    assert steps[1].observation.startswith("Perform a detailed search using grep")


def test_each_recorded_result_is_paid_once_when_it_is_first_seen():
    turns = [*recorded(TASK)[:2], [], []]
    script = [messages(turns)[0], [write_calls([call], "python") for call in (turns[1][0], turns[1][1], turns[1][1])]]
    steps = play(shared_env("base"), TASK, [*script, [], []])
    rewards = [step.info["reward_components"] for step in steps[2:6]]
    assert rewards == [{"response": 0.0625}, {"response": 0.0625}, {}, {"state": 0.125}]
    steps = play(shared_env("base"), TASK, [["[cd(folder='document')]"], [], [], []])
    assert steps[0].reward == 2**18 // 3 / 2**21, "one of three results"


def test_a_wrong_call_that_only_reads_loses_its_part_of_the_response():
    turns = recorded(TASK)
    turns[1][1] = ("grep", {"file_name": "final_report.pdf", "pattern": "nowhere"})
    steps = play(shared_env("base"), TASK, messages(turns))
    assert sums(steps) == {"state": 0.5, "response": 0.5 - 0.0625}
    assert steps[2].info["reward_components"] == {"response": 0.0625}, "one of two recorded results"
    assert steps[3].info["checks"] == {"state": True, "response": False}
    assert steps[-1].info["success"] is False and steps[-1].info["bfcl_valid"] is False


def read_earlier(turns):
    turns[1].append(turns[2][0])
    turns[2] = [("pwd", {})]


TWO_OF_THREE = 2**18 // 3 / 2**20
CHANGES = {  # what is done to the recorded calls; of which user turns the state is right then; what the results earn
    "no calls in a user turn": (lambda turns: turns[2].clear(), [1, 1, 0, 1], 0.375),
    "an extra call that writes": (lambda turns: turns[3].append(("mkdir", {"dir_name": "x"})), [1, 1, 1, 0], 0.5),
    "an extra call that only reads": (lambda turns: turns[0].insert(0, ("pwd", {})), [1, 1, 1, 1], 0.5),
    "a response seen in an earlier user turn": (read_earlier, [1, 1, 1, 1], 0.5),
    "a missing call that is made good": (
        lambda turns: turns[1].insert(0, turns[0].pop()),
        [0, 1, 1, 1],
        0.375 + TWO_OF_THREE,
    ),
    "a missing call that every later state lacks": (lambda turns: turns[0].pop(), [0, 0, 0, 0], 0.15625 + TWO_OF_THREE),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_loses_the_parts_of_its_user_turn_that_it_makes_wrong_and_no_other(change):
    alter, states, earned = CHANGES[change]
    turns = recorded(TASK)
    alter(turns)
    steps = play(shared_env("base"), TASK, messages(turns))
    paid = [step.info["reward_components"] for step in steps]
    assert [part["state"] * 8 for part in paid if "state" in part] == states
    assert Counter(sums(steps)) == Counter(state=sum(states) / 8, response=earned)
    assert steps[-1].info["success"] is (total(steps) == 1.0)


def test_a_call_in_a_turn_that_needs_none_loses_its_turn_and_the_task():
    task_id = "multi_turn_miss_func_0"
    turns = recorded(task_id)
    assert len(turns) == 5 and turns[2] == []
    turns[2] = [("pwd", {})]
    steps = play(shared_env("miss_func"), task_id, messages(turns))
    assert total(steps) == 1.0 - _weight(2, 5) / 2**20 and steps[-1].info["success"] is False
    assert steps[-1].info["bfcl_valid"] is True, "the state is right, and BFCL's runner looks at nothing else"
    lenient = BfclMultiTurn(subset="miss_func", call_format="python", irrelevance=False)
    steps = play(lenient, task_id, messages(turns))
    assert total(steps) == 1.0 - _weight(2, 5) / 2**20 and steps[-1].info["success"] is True


def test_an_unknown_name_and_wrong_arguments_are_answered_as_bfcl_does_and_later_calls_run():
    env, _ = start(TASK)
    step = env.step("[foo(a=1), cd(path='document'), cd(folder='document'), a.cd(folder='temp'), cd(folder='x')]")
    assert step.observation.split("\n") == [
        "Error during execution: name 'foo' is not defined",
        "Error during execution: GorillaFileSystem.cd() got an unexpected keyword argument 'path'",
        '{"current_working_directory": "document"}',
        "Error during execution: name 'a' is not defined",
        '{"error": "cd: \'x\': No such file or directory"}',
    ]
    assert step.reward == 2**18 // 3 / 2**21 and step.info["action_error"] == step.observation.split("\n")[-1]


def test_penalties_are_paid_as_asked():
    env, _ = start(TASK, call_format="hermes", malformed_penalty=0.5, error_penalty=0.25)
    call = '<tool_call>{"name": "cd", "arguments": {"folder": "%s"}}</tool_call>'
    step = env.step(call % "nowhere" + call % "elsewhere" + "<tool_call>{</tool_call>" + call % "document")
    assert step.info["reward_components"] == {"error": -0.5, "malformed": -0.5} and step.reward == -1.0
    assert len(step.observation.split("\n")) == 3, "nothing runs after a call that cannot be read"
    assert env.step(call % "document").observation == '{"current_working_directory": "document"}'


def test_twenty_messages_with_calls_are_allowed_in_a_user_turn_and_one_more_loses_the_task():
    turns = recorded(TASK)
    script = messages(turns)
    script[1] = ["[pwd()]"] * 19 + script[1]
    assert total(play(shared_env("base"), TASK, script)) == 1.0
    env, _ = start(TASK)
    steps = [env.step(message) for message in [*script[0], ANSWER, *script[1], "[pwd()]"]]
    assert steps[-1].terminated and not steps[-2].terminated and not steps[-1].truncated
    assert steps[-1].info["success"] is False and total(steps) == 0.25 + 0.125
    env, _ = start(TASK)
    steps = [env.step("[cd(folder=]") for _ in range(21)]
    assert steps[-1].terminated and steps[-1].info["action_error"]


# Agreement with the reference checker


@pytest.fixture
def reference():
    """BFCL's verdicts (checker, irrelevance checker) on the steps of each user turn, from a clean state every time."""
    checker = importlib.import_module(f"{REFERENCE}.multi_turn_checker")
    runner = importlib.import_module(f"{REFERENCE}.multi_turn_utils")
    extensions = importlib.import_module(f"{REFERENCE}.func_source_code.long_context")
    names = ("CREDIT_CARD_EXTENSION", "BOOKING_RECORD_EXTENSION", "LONG_WEATHER_EXTENSION")
    saved = {name: copy.deepcopy(getattr(extensions, name)) for name in names}
    before = set(vars(runner))

    def restore():
        for name, value in saved.items():
            shared = getattr(extensions, name)
            shared.clear()
            shared.update(copy.deepcopy(value))
        for name in set(vars(runner)) - before:
            del vars(runner)[name]

    def verdict(task_id, steps):
        subset = subset_of(task_id)
        entry, truth = reference_entries(subset)[task_id]
        try:
            # Its irrelevance checker compares with empty lists; the model's name is part of the key of its instances.
            valid = checker.multi_turn_checker(steps, truth, entry, subset, "model")["valid"]
            return valid, checker.multi_turn_irrelevance_checker(steps, truth)["valid"]
        finally:
            restore()

    return verdict


@functools.lru_cache
def reference_entries(subset):
    def read(name):
        return map(json.loads, (tasks.data_folder() / name).read_text(encoding="utf-8").splitlines())

    name = f"BFCL_v4_multi_turn_{subset}.json"
    answers = {entry["id"]: entry["ground_truth"] for entry in read(f"possible_answer/{name}")}
    return {entry["id"]: (entry, answers[entry["id"]]) for entry in read(name)}


def as_text(calls):
    return [write_calls([call], "python")[1:-1] for call in calls]


def agree(reference, task_id, turns):
    """Plays (user turns of messages of calls) here and there; the verdict both came to."""
    steps = play(env_of(task_id), task_id, [[write_calls(calls, "python") for calls in turn] for turn in turns])
    valid, irrelevance = reference(task_id, [[as_text(calls) for calls in turn] for turn in turns])
    info = steps[-1].info
    assert (info["bfcl_valid"], info["success"]) == (valid, valid and irrelevance), (task_id, turns)
    assert (total(steps) == 1.0) == info["success"]
    return info["success"], valid


def test_the_verdict_on_recorded_answers_is_that_of_the_reference(reference):
    for subset in SUBSETS:
        for task_id in shared_env(subset).task_ids:
            assert agree(reference, task_id, [[turn] if turn else [] for turn in recorded(task_id)]) == (True, True)


def altered(rng, value):
    match value:
        case bool():
            return not value
        case int() | float():
            return rng.choice([value + 1, -value, str(value)])
        case str():
            return rng.choice([value + "x", value.upper(), "", 0])
        case list():
            return rng.choice([value[:-1], [*value, "x"], value[::-1]])
    return None


def perturbed(rng, turns):
    """A copy of the recorded calls with one change, and which."""
    turns = copy.deepcopy(turns)
    turn = rng.choice([i for i, turn in enumerate(turns) if turn])
    position = rng.randrange(len(turns[turn]))
    kind = rng.choice(["drop", "duplicate", "alter", "swap", "move", "extra", "empty", "misname"])
    if kind == "drop":
        del turns[turn][position]
    elif kind == "duplicate":
        turns[turn].insert(position, turns[turn][position])
    elif kind == "alter":
        name, arguments = turns[turn][position]
        if arguments:
            key = rng.choice(sorted(arguments))
            turns[turn][position] = (name, {**arguments, key: altered(rng, arguments[key])})
    elif kind == "swap":
        rng.shuffle(turns[turn])
    elif kind == "move":
        turns[rng.randrange(len(turns))].append(turns[turn].pop(position))
    elif kind == "extra":
        turns[rng.randrange(len(turns))].append(turns[turn][position])
    elif kind == "empty":
        turns[turn] = []
    else:
        turns[turn][position] = (turns[turn][position][0] + "_", turns[turn][position][1])
    # in one message, or a message for each call
    return kind, [[turn] if rng.random() < 0.5 else [[call] for call in turn] if turn else [] for turn in turns]


@pytest.mark.parametrize("subset", SUBSETS)
def test_the_verdict_on_changed_answers_is_that_of_the_reference(reference, subset):
    rng = random.Random(subset)
    verdicts = Counter()
    for task_id in shared_env(subset).task_ids:
        kind, turns = perturbed(rng, recorded(task_id))
        turns = [[calls for calls in turn if calls] for turn in turns]
        if max(map(len, turns)) <= 20:
            verdicts[kind, agree(reference, task_id, turns)[0]] += 1
    assert sum(verdicts.values()) >= 180
    assert {kind for kind, success in verdicts if not success} >= {"drop", "alter", "move", "empty", "misname"}
    assert {kind for kind, success in verdicts if success} >= {"duplicate", "swap"}


# Isolation


def test_two_interleaved_episodes_of_a_task_do_not_meet():
    for task_id in ("multi_turn_base_0", "multi_turn_long_context_160", "multi_turn_base_100"):
        alone = play(env_of(task_id), task_id)
        first, second = (env_of(task_id, call_format="python") for _ in range(2))
        first.reset(options={"task": task_id})
        second.reset(options={"task": task_id})
        played = []
        for message in (message for turn in messages(recorded(task_id)) for message in [*turn, ANSWER]):
            played.append(first.step(message))
            second.step("[place_order(order_type='Buy', symbol='AAPL', price=1, amount=1), cd(folder='document')]")
            second.step(message)
        assert played == alone


@pytest.mark.parametrize("task", [t for t in range(200) if t % 40 < 3])
def test_threads_do_not_disturb_each_other(task):
    task_ids = [f"multi_turn_{subset}_{task}" for subset in ("base", "long_context")] * 4
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda task_id: total(play(env_of(task_id, call_format="python"), task_id)), task_ids))
    assert results == [1.0] * len(task_ids)


def test_no_episode_changes_what_bfcl_shares_between_its_instances():
    extensions = importlib.import_module(f"{REFERENCE}.func_source_code.long_context")
    names = ("CREDIT_CARD_EXTENSION", "BOOKING_RECORD_EXTENSION")
    before = copy.deepcopy([getattr(extensions, name) for name in names])
    env = shared_env("long_context")
    travel = [task for task in env._tasks.values() if "TravelAPI" in task.classes]
    for task in travel:
        play(env, task.id)
    env.reset(options={"task": travel[0].id})
    card = max(before[0], key=lambda card_id: before[0][card_id]["balance"])
    token = env._backend.instances["TravelAPI"].access_token
    booking = {"access_token": token, "card_id": card, "travel_date": "2026-01-01", "travel_from": "SFO"}
    booking |= {"travel_to": "LAX", "travel_class": "economy"}
    env.step(write_calls([("set_budget_limit", {"access_token": token, "budget_limit": 1.0})], "python"))
    step = env.step(write_calls([("book_flight", booking)], "python"))
    assert json.loads(step.observation)["booking_status"] is True, step.observation
    assert env._backend.instances["TravelAPI"].credit_card_list[card] != before[0][card]
    assert [getattr(extensions, name) for name in names] == before


def test_nothing_of_the_runner_of_bfcl_is_imported():
    program = (
        "import sys, envgym\n"
        "trajectory = envgym.run_episode('envgym/BfclMultiTurn-v0', lambda observation: 'hello', seed=0)\n"
        "assert trajectory.terminated\n"
        "loaded = {name for name in sys.modules if name.startswith('bfcl_eval')}\n"
        "tools = 'bfcl_eval.eval_checker.multi_turn_eval.func_source_code'\n"
        "print(sorted(name for name in loaded if not (name.startswith(tools) or tools.startswith(name))))\n"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_precision_set_by_the_calculator_does_not_leave_it():
    env = start_calculator()
    before = mpmath.mp.prec, decimal.getcontext().prec
    step = env.step("[logarithm(value=2, base=10, precision=50), square_root(number=2, precision=60)]")
    assert "0.301029995663981195213738894724493026768189881462" in step.observation
    assert "1.41421356237309504880168872420969807856967187537694807317668" in step.observation
    assert (mpmath.mp.prec, decimal.getcontext().prec) == before


# Subsets


def test_held_out_functions_are_declared_at_their_turn():
    for call_format in ("hermes", "python"):
        env, _ = start("multi_turn_miss_func_0", call_format=call_format)
        names = [schema["function"]["name"] for schema in env.tools]
        assert "sort" not in names and '"sort"' not in env.system_prompt and "grep" in names
        env.step(ANSWER)
        env.step(ANSWER)
        step = env.step(ANSWER)
        assert step.info["user_turn"] == 3 and step.info["role"] == "user"
        assert '"name": "sort"' in step.observation and '"name": "grep"' not in step.observation
        assert step.observation.endswith("\nI have updated some more functions you can choose from. What about now?")
        assert {schema["function"]["name"] for schema in env.tools} == {*names, "sort"}


def test_the_long_context_subset_has_long_results():
    lengths = {}
    for subset in ("base", "long_context"):
        env, _ = start(f"multi_turn_{subset}_0")
        lengths[subset] = len(env.step("[cd(folder='document'), ls(), cat(file_name='final_report.pdf')]").observation)
    assert lengths["base"] < 400 and lengths["long_context"] > 2000


def test_tools_are_declared_with_json_schemas():
    env, _ = start("multi_turn_base_0", call_format="hermes")
    assert len(env.tools) == 14 + 18
    sort = next(tool["function"] for tool in env.tools if tool["function"]["name"] == "sort")
    name = {"type": "string", "description": "The name of the file appeared at current directory to sort. "}
    assert sort["parameters"] == {"type": "object", "properties": {"file_name": name}, "required": ["file_name"]}

    def types(schema):
        if isinstance(schema, dict):
            yield from ([schema["type"]] if isinstance(schema.get("type"), str) else [])
            for value in schema.values():
                yield from types(value)

    assert len(tasks.schemas()) == 128
    parameters = [schema["function"]["parameters"] for schema in tasks.schemas().values()]
    known = {"object", "array", "string", "number", "integer", "boolean"}
    assert {kind for schema in parameters for kind in types(schema)} <= known


def test_the_python_format_describes_itself_and_lists_the_functions():
    env, _ = start("multi_turn_base_0")
    templates = importlib.import_module("bfcl_eval.constants.default_prompts")
    style = templates.PROMPT_STYLE_TEMPLATES["classic"]
    documents = json.dumps(env._task.functions(0), indent=4)
    assert env.system_prompt == templates.PROMPT_TEMPLATE_MAPPING["plaintext"].format(
        persona=style["persona"],
        task=style["task"],
        tool_call_format=style["tool_call_no_tag"].format(
            output_format=templates.OUTPUT_FORMAT_MAPPING["python"], param_types=""
        ),
        multiturn_behavior=style["multiturn_behavior"],
        available_tools=style["available_tools"].format(format="json", functions=documents),
    )
    assert '"name": "grep"' in documents
    assert ADDED == templates.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
    assert STEP_LIMIT == templates.MAXIMUM_STEP_LIMIT
    assert "func_name1" not in start("multi_turn_base_0", call_format="hermes")[0].system_prompt


def test_tasks_are_drawn_by_the_seed_or_chosen():
    env = shared_env("base")
    drawn = [env.reset(seed=seed)[1]["task"] for seed in range(300)]
    assert drawn == [env.reset(seed=seed)[1]["task"] for seed in range(300)] and len(set(drawn)) > 120
    assert env.reset(seed=1, options={"task": "multi_turn_base_7"})[1]["task"] == "multi_turn_base_7"
    with pytest.raises(ValueError, match="multi_turn_base_0 to multi_turn_base_199"):
        env.reset(options={"task": "multi_turn_miss_func_0"})


# Reading calls

NAMES = frozenset({"cd", "ls"})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[cd(folder='a'), ls(a=True)]", [ToolCall("cd", {"folder": "a"}), ToolCall("ls", {"a": True})]),
        ("cd(folder='a'), ls()", [ToolCall("cd", {"folder": "a"}), ToolCall("ls")]),
        ("```\n[ls()]\n```", [ToolCall("ls")]),
        ("<think>[cd(folder='no')]</think>\n\n[ls()]", [ToolCall("ls")]),
        ("[cd('a')]", [ToolCall("cd", {}, ("a",))]),
        ("[unknown(a=[1, -2.5, None, {'b': (1, 2)}])]", [ToolCall("unknown", {"a": [1, -2.5, None, {"b": (1, 2)}]})]),
        ("[a.b.cd(x=1)]", [ToolCall("a.b.cd", {"x": 1})]),
        *((text, []) for text in ("", "[]", "I moved the file.", "Moved (as you asked): cd(folder='a')")),
        *((text, []) for text in ("[1, 2]", "foo(bar)", "[not a call]")),
    ],
)
def test_python_calls_are_read_and_text_without_a_call_is_an_answer(text, calls):
    assert read_calls(text, "python", NAMES) == calls


@pytest.mark.parametrize(
    "arguments",
    [
        *("folder=", "folder=home", "folder=ls()", "folder=1+1", "folder=f'{1}'", "**{'folder': 'a'}", "*['a']"),
        *("folder='a', folder='b'", "folder=-True", "folder=1j", "folder=b'a'", "folder=[x for x in 'a']"),
        *("folder=" + "9" * 5000, "folder=0x" + "f" * 5000, "folder=" + "-" * 50_000 + "1", "folder=1" + "+1" * 40_000),
        *("folder=" + "[" * 50_000, "folder='\x00'", "folder=...", "folder=not 1", "folder=lambda: 0"),
        "folder='" + "a" * 100_000 + "'",
    ],
)
def test_a_call_that_cannot_be_read_is_never_run_with_a_guess(arguments):
    (call,) = read_calls(f"[cd({arguments})]", "python", NAMES)
    assert isinstance(call, CallError)
    env, _ = start(TASK)
    step = env.step(f"[mkdir(dir_name='a'), cd({arguments})]")
    assert step.info["reward_components"] == {"malformed": -0.01} and step.info["action_error"] == step.observation
    assert "'a'" not in env.step("[ls()]").observation


def test_a_message_has_at_most_64_calls():
    env, _ = start(TASK)
    step = env.step(f"[{', '.join(['pwd()'] * 65)}]")
    assert len(step.observation.split("\n")) == 65 and "malformed" in step.info["reward_components"]


@pytest.mark.parametrize("call_format", ["hermes", "python"])
def test_what_is_written_is_read_back(call_format):
    written = [("f", {"a": 'it\'s "so"\n\\', "b": [1, -2.5, True, None]}), ("g", {})]
    calls = read_calls(write_calls(written, call_format), call_format, frozenset())
    assert calls == [ToolCall(name, arguments) for name, arguments in written]


def test_every_recorded_call_is_literal():
    assert read_list("[sort('final_report.pdf')]") == [ToolCall("sort", {}, ("final_report.pdf",))]
    all_tasks = [task for subset in SUBSETS for task in load_tasks(subset).values()]
    assert sum(len(turn) for task in all_tasks for turn in task.ground_truth) == 4625


# Hostile use


@pytest.mark.parametrize(
    "call",
    [
        *("power(base=9, exponent=99999999999)", "power(9, 99999999999)"),
        *("logarithm(value=2, base=3, precision=999999999)", "logarithm(value=2, base=3, precision='999999999')"),
        *("square_root(number=2, precision=999999999)", "round_number(number=5, decimal_places=-999999999)"),
    ],
)
def test_calculations_without_end_are_refused(call):
    env = start_calculator()
    started = time.perf_counter()
    step = env.step(f"[{call}]")
    assert time.perf_counter() - started < 1.0 and step.info["action_error"]


def test_a_power_too_long_to_print_gets_the_answer_the_reference_gives():
    env = start_calculator()
    computed, refused = (env.step(f"[power(base=2, exponent={n})]").observation for n in (20_000, 20_001))
    assert computed == refused and computed.startswith("Error during execution: Exceeds the limit (4300 digits)")
    assert env.step("[power(base=2, exponent=10)]").observation == '{"result": 1024}'


def test_a_folder_copied_into_itself_is_only_a_wrong_state():
    env, _ = start(TASK)
    env.step("[mkdir(dir_name='a'), cp(source='a', destination='a')]")
    assert "recursion" in env.step("[find()]").observation
    step = env.step(ANSWER)
    assert step.info["checks"]["state"] is False
