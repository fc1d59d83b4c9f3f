"""Reports by hand, and evaluations that can be repeated."""

import dataclasses
import random

import pytest
from fakes import Countdown, registered

from envgym import Trajectory, TruncationReason, Turn, evaluate
from envgym.agent import Agent, Player
from envgym.evaluation.metrics import clustered_standard_error
from envgym.evaluation.results import EnvironmentReport, summarise


def episode(seed, rewards, *, success=None, ending="terminated", errors=0, failure=None):
    turns = tuple(
        Turn("o", "a", reward, {"gain": reward}, action_ids=(1, 2), action_error="bad" if i < errors else None)
        for i, reward in enumerate(rewards)
    )
    reason = None if ending == "terminated" or failure else TruncationReason(ending)
    return Trajectory(
        "t/E-v0",
        seed,
        turns,
        terminated=ending == "terminated" and failure is None,
        truncated=reason is not None,
        truncation_reason=reason,
        success=success,
        failure=failure,
    )


def test_a_report_by_hand():
    report = summarise(
        "t/E-v0",
        "me",
        [
            episode(1, [1.0, 0.5], success=True),
            episode(1, [0.0], success=False, ending="max_turns", errors=1),
            episode(2, [-0.5], success=None),
            episode(3, [100.0], success=True, failure="OSError: gone"),
        ],
    )
    assert (report.env_id, report.agent, report.episodes, report.failed) == ("t/E-v0", "me", 3, 1)
    # The third episode ended without a word about success, in an environment that has such a notion: no success.
    assert (report.success, report.mean_return) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert report.success_error == pytest.approx(clustered_standard_error([1, 0, 0], [1, 1, 2]))
    returns = [1.5, 0.0, -0.5]
    assert report.return_error == pytest.approx(clustered_standard_error(returns, [1, 1, 2]))
    assert report.reward_per_turn == pytest.approx(1.0 / 4)
    assert report.components == {"gain": pytest.approx(1 / 3)}
    assert report.endings == {"max_turns": pytest.approx(1 / 3), "terminated": pytest.approx(2 / 3)}
    assert (report.turns, report.action_tokens) == (pytest.approx(4 / 3), pytest.approx(8 / 3))
    assert report.action_errors == pytest.approx(1 / 3)
    assert EnvironmentReport(**report.as_dict()) == report
    assert report.metrics()["ending/max_turns"] == pytest.approx(1 / 3)


def test_a_report_over_failures_alone_scores_nothing():
    report = summarise("t/E-v0", "me", [episode(1, [], failure="OSError: gone")])
    assert (report.episodes, report.failed, report.success, report.endings) == (0, 1, None, {})
    assert (report.mean_return, report.return_error, report.reward_per_turn) == (None, None, None)
    assert (report.turns, report.action_tokens, report.prompt_tokens, report.seconds) == (None, None, None, None)
    assert (report.terminated, report.truncated, report.action_errors) == (None, None, None)
    assert report.metrics() == {"failed": 1.0}


def test_an_environment_without_a_notion_of_success_reports_none():
    report = summarise("t/E-v0", "me", [episode(1, [1.0]), episode(2, [2.0])])
    assert report.success is None and report.success_error is None


# -- evaluate --------------------------------------------------------------------------------------------------------


class Dice(Agent):
    """Says a random number; its length of play follows from its seed."""

    name = "dice"

    def start(self, env, *, seed):
        rng = random.Random(seed)

        class Roll(Player):
            def act(self, observation, info):
                return str(rng.random())

        return Roll()


def test_an_evaluation_can_be_repeated_whatever_the_concurrency():
    env_id = registered("Repeat", kwargs={"delay": lambda seed, turn: 0.001 * (seed % 3)})
    seen = []
    a = evaluate(Dice(), env_id, episodes=6, attempts=2, concurrency=5, on_episode=seen.append)
    b = evaluate(Dice(), env_id, episodes=6, attempts=2, concurrency=1, on_episode=seen.append)
    assert a == b
    assert a[env_id].episodes == 12

    def said(trajectories):
        return sorted((t.seed, [turn.action for turn in t.turns]) for t in trajectories)

    assert said(seen[:12]) == said(seen[12:])
    assert len({actions[0] for _, actions in said(seen[:12])}) == 12  # each attempt has randomness of its own
    assert sorted(t.seed for t in seen[:12]) == [s for s in range(6) for _ in range(2)]


def test_the_first_seed_moves_the_tasks():
    env_id, seen = registered("Moved"), []
    evaluate(Dice(), env_id, episodes=3, seed=40, on_episode=seen.append)
    assert sorted(t.seed for t in seen) == [40, 41, 42]


def test_failed_episodes_are_counted_and_not_scored():
    env_id = registered("Sometimes", kwargs={"fail_step": lambda seed, turn: seed == 2 and turn == 2})
    report = evaluate(Dice(), env_id, episodes=5)[env_id]
    assert (report.episodes, report.failed) == (4, 1)
    assert (report.success, report.mean_return) == (1.0, 1.5)


def test_an_environment_that_always_fails_gives_a_report_of_failures():
    env_id = registered("Broken", kwargs={"fail_reset": lambda seed: True})
    report = evaluate(Dice(), env_id, episodes=3)[env_id]
    assert (report.episodes, report.failed, report.success) == (0, 3, None)


def test_several_environments_are_reported_in_the_given_order():
    ids = [registered("B", kwargs={"length": 1}), registered("A", kwargs={"length": 2})]
    reports = evaluate(lambda observation: "x", ids, episodes=2)
    assert list(reports) == ids
    assert [reports[i].turns for i in ids] == [1.0, 2.0]
    assert reports[ids[0]].agent == "<lambda>"


def test_a_turn_limit_of_the_evaluation_replaces_the_registered_one():
    env_id = registered("Short", max_turns=5, kwargs={"ending": "never"})
    assert evaluate(Dice(), env_id, episodes=2, max_turns=2)[env_id].endings == {"max_turns": 1.0}
    assert evaluate(Dice(), env_id, episodes=2, max_turns=2)[env_id].turns == 2.0


def test_arguments_of_the_environment_go_before_the_registered_ones():
    ids = [registered("ArgsA", kwargs={"length": 5}), registered("ArgsB", kwargs={"length": 6, "reward": 1.0})]
    evaluation = evaluate(Dice(), ids, episodes=2, env_kwargs={"length": 2})
    assert [evaluation[i].turns for i in ids] == [2.0, 2.0]
    assert [evaluation[i].mean_return for i in ids] == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"'test/ArgsA-v0' takes no argument 'lenght'; it takes .*length"):
        evaluate(Dice(), ids, episodes=2, env_kwargs={"lenght": 2})


def test_an_evaluation_of_several_environments_reads_as_a_table_with_an_overall_column():
    ids = [registered("TableA", kwargs={"length": 1}), registered("TableB", kwargs={"length": 3})]
    lines = str(evaluate(Dice(), ids, episodes=4)).splitlines()
    assert lines[0] == "dice" and lines[1].split() == [*ids, "overall"]
    rows = {line.split("  ")[0]: line.split()[1:] for line in lines[2:]}
    assert rows["turns"] == ["1.0", "3.0", "2.0"] and rows["episodes"] == ["4", "4", "8"]


def test_a_step_that_takes_too_long_fails_its_episode():
    env_id = registered("Slow", kwargs={"delay": lambda seed, turn: 3.0 if seed == 1 and turn == 2 else 0.0})
    report = evaluate(Dice(), env_id, episodes=3, step_timeout_s=0.5)[env_id]
    assert (report.episodes, report.failed) == (2, 1) and "StepTimeoutError" in next(iter(report.failures))


def test_what_the_caller_got_wrong_is_said_before_anything_is_played():
    env_id, played = registered("Known"), []
    with pytest.raises(ValueError, match=r"Unknown environment 'test/Knonw-v0'. Did you mean 'test/Known-v0'\?"):
        evaluate(Dice(), [env_id, "test/Knonw-v0"], on_episode=played.append)
    with pytest.raises(ValueError, match=r"(?i)unknown agent 'randon'.*random"):
        evaluate("randon", env_id, on_episode=played.append)
    for numbers in ({"episodes": 0}, {"attempts": 0}, {"concurrency": 0}, {"max_turns": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match=r"must (be at least 1|not be negative)"):
            evaluate(Dice(), env_id, **numbers, on_episode=played.append)
    assert played == []


def test_environments_are_closed_after_an_evaluation():
    made = []

    def factory():
        made.append(Countdown())
        return made[-1]

    evaluate(Dice(), registered("Closed", factory), episodes=4, concurrency=2)
    assert len(made) >= 2 and all(env.closed for env in made)


def test_a_report_is_frozen():
    report = summarise("t/E-v0", "me", [episode(1, [1.0])])
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.failed = 3
