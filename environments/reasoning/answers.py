"""What counts as the answer in a message, and which answers are too dangerous or too large to be scored."""

from __future__ import annotations

import ast
import re

EXPRESSIONS = {"simple_integration": 24, "intermediate_integration": 24, "polynomial_multiplication": 120}
"""Data sets that parse an answer with SymPy, which evaluates it, and the highest degree an answer may have."""
ARITHMETIC = frozenset({"countdown", "puzzle24"})
"""Data sets that parse an answer with SymPy and want plain arithmetic."""
MOVES = frozenset({"rubiks_cube", "rush_hour"})
"""Data sets that repeat a move as often as an answer says."""
NUMBERS = frozenset({"coin_flip", "decimal_arithmetic", "decimal_chain_sum", "power_function"})
"""Data sets that compute with a number an answer gives, whatever its exponent."""

_ARITHMETIC = re.compile(r"(?:\d{1,12}|[-+/() \n]|\*(?!\s*\*))*")
_NAME = re.compile(r"[A-Za-z]{1,8}")
_FUNCTION = re.compile(r"a?(sin|cos|tan|sec|csc|cot)h?|exp|log|ln|sqrt|Abs")


def extract_answer(message: str) -> str:
    """What stands in the last `<answer>...</answer>` of a message; without one, the whole message. Stripped."""
    end = message.rfind("</answer>")
    start = message.rfind("<answer>", 0, max(end, 0))
    return (message[start + len("<answer>") : end] if start >= 0 else message).strip()


def refusal(dataset: str, answer: str, oracle: str) -> str | None:
    """Why an answer is not scored; None where it can be.

    Args:
        dataset: Name of the data set.
        answer: The answer.
        oracle: The data set's own answer, "" where it has none; bounds how long an answer may be, and is never refused.
    """
    if answer == oracle and answer:
        return None
    limit = 2 * len(oracle) + 200 if dataset == "codeio" else 4 * len(oracle) + 4000
    if len(answer) > limit:
        return f"the answer is longer than {limit} characters"
    if oracle and not answer:
        return "the answer is empty"
    if dataset in ARITHMETIC and not (len(answer) <= 200 and _ARITHMETIC.fullmatch(answer)):
        return "the answer is no arithmetic expression of numbers, + - * / and parentheses"
    if dataset in EXPRESSIONS and not is_plain_expression(answer, 2 * len(oracle) + 100, EXPRESSIONS[dataset]):
        return "the answer is no plain mathematical expression"
    if dataset in MOVES and re.search(r"\d{3}", answer):
        return "a move is repeated too often"
    if dataset in NUMBERS and re.search(r"[eE][-+]?\d{4}|\d{400}", answer):
        return "the number is too large"
    if dataset == "complex_arithmetic" and re.search(r"nan|inf", answer, re.IGNORECASE):
        return "the answer is no finite number"  # the distance to nan is nan, which the data set takes for none
    if dataset == "pool_matrix" and not re.match(r"[-+.\d]", answer):
        return "the answer is no matrix"
    if dataset == "propositional_logic" and re.search(r"[a-z0-9_]|(.{400})", answer, re.DOTALL):
        return "variables are upper-case letters, and a conclusion has less than 400 characters"
    return None


def is_plain_expression(text: str, limit: int, degree: float) -> bool:
    """Whether a text is an expression of numbers, one-word names and well-known functions, small enough to simplify.

    Args:
        text: The expression in Python's notation.
        limit: Most characters it may have.
        degree: Highest degree it may have.
    """
    if len(text) > limit or re.search(r"\d\.?[eE][-+]?\d{3}", text):
        return False
    try:
        return _degree(ast.parse(text.strip(), mode="eval").body) <= degree
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False


def _degree(node: ast.expr) -> float:
    """An upper bound of the degree of an expression and of the size of its numbers.

    Raises:
        ValueError: Something in it is not plain.
    """
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and abs(value) < 1e12:
            return 1
        case ast.Name(id=name) if _NAME.fullmatch(name):
            return 1
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _degree(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return max(_degree(left), _degree(right))
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            return _degree(left) + _degree(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _degree(left) * _exponent(right)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if _FUNCTION.fullmatch(name):
            return _degree(argument)
    raise ValueError("not a plain expression")


def _exponent(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return max(1.0, abs(value))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _exponent(operand)
        case ast.BinOp(left=ast.Constant(value=int() as top), op=ast.Div(), right=ast.Constant(value=int() as bottom)):
            return max(1.0, abs(top / bottom)) if bottom else 1.0
        case ast.Name(id=name) if _NAME.fullmatch(name):
            return 1.0
    raise ValueError("not a plain exponent")
