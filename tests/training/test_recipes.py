"""Recipes are not warned of, and what a learner believes about a cut decides what it learns where nothing ends."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from envgym.training.recipes import RECIPES, upkeep
from envgym.training.run import _advice


def trained_reward(folder: str, zeroed: bool) -> tuple[float, float]:
    """Sampled reward per turn before and after the upkeep recipe, with the bootstrap value kept or set to zero."""
    from contextlib import nullcontext

    from blind_learner import zeroed_bootstrap

    from envgym.training import train

    with zeroed_bootstrap() if zeroed else nullcontext():
        result = train(upkeep(Path(folder), seed=0), progress=False)
    return result.before["sampled"].reward_per_turn, result.after["sampled"].reward_per_turn


@pytest.mark.slow
def test_a_truncation_that_is_bootstrapped_teaches_upkeep_and_a_zeroed_one_ruins_it(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        jobs = [(str(tmp_path / "kept"), False), (str(tmp_path / "zeroed"), True)]
        (before, kept), (before_zeroed, zeroed) = pool.starmap(trained_reward, jobs)
    assert before == before_zeroed
    # Seen over three seeds (docs/results.md): about .38 against .11, from .23. Both sides keep a wide margin.
    assert kept > before + 0.05
    assert zeroed < before
    assert kept - zeroed > 0.12


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_not_warned_of(tmp_path, recipe):
    assert _advice(RECIPES[recipe](tmp_path / "run")) == []
