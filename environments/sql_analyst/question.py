"""A kind of question about the shop: its text, a query that answers it, and an answer worked out without SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from envgym.environments.sql_analyst.shop import (
    CITIES,
    COUNTRIES,
    GOODS,
    STATUSES,
    TIERS,
    Customer,
    Item,
    Order,
    Product,
    Shop,
)

Answer = int | float | str
Parameters = Mapping[str, Any]
TOLERANCE = 0.01
"""How far an answer with decimals may be off."""

_FIELD = re.compile(r"\{(\w+)\}")
_SHAPES = {"year": r"\d{4}", "customer": r"\w+ \w+"}
"""Patterns of the parameters that another kind of question could be mistaken for."""
_TABLE = re.compile(r"\b(?:FROM|JOIN)\s+([a-z_]+)")
_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,12})?", re.ASCII)


@dataclass(frozen=True)
class Question:
    """A kind of question.

    Attributes:
        text: The question, with its parameters as fields; see `draw_parameter` for their names.
        sql: A query whose first value is the answer, with the same fields.
        reference: The answer from the rows, without SQL; None where there is none, or more than one.
    """

    text: str
    sql: str
    reference: Callable[[Shop, Any], Answer | None]

    @cached_property
    def tables(self) -> frozenset[str]:
        """Tables the answer needs."""
        return frozenset(_TABLE.findall(self.sql))

    def draw(self, shop: Shop, rng: np.random.Generator) -> tuple[dict[str, Any], Answer] | None:
        """Parameters for which the question has exactly one answer, and that answer; None where they drew none."""
        parameters = {name: draw_parameter(name, shop, rng) for name in _FIELD.findall(self.text)}
        answer = self.reference(shop, parameters)
        return None if answer is None else (parameters, answer)

    def read(self, text: str) -> dict[str, str] | None:
        """The parameters of a question of this kind, as text; None for any other text."""
        match = self._pattern.fullmatch(text)
        return None if match is None else match.groupdict()

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = _FIELD.split(self.text)
        shapes = [
            rf"(?P<{part}>{_SHAPES.get(part, '.+')})" if i % 2 else re.escape(part) for i, part in enumerate(parts)
        ]
        return re.compile("".join(shapes))


def draw_parameter(name: str, shop: Shop, rng: np.random.Generator) -> Any:
    """A value for a field of a question.

    Args:
        name: Name of the field.
        shop: Where names are taken from.
        rng: Source of the value.
    """
    choices: Mapping[str, Iterable[Any]] = {
        "category": GOODS,
        "city": CITIES,
        "tier": TIERS,
        "country": COUNTRIES,
        "status": STATUSES,
        "year": (2023, 2024),
        "month": [f"{year}-{month:02}" for year in (2023, 2024) for month in range(1, 13)],
        "product": [product.name for product in shop.products],
        "customer": [customer.name for customer in shop.customers],
        "supplier": [supplier.name for supplier in shop.suppliers],
        "n": (2, 3, 4),
        "rating": (1, 2, 3, 4, 5),
        "price": range(20, 121),
        "amount": range(150, 601, 50),
    }
    options = list(choices[name])
    return options[int(rng.integers(len(options)))]


def is_right(given: str, answer: Answer) -> bool:
    """Whether what was answered is the answer: text in any case, numbers as numbers, decimals to 0.01."""
    text = given.strip()
    if isinstance(answer, str):
        return text.casefold() == answer.casefold()
    if _NUMBER.fullmatch(text) is None:
        return False
    return abs(float(text) - answer) <= (TOLERANCE + 1e-9 if isinstance(answer, float) else 0)


def leader(scores: Mapping[str, float], place: int = 1) -> str | None:
    """The name with the highest score (or the second highest, ...); None where that is not one name."""
    ranked = sorted(scores.values(), reverse=True)
    if len(ranked) < place or ranked.count(ranked[place - 1]) > 1:
        return None
    return next(name for name, score in scores.items() if score == ranked[place - 1])


def tally(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The sum of the scores of each name."""
    scores: dict[str, float] = {}
    for name, score in pairs:
        scores[name] = scores.get(name, 0) + score
    return scores


def mean(values: Iterable[float]) -> float | None:
    """The mean to two decimals; None of nothing."""
    numbers = list(values)
    return round(sum(numbers) / len(numbers), 2) if numbers else None


def total(values: Iterable[int]) -> int | None:
    """The sum; None of nothing."""
    numbers = list(values)
    return sum(numbers) if numbers else None


def sales(shop: Shop) -> list[tuple[Item, Order, Product, Customer]]:
    """Every item of every order that was not cancelled, with its order, product and customer."""
    orders = {order.id: order for order in shop.orders if order.status != "cancelled"}
    products = {product.id: product for product in shop.products}
    customers = {customer.id: customer for customer in shop.customers}
    return [
        (item, orders[item.order_id], products[item.product_id], customers[orders[item.order_id].customer_id])
        for item in shop.order_items
        if item.order_id in orders
    ]


def paid(item: Item) -> int:
    """What was paid for an item."""
    return item.quantity * item.unit_price
