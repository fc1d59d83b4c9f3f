"""Arithmetic in exact fractions: a parser for expressions that evaluates nothing but them."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_LENGTH = 200
MAX_DEPTH = 20
MAX_VALUE = 10**15
_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|[-+*/()])", re.ASCII)


class ExpressionError(ValueError):
    """The expression cannot be read, or its value cannot be worked out; the message says why."""


def apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    """The value of `left operator right`.

    Args:
        operator: "+", "-", "*" or "/".
        left: Left operand.
        right: Right operand.

    Raises:
        ExpressionError: A division by zero, or a value beyond 10**15.
    """
    if operator == "/" and right == 0:
        raise ExpressionError("division by zero")
    value = {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[operator](right)
    assert isinstance(value, Fraction)
    if abs(value) > MAX_VALUE:
        raise ExpressionError("the number is too large")
    return value


def evaluate(text: str) -> list[Fraction]:
    """The values of every operation in an expression, in the order they are worked out; the last is its own.

    Numbers, the four operators with their usual precedence, parentheses and signs. `evaluate("2 * (3 + 4)")` is
    `[7, 14]`, `evaluate("5")` is `[5]`.

    Args:
        text: The expression; at most 200 characters, nested at most 20 deep.

    Raises:
        ExpressionError: It cannot be read or worked out.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression has at most {MAX_LENGTH} characters")
    parser = _Parser(text)
    value = parser.sum(0)
    if parser.next is not None:
        raise ExpressionError(f"unexpected '{parser.next}'")
    return parser.values if parser.values and parser.values[-1] == value else [*parser.values, value]


def show(value: Fraction) -> str:
    """A number as text: whole numbers without a point, others rounded to six decimals."""
    return str(value.numerator) if value.denominator == 1 else f"{round(float(value), 6):f}".rstrip("0").rstrip(".")


class _Parser:
    """Recursive descent over the tokens of an expression.

    Attributes:
        next: The token to be read next; None at the end.
        values: Values of the operations so far.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.values: list[Fraction] = []
        self.next: str | None = None
        self.advance()

    def advance(self) -> None:
        if not self.text[self.position :].strip():
            self.next = None
            return
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            raise ExpressionError(f"cannot read '{self.text[self.position :].strip()[0]}'")
        self.next, self.position = match[1], match.end()

    def sum(self, depth: int) -> Fraction:
        return self._chain("+-", self.product, depth)

    def product(self, depth: int) -> Fraction:
        return self._chain("*/", self.factor, depth)

    def _chain(self, operators: str, operand, depth: int) -> Fraction:  # type: ignore[no-untyped-def]
        value: Fraction = operand(depth)
        while self.next is not None and self.next in operators:
            operator = self.next
            self.advance()
            value = apply(operator, value, operand(depth))
            self.values.append(value)
        return value

    def factor(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise ExpressionError("nested too deeply")
        token = self.next
        if token is None:
            raise ExpressionError("the expression is not complete")
        self.advance()
        if token in "+-":
            value = self.factor(depth + 1)
            return -value if token == "-" else value
        if token == "(":
            value = self.sum(depth + 1)
            if self.next != ")":
                raise ExpressionError("a ')' is missing")
            self.advance()
            return value
        if token in ")*/":
            raise ExpressionError(f"unexpected '{token}'")
        number = Fraction(token)
        if number > MAX_VALUE:
            raise ExpressionError("the number is too large")
        return number
