"""The calculator: expressions by hand, progress by steps, and problems whose answers are worked out a second way."""

from fractions import Fraction

import numpy as np
import pytest

from envgym.environments.calculator import Calculator
from envgym.environments.calculator.expression import ExpressionError, evaluate, show
from envgym.environments.calculator.problems import TEMPLATES, draw_problem


def start(*values, **kwargs):
    """An episode whose steps have these values."""
    env = Calculator(**kwargs)
    env.reset(seed=0)
    env._values = [Fraction(value) for value in values]
    env._missing = list(env._values)
    return env


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("5", "5"), ("2 + 3 * 4", "14"), ("(2 + 3) * 4", "20"), ("2 - 3 - 4", "-5"), ("12 / 4 / 3", "1")),
        *(("-(3 - 5) * +2", "4"), ("1 / 3", "0.333333"), ("0.1 + 0.2", "0.3"), ("2*-3", "-6"), ("7/2", "3.5")),
    ],
)
def test_expressions_have_their_usual_value(text, value):
    assert show(evaluate(text)[-1]) == value


def test_expressions_agree_with_python():
    rng = np.random.default_rng(0)
    for _ in range(300):
        parts = [str(int(rng.integers(1, 50)))]
        for _ in range(int(rng.integers(1, 7))):
            parts += [str(rng.choice(list("+-*/"))), str(int(rng.integers(1, 50)))]
        if len(parts) >= 5:
            parts[2], parts[4] = f"({parts[2]}", f"{parts[4]})"
        assert float(evaluate(" ".join(parts))[-1]) == pytest.approx(eval(" ".join(parts)), rel=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        *("", "2 +", "(2", "2)", "2 2", "2 ** 3", "1/0", "1/(2-2)", "a", "__import__('os')", "9" * 16, "1e5", "2,3"),
        *("1..2", "(" * 30 + "1" + ")" * 30, "-" * 30 + "1", "1+" * 150 + "1", "99999999*99999999", "٣", "()"),
    ],
)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(ExpressionError):
        evaluate(text)


def test_progress_is_paid_once_for_each_step():
    env = start(3017, 3285)
    step = env.step("multiply(left=431, right=7)")
    assert step.observation == "3017" and step.info["reward_components"] == {"progress": 0.25}
    assert step.info["role"] == "tool" and step.info["success"] is False
    assert env.step("multiply(7, 431)").info["reward_components"] == {"useless": -0.01}
    assert env.step("subtract(431, 7)").info["reward_components"] == {"useless": -0.01}
    assert env.step("add(3017, 268)").info["reward_components"] == {"progress": 0.25}
    step = env.step("answer(3285)")
    assert step.terminated and step.info["success"] is True and step.info["reward_components"] == {"answer": 1.0}


def test_an_expression_is_paid_for_all_it_works_out_and_the_answer_for_what_is_missing():
    assert start(3017, 3285).step('evaluate("431 * 7 + 268")').info["reward_components"] == {"progress": 0.5}
    env = start(6, 14, 28, 30)
    assert env.step('evaluate("(2 * 3) + 1")').info["reward_components"] == {"progress": 0.125}
    assert env.step("add(15, 15)").info["reward_components"] == {"progress": 0.375}
    assert env.step("add(7, 7)").info["reward_components"] == {"useless": -0.01}


@pytest.mark.parametrize("action", ["answer(3284)", "answer(3285.001)", "answer(-3285)", "answer(1e300)", "answer(0)"])
def test_a_wrong_answer_ends_without_success(action):
    step = start(3017, 3285).step(action)
    assert step.terminated and step.info["success"] is False and step.info["reward_components"] == {"answer": 0.0}


def test_an_answer_may_be_written_with_a_point():
    assert start(3285).step("answer(3285.0)").info["success"] is True
    assert start("7/2").step("answer(3.5)").info["success"] is True


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("divide(4, 0)", "divide: division by zero"),
        ("multiply(99999999, 99999999)", "multiply: the number is too large"),
        ("add(1e300, 1)", "add: the number is too large"),
        ('evaluate("2 +")', "evaluate: the expression is not complete"),
        ("""evaluate("__import__('os').getcwd()")""", "evaluate: cannot read '_'"),
    ],
)
def test_a_calculation_that_fails_is_answered(action, message):
    step = start(1, 2).step(action)
    assert step.observation == message and step.info["action_error"] == message
    assert step.reward == 0.0 and not step.terminated


def test_problems_are_whole_and_positive_and_read_back():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(400):
        text, values = draw_problem(3, (2, 5), rng)
        kinds = [template for template in TEMPLATES if template.read(text) is not None]
        assert len(kinds) == 1 and kinds[0].work_out(kinds[0].read(text)) == values
        assert all(value > 0 and value.denominator == 1 for value in values) and len(set(values)) == len(values)
        seen.add(kinds[0])
    assert seen == set(TEMPLATES)


@pytest.mark.parametrize(
    ("index", "formula"),
    [
        *((0, "a*s1+b"), (1, "a+b-c"), (2, "a//s1*b"), (3, "(a*s1-b)//s2"), (4, "a*b+c*d"), (5, "a+b*s1-c")),
        *((6, "a*s1+b*s2-c"), (7, "(a+b+c)//s1"), (8, "(a-b)//(s1*s2)"), (9, "a*b-c*d"), (10, "(a*b-c*s1)//s2")),
        *((11, "a+a*s1+(a*s1-b)"), (12, "(a*s1*s2-b)//s3"), (13, "(a*s1+b*s2-c)*s3")),
    ],
)
def test_the_answer_of_each_kind_is_what_its_text_asks_for(index, formula):
    template, rng = TEMPLATES[index], np.random.default_rng(index)
    found = 0
    while found < 5:
        text, values = draw_problem(3, (len(template.steps),) * 2, rng)
        if (numbers := template.read(text)) is not None:
            assert values[-1] == eval(formula, {}, numbers)
            found += 1


def test_arguments_choose_the_problems():
    env = Calculator(digits=2, steps=2)
    for seed in range(30):
        env.reset(seed=seed)
        assert len(env._values) == 2
