"""Questions about reviews."""

from __future__ import annotations

from collections.abc import Callable

from envgym.environments.sql_analyst.question import Question, leader, mean, tally
from envgym.environments.sql_analyst.shop import Customer, Product, Review, Shop

_PRODUCTS = "FROM reviews JOIN products ON products.id = product_id"
_CUSTOMERS = "FROM reviews JOIN customers ON customers.id = customer_id"


def _reviewed(shop: Shop) -> list[tuple[Review, Product, Customer]]:
    """Triples of a review, its product and its customer."""
    products = {product.id: product for product in shop.products}
    customers = {customer.id: customer for customer in shop.customers}
    return [(review, products[review.product_id], customers[review.customer_id]) for review in shop.reviews]


def _ratings(shop: Shop, key: Callable[[Product], str]) -> dict[str, list[int]]:
    """The ratings by a property of the product."""
    groups: dict[str, list[int]] = {}
    for review, product, _ in _reviewed(shop):
        groups.setdefault(key(product), []).append(review.rating)
    return groups


REVIEW_QUESTIONS = (
    Question(
        "What is the average rating of the product {product}, to two decimals?",
        f"SELECT ROUND(AVG(rating), 2) {_PRODUCTS} WHERE name = '{{product}}'",
        lambda s, p: mean(_ratings(s, lambda product: product.name).get(p["product"], ())),
    ),
    Question(
        "How many reviews give a rating of {rating}?",
        "SELECT COUNT(*) FROM reviews WHERE rating = {rating}",
        lambda s, p: [review.rating for review in s.reviews].count(p["rating"]),
    ),
    Question(
        "Which product has the most reviews?",
        f"SELECT name {_PRODUCTS} GROUP BY products.id ORDER BY COUNT(*) DESC LIMIT 1",
        lambda s, p: leader(tally((product.name, 1) for _, product, _ in _reviewed(s))),
    ),
    Question(
        "How many products have no review?",
        "SELECT COUNT(*) FROM products LEFT JOIN reviews ON products.id = product_id WHERE reviews.id IS NULL",
        lambda s, p: len(s.products) - len({review.product_id for review in s.reviews}),
    ),
    Question(
        "What is the average rating in the category {category}, to two decimals?",
        f"SELECT ROUND(AVG(rating), 2) {_PRODUCTS} WHERE category = '{{category}}'",
        lambda s, p: mean(review.rating for review, product, _ in _reviewed(s) if product.category == p["category"]),
    ),
    Question(
        "How many customers wrote at least {n} reviews?",
        "SELECT COUNT(*) FROM (SELECT customer_id FROM reviews GROUP BY customer_id HAVING COUNT(*) >= {n})",
        lambda s, p: sum(
            number >= p["n"] for number in tally((str(review.customer_id), 1) for review in s.reviews).values()
        ),
    ),
    Question(
        "How many reviews did customers from {city} write?",
        f"SELECT COUNT(*) {_CUSTOMERS} WHERE city = '{{city}}'",
        lambda s, p: sum(customer.city == p["city"] for _, _, customer in _reviewed(s)),
    ),
    Question(
        "Which product has the best average rating among those with at least 3 reviews?",
        f"SELECT name {_PRODUCTS} GROUP BY products.id HAVING COUNT(*) >= 3 ORDER BY AVG(rating) DESC LIMIT 1",
        lambda s, p: leader(
            {
                name: sum(ratings) / len(ratings)
                for name, ratings in _ratings(s, lambda product: product.name).items()
                if len(ratings) >= 3
            }
        ),
    ),
    Question(
        "Which category has the best average rating?",
        f"SELECT category {_PRODUCTS} GROUP BY category ORDER BY AVG(rating) DESC LIMIT 1",
        lambda s, p: leader(
            {
                category: sum(ratings) / len(ratings)
                for category, ratings in _ratings(s, lambda product: product.category).items()
            }
        ),
    ),
    Question(
        "How many reviews are of a product that their writer never ordered, not even in a cancelled order?",
        "SELECT COUNT(*) FROM reviews WHERE NOT EXISTS (SELECT 1 FROM order_items JOIN orders ON orders.id = order_id "
        "WHERE orders.customer_id = reviews.customer_id AND order_items.product_id = reviews.product_id)",
        lambda s, p: sum(
            (review.customer_id, review.product_id)
            not in {
                (order.customer_id, item.product_id)
                for item in s.order_items
                for order in s.orders
                if order.id == item.order_id
            }
            for review in s.reviews
        ),
    ),
    Question(
        "What is the average rating that customers of the tier {tier} give, to two decimals?",
        f"SELECT ROUND(AVG(rating), 2) {_CUSTOMERS} WHERE tier = '{{tier}}'",
        lambda s, p: mean(review.rating for review, _, customer in _reviewed(s) if customer.tier == p["tier"]),
    ),
    Question(
        "How many reviews of products in the category {category} give a rating of {rating}?",
        f"SELECT COUNT(*) {_PRODUCTS} WHERE category = '{{category}}' AND rating = {{rating}}",
        lambda s, p: _ratings(s, lambda product: product.category).get(p["category"], []).count(p["rating"]),
    ),
)
