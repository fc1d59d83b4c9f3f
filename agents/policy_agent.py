"""A language-model policy as an agent: tokens in, tokens out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from envgym.agent import Action, Agent, Player, PromptTooLong
from envgym.engines.base import Policy
from envgym.env import TextEnv
from envgym.errors import PromptLengthError
from envgym.rendering import Renderer, tools_for
from envgym.types import SamplingParams


class PolicyAgent(Agent):
    """Renders observations to tokens, lets a policy sample, and hands the decoded text to the environment.

    Args:
        policy: What samples.
        renderer: The chat format the policy was trained on.
        sampling: How to draw; the renderer's stop tokens are added.
        name: What evaluations call this agent.
    """

    def __init__(self, policy: Policy, renderer: Renderer, sampling: SamplingParams, *, name: str = "policy") -> None:
        self.policy = policy
        self.renderer = renderer
        stop = tuple(dict.fromkeys((*sampling.stop_token_ids, *renderer.stop_token_ids)))
        self.sampling = dataclasses.replace(sampling, stop_token_ids=stop)
        self.name = name

    def start(self, env: TextEnv, *, seed: int) -> PolicyPlayer:
        base: Any = env.unwrapped
        return PolicyPlayer(self, base.system_prompt, tools_for(env), seed)

    def check_fits(self, num_prompt_tokens: int) -> None:
        """Checks that the context holds a first prompt and something behind it.

        Raises:
            PromptLengthError: It does not.
        """
        if num_prompt_tokens >= self.policy.context_length:
            raise PromptLengthError(
                f"the first prompt has {num_prompt_tokens} tokens but the policy's context holds "
                f"{self.policy.context_length}, the reply included; use a longer context or a shorter prompt"
            )

    def expect_episode(self) -> Callable[[], None]:
        """Keeps a deterministic policy from sampling until the returned function is called."""
        session = self.policy.open_session(seed=0)
        return lambda: self.policy.close_session(session)


class PolicyPlayer(Player):
    """One episode of a `PolicyAgent`: its token stream and its session at the policy."""

    def __init__(self, agent: PolicyAgent, system_prompt: str, tools: tuple[Any, ...], seed: int) -> None:
        self._agent = agent
        self._system_prompt = system_prompt
        self._tools = tools
        self._prompt_ids: list[int] = []
        self._action_ids: tuple[int, ...] = ()
        self._session = agent.policy.open_session(seed=seed)

    def _observe(self, observation: str, info: Mapping[str, Any]) -> list[int]:
        renderer, role = self._agent.renderer, info.get("role", "user")
        if not self._prompt_ids:
            return renderer.start(self._system_prompt, self._tools, observation, role)
        return renderer.extend(self._prompt_ids, self._action_ids, observation, role)

    async def act(self, observation: str, info: Mapping[str, Any]) -> Action:
        policy = self._agent.policy
        new_ids = self._observe(observation, info)
        prompt_ids = [*self._prompt_ids, *self._action_ids, *new_ids]
        if not self._prompt_ids:
            self._agent.check_fits(len(prompt_ids))
        elif len(prompt_ids) >= policy.context_length:
            raise PromptTooLong(self._within_context(new_ids))
        completion = await policy.generate(prompt_ids, self._agent.sampling, session=self._session)
        self._prompt_ids, self._action_ids = prompt_ids, completion.token_ids
        return Action(self._agent.renderer.action_text(completion.token_ids), tuple(new_ids), completion)

    def final_observation_ids(self, observation: str, info: Mapping[str, Any]) -> tuple[int, ...]:
        return self._within_context(self._observe(observation, info))

    def _within_context(self, new_ids: list[int]) -> tuple[int, ...]:
        """The part of an observation that the context still holds: the state a cut episode is bootstrapped from."""
        room = self._agent.policy.context_length - len(self._prompt_ids) - len(self._action_ids)
        return tuple(new_ids[: max(room, 0)])

    def close(self) -> None:
        self._agent.policy.close_session(self._session)
