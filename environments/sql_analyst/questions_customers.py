"""Questions about customers and their orders."""

from __future__ import annotations

import datetime

from envgym.environments.sql_analyst.question import Question, leader, mean, tally
from envgym.environments.sql_analyst.shop import Customer, Order, Shop

_JOINED = "FROM orders JOIN customers ON customers.id = customer_id"


def _ordered(shop: Shop) -> list[tuple[Order, Customer]]:
    """Pairs of an order and its customer."""
    customers = {customer.id: customer for customer in shop.customers}
    return [(order, customers[order.customer_id]) for order in shop.orders]


def _counts(shop: Shop) -> dict[str, float]:
    """Number of orders of each customer who has one."""
    return tally((customer.name, 1) for _, customer in _ordered(shop))


def _day(date: str) -> int:
    return datetime.date.fromisoformat(date).toordinal()


CUSTOMER_QUESTIONS = (
    Question(
        "How many customers live in {city}?",
        "SELECT COUNT(*) FROM customers WHERE city = '{city}'",
        lambda s, p: sum(customer.city == p["city"] for customer in s.customers),
    ),
    Question(
        "How many customers are in the tier {tier}?",
        "SELECT COUNT(*) FROM customers WHERE tier = '{tier}'",
        lambda s, p: [customer.tier for customer in s.customers].count(p["tier"]),
    ),
    Question(
        "In which city do the most customers live?",
        "SELECT city FROM customers GROUP BY city ORDER BY COUNT(*) DESC LIMIT 1",
        lambda s, p: leader(tally((customer.city, 1) for customer in s.customers)),
    ),
    Question(
        "How many customers joined in {year}?",
        "SELECT COUNT(*) FROM customers WHERE joined_on LIKE '{year}-%'",
        lambda s, p: sum(int(customer.joined_on[:4]) == p["year"] for customer in s.customers),
    ),
    Question(
        "How many customers have no email address?",
        "SELECT COUNT(*) FROM customers WHERE email IS NULL",
        lambda s, p: [customer.email for customer in s.customers].count(None),
    ),
    Question(
        "Which customer joined first?",
        "SELECT name FROM customers ORDER BY joined_on LIMIT 1",
        lambda s, p: leader({customer.name: -_day(customer.joined_on) for customer in s.customers}),
    ),
    Question(
        "How many customers of the tier {tier} live in {city}?",
        "SELECT COUNT(*) FROM customers WHERE tier = '{tier}' AND city = '{city}'",
        lambda s, p: [(customer.tier, customer.city) for customer in s.customers].count((p["tier"], p["city"])),
    ),
    Question(
        "In which city does {customer} live?",
        "SELECT city FROM customers WHERE name = '{customer}'",
        lambda s, p: {customer.name: customer.city for customer in s.customers}[p["customer"]],
    ),
    Question(
        "In how many different cities do customers of the tier {tier} live?",
        "SELECT COUNT(DISTINCT city) FROM customers WHERE tier = '{tier}'",
        lambda s, p: len({customer.city for customer in s.customers if customer.tier == p["tier"]}),
    ),
    Question(
        "What percentage of the customers is in the tier {tier}, to two decimals?",
        "SELECT ROUND(100.0 * SUM(tier = '{tier}') / COUNT(*), 2) FROM customers",
        lambda s, p: mean(100 * (customer.tier == p["tier"]) for customer in s.customers),
    ),
    Question(
        "How many orders were placed in {year}?",
        "SELECT COUNT(*) FROM orders WHERE ordered_on LIKE '{year}-%'",
        lambda s, p: sum(order.ordered_on.startswith(str(p["year"])) for order in s.orders),
    ),
    Question(
        "How many orders have the status {status}?",
        "SELECT COUNT(*) FROM orders WHERE status = '{status}'",
        lambda s, p: sum(order.status == p["status"] for order in s.orders),
    ),
    Question(
        "How many orders were placed in the month {month}?",
        "SELECT COUNT(*) FROM orders WHERE ordered_on LIKE '{month}-%'",
        lambda s, p: sum(order.ordered_on[:7] == p["month"] for order in s.orders),
    ),
    Question(
        "How many orders did {customer} place?",
        f"SELECT COUNT(*) {_JOINED} WHERE name = '{{customer}}'",
        lambda s, p: int(_counts(s).get(p["customer"], 0)),
    ),
    Question(
        "How many orders did customers from {city} place?",
        f"SELECT COUNT(*) {_JOINED} WHERE city = '{{city}}'",
        lambda s, p: sum(customer.city == p["city"] for _, customer in _ordered(s)),
    ),
    Question(
        "Which customer placed the most orders?",
        f"SELECT name {_JOINED} GROUP BY customers.id ORDER BY COUNT(*) DESC LIMIT 1",
        lambda s, p: leader(_counts(s)),
    ),
    Question(
        "How many customers never placed an order?",
        "SELECT COUNT(*) FROM customers WHERE id NOT IN (SELECT customer_id FROM orders)",
        lambda s, p: len(s.customers) - len(_counts(s)),
    ),
    Question(
        "On which date did {customer} place the first order?",
        f"SELECT MIN(ordered_on) {_JOINED} WHERE name = '{{customer}}'",
        lambda s, p: min((order.ordered_on for order, x in _ordered(s) if x.name == p["customer"]), default=None),
    ),
    Question(
        "How many customers placed at least {n} orders?",
        "SELECT COUNT(*) FROM (SELECT customer_id FROM orders GROUP BY customer_id HAVING COUNT(*) >= {n})",
        lambda s, p: sum(number >= p["n"] for number in _counts(s).values()),
    ),
    Question(
        "In which month were the most orders placed? Answer as YYYY-MM.",
        "SELECT SUBSTR(ordered_on, 1, 7) FROM orders GROUP BY 1 ORDER BY COUNT(*) DESC LIMIT 1",
        lambda s, p: leader(tally((order.ordered_on[:7], 1) for order in s.orders)),
    ),
    Question(
        "What percentage of the orders was cancelled, to two decimals?",
        "SELECT ROUND(100.0 * SUM(status = 'cancelled') / COUNT(*), 2) FROM orders",
        lambda s, p: mean(100 * (order.status == "cancelled") for order in s.orders),
    ),
    Question(
        "How many orders did customers of the tier {tier} place in {year}?",
        f"SELECT COUNT(*) {_JOINED} WHERE tier = '{{tier}}' AND ordered_on LIKE '{{year}}-%'",
        lambda s, p: (
            sum(x.tier == p["tier"] and order.ordered_on < "2024" for order, x in _ordered(s))
            if p["year"] == 2023
            else sum(x.tier == p["tier"] and order.ordered_on >= "2024" for order, x in _ordered(s))
        ),
    ),
    Question(
        "How many orders does a customer place on average, those without an order included, to two decimals?",
        "SELECT ROUND(1.0 * (SELECT COUNT(*) FROM orders) / COUNT(*), 2) FROM customers",
        lambda s, p: mean(_counts(s).get(customer.name, 0) for customer in s.customers),
    ),
    Question(
        "How many days lie on average between an order and its shipping, to two decimals?",
        "SELECT ROUND(AVG(julianday(shipped_on) - julianday(ordered_on)), 2) FROM orders WHERE shipped_on IS NOT NULL",
        lambda s, p: mean(_day(x.shipped_on) - _day(x.ordered_on) for x in s.orders if x.shipped_on is not None),
    ),
    Question(
        "How many orders have no shipping date and were not cancelled?",
        "SELECT COUNT(*) FROM orders WHERE shipped_on IS NULL AND status <> 'cancelled'",
        lambda s, p: sum(order.shipped_on is None and order.status != "cancelled" for order in s.orders),
    ),
    Question(
        "How many customers placed orders in 2023 and in 2024?",
        "SELECT COUNT(*) FROM (SELECT customer_id FROM orders GROUP BY customer_id "
        "HAVING COUNT(DISTINCT SUBSTR(ordered_on, 1, 4)) = 2)",
        lambda s, p: len(
            {order.customer_id for order in s.orders if order.ordered_on < "2024"}
            & {order.customer_id for order in s.orders if order.ordered_on >= "2024"}
        ),
    ),
)
