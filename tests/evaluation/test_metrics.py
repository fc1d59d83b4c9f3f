"""Estimators by hand, and one rule for success: whoever does not say so has not succeeded, where any does."""

import itertools
import math
import random

import pytest
from fakes import registered

from envgym import Step, TextEnv, Trajectory, TruncationReason, Turn, check_env, evaluate, run_episode
from envgym.agent import Action, Agent, Player
from envgym.evaluation.comparison import compare
from envgym.evaluation.metrics import SuccessRate, clustered_standard_error, pass_at_k, pass_hat_k, reporting, verdict
from envgym.evaluation.results import OVERALL, summarise
from envgym.evaluation.results_folder import EpisodeKey, EpisodeRecord, ResultsFolder
from envgym.types import Completion
from envgym.wrappers import EpisodeGuard, MaxTurns, RecordTrajectory


def test_pass_at_k_literals():
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4)
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7)  # 1 - C(3, 2) / C(5, 2)
    assert pass_at_k(5, 0, 3) == 0.0
    assert pass_at_k(5, 1, 3) == pytest.approx(0.6)
    assert pass_at_k(5, 5, 5) == 1.0
    assert pass_at_k(5, 3, 4) == 1.0  # four attempts cannot all be among two failures


def test_pass_hat_k_literals():
    assert pass_hat_k(5, 2, 1) == pytest.approx(0.4)
    assert pass_hat_k(5, 2, 2) == pytest.approx(0.1)  # C(2, 2) / C(5, 2)
    assert pass_hat_k(5, 2, 3) == 0.0
    assert pass_hat_k(5, 5, 4) == 1.0
    assert pass_hat_k(5, 0, 1) == 0.0


@pytest.mark.parametrize(("n", "c"), [(4, 1), (5, 3), (6, 0)])
def test_both_equal_the_share_among_all_choices_of_k_attempts(n, c):
    attempts = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        choices = list(itertools.combinations(attempts, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices))
        assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, choices)) / len(choices))


@pytest.mark.parametrize(("n", "c", "k"), [(0, 0, 1), (3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_numbers_out_of_range_are_refused(n, c, k):
    for estimator in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="attempts"):
            estimator(n, c, k)


def test_clustered_standard_error_literals():
    assert clustered_standard_error([1, 0, 1, 0], "abcd") == pytest.approx(0.25)
    assert clustered_standard_error([1, 1, 0, 0], "aabb") == pytest.approx(math.sqrt(2) / 4)
    assert clustered_standard_error([1, 0, 1, 0], "aabb") == 0.0
    assert clustered_standard_error([3.5], "a") == 0.0


def test_clusters_of_one_give_the_usual_standard_error():
    rng = random.Random(0)
    scores = [rng.random() for _ in range(50)]
    mean = sum(scores) / 50
    want = math.sqrt(sum((s - mean) ** 2 for s in scores) / 50 / 50)
    assert clustered_standard_error(scores, range(50)) == pytest.approx(want)


def test_standard_errors_of_nothing_or_of_nan_are_refused():
    for scores, clusters in (([], []), ([1.0], ["a", "b"])):
        with pytest.raises(ValueError, match="same length"):
            clustered_standard_error(scores, clusters)
    with pytest.raises(ValueError, match="finite; leave failed episodes out"):
        clustered_standard_error([math.nan], ["a"])


SPEAKS, SILENT = "t/Speaks-v0", "t/Silent-v0"


def episode(seed=1, success=None, *, env_id=SPEAKS, cut=False, failure=None):
    return Trajectory(
        env_id,
        seed,
        (Turn("o", "a", 1.0, {"x": 1.0}),),
        terminated=not cut and failure is None,
        truncated=cut,
        truncation_reason=TruncationReason.MAX_TURNS if cut else None,
        success=success,
        failure=failure,
    )


class Late(TextEnv):
    """Says whether it was solved only when it is over: "yes" solves it, "no" loses it, anything else goes on."""

    max_turns = 2

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return str(seed % 3), {}

    def step(self, action):
        if action in ("yes", "no"):
            return Step.terminal("over", 1.0, success=action == "yes")
        return Step.running("go on")


def test_a_verdict_by_hand():
    known = reporting([episode(), episode(success=False), episode(env_id=SILENT)])
    assert known == {SPEAKS}
    assert verdict(episode(success=True), known) is True
    assert verdict(episode(success=False), known) is False
    assert verdict(episode(cut=True), known) is False and verdict(episode(), known) is False
    assert verdict(episode(success=True, failure="OSError: gone"), known) is None
    assert verdict(episode(env_id=SILENT), known) is None


def test_what_a_failed_episode_said_before_counts_for_nothing():
    assert reporting([episode(success=False, failure="OSError: gone")]) == frozenset()


def test_an_episode_that_was_cut_before_it_said_anything_is_no_success():
    played = [episode(1, True), episode(2, cut=True), episode(3, cut=True), episode(4, failure="OSError: gone")]
    report = summarise(SPEAKS, "me", played)
    assert (report.success, report.judged, report.episodes, report.failed) == (pytest.approx(1 / 3), 3, 3, 1)
    assert report.success_error == pytest.approx(clustered_standard_error([1, 0, 0], "abc"))
    assert report.metrics()["success"] == report.success


def test_pass_at_k_counts_a_cut_attempt_as_lost():
    report = summarise(SPEAKS, "me", [episode(1, True), episode(1, cut=True), episode(2, True), episode(2, True)])
    assert report.pass_at_k == {1: 0.75, 2: 1.0} and report.pass_hat_k == {1: 0.75, 2: 0.5}


def test_where_no_episode_says_anything_there_is_no_success_rate():
    report = summarise(SILENT, "me", [episode(env_id=SILENT), episode(2, env_id=SILENT, cut=True)])
    assert (report.success, report.success_error, report.judged, report.pass_at_k) == (None, None, 0, {})


def test_environments_without_a_notion_of_success_stay_out_of_the_overall_rate():
    played = [episode(1, True), episode(2, cut=True), episode(1, env_id=SILENT), episode(2, env_id=SILENT)]
    report = summarise(OVERALL, "me", played)
    assert (report.success, report.judged, report.episodes) == (0.5, 2, 4)


def test_an_evaluation_counts_the_episodes_that_were_cut():
    env_id = registered("Late", Late)
    report = evaluate(lambda observation: {"0": "yes", "1": "no"}.get(observation, "hm"), env_id, episodes=30)[env_id]
    assert report.success == pytest.approx(1 / 3) and report.endings["max_turns"] == pytest.approx(1 / 3)


class Declared(Late):
    """Says at its end only, and says that it does."""

    reports_success = True


class Unjudged(Late):
    reports_success = False


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: EpisodeGuard(MaxTurns(env))])
@pytest.mark.parametrize(
    ("kind", "verdicts"), [(Late, [True, False, None]), (Declared, [True, False, False]), (Unjudged, [None] * 3)]
)
def test_what_a_class_declares_decides_where_an_episode_says_nothing(kind, verdicts, wrap):
    played = [run_episode(wrap(kind()), lambda observation, say=say: say) for say in ("yes", "no", "hm")]
    assert [trajectory.success for trajectory in played] == verdicts


def test_an_agent_that_never_comes_to_an_end_has_a_success_rate_of_zero():
    env_id = registered("Declared", Declared)
    report = evaluate(lambda observation: "hm", env_id, episodes=6)[env_id]
    assert (report.success, report.judged, report.metrics()["success"]) == (0.0, 6, 0.0)
    late = registered("Late", Late)
    assert evaluate(lambda observation: "hm", late, episodes=6)[late].success is None


def test_a_turn_that_is_cut_in_mid_generation_has_not_succeeded():
    class Cut(Agent):
        def start(self, env, *, seed):
            return CutPlayer()

    class CutPlayer(Player):
        def act(self, observation, info):
            return Action("ye", (), Completion((1,), (0.0,), "length"))

    assert run_episode(Declared(), Cut()).success is False and run_episode(Late(), Cut()).success is None


def test_a_failed_episode_has_no_verdict_all_the_same():
    def broken(observation):
        raise OSError("gone")

    assert run_episode(Declared(), broken).success is None


def test_a_recorded_episode_has_the_same_verdict(tmp_path):
    env = RecordTrajectory(MaxTurns(Declared()), tmp_path / "t.jsonl")
    played = run_episode(env, lambda observation: "hm")
    recorded = Trajectory.from_json((tmp_path / "t.jsonl").read_text())
    assert recorded.success is played.success is False


def test_a_solver_of_which_no_success_is_heard_fails_the_check():
    class Hopeless(Declared):
        def solver(self):
            return Says("hm")

    class Says(Player):
        def __init__(self, word):
            self.word = word

        def act(self, observation, info):
            return self.word

    assert "the solver succeeds in 0% of the episodes, not 75%" in str(check_env(Hopeless))


def test_the_live_rate_is_at_every_moment_that_of_a_report():
    played = [
        episode(1, cut=True),
        episode(1, env_id=SILENT),
        episode(2, True),
        episode(3, failure="OSError: gone"),
        episode(4, False),
        episode(5, cut=True),
    ]
    for order in itertools.permutations(played, len(played)):
        rate = SuccessRate()
        for number, trajectory in enumerate(order, start=1):
            rate.add(trajectory)
            assert rate.value == summarise(OVERALL, "me", order[:number]).success


def test_a_comparison_knows_from_either_side_that_there_is_success(tmp_path):
    for name, outcomes in {"a": [None, None, None], "b": [True, None, False]}.items():
        with ResultsFolder(tmp_path / name, {"name": name}, {SPEAKS: {}}) as folder:
            for seed, success in enumerate(outcomes):
                trajectory = episode(seed, success, cut=success is None)
                folder.add(EpisodeRecord(EpisodeKey(SPEAKS, seed, 0), trajectory))
    row = next(row for row in compare(tmp_path / "a", tmp_path / "b").rows if row.measure == "success")
    assert (row.pairs, row.mean_a, row.mean_b) == (3, 0.0, pytest.approx(1 / 3))
