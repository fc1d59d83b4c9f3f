"""Agents from folders: a training run, or any model in Hugging Face format."""

from __future__ import annotations

from pathlib import Path

from envgym.agents.policy_agent import PolicyAgent
from envgym.config import RolloutConfig
from envgym.errors import ModelError
from envgym.model_folder import load_tokenizer
from envgym.policies.torch_policy import TorchPolicy
from envgym.rendering import make_renderer
from envgym.run_folder import MODEL, read_config
from envgym.types import SamplingParams

GREEDY_NAME, SAMPLED_NAME = "greedy", "sampled"


def agent_from_run(run_dir: Path, *, greedy: bool = False) -> PolicyAgent:
    """The policy a run has trained, sampled as it was in training.

    Args:
        run_dir: A finished run.
        greedy: Always take the most probable token.

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
    return agent_from_model(model, rollout=config.rollout, renderer=config.renderer, greedy=greedy)


def agent_from_model(
    folder: Path, *, rollout: RolloutConfig | None = None, renderer: str = "chatml", greedy: bool = False
) -> PolicyAgent:
    """A language model as an agent, run by the embedded engine.

    Args:
        folder: Model folder in Hugging Face format (llama, qwen2 or qwen3).
        rollout: Temperature, top-k, top-p and token limit of a turn; the defaults of training when None.
        renderer: Chat format: "chatml", a name of the renderers package, or "auto".
        greedy: Always take the most probable token.

    Raises:
        ModelError: The folder is missing or incomplete, or its model or chat format is not supported.
    """
    rollout = rollout or RolloutConfig()
    sampling = SamplingParams(
        max_new_tokens=rollout.max_turn_tokens,
        temperature=0.0 if greedy else rollout.temperature,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
    )
    policy = TorchPolicy(folder, max_concurrency=rollout.concurrency, deterministic=rollout.deterministic)
    chat = make_renderer(load_tokenizer(folder), renderer)
    return PolicyAgent(policy, chat, sampling, name=GREEDY_NAME if greedy else SAMPLED_NAME)
