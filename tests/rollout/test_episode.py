"""One episode from reset to its end: what is recorded, and how each ending is told from the others."""

import asyncio
import dataclasses
import math

import numpy as np
import pytest
from fakes import Countdown, ScriptedPolicy, registered

import envgym
from envgym import Step, TextEnv, Trajectory, TruncationReason, run_episode
from envgym.agent import Action, Agent, Player, PromptTooLong
from envgym.agents.policy_agent import PolicyAgent
from envgym.engines.embedded.tiny_model import byte_tokenizer
from envgym.errors import UnknownIdError, UnplayableError
from envgym.rendering import ChatMLRenderer
from envgym.types import Completion, SamplingParams

TOKENIZER = byte_tokenizer()
RENDERER = ChatMLRenderer(TOKENIZER)
END = RENDERER.stop_token_ids[0]
HI = [*b"hi", END]


def policy_agent(replies=lambda prompt, seed: (HI, "stop"), **settings):
    return PolicyAgent(ScriptedPolicy(replies, **settings), RENDERER, SamplingParams(max_new_tokens=8))


class Recording(Agent):
    """Plays a script and remembers what it was shown."""

    def __init__(self, replies):
        self.replies, self.seen, self.closed = list(replies), [], 0

    def start(self, env, *, seed):
        agent, replies = self, iter(self.replies)

        class Scripted(Player):
            def act(self, observation, info):
                agent.seen.append((observation, info.get("role")))
                reply = next(replies)
                if isinstance(reply, Exception):
                    raise reply
                return reply

            def close(self):
                agent.closed += 1

        return Scripted()


def test_the_record_of_an_episode_written_out():
    trajectory = run_episode(Countdown(length=2, role="tool"), Recording(["a", "b"]), seed=5, options={"k": 1})
    first, second = trajectory.turns
    assert (trajectory.seed, trajectory.options, trajectory.env_id) == (5, {"k": 1}, "Countdown")
    assert (first.action, second.action) == ("a", "b")
    assert first.observation.isdigit() and second.observation == "A"
    assert (first.role, second.role, trajectory.final_role) == ("user", "tool", "tool")
    assert (first.reward, first.reward_components) == (0.5, {"turn": 0.5, "length": 0.0})
    assert first.executed and second.executed
    assert (trajectory.terminated, trajectory.truncated, trajectory.truncation_reason) == (True, False, None)
    assert (trajectory.final_observation, trajectory.success, trajectory.info) == ("B", True, {"note": "over"})
    assert trajectory.total_reward == 1.0


def test_a_truncation_by_the_environment_keeps_its_reason_and_is_no_termination():
    trajectory = run_episode(Countdown(length=2, ending="truncated"), lambda _: "x")
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert trajectory.truncation_reason is TruncationReason.TIME_LIMIT
    assert trajectory.final_observation == "X"
    assert trajectory.success is False


def test_terminated_wins_over_truncated():
    trajectory = run_episode(Countdown(length=1, ending="both"), lambda _: "x")
    assert (trajectory.terminated, trajectory.truncated, trajectory.truncation_reason) == (True, False, None)


def test_the_action_of_the_last_turn_is_executed_and_rewarded():
    env = envgym.make(registered("Endless"), max_turns=3, ending="never")
    trajectory = run_episode(env, lambda _: "x")
    assert env.unwrapped.actions == ["x", "x", "x"]
    assert [turn.reward for turn in trajectory.turns] == [0.5, 0.5, 0.5]
    assert (trajectory.truncation_reason, trajectory.final_observation) == (TruncationReason.MAX_TURNS, "X")


def test_a_task_that_ends_on_its_last_turn_is_terminated_not_truncated():
    trajectory = run_episode(envgym.make(registered("Exact"), max_turns=3, length=3), lambda _: "x")
    assert (trajectory.terminated, trajectory.truncated) == (True, False)


def test_a_turn_limit_that_belongs_to_the_task_terminates():
    env_id = registered("Limited", max_turns=2, terminal_limits=["max_turns"], kwargs={"ending": "never"})
    trajectory = run_episode(env_id, lambda _: "x")
    assert (trajectory.terminated, trajectory.truncation_reason) == (True, None)


# -- cut turns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("finish", "reason"), [("length", "response_length"), ("context", "context_overflow")])
def test_a_turn_cut_in_mid_generation_is_recorded_not_executed_and_ends_the_episode(finish, reason):
    env = Countdown(length=5)
    turns = iter([(HI, "stop"), ([104], finish)])
    trajectory = run_episode(env, policy_agent(lambda prompt, seed: next(turns)))
    assert env.actions == ["hi"]
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert trajectory.truncation_reason == reason
    cut = trajectory.turns[-1]
    assert (cut.executed, cut.reward, cut.action_ids, cut.finish_reason) == (False, 0.0, (104,), finish)
    assert len(cut.behavior_logprobs) == 1
    assert (trajectory.final_observation, trajectory.final_observation_ids) == ("", ())
    assert trajectory.success is False  # what the environment had said so far
    assert trajectory.total_reward == 0.5  # earned before the cut


def test_a_length_limit_that_belongs_to_the_task_terminates_without_success():
    env_id = registered("Terse", terminal_limits=["response_length"], kwargs={"length": 5})
    trajectory = run_episode(env_id, policy_agent(lambda prompt, seed: ([104], "length")))
    assert (trajectory.terminated, trajectory.truncated, trajectory.success) == (True, False, False)


def test_a_class_attribute_names_terminal_limits_too():
    class Terse(Countdown):
        terminal_limits = frozenset({TruncationReason.RESPONSE_LENGTH})

    trajectory = run_episode(Terse(), policy_agent(lambda prompt, seed: ([104], "length")))
    assert trajectory.terminated


def test_an_aborted_turn_fails_the_episode():
    trajectory = run_episode(Countdown(), policy_agent(lambda prompt, seed: ([104], "abort")))
    assert "aborted" in trajectory.failure and not trajectory.terminated and not trajectory.truncated


def test_a_prompt_that_no_longer_fits_is_a_context_overflow_with_the_part_that_fits():
    first = RENDERER.start("Count.", (), "000", "user")
    room = len(first) + len(HI) + 7
    env = Countdown(length=9)
    trajectory = run_episode(env, policy_agent(context_length=room))
    assert env.actions == ["hi"]
    assert (trajectory.truncated, trajectory.truncation_reason) == (True, TruncationReason.CONTEXT_OVERFLOW)
    assert trajectory.num_tokens <= room
    whole = RENDERER.extend(list(trajectory.turns[0].observation_ids), HI, "HI", "user")
    assert trajectory.final_observation == "HI"
    cropped = trajectory.final_observation_ids
    assert 0 < len(cropped) < len(whole) and list(cropped) == whole[: len(cropped)]
    assert trajectory.num_tokens == room
    assert trajectory.turns[-1].executed and trajectory.turns[-1].reward == 0.5


def test_a_prompt_that_leaves_no_room_for_a_single_token_overflows():
    first = len(RENDERER.start("Count.", (), "000", "user"))
    second = first + len(HI) + len(RENDERER.extend([], HI, "HI", "user"))
    exact = run_episode(Countdown(length=9), policy_agent(context_length=second))
    assert (len(exact.turns), exact.truncation_reason) == (1, TruncationReason.CONTEXT_OVERFLOW)
    one_more = run_episode(Countdown(length=2), policy_agent(context_length=second + 1))
    assert len(one_more.turns) == 2


def test_a_first_prompt_that_does_not_fit_is_an_error_not_an_episode():
    agent = policy_agent(context_length=10)
    with pytest.raises(UnplayableError, match=r"the first prompt has \d+ tokens but the policy's context holds 10"):
        run_episode(Countdown(), agent)
    assert not agent.policy.sessions


# -- tokens ----------------------------------------------------------------------------------------------------------


def test_the_token_stream_is_what_the_policy_saw_token_by_token():
    agent = policy_agent(lambda prompt, seed: ([*b"go%d" % (len(prompt) % 7), END], "stop"))
    trajectory = run_episode(Countdown(length=4, role="tool"), agent)
    prompts = agent.policy.prompts[1]
    stream, mask = trajectory.token_stream()
    position = 0
    for turn, prompt in zip(trajectory.turns, prompts, strict=True):
        position += len(turn.observation_ids)
        assert stream[:position] == prompt
        position += len(turn.action_ids)
        assert all(mask[position - len(turn.action_ids) : position])
    assert sum(mask) == trajectory.num_action_tokens
    assert stream[position:] == RENDERER.extend(
        [], trajectory.turns[-1].action_ids, trajectory.final_observation, "tool"
    )
    # The whole stream reads as the conversation.
    text = "<|im_start|>system\nCount.<|im_end|>\n<|im_start|>user\n" + trajectory.turns[0].observation
    assert TOKENIZER.decode(stream).startswith(
        text + "<|im_end|>\n<|im_start|>assistant\n" + trajectory.turns[0].action
    )
    assert "<|im_start|>tool\n" in TOKENIZER.decode(stream)


def test_a_policys_trajectory_survives_json():
    trajectory = run_episode(Countdown(length=3), policy_agent(), seed=2)
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
    assert trajectory.turns[0].version_spans[0].version == 3


def test_a_stop_token_belongs_to_the_turn_but_not_to_its_text():
    trajectory = run_episode(Countdown(length=1), policy_agent())
    assert trajectory.turns[0].action == "hi"
    assert trajectory.turns[0].action_ids == tuple(HI)
    assert len(trajectory.turns[0].behavior_logprobs) == 3


# -- failures --------------------------------------------------------------------------------------------------------


def test_an_environment_that_raises_leaves_a_failed_record_that_says_where():
    trajectory = run_episode(Countdown(fail_step=lambda seed, turn: turn == 2), lambda _: "x")
    assert trajectory.failure.startswith("OSError: the sandbox died (fakes.py:")
    assert (trajectory.terminated, trajectory.truncated, trajectory.ending) == (False, False, "failed")
    assert len(trajectory.turns) == 1  # what had happened before
    assert Trajectory.from_json(trajectory.to_json()) == trajectory


def test_a_reset_that_raises_fails_the_episode_too():
    trajectory = run_episode(Countdown(fail_reset=lambda seed: True), lambda _: "x")
    assert trajectory.failure.startswith("OSError: the sandbox did not start")
    assert trajectory.turns == ()


@pytest.mark.parametrize("reply", [None, 3, b"x", ["x"]])
def test_an_agent_that_does_not_answer_with_text_fails_clearly(reply):
    trajectory = run_episode(Countdown(), Recording([reply]))
    assert f"an agent must answer with a string, got {type(reply).__name__}" in trajectory.failure


SAID = Completion((1, 2), (-0.5, -1.0), "stop")


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        ("a\ud800", "ValueError: an agent's text must be encodable as UTF-8, but it holds '\\ud800' at character 1"),
        (Action("\udfff", (), SAID), "ValueError: an agent's text must be encodable as UTF-8"),
        (Action(None, (), SAID), "TypeError: the text of an Action must be a string, got NoneType"),
        (Action(b"x", (), SAID), "TypeError: the text of an Action must be a string, got bytes"),
        (Action("x", None, SAID), "TypeError: observation_ids must be a tuple of integers, got NoneType"),
        (Action("x", (1, "2"), SAID), "TypeError: observation_ids must be integers, got str"),
        (Action("x", (1, True), SAID), "TypeError: observation_ids must be integers, got bool"),
        (Action("x", (np.int64(3),), SAID), "TypeError: observation_ids must be integers, got int64"),
        (Action("x", (), None), "TypeError: the completion of an Action must be a Completion, got NoneType"),
        (Action("x", (), "said"), "TypeError: the completion of an Action must be a Completion, got str"),
        (
            Action("x", (), Completion((1.0,), (0.0,), "stop")),
            "TypeError: the token_ids of a Completion must be integers, got float",
        ),
        (
            Action("x", (), Completion((1,), (math.nan,), "stop")),
            "ValueError: the logprobs of a Completion must be finite",
        ),
        (
            Action("x", (), Completion((1,), ("0",), "stop")),
            "TypeError: the logprobs of a Completion must be floats, got str",
        ),
        (
            Action("x", (), Completion((), (), "over")),
            "ValueError: the finish_reason of a Completion must be one of stop, length, context, abort, got 'over'",
        ),
        (
            Action("x", (), Completion((1,), (0.0,), "stop", ((0, 1, 1),))),
            "TypeError: the version_spans of a Completion must be VersionSpans, got tuple",
        ),
        (
            Action("x", (), Completion((1,), (0.0,), "stop", (), ((1, 2.5),))),
            "TypeError: the support of a Completion must be integers, got float",
        ),
    ],
)
def test_a_reply_that_is_wrong_inside_fails_the_episode_and_says_what_it_should_be(reply, failure):
    env = Countdown()
    trajectory = run_episode(env, Recording([reply]))
    assert trajectory.failure.startswith(failure)
    assert env.actions == [] and trajectory.turns == ()
    assert Trajectory.from_json(trajectory.to_json()) == trajectory


@pytest.mark.parametrize("ids", [None, (1, "2"), (1.0,)])
def test_tokens_of_the_final_observation_are_checked_like_those_of_an_action(ids):
    class Odd(Player):
        def act(self, observation, info):
            return "x"

        def final_observation_ids(self, observation, info):
            return ids

    class OddAgent(Agent):
        def start(self, env, *, seed):
            return Odd()

    trajectory = run_episode(Countdown(length=1), OddAgent())
    assert trajectory.failure.startswith("TypeError: final_observation_ids must be")
    overflow = run_episode(Countdown(), Recording(["a", PromptTooLong(ids)]))
    assert overflow.failure.startswith("TypeError: observation_ids must be")


def test_options_are_recorded_as_they_were_given():
    class Meddling(Countdown):
        def reset(self, *, seed=None, options=None):
            options["list"].append("meddled")
            options["new"] = 1
            return super().reset(seed=seed, options=options)

    options = {"list": [1, {"a": 2}]}
    trajectory = run_episode(Meddling(), lambda _: "x", options=options)
    assert options == {"list": [1, {"a": 2}]}, "the environment changed what belongs to the caller"
    options["list"][1]["a"] = 3
    assert trajectory.options == {"list": [1, {"a": 2}]}


@pytest.mark.parametrize("value", [object(), math.nan, "\ud800", {1, 2}])
def test_options_that_cannot_be_written_down_are_the_callers_error(value):
    with pytest.raises(ValueError, match="everything in options must be JSON-serialisable"):
        run_episode(Countdown(), lambda _: "x", options={"k": value})


def test_rewards_that_do_not_add_up_to_a_number_fail_the_episode():
    trajectory = run_episode(Countdown(reward=1e308), lambda _: "x")
    assert trajectory.failure.startswith("RewardError: the rewards of the episode sum to inf")
    assert len(trajectory.turns) == 2


def test_an_agent_that_raises_fails_the_episode_and_is_closed():
    agent = Recording([KeyError("lost")])
    trajectory = run_episode(Countdown(), agent)
    assert trajectory.failure.startswith("KeyError: 'lost'")
    assert agent.closed == 1


def test_a_session_is_closed_however_the_episode_ended():
    for env in (Countdown(), Countdown(ending="truncated"), Countdown(fail_step=lambda seed, turn: True)):
        agent = policy_agent()
        run_episode(env, agent)
        assert agent.policy.num_opened == 1 and not agent.policy.sessions


def test_a_reward_that_contradicts_its_components_fails_the_episode():
    class Wrong(TextEnv):
        def step(self, action):
            return Step("", 1.0, True, False, {"reward_components": {"a": 0.5}})

    trajectory = run_episode(registered("Wrong", Wrong), lambda _: "x")
    assert trajectory.failure.startswith("RewardError")


def test_a_truncation_without_a_reason_fails_the_episode_and_says_what_to_return():
    class Wordless(TextEnv):
        def step(self, action):
            return Step("", 0.0, False, True, {})

    assert "return Step.truncation(...)" in run_episode(Wordless(), lambda _: "x").failure


def test_numpy_numbers_in_rewards_components_and_success_become_plain_ones():
    class Numpy(TextEnv):
        def step(self, action):
            info = {"reward_components": {"a": np.float32(0.5)}, "success": np.bool_(True)}
            return Step("", np.float32(0.5), np.bool_(True), np.bool_(False), info)

    trajectory = run_episode(Numpy(), lambda _: "x")
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
    assert trajectory.success is True and trajectory.turns[0].reward_components == {"a": 0.5}


def test_an_unknown_environment_or_agent_is_the_callers_error():
    registered("Known")
    with pytest.raises(UnknownIdError, match=r"Unknown environment 'test/Knwon-v0'. Did you mean 'test/Known-v0'\?"):
        run_episode("test/Knwon-v0", lambda _: "x")
    with pytest.raises(ValueError, match="a function of an observation"):
        run_episode(Countdown(), 3)


def test_an_environment_made_by_id_is_closed_and_a_given_one_is_not():
    made = []

    def factory(**kwargs):
        made.append(Countdown(**kwargs))
        return made[-1]

    run_episode(registered("Made", factory), lambda _: "x")
    assert made[0].closed
    env = Countdown()
    run_episode(env, lambda _: "x")
    assert not env.closed


def test_an_agent_may_answer_with_an_awaitable():
    class Slow(Player):
        async def act(self, observation, info):
            await asyncio.sleep(0)
            return "later"

    class Patient(Agent):
        def start(self, env, *, seed):
            return Slow()

    assert run_episode(Countdown(length=1), Patient()).turns[0].action == "later"


def test_two_plays_with_one_seed_are_equal_but_for_their_timings():
    def plain(trajectory):
        return dataclasses.replace(
            trajectory, turns=tuple(dataclasses.replace(t, generate_s=0.0, step_s=0.0) for t in trajectory.turns)
        )

    a, b, c = (plain(run_episode(Countdown(), lambda o: o + "x", seed=seed)) for seed in (1, 1, 2))
    assert a == b != c
