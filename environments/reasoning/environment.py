"""One task of a reasoning-gym data set, with one or several attempts at it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envgym import Step, TextEnv
from envgym.environments.reasoning.answers import ARITHMETIC, EXPRESSIONS, extract_answer, refusal
from envgym.environments.reasoning.package import check_config, draw_task
from envgym.environments.reasoning.scoring import SCORING_S, mended, within
from envgym.spaces import TextSpace

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player

_SOLVED = 1.0 - 1e-9


class ReasoningGym(TextEnv):
    """A question of the reasoning-gym package; a turn is an attempt to answer it, scored by the data set itself.

    The answer is what stands in the last `<answer>...</answer>` of the message, and the whole message where there is no
    such tag. Reward component "score": what the attempt adds to the best score so far, so that an episode sums to the
    best score of its attempts, at most 1. A full score terminates with success, the last attempt terminates without.

    Args:
        dataset: Name of a registered data set, for example "chain_sum"; `dataset_names()` lists them.
        config: Settings of the data set; `size` and `seed` are not among them, the episode's seed draws the task.
        attempts: Attempts at the task, 1 to 100.

    Raises:
        MissingDependencyError: reasoning-gym is not installed.
        ValueError: There is no such data set, `config` does not fit it, or `attempts` is out of range.
    """

    system_prompt = "Solve the problem. Give your final answer between <answer> and </answer>."

    def __init__(
        self, *, dataset: str = "chain_sum", config: Mapping[str, Any] | None = None, attempts: int = 1
    ) -> None:
        if not 1 <= attempts <= 100:
            raise ValueError(f"attempts must be between 1 and 100, got {attempts}")
        check_config(dataset, config or {})
        self.dataset = dataset
        self.config = dict(config or {})
        self.attempts = attempts
        self.action_space = TextSpace([f"<answer>{number}</answer>" for number in range(-20, 100)])
        self._scorer: Any = None
        self._entry: dict[str, Any] = {}
        self._left = 0
        self._best = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws a task.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The question, and info.
        """
        super().reset(seed=seed)
        self._scorer, self._entry = draw_task(self.dataset, self.config, int(self.np_random.integers(2**31)))
        self._left = self.attempts
        self._best = 0.0
        question = str(self._entry["question"])
        return (question if self.attempts == 1 else f"{question}\n\nYou have {self.attempts} attempts."), self._info()

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Scores an attempt."""
        answer = extract_answer(action)
        error = refusal(self.source, answer, str(self._entry.get("answer") or ""))
        score = 0.0 if error else self.score(answer)
        gain = max(0.0, score - self._best)
        self._best += gain
        self._left -= 1
        solved = self._best >= _SOLVED
        if solved or self._left <= 0:
            text = "correct" if solved else f"{error or 'wrong'}; your best score is {self._best:.2f}"
            return Step.terminal(text, {"score": gain}, success=solved, action_error=error, score=score)
        text = (
            f"{error or 'wrong'}; this attempt scores {score:.2f}, your best {self._best:.2f}\n"
            f"{self._left} attempt{'s' if self._left > 1 else ''} left"
        )
        return Step.running(text, {"score": gain}, action_error=error, **self._info(), score=score)

    def score(self, answer: str) -> float:
        """Score of an answer to the present task, 0 to 1; 0 where the data set's own scoring fails on it.

        Where that is SymPy's work it may take `scoring.SCORING_S` seconds at most.
        """

        def score() -> float:
            return float(self._scorer.score_answer(answer, copy.deepcopy(self._entry)))

        if self.source in EXPRESSIONS or self.source in ARITHMETIC:
            return mended(self.source, answer, self._entry, within(SCORING_S, score))
        try:
            return mended(self.source, answer, self._entry, score())
        except Exception:  # whatever the policy wrote that the package did not expect
            return 0.0

    @property
    def entry(self) -> dict[str, Any]:
        """The present task as the package made it: "question", "answer" (None where it names none), "metadata"."""
        return self._entry

    @property
    def source(self) -> str:
        """The data set the present task comes from; of a composite, the one drawn."""
        inner = self._entry.get("metadata", {}).get("source_dataset", self.dataset)
        return inner if self.dataset == "composite" else self.dataset

    def _info(self) -> dict[str, Any]:
        return {"success": False}

    def solver(self) -> Player:
        """A player that gives the data set's own answer, or works one out where the data set has none."""
        from envgym.environments.reasoning.players import Replayer

        return Replayer(self)

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that gives the right answer in a third of its attempts, and a damaged one in the others."""
        from envgym.environments.reasoning.players import ClumsyReplayer

        return ClumsyReplayer(self, rng)


def dataset_names() -> list[str]:
    """Names of all data sets of the installed package.

    Raises:
        MissingDependencyError: reasoning-gym is not installed.
    """
    from envgym.environments.reasoning.package import datasets

    return sorted(datasets())
