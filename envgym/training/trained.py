"""Agents from folders: a training run, or any model in Hugging Face format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envgym.agents.policy_agent import PolicyAgent
from envgym.config import RolloutConfig
from envgym.engines.base import Policy
from envgym.engines.embedded.policy import TorchPolicy
from envgym.errors import ModelError
from envgym.model_folder import load_tokenizer
from envgym.rendering import Renderer, make_renderer
from envgym.training.run_folder import MODEL, read_config
from envgym.types import SamplingParams

GREEDY_NAME, SAMPLED_NAME = "greedy", "sampled"
_DEFAULTS = RolloutConfig()
_OF_THE_RUN = {"temperature", "top_k", "top_p", "max_turn_tokens", "concurrency", "deterministic"}
"""Settings of the rollout that an agent from a run keeps."""


def agent_from_run(
    run_dir: Path, *, greedy: bool = False, servers: str | Sequence[str] = (), check_weights: bool = True
) -> PolicyAgent:
    """The policy a run has trained, sampled as it was in training.

    Args:
        run_dir: A finished run.
        greedy: Always take the most probable token.
        servers, check_weights: See `agent_from_model`.

    Raises:
        ModelError: The run has not written its model yet.
        CheckpointError: The run's configuration is damaged.
    """
    config = read_config(run_dir)
    model = Path(run_dir) / MODEL
    if not model.is_dir():
        raise ModelError(
            f"the run in '{run_dir}' has no trained model yet; finish it with `envgym train --resume {run_dir}`, "
            f"or take its newest checkpoint with `envgym export {run_dir}`"
        )
    as_trained = config.rollout.model_dump(include=_OF_THE_RUN)
    return agent_from_model(
        model, renderer=config.renderer, greedy=greedy, servers=servers, check_weights=check_weights, **as_trained
    )


def agent_from_model(
    folder: Path,
    *,
    renderer: str = "auto",
    greedy: bool = False,
    temperature: float = _DEFAULTS.temperature,
    top_k: int = _DEFAULTS.top_k,
    top_p: float = _DEFAULTS.top_p,
    max_turn_tokens: int = _DEFAULTS.max_turn_tokens,
    context_length: int | None = None,
    concurrency: int = _DEFAULTS.concurrency,
    deterministic: bool = _DEFAULTS.deterministic,
    servers: str | Sequence[str] = (),
    check_weights: bool = True,
) -> PolicyAgent:
    """A language model as an agent, run by the embedded engine or by SGLang servers.

    Args:
        folder: Model folder in Hugging Face format; llama, qwen2 or qwen3 for the embedded engine.
        renderer: Chat format: "auto" goes by the chat template; or "chatml", or a name of the renderers package.
        greedy: Always take the most probable token.
        temperature: Divides the logits; 0 is greedy, too.
        top_k: Keep the k most probable tokens; 0 keeps all.
        top_p: Keep the most probable tokens up to this probability.
        max_turn_tokens: Most sampled tokens of a turn; a turn that reaches it is cut, and the episode ends.
        context_length: Most tokens of an episode; the model's own limit when None.
        concurrency: Most episodes the engine keeps in its cache.
        deterministic: What is sampled does not depend on timing; see `TorchPolicy`. Servers always depend on it.
        servers: Addresses of SGLang servers that serve this model; none takes the embedded engine.
        check_weights: Whether the servers must hold the weights in the folder; the folder is read once to find out.

    Raises:
        ModelError: The folder is missing or incomplete, its model or chat format is not supported, or a server serves
            another model or holds other weights.
        ServerError: A server does not answer.
        ValueError: A number is out of its range.
    """
    # Checked before the weights are read, which may take a while.
    rollout = RolloutConfig(
        temperature=temperature or _DEFAULTS.temperature,
        top_k=top_k,
        top_p=top_p,
        max_turn_tokens=max_turn_tokens,
        concurrency=concurrency,
        deterministic=deterministic,
    )
    greedy = greedy or temperature == 0
    chat = make_renderer(load_tokenizer(folder), renderer)
    policy: Policy
    if servers:
        from envgym.engines.sglang.policy import SGLangPolicy
        from envgym.engines.sglang.weights import check_served_weights

        policy = served = SGLangPolicy(servers, model_folder=folder, context_length=context_length)
        if check_weights:
            served.pin_weights()
            check_served_weights(served.clients, Path(folder))
    else:
        policy = TorchPolicy(
            folder,
            max_concurrency=rollout.concurrency,
            deterministic=rollout.deterministic,
            context_length=context_length,
        )
    return policy_agent(policy, chat, rollout, greedy=greedy)


def policy_agent(policy: Policy, renderer: Renderer, rollout: RolloutConfig, *, greedy: bool) -> PolicyAgent:
    """A policy as an agent that samples as configured, or else always takes the most probable token."""
    temperature = 0.0 if greedy else rollout.temperature
    sampling = SamplingParams(rollout.max_turn_tokens, temperature, rollout.top_k, rollout.top_p)
    return PolicyAgent(policy, renderer, sampling, name=GREEDY_NAME if greedy else SAMPLED_NAME)
