"""The shop whose data is analysed: its tables as rows of Python, and how they are drawn."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

FIRST_DAY, NUM_DAYS = datetime.date(2023, 1, 1), 720
CITIES = ("Bern", "Ghent", "Lyon", "Oslo", "Porto", "Turin")
TIERS = ("basic", "silver", "gold")
COUNTRIES = ("Austria", "Denmark", "Italy", "Poland")
STATUSES = ("open", "shipped", "delivered", "cancelled")
FIRST_NAMES = (
    "Ada",
    "Ben",
    "Cleo",
    "Dora",
    "Emil",
    "Finn",
    "Gina",
    "Hugo",
    "Iris",
    "Jana",
    "Karl",
    "Lena",
    "Max",
    "Nora",
)
LAST_NAMES = ("Adler", "Baum", "Costa", "Dahl", "Engel", "Frank", "Groot", "Holm", "Ibsen", "Jonas", "Keller", "Lund")
SUPPLIERS = ("Alder Works", "Birch Trade", "Cedar House", "Dune Supply", "Elm Brothers", "Fern Export", "Grove Goods")
GOODS = {
    "garden": ("spade", "rake", "hose", "bucket", "lantern", "trellis", "planter"),
    "kitchen": ("kettle", "pan", "whisk", "grater", "mixer", "toaster", "ladle"),
    "office": ("stapler", "desk lamp", "notebook", "globe", "clock", "binder", "chair"),
    "sport": ("football", "racket", "helmet", "rope", "tent", "kayak", "compass"),
}


class Customer(NamedTuple):
    """A row of `customers`; `email` is missing for some."""

    id: int
    name: str
    city: str
    tier: str
    email: str | None
    joined_on: str


class Supplier(NamedTuple):
    """A row of `suppliers`."""

    id: int
    name: str
    country: str


class Product(NamedTuple):
    """A row of `products`; prices are whole euros."""

    id: int
    name: str
    category: str
    price: int
    stock: int
    supplier_id: int


class Order(NamedTuple):
    """A row of `orders`; `shipped_on` is missing for open and cancelled ones."""

    id: int
    customer_id: int
    ordered_on: str
    shipped_on: str | None
    status: str


class Item(NamedTuple):
    """A row of `order_items`: `unit_price` is what was paid, at most the product's price."""

    order_id: int
    product_id: int
    quantity: int
    unit_price: int


class Review(NamedTuple):
    """A row of `reviews`; ratings are 1 to 5."""

    id: int
    product_id: int
    customer_id: int
    rating: int
    written_on: str


@dataclass(frozen=True)
class Shop:
    """The rows of every table, in the order of their ids."""

    customers: tuple[Customer, ...]
    suppliers: tuple[Supplier, ...]
    products: tuple[Product, ...]
    orders: tuple[Order, ...]
    order_items: tuple[Item, ...]
    reviews: tuple[Review, ...]


ROW_TYPES = {
    "customers": Customer,
    "suppliers": Supplier,
    "products": Product,
    "orders": Order,
    "order_items": Item,
    "reviews": Review,
}
"""The tables and the types of their rows."""

NUM_CUSTOMERS, NUM_PRODUCTS, NUM_ORDERS, NUM_REVIEWS = 30, 24, 80, 60


def draw_shop(rng: np.random.Generator) -> Shop:
    """A shop. Some customers never order, some products are never ordered, a supplier may deliver nothing.

    Args:
        rng: Source of the data.
    """
    suppliers = _suppliers(rng)
    products = _products(rng, len(suppliers))
    customers = _customers(rng)
    orders = _orders(rng)
    items = _items(rng, orders, products)
    return Shop(customers, suppliers, products, orders, items, _reviews(rng))


def _suppliers(rng: np.random.Generator) -> tuple[Supplier, ...]:
    return tuple(
        Supplier(i, name, COUNTRIES[int(rng.integers(len(COUNTRIES)))]) for i, name in enumerate(SUPPLIERS, start=1)
    )


def _products(rng: np.random.Generator, num_suppliers: int) -> tuple[Product, ...]:
    names = [(category, name) for category, goods in GOODS.items() for name in goods]
    chosen = sorted(int(i) for i in rng.choice(len(names), size=NUM_PRODUCTS, replace=False))
    order = rng.permutation(NUM_PRODUCTS)
    prices, stocks = rng.integers(4, 160, size=NUM_PRODUCTS), rng.integers(0, 90, size=NUM_PRODUCTS)
    stocks[rng.random(NUM_PRODUCTS) < 0.15] = 0
    supplied = rng.integers(1, num_suppliers, size=NUM_PRODUCTS)  # the last supplier delivers nothing
    return tuple(
        Product(i, names[chosen[j]][1], names[chosen[j]][0], int(prices[j]), int(stocks[j]), int(supplied[j]))
        for i, j in enumerate(order, start=1)
    )


def _customers(rng: np.random.Generator) -> tuple[Customer, ...]:
    pairs = rng.choice(len(FIRST_NAMES) * len(LAST_NAMES), size=NUM_CUSTOMERS, replace=False)
    days, missing = _days(rng, NUM_CUSTOMERS), rng.random(NUM_CUSTOMERS) < 0.2
    cities = rng.integers(len(CITIES), size=NUM_CUSTOMERS)
    tiers = rng.choice(len(TIERS), size=NUM_CUSTOMERS, p=(0.5, 0.3, 0.2))
    customers = []
    for i in range(NUM_CUSTOMERS):
        first, last = FIRST_NAMES[int(pairs[i]) % len(FIRST_NAMES)], LAST_NAMES[int(pairs[i]) // len(FIRST_NAMES)]
        email = None if missing[i] else f"{first}.{last}@example.org".lower()
        customers.append(Customer(i + 1, f"{first} {last}", CITIES[cities[i]], TIERS[tiers[i]], email, _day(days[i])))
    return tuple(customers)


def _orders(rng: np.random.Generator) -> tuple[Order, ...]:
    buyers = rng.permutation(NUM_CUSTOMERS)[: NUM_CUSTOMERS - 4] + 1
    days = np.sort(_days(rng, NUM_ORDERS))
    statuses = rng.choice(len(STATUSES), size=NUM_ORDERS, p=(0.15, 0.2, 0.5, 0.15))
    orders = []
    for i in range(NUM_ORDERS):
        status = STATUSES[statuses[i]]
        shipped = _day(days[i] + int(rng.integers(1, 9))) if status in ("shipped", "delivered") else None
        buyer = int(buyers[int(len(buyers) * rng.random() ** 1.5)])
        orders.append(Order(i + 1, buyer, _day(days[i]), shipped, status))
    return tuple(orders)


def _items(rng: np.random.Generator, orders: tuple[Order, ...], products: tuple[Product, ...]) -> tuple[Item, ...]:
    items = []
    for order in orders:
        for product in rng.choice(NUM_PRODUCTS - 2, size=int(rng.integers(1, 5)), replace=False):
            price = products[int(product)].price
            off = int(rng.integers(1, 4)) if rng.random() < 0.3 else 0
            items.append(Item(order.id, int(product) + 1, int(rng.integers(1, 7)), price - off))
    return tuple(items)


def _reviews(rng: np.random.Generator) -> tuple[Review, ...]:
    ratings = rng.choice(5, size=NUM_REVIEWS, p=(0.1, 0.1, 0.2, 0.35, 0.25)) + 1
    products = rng.integers(1, NUM_PRODUCTS - 1, size=NUM_REVIEWS)
    customers = rng.integers(1, NUM_CUSTOMERS + 1, size=NUM_REVIEWS)
    days = _days(rng, NUM_REVIEWS)
    return tuple(
        Review(i + 1, int(products[i]), int(customers[i]), int(ratings[i]), _day(days[i])) for i in range(NUM_REVIEWS)
    )


def _days(rng: np.random.Generator, number: int) -> np.ndarray:
    return rng.integers(NUM_DAYS, size=number)


def _day(day: int) -> str:
    return (FIRST_DAY + datetime.timedelta(days=int(day))).isoformat()
