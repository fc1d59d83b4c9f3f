"""All kinds of questions, and how one is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from envgym.environments.sql_analyst.question import Answer, Question
from envgym.environments.sql_analyst.questions_customers import CUSTOMER_QUESTIONS
from envgym.environments.sql_analyst.questions_goods import GOODS_QUESTIONS
from envgym.environments.sql_analyst.questions_reviews import REVIEW_QUESTIONS
from envgym.environments.sql_analyst.questions_sales import SALES_QUESTIONS
from envgym.environments.sql_analyst.shop import Shop

QUESTIONS: tuple[Question, ...] = GOODS_QUESTIONS + CUSTOMER_QUESTIONS + SALES_QUESTIONS + REVIEW_QUESTIONS


def draw_question(
    shop: Shop, tables: tuple[int, int], rng: np.random.Generator
) -> tuple[Question, dict[str, Any], Answer]:
    """A question that has exactly one answer in this shop, its parameters, and the answer.

    Args:
        shop: The shop asked about.
        tables: Lowest and highest number of tables the answer needs, within 1 to 4.
        rng: Source of the question.
    """
    kinds = [question for question in QUESTIONS if tables[0] <= len(question.tables) <= tables[1]]
    while True:
        question = kinds[int(rng.integers(len(kinds)))]
        if (drawn := question.draw(shop, rng)) is not None:
            return question, *drawn
