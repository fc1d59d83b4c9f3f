"""Gives a trajectory that was played without tokens the tokens a policy would have had."""

from __future__ import annotations

import dataclasses
from typing import Any

from envgym.env import TextEnv
from envgym.rendering import Renderer, tools_for
from envgym.types import Trajectory, Turn


def tokenise(trajectory: Trajectory, env: TextEnv, renderer: Renderer) -> Trajectory:
    """The same episode with token ids, rendered turn by turn as a policy's own would be.

    Args:
        trajectory: Played by an agent without tokens.
        env: An environment of the same id, for its system prompt and tools.
        renderer: The chat format.

    Returns:
        A trajectory with `observation_ids`, `action_ids` (end-of-turn token included), zero log-probabilities in
        `behavior_logprobs`, and `final_observation_ids`.
    """
    base: Any = env.unwrapped
    prompt_ids: list[int] = []
    action_ids: list[int] = []
    turns: list[Turn] = []
    for turn in trajectory.turns:
        if not turns:
            new_ids = renderer.start(base.system_prompt, tools_for(env), turn.observation, turn.role)
        else:
            new_ids = renderer.extend(prompt_ids, action_ids, turn.observation, turn.role)
        prompt_ids = [*prompt_ids, *action_ids, *new_ids]
        action_ids = renderer.action_ids(turn.action)
        turns.append(
            dataclasses.replace(
                turn,
                observation_ids=tuple(new_ids),
                action_ids=tuple(action_ids),
                behavior_logprobs=(0.0,) * len(action_ids),
            )
        )
    final_ids: list[int] = []
    if turns and turns[-1].executed:
        final_ids = renderer.extend(prompt_ids, action_ids, trajectory.final_observation, trajectory.final_role)
    return dataclasses.replace(trajectory, turns=tuple(turns), final_observation_ids=tuple(final_ids))
