"""Questions about what was sold: over orders, their items, products, customers and suppliers."""

from __future__ import annotations

from envgym.environments.sql_analyst.question import Question, leader, mean, paid, sales, tally, total
from envgym.environments.sql_analyst.shop import Shop

_ITEMS = "FROM order_items JOIN orders ON orders.id = order_id"
_PRODUCTS = f"{_ITEMS} JOIN products ON products.id = product_id"
_CUSTOMERS = f"{_ITEMS} JOIN customers ON customers.id = customer_id"
_SUPPLIERS = f"{_PRODUCTS} JOIN suppliers ON suppliers.id = supplier_id"
_VALID = "status <> 'cancelled'"
_PAID = "SUM(quantity * unit_price)"
_VALUES = f"(SELECT {_PAID} AS value {_ITEMS} WHERE {_VALID} GROUP BY orders.id)"


def _values(shop: Shop) -> dict[str, float]:
    """What was paid for each order that was not cancelled."""
    return tally((str(order.id), paid(item)) for item, order, _, _ in sales(shop))


def _spent(shop: Shop) -> dict[str, float]:
    """What each customer paid who bought something."""
    return tally((customer.name, paid(item)) for item, _, _, customer in sales(shop))


def _country(shop: Shop, supplier_id: int) -> str:
    return next(supplier.country for supplier in shop.suppliers if supplier.id == supplier_id)


def _supplier(shop: Shop, supplier_id: int) -> str:
    return next(supplier.name for supplier in shop.suppliers if supplier.id == supplier_id)


SALES_QUESTIONS = (
    Question(
        "What is the revenue over all orders? Do not count cancelled orders.",
        f"SELECT {_PAID} {_ITEMS} WHERE {_VALID}",
        lambda s, p: total(paid(item) for item, *_ in sales(s)),
    ),
    Question(
        "What is the revenue of the orders placed in {year}? Do not count cancelled orders.",
        f"SELECT {_PAID} {_ITEMS} WHERE {_VALID} AND ordered_on LIKE '{{year}}-%'",
        lambda s, p: total(paid(item) for item, order, *_ in sales(s) if int(order.ordered_on[:4]) == p["year"]),
    ),
    Question(
        "What is the revenue of the category {category}? Do not count cancelled orders.",
        f"SELECT {_PAID} {_PRODUCTS} WHERE {_VALID} AND category = '{{category}}'",
        lambda s, p: total(paid(item) for item, _, product, _ in sales(s) if product.category == p["category"]),
    ),
    Question(
        "What is the revenue of the product {product}? Do not count cancelled orders.",
        f"SELECT {_PAID} {_PRODUCTS} WHERE {_VALID} AND products.name = '{{product}}'",
        lambda s, p: total(paid(item) for item, _, product, _ in sales(s) if product.name == p["product"]),
    ),
    Question(
        "How many units of the product {product} were sold? Do not count cancelled orders.",
        f"SELECT SUM(quantity) {_PRODUCTS} WHERE {_VALID} AND products.name = '{{product}}'",
        lambda s, p: total(item.quantity for item, _, product, _ in sales(s) if product.name == p["product"]),
    ),
    Question(
        "Which product sold the most units? Do not count cancelled orders.",
        f"SELECT products.name {_PRODUCTS} WHERE {_VALID} GROUP BY products.id ORDER BY SUM(quantity) DESC LIMIT 1",
        lambda s, p: leader(tally((product.name, item.quantity) for item, _, product, _ in sales(s))),
    ),
    Question(
        "Which customer spent the most? Do not count cancelled orders.",
        f"SELECT name {_CUSTOMERS} WHERE {_VALID} GROUP BY customers.id ORDER BY {_PAID} DESC LIMIT 1",
        lambda s, p: leader(_spent(s)),
    ),
    Question(
        "Which customer spent the second most? Do not count cancelled orders.",
        f"SELECT name {_CUSTOMERS} WHERE {_VALID} GROUP BY customers.id ORDER BY {_PAID} DESC LIMIT 1 OFFSET 1",
        lambda s, p: leader(_spent(s), place=2),
    ),
    Question(
        "How much did {customer} spend? Do not count cancelled orders.",
        f"SELECT {_PAID} {_CUSTOMERS} WHERE {_VALID} AND name = '{{customer}}'",
        lambda s, p: total(paid(item) for item, _, _, customer in sales(s) if customer.name == p["customer"]),
    ),
    Question(
        "Which category brought the highest revenue? Do not count cancelled orders.",
        f"SELECT category {_PRODUCTS} WHERE {_VALID} GROUP BY category ORDER BY {_PAID} DESC LIMIT 1",
        lambda s, p: leader(tally((product.category, paid(item)) for item, _, product, _ in sales(s))),
    ),
    Question(
        "From which city does the highest revenue come? Do not count cancelled orders.",
        f"SELECT city {_CUSTOMERS} WHERE {_VALID} GROUP BY city ORDER BY {_PAID} DESC LIMIT 1",
        lambda s, p: leader(tally((customer.city, paid(item)) for item, _, _, customer in sales(s))),
    ),
    Question(
        "How many products appear in no order at all?",
        "SELECT COUNT(*) FROM products WHERE id NOT IN (SELECT product_id FROM order_items)",
        lambda s, p: len({product.id for product in s.products} - {item.product_id for item in s.order_items}),
    ),
    Question(
        "How many different products did {customer} buy? Do not count cancelled orders.",
        f"SELECT COUNT(DISTINCT product_id) {_CUSTOMERS} WHERE {_VALID} AND name = '{{customer}}'",
        lambda s, p: len({product.id for _, _, product, customer in sales(s) if customer.name == p["customer"]}),
    ),
    Question(
        "What is the average value of an order, to two decimals? Do not count cancelled orders.",
        f"SELECT ROUND(AVG(value), 2) FROM {_VALUES}",
        lambda s, p: mean(_values(s).values()),
    ),
    Question(
        "What is the value of the largest order? Do not count cancelled orders.",
        f"SELECT MAX(value) FROM {_VALUES}",
        lambda s, p: int(max(_values(s).values())),
    ),
    Question(
        "What is the id of the order with the largest value? Do not count cancelled orders.",
        f"SELECT orders.id {_ITEMS} WHERE {_VALID} GROUP BY orders.id ORDER BY {_PAID} DESC LIMIT 1",
        lambda s, p: int(best) if (best := leader(_values(s))) else None,
    ),
    Question(
        "How many orders have a value of more than {amount} euros? Do not count cancelled orders.",
        f"SELECT COUNT(*) FROM {_VALUES} WHERE value > {{amount}}",
        lambda s, p: sum(value > p["amount"] for value in _values(s).values()),
    ),
    Question(
        "How many orders, cancelled ones included, have at least {n} different products?",
        "SELECT COUNT(*) FROM (SELECT order_id FROM order_items GROUP BY order_id "
        "HAVING COUNT(DISTINCT product_id) >= {n})",
        lambda s, p: sum(
            len({item.product_id for item in s.order_items if item.order_id == order.id}) >= p["n"]
            for order in s.orders
        ),
    ),
    Question(
        "How many euros of discount were given, compared to the products' prices? Do not count cancelled orders.",
        f"SELECT SUM(quantity * (price - unit_price)) {_PRODUCTS} WHERE {_VALID}",
        lambda s, p: total(item.quantity * product.price - paid(item) for item, _, product, _ in sales(s)),
    ),
    Question(
        "What is the revenue of products from suppliers in {country}? Do not count cancelled orders.",
        f"SELECT {_PAID} {_SUPPLIERS} WHERE {_VALID} AND country = '{{country}}'",
        lambda s, p: total(
            paid(i) for i, _, product, _ in sales(s) if _country(s, product.supplier_id) == p["country"]
        ),
    ),
    Question(
        "Which supplier's products brought the highest revenue? Do not count cancelled orders.",
        f"SELECT suppliers.name {_SUPPLIERS} WHERE {_VALID} GROUP BY suppliers.id ORDER BY {_PAID} DESC LIMIT 1",
        lambda s, p: leader(tally((_supplier(s, product.supplier_id), paid(item)) for item, _, product, _ in sales(s))),
    ),
    Question(
        "How many units of the category {category} did customers from {city} buy? Do not count cancelled orders.",
        f"SELECT SUM(quantity) {_PRODUCTS} JOIN customers ON customers.id = customer_id "
        f"WHERE {_VALID} AND category = '{{category}}' AND city = '{{city}}'",
        lambda s, p: total(i.quantity for i, _, x, c in sales(s) if (x.category, c.city) == (p["category"], p["city"])),
    ),
    Question(
        "How many customers bought the product {product}? Do not count cancelled orders.",
        f"SELECT COUNT(DISTINCT customer_id) {_PRODUCTS} WHERE {_VALID} AND products.name = '{{product}}'",
        lambda s, p: len({customer.id for _, _, product, customer in sales(s) if product.name == p["product"]}),
    ),
    Question(
        "Which month brought the highest revenue? Answer as YYYY-MM. Do not count cancelled orders.",
        f"SELECT SUBSTR(ordered_on, 1, 7) {_ITEMS} WHERE {_VALID} GROUP BY 1 ORDER BY {_PAID} DESC LIMIT 1",
        lambda s, p: leader(tally((order.ordered_on[:7], paid(item)) for item, order, _, _ in sales(s))),
    ),
)
