"""Through every pair of wrappers an episode ends as it ended inside them, and an EnvSpec makes the same stack again."""

import itertools

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

import envgym
from envgym import Step, TextEnv, Trajectory
from envgym.rollout.episode import run_episode
from envgym.wrappers import (
    ComponentFilter,
    EpisodeGuard,
    HistoryWindow,
    MaxTurns,
    RecordTrajectory,
    RewardScale,
    TimeLimit,
    TokenBudget,
)


class TwoTurns(TextEnv):
    """Two steps, the second as it was given."""

    def __init__(self, last: Step | None = None) -> None:
        self.last = Step.running("two", {"x": 1.0, "y": 0.5}, success=False) if last is None else last

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return "zero", {"success": False}

    def step(self, action):
        self.turn += 1
        return Step.running("one", {"x": 0.25}, success=False) if self.turn == 1 else self.last


def frozen_clock() -> float:
    return 0.0


def ticking_clock():
    """A clock that goes forward by a second each time it is read."""
    return itertools.count().__next__


REWARD = {"x": 1.0, "y": 0.5}
BOTH = Step("two", 1.5, True, True, {"reward_components": REWARD, "truncation_reason": "environment"})
TWO = {  # ending: the environment, and the flags and reason of its second step
    "terminated": (lambda: TwoTurns(Step.terminal("two", REWARD, success=True)), (True, False, None)),
    "truncated": (
        lambda: TwoTurns(Step.truncation("two", REWARD, reason="context_overflow")),
        (False, True, "context_overflow"),
    ),
    "both": (lambda: TwoTurns(BOTH), (True, True, "environment")),
    "max turns": (lambda: MaxTurns(TwoTurns(), 2), (False, True, "max_turns")),
    "max turns, terminal": (lambda: MaxTurns(TwoTurns(), 2, ["max_turns"]), (True, False, None)),
    "token budget": (lambda: TokenBudget(TwoTurns(), 12), (False, True, "token_budget")),
    "token budget, terminal": (
        lambda: TokenBudget(TwoTurns(), 12, None, ["token_budget"]),
        (True, False, None),
    ),
    "time limit": (lambda: TimeLimit(TwoTurns(), 2, ticking_clock()), (False, True, "time_limit")),
    "time limit, terminal": (
        lambda: TimeLimit(TwoTurns(), 2, ticking_clock(), ["time_limit"]),
        (True, False, None),
    ),
    "running": (TwoTurns, (False, False, None)),
}
IDLE = {  # a wrapper that does all it does, but has no reason to end the episode
    "MaxTurns": lambda env, path: MaxTurns(env, 100),
    "EpisodeGuard": lambda env, path: EpisodeGuard(env),
    "TokenBudget": lambda env, path: TokenBudget(env, 100_000),
    "TimeLimit": lambda env, path: TimeLimit(env, 1.0, frozen_clock),
    "RewardScale": lambda env, path: RewardScale(env, 2.0),
    "ComponentFilter": lambda env, path: ComponentFilter(env, ["x"]),
    "HistoryWindow": lambda env, path: HistoryWindow(env, 1),
    "RecordTrajectory": lambda env, path: RecordTrajectory(env, path),
}
PAIRS = list(itertools.product(IDLE, IDLE))


@pytest.mark.parametrize("ending", TWO)
@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_an_ending_keeps_its_meaning_through_every_pair(outer, inner, ending, tmp_path):
    make, (terminated, truncated, reason) = TWO[ending]
    paths = [tmp_path / "inner.jsonl", tmp_path / "outer.jsonl"]
    env = IDLE[outer](IDLE[inner](make(), paths[0]), paths[1])
    env.reset(seed=5)
    first, second = env.step("a"), env.step("b")
    assert (first.terminated, first.truncated) == (False, False)
    assert "truncation_reason" not in first.info
    assert (second.terminated, second.truncated, second.info.get("truncation_reason")) == (
        terminated,
        truncated,
        reason,
    )
    assert second.observation.endswith("two")
    filtered, scale = "ComponentFilter" in (outer, inner), 2.0 ** (outer, inner).count("RewardScale")
    assert second.reward == (1.0 if filtered else 1.5) * scale
    assert sum(second.info["reward_components"].values()) == second.reward
    assert isinstance(second, Step)
    for path, name in zip(paths, (inner, outer), strict=True):
        assert path.exists() == (name == "RecordTrajectory" and ending != "running")
        if path.exists():
            record = Trajectory.from_json(path.read_text())
            assert (record.terminated, record.truncated) == (terminated, truncated and not terminated)
            assert record.truncation_reason == (None if terminated else reason)
            assert len(record.turns) == 2


LIMITS = {
    "max_turns": lambda env, terminal: MaxTurns(env, 2, terminal),
    "token_budget": lambda env, terminal: TokenBudget(env, 12, None, terminal),
    "time_limit": lambda env, terminal: TimeLimit(env, 2, ticking_clock(), terminal),
}


@pytest.mark.parametrize("terminal", [[], ["max_turns", "token_budget", "time_limit"]])
@pytest.mark.parametrize(("outer", "inner"), list(itertools.permutations(LIMITS, 2)))
def test_of_two_limits_reached_at_once_the_inner_one_counts(outer, inner, terminal):
    env = LIMITS[outer](LIMITS[inner](TwoTurns(), terminal), None)
    env.reset(seed=0)
    assert not any(env.step("a")[2:4])
    step = env.step("b")
    assert (step.terminated, step.truncated) == (bool(terminal), not terminal)
    assert step.info.get("truncation_reason") == (None if terminal else inner)


@pytest.mark.parametrize("outer", LIMITS)
@pytest.mark.parametrize("inner", LIMITS)
def test_limits_of_the_task_named_by_an_inner_limit_hold_for_the_outer_one(outer, inner):
    idle = {"max_turns": 100, "token_budget": 10_000, "time_limit": 1e9}[inner]
    kinds = {"max_turns": MaxTurns, "token_budget": TokenBudget, "time_limit": TimeLimit}
    env = LIMITS[outer](kinds[inner](TwoTurns(), idle, terminal_limits=[outer]), None)
    env.reset(seed=0)
    env.step("a")
    step = env.step("b")
    assert (step.terminated, step.truncated) == (True, False)
    assert env.get_wrapper_attr("terminal_limits") == {outer}


def test_a_limit_outside_the_guard_is_known_to_run_episode():
    trajectory = run_episode(TokenBudget(envgym.make("envgym/HigherLower-v0"), 1), lambda observation: "1")
    assert trajectory.ending == "token_budget" and len(trajectory.turns) == 1


SPECS = (
    TokenBudget.wrapper_spec(budget=30, count_tokens="envgym.wrappers:count_bytes", terminal_limits=["token_budget"]),
    TimeLimit.wrapper_spec(limit_s=1e9, clock="time:perf_counter", terminal_limits=None),
    RewardScale.wrapper_spec(scale=0.5),
    ComponentFilter.wrapper_spec(keep=["information"]),
    HistoryWindow.wrapper_spec(num_turns=2, max_chars=100),
)


def test_every_wrapper_comes_back_from_the_spec(tmp_path):
    spec = envgym.spec("envgym/HigherLower-v0")
    recorder = RecordTrajectory.wrapper_spec(path=str(tmp_path / "a.jsonl"), sync=False)
    full = EnvSpec(
        spec.id,
        spec.entry_point,
        order_enforce=False,
        disable_env_checker=True,
        additional_wrappers=(*spec.additional_wrappers, *SPECS, recorder),
    )
    made = gymnasium.make(full)
    names = ["RecordTrajectory", "HistoryWindow", "ComponentFilter", "RewardScale", "TimeLimit", "TokenBudget"]
    assert str(made).startswith("".join(f"<{name}" for name in [*names, "EpisodeGuard", "MaxTurns"]))
    restored = EnvSpec.from_json(made.spec.to_json())
    assert restored.additional_wrappers == full.additional_wrappers
    assert [wrapper.entry_point for wrapper in made.spec.additional_wrappers] == [
        f"envgym.wrappers:{name}" for name in ["MaxTurns", "EpisodeGuard", *reversed(names)]
    ]
    for env in (made, gymnasium.make(restored), envgym.make(restored)):
        env.reset(seed=1)
        while True:
            step = env.step("1")
            assert set(step.info["reward_components"]) <= {"information"}
            if step.terminated or step.truncated:
                break
        assert step.terminated and env.get_wrapper_attr("num_tokens") >= 30
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 3


def test_the_turn_limit_can_be_replaced_in_the_spec_of_a_made_environment():
    made = envgym.make(envgym.make("envgym/HigherLower-v0").spec, max_turns=2)
    assert made.get_wrapper_attr("max_turns") == 2
    assert str(made).count("MaxTurns") == 1
