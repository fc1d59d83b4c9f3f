"""Questions about products and suppliers."""

from __future__ import annotations

from envgym.environments.sql_analyst.question import Question, leader, mean, tally, total
from envgym.environments.sql_analyst.shop import Product, Shop, Supplier


def _in(shop: Shop, category: str) -> list[Product]:
    return [product for product in shop.products if product.category == category]


def _supplied(shop: Shop) -> list[tuple[Product, Supplier]]:
    """Pairs of a product and its supplier."""
    suppliers = {supplier.id: supplier for supplier in shop.suppliers}
    return [(product, suppliers[product.supplier_id]) for product in shop.products]


GOODS_QUESTIONS = (
    Question(
        "How many products are in the category {category}?",
        "SELECT COUNT(*) FROM products WHERE category = '{category}'",
        lambda s, p: len(_in(s, p["category"])),
    ),
    Question(
        "How many products cost more than {price} euros?",
        "SELECT COUNT(*) FROM products WHERE price > {price}",
        lambda s, p: sum(product.price > p["price"] for product in s.products),
    ),
    Question(
        "Which product of the category {category} is the most expensive?",
        "SELECT name FROM products WHERE category = '{category}' ORDER BY price DESC LIMIT 1",
        lambda s, p: leader({product.name: product.price for product in _in(s, p["category"])}),
    ),
    Question(
        "Which product is the cheapest of all?",
        "SELECT name FROM products ORDER BY price LIMIT 1",
        lambda s, p: leader({product.name: -product.price for product in s.products}),
    ),
    Question(
        "What is the average price of the products in the category {category}, to two decimals?",
        "SELECT ROUND(AVG(price), 2) FROM products WHERE category = '{category}'",
        lambda s, p: mean(product.price for product in _in(s, p["category"])),
    ),
    Question(
        "How many units are in stock, over all products?",
        "SELECT SUM(stock) FROM products",
        lambda s, p: total(product.stock for product in s.products),
    ),
    Question(
        "How many units are in stock in the category {category}?",
        "SELECT SUM(stock) FROM products WHERE category = '{category}'",
        lambda s, p: total(product.stock for product in _in(s, p["category"])),
    ),
    Question(
        "How many products are out of stock?",
        "SELECT COUNT(*) FROM products WHERE stock = 0",
        lambda s, p: len([product for product in s.products if not product.stock]),
    ),
    Question(
        "What is the stock of the category {category} worth, at the products' prices?",
        "SELECT SUM(price * stock) FROM products WHERE category = '{category}'",
        lambda s, p: total(product.price * product.stock for product in _in(s, p["category"])),
    ),
    Question(
        "Which category has the most products?",
        "SELECT category FROM products GROUP BY category ORDER BY COUNT(*) DESC LIMIT 1",
        lambda s, p: leader(tally((product.category, 1) for product in s.products)),
    ),
    Question(
        "Which category has the highest average price?",
        "SELECT category FROM products GROUP BY category ORDER BY AVG(price) DESC LIMIT 1",
        lambda s, p: leader(
            {c: sum(x.price for x in _in(s, c)) / len(_in(s, c)) for c in {product.category for product in s.products}}
        ),
    ),
    Question(
        "By how many euros does the most expensive product of the category {category} exceed the cheapest of it?",
        "SELECT MAX(price) - MIN(price) FROM products WHERE category = '{category}'",
        lambda s, p: (
            max(prices) - min(prices) if (prices := [product.price for product in _in(s, p["category"])]) else None
        ),
    ),
    Question(
        "What is the price of the product {product}?",
        "SELECT price FROM products WHERE name = '{product}'",
        lambda s, p: next(product.price for product in s.products if product.name == p["product"]),
    ),
    Question(
        "How many products of the category {category} are in stock and cost at most {price} euros?",
        "SELECT COUNT(*) FROM products WHERE category = '{category}' AND stock > 0 AND price <= {price}",
        lambda s, p: sum(1 for product in _in(s, p["category"]) if product.stock and product.price <= p["price"]),
    ),
    Question(
        "How many suppliers are there in {country}?",
        "SELECT COUNT(*) FROM suppliers WHERE country = '{country}'",
        lambda s, p: [supplier.country for supplier in s.suppliers].count(p["country"]),
    ),
    Question(
        "How many products does the supplier {supplier} deliver?",
        "SELECT COUNT(*) FROM products JOIN suppliers ON suppliers.id = supplier_id "
        "WHERE suppliers.name = '{supplier}'",
        lambda s, p: sum(supplier.name == p["supplier"] for _, supplier in _supplied(s)),
    ),
    Question(
        "Which supplier delivers the most products?",
        "SELECT suppliers.name FROM suppliers JOIN products ON suppliers.id = supplier_id "
        "GROUP BY suppliers.id ORDER BY COUNT(*) DESC LIMIT 1",
        lambda s, p: leader(tally((supplier.name, 1) for _, supplier in _supplied(s))),
    ),
    Question(
        "In which country is the supplier of the product {product}?",
        "SELECT country FROM suppliers JOIN products ON suppliers.id = supplier_id WHERE products.name = '{product}'",
        lambda s, p: next(supplier.country for product, supplier in _supplied(s) if product.name == p["product"]),
    ),
    Question(
        "What is the average price of the products from suppliers in {country}, to two decimals?",
        "SELECT ROUND(AVG(price), 2) FROM products JOIN suppliers ON suppliers.id = supplier_id "
        "WHERE country = '{country}'",
        lambda s, p: mean(product.price for product, supplier in _supplied(s) if supplier.country == p["country"]),
    ),
    Question(
        "How many products come from suppliers in {country}?",
        "SELECT COUNT(*) FROM products JOIN suppliers ON suppliers.id = supplier_id WHERE country = '{country}'",
        lambda s, p: [supplier.country for _, supplier in _supplied(s)].count(p["country"]),
    ),
    Question(
        "How many suppliers deliver no product?",
        "SELECT COUNT(*) FROM suppliers LEFT JOIN products ON suppliers.id = supplier_id WHERE products.id IS NULL",
        lambda s, p: len({supplier.id for supplier in s.suppliers} - {product.supplier_id for product in s.products}),
    ),
)
