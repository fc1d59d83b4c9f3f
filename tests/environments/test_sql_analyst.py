"""The SQL analyst: answers of queries and of the rows agree, nothing but reading is allowed, and what a call pays."""

import pickle
import re
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from envgym.environments.sql_analyst import SqlAnalyst
from envgym.environments.sql_analyst.database import Database, QueryError
from envgym.environments.sql_analyst.nesting import MAX_SUBQUERIES, num_subqueries
from envgym.environments.sql_analyst.question import is_right, leader, mean
from envgym.environments.sql_analyst.questions import QUESTIONS, draw_question
from envgym.environments.sql_analyst.shop import (
    ROW_TYPES,
    Customer,
    Item,
    Order,
    Product,
    Review,
    Shop,
    Supplier,
    draw_shop,
)
from envgym.tools import format_call

TINY = Shop(
    customers=(
        Customer(1, "Ada Baum", "Bern", "gold", None, "2023-01-05"),
        Customer(2, "Ben Dahl", "Oslo", "basic", "ben@example.org", "2023-02-01"),
        Customer(3, "Cleo Holm", "Bern", "basic", "cleo@example.org", "2024-03-01"),
    ),
    suppliers=(Supplier(1, "Alder Works", "Italy"), Supplier(2, "Fern Export", "Poland")),
    products=(
        Product(1, "pan", "kitchen", 30, 5, 1),
        Product(2, "rope", "sport", 12, 0, 1),
        Product(3, "tent", "sport", 90, 2, 1),
    ),
    orders=(
        Order(1, 1, "2023-05-01", "2023-05-04", "delivered"),
        Order(2, 1, "2024-01-10", None, "open"),
        Order(3, 2, "2024-01-11", None, "cancelled"),
    ),
    order_items=(Item(1, 1, 2, 28), Item(1, 2, 1, 12), Item(2, 3, 1, 90), Item(3, 3, 4, 90)),
    reviews=(Review(1, 1, 1, 5, "2023-06-01"), Review(2, 1, 2, 2, "2023-07-01"), Review(3, 3, 1, 4, "2024-02-01")),
)


def start(answer, tables, shop=TINY, **kwargs):
    """An episode about this shop, whose question needs these tables and has this answer."""
    env = SqlAnalyst(**kwargs)
    env.reset(seed=0)
    env._database, env._answer, env._needed = Database(shop), answer, frozenset(tables)
    return env


def query(env, sql):
    return env.step(format_call("query", {"sql": sql}, env.call_format))


def test_there_are_many_kinds_of_questions_over_one_to_four_tables():
    assert len(QUESTIONS) == len({question.text for question in QUESTIONS}) == 83
    assert {len(question.tables) for question in QUESTIONS} == {1, 2, 3, 4}
    assert set().union(*(question.tables for question in QUESTIONS)) == set(ROW_TYPES)


@pytest.mark.parametrize("seed", range(8))
def test_every_query_gives_the_answer_that_the_rows_give(seed):
    rng = np.random.default_rng(seed)
    shop = draw_shop(rng)
    database = Database(shop)
    answered = 0
    for question in QUESTIONS:
        drawn = question.draw(shop, rng)
        if drawn is None:
            continue
        parameters, answer = drawn
        result = database.query(question.sql.format(**parameters))
        assert is_right(str(result.rows[0][0]), answer), question.text
        assert result.tables == question.tables and len(result.rows) == 1
        answered += 1
        assert [kind for kind in QUESTIONS if kind.read(question.text.format(**parameters)) is not None] == [question]
    assert answered > 70
    database.close()


@pytest.mark.parametrize(
    ("start_of_text", "parameters", "answer"),
    [
        ("What is the revenue over all orders?", {}, 158),
        ("What is the revenue of the orders placed in {year}", {"year": 2024}, 90),
        ("How many euros of discount", {}, 4),
        ("What percentage of the orders was cancelled", {}, 33.33),
        ("How many days lie on average", {}, 3.0),
        ("Which customer spent the most?", {}, "Ada Baum"),
        ("Which customer spent the second most?", {}, None),
        ("How many products appear in no order at all?", {}, 0),
        ("How many reviews are of a product that their writer never ordered", {}, 1),
        ("What is the average rating of the product {product}", {"product": "pan"}, 3.5),
        ("What is the average rating of the product {product}", {"product": "rope"}, None),
        ("How many suppliers deliver no product?", {}, 1),
        ("How many customers placed orders in 2023 and in 2024?", {}, 1),
        ("On which date did {customer} place the first order?", {"customer": "Cleo Holm"}, None),
        ("What is the value of the largest order?", {}, 90),
        ("In which city do the most customers live?", {}, "Bern"),
    ],
)
def test_answers_of_a_tiny_shop_by_hand(start_of_text, parameters, answer):
    (question,) = [kind for kind in QUESTIONS if kind.text.startswith(start_of_text)]
    assert question.reference(TINY, parameters) == answer


def test_ties_have_no_leader():
    assert leader({"a": 1, "b": 2}) == "b" and leader({"a": 2, "b": 2}) is None and leader({}) is None
    assert leader({"a": 3, "b": 2, "c": 1}, place=2) == "b" and leader({"a": 3, "b": 2, "c": 2}, place=2) is None
    assert mean([]) is None and mean([1, 2, 2]) == 1.67


@pytest.mark.parametrize(
    ("given", "answer", "right"),
    [
        *(("7", 7, True), ("7.0", 7, True), ("7.005", 7, False), ("seven", 7, False), ("3.34", 3.33, True)),
        *(("3.35", 3.33, False), ("nan", 3.33, False), ("1e3", 1000, False), (" ada baum\n", "Ada Baum", True)),
        *(("Ada", "Ada Baum", False), ("", 0, False)),
    ],
)
def test_answers_are_compared_by_what_they_mean(given, answer, right):
    assert is_right(given, answer) is right


def test_the_rewards_of_a_clean_episode():
    env = start(2, ["customers", "orders"])
    assert env.step("list_tables()").info["reward_components"] == {"tables": 0.02}
    step = env.step("describe(customers)")
    assert step.info["reward_components"] == {"describe": 0.04} and step.info["role"] == "tool"
    assert step.observation == (
        "customers(id INTEGER, name TEXT, city TEXT, tier TEXT, email TEXT, joined_on TEXT), 3 rows"
    )
    assert env.step("describe(orders)").info["reward_components"] == {"describe": 0.04}
    step = query(env, "SELECT name FROM orders JOIN customers ON customers.id = customer_id")
    assert step.observation == "name\nAda Baum\nAda Baum\nBen Dahl" and step.info["reward_components"] == {"query": 0.1}
    step = query(env, "SELECT COUNT(*) FROM orders JOIN customers ON customers.id = customer_id WHERE city = 'Bern'")
    assert step.observation == "COUNT(*)\n2" and step.info["reward_components"] == {"found": 0.2}
    step = env.step("answer(2)")
    assert step.terminated and step.info["success"] is True and step.info["reward_components"] == {"answer": 1.0}


def test_nothing_is_paid_twice_or_for_what_is_not_needed():
    env, useless = start(3, ["orders"]), {"useless": -0.01}
    assert env.step("describe(customers)").info["reward_components"] == useless
    env.step("list_tables()"), env.step("describe(orders)")
    assert env.step("list_tables()").info["reward_components"] == useless
    assert env.step("describe(orders)").info["reward_components"] == useless
    assert query(env, "SELECT 3").info["reward_components"] == useless
    assert query(env, "SELECT COUNT(*) FROM customers").info["reward_components"] == useless
    both = query(env, "SELECT COUNT(*) FROM orders").info["reward_components"]
    assert both == {"query": 0.1, "found": 0.2}
    assert query(env, "SELECT COUNT(*) FROM orders").info["reward_components"] == useless


def test_listing_a_table_does_not_count_as_finding_the_answer():
    env = start("Oslo", ["customers"], shop=draw_shop(np.random.default_rng(0)))
    assert query(env, "SELECT * FROM customers").info["reward_components"] == {"query": 0.1}
    assert query(env, "SELECT city FROM customers LIMIT 6").info["reward_components"] == {"useless": -0.01}


@pytest.mark.parametrize("action", ["answer(3)", "answer(two)", 'answer("")', "answer(2.5)"])
def test_a_wrong_answer_ends_without_success(action):
    step = start(2, ["orders"]).step(action)
    assert step.terminated and step.info["success"] is False and step.info["reward_components"] == {"answer": 0.0}


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DELETE FROM orders", "only SELECT"),
        ("UPDATE orders SET status = 'open'", "only SELECT"),
        ("INSERT INTO suppliers VALUES (9, 'x', 'y')", "only SELECT"),
        ("DROP TABLE orders", "only SELECT"),
        ("CREATE TABLE t (x)", "only SELECT"),
        ("ATTACH 'file' AS other", "only SELECT"),
        ("PRAGMA table_info(orders)", "only SELECT"),
        ("BEGIN", "only SELECT"),
        ("SELECT load_extension('x')", "only SELECT"),
        ("SELECT random()", "only SELECT"),
        ("SELECT CURRENT_TIMESTAMP", "only SELECT"),
        ("SELECT date('now')", "clock"),
        ("SELECT strftime('%s')", "clock"),
        ("SELECT date('2023-01-01', 'localtime')", "clock"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT * FROM nowhere", "no such table: nowhere"),
        ("SELECT missing FROM orders", "no such column: missing"),
        ("", "no SELECT"),
        ("-- a comment", "no SELECT"),
        ("SELECT '\ud800'", "no valid text"),
        ("SELECT 1" + " " * 4000, "4000 characters"),
        ("WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT COUNT(*) FROM t", "takes too long"),
        ("SELECT COUNT(*) FROM orders a, orders b, orders c, orders d, orders e", "takes too long"),
    ],
)
def test_everything_but_reading_is_refused_and_changes_nothing(sql, message):
    database = Database(draw_shop(np.random.default_rng(0)))
    with pytest.raises(QueryError, match=message):
        database.query(sql)
    assert database.query("SELECT COUNT(*) FROM orders").rows == ((80,),)
    database.close()


def test_an_error_is_an_observation_and_neither_paid_nor_fined():
    step = query(start(2, ["orders"]), "SELEC 1")
    assert step.observation.startswith("query: ") and step.info["action_error"] == step.observation
    assert step.reward == 0.0 and not step.terminated
    step = start(2, ["orders"]).step("describe(nowhere)")
    assert "no such table" in step.info["action_error"] and "customers" in step.observation


def test_long_results_and_cells_are_cut_and_missing_values_are_named():
    database = Database(draw_shop(np.random.default_rng(0)))
    lines = str(database.query("SELECT id FROM orders ORDER BY id")).split("\n")
    assert lines[:2] == ["id", "1"] and lines[-2:] == ["20", "..."] and len(lines) == 22
    assert str(database.query("SELECT shipped_on FROM orders WHERE status = 'open' LIMIT 1")) == "shipped_on\nNULL"
    assert str(database.query("SELECT id FROM orders WHERE id < 0")) == "id\n(no rows)"
    assert len(str(database.query("SELECT group_concat(city) AS c FROM customers"))) == len("c\n") + 60
    assert (
        str(database.query("SELECT 7 / 2.0 AS a, 1 / 3.0 AS b, 123456.789 AS c"))
        == "a | b | c\n3.5 | 0.3333 | 123456.79"
    )
    database.close()


def test_dates_can_be_worked_with():
    database = Database(TINY)
    assert database.query("SELECT strftime('%Y-%m', ordered_on) FROM orders").rows[0] == ("2023-05",)
    assert database.query("SELECT date(ordered_on, '+1 month') FROM orders").rows[0] == ("2023-06-01",)
    database.close()


def test_steps_may_run_in_other_threads():
    env = SqlAnalyst()
    env.reset(seed=1)
    sql = "SELECT COUNT(*) FROM orders"
    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(query, env, sql).result().observation == "COUNT(*)\n80"
    assert query(env, sql).observation == "COUNT(*)\n80"
    env.close()


def test_an_episode_can_be_pickled_while_its_database_is_open():
    env = start(3, ["orders"])
    query(env, "SELECT 1")
    copy = pickle.loads(pickle.dumps(env))
    assert query(copy, "SELECT COUNT(*) FROM orders") == query(env, "SELECT COUNT(*) FROM orders")


def test_close_frees_the_connection():
    env = start(3, ["orders"])
    query(env, "SELECT 1")
    connection = env._database._connection
    env.close()
    env.close()
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")


def test_arguments_choose_the_questions():
    rng = np.random.default_rng(0)
    shop = draw_shop(rng)
    for number in (1, 2, 3, 4):
        assert all(len(draw_question(shop, (number, number), rng)[0].tables) == number for _ in range(10))


ENDLESS = (
    "WITH RECURSIVE b(s) AS (SELECT 'aaaaaaaaaa' UNION ALL SELECT s || s FROM b WHERE length(s) < 1000), "
    "m(s) AS (SELECT max(s) FROM b), t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) "
)
DOUBLING = "WITH c0 AS (SELECT 1 x), " + ", ".join(
    f"c{i} AS (SELECT a.x FROM c{i - 1} a, c{i - 1} b)" for i in range(1, 40)
)
HOSTILE = {
    "pattern": (f"{ENDLESS} SELECT COUNT(*) FROM m, t WHERE (s || x) LIKE '{'%_a' * 33}b'", "takes too long"),
    "long pattern": (f"SELECT 1 FROM orders WHERE status LIKE '{'%a' * 60}'", "pattern too complex"),
    "glob": (f"{ENDLESS} SELECT COUNT(*) FROM m, t WHERE (s || x) GLOB '{'*[a-z]' * 16}b'", "takes too long"),
    "trim": (f"{ENDLESS} SELECT COUNT(*) FROM m, t WHERE trim(s || x, replace(s, 'a', 'b') || 'a') = 'q'", "too long"),
    "replace": (f"{ENDLESS} SELECT COUNT(*) FROM m, t WHERE replace(s || x, 'aa', 'b') = 'q'", "takes too long"),
    "sort": (f"{ENDLESS} SELECT s || x FROM m, t ORDER BY 1 DESC", "takes too long"),
    "dates": (f"{ENDLESS} SELECT COUNT(date('2023-01-01', x || ' days')) FROM t", "takes too long"),
    "growth": ("WITH RECURSIVE b(s) AS (SELECT 'a' UNION ALL SELECT s || s FROM b) SELECT max(s) FROM b", "too big"),
    "nested replace": ("SELECT " + "replace(" * 8 + "'a'" + ", 'a', 'aaaaaaaaaa')" * 8, "too big"),
    "doubling": (f"{DOUBLING} SELECT COUNT(*) FROM c39", "refer to one another too often"),
    "randomblob": ("SELECT randomblob(1000000000)", "only SELECT"),
    "zeroblob": ("SELECT zeroblob(1000000000)", "only SELECT"),
    "printf": ("SELECT printf('%1000000000d', 1)", "only SELECT"),
    "parentheses": (f"SELECT {'(' * 1900}1{')' * 1900}", "overflow|too large"),
    "terms": (f"SELECT 1 {'UNION SELECT 1 ' * 200}", "too many terms"),
    "columns": (f"SELECT {', '.join(['1'] * 1300)}", "too many columns"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_query_is_answered_within_two_seconds(attack):
    sql, message = HOSTILE[attack]
    env = start(3, ["orders"])
    started = time.thread_time()
    step = query(env, sql)
    assert time.thread_time() - started < 2.0
    assert re.search(message, step.info["action_error"]) and not step.terminated
    assert query(env, "SELECT COUNT(*) FROM orders").observation.startswith("COUNT(*)\n")  # and the next one is too
    env.close()


def test_subqueries_are_counted_as_sqlite_copies_them():
    # SQLite makes 1, 2 and 7 of these; where a name stands before its AS it is counted too.
    assert num_subqueries("SELECT 'SELECT' -- SELECT\n FROM t /* SELECT */") == 1
    assert num_subqueries("WITH a AS (SELECT 1) SELECT a.x, a.y FROM a") == 4
    assert (
        num_subqueries('WITH a(x) AS (SELECT 1), "b" AS NOT MATERIALIZED (SELECT * FROM a, A) SELECT * FROM [b], b')
        == 15
    )
    assert num_subqueries("WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT * FROM t") == 12
    assert num_subqueries(DOUBLING + " SELECT * FROM c39") > MAX_SUBQUERIES
    for broken in ("AS (", "WITH a AS (SELECT", ") AS (((", "'", '"', "/*"):
        assert num_subqueries(broken) < 10


def test_dates_are_worked_out_by_one_connection(monkeypatch):
    database, opened = Database(TINY), []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: opened.append(args) or connect(*args, **kwargs))
    for _ in range(3):
        assert database.query("SELECT date('2023-01-31', '+1 day'), strftime('%d', '2023-01-31')").rows == (
            ("2023-02-01", "31"),
        )
    assert len(opened) == 2
    database.close()
