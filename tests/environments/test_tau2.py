"""tau2-bench domains: golden replays, agreement with tau2's evaluators, rewards by hand, isolation, and the users."""

import contextlib
import gc
import importlib
import json
import pickle
import subprocess
import sys
import timeit
from collections import Counter

import numpy as np
import pytest

import envgym
from envgym.environments.tau2 import Tau2
from envgym.environments.tau2.domain import load_domain
from envgym.environments.tau2.players import FAREWELL, golden_messages
from envgym.environments.tau2.tables import SharedTable, changes, private
from envgym.environments.tau2.users import ModelUser, first_person
from envgym.errors import EpisodeOrderError
from envgym.tools import format_call

pytest.importorskip("tau2.domains.mock.environment", reason="install tau2: pip install --no-deps -r bridges.txt")

NO_GOLDEN_ACTIONS = "update_task_with_history_and_env_assertions"
"""A mock task that asks for an end state but ships no actions that lead to it: the only one a replay cannot solve."""


def play(env, task, messages=None, max_turns=60):
    """Components of an episode summed, and its last step. After the messages the agent says goodbye until it ends."""
    observation, info = env.reset(options={"task": task})
    player = None if messages is not None else env.solver()
    rest, total = iter(messages or ()), Counter()
    for _ in range(max_turns):
        step = env.step(player.act(observation, info) if player else next(rest, FAREWELL))
        total.update(step.info["reward_components"])
        if step.terminated:
            return total, step
        observation, info = step.observation, step.info
    raise AssertionError(f"task {task} did not end within {max_turns} turns")


def call(name, **arguments):
    return format_call(name, arguments, "hermes")


COMPLETE = call("update_task_status", task_id="task_1", status="completed")


def start(domain, task, **kwargs):
    """An environment whose episode is this task."""
    env = Tau2(domain=domain, **kwargs)
    env.reset(options={"task": task})
    return env


# --- golden replays ---


@pytest.mark.parametrize(
    ("domain", "split", "num_tasks"),
    [
        ("retail", "base", 114),
        ("airline", "base", 50),
        ("telecom", "base", 114),
        ("mock", "base", 9),
        pytest.param("telecom", "full", 2285, marks=pytest.mark.slow),
    ],
)
def test_the_golden_actions_solve_every_task_within_the_turn_limit_and_earn_one(domain, split, num_tasks):
    env = Tau2(domain=domain, split=split)
    unsolved = []
    for task in env.tasks:
        total, step = play(env, task)
        assert len(golden_messages(env.episode)) + 4 <= env.max_turns
        if step.info["success"]:
            assert sum(total.values()) == pytest.approx(1.0, abs=1e-9), (task, total)
        else:
            unsolved.append(task)
    assert len(env.tasks) == num_tasks and unsolved == ([NO_GOLDEN_ACTIONS] if domain == "mock" else [])


# --- agreement with tau2 ---


class Reference:
    """tau2's own evaluators on a recorded conversation, with databases of their own, combined as tau2 combines them.

    `tau2.evaluator.evaluator` itself cannot be imported without litellm, so its product over the reward basis stands
    here.
    """

    def __init__(self, domain):
        module = importlib.import_module(f"tau2.domains.{domain.name}.environment")
        agent_db, user_db = domain.databases
        self._blobs = pickle.dumps((agent_db, user_db), -1)
        self._make = module.get_environment
        self._has_user_db = user_db is not None

    def _environment(self, solo_mode=False):
        gc.disable()
        try:
            agent_db, user_db = pickle.loads(self._blobs)
        finally:
            gc.enable()
        return self._make(db=agent_db, **({"user_db": user_db} if self._has_user_db else {}))

    def parts(self, task, messages):
        from tau2.evaluator.evaluator_action import ActionEvaluator
        from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
        from tau2.evaluator.evaluator_env import EnvironmentEvaluator

        names = {"DB": "db", "ENV_ASSERTION": "assertion", "ACTION": "actions", "COMMUNICATE": "communicate"}
        basis = {names[entry.value] for entry in task.evaluation_criteria.reward_basis}
        try:
            environment = EnvironmentEvaluator.calculate_reward(self._environment, task, messages)
        except ValueError:  # an assertion about a record that is not there: tau2 has no reward for this
            return 0.0, {}
        infos = (
            environment,
            ActionEvaluator.calculate_reward(task, messages),
            CommunicateEvaluator.calculate_reward(task, messages),
        )
        kinds = ({"db", "assertion"}, {"actions"}, {"communicate"})
        reward = float(np.prod([info.reward for info, kind in zip(infos, kinds, strict=True) if kind & basis]))
        parts = {}
        for info in infos:
            parts |= {names[key.value]: value == 1.0 for key, value in (info.reward_breakdown or {}).items()}
        return reward, {name: met for name, met in parts.items() if name in basis}


def perturb(messages, rng):
    """Golden messages with one fault: one left out, one twice, two swapped, an argument changed, or nothing at all."""
    messages = list(messages)
    kind = ["drop", "repeat", "swap", "argument", "argument", "silence"][int(rng.integers(6))]
    at = int(rng.integers(len(messages)))
    if kind == "drop":
        del messages[at]
    elif kind == "repeat":
        messages.insert(at, messages[at])
    elif kind == "swap":
        other = int(rng.integers(len(messages)))
        messages[at], messages[other] = messages[other], messages[at]
    elif kind == "silence":
        return []
    else:
        with_call = [i for i, message in enumerate(messages) if message.startswith("<tool_call>")]
        if with_call:
            at = with_call[int(rng.integers(len(with_call)))]
            body = json.loads(messages[at].removeprefix("<tool_call>").removesuffix("</tool_call>"))
            if body["arguments"]:
                key = list(body["arguments"])[int(rng.integers(len(body["arguments"])))]
                old = body["arguments"][key]
                body["arguments"][key] = old[:-1] if isinstance(old, str | list) and old else 7
                messages[at] = format_call(body["name"], body["arguments"], "hermes")
    return messages


@pytest.mark.parametrize(
    ("domain", "replays", "perturbed"),
    [
        ("retail", 6, 14),
        ("airline", 2, 4),
        ("telecom", 20, 50),
        ("mock", 9, 20),
        pytest.param("retail", 30, 40, marks=pytest.mark.slow),
        pytest.param("airline", 12, 12, marks=pytest.mark.slow),
    ],
)
def test_success_and_its_parts_are_those_of_tau2(domain, replays, perturbed):
    env = Tau2(domain=domain)
    reference = Reference(env.domain)
    rng = np.random.default_rng(5)
    candidates = [id for id in env.tasks.ids if env.domain.gold(env.tasks[id]).actions]
    results = []
    for i in range(replays + perturbed):
        task = env.tasks.ids[i % len(env.tasks)] if i < replays else candidates[int(rng.integers(len(candidates)))]
        env.reset(options={"task": task})
        messages = golden_messages(env.episode)
        if i >= replays and messages:
            messages = perturb(messages, rng)
        _, step = play(env, task, messages)
        reward, parts = reference.parts(env.episode.task, env.episode.messages)
        assert step.info["success"] == (reward == 1.0), (task, messages, parts, step.info["tau2"])
        assert parts.items() <= step.info["tau2"].items(), (task, messages)
        results.append(step.info["success"])
    assert replays - 1 <= sum(results[:replays]) and 0 < sum(results[replays:]) < perturbed


def test_equal_changes_are_equal_hashes():
    domain = load_domain("retail")
    base = domain.databases[0]
    task = domain.task_set("base")["0"]
    environments = [domain.start(task) for _ in range(4)]
    for environment in environments[1:]:
        environment.use_tool("cancel_pending_order", order_id="#W5199551", reason="no longer needed")
    environments[3].tools.db.users["yusuf_rossi_9620"].name.first_name = "Y"
    hashes = [environment.get_db_hash() for environment in environments]
    found = [changes(base, environment.tools.db) for environment in environments]
    for i in range(4):
        for j in range(4):
            assert (hashes[i] == hashes[j]) == (found[i] == found[j])
    assert found[0] == {} and next(iter(found[1]))[0] == "orders" and len(found[3]) == 2
    environments[3].tools.db.users["yusuf_rossi_9620"].name.first_name = "Yusuf"
    assert changes(base, environments[3].tools.db) == found[1]


# --- rewards ---


def test_the_rewards_of_a_clean_episode():
    env = Tau2(domain="retail")
    observation, info = env.reset(options={"task": "0"})
    assert observation.startswith("I received my order #W2378156") and info == {"task": "0", "success": False}
    step = env.step("Who are you?")
    assert step.observation == "I am Yusuf Rossi in zip code 19122. I do not remember my email address."
    assert step.info["role"] == "user" and step.info["reward_components"] == {} and not step.terminated
    step = env.step(call("find_user_id_by_name_zip", first_name="Yusuf", last_name="Rossi", zip="19122"))
    assert step.observation == "yusuf_rossi_9620" and step.info["role"] == "tool" and step.reward == 0.0
    write = env.episode.gold.actions[0]
    assert write.name == "exchange_delivered_order_items"
    step = env.step(format_call(write.name, write.arguments, "hermes"))
    assert step.info["reward_components"] == {"action": pytest.approx(0.3)} and step.info["success"] is False
    assert json.loads(step.observation)["status"] == "exchange requested"
    assert env.step("I have exchanged them.").observation.startswith("I am detail-oriented")
    step = env.step("Is there anything else?")
    assert step.terminated and step.info["success"] is True
    assert step.info["reward_components"] == {"db": pytest.approx(0.7)}
    assert step.info["tau2"] == {"db": True, "communicate": True}


def start_retail(num_actions, num_facts):
    """An episode of retail whose task has so many golden writes and facts."""
    env = Tau2(domain="retail")
    for id, task in env.tasks.items():
        facts = task.evaluation_criteria.communicate_info or []
        if len(env.domain.gold(task).actions) == num_actions and len(facts) == num_facts:
            env.reset(options={"task": id})
            return env
    raise AssertionError("no such task")


EXCHANGED = call(
    "exchange_delivered_order_items",
    order_id="#W2378156",
    item_ids=["1151293680"],
    new_item_ids=["7706410293"],
    payment_method_id="credit_card_9513926",
)


@pytest.mark.parametrize(
    ("domain", "task", "messages", "earned", "met", "success"),
    [
        # A wrong argument loses the action and the database, an action pays once, and where none is made none is paid.
        ("retail", "0", [EXCHANGED], {"db": 0.0}, {"db": False, "communicate": True}, False),
        ("mock", "update_task_1", [COMPLETE] * 3, {"action": 0.3, "db": 0.7}, {"db": True, "communicate": True}, True),
        ("mock", "impossible_task_1", [], {"db": 0.7}, {"db": True, "actions": False}, False),
    ],
)
def test_what_is_earned(domain, task, messages, earned, met, success):
    total, step = play(Tau2(domain=domain), task, messages)
    assert total == pytest.approx(earned) and step.info["tau2"] == met and step.info["success"] is success


def test_a_missing_action_loses_its_share_and_the_database_but_not_the_facts():
    env = start_retail(2, 1)
    messages = golden_messages(env.episode)
    last = max(i for i, message in enumerate(messages) if env.episode.gold.actions[-1].name in message)
    total, step = play(env, env.episode.task.id, messages[:last] + messages[last + 1 :])
    assert total == {"action": pytest.approx(0.15), "communicate": pytest.approx(0.1), "db": 0.0}
    assert step.info["success"] is False


def test_a_fact_that_is_not_told_loses_only_its_share_and_the_success():
    env = start_retail(1, 2)
    facts, *rest = golden_messages(env.episode)
    half = f"It is {env.episode.facts[0].upper()}."
    total, step = play(env, env.episode.task.id, [half, *rest])
    assert total == {"communicate": pytest.approx(0.05), "action": pytest.approx(0.3), "db": pytest.approx(0.6)}
    assert step.info["success"] is False and step.info["tau2"] == {"db": True, "communicate": False}
    total, _ = play(env, env.episode.task.id, [facts, facts, *rest])
    assert sum(total.values()) == pytest.approx(1.0, abs=1e-9)


def test_progress_is_paid_before_the_turn_limit_cuts():
    env = envgym.make("envgym/Tau2Retail-v0", max_turns=2)
    env.reset(options={"task": "0"})
    write = env.unwrapped.episode.gold.actions[0]
    env.step("Hello.")
    step = env.step(format_call(write.name, write.arguments, "hermes"))
    assert step.truncated and step.info["truncation_reason"] == "max_turns" and step.info["success"] is False
    assert step.info["reward_components"] == {"action": pytest.approx(0.3)}


def test_a_transfer_ends_the_episode_and_the_calls_after_it_are_not_made():
    env = start("mock", "impossible_task_1")
    late = call("create_task", user_id="user_1", title="x")
    step = env.step(call("transfer_to_human_agents", summary="") + late)
    assert step.terminated and step.info["success"] is True and step.observation == "Transfer successful"
    assert step.reward == pytest.approx(1.0) and env.episode.domain.changes(env.episode.environment) == ({}, None)


# --- messages ---


def test_several_calls_are_run_in_order_up_to_the_one_that_cannot_be_read():
    env = start("mock", "update_task_1", error_penalty=0.1)
    step = env.step(f"One moment. {COMPLETE}{call('nonsense')}<tool_call>{{</tool_call>{COMPLETE}")
    lines = step.observation.split("\n")
    assert json.loads(lines[0])["status"] == "completed"
    assert lines[1] == "Error: Tool 'nonsense' not found." and lines[2].startswith("Malformed call")
    assert step.info["reward_components"] == {"action": pytest.approx(0.3), "error": pytest.approx(-0.2)}
    assert step.info["action_error"] == lines[1] and step.info["role"] == "tool" and len(lines) == 3


@pytest.mark.parametrize("action", ["", "  \n", "<tool_call>{}</tool_call>", "<tool_call>", "<think>only a thought"])
def test_what_is_neither_text_nor_call_is_an_error(action):
    env = start("mock", "update_task_1", error_penalty=0.1)
    before = list(env.episode.messages)
    step = env.step(action)
    assert step.info["action_error"] == step.observation and step.info["role"] == "user" and not step.terminated
    assert step.info["reward_components"] == {"error": -0.1} and env.episode.messages == before


def test_thoughts_reach_nobody():
    env = start_retail(1, 1)
    fact = env.episode.facts[0]
    assert env.step(f"<think>{fact} {call('calculate', expression='1')}</think>Hello.").reward == 0.0
    assert env.step(f"<think>hm</think>{fact}").info["reward_components"] == {"communicate": pytest.approx(0.1)}


@pytest.mark.parametrize("expression", ["9**9**9**9", "1+" * 200 + "1"])
def test_a_calculation_that_may_never_end_is_refused(expression):
    env = Tau2(domain="retail")
    env.reset(seed=0)
    step = env.step(call("calculate", expression=expression))
    assert step.observation.startswith("Error: Invalid expression") and step.info["action_error"]
    assert env.step(call("calculate", expression="2 * (3 + 4)")).observation == "14.0"


def test_arguments_named_like_tau2s_own_are_only_errors():
    env = start("mock", "update_task_1")
    for name in ("tool_name", "requestor", "self"):
        assert env.step(call("get_users", **{name: "x"})).observation.startswith("Error:")


def test_tools_policy_and_prompt_are_tau2s():
    for domain, num_tools in {"retail": 15, "airline": 14, "telecom": 13, "mock": 4}.items():
        env = Tau2(domain=domain)
        module = importlib.import_module(f"tau2.domains.{domain}.environment")
        original = module.get_environment()
        assert [tool["function"]["name"] for tool in env.tools] == [tool.name for tool in original.get_tools()]
        assert len(env.tools) == num_tools and original.get_policy() in env.system_prompt
    book = next(
        tool["function"] for tool in Tau2(domain="airline").tools if tool["function"]["name"] == "book_reservation"
    )
    assert "user_id" in book["parameters"]["required"] and book["parameters"]["properties"]["cabin"]


# --- choice of the task ---


def test_the_seed_draws_the_task_and_an_option_chooses_it():
    env = Tau2(domain="retail")
    drawn = [env.reset(seed=seed)[1]["task"] for seed in range(40)]
    assert drawn == [Tau2(domain="retail").reset(seed=seed)[1]["task"] for seed in range(40)] and len(set(drawn)) > 20
    assert env.reset(seed=3, options={"task": "17"})[1]["task"] == "17"
    with pytest.raises(ValueError, match="unknown tau2 task '999'"):
        env.reset(options={"task": "999"})
    with pytest.raises(ValueError, match="unknown options"):
        env.reset(options={"tusk": "1"})


def test_the_splits_are_tau2s():
    sizes = {split: len(Tau2(domain="telecom", split=split).tasks) for split in ("small", "train", "test", "base")}
    assert sizes == {"small": 20, "train": 74, "test": 40, "base": 114}
    train, test = (set(Tau2(domain="retail", split=split).tasks) for split in ("train", "test"))
    assert (len(train), len(test)) == (74, 40) and not train & test


def test_a_step_before_reset_is_refused():
    with pytest.raises(EpisodeOrderError):
        Tau2(domain="mock").step("x")


# --- isolation ---


def test_two_interleaved_episodes_do_not_meet():
    first, second = Tau2(domain="retail"), Tau2(domain="retail")
    shared = first.domain.databases[0]
    before = first.domain.start(first.tasks["0"]).get_db_hash()
    players = [first.solver(), second.solver()]
    states = [first.reset(options={"task": "0"}), second.reset(options={"task": "0"})]
    rewards = [0.0, 0.0]
    ended = [False, False]
    while not all(ended):
        for i, env in enumerate((first, second)):
            if not ended[i]:
                step = env.step(players[i].act(*states[i]))
                rewards[i] += step.reward
                states[i], ended[i] = (step.observation, step.info), step.terminated
    assert rewards == pytest.approx([1.0, 1.0]) and states[0] == states[1]
    assert type(shared)(**shared.__dict__).get_hash() == before


def test_a_bad_vpn_stays_in_its_episode():
    env = Tau2(domain="telecom", split="full")
    bad = next(task for task in env.tasks if "bad_vpn" in task)
    env.reset(options={"task": bad})
    env.step("Please use disconnect_vpn.")
    good = next(task for task in env.tasks if "vpn" not in task)
    env.reset(options={"task": good})
    env.step("Please use connect_vpn.")
    assert env.episode.environment.user_tools.device.vpn_details.server_performance.value == "excellent"


def test_a_shared_table_hands_out_copies_only():
    base = {"a": [1], "b": {"c": [2]}}
    for read in (
        lambda table: table["b"]["c"].append(3),
        lambda table: table.get("b")["c"].append(3),
        lambda table: [value for _, value in table.items()][1]["c"].append(3),
        lambda table: list(table.values())[1]["c"].append(3),
        lambda table: table.pop("b")["c"].append(3),
        lambda table: table.popitem()[1]["c"].append(3),
        lambda table: table.setdefault("b")["c"].append(3),
        lambda table: table.copy()["b"]["c"].append(3),
        lambda table: pickle.loads(pickle.dumps(table))["b"]["c"].append(3),
    ):
        table = private(base)
        read(table)
        assert base == {"a": [1], "b": {"c": [2]}}
    table = SharedTable(base)
    table["b"]["c"].append(3)
    table["d"] = 4
    table.update(e=5)
    del table["a"]
    assert table == {"b": {"c": [2, 3]}, "d": 4, "e": 5} and table.get("a") is None
    assert table["b"] is table["b"] and table.pop("x", 6) == 6


def test_a_private_database_costs_a_hundredth_of_a_full_copy():
    domain = load_domain("airline")
    database = domain.databases[0]
    task = domain.task_set("base")["0"]
    blob = pickle.dumps(database, -1)

    whole = min(timeit.repeat(lambda: pickle.loads(blob), number=1, repeat=2))
    shared = min(timeit.repeat(lambda: domain.start(task), number=1, repeat=20))
    assert shared < whole / 100 and shared < 0.005


def test_nothing_is_printed_and_no_language_model_client_is_loaded():
    program = (
        "import sys, os, envgym\n"
        "assert 'tau2' not in sys.modules and 'loguru' not in sys.modules\n"
        "before = dict(os.environ)\n"
        "env = envgym.make('envgym/Tau2Mock-v0')\n"
        "env.reset(seed=0)\n"
        f"env.step({call('update_task_status', task_id='task_1', status=5)!r})\n"
        "for _ in range(9):\n"
        "    if env.step('Is there anything else?').terminated: break\n"
        "assert not {'litellm', 'tau2.registry', 'openai'} & set(sys.modules), sorted(sys.modules)\n"
        "assert dict(os.environ) == before\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


# --- the scripted user ---


def test_the_scripted_user_tells_its_pieces_confirms_and_leaves():
    env = Tau2(domain="airline")
    first, _ = env.reset(options={"task": "0"})
    answers = [env.step("How can I help?") for _ in range(4)]
    assert first.startswith("I want to cancel reservation EHGLP3.")
    assert [step.observation[:38] for step in answers] == [
        "I am Emma Kim. My user id is emma_kim_",
        "If Agent tells me that cancellation is",
        "Yes, please go ahead.",
        "Yes, please go ahead.",
    ]
    assert env.step("What is your user id?").observation == "I am Emma Kim. My user id is emma_kim_9957."
    step = env.step("Have a nice day!")
    assert step.terminated and step.observation == "No, that is all. Thank you, goodbye."


def test_the_scripted_user_gives_up_when_nothing_happens():
    env = start("airline", "0")
    steps = [env.step("Hm.") for _ in range(6)]
    assert not any(step.terminated for step in steps)
    env.step(call("list_all_airports"))
    steps = [env.step("Hm.") for _ in range(5)]
    assert [step.terminated for step in steps] == [False] * 4 + [True]


def test_first_person():
    told = first_person("You are Ann. Your cat gave you\nyour hat; you're sad, and you want two.")
    assert told == "I am Ann. My cat gave me my hat; I am sad, and I want two."


TELECOM_TASK = "[mobile_data_issue]user_abroad_roaming_enabled_off[PERSONA:None]"


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        ("Please use toggle_airplane_mode.", ["toggle_airplane_mode"]),
        ("Turn on airplane mode and then restart your phone.", ["toggle_airplane_mode", "reboot_device"]),
        ("Restart your phone. Then turn airplane mode on.", ["reboot_device", "toggle_airplane_mode"]),
        ("Turn off airplane mode.", []),
        ("Don't turn on airplane mode, but check your status bar.", ["check_status_bar"]),
        ("If it does not work, restart your phone.", ["reboot_device"]),
        ("Please enable data roaming in your settings.", ["toggle_roaming"]),
        ("Could you switch your mobile data off?", ["toggle_data"]),
        ("Turn on Wi-Fi calling.", ["toggle_wifi_calling"]),
        ("Turn on the Wi-Fi.", ["toggle_wifi"]),
        ("Remove and reinsert your SIM card.", ["reseat_sim_card"]),
        ("Please reset your APN settings.", ["reset_apn_settings"]),
        ("Disconnect from the VPN.", ["disconnect_vpn"]),
        ("Set your network mode to 4G/5G preferred.", ["set_network_mode_preference"]),
        ("Grant the messaging app the storage and SMS permissions.", ["grant_app_permission"] * 2),
        ("Try to send an MMS.", ["can_send_mms"]),
        ("Run a speed test, please.", ["run_speed_test"]),
        ("Please pay your bill.", ["make_payment"]),
        ("What is your name?", []),
        ("The toggle_airplane_modes are set.", []),
    ],
)
def test_the_user_does_with_the_phone_what_the_agent_asks(text, tools):
    env = start("telecom", TELECOM_TASK, split="small")
    env.step(text)
    calls = [call for message in env.episode.messages for call in getattr(message, "tool_calls", None) or []]
    assert [made.name for made in calls] == tools and all(made.requestor == "user" for made in calls)


def test_arguments_of_a_request_are_read_from_parentheses():
    for text, device in {
        'Please use set_network_mode_preference(mode="3g_only").': "3g_only",
        'Please use set_network_mode_preference({"mode": "2g_only"}).': "2g_only",
        "Please use set_network_mode_preference.": "4g_5g_preferred",
        "Please use set_network_mode_preference({.": "4g_5g_preferred",
    }.items():
        env = start("telecom", TELECOM_TASK, split="small")
        step = env.step(text)
        assert env.episode.environment.user_tools.device.network_mode_preference.value == device, step.observation


def test_the_user_leaves_once_its_phone_works():
    env = start("telecom", TELECOM_TASK, split="small")
    step = env.step("Please turn on data roaming.")
    assert step.info["reward_components"] == {"action": pytest.approx(0.3)} and not step.terminated
    step = env.step("How is it now?")
    assert step.terminated and step.info["success"] and step.observation == "It works now. Thank you, goodbye."
    assert step.info["reward_components"] == {"assertion": pytest.approx(0.7)}


# --- a model as user ---


def test_a_callable_plays_the_user():
    seen = []

    def user(messages):
        seen.append(messages)
        return ["Mark task_1 as completed.", "Thanks! ###STOP###"][len(seen) - 1]

    env = Tau2(domain="mock", user=user)
    assert env.reset(options={"task": "update_task_1"})[0] == "Mark task_1 as completed."
    env.step(COMPLETE)
    step = env.step("It is completed.")
    assert step.terminated and step.info["success"] and step.observation == "Thanks!"
    assert [message["role"] for message in seen[1]] == ["system", "user", "assistant", "user"]
    assert "Request that task_1 be marked as completed" in seen[0][0]["content"]
    assert "###STOP###" in seen[0][0]["content"] and seen[1][3]["content"] == "It is completed."


def test_a_model_user_has_the_tools_of_the_phone():
    script = ["It is slow.", call("toggle_roaming"), "Roaming is on.", "###STOP###"]
    env = start("telecom", TELECOM_TASK, split="small", user=lambda messages: script.pop(0))
    step = env.step("Turn on roaming.")
    assert step.observation == "Roaming is on." and step.info["reward_components"] == {"action": pytest.approx(0.3)}
    step = env.step("Good.")
    assert step.terminated and step.info["success"] and step.observation == "Goodbye."


def test_a_model_user_that_only_calls_tools_is_cut_short():
    env = Tau2(domain="telecom", split="small", user=lambda messages: call("toggle_roaming"))
    assert env.reset(options={"task": TELECOM_TASK})[0] == "I am lost."
    calls = [made for message in env.episode.messages for made in getattr(message, "tool_calls", None) or []]
    assert len(calls) == ModelUser.MAX_CALLS


def test_a_failing_user_model_is_no_reward():
    def user(messages):
        raise ConnectionError("down")

    with contextlib.closing(Tau2(domain="mock", user=user)) as env, pytest.raises(ConnectionError):
        env.reset(seed=0)
