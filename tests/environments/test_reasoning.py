"""reasoning-gym: every data set scores its own answer 1, and no answer runs code, hangs or touches global state."""

import contextlib
import re
import threading
import time

import pytest
from episodes import global_state

pytest.importorskip("reasoning_gym", reason="pip install 'envgym[reasoning-gym]'")

from envgym.environments.reasoning import ReasoningGym
from envgym.environments.reasoning.answers import extract_answer, is_plain_expression, refusal
from envgym.environments.reasoning.environment import dataset_names
from envgym.environments.reasoning.scoring import mended, within

COMPOSITE = {"datasets": [{"name": "chain_sum"}, {"name": "leg_counting", "weight": 2.0}]}


def make(dataset, **kwargs):
    return ReasoningGym(dataset=dataset, config=COMPOSITE if dataset == "composite" else {}, **kwargs)


def test_all_106_data_sets_are_there():
    assert len(dataset_names()) == 106


@pytest.mark.parametrize("dataset", dataset_names())
def test_the_solver_gets_the_full_score(dataset, capfd):
    before = global_state()
    env = make(dataset)
    for seed in (3, 4):
        observation, info = env.reset(seed=seed)
        assert observation and info == {"success": False}
        step = env.step(env.solver().act(observation, info))
        assert step.terminated and step.info["success"] is True and step.observation == "correct"
        assert step.info["reward_components"] == {"score": pytest.approx(1.0)}
    assert make(dataset).reset(seed=4)[0] == observation
    assert global_state() == before
    assert capfd.readouterr() == ("", "")


def test_a_turn_is_an_attempt_and_improvements_sum_to_the_best_score():
    env = ReasoningGym(dataset="letter_jumble", attempts=4)
    observation, _ = env.reset(seed=5)
    assert observation.endswith("You have 4 attempts.")
    words = env.entry["answer"].split()
    half = " ".join([words[0], *("x" for _ in words[1:])])
    scores = [env.score(half), env.score("x"), 1.0]
    assert 0 == scores[1] < scores[0] < 1
    steps = [env.step(f"I think <answer>{answer}</answer>") for answer in (half, "x", " ".join(words))]
    assert [step.info["score"] for step in steps] == scores
    assert [step.reward for step in steps] == [scores[0], 0.0, pytest.approx(1 - scores[0])]
    assert (
        steps[0].observation
        == f"wrong; this attempt scores {scores[0]:.2f}, your best {scores[0]:.2f}\n3 attempts left"
    )
    assert [step.terminated for step in steps] == [False, False, True] and steps[2].info["success"] is True


def test_the_last_attempt_terminates_without_success():
    env = ReasoningGym(attempts=2)
    env.reset(seed=0)
    assert not env.step("no idea").terminated
    step = env.step("no idea")
    assert step.terminated and not step.truncated and step.info["success"] is False and step.reward == 0


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("<answer>7</answer>", "7"),
        ("is it <answer>6</answer>? no: <answer> 7\n</answer>.", "7"),
        ("<answer>1 <answer>7</answer>", "7"),
        ("7 ", "7"),
        ("<answer>7", "<answer>7"),
        ("7</answer>", "7</answer>"),
        ("", ""),
    ],
)
def test_the_answer_is_the_last_tagged_text_or_the_whole_message(message, answer):
    assert extract_answer(message) == answer


def test_the_seed_decides_the_task():
    env = ReasoningGym(dataset="chain_sum", config={"min_terms": 5, "max_terms": 5})
    questions = [env.reset(seed=seed)[0] for seed in (1, 2, 1)]
    assert questions[0] == questions[2] != questions[1]
    assert re.search(r"(\d+ [+-] ){4}\d+", questions[0])


def test_a_composite_draws_from_its_data_sets():
    env = make("composite")
    sources = set()
    for seed in range(20):
        env.reset(seed=seed)
        sources.add(env.source)
    assert sources == {"chain_sum", "leg_counting"}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dataset": "chain_sums"}, "Did you mean 'chain_sum'"),
        ({"attempts": 0}, "attempts must be between 1 and 100"),
        ({"config": {"terms": 3}}, "no setting 'terms'; it has"),
        ({"config": {"min_terms": 9, "max_terms": 2}}, "does not fit data set 'chain_sum'"),
        ({"config": {"seed": 3}}, "no setting 'seed'"),
        ({"dataset": "composite", "config": {"datasets": [{"weight": 1}]}}, "does not fit"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ReasoningGym(**kwargs)


EVALUATING = [
    *("binary_matrix", "number_sorting", "spiral_matrix", "string_insertion", "n_queens", "simple_integration"),
    *("intermediate_integration", "polynomial_multiplication", "countdown", "puzzle24"),
]


@pytest.mark.parametrize("dataset", EVALUATING)
def test_no_answer_is_executed(dataset, tmp_path):
    target = tmp_path / "canary"
    env = make(dataset, attempts=9)
    env.reset(seed=0)
    for code in (
        f"open({str(target)!r}, 'w')",
        f"__import__('os').system('touch {target}')",
        f"[open({str(target)!r}, 'w')]",
    ):
        step = env.step(f"<answer>{code}</answer>")
        assert not target.exists() and step.info["score"] < 0.1


HUGE = {
    "rubiks_cube": "R999999999",
    "rush_hour": "A+999999999",
    "coin_flip": "1e999999999",
    "power_function": "1e999999999",
    "countdown": "9**9**9**9",
    "puzzle24": "9** 9**9**9",
    "polynomial_multiplication": "((x+1)**99)**99",
    "simple_integration": "1e-999999999",
    "intermediate_integration": "(x+1)**60*(x+2)**60",
    "propositional_logic": " ∨ ".join("abcdefghijklmnopqrstuvwxyz"),
    "spiral_matrix": "[9]*10**9",
    "codeio": '{"a": [' + "1," * 100_000 + "1]}",
}


@pytest.mark.parametrize("dataset", HUGE)
def test_an_answer_that_takes_for_ever_is_not_scored(dataset):
    env = make(dataset)
    env.reset(seed=0)
    start = time.monotonic()
    step = env.step(HUGE[dataset])
    assert time.monotonic() - start < 1
    assert step.terminated and step.info["success"] is False and step.info["score"] < 0.1


GARBAGE = {
    "nothing": "",
    "nan": "nan",
    "NaN and more": "nan + nanj",
    "infinity": "-inf",
    "foo": "foo",
    "nested nan": "[[nan]]",
    "braces": "{}",
    "huge": "x " * 1500,
    "much too huge": "9" * 100_000,
}


@pytest.mark.parametrize("dataset", [name for name in dataset_names() if name != "composite"])
def test_garbage_is_no_success_in_any_data_set(dataset):
    env = make(dataset, attempts=100)
    env.reset(seed=1)
    for label, garbage in GARBAGE.items():
        step = env.step(f"<answer>{garbage}</answer>")
        assert step.info["success"] is False and 0 <= step.info["score"] <= 0.5, (label, step)


@pytest.mark.parametrize(
    ("dataset", "answer", "oracle", "score"),
    [
        *(("game_of_life_halting", "False", "False", 1.0), ("game_of_life_halting", "true", "True", 1.0)),
        *(("game_of_life_halting", "True", "False", 0.0), ("game_of_life_halting", "foo", "True", 0.0)),
        *(("coin_flip", "0", "0.03125", 0.0), ("coin_flip", "0.03", "0.03125", 0.0)),
        *(("coin_flip", "0", "3.051757812e-05", 0.0), ("coin_flip", "0.0313", "0.03125", 1.0)),
        *(("coin_flip", "1/32", "0.03125", 1.0), ("chain_sum", "foo", "1", 1.0)),
    ],
)
def test_full_scores_are_only_for_right_answers(dataset, answer, oracle, score):
    assert mended(dataset, answer, {"answer": oracle}, 1.0) == score


@pytest.mark.parametrize(
    ("said", "score"), [(float("nan"), 0.0), (float("inf"), 0.0), (-1.0, 0.0), (2.0, 1.0), (0.3, 0.3)]
)
def test_a_score_is_a_number_from_zero_to_one(said, score):
    assert mended("chain_sum", "7", {"answer": "7"}, said) == score


def test_scoring_that_takes_too_long_is_stopped():
    def forever():
        while True:
            pass

    def stubborn():
        with contextlib.suppress(BaseException):
            forever()
        return 1.0

    for function in (forever, stubborn):
        started = time.monotonic()
        assert within(0.1, function) == 0.0
        assert time.monotonic() - started < 2
    assert not [thread for thread in threading.enumerate() if thread.name == "envgym-scoring"]
    assert within(5.0, lambda: 0.5) == 0.5 and within(5.0, lambda: 1 / 0) == 0.0


def test_scoring_with_sympy_is_bounded(monkeypatch):
    env = make("intermediate_integration")
    env.reset(seed=0)
    monkeypatch.setattr("envgym.environments.reasoning.environment.SCORING_S", 0.05)
    monkeypatch.setattr(env.unwrapped._scorer, "score_answer", lambda answer, entry: time.sleep(0.2) or 1.0)
    assert env.step("x**2").info["score"] == 0.0


def test_what_a_plain_expression_is():
    for text in ("x**3/3 + C", "-2*exp(x)*sin(3*x) + C", "sqrt(x)", "x**(-2)", "x**(3/2)", "1.5*x"):
        assert is_plain_expression(text, 100, 24), text
    rejected = (
        "x.y",
        "f(x)",
        "x**x**x**9**9",
        "lambda: x",
        "x if y else z",
        "x[0]",
        "'a'",
        "Integral(x, x)",
        "__x",
        "(",
    )
    for text in rejected:
        assert not is_plain_expression(text, 100, 24), text
    assert not is_plain_expression("x**25", 100, 24) and not is_plain_expression("x" * 101, 100, 24)
    assert refusal("simple_integration", "Integral(x, x)", "Integral(x, x)") is None  # the data set's own answer
