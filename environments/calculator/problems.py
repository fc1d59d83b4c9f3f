"""Word problems: their texts, their numbers, and the operations that lead to the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from envgym.environments.calculator.expression import apply

SMALL = (2, 9)
"""Range of the numbers that are written with an "s" in front, for example `{s1}`; the others have `digits` digits."""
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Template:
    """A kind of word problem.

    Attributes:
        text: The question, with the numbers as fields.
        steps: The operations in order, each `name = left operator right`; the last is the answer.
    """

    text: str
    steps: tuple[str, ...]

    @property
    def fields(self) -> list[str]:
        """Names of the numbers in the text."""
        return _FIELD.findall(self.text)

    def work_out(self, numbers: dict[str, int]) -> list[Fraction]:
        """The value of each step."""
        known = {name: Fraction(number) for name, number in numbers.items()}
        values = []
        for step in self.steps:
            name, _, left, operator, right = step.split()
            known[name] = apply(operator, known[left], known[right])
            values.append(known[name])
        return values

    def read(self, text: str) -> dict[str, int] | None:
        """The numbers of a question of this kind, or None for any other text."""
        parts = _FIELD.split(self.text)
        pattern = "".join(rf"(?P<{part}>\d+)" if i % 2 else re.escape(part) for i, part in enumerate(parts))
        match = re.fullmatch(pattern, text)
        return None if match is None else {name: int(number) for name, number in match.groupdict().items()}


TEMPLATES = (
    Template(
        "A shop has {a} boxes of {s1} nails each and {b} loose nails. How many nails is that?",
        ("x = a * s1", "y = x + b"),
    ),
    Template(
        "A train with {a} passengers takes on {b} at one stop and lets {c} off at the next. How many are left?",
        ("x = a + b", "y = x - c"),
    ),
    Template(
        "A baker packs {a} rolls into bags of {s1} and sells every bag for {b} cents. How many cents does it bring?",
        ("x = a / s1", "y = x * b"),
    ),
    Template(
        "Ann saves {a} coins a month for {s1} months and spends {b}. She shares the rest evenly among {s2} children. "
        "How many coins does each get?",
        ("x = a * s1", "y = x - b", "z = y / s2"),
    ),
    Template(
        "A farm has {a} rows of {b} trees and another {c} rows of {d} trees. How many trees is that?",
        ("x = a * b", "y = c * d", "z = x + y"),
    ),
    Template(
        "A tank holds {a} litres. It gains {b} litres an hour for {s1} hours, then loses {c}. How many are in it?",
        ("x = b * s1", "y = a + x", "z = y - c"),
    ),
    Template(
        "A theatre sells {a} seats at {s1} euros and {b} seats at {s2} euros, and pays {c} euros of rent. "
        "How many euros are left?",
        ("w = a * s1", "x = b * s2", "y = w + x", "z = y - c"),
    ),
    Template(
        "Three teams collect {a}, {b} and {c} bottles and pack them into crates of {s1}. How many crates are filled?",
        ("x = a + b", "y = x + c", "z = y / s1"),
    ),
    Template(
        "A library buys {a} books and gives {b} away. What is left is spread over {s1} rooms with {s2} shelves each. "
        "How many books stand on a shelf?",
        ("x = a - b", "y = s1 * s2", "z = x / y"),
    ),
    Template(
        "A van carries {a} parcels of {b} grams and {c} parcels of {d} grams. How many grams more are the first?",
        ("x = a * b", "y = c * d", "z = x - y"),
    ),
    Template(
        "A field is {a} metres long and {b} metres wide; a pond of {c} by {s1} metres is cut out of it. A bag of seed "
        "covers {s2} square metres. How many bags are needed?",
        ("w = a * b", "x = c * s1", "y = w - x", "z = y / s2"),
    ),
    Template(
        "A mill grinds {a} sacks on Monday, {s1} times as many on Tuesday and {b} fewer than that on Wednesday. "
        "How many sacks is that over the three days?",
        ("w = a * s1", "x = w - b", "y = a + w", "z = y + x"),
    ),
    Template(
        "A club has {a} members who pay {s1} euros a month. After {s2} months it has spent {b} euros, and shares what "
        "is left among {s3} groups. How many euros does each group get?",
        ("w = a * s1", "x = w * s2", "y = x - b", "z = y / s3"),
    ),
    Template(
        "A ship loads {a} crates of {s1} barrels in one port and {b} crates of {s2} barrels in the next, and sells {c} "
        "barrels at {s3} coins each. How many coins are the unsold barrels worth at the same price?",
        ("v = a * s1", "w = b * s2", "x = v + w", "y = x - c", "z = y * s3"),
    ),
)


def draw_problem(digits: int, steps: tuple[int, int], rng: np.random.Generator) -> tuple[str, list[Fraction]]:
    """A question and the value of each of its steps, all of them positive whole numbers and different.

    Args:
        digits: Digits of the large numbers.
        steps: Lowest and highest number of steps, within 2 to 5.
        rng: Source of the problem.
    """
    kinds = [template for template in TEMPLATES if steps[0] <= len(template.steps) <= steps[1]]
    template = kinds[int(rng.integers(len(kinds)))]
    while True:
        numbers = {}
        for name in template.fields:
            low, high = SMALL if name.startswith("s") else (10 ** (digits - 1), 10**digits - 1)
            numbers[name] = int(rng.integers(low, high + 1))
        values = template.work_out(numbers)
        if len(set(values)) == len(values) and all(value > 0 and value.denominator == 1 for value in values):
            return template.text.format(**numbers), values
